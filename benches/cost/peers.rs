//! Other locks on Redis, driven like their own clients do: two common locks, and a range lock with
//! an ordered set for each mode.
//!
//! The scripts for Redisson are rewritten from the commands that the scripts of Redisson 4 execute.

use redis::{Connection, Value, cmd, pipe};

/// A lease that outlives the bench, in milliseconds.
const LEASE: u64 = 3_600_000;
/// The lifetime of Redisson's unlock latch in milliseconds, if the client does not delete the
/// latch.
const LATCH: u64 = 13_500;

/// Takes a lock and releases it.
pub(crate) type Pair = Box<dyn FnMut(&mut Connection)>;

/// Two commands without an effect, which measure the round trips.
pub(crate) fn pings() -> Pair {
    Box::new(|client| {
        (0..2).for_each(|_| cmd("PING").exec(client).expect("the server answers"));
    })
}

/// SET NX PX, and a script that deletes the key if the key still has the holder's value.
pub(crate) fn set_nx(client: &mut Connection, lock: &str) -> Pair {
    let release = load_compare_and_delete(client);
    let (lock, mut number) = (lock.to_owned(), 0);
    Box::new(move |client| {
        number += 1;
        take(client, &lock, number);
        compare_and_delete(client, &release, &lock, number);
    })
}

/// SET NX PX.
pub(crate) fn take(client: &mut Connection, lock: &str, value: u64) {
    let mut set = cmd("SET");
    set.arg(lock).arg(value).arg(&["NX", "PX"]).arg(LEASE);
    let taken: Value = set.query(client).expect("the command succeeds");
    assert_eq!(taken, Value::Okay, "another client has the lock");
}

/// Loads the script that deletes a key if it still has the holder's value, and returns its hash.
pub(crate) fn load_compare_and_delete(client: &mut Connection) -> String {
    load(client, include_str!("peers/compare_and_delete.lua"))
}

/// Deletes the key by the script with this hash.
pub(crate) fn compare_and_delete(client: &mut Connection, script: &str, lock: &str, value: u64) {
    let released: u64 =
        cmd("EVALSHA").arg(script).arg(1).arg(lock).arg(value).query(client).expect("the command succeeds");
    assert_eq!(released, 1, "the lock was lost");
}

/// The read lock or the write lock of Redisson's RReadWriteLock.
pub(crate) fn redisson(client: &mut Connection, lock: &str, write: bool) -> Pair {
    let (take, release) = match write {
        false => (include_str!("peers/read_lock.lua"), include_str!("peers/read_unlock.lua")),
        true => (include_str!("peers/write_lock.lua"), include_str!("peers/write_unlock.lua")),
    };
    let (take, release) = (load(client, take), load(client, release));
    // The format of Redisson: the id of the client and the number of the thread.
    let thread = "6f0829ed-bfd3-4e6f-bba3-6f3d66cd176c:1";
    let holder = if write { format!("{thread}:write") } else { thread.to_owned() };
    let (lock, channel) = (lock.to_owned(), format!("redisson_rwlock:{{{lock}}}"));
    let all = format!("{{{lock}}}");
    let own = format!("{all}:{thread}:rwlock_timeout");
    let mut number = 0;
    Box::new(move |client| {
        number += 1;
        let mut taking = cmd("EVALSHA");
        match write {
            false => taking.arg(&take).arg(2).arg(&lock).arg(&own),
            true => taking.arg(&take).arg(1).arg(&lock),
        };
        let taken: Value = taking.arg(LEASE).arg(&holder).query(client).expect("the command succeeds");
        assert_eq!(taken, Value::Nil, "another client has the lock");
        let latch = format!("redisson_unlock_latch:{{{lock}}}:{number:032x}");
        let mut releasing = cmd("EVALSHA");
        match write {
            false => releasing.arg(&release).arg(5).arg(&lock).arg(&channel).arg(&own).arg(&all).arg(&latch).arg(0),
            true => releasing.arg(&release).arg(3).arg(&lock).arg(&channel).arg(&latch).arg(1).arg(LEASE),
        };
        releasing.arg(&holder).arg(LATCH);
        // Redisson's client does not wait for the deletion of the latch, so the deletion shares a
        // round trip with the release.
        let mut both = pipe();
        let (released, _): (u64, u64) =
            both.add_command(releasing).cmd("DEL").arg(&latch).query(client).expect("the command succeeds");
        assert_eq!(released, 1, "the lock was lost");
    })
}

/// The ends of the held ranges in the range lock: one ordered set for a mode.
pub(crate) struct PrefixScan {
    set: &'static str,
}

impl PrefixScan {
    /// The commands whose time counts as the cost.
    pub(crate) const COMMANDS: [&str; 4] = ["zcount", "zrangebyscore", "zadd", "zrem"];

    /// Adds this number of disjoint held ranges. The n-th is from 2n to 2n + 1.
    pub(crate) fn filled(client: &mut Connection, held: u64) -> Self {
        let set = "seed:writerlockzset";
        for first in (0..held).step_by(10_000) {
            let mut add = cmd("ZADD");
            add.arg(set);
            for number in first..(first + 10_000).min(held) {
                add.arg(number * 2).arg(format!("{number}:left")).arg(number * 2 + 1).arg(format!("{number}:right"));
            }
            add.exec(client).expect("the command succeeds");
        }
        Self { set }
    }

    /// Checks whether a range is free, as the lock does for each set that may conflict, then takes
    /// and releases the range.
    pub(crate) fn pair(&self, client: &mut Connection, low: f64, high: f64) {
        let inside: u64 = cmd("ZCOUNT").arg(self.set).arg(low).arg(high).query(client).expect("the command succeeds");
        assert_eq!(inside, 0, "the range is held");
        let before =
            cmd("ZRANGEBYSCORE").arg(self.set).arg("-inf").arg(low).query(client).expect("the command succeeds");
        let Value::Array(before) = before else { panic!("the reply is a list") };
        assert!(before.len().is_multiple_of(2), "the range is held");
        for (score, member) in [(low, "own:left"), (high, "own:right")] {
            cmd("ZADD").arg(self.set).arg(score).arg(member).exec(client).expect("the command succeeds");
        }
        for member in ["own:left", "own:right"] {
            cmd("ZREM").arg(self.set).arg(member).exec(client).expect("the command succeeds");
        }
    }
}

fn load(client: &mut Connection, script: &str) -> String {
    cmd("SCRIPT").arg("LOAD").arg(script).query(client).expect("the server takes the script")
}
