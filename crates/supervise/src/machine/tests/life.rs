//! The life of a leased command, which always ends before its lease.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Time passes, with a tick whenever the machine asks for one.
    Pass(Duration),
    /// Time passes while rlock is suspended or stopped, and then this signal comes.
    Sleep(Duration, Signal),
    /// A renewal that was sent this long ago is answered.
    Renew(Duration),
    Signal(Signal),
    Stop,
    Fail,
    Lose,
}

const TTL: Duration = Duration::from_secs(30);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let millis = |most: u64| (0..=most).prop_map(Duration::from_millis);
    let signal = proptest::sample::select(Signal::ALL.as_slice());
    let step = prop_oneof![
        8 => millis(12_000).prop_map(Step::Pass),
        8 => millis(4_000).prop_map(Step::Renew),
        2 => millis(40_000).prop_map(Step::Renew),
        2 => (millis(40_000), signal.clone()).prop_map(|(time, signal)| Step::Sleep(time, signal)),
        2 => signal.prop_map(Step::Signal),
        1 => Just(Step::Stop),
        1 => Just(Step::Fail),
        1 => Just(Step::Lose),
    ];
    proptest::collection::vec(step, 0..40)
}

/// A leased command that only SIGKILL ends, and the state of its rlock.
struct Life {
    machine: Machine,
    now: Boottime,
    /// The latest deadline that the machine got.
    deadline: Boottime,
    lost: bool,
    /// The instant at which the maximum run time is over.
    over_at: Option<Boottime>,
    terminated: Option<Boottime>,
    killed: bool,
}

impl Life {
    fn look(&mut self, event: Event) {
        let actions = self.machine.on(event, self.now);
        for action in actions {
            match action {
                Action::Terminate => {
                    let is_over = self.over_at.is_some_and(|at| self.now >= at);
                    let may_end = is_over || self.lost || self.now >= self.deadline - GRACE;
                    assert!(may_end, "the command was told to end too early");
                    assert_eq!(self.terminated.replace(self.now), None, "the command was told to end twice");
                }
                Action::Kill => {
                    let had_its_grace = self.terminated.is_some_and(|told| self.now >= told + GRACE);
                    assert!(had_its_grace || self.now >= self.deadline, "the command was killed too early");
                    assert!(!std::mem::replace(&mut self.killed, true), "the command was killed twice");
                }
                Action::Pass(_) | Action::Freeze | Action::Thaw => {
                    assert!(
                        !self.killed && self.now < self.deadline,
                        "a signal was passed after the kill or the deadline"
                    );
                }
                Action::StopSelf(_) => {
                    assert!(!self.killed && self.terminated.is_none(), "rlock stopped itself although a kill was due")
                }
                Action::Say(Line::Ends(Cause::Overdue | Cause::Lost | Cause::Timeout, _) | Line::Warning) => {}
                Action::Say(Line::Unkilled { .. }) => {
                    assert!(self.killed, "a line about a command that was not killed")
                }
                Action::Survey => {}
                other => panic!("unexpected {other:?} while the command runs"),
            }
        }
    }

    /// One turn of the loop: an event and then a tick.
    fn turn(&mut self, event: Event) {
        self.look(event);
        self.look(Event::Tick);
        assert!(self.killed || self.now < self.deadline, "the command outlived its deadline");
        assert!(
            self.killed || self.now < self.deadline - GRACE || self.terminated.is_some(),
            "the command was not told to end in time"
        );
    }

    fn pass(&mut self, end: Boottime) {
        while let Some(at) = self.machine.next_timeout().filter(|at| *at <= end) {
            self.now = at;
            self.turn(Event::Tick);
        }
        self.now = end;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pass(time) => self.pass(self.now + time),
            Step::Sleep(time, which) => {
                self.now = self.now + time;
                self.turn(signal(which, Sender::Other));
            }
            // After a loss the store answers no renewal.
            Step::Renew(_) if self.lost => {}
            Step::Renew(ago) => {
                // A late answer to an earlier renewal changes nothing.
                self.deadline = self.deadline.max(self.now - ago + TTL);
                self.turn(granted(Some(self.deadline)));
            }
            Step::Signal(which) => self.turn(signal(which, Sender::Other)),
            Step::Stop => self.turn(Event::CommandStopped(Stop::Tstp)),
            Step::Fail => self.turn(Event::StoreFailed),
            Step::Lose => {
                self.lost = true;
                self.turn(Event::Lost);
            }
        }
    }
}

proptest! {
    /// The command ends before the store may grant to another session, whatever the renewals do.
    /// The command is not disturbed earlier than necessary.
    #[test]
    fn command_ends_before_its_deadline_and_is_not_disturbed_early(
        steps in steps(), group: bool, code: u8, limit in proptest::option::of(1..90u64),
    ) {
        let group = if group { Group::Own } else { Group::Shared };
        let max_runtime = limit.map(Duration::from_secs);
        let mut machine = Machine::new(Settings { max_runtime, ..settings(group) });
        machine.on(granted(Some(START + TTL)), START);
        machine.on(Event::Started, START);
        let over_at = max_runtime.map(|limit| START + limit);
        let (deadline, lost) = (START + TTL, false);
        let mut life = Life { machine, now: START, deadline, lost, over_at, terminated: None, killed: false };
        for step in steps {
            life.step(step);
        }
        let undisturbed = life.terminated.is_none() && !life.killed;
        let mut end = life.machine.on(Event::Ended(Ended::Code(code)), life.now);
        end.extend(life.machine.on(Event::RestEnded, life.now));
        end.extend(life.machine.on(Event::Released, life.now));
        let is_expected = match end.last() {
            Some(Action::Exit(own)) if undisturbed => *own == code,
            Some(Action::Exit(76)) => true,
            Some(Action::Exit(124)) => !life.lost && limit.is_some(),
            _ => false,
        };
        prop_assert!(is_expected, "{:?}", end);
    }
}
