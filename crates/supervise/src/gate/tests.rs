//! Tests the gate with a store that the tests play themselves.

use std::io::Write;

use super::*;
use crate::run::tests::Fake;
use rlock_store::Grant;

/// The gate of a request that needs nothing.
fn gate(mut handle: Fake, stage: Stage) -> Gate {
    Gate {
        needs: Needs::default(),
        request: Request {
            session: SessionId([0; 16]),
            ancestors: Vec::new(),
            claims: Vec::new(),
            wait: true,
            terms: None,
            job: Job::default(),
            process: Process::default(),
        },
        open: || Err(Error::Unavailable("the test has no other request".into())),
        store: None,
        handle: Some(handle.handle()),
        kept: None,
        stage,
        patient_until: None,
        ahead: None,
        why: None,
    }
}

/// "A request that wakes starts nothing on its old turn."
#[test]
fn request_whose_turn_was_taken_over_joins_the_queue_again() {
    let now = Boottime::default();
    let mut on_time = gate(Fake::new(Standing::Granted(Grant::default())).0, Stage::Looks(now));
    assert_eq!(on_time.look(now).unwrap(), Some(Event::Room));
    let mut stopped = gate(Fake::new(Standing::Lost).0, Stage::Looks(now));
    let failure = stopped.look(now).expect_err("the test has no queue to join");
    assert!(failure.to_string().contains("the test has no other request"), "{failure}");
    assert_eq!(stopped.stage, Stage::Away);
}

/// The store may be in use by others just when the kept hold is asked for.
#[test]
fn gate_is_given_up_only_when_the_store_has_answered_for_the_kept_hold() {
    for (answer, is_closed) in [("a", false), ("w", false), ("g", true), ("l", true), ("", true)] {
        let (mut kept, mut news) = Fake::new(Standing::Asking);
        let handle = Fake::new(Standing::Asking).0;
        let mut gate = Gate { kept: Some(kept.handle()), ..gate(handle, Stage::Closes) };
        let now = Boottime::default();
        assert_eq!(gate.look(now).unwrap(), None);
        assert_eq!((gate.handle.is_some(), gate.awaited().0.len()), (true, 1), "the store has not answered");
        news.write_all(answer.as_bytes()).unwrap();
        drop(news);
        assert_eq!(gate.look(now).unwrap(), None);
        assert_eq!(gate.handle.is_none(), is_closed, "{answer}");
    }
}
