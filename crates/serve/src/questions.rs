//! The questions that wait for the thread that asks the store. Says which of them is next, and
//! which clients ask it.

use std::collections::BTreeMap;

use super::event::Question;
use rlock_sys::clock::Boottime;

/// How many questions may wait. Clients who ask and leave must not pile up questions to a store
/// that hangs.
const QUESTIONS_MAX: usize = 1024;

/// A client that asks, and the number of its question.
pub(super) type Asker = (u64, u64);

/// How urgent a question is. The order is that in which questions are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// A client waits for a change of its lock, or for the end of its request.
    High,
    /// A request that waits looks for a deadlock.
    Middle,
    /// A client looks at what others hold, which may be very much.
    Low,
}

impl Urgency {
    fn of(question: &Question) -> Self {
        match question {
            Question::Change(..) | Question::Obstructions(_) => Self::High,
            Question::Read(_) => Self::Middle,
            Question::Inspect(_) => Self::Low,
        }
    }
}

/// The next question, with all who ask it.
#[derive(Debug, PartialEq)]
pub(super) struct Next {
    pub(super) question: Question,
    pub(super) askers: Vec<Asker>,
    /// When the last of them asked.
    pub(super) since: Boottime,
}

/// The questions that wait.
#[derive(Debug, Default)]
pub(super) struct Questions(BTreeMap<(Urgency, u64), Waiting>);

#[derive(Debug)]
struct Waiting {
    client: u64,
    question: Question,
    since: Boottime,
}

impl Questions {
    /// Adds a question. Returns false if too many wait.
    pub(super) fn push(&mut self, (client, number): Asker, question: Question, since: Boottime) -> bool {
        let is_admitted = self.0.len() < QUESTIONS_MAX;
        if is_admitted {
            self.0.insert((Urgency::of(&question), number), Waiting { client, question, since });
        }
        is_admitted
    }

    /// Removes the question of a client that does not wait for its answer any more.
    pub(super) fn remove(&mut self, client: u64) {
        self.0.retain(|_, waiting| waiting.client != client);
    }

    /// Takes the most urgent question. All who ask the same share its answer.
    pub(super) fn next(&mut self) -> Option<Next> {
        let ((urgency, number), Waiting { client, question, mut since }) = self.0.pop_first()?;
        let mut askers = vec![(client, number)];
        let is_same = |at: &(Urgency, u64), other: &mut Waiting| at.0 == urgency && other.question == question;
        for ((_, number), other) in self.0.extract_if(.., is_same) {
            askers.push((other.client, number));
            since = since.max(other.since);
        }
        Some(Next { question, askers, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::mode::Mode;
    use rlock_model::op::Change;
    use rlock_model::request::SessionId;
    use rlock_model::resource::Resource;

    fn key(name: &str) -> Resource {
        Resource::new(name).unwrap()
    }

    fn all(questions: &mut Questions) -> Vec<Vec<Asker>> {
        std::iter::from_fn(|| questions.next()).map(|next| next.askers).collect()
    }

    #[test]
    fn listings_come_last_and_equal_questions_are_asked_once() {
        let mut questions = Questions::default();
        let change = |number| {
            let change = Change::Downgrade { resource: key("k"), mode: Mode::Read };
            Question::Change(SessionId([number; 16]), change)
        };
        let asked = [
            Question::Inspect(None),
            Question::Inspect(Some(key("k"))),
            Question::Read(vec![key("k")]),
            Question::Inspect(None),
            Question::Obstructions(vec![key("k")]),
            change(1),
            change(2),
            Question::Obstructions(vec![key("k")]),
        ];
        for (number, question) in (0..).zip(asked) {
            assert!(questions.push((number + 10, number), question, Boottime::default()));
        }
        let expected = [vec![(14, 4), (17, 7)], vec![(15, 5)], vec![(16, 6)], vec![(12, 2)], vec![(10, 0), (13, 3)]];
        assert_eq!(all(&mut questions), [&expected[..], &[vec![(11, 1)]]].concat());
    }

    #[test]
    fn question_of_a_client_that_is_gone_is_not_asked() {
        let mut questions = Questions::default();
        for (client, number) in [(1, 1), (2, 2)] {
            questions.push((client, number), Question::Inspect(None), Boottime::default());
        }
        questions.remove(1);
        assert_eq!(all(&mut questions), [[(2, 2)]]);
    }

    #[test]
    fn question_beyond_the_limit_is_refused_and_others_are_kept() {
        let mut questions = Questions::default();
        for number in 0..QUESTIONS_MAX as u64 {
            assert!(questions.push((number, number), Question::Inspect(None), Boottime::default()));
        }
        assert!(!questions.push((5000, 5000), Question::Inspect(None), Boottime::default()));
        assert_eq!(all(&mut questions).concat().len(), QUESTIONS_MAX);
    }
}
