//! The cost of one more interval when many intervals are held.

use rlock_model::mode::Mode;

use super::aims::{Aim, Bound};
use super::lab::Lab;
use super::options::Effort;
use super::peers::PrefixScan;
use super::scripts::{Client, interval};
use super::server::Counts;
use super::table::{Findings, Row, Spread, Table};

/// The numbers of held intervals.
const HELD: [u64; 4] = [10, 1_000, 100_000, 1_000_000];
/// The number of pairs for each reading of the counters.
const TOGETHER: u64 = 50;
/// The fractional parts of its multiples lie evenly between 0 and 1, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// The name of rlock's row.
const OWN: &str = "rlock";

/// Measures the server time of an acquire and a release of a free interval.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let Some(redis) = &lab.redis else { return Findings::default() };
    let rounds = effort.pick(20, 100);
    let (mut own, mut scan) = (Vec::new(), Vec::new());
    for held in HELD {
        let mut client = redis.client();
        redis::cmd("FLUSHALL").exec(&mut client).expect("the command succeeds");
        let mut intervals = Client::new("intervals", 0);
        intervals.fill(&mut client, held);
        let ranges = PrefixScan::filled(&mut client, held);
        let (mut of_own, mut of_scan) = (Vec::new(), Vec::new());
        // The free intervals lie in the gaps between two held intervals, all over the range.
        let gap = |at: u64| ((at as f64 * GOLDEN).fract() * held as f64).floor() * 2.0 + 1.25;
        for round in 0..rounds {
            let before = Counts::of(&mut client);
            for at in 0..TOGETHER {
                intervals.pair(&mut client, Mode::Write, interval(gap(round * TOGETHER + at), 0.5));
            }
            let spent = Counts::of(&mut client).since(&before).usec(&Client::COMMANDS);
            of_own.push(spent / TOGETHER as f64);
            // Fewer scans are measured if each of them takes long.
            let scans = (100_000 / held).clamp(1, TOGETHER);
            if held > 100_000 && round >= 5 {
                continue;
            }
            let before = Counts::of(&mut client);
            for at in 0..scans {
                let low = gap(round * scans + at);
                ranges.pair(&mut client, low, low + 0.5);
            }
            let spent = Counts::of(&mut client).since(&before).usec(&PrefixScan::COMMANDS);
            of_scan.push(spent / scans as f64);
        }
        own.push(Spread::of(of_own));
        scan.push(Spread::of(of_scan));
        redis::cmd("FLUSHALL").exec(&mut client).expect("the command succeeds");
    }
    let table = Table {
        title: "Intervals: one more where many are held",
        unit: "µs",
        about: format!(
            "Time in the server for an acquire and a release of a free interval, by INFO commandstats, {rounds} times \
             {TOGETHER} pairs. The prefix scan is how a range lock with an ordered set for each mode looks through one of them: \
             ZCOUNT and ZRANGEBYSCORE -inf."
        ),
        columns: HELD.map(|held| format!("{} held", super::numbers::figure(held as f64))).to_vec(),
        against: None,
        rows: vec![Row { name: OWN.into(), cells: own }, Row { name: "prefix scan".into(), cells: scan }],
        drawn: true,
    };
    let growth = || Some(table.median(OWN, HELD.len() - 1)? / table.median(OWN, 0)?);
    let aims = vec![Aim::times("intervals: a million held, of ten held".into(), Bound::AtMost(4.0), growth())];
    Findings { tables: vec![table], aims }
}
