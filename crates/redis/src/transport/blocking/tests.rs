//! Blocking runs without a server: time passes, and nothing else happens.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::interface::{Action, Event, Seek};
use crate::target::Target;
use rlock_sys::clock::Boottime;

/// A conversation that opens one connection without an answer. It is over at an instant or after a
/// failure.
struct Waiting {
    open: bool,
    until: Boottime,
    is_over: bool,
    has_failed: bool,
}

impl Conversation for Waiting {
    fn on(&mut self, event: Event, _now: Boottime) {
        if let Event::Failed(_) = event {
            (self.is_over, self.has_failed) = (true, true);
        }
    }

    fn tick(&mut self, now: Boottime) {
        self.is_over |= self.until <= now;
    }

    fn next_action(&mut self) -> Option<Action> {
        std::mem::take(&mut self.open).then_some(Action::Open(Seek::Start(0)))
    }

    fn timeout(&self) -> Option<Boottime> {
        Some(self.until)
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

fn run_until(url: &str, open: bool, wait: Duration) -> Waiting {
    let target = Target::parse(url).unwrap().unwrap();
    let mut route = Route::new(Arc::new(target), Duration::from_secs(60), 1 << 20);
    let mut conversation = Waiting { open, until: Boottime::now() + wait, is_over: false, has_failed: false };
    run(&mut route, &mut conversation);
    conversation
}

#[test]
fn run_returns_at_the_timeout_of_a_conversation_without_a_connection() {
    let began = Boottime::now();
    let wait = Duration::from_millis(20);
    assert!(!run_until("redis://127.0.0.1", false, wait).has_failed);
    assert!(began + wait <= Boottime::now());
}

#[test]
fn run_reports_a_connection_that_fails_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("redis+unix://{}/nothing", dir.path().display());
    assert!(run_until(&url, true, Duration::from_secs(60)).has_failed);
}
