//! Runs in a thread what may block, and closes a pipe when it ends, so that a poll loop can wait
//! for it. The number of threads has a limit; what is beyond it waits for its turn.

use std::collections::VecDeque;
use std::io::{self, PipeReader, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Builder;

use rustix::event::PollFlags;

use rlock_sys::background;

/// The threads of all lookups. Nothing ends a thread that is blocked in the resolver, so their
/// number has a limit.
static THREADS: Pool = Pool::new(16);

/// A lookup in a thread.
pub struct Lookup<T> {
    /// Ends with the lookup.
    end: PipeReader,
    /// Lives as long as somebody waits for the result.
    _waits: Arc<()>,
    found: Receiver<T>,
}

impl<T: Send + 'static> Lookup<T> {
    /// Begins to look.
    ///
    /// # Errors
    /// The kernel has no thread or no pipe to spare.
    pub fn begin(find: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, found) = channel();
        let waits = Arc::new(());
        let (end, running) = pipe()?;
        let run = move || {
            // Nobody may wait for the result any more.
            let _ = sender.send(find());
            drop(running);
        };
        THREADS.run(&waits, run)?;
        Ok(Self { end, _waits: waits, found })
    }

    /// The descriptor to poll.
    pub fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.end.as_fd(), PollFlags::IN)
    }

    /// The result, once there is one. It is given once.
    ///
    /// # Errors
    /// The lookup ended without a result.
    pub fn result(&self) -> Result<Option<T>, NoResult> {
        match self.found.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(NoResult),
        }
    }
}

/// A lookup has ended without a result.
pub struct NoResult;

/// A pool of threads, which start with the jobs and end without.
pub struct Pool {
    /// The largest number of threads.
    max: usize,
    load: Mutex<Load>,
}

struct Load {
    /// The number of threads, including those that never end.
    threads: usize,
    queue: VecDeque<Job>,
}

struct Job {
    wanted: Weak<()>,
    run: Box<dyn FnOnce() + Send>,
}

impl Pool {
    /// A pool of at most `max` threads, none of which runs yet.
    pub const fn new(max: usize) -> Self {
        Self { max, load: Mutex::new(Load { threads: 0, queue: VecDeque::new() }) }
    }

    /// Runs a job as soon as there is a thread for it, unless `wanted` is gone by then.
    ///
    /// # Errors
    /// The kernel has no thread to spare.
    pub fn run(&'static self, wanted: &Arc<()>, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let job = Job { wanted: Arc::downgrade(wanted), run: Box::new(run) };
        let mut load = self.load();
        // The queue must not grow behind jobs that never end.
        load.queue.retain(Job::is_wanted);
        if load.threads >= self.max {
            load.queue.push_back(job);
        } else {
            background::spawn(Builder::new().name("locate".to_owned()), || self.work(job))?;
            load.threads += 1;
        }
        Ok(())
    }

    fn work(&self, first: Job) {
        let mut next = Some(first);
        while let Some(job) = next {
            if job.is_wanted() {
                (job.run)();
            }
            next = self.next();
        }
    }

    /// The next job. If there is none, the thread ends.
    fn next(&self) -> Option<Job> {
        let mut load = self.load();
        let job = load.queue.pop_front();
        if job.is_none() {
            load.threads -= 1;
        }
        job
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        // No job runs while a thread has the lock.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_beyond_the_limit_waits_for_a_thread_and_runs_only_if_it_is_still_wanted() {
        static POOL: Pool = Pool::new(2);
        let wanted = Arc::new(());
        let (sender, done) = channel();
        let blocked: Vec<_> = (0..2)
            .map(|number| {
                let (release, blocks) = channel::<()>();
                let sender = sender.clone();
                POOL.run(&wanted, move || {
                    let _ = blocks.recv();
                    sender.send(number).unwrap();
                })
                .unwrap();
                release
            })
            .collect();
        let gone = Arc::new(());
        for (wanted, number) in [(&gone, 2), (&wanted, 3), (&gone, 4), (&wanted, 5)] {
            let sender = sender.clone();
            POOL.run(wanted, move || sender.send(number).unwrap()).unwrap();
        }
        drop(gone);
        assert!(done.try_recv().is_err());
        blocked[0].send(()).unwrap();
        assert_eq!([(); 3].map(|()| done.recv().unwrap()), [0, 3, 5]);
        blocked[1].send(()).unwrap();
        assert_eq!(done.recv(), Ok(1));
        drop(sender);
        assert!(done.recv().is_err(), "the jobs that nobody wants are gone");
    }
}
