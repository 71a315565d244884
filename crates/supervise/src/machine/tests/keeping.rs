//! A grant that is kept for the process of `acquire --pid`.

use super::*;

const OVERDUE: Boottime = Boottime::since_boot(Duration::from_secs(1_025));
const ENDED: Event = Event::RestEnded;

/// A machine that keeps a grant for a process, which a signal tells of a loss if it `hears`, after
/// these events.
fn keeper(deadline: Option<Boottime>, hears: bool, events: &[(Event, Boottime)]) -> Machine {
    let mut machine = machine(Column::Starting, deadline);
    assert_eq!(machine.on(Event::Kept { hears }, START), []);
    for (event, now) in events {
        machine.on(*event, *now);
    }
    machine
}

/// The actions after every event in every state, long before the deadline, overdue, and past the
/// deadline.
#[test]
fn actions_match_every_cell_of_the_table() {
    use Action::{Exit, Release, TellLoss};
    let keepers = || {
        let leased = |events| keeper(Some(DEADLINE), true, events);
        [keeper(None, true, &[]), leased(&[]), leased(&[(Event::Tick, OVERDUE)]), leased(&[(ENDED, START)])]
    };
    let [lost, end, quiet]: [&[Action]; 3] = [&[TellLoss, Release, Exit(0)], &[Release, Exit(0)], &[Exit(0)]];
    let [none, tell]: [&[Action]; 2] = [&[], &[TellLoss]];
    let revoked = |deadline| Event::Revoked { deadline };
    #[rustfmt::skip]
    let table: [(Event, Boottime, [&[Action]; 4]); 10] = [
        //                                      no lease  leased  told   done
        (granted(Some(LATE)),         OVERDUE,  [none,    none,   none,  none]),
        (granted(None),               START,    [none,    none,   none,  none]),
        (revoked(None),               START,    [tell,    tell,   none,  none]),
        (revoked(Some(LATE)),         OVERDUE,  [tell,    tell,   none,  none]),
        (Event::Lost,                 START,    [lost,    lost,   end,   none]),
        (Event::Released,             START,    [quiet,   quiet,  quiet, none]),
        (ENDED,                       START,    [end,     end,    end,   none]),
        (Event::Tick,                 START,    [none,    none,   none,  none]),
        (Event::Tick,                 OVERDUE,  [none,    tell,   none,  none]),
        (Event::Tick,                 DEADLINE, [none,    tell,   end,   none]),
    ];
    for (event, now, cells) in table {
        for (column, (mut machine, expected)) in keepers().into_iter().zip(cells).enumerate() {
            assert_eq!(machine.on(event, now), expected, "{event:?} in column {column}");
        }
    }
    let is_other =
        |event: &Event| table.iter().all(|(row, ..)| std::mem::discriminant(row) != std::mem::discriminant(event));
    for event in table::every_event().into_iter().filter(is_other) {
        for mut machine in keepers() {
            assert_eq!(machine.on(event, START), [], "{event:?}");
        }
    }
}

#[test]
fn process_is_told_once_although_a_late_renewal_succeeds() {
    let mut machine = keeper(Some(DEADLINE), true, &[]);
    assert_eq!(machine.next_timeout(), Some(OVERDUE));
    assert_eq!(machine.on(Event::Tick, OVERDUE), [Action::TellLoss]);
    assert_eq!(machine.next_timeout(), Some(DEADLINE));
    assert_eq!(machine.on(granted(Some(LATE)), OVERDUE), []);
    assert_eq!(machine.next_timeout(), Some(LATE));
    assert_eq!(machine.on(Event::Tick, LATE - GRACE), []);
    assert_eq!(machine.on(Event::Tick, LATE), [Action::Release, Action::Exit(0)]);
    assert_eq!(machine.next_timeout(), None);
}

/// The process goes on with its work until it ends, and the lock is held until then.
#[test]
fn revoked_grant_is_renewed_until_the_process_ends() {
    let mut machine = keeper(Some(DEADLINE), true, &[]);
    assert_eq!(machine.on(Event::Revoked { deadline: Some(DEADLINE) }, START), [Action::TellLoss]);
    assert_eq!(machine.on(Event::Revoked { deadline: Some(LATE) }, START), []);
    assert_eq!(machine.on(Event::Tick, DEADLINE), []);
    assert_eq!(machine.on(ENDED, DEADLINE), [Action::Release, Action::Exit(0)]);
}

#[test]
fn revoked_grant_of_a_process_that_no_signal_tells_is_released_at_once() {
    let mut machine = keeper(Some(DEADLINE), false, &[]);
    let end = [Action::Release, Action::Exit(0)];
    assert_eq!(machine.on(Event::Revoked { deadline: Some(DEADLINE) }, START), end);
}

#[test]
fn renewed_lease_and_a_grant_without_one_end_only_with_the_process() {
    let mut renewed = keeper(Some(DEADLINE), true, &[(granted(Some(LATE)), START)]);
    assert_eq!(renewed.on(Event::Tick, DEADLINE), []);
    let mut without = keeper(None, true, &[]);
    assert_eq!((without.next_timeout(), without.on(Event::Tick, LATE)), (None, vec![]));
}
