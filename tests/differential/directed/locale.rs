//! Lua compares strings by the locale of the server. The scripts must not depend on that order.

use std::path::Path;
use std::process::Command;

use crate::history;
use rlock_testkit::histories::History;
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::servers::{Kind, Setup};

/// The histories compare cuts, whose order in this locale would differ.
#[test]
fn locale_of_the_server_does_not_change_the_order_of_cuts() {
    skip_unless!(Kind::Redis7.is_present() && needs::programs(&["localedef"]));
    let folder = tempfile::tempdir().expect("the folder is made");
    skip_unless!(make_locale(&folder.path().join("en_US.UTF-8")));
    let setup = Setup::new(Kind::Redis7).environment("LOCPATH", folder.path()).environment("LC_ALL", "en_US.UTF-8");
    let server = setup.start();
    let is_locale_order: i64 = server.ask(&["EVAL", "return 'a' < 'B' and 1 or 0", "0"]);
    assert_eq!(is_locale_order, 1, "the server does not use the order of the locale");
    for seed in 9000..9010 {
        history::play(&History::new(seed, 90), &server).unwrap_or_else(|difference| panic!("{seed}: {difference}"));
    }
}

/// Compiles the locale, if its source is installed.
fn make_locale(path: &Path) -> bool {
    let made = Command::new("localedef").args(["-i", "en_US", "-f", "UTF-8", "--no-archive"]).arg(path).output();
    let made = made.expect("localedef is installed");
    let errors = String::from_utf8_lossy(&made.stderr);
    path.join("LC_COLLATE").exists()
        || needs::left_out(&format!("localedef cannot compile en_US: {}", errors.trim_end()))
}
