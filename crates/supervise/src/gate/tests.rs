//! Tests the gate with a store that the tests play themselves.

use std::io::Write;

use super::*;
use crate::run::tests::Fake;

/// The store may be in use by others just when the kept hold is asked for.
#[test]
fn gate_is_given_up_only_when_the_store_has_answered_for_the_kept_hold() {
    for (answer, is_closed) in [("a", false), ("w", false), ("g", true), ("l", true), ("", true)] {
        let (kept, mut news) = Fake::new(Standing::Asking);
        let mut gate = Gate {
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
            ask_again: Box::new(|_, _| unreachable!("the test gives nothing back")),
            handle: Some(Box::new(Fake::new(Standing::Asking).0)),
            kept: Some(Box::new(kept)),
            stage: Stage::Closes,
            patient_until: None,
            why: None,
        };
        let now = Boottime::default();
        assert_eq!(gate.look(now).unwrap(), None);
        assert_eq!((gate.handle.is_some(), gate.awaited().0.len()), (true, 1), "the store has not answered");
        news.write_all(answer.as_bytes()).unwrap();
        drop(news);
        assert_eq!(gate.look(now).unwrap(), None);
        assert_eq!(gate.handle.is_none(), is_closed, "{answer}");
    }
}
