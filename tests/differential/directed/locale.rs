//! A server compares strings in Lua as its locale does; the scripts don't.

use std::path::Path;
use std::process::Command;

use crate::history::History;
use crate::support::needs::{self, skip_unless};
use crate::support::servers::{Kind, Setup};

/// What a history plays with are cuts, whose order would be another one.
#[test]
fn the_locale_of_the_server_changes_nothing() {
    skip_unless!(Kind::Redis7.is_present() && needs::programs(&["localedef"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    skip_unless!(make_locale(&folder.path().join("en_US.UTF-8")));
    let setup = Setup::new(Kind::Redis7).environment("LOCPATH", folder.path()).environment("LC_ALL", "en_US.UTF-8");
    let server = setup.start();
    let in_order: i64 = server.ask(&["EVAL", "return 'a' < 'B' and 1 or 0", "0"]);
    assert_eq!(in_order, 1, "the server does not compare as English dictionaries do");
    for seed in 9000..9010 {
        History::new(seed, (0..90).collect()).play(&server).unwrap_or_else(|difference| panic!("{seed}: {difference}"));
    }
}

/// Makes the locale, if its source is installed.
fn make_locale(path: &Path) -> bool {
    let made = Command::new("localedef").args(["-i", "en_US", "-f", "UTF-8", "--no-archive"]).arg(path).output();
    let made = made.expect("localedef is installed");
    let why = String::from_utf8_lossy(&made.stderr);
    path.join("LC_COLLATE").exists() || needs::left_out(&format!("localedef makes no en_US: {}", why.trim_end()))
}
