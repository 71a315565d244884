//! The checks of `rlock doctor`: facts in, verdicts with remedies out.

mod audience;
mod load;

use std::time::Duration;

use rustix::io::Errno;

pub(crate) use audience::audience;
pub(crate) use load::{cost, names, no_names};

use crate::lock::text::shortened;
use crate::store::embedded::TABLE_BYTES_MAX;
use crate::store::facts::{DirectoryFacts, Facts, ServerFacts};
use crate::words::{Explained, duration, one_line};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is nothing to do.
    Ok,
    /// rlock works, and something may go wrong.
    Warn,
    /// rlock cannot be used.
    Fail,
    /// The fact cannot be read, which is no fault.
    Unknown,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// What was checked.
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) found: String,
    /// What to do, unless there is nothing to do.
    pub(crate) cure: Option<String>,
}

impl Check {
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: one_line(&found.into()), cure: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, cure: Some(cure.into()), ..Self::ok(name, found) }
    }

    fn fail(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, cure) }
    }

    fn unknown(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, ..Self::warn(name, found, cure) }
    }
}

/// The checks of what a store tells about its place. `ttl` is the ttl of leases.
pub(crate) fn checks(facts: &Facts, ttl: Duration) -> Vec<Check> {
    match facts {
        Facts::Directory(facts) => vec![directory(facts), file_system(facts), room(facts), limits(facts)],
        Facts::Server(facts) => vec![
            tls(facts),
            login(facts),
            version(facts),
            role(facts),
            memory(facts),
            persistence(facts),
            replicas(facts),
            clients(facts),
            clock(facts),
            latency(facts, ttl),
        ],
    }
}

/// The errors of the system by which something is used up, and what to do.
const USED_UP: [(Errno, &str); 5] = [
    (Errno::NOSPC, "delete files on the file system, where df -h and df -i show what is used up"),
    (Errno::DQUOT, "delete files, or raise the quota"),
    (Errno::MFILE, "raise the limit: ulimit -n 1024"),
    (Errno::NFILE, "end processes, or raise the limit: sysctl fs.file-max"),
    (Errno::NOMEM, "end processes, or raise the limit: ulimit -v unlimited"),
];

/// The check that has met an error.
pub(crate) fn failed(name: &'static str, words: &Explained) -> Check {
    let used_up = USED_UP.iter().find(|(errno, _)| words.errno == Some(*errno)).map(|(_, cure)| *cure);
    let cure = words.cure.as_deref().or(used_up).unwrap_or("see STORES in rlock(1)");
    Check::fail(name, words.what.as_str(), cure)
}

fn directory(facts: &DirectoryFacts) -> Check {
    let DirectoryFacts { path, user, owner, mode, .. } = facts;
    let mut found = format!("'{}' belongs to uid {owner}, mode {:04o}", path.display(), mode & 0o7777);
    if mode & 0o022 == 0 {
        found += &format!("; only user {} locks here", shortened(&facts.owner_name));
    }
    if mode & 0o002 != 0 {
        let cure = "everybody may take locks away: give the directory to a group, and run 'chmod o-w' on it";
        return Check::warn("directory", found, cure);
    }
    if owner != user && *owner != 0 && mode & 0o020 == 0 {
        return Check::warn("directory", found, "run rlock as the owner, or name a directory of your own with --store");
    }
    Check::ok("directory", found)
}

/// File systems of which something has to be said, by `f_type` of statfs(2).
const OVERLAY: u32 = 0x794C_7630;
const NAMES: [(u32, &str); 7] = [
    (0x0102_1994, "tmpfs"),
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (OVERLAY, "overlay"),
];

fn file_system(facts: &DirectoryFacts) -> Check {
    let name = "file system";
    let Some(kind) = facts.file_system else {
        return Check::unknown(name, "its type cannot be read", "name a directory on a local disk with --store");
    };
    let found = NAMES.iter().find(|(known, _)| *known == kind).map_or("a local one", |(_, name)| *name);
    if kind == OVERLAY {
        let cure = "other containers do not see these locks: share a volume, and name it with --store file:///DIR";
        return Check::warn(name, "overlay, the layer of a container", cure);
    }
    Check::ok(name, found)
}

/// The room that a new table needs.
const TABLE_BYTES_MIN: u64 = 256 << 10;

/// Each process that holds or waits makes a file. With fewer inodes than these, a crowd uses up all.
const INODES: u64 = 1000;

fn room(facts: &DirectoryFacts) -> Check {
    let name = "room";
    let Some(free) = facts.free else {
        return Check::unknown(name, "the free space cannot be read", "see what df(1) tells of the directory");
    };
    if let Some(left) = facts.files_left.filter(|left| *left < INODES) {
        let found = format!("inodes left on the file system: {left}");
        let cure = "delete files on the file system, see df -i, or name another directory with --store";
        return if left == 0 { Check::fail(name, found, cure) } else { Check::warn(name, found, cure) };
    }
    let (table, most) = (facts.table.unwrap_or(0), TABLE_BYTES_MAX as u64);
    let found = format!("{} free, and the table takes {} of at most {}", size(free), size(table), size(most));
    let all = table.saturating_add(free).min(most);
    if all < TABLE_BYTES_MIN {
        return Check::fail(name, found, "delete files on the file system, or name another directory with --store");
    }
    if table > all / 8 * 7 {
        let cure = "make room on the file system, or use fewer names: idle names lose their history, and a job with \
                    --once-per fails where its success can't be kept";
        return Check::warn(name, found, cure);
    }
    Check::ok(name, found)
}

/// The number of open files that rlock itself needs, and that it needs to watch others.
const FILES_MIN: u64 = 32;
const FILES: u64 = 256;

fn limits(facts: &DirectoryFacts) -> Check {
    let found = match facts.files {
        u64::MAX => "any number of open files".to_owned(),
        files => format!("{files} open files"),
    };
    match facts.files {
        ..FILES_MIN => Check::fail("limits", found, "raise the limit: ulimit -n 1024"),
        FILES_MIN..FILES => Check::warn("limits", found, "raise the limit: ulimit -n 1024"),
        _ => Check::ok("limits", found),
    }
}

/// Fewer days than these before its end, a certificate needs a person: programs that renew
/// certificates do it a month before.
const CERTIFICATE_DAYS: u64 = 14;

fn certificate(left: Option<Duration>) -> Check {
    let Some(left) = left else {
        let cure = "see its end with openssl s_client -connect HOST:PORT";
        return Check::unknown("tls", "the connection is encrypted; the end of the certificate cannot be read", cure);
    };
    let days = left.as_secs() / (24 * 60 * 60);
    let found = format!("the connection is encrypted, and the certificate is trusted; days left: {days}");
    if days < CERTIFICATE_DAYS {
        return Check::warn("tls", found, "give the server a new certificate: no rlock connects after its end");
    }
    Check::ok("tls", found)
}

fn tls(facts: &ServerFacts) -> Check {
    match (facts.is_encrypted, facts.is_local) {
        (true, _) => certificate(facts.certificate_left),
        (false, true) => Check::ok("tls", "not used, and not needed on this machine"),
        (false, false) => Check::warn(
            "tls",
            "the password and all names cross the network in clear text",
            "use a URL that begins with rediss://, or a tunnel",
        ),
    }
}

fn login(facts: &ServerFacts) -> Check {
    match facts.login.as_deref() {
        None => Check::unknown(
            "login",
            "the server does not tell the user",
            "allow the command with ACL SETUSER USER +acl|whoami",
        ),
        Some("default") if !facts.is_local => Check::warn(
            "login",
            "the user is 'default', who may usually do everything",
            "make a user for rlock: see RIGHTS in rlock-redis(7)",
        ),
        Some(user) => Check::ok("login", format!("the user is '{}'", shortened(user))),
    }
}

fn version(facts: &ServerFacts) -> Check {
    let field = |name: &str| facts.info.get(name);
    let (product, found, least) = match field("valkey_version") {
        Some(version) => ("Valkey", Some(version), [7, 2]),
        None => ("Redis", field("redis_version"), [6, 2]),
    };
    let Some(found) = found else {
        return Check::unknown("version", "the server does not tell it", ALLOW_INFO);
    };
    let mut parts = found.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let is_new = [parts.next().unwrap_or(0), parts.next().unwrap_or(0)] >= least;
    let text = format!("{product} {}", shortened(found));
    if is_new {
        return Check::ok("version", text);
    }
    let cure = format!("rlock needs {product} {}.{} or newer: upgrade the server", least[0], least[1]);
    Check::fail("version", text, cure)
}

const ALLOW_INFO: &str = "allow the command with ACL SETUSER USER +info";

fn role(facts: &ServerFacts) -> Check {
    match facts.info.get("role").map(String::as_str) {
        None => Check::unknown("role", "the server does not tell it", ALLOW_INFO),
        Some("master") => Check::ok("role", "primary"),
        Some(_) => Check::fail(
            "role",
            "the server is a replica, which cannot be written",
            "name the primary, or let Sentinel find it: redis+sentinel://HOST:26379/NAME",
        ),
    }
}

fn number(facts: &ServerFacts, name: &str) -> Option<u64> {
    facts.info.get(name)?.parse().ok()
}

fn memory(facts: &ServerFacts) -> Check {
    let name = "memory";
    let (Some(policy), Some(max)) = (facts.info.get("maxmemory_policy"), number(facts, "maxmemory")) else {
        return Check::unknown(name, "the server does not tell its limit and its policy", ALLOW_INFO);
    };
    let used = number(facts, "used_memory").unwrap_or(0);
    let limit = if max == 0 { "no limit".to_owned() } else { format!("{} of {} used", size(used), size(max)) };
    let found = format!("{limit}, policy {}", shortened(policy));
    if max > 0 && policy.starts_with("allkeys") {
        let cure =
            "the server may drop locks that are held: set maxmemory-policy noeviction, or use a server for rlock alone";
        return Check::warn(name, found, cure);
    }
    if max > 0 && used > max / 10 * 9 {
        return Check::warn(name, found, "raise maxmemory: a full server grants no more requests");
    }
    Check::ok(name, found)
}

fn persistence(facts: &ServerFacts) -> Check {
    let name = "persistence";
    let is = |field: &str, value: &str| facts.info.get(field).is_some_and(|found| found == value);
    if !facts.info.contains_key("aof_enabled") {
        return Check::unknown(name, "the server does not tell it", ALLOW_INFO);
    }
    for (field, what) in [("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")] {
        if is(field, "err") {
            let found = format!("the last write of the {what} failed");
            return Check::warn(name, found, "see the server's log, and make room on its disk");
        }
    }
    if is("aof_enabled", "1") {
        return Check::ok(name, "append-only file");
    }
    let cure = "a restart can forget locks that are held: set appendonly yes, or check the token";
    Check::warn(name, "no append-only file", cure)
}

fn replicas(facts: &ServerFacts) -> Check {
    let Some(count) = number(facts, "connected_slaves") else {
        return Check::unknown("replicas", "the server does not tell them", ALLOW_INFO);
    };
    let lags = (0..count).filter_map(|index| facts.info.get(&format!("slave{index}")));
    let lag =
        lags.filter_map(|line| line.split(',').find_map(|part| part.strip_prefix("lag=")?.parse::<u64>().ok())).max();
    match (count, lag) {
        (0, _) => Check::ok("replicas", "none"),
        (_, Some(lag)) if lag > 10 => Check::warn(
            "replicas",
            format!("{count}, the last of which is {lag}s behind"),
            "see the network and the load of the replica: a failover would forget recent locks",
        ),
        _ => Check::ok("replicas", format!("{count}; --replicas lets a grant wait for them")),
    }
}

fn clients(facts: &ServerFacts) -> Check {
    let (Some(count), Some(max)) = (number(facts, "connected_clients"), number(facts, "maxclients")) else {
        return Check::unknown("clients", "the server does not tell their number", ALLOW_INFO);
    };
    let found = format!("{count} of at most {max}");
    if count >= max / 10 * 9 {
        return Check::warn("clients", found, "raise maxclients: each request that waits needs a connection");
    }
    Check::ok("clients", found)
}

/// The difference of clocks from which on people misread times.
const CLOCK_OFF: i64 = 1_000_000;

fn clock(facts: &ServerFacts) -> Check {
    let Some((ahead, error)) = facts.clock else {
        return Check::unknown(
            "clock",
            "the server does not tell its time",
            "allow the command with ACL SETUSER USER +time",
        );
    };
    let off = Duration::from_micros(ahead.unsigned_abs());
    let side = if ahead < 0 { "behind" } else { "ahead of" };
    let found = format!("{} {side} this machine", duration(off));
    if ahead.saturating_abs() > CLOCK_OFF + i64::try_from(error.as_micros()).unwrap_or(i64::MAX) {
        return Check::warn(
            "clock",
            found,
            "run chrony or another NTP client on both machines; leases are not affected",
        );
    }
    Check::ok("clock", format!("less than {} apart", duration(off + error + Duration::from_millis(1))))
}

fn latency(facts: &ServerFacts, ttl: Duration) -> Check {
    let (Some(middle), Some(longest)) = (facts.pings.get(facts.pings.len() / 2), facts.pings.last()) else {
        return Check::unknown(
            "latency",
            "the server does not tell its time, by which the latency is measured",
            "allow the command with ACL SETUSER USER +time",
        );
    };
    let shown = |length: &Duration| format!("{:.1}ms", length.as_secs_f64() * 1000.0);
    let found = format!("{} usually, {} at most, with a ttl of {}", shown(middle), shown(longest), duration(ttl));
    let cure = "use a server nearer by, or raise --ttl";
    match *longest {
        longest if longest >= ttl / 3 => Check::fail("latency", found, cure),
        longest if longest >= ttl / 20 => Check::warn("latency", found, cure),
        _ => Check::ok("latency", found),
    }
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    pub(super) fn place() -> DirectoryFacts {
        DirectoryFacts {
            path: "/run/rlock".into(),
            user: 0,
            owner: 0,
            owner_name: "root".to_owned(),
            mode: 0o700,
            file_system: Some(0x0102_1994),
            free: Some(1 << 30),
            files_left: Some(1 << 20),
            table: Some(1 << 15),
            files: 1024,
        }
    }

    /// A server at which nothing is wrong, with changes to its fields.
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    pub(super) fn server(changes: &[(&str, &str)]) -> ServerFacts {
        let fields = [
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("maxmemory", "0"),
            ("maxmemory_policy", "noeviction"),
            ("used_memory", "1000000"),
            ("aof_enabled", "1"),
            ("aof_last_write_status", "ok"),
            ("rdb_last_bgsave_status", "ok"),
            ("connected_slaves", "1"),
            ("slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0"),
            ("connected_clients", "10"),
            ("maxclients", "10000"),
        ];
        let fields = fields.iter().chain(changes).filter(|(_, value)| !value.is_empty());
        let mut info: std::collections::BTreeMap<_, _> =
            fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        for (name, _) in changes.iter().filter(|(_, value)| value.is_empty()) {
            info.remove(*name);
        }
        ServerFacts {
            is_encrypted: true,
            certificate_left: Some(60 * DAY),
            is_local: false,
            login: Some("rlock".to_owned()),
            info,
            clock: Some((1000, Duration::from_millis(1))),
            pings: vec![Duration::from_micros(300); 10],
        }
    }

    /// The verdict of one check, which has a remedy unless it is fine.
    fn verdict(facts: Facts, name: &str) -> Verdict {
        let checks = checks(&facts, TTL);
        let check = checks.iter().find(|check| check.name == name).expect("there is such a check");
        assert_eq!(check.cure.is_none(), check.verdict == Verdict::Ok, "{check:?}");
        check.verdict
    }

    #[test]
    fn store_without_a_fault_passes_each_check() {
        for facts in [Facts::Directory(place()), Facts::Server(server(&[]))] {
            for check in checks(&facts, TTL) {
                assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
            }
        }
    }

    #[test]
    fn directory_of_one_user_is_named_as_such() {
        for (mode, ending) in [(0o700, "mode 0700; only user root locks here"), (0o2770, "mode 2770")] {
            let check = directory(&DirectoryFacts { mode, ..place() });
            assert!(check.found.ends_with(ending), "{check:?}");
        }
    }

    #[test]
    fn error_of_the_system_gets_a_cure_where_something_is_used_up() {
        let store = "the store in /d can't be used";
        for (errno, cure) in USED_UP {
            let words = Explained::from(&std::io::Error::from(errno)).behind(store);
            let check = failed("locks", &words);
            assert_eq!((check.found, check.cure), (words.to_string(), Some(cure.to_owned())));
        }
        let check = failed("store", &Explained::new("no: no", "do this: now"));
        assert_eq!((check.found.as_str(), check.cure.as_deref()), ("no: no", Some("do this: now")));
        let check = failed("store", &"it is broken: why".into());
        assert_eq!(
            (check.found.as_str(), check.cure.as_deref()),
            ("it is broken: why", Some("see STORES in rlock(1)"))
        );
    }

    #[test]
    fn each_check_of_a_directory_fails_for_its_fault() {
        for (name, expected, facts) in [
            ("directory", Verdict::Warn, DirectoryFacts { mode: 0o1777, ..place() }),
            ("directory", Verdict::Warn, DirectoryFacts { owner: 7, mode: 0o755, user: 8, ..place() }),
            ("directory", Verdict::Ok, DirectoryFacts { owner: 7, mode: 0o2775, user: 8, ..place() }),
            ("file system", Verdict::Warn, DirectoryFacts { file_system: Some(OVERLAY), ..place() }),
            ("file system", Verdict::Unknown, DirectoryFacts { file_system: None, ..place() }),
            ("room", Verdict::Fail, DirectoryFacts { free: Some(100), ..place() }),
            ("room", Verdict::Ok, DirectoryFacts { free: Some(5 << 20), ..place() }),
            ("room", Verdict::Warn, DirectoryFacts { free: Some(500 << 10), table: Some(4 << 20), ..place() }),
            ("room", Verdict::Warn, DirectoryFacts { table: Some(TABLE_BYTES_MAX as u64), ..place() }),
            ("room", Verdict::Fail, DirectoryFacts { files_left: Some(0), ..place() }),
            ("room", Verdict::Warn, DirectoryFacts { files_left: Some(999), ..place() }),
            ("room", Verdict::Ok, DirectoryFacts { files_left: None, ..place() }),
            ("room", Verdict::Unknown, DirectoryFacts { free: None, ..place() }),
            ("limits", Verdict::Fail, DirectoryFacts { files: 10, ..place() }),
            ("limits", Verdict::Warn, DirectoryFacts { files: 64, ..place() }),
            ("limits", Verdict::Ok, DirectoryFacts { files: u64::MAX, ..place() }),
        ] {
            assert_eq!(verdict(Facts::Directory(facts.clone()), name), expected, "{name}: {facts:?}");
        }
    }

    #[test]
    fn each_check_of_a_server_fails_for_its_fault() {
        let near = || ServerFacts { is_encrypted: false, is_local: true, ..server(&[]) };
        let slow = |millis| ServerFacts { pings: vec![Duration::from_millis(millis)], ..server(&[]) };
        for (name, expected, facts) in [
            ("tls", Verdict::Warn, ServerFacts { is_encrypted: false, ..server(&[]) }),
            ("tls", Verdict::Ok, near()),
            ("tls", Verdict::Warn, ServerFacts { certificate_left: Some(13 * DAY), ..server(&[]) }),
            ("tls", Verdict::Ok, ServerFacts { certificate_left: Some(14 * DAY), ..server(&[]) }),
            ("tls", Verdict::Unknown, ServerFacts { certificate_left: None, ..server(&[]) }),
            ("login", Verdict::Warn, ServerFacts { login: Some("default".to_owned()), ..server(&[]) }),
            ("login", Verdict::Ok, ServerFacts { login: Some("default".to_owned()), ..near() }),
            ("login", Verdict::Unknown, ServerFacts { login: None, ..server(&[]) }),
            ("version", Verdict::Fail, server(&[("redis_version", "6.0.16")])),
            ("version", Verdict::Ok, server(&[("redis_version", "6.2.0")])),
            ("version", Verdict::Ok, server(&[("redis_version", "7.2.4"), ("valkey_version", "9.0.0")])),
            ("version", Verdict::Unknown, server(&[("redis_version", "")])),
            ("role", Verdict::Fail, server(&[("role", "slave")])),
            ("role", Verdict::Unknown, server(&[("role", "")])),
            ("memory", Verdict::Warn, server(&[("maxmemory", "9000000"), ("maxmemory_policy", "allkeys-lru")])),
            ("memory", Verdict::Ok, server(&[("maxmemory", "9000000"), ("maxmemory_policy", "volatile-lru")])),
            ("memory", Verdict::Warn, server(&[("maxmemory", "1000001")])),
            ("memory", Verdict::Unknown, server(&[("maxmemory", "")])),
            ("persistence", Verdict::Warn, server(&[("aof_enabled", "0")])),
            ("persistence", Verdict::Warn, server(&[("aof_last_write_status", "err")])),
            ("persistence", Verdict::Warn, server(&[("rdb_last_bgsave_status", "err")])),
            ("persistence", Verdict::Unknown, server(&[("aof_enabled", "")])),
            ("replicas", Verdict::Ok, server(&[("connected_slaves", "0")])),
            ("replicas", Verdict::Warn, server(&[("slave0", "ip=h,port=1,state=online,offset=1,lag=99")])),
            ("replicas", Verdict::Unknown, server(&[("connected_slaves", "")])),
            ("clients", Verdict::Warn, server(&[("connected_clients", "9500")])),
            ("clients", Verdict::Unknown, server(&[("maxclients", "")])),
            ("clock", Verdict::Warn, ServerFacts { clock: Some((-3_000_000, Duration::ZERO)), ..server(&[]) }),
            ("clock", Verdict::Ok, ServerFacts { clock: Some((3_000_000, Duration::from_secs(3))), ..server(&[]) }),
            ("clock", Verdict::Unknown, ServerFacts { clock: None, ..server(&[]) }),
            ("latency", Verdict::Fail, slow(10_000)),
            ("latency", Verdict::Warn, slow(1_500)),
            ("latency", Verdict::Unknown, ServerFacts { pings: vec![], ..server(&[]) }),
        ] {
            assert_eq!(verdict(Facts::Server(facts.clone()), name), expected, "{name}: {facts:?}");
        }
    }
}
