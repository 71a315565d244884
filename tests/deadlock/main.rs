//! Real processes that wait for each other: nested commands that lock several resources in
//! different orders, on the embedded store and on servers. The unit tests of the detector compare
//! it with a naive search; these tests show that every command ends, and why.

mod cost;
mod cycles;
mod orders;
mod unnamed;

use rlock_testkit::Lab;
use rlock_testkit::servers::Kind;

/// The embedded store and each kind of server that this machine has, each with a new namespace.
fn labs() -> Vec<(String, Lab)> {
    let servers = Kind::present().into_iter().map(|kind| (format!("{kind:?}"), Lab::on(kind)));
    std::iter::once(("embedded".to_owned(), Lab::new())).chain(servers).collect()
}

/// Runs a test on each of them in parallel. The name of a thread is the name of its store.
fn on_each(test: impl Fn(Lab) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for (name, lab) in labs() {
            let named = std::thread::Builder::new().name(name);
            named.spawn_scoped(scope, move || test(lab)).expect("a thread can be started");
        }
    });
}
