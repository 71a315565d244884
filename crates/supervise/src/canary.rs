//! Decides which signals every process has received, not rlock alone.
//!
//! systemd, Jenkins, Slurm and killall(1) signal every process of a tree, a control group or a
//! user. rlock would pass its own copy on, and the command would get the signal twice: some
//! programs take a second SIGTERM for "exit at once". The guardian is the canary: such a sender
//! signals it as well, and the guardian notes that. A signal that pairs with a note of the same
//! sender is not passed on. A command that signals its own group, as `kill -HUP 0` does, leaves
//! notes of another sender.
//!
//! The module is pure: signals, notes and the time go in, decided signals come out. In doubt the
//! command gets a signal twice rather than never.

use std::time::Duration;

use super::event::{Sender, Signal};
use rlock_sys::clock::Boottime;

/// How long before a signal its note may come.
const NOTE_BEFORE: Duration = Duration::from_secs(1);

/// How long after a signal its note may come. The signal waits meanwhile, once at each level of
/// nesting.
const NOTE_AFTER: Duration = Duration::from_millis(25);

/// A signal and its sender, which rlock and the guardian see alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) signal: Signal,
    /// The id of the process that sent the signal; 0 for the kernel, and for a process in another
    /// pid namespace.
    pub(super) by: u32,
}

/// The signals and notes that have no partner yet.
#[derive(Debug, Default)]
pub(super) struct Canary {
    /// In the order of their arrival.
    waiting: Vec<Waiting>,
    /// The signals that the guardian has noted, with the arrival of the note.
    notes: Vec<(Sent, Boottime)>,
}

#[derive(Debug)]
struct Waiting {
    sent: Sent,
    sender: Sender,
    /// When the signal stops waiting for a note.
    until: Boottime,
}

impl Canary {
    /// Takes in a note of the guardian.
    pub(super) fn note(&mut self, sent: Sent, now: Boottime) {
        let is_partner = |waiting: &&mut Waiting| waiting.sent == sent && waiting.sender != Sender::Everyone;
        match self.waiting.iter_mut().find(is_partner) {
            Some(waiting) => (waiting.sender, waiting.until) = (Sender::Everyone, now),
            None => self.notes.push((sent, now)),
        }
    }

    /// Takes in a signal that rlock got.
    pub(super) fn signal(&mut self, sent: Sent, sender: Sender, now: Boottime) {
        self.notes.retain(|(_, at)| now - *at <= NOTE_BEFORE);
        let note = self.notes.iter().position(|(noted, _)| *noted == sent);
        let (sender, until) = match note {
            Some(note) => {
                self.notes.remove(note);
                (Sender::Everyone, now)
            }
            None => (sender, now + NOTE_AFTER),
        };
        self.waiting.push(Waiting { sent, sender, until });
    }

    /// The next signal that is decided, with its sender. Signals keep their order.
    pub(super) fn next(&mut self, now: Boottime) -> Option<(Signal, Sender)> {
        let first = self.waiting.first()?;
        (first.until <= now).then(|| {
            let Waiting { sent, sender, .. } = self.waiting.remove(0);
            (sent.signal, sender)
        })
    }

    /// When the first signal is decided, if there is one.
    pub(super) fn decides_at(&self) -> Option<Boottime> {
        self.waiting.first().map(|waiting| waiting.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));
    const MILLISECOND: Duration = Duration::from_millis(1);
    const TERM: (Signal, Sender) = (Signal::Term, Sender::Other);
    const TERM_OF_ALL: (Signal, Sender) = (Signal::Term, Sender::Everyone);

    /// A signal of the process with this number.
    fn of(by: u32, signal: Signal) -> Sent {
        Sent { signal, by }
    }

    fn after(milliseconds: u32) -> Boottime {
        START + MILLISECOND * milliseconds
    }

    /// What is decided at that time.
    fn decided(canary: &mut Canary, now: Boottime) -> Vec<(Signal, Sender)> {
        std::iter::from_fn(|| canary.next(now)).collect()
    }

    /// "Up to 1 s before it or 25 ms after."
    #[test]
    fn signal_pairs_with_a_note_from_a_second_before_to_25_milliseconds_after() {
        for (note, at) in [(0, 1_000), (1_000, 1_000), (1_025, 1_000)] {
            let mut canary = Canary::default();
            let mut events = [(note, true), (at, false)];
            events.sort_unstable();
            for (at, is_note) in events {
                match is_note {
                    true => canary.note(of(7, Signal::Term), after(at)),
                    false => canary.signal(of(7, Signal::Term), Sender::Other, after(at)),
                }
            }
            assert_eq!(decided(&mut canary, after(note.max(at))), [TERM_OF_ALL], "a note at {note}, a signal at {at}");
        }
        let mut stale = Canary::default();
        stale.note(of(7, Signal::Term), START);
        stale.signal(of(7, Signal::Term), Sender::Other, after(1_001));
        assert_eq!(decided(&mut stale, after(1_025)), []);
        assert_eq!(stale.decides_at(), Some(after(1_026)));
        assert_eq!(decided(&mut stale, after(1_026)), [TERM]);
    }

    #[test]
    fn note_is_used_up_and_of_no_use_for_another_signal() {
        let mut canary = Canary::default();
        canary.note(of(7, Signal::Term), START);
        canary.signal(of(7, Signal::Hup), Sender::Other, START);
        canary.signal(of(7, Signal::Term), Sender::Other, START);
        canary.signal(of(7, Signal::Term), Sender::Other, START);
        assert_eq!(decided(&mut canary, START), [], "signals keep their order");
        assert_eq!(decided(&mut canary, after(25)), [(Signal::Hup, Sender::Other), TERM_OF_ALL, TERM]);
        assert_eq!(canary.decides_at(), None);
    }

    #[test]
    fn two_signals_to_everyone_pair_with_their_own_notes() {
        let mut canary = Canary::default();
        canary.signal(of(7, Signal::Term), Sender::Other, START);
        canary.note(of(7, Signal::Term), START);
        canary.signal(of(7, Signal::Term), Sender::Other, START);
        canary.note(of(7, Signal::Term), START);
        assert_eq!(decided(&mut canary, START), [TERM_OF_ALL, TERM_OF_ALL]);
        assert_eq!(decided(&mut canary, after(25)), []);
    }

    /// "A sender 0 (kernel, another pid namespace) pairs only with 0."
    #[test]
    fn signal_pairs_only_with_a_note_of_its_sender() {
        for (by, sender) in [(0, Sender::Other), (7, Sender::Everyone), (8, Sender::Other)] {
            let mut canary = Canary::default();
            canary.note(of(7, Signal::Hup), START);
            canary.signal(of(by, Signal::Hup), Sender::Other, START);
            assert_eq!(decided(&mut canary, after(25)), [(Signal::Hup, sender)], "{by} signals rlock");
            canary.signal(of(by, Signal::Hup), Sender::Other, START);
            canary.note(of(7, Signal::Hup), START);
            assert_eq!(decided(&mut canary, after(25)), [(Signal::Hup, sender)], "{by} signals rlock first");
        }
        let mut of_kernel = Canary::default();
        of_kernel.note(of(0, Signal::Term), START);
        of_kernel.signal(of(0, Signal::Term), Sender::Other, START);
        assert_eq!(decided(&mut of_kernel, START), [TERM_OF_ALL]);
    }
}
