//! Decides when the keeper tells its process of a loss, releases the grant, and ends.

use std::time::Duration;

use rlock_model::lease;
use rlock_sys::clock::Boottime;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The store reports the grant. The event is repeated with each renewal, which moves the
    /// deadline.
    Granted {
        /// When the lease counts as over; `None` if the grant has no lease.
        deadline: Option<Boottime>,
    },
    /// The store reports that the grant is revoked, with each renewal: it is held until it is
    /// released.
    Revoked {
        /// The same as for [`Event::Granted`].
        deadline: Option<Boottime>,
    },
    /// The grant is gone, and nobody has released it.
    Lost,
    /// Another process has released the grant.
    Released,
    /// The process has ended.
    Ended,
    /// Time has passed and nothing else has happened.
    Tick,
}

/// One step for the loop. The loop carries out a list of actions in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Tell the process that the grant is lost.
    Tell,
    /// Give the grant back.
    Release,
    /// End the keeper. No action follows.
    Exit,
}

#[derive(Debug)]
enum State {
    Keeping {
        deadline: Option<Boottime>,
    },
    /// The process was told that the grant is about to end. It has the rest of the lease, and of
    /// each renewal that still succeeds.
    Told {
        deadline: Option<Boottime>,
    },
    Done,
}

/// The life of one keeper.
///
/// ```text
///             Revoked, a grace        Ended, Lost, Released,
///             before the deadline     the deadline
///   Keeping ────────────────▶ Told ──────────────────────────▶ Done
///      │                                                        ▲
///      └──── Ended, Released, Lost, Revoked if nobody is told ──┘
/// ```
#[derive(Debug)]
pub(super) struct Machine {
    /// How long before a deadline the process is told.
    grace: Duration,
    /// Whether a signal tells the process.
    hears: bool,
    state: State,
}

impl Machine {
    /// A machine of a keeper that has a grant.
    pub(super) fn new(grace: Duration, hears: bool) -> Self {
        Self { grace, hears, state: State::Keeping { deadline: None } }
    }

    /// Takes in an event and returns what follows from it.
    pub(super) fn on(&mut self, event: Event, now: Boottime) -> Vec<Action> {
        let (state, actions) = match (&self.state, event) {
            (State::Done, _) => return Vec::new(),
            (State::Keeping { .. }, Event::Granted { deadline }) => (State::Keeping { deadline }, vec![]),
            (State::Keeping { .. }, Event::Revoked { deadline }) if self.hears => {
                (State::Told { deadline }, vec![Action::Tell])
            }
            (State::Keeping { .. }, Event::Revoked { .. }) => (State::Done, vec![Action::Release, Action::Exit]),
            (State::Told { .. }, Event::Granted { deadline } | Event::Revoked { deadline }) => {
                (State::Told { deadline }, vec![])
            }
            // The release frees what else the store keeps for a lost grant.
            (State::Keeping { .. }, Event::Lost) => (State::Done, vec![Action::Tell, Action::Release, Action::Exit]),
            (_, Event::Released) => (State::Done, vec![Action::Exit]),
            (_, Event::Ended) | (State::Told { .. }, Event::Lost) => (State::Done, vec![Action::Release, Action::Exit]),
            (State::Keeping { deadline: Some(deadline) }, Event::Tick) if self.tell_at(*deadline) <= now => {
                (State::Told { deadline: Some(*deadline) }, vec![Action::Tell])
            }
            (State::Told { deadline: Some(deadline) }, Event::Tick) if *deadline <= now => {
                (State::Done, vec![Action::Release, Action::Exit])
            }
            (_, Event::Tick) => return Vec::new(),
        };
        self.state = state;
        actions
    }

    /// The instant at which the machine wants [`Event::Tick`], if any.
    pub(super) fn next_timeout(&self) -> Option<Boottime> {
        match self.state {
            State::Keeping { deadline } => deadline.map(|deadline| self.tell_at(deadline)),
            State::Told { deadline } => deadline,
            State::Done => None,
        }
    }

    fn tell_at(&self, deadline: Boottime) -> Boottime {
        lease::terminate_at(deadline, self.grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);
    const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));
    const DEADLINE: Boottime = Boottime::since_boot(Duration::from_secs(1_030));
    const LATE: Boottime = Boottime::since_boot(Duration::from_secs(2_060));

    fn machine(events: &[(Event, Boottime)]) -> Machine {
        let mut machine = Machine::new(GRACE, true);
        for (event, now) in events {
            machine.on(*event, *now);
        }
        machine
    }

    fn granted(deadline: Boottime) -> Event {
        Event::Granted { deadline: Some(deadline) }
    }

    /// The actions after every event in every state, long before the deadline, overdue, and past
    /// the deadline.
    #[test]
    fn actions_match_every_cell_of_the_table() {
        use Action::{Exit, Release, Tell};
        let overdue = DEADLINE - GRACE;
        let leased = [(granted(DEADLINE), START)];
        let told = [(granted(DEADLINE), START), (Event::Tick, overdue)];
        let done = [(Event::Ended, START)];
        let states: [&[(Event, Boottime)]; 4] = [&[], &leased, &told, &done];
        let (lost, end, quiet): (&[Action], &[Action], &[Action]) = (&[Tell, Release, Exit], &[Release, Exit], &[Exit]);
        let none: &[Action] = &[];
        let tell: &[Action] = &[Tell];
        let revoked = |deadline| Event::Revoked { deadline };
        #[rustfmt::skip]
        let table: [(Event, Boottime, [&[Action]; 4]); 10] = [
            //                                      no lease  leased  told   done
            (granted(LATE),               overdue,  [none,    none,   none,  none]),
            (Event::Granted { deadline: None }, START, [none, none,   none,  none]),
            (revoked(None),               START,    [tell,    tell,   none,  none]),
            (revoked(Some(LATE)),         overdue,  [tell,    tell,   none,  none]),
            (Event::Lost,                 START,    [lost,    lost,   end,   none]),
            (Event::Released,             START,    [quiet,   quiet,  quiet, none]),
            (Event::Ended,                START,    [end,     end,    end,   none]),
            (Event::Tick,                 START,    [none,    none,   none,  none]),
            (Event::Tick,                 overdue,  [none,    tell,   none,  none]),
            (Event::Tick,                 DEADLINE, [none,    tell,   end,   none]),
        ];
        for (event, now, cells) in table {
            for (path, expected) in states.iter().zip(cells) {
                assert_eq!(machine(path).on(event, now), expected, "{event:?} after {path:?}");
            }
        }
    }

    #[test]
    fn process_is_told_once_although_a_late_renewal_succeeds() {
        let mut machine = machine(&[(granted(DEADLINE), START)]);
        assert_eq!(machine.next_timeout(), Some(DEADLINE - GRACE));
        assert_eq!(machine.on(Event::Tick, DEADLINE - GRACE), [Action::Tell]);
        assert_eq!(machine.next_timeout(), Some(DEADLINE));
        assert_eq!(machine.on(granted(LATE), DEADLINE - GRACE), []);
        assert_eq!(machine.next_timeout(), Some(LATE));
        assert_eq!(machine.on(Event::Tick, LATE - GRACE), []);
        assert_eq!(machine.on(Event::Tick, LATE), [Action::Release, Action::Exit]);
        assert_eq!(machine.next_timeout(), None);
    }

    /// The process goes on with its work until it ends, and the lock is held until then.
    #[test]
    fn revoked_grant_is_renewed_until_the_process_ends() {
        let mut machine = machine(&[(granted(DEADLINE), START)]);
        assert_eq!(machine.on(Event::Revoked { deadline: Some(DEADLINE) }, START), [Action::Tell]);
        assert_eq!(machine.on(Event::Revoked { deadline: Some(LATE) }, START), []);
        assert_eq!(machine.on(Event::Tick, DEADLINE), []);
        assert_eq!(machine.on(Event::Ended, DEADLINE), [Action::Release, Action::Exit]);
    }

    #[test]
    fn revoked_grant_of_a_process_that_no_signal_tells_is_released_at_once() {
        let mut machine = Machine::new(GRACE, false);
        machine.on(granted(DEADLINE), START);
        let end = [Action::Release, Action::Exit];
        assert_eq!(machine.on(Event::Revoked { deadline: Some(DEADLINE) }, START), end);
    }

    #[test]
    fn renewed_lease_and_a_grant_without_one_end_only_with_the_process() {
        let mut renewed = machine(&[(granted(DEADLINE), START), (granted(LATE), START)]);
        assert_eq!(renewed.on(Event::Tick, DEADLINE), []);
        let mut without = machine(&[]);
        assert_eq!((without.next_timeout(), without.on(Event::Tick, LATE)), (None, vec![]));
    }
}
