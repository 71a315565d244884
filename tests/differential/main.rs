//! Compares the scripts with the model. Random histories run on a lock table in memory and on a
//! real server, and must give equal replies and equal tables after each step. The module
//! [`directed`] tests behaviour that only a server has.

mod both;
mod clients;
mod directed;
mod history;
mod raw;
mod side;

use rlock_testkit::histories::History;
use rlock_testkit::servers::{Kind, Server, on_each_kind};

on_each_kind!(agree);

fn agree(kind: Kind) {
    let server = Server::shared(kind);
    // Each kind of server has other seeds. The seeds are fixed, so that the test is reproducible.
    let (first, count) = (1000 * (kind as u64 + 1), rlock_testkit::share::share(8, 30));
    History::play_all("--test differential", first, count, 90, |history| history::play(history, &server));
}
