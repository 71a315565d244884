//! The password for a server, which may change while this process runs.
//!
//! A login that was refused is tried again where that may help: its password has come from a file
//! that may have another one by now, or it has worked before, and the server is ahead of the file.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::secrets::{Password, first_line};
use rlock_sys::clock::Boottime;

/// The password, which all connections to a store share.
#[derive(Debug, Default)]
pub struct Credentials {
    /// The file whose first line is the password.
    file: Option<PathBuf>,
    /// How long a login that has worked before is tried again.
    limit: Duration,
    login: Mutex<Login>,
}

#[derive(Debug, Default)]
struct Login {
    password: Option<Password>,
    /// Whether the server has accepted a login of this process.
    has_worked: bool,
    /// The password that was refused last, unless one was accepted since.
    refused: Option<Password>,
    /// When the first login and the last one were refused, since one was accepted.
    since: Option<(Boottime, Boottime)>,
}

/// Another login would be refused as the last one was.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

impl Credentials {
    /// A password, and the file that it comes from. A login that has worked before is tried again
    /// for as long as `limit`.
    pub fn new(password: Option<Password>, file: Option<PathBuf>, limit: Duration) -> Self {
        Self { file, limit, login: Mutex::new(Login { password, ..Login::default() }) }
    }

    /// The password for a login now.
    pub fn password(&self) -> Option<Password> {
        self.login().password.clone()
    }

    /// The server has accepted a login.
    pub fn accepted(&self) {
        let mut login = self.login();
        (login.has_worked, login.refused, login.since) = (true, None, None);
    }

    /// The server has refused a login with this password at `now`. Tells whether another login may
    /// be accepted, after [`renew`](Self::renew).
    pub fn refused(&self, password: &Password, now: Boottime) -> bool {
        let mut login = self.login();
        login.refused = Some(password.clone());
        // After a pause this is another outage.
        let since = login.since.filter(|(_, last)| now < *last + self.limit).map_or(now, |(first, _)| first);
        login.since = Some((since, now));
        if login.has_worked { now < since + self.limit } else { self.file.is_some() }
    }

    /// Whether [`renew`](Self::renew) has to be called before the next login.
    pub fn is_refused(&self) -> bool {
        let login = self.login();
        login.refused.is_some() && login.refused == login.password
    }

    /// Reads the file again if the password was refused. This may block.
    ///
    /// # Errors
    /// The file has the password that was refused, and no login has worked before.
    pub fn renew(&self) -> Result<(), Refused> {
        if self.is_refused() { self.reread(None) } else { Ok(()) }
    }

    /// Takes for the next login the password that was `found` elsewhere, or that the file has now.
    /// This may block.
    ///
    /// # Errors
    /// Those of [`renew`](Self::renew).
    pub fn reread(&self, found: Option<Password>) -> Result<(), Refused> {
        // A file that is being replaced may be absent for a moment.
        let read = found.or_else(|| first_line(self.file()?).ok());
        let is_refused = self.is_refused();
        let mut login = self.login();
        match read.filter(|read| login.refused.as_ref() != Some(read)) {
            Some(read) => login.password = Some(read),
            None if login.has_worked || !is_refused => {}
            None => return Err(Refused),
        }
        Ok(())
    }

    /// The file that the password comes from.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    fn login(&self) -> MutexGuard<'_, Login> {
        self.login.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Boottime = Boottime::since_boot(Duration::from_secs(1_000));
    const LIMIT: Duration = Duration::from_secs(5);

    fn password(text: &str) -> Password {
        Password::new(text.as_bytes().to_vec())
    }

    #[test]
    fn wrong_password_of_a_first_login_is_refused_at_once() {
        let credentials = Credentials::new(Some(password("wrong")), None, LIMIT);
        assert!(!credentials.refused(&password("wrong"), NOW));
    }

    #[test]
    fn file_that_has_changed_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let credentials = Credentials::new(Some(password("old")), Some(file.path().to_owned()), LIMIT);
        assert!(!credentials.is_refused() && credentials.renew().is_ok());
        assert_eq!(credentials.password(), Some(password("old")), "nobody has refused it");

        std::fs::write(file.path(), "old\n").unwrap();
        assert!(credentials.refused(&password("old"), NOW) && credentials.is_refused());
        assert_eq!(credentials.renew(), Err(Refused));
        std::fs::write(file.path(), "new\n").unwrap();
        assert_eq!((credentials.renew(), credentials.password()), (Ok(()), Some(password("new"))));
        // A connection that is behind.
        assert!(credentials.refused(&password("old"), NOW) && !credentials.is_refused());
    }

    #[test]
    fn login_that_has_worked_is_tried_again_until_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let credentials = Credentials::new(Some(password("old")), Some(file.path().to_owned()), LIMIT);
        for _ in 0..2 {
            credentials.accepted();
            for (after, again) in [(0, true), (4, true), (5, false), (9, false), (14, true)] {
                let at = NOW + Duration::from_secs(after);
                assert_eq!((credentials.refused(&password("old"), at), credentials.renew()), (again, Ok(())));
            }
        }
        assert_eq!(credentials.password(), Some(password("old")), "the file has no password yet");
        std::fs::write(file.path(), "new\n").unwrap();
        assert_eq!((credentials.renew(), credentials.password()), (Ok(()), Some(password("new"))));
    }
}
