//! Asks the store the questions of clients that may take long, in a thread of its own: what is held
//! and waits, and changes of holds.
//!
//! A question may wait for a process that has the embedded table locked, or scan a whole server.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{io, thread};

use rustix::event::{EventfdFlags, eventfd};

use super::event::{Answer, Question};
use super::rules::Rules;
use crate::clock::Boottime;
use crate::failure::Failure;
use crate::inspection;
use crate::store::{Error, Obstruction, Store};
use crate::words::json;

/// How many questions may wait for the thread. Clients who ask and leave must not pile up questions
/// to a store that hangs.
const QUESTIONS_MAX: usize = 1024;

/// Opens the store for the thread.
pub(super) type Open = dyn Fn() -> Result<Box<dyn Store>, Failure> + Send + Sync;

/// The thread, which starts with the first question.
pub(super) struct Worker {
    open: Arc<Open>,
    rules: Arc<Rules>,
    questions: Option<SyncSender<Asked>>,
    /// The clients that wait for an answer. The thread leaves out the questions of others.
    asking: Arc<Mutex<HashSet<u64>>>,
    sender: Sender<(u64, Answer)>,
    receiver: Receiver<(u64, Answer)>,
    /// The number of questions whose answers are still to be taken.
    unanswered: usize,
    /// Readable when there is an answer.
    event: Arc<OwnedFd>,
}

impl Worker {
    pub(super) fn new(open: Arc<Open>, rules: Arc<Rules>) -> io::Result<Self> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = channel();
        Ok(Self { open, rules, questions: None, asking: Arc::default(), sender, receiver, unanswered: 0, event })
    }

    /// Asks a question for a client.
    pub(super) fn ask(&mut self, client: u64, question: Question) {
        self.unanswered += 1;
        let Self { open, rules, questions, asking, sender: answers, event, .. } = self;
        lock(asking).insert(client);
        let sender = questions.get_or_insert_with(|| {
            let (sender, receiver) = sync_channel::<Asked>(QUESTIONS_MAX);
            let (open, rules, answers) = (Arc::clone(open), Arc::clone(rules), answers.clone());
            let (asking, event) = (Arc::clone(asking), Arc::clone(event));
            // If the kernel has no thread to spare, the question is answered with a failure below.
            let _ = thread::Builder::new().name("questions".to_owned()).spawn(move || {
                let mut asker = Asker { open, rules, store: None, failure: None };
                for asked in receiver {
                    let client = asked.client;
                    let is_awaited = lock(&asking).contains(&client);
                    let answer = if is_awaited { asker.answer(asked) } else { Err(Error::Unavailable(String::new())) };
                    lock(&asking).remove(&client);
                    let _ = answers.send((client, answer.unwrap_or_else(Answer::Failed)));
                    // A write of one to an eventfd that is read now and then cannot fail.
                    let _ = rustix::io::write(&*event, &1_u64.to_ne_bytes());
                }
            });
            sender
        });
        if let Err(error) = sender.try_send(Asked { client, question, at: Boottime::now() }) {
            if matches!(error, TrySendError::Disconnected(_)) {
                self.questions = None;
            }
            lock(&self.asking).remove(&client);
            let failure = Error::Unavailable("this server cannot answer more questions now: try again".to_owned());
            let _ = self.sender.send((client, Answer::Failed(failure)));
            let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Forgets the question of a client that is gone.
    pub(super) fn forget(&self, client: u64) {
        if self.unanswered > 0 {
            lock(&self.asking).remove(&client);
        }
    }

    /// Takes the next answer.
    pub(super) fn next_answer(&mut self) -> Option<(u64, Answer)> {
        if self.unanswered == 0 {
            return None;
        }
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        let answer = self.receiver.try_recv().ok()?;
        self.unanswered -= 1;
        Some(answer)
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A question under way to the thread.
struct Asked {
    client: u64,
    question: Question,
    at: Boottime,
}

fn lock(asking: &Mutex<HashSet<u64>>) -> MutexGuard<'_, HashSet<u64>> {
    asking.lock().expect("no thread panics while it has the lock")
}

/// The thread's own store.
struct Asker {
    open: Arc<Open>,
    rules: Arc<Rules>,
    store: Option<Box<dyn Store>>,
    /// When the store was last found unavailable, and why.
    failure: Option<(Boottime, String)>,
}

impl Asker {
    fn answer(&mut self, asked: Asked) -> Result<Answer, Error> {
        // A store that hangs lets each question wait. Those that were asked meanwhile share the
        // failure of the first.
        if let Some((_, text)) = self.failure.as_ref().filter(|(at, _)| asked.at <= *at) {
            return Err(Error::Unavailable(text.clone()));
        }
        let answer = self.ask(asked.question);
        if let Err(Error::Unavailable(text)) = &answer {
            self.failure = Some((Boottime::now(), text.clone()));
        }
        answer
    }

    fn ask(&mut self, question: Question) -> Result<Answer, Error> {
        // A store that failed is opened anew for the next question.
        let mut store = match self.store.take() {
            Some(store) => store,
            None => (self.open)().map_err(|failure| Error::Unavailable(failure.text))?,
        };
        let answer = match question {
            Question::Inspect(resource) => {
                let mut inspection = store.inspect(resource.as_slice())?;
                inspection.resources.retain(|listing| self.rules.serves(&listing.name));
                store.take_unusable();
                let pasts = inspection::pasts(store.as_mut(), &inspection)?;
                Answer::Listing(json(&inspection::as_json(&store.url(), &inspection, &pasts)))
            }
            Question::Obstructions(resources) => {
                let listings = store.inspect(&resources)?.resources;
                Answer::Obstructions(listings.into_iter().map(Obstruction::from).collect())
            }
            Question::Shrink(session, resource, span) => Answer::Changed(store.shrink(session, &resource, span)?),
            Question::Downgrade(session, resource, mode) => Answer::Changed(store.downgrade(session, &resource, mode)?),
        };
        self.store = Some(store);
        Ok(answer)
    }
}
