//! Random histories of a client.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::listing::Unread;

/// What can happen to a client, in any order.
#[derive(Clone, Debug)]
enum Chance {
    Line(&'static str),
    /// A grant, or its renewal, whose deadline is so many seconds away.
    Granted(usize, u8),
    Stands(usize, u8),
    Released(usize),
    Answer(u8),
    Pass(u8),
    Drain,
    Stop,
    End,
}

fn chance() -> impl Strategy<Value = Chance> {
    let lines = prop::sample::select(vec![
        "LOCK k",
        "TRY k",
        "LOCK --prewrite a",
        "LOCK -w 3s --prewrite a --read b",
        "RANGE-PREWRITE t 0 9",
        "UPGRADE",
        "UPGRADE 0 1",
        "UNLOCK",
        "UNLOCK",
        "SHRINK 0 1",
        "DOWNGRADE read",
        "INSPECT",
        "AUTH x",
        "PING",
        "nonsense",
    ]);
    prop_oneof![
        16 => lines.prop_map(Chance::Line),
        12 => (0..4_usize, 0..40_u8).prop_map(|(session, left)| Chance::Granted(session, left)),
        6 => (0..4_usize, 0..5_u8).prop_map(|(session, standing)| Chance::Stands(session, standing)),
        12 => (0..4_usize).prop_map(Chance::Released),
        6 => (0..4_u8).prop_map(Chance::Answer),
        6 => (0..20_u8).prop_map(Chance::Pass),
        3 => Just(Chance::Drain),
        1 => Just(Chance::Stop),
        1 => Just(Chance::End),
    ]
}

proptest! {
    /// Whatever happens: a session that was asked for is released, reported as over, or still
    /// known to the client; nothing is released twice; and nothing is said after the close. No
    /// grant is announced that leaves less than a grace, and none is released within a grace after
    /// a loss of another one. A draining server keeps the connection of no client without a hold.
    #[test]
    fn every_session_is_given_back_exactly_once(chances in prop::collection::vec(chance(), 0..200)) {
        let mut lab = Lab::new(rules());
        // The sessions that the store has, and those whose release it has been asked for.
        let (mut open, mut releasing) = (BTreeSet::new(), BTreeSet::new());
        let mut answers = 0_u32;
        let (mut is_draining, mut is_closed) = (false, false);
        // The sessions whose grants were announced, and when a loss was reported to the client.
        let mut announced = BTreeSet::new();
        let mut lost_at = None;
        let pick = |from: &BTreeSet<u8>, at: usize| from.iter().nth(at % from.len().max(1)).copied();
        for chance in chances.into_iter().chain([Chance::End, Chance::Pass(u8::MAX)]) {
            let is_stop = matches!(chance, Chance::Stop);
            is_draining |= matches!(chance, Chance::Drain);
            let (mut granted, mut lost) = (None, None);
            let actions = match chance {
                Chance::Line(line) if lab.client.takes_lines() => lab.line(line),
                Chance::Line(_) => continue,
                Chance::Granted(at, left) => {
                    let Some(session) = pick(&open, at) else { continue };
                    let left = Duration::from_secs(left.into());
                    granted = Some((session, left));
                    lab.granted_until(session, 7, lab.now + left)
                }
                Chance::Stands(at, standing) => {
                    let Some(session) = pick(&open, at) else { continue };
                    let standing = match standing {
                        0 => Ok(Standing::Waiting),
                        1 => Ok(Standing::Busy { obstructions: Vec::new(), streak: None }),
                        2 => Ok(Standing::Lost),
                        3 => Err(error()),
                        _ => Ok(Standing::Asking),
                    };
                    if !matches!(standing, Ok(Standing::Waiting | Standing::Asking)) {
                        open.remove(&session);
                    }
                    lost = Some(session);
                    lab.on(Event::Report(id(session), Report::Standing(standing)))
                }
                Chance::Released(at) => {
                    let Some(session) = pick(&releasing, at) else { continue };
                    releasing.remove(&session);
                    lab.released(session, Released::Done)
                }
                Chance::Answer(_) if answers == 0 => continue,
                Chance::Answer(kind) => {
                    answers -= 1;
                    lab.on(Event::Answer(match kind {
                        0 => Answer::Listing(Unread::default().listing("{}".to_owned())),
                        1 => Answer::Obstructions(Arc::default()),
                        2 => Answer::Changed(Changed::Done),
                        _ => Answer::Failed(error()),
                    }))
                }
                Chance::Pass(seconds) => lab.after(Duration::from_secs(seconds.into())),
                Chance::Drain => lab.on(Event::Drain),
                Chance::Stop => lab.on(Event::Stop),
                Chance::End => lab.on(Event::End),
            };
            announced.retain(|session| Some(*session) != lost);
            for action in actions {
                prop_assert!(!is_closed || action.starts_with("release"), "{action} after the close");
                if let (Some((session, left)), true) = (granted, action.starts_with("say ok")) {
                    prop_assert!(left > lab.rules.grace, "{action} with {left:?} left");
                    announced.insert(session);
                }
                if action.starts_with("say lost ") && !is_stop {
                    lost_at = Some(lab.now);
                }
                let number = action.split([' ', ':']).nth(1).and_then(|word| word.parse::<u8>().ok());
                match action.split(' ').next() {
                    Some("acquire") => prop_assert!(open.insert(number.unwrap())),
                    Some("release") => {
                        // A session that was lost is released too; the store knows nothing of it.
                        open.remove(&number.unwrap());
                        if let Some(lost_at) = lost_at.filter(|_| announced.contains(&number.unwrap())) {
                            prop_assert!(lost_at + lab.rules.grace <= lab.now, "{action} too early");
                        }
                        prop_assert!(releasing.insert(number.unwrap()), "{action} twice");
                    }
                    Some("inspect" | "ask" | "shrink" | "downgrade") => answers += 1,
                    Some("close") => is_closed = true,
                    _ => {}
                }
            }
            prop_assert!(!is_draining || is_closed || lab.client.holds());
        }
        prop_assert!(is_closed && open.is_empty(), "{open:?}");
        for session in releasing {
            lab.released(session, Released::Done);
        }
        prop_assert!(lab.client.is_over());
        prop_assert_eq!(lab.client.timeout(&lab.rules), None);
    }
}
