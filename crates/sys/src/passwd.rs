//! Reads the entry of a user from /etc/passwd, and that of a group from /etc/group.
//!
//! The file is read directly, because a lookup through the system's name services would load shared
//! libraries at every start. A user that only such a service knows has no name here.

use std::path::{Path, PathBuf};

use crate::files;

/// Maximum size of the file. The file of a site with a hundred thousand users is smaller.
const PASSWD_BYTES_MAX: u64 = 16 << 20;

/// The name and the home directory of a user, if /etc/passwd lists the user.
pub fn lookup(uid: u32) -> Option<(String, PathBuf)> {
    let passwd = String::from_utf8(files::read(Path::new("/etc/passwd"), PASSWD_BYTES_MAX).ok()?).ok()?;
    find(&passwd, uid)
}

/// The name of a group, if /etc/group lists the group.
pub fn group(gid: u32) -> Option<String> {
    let groups = String::from_utf8(files::read(Path::new("/etc/group"), PASSWD_BYTES_MAX).ok()?).ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

fn find(passwd: &str, uid: u32) -> Option<(String, PathBuf)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let found = fields.nth(1)?.parse() == Ok(uid);
        let home = fields.nth(2)?;
        found.then(|| (name.to_owned(), PathBuf::from(home)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_uid() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n# comment\nbroken\n\n+::::::\na:x:1000:100::/home/a:\n";
        assert_eq!(find(passwd, 0), Some(("root".to_owned(), PathBuf::from("/root"))));
        assert_eq!(find(passwd, 1000), Some(("a".to_owned(), PathBuf::from("/home/a"))));
        assert_eq!(find(passwd, 100), None);
    }
}
