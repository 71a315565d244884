//! Asks the store the questions of clients that may take long, in a thread of its own: what is held
//! and waits, and changes of holds.
//!
//! A question may wait for a process that has the embedded table locked, or scan a whole server.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use super::event::{Answer, Question};
use super::listing::Unread;
use super::questions::{Asker, Next, Questions};
use super::rules::Rules;
use rlock_show::failure::Failure;
use rlock_show::json;
use rlock_store::{Error, Obstruction, Store};
use rlock_sys::background::{self, Bell};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// Opens the store for the thread.
pub(super) type Open = dyn Fn() -> Result<Box<dyn Store>, Failure> + Send + Sync;

/// The thread, which starts with the first question.
pub(super) struct Worker {
    open: Arc<Open>,
    rules: Arc<Rules>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// The numbers of the questions whose answers are awaited, by client.
    awaited: HashMap<u64, u64>,
    last_number: u64,
    sender: Sender<(Asker, Answer)>,
    receiver: Receiver<(Asker, Answer)>,
}

/// What the thread and the loop share.
struct Shared {
    questions: Mutex<Questions>,
    /// Whether there is a question.
    has_question: Condvar,
    /// Rings for answers.
    bell: Bell,
}

impl Shared {
    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().expect("no thread panics while it has the lock")
    }

    /// Waits for the next question.
    fn next(&self) -> Next {
        let mut questions = self.questions();
        loop {
            if let Some(next) = questions.next() {
                return next;
            }
            questions = self.has_question.wait(questions).expect("no thread panics while it has the lock");
        }
    }
}

impl Worker {
    pub(super) fn new(open: Arc<Open>, rules: Arc<Rules>) -> io::Result<Self> {
        let shared = Shared { questions: Mutex::default(), has_question: Condvar::new(), bell: Bell::new()? };
        let (sender, receiver) = channel();
        Ok(Self {
            open,
            rules,
            thread: None,
            shared: Arc::new(shared),
            awaited: HashMap::new(),
            last_number: 0,
            sender,
            receiver,
        })
    }

    /// Asks a question for a client, which waits for no other answer any more.
    pub(super) fn ask(&mut self, client: u64, question: Question) {
        self.last_number += 1;
        let asker = (client, self.last_number);
        self.awaited.insert(client, self.last_number);
        let is_admitted = self.runs() && self.shared.questions().push(asker, question, Boottime::now());
        if is_admitted {
            self.shared.has_question.notify_one();
        } else {
            let failure =
                Error::Unavailable(Explained::new("this server cannot answer more questions now", "try again"));
            let _ = self.sender.send((asker, Answer::Failed(failure)));
            self.shared.bell.ring();
        }
    }

    /// Starts the thread unless it runs. If the kernel has no thread to spare, the next question
    /// tries again.
    fn runs(&mut self) -> bool {
        self.thread.take_if(|thread| thread.is_finished());
        if self.thread.is_none() {
            let (shared, answers) = (Arc::clone(&self.shared), self.sender.clone());
            let (open, rules) = (Arc::clone(&self.open), Arc::clone(&self.rules));
            let run = move || {
                let mut respondent = Respondent::new(open, rules);
                loop {
                    let Next { question, askers, since } = shared.next();
                    let answer = respondent.answer(question, since).unwrap_or_else(Answer::Failed);
                    for asker in askers {
                        let _ = answers.send((asker, answer.clone()));
                    }
                    shared.bell.ring();
                }
            };
            self.thread = background::spawn(Builder::new().name("questions".to_owned()), run).ok();
        }
        self.thread.is_some()
    }

    /// Forgets the question of a client that does not wait for an answer any more.
    pub(super) fn forget(&mut self, client: u64) {
        if self.awaited.remove(&client).is_some() {
            self.shared.questions().remove(client);
        }
    }

    /// Takes the next answer that is awaited.
    pub(super) fn next_answer(&mut self) -> Option<(u64, Answer)> {
        if self.last_number == 0 {
            return None;
        }
        self.shared.bell.silence();
        while let Ok(((client, number), answer)) = self.receiver.try_recv() {
            if self.awaited.get(&client) == Some(&number) {
                self.awaited.remove(&client);
                return Some((client, answer));
            }
        }
        None
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

/// What answers the questions in the thread, with a store of its own.
struct Respondent {
    open: Arc<Open>,
    rules: Arc<Rules>,
    store: Option<Box<dyn Store>>,
    /// When the store was last found unavailable, and why.
    failure: Option<(Boottime, Explained)>,
    unread: Unread,
}

impl Respondent {
    fn new(open: Arc<Open>, rules: Arc<Rules>) -> Self {
        Self { open, rules, store: None, failure: None, unread: Unread::default() }
    }

    fn answer(&mut self, question: Question, since: Boottime) -> Result<Answer, Error> {
        if matches!(question, Question::Inspect(_)) && self.unread.is_full() {
            let what = "clients have not read too many listings yet";
            return Err(Error::Unavailable(Explained::new(what, "try again")));
        }
        // A store that hangs lets each question wait. Those that were asked meanwhile share the
        // failure of the first.
        if let Some((_, words)) = self.failure.as_ref().filter(|(at, _)| since <= *at) {
            return Err(Error::Unavailable(words.clone()));
        }
        let answer = self.ask(question);
        if let Err(Error::Unavailable(words)) = &answer {
            self.failure = Some((Boottime::now(), words.clone()));
        }
        answer
    }

    fn ask(&mut self, question: Question) -> Result<Answer, Error> {
        // A store that failed is opened anew for the next question.
        let mut store = match self.store.take() {
            Some(store) => store,
            None => (self.open)().map_err(|failure| Error::Unavailable(failure.words))?,
        };
        let answer = match question {
            Question::Inspect(resource) => {
                let mut inspection = store.inspect(resource.as_slice())?;
                inspection.resources.retain(|listing| self.rules.serves(&listing.name));
                store.take_unusable();
                let pasts = store.pasts(&inspection)?;
                let text = json::as_text(&store.url(), &inspection, &pasts, &[]);
                Answer::Listing(self.unread.listing(text))
            }
            Question::Obstructions(resources) => {
                let listings = store.inspect(&resources)?.resources;
                Answer::Obstructions(listings.into_iter().map(Obstruction::from).collect())
            }
            Question::Read(resources) => {
                let reading = store.read(&resources)?;
                let none = || Error::Unavailable("the store cannot tell now".into());
                Answer::Reading(Arc::new(reading.ok_or_else(none)?))
            }
            Question::Change(session, change) => Answer::Changed(store.change(session, &[], &change)?),
        };
        self.store = Some(store);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::listing::BYTES_MAX;
    use super::*;

    /// The answer to a question at a store that cannot be opened.
    fn answer(respondent: &mut Respondent, question: Question) -> String {
        match respondent.answer(question, Boottime::now()) {
            Err(error) => error.to_string(),
            answer => panic!("expected an error, not {answer:?}"),
        }
    }

    #[test]
    fn no_listing_is_made_while_clients_have_too_much_to_read() {
        let open: Arc<Open> = Arc::new(|| Err(Failure::usage("the store is away".to_owned())));
        let (only, grace) = (Vec::new(), Duration::ZERO);
        let mut respondent = Respondent::new(
            open,
            Arc::new(Rules { token: None, only, has_leases: false, grace, is_stopped: |_| false }),
        );
        let slow = respondent.unread.listing("x".repeat(BYTES_MAX));
        let full = "clients have not read too many listings yet: try again";
        assert_eq!(answer(&mut respondent, Question::Inspect(None)), full);
        assert_eq!(answer(&mut respondent, Question::Obstructions(Vec::new())), "the store is away");
        drop(slow);
        assert_eq!(answer(&mut respondent, Question::Inspect(None)), "the store is away");
    }
}
