//! Carries out in the poll loop of a process what the [`Conversation`] about its sessions decides.

use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::client::Client;
use super::conversation::Conversation;
use super::exchange::{Exchange, Happened};
use super::failure::{ErrorKind, Failure};
use super::step::{Step, Task};
use super::target::Target;
use super::turns::{Action, Turns};
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Obstruction};
use rlock_store::lease::{LeaseReply, Server as _};
use rlock_store::sessions::{Report, Sessions, look_limit};
use rlock_sys::clock::Boottime;

/// How long a transaction under way may take before this process does something else for a while.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// The sessions of a process.
pub(super) struct PostgresSessions {
    conversation: Conversation,
    exchange: Exchange,
    /// The transaction under way.
    step: Option<Step<LeaseReply>>,
    look_limit: Duration,
}

impl PostgresSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, namespace: Arc<str>, connect_timeout: Duration) -> Self {
        let exchange = Exchange::new(target, namespace, connect_timeout);
        let turns = Turns::new(exchange.servers(), exchange.connection.shown());
        Self {
            conversation: Conversation::new(turns, connect_timeout),
            exchange,
            step: None,
            look_limit: look_limit(None),
        }
    }

    /// Carries out what the conversation decides, and gives it what has arrived, until that would
    /// block.
    fn drive(&mut self) {
        loop {
            let now = Boottime::now();
            while let Some(action) = self.conversation.next_action() {
                self.perform(action, now);
            }
            match self.exchange.advance(&mut self.step) {
                Ok(Some(Happened::Connected)) => self.conversation.on_ready(now),
                Ok(Some(Happened::Notice(channel))) => self.conversation.on_notice(channel, now),
                Ok(Some(Happened::Heard)) => {
                    let stands = self.step.as_ref().map(Step::stands).unwrap_or_default();
                    self.conversation.on_sign_of_life(stands, now);
                    if let Some(blocker) = self.step.as_mut().and_then(Step::take_blocker) {
                        let failure = self.exchange.failure(ErrorKind::Locked(blocker));
                        self.conversation.driver.server_mut().line_mut().note(failure);
                    }
                }
                Ok(Some(Happened::Done(reply, committed))) => self.conversation.on_done(reply, committed, now),
                Ok(None) => {
                    self.conversation.on_time(now);
                    match self.conversation.next_action() {
                        Some(action) => self.perform(action, now),
                        None => return,
                    }
                }
                Err(failure) => self.fail(failure, false, now),
            }
        }
    }

    fn perform(&mut self, action: Action, now: Boottime) {
        match action {
            Action::Open(turns) => {
                let opened = self.exchange.open(turns, now);
                self.conversation.driver.server_mut().server = self.exchange.connection.shown();
                if let Err(failure) = opened {
                    self.fail(failure, false, now);
                }
            }
            Action::Close => {
                self.exchange.close();
                self.step = None;
            }
            Action::Begin(task) => {
                let own = self.conversation.driver.ids().collect();
                let task = Task { own, ..*task };
                self.step = Some(self.exchange.begin(task, self.conversation.driver.server().line().failures()));
            }
            Action::ReportSilence => self.fail(self.exchange.connection.timeout_failure(), true, now),
        }
    }

    fn fail(&mut self, failure: Failure, is_silence: bool, now: Boottime) {
        let may_be_committed = self.step.take().is_some_and(|step| step.stands().may_be_committed);
        self.conversation.on_failure(failure, may_be_committed, is_silence, now);
    }

    /// Finishes the transaction under way, for which others may be waiting, before this process
    /// does something else for a while.
    fn settle(&mut self) {
        let until = Boottime::now() + SETTLE_LIMIT;
        while self.step.is_some() && !self.is_locked_out() && Boottime::now() < until {
            self.exchange.connection.wait(Some(until));
            self.drive();
        }
    }

    /// Whether the transaction under way has waited for the lock of the namespace in vain. Nobody
    /// waits for it then, and the server has nothing of it.
    fn is_locked_out(&self) -> bool {
        let stands = self.step.as_ref().map(Step::stands).unwrap_or_default();
        stands.retries > 0 && !stands.may_be_committed
    }

    fn client(&mut self) -> Client {
        self.settle();
        Client::over(self.exchange.another(), self.look_limit)
    }
}

impl Sessions for PostgresSessions {
    fn acquire(&mut self, request: Request, options: AcquireOptions) {
        self.look_limit = look_limit(request.terms);
        self.conversation.driver.acquire(request, options, Boottime::now());
    }

    fn release(&mut self, session: SessionId, end: Option<End>, _goes_on: bool) {
        self.conversation.driver.release(session, end, Boottime::now());
    }

    fn give_up(&mut self, session: SessionId) {
        self.settle();
        let (is_locked_out, now) = (self.is_locked_out(), Boottime::now());
        let driver = &mut self.conversation.driver;
        if is_locked_out && driver.client(session).is_some_and(|client| !client.may_be_kept(false)) {
            // There is nothing to take back, for which the same lock would be needed.
            let known = driver.trouble(session).cloned();
            let failure = known.unwrap_or_else(|| self.exchange.failure(ErrorKind::TooSlow));
            return driver.fail(session, failure, now);
        }
        driver.give_up(session, now);
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.exchange.connection.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        // A look at the holders has finished the transaction that granted something.
        let reports = self.conversation.driver.has_reports().then(Boottime::default);
        [reports, self.conversation.due(), self.exchange.acts_at()].into_iter().flatten().min()
    }

    fn advance(&mut self) {
        self.drive();
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.conversation.driver.next_report()
    }

    fn close(&mut self) {
        self.conversation.driver.close();
        self.exchange.close();
        self.step = None;
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<Obstruction>, Error> {
        Ok(self.client().obstructions(resources)?)
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        Ok(Some(self.client().read(resources)?))
    }

    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(self.client().history(slice::from_ref(name), entries)?)
    }

    fn place(&self, session: SessionId) -> Option<u64> {
        self.conversation.driver.place(session)
    }

    fn trouble(&self, session: SessionId) -> Option<String> {
        self.conversation.driver.trouble(session).map(|failure| Error::from(failure.clone()).to_string())
    }

    fn server(&self) -> Option<String> {
        Some(self.exchange.connection.shown())
    }

    fn change_of_store(&self) -> Option<String> {
        let is_new = self.conversation.has_new_tables();
        is_new.then(|| "its tables are new: the database was dropped or restored".to_owned())
    }
}
