//! Answers options and subcommands of other lock programs, which users type out of habit.

/// What to do instead of an option of flock(1), setlock(8), consul and others. The nearest spelling
/// would mislead.
pub const OPTIONS: [(&str, &str); 30] = [
    ("-s", SHARED),
    ("--shared", SHARED),
    ("-x", EXCLUSIVE),
    ("-e", EXCLUSIVE),
    ("--exclusive", EXCLUSIVE),
    ("-X", EXCLUSIVE),
    ("--nonblock", NO_WAIT),
    ("--nb", NO_WAIT),
    ("-N", NO_WAIT),
    ("-u", UNLOCK),
    ("--unlock", UNLOCK),
    ("--timeout", WAIT),
    ("--wait-time", WAIT),
    ("-t", WAIT),
    ("-o", CLOSE),
    ("--close", CLOSE),
    ("-F", NO_FORK),
    ("--no-fork", NO_FORK),
    ("--start", RANGE),
    ("--length", RANGE),
    ("--fcntl", "rlock locks names, not files; 'rlock range-write KEY \"[0,10)\" -- COMMAND' locks a part of one"),
    ("--command", "write -c STRING for a command line of a shell"),
    ("--max-time", "write --max-runtime DUR to stop a command that runs for too long"),
    ("--max-holders", "write --slot KEY=N for N holders at a time"),
    ("-i", "write 'rlock inspect' to see who holds what"),
    ("--notify", NOTIFY),
    ("--mail", NOTIFY),
    ("--on-failure", NOTIFY),
    ("--retry", "write -w DUR to wait for the lock; a command that fails is not run again"),
    ("--name", "KEY is the name of the lock; --job NAME is that of the job, and --title TEXT is shown for the command"),
];

const SHARED: &str = "write --read KEY for a shared lock";
const EXCLUSIVE: &str = "a bare KEY, or --write KEY, is an exclusive lock";
const NO_WAIT: &str = "write -n or --no-wait";
const UNLOCK: &str = "the lock ends with the command; 'rlock release' ends one of 'rlock acquire'";
const WAIT: &str = "write -w DUR or --wait DUR, as in -w 5m";
const CLOSE: &str = "rlock never leaves the lock open for the command";
const RANGE: &str = "write 'rlock range-write KEY \"[0,10)\" -- COMMAND' for a part of KEY, here from 0 up to 10";
const NOTIFY: &str =
    "rlock sends no messages: write 'rlock exec KEY -- ./work || mail …', or leave it to the mail of cron";
const NO_FORK: &str = "rlock stays beside its command, to release the lock when the command ends";

/// What to do instead of a subcommand that rlock does not have.
pub const SUBCOMMANDS: [(&str, &str); 20] = [
    ("unlock", "write 'rlock release' for a lock of 'rlock acquire'; other locks end with their command"),
    ("lock", "write 'rlock exec KEY -- COMMAND', or 'rlock acquire KEY' for a lock that outlives rlock"),
    ("run", "write 'rlock exec KEY -- COMMAND'"),
    ("with", "write 'rlock exec KEY -- COMMAND'"),
    ("status", INSPECT),
    ("ls", INSPECT),
    ("list", INSPECT),
    ("show", INSPECT),
    ("ps", INSPECT),
    ("info", INSPECT),
    ("top", "write 'rlock inspect --watch'"),
    ("watch", "write 'rlock inspect --watch'"),
    ("log", "write 'rlock history'"),
    ("kill", "write 'rlock break KEY'"),
    ("check", "write 'rlock doctor' to check the store, or 'rlock held KEY' inside a command"),
    ("wait", "write 'rlock exec KEY -- true', which ends when KEY is free"),
    ("config", "write 'rlock doctor' to see the store in use, or 'rlock help config'"),
    ("version", "write 'rlock --version'"),
    ("agents", "write 'rlock help agents'"),
    ("daemon", "write 'rlock serve'"),
];

const INSPECT: &str = "write 'rlock inspect' to see who holds what and who waits";

/// What to do instead of an option.
pub fn of_option(option: &str) -> Option<&'static str> {
    find(&OPTIONS, option)
}

/// What to do instead of a subcommand.
pub fn of_subcommand(word: &str) -> Option<&'static str> {
    find(&SUBCOMMANDS, word)
}

fn find(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == word).map(|(_, hint)| *hint)
}
