//! Writes the messages about requests, holders and waiters, one line each.
//!
//! `rlock_arguments::usage` has the text of mistakes on the command line. The text of a store's own
//! failure comes with [`rlock_store::Error`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::iter::repeat_n;
use std::time::{Duration, UNIX_EPOCH};

use crate::listing::program;
use crate::turn::Runs;
use rlock_model::conflict::may_block;
use rlock_model::deadlock::{Deadlock, Link, Reading};
use rlock_model::kept::EVER;
use rlock_model::mode::{Mode, Nesting};
use rlock_model::op::{HolderListing, WaiterListing};
use rlock_model::past::Streak;
use rlock_model::records::Session;
use rlock_model::request::{self, Claim, Process, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_model::text::shortened;
use rlock_store::Obstruction;
use rlock_sys::clock::StoreTime;
use rlock_words::{self as words, reason, shell_quoted};

/// From this number on, a message does not give the exact number of other holders.
const OTHERS_MAX: usize = 10;

/// Maximum number of resources that a message names.
const NAMES_MAX: usize = 8;

/// A process that an ended command has left.
#[derive(Clone, Debug)]
pub struct RestProcess {
    /// The process id.
    pub pid: i32,
    /// The name for ps(1).
    pub name: String,
    /// The state as ps(1) shows it, such as `D`.
    pub state: String,
    /// The name of the user.
    pub user: String,
}

/// The messages about one request.
#[derive(Clone, Debug)]
pub struct Messages {
    /// The claims of the request.
    pub claims: Vec<Claim>,
    /// The sessions that cannot be in the way: the session of the request and its ancestors.
    pub related: Vec<SessionId>,
    /// Whether a grant is a lease.
    pub has_leases: bool,
    /// Looks whether the process of a session is stopped, see
    /// [`is_stopped`](rlock_store::identity::is_stopped).
    pub is_stopped: fn(&Process) -> bool,
    /// Looks whether this process runs below the command of a holder, which has held since an
    /// instant.
    pub is_above: fn(&Process, StoreTime) -> bool,
    /// Looks for the number of the process above this one for which a session with this process
    /// holds its lock.
    pub owner_above: fn(&Process) -> Option<u32>,
    /// Looks whether the process of a session has the other end of a pipe of this one.
    pub is_beside: fn(&Process) -> bool,
    /// The past holds of the resource, if they are known.
    pub runs: Option<Runs>,
    /// The process of the request.
    pub own: Process,
    /// The owner of the request, if that is one session of a coding agent.
    pub agent: Option<String>,
    /// The reason of the request, if that is the page of a CI run.
    pub run: Option<String>,
    /// Reads the time of the machine, by which messages tell ages.
    pub now: fn() -> StoreTime,
}

impl Messages {
    /// Whether the variables name sessions above the request.
    pub fn is_nested(&self) -> bool {
        self.related.len() > 1
    }

    /// The resource whose past holds tell when it is the turn of the request: one that is claimed
    /// as a whole, and not as one of several slots.
    pub fn has_turns(&self) -> Option<&Resource> {
        match self.claims.as_slice() {
            [claim] if claim.span.is_whole() && claim.slots.is_none_or(|slots| slots == 1) => Some(&claim.resource),
            _ => None,
        }
    }

    /// When it is the turn of the request, if that is known: of one that is busy, of the next.
    fn turn(&self, obstructions: &[Obstruction]) -> Option<String> {
        let (runs, [seen]) = (self.runs.as_ref()?, obstructions) else { return None };
        let mine = seen.listing.waiters.iter().find(|waiter| Some(&waiter.session) == self.related.last());
        runs.turn(seen, mine.map_or(seen.waiting, |mine| u64::from(mine.position) - 1))
    }

    /// The request has begun to wait, with the names only: what blocks it is not known yet.
    pub fn waits(&self) -> String {
        format!("waits for {}", self.names())
    }

    /// `waited` is the time that the request waited for the grant, if it is worth a word.
    pub fn holds(&self, waited: Option<Duration>) -> String {
        let waited = waited.map(|waited| format!("; waited {}", duration(waited))).unwrap_or_default();
        format!("holds {}{waited}", held_all(&self.claims))
    }

    /// `held` are the claims that the session held at the end, and `stays` says that the hold stays
    /// without a process.
    pub fn releases(held: &[Claim], stays: bool) -> String {
        format!("{} {}", if stays { "keeps" } else { "releases" }, held_all(held))
    }

    /// The claims that the session holds by now, if the store lists them. `shrink` and `downgrade`
    /// change them.
    pub fn listed(&self, obstructions: &[Obstruction]) -> Vec<Claim> {
        let own = |holder: &&HolderListing| self.related.last() == Some(&holder.session);
        let claims_of = |obstruction: &Obstruction| {
            let listing = &obstruction.listing;
            let claim = |holder: &HolderListing| Claim {
                resource: listing.name.clone(),
                mode: holder.mode,
                span: holder.span.clone(),
                slots: holder.slots,
            };
            let own = listing.holders.iter().filter(own);
            own.flat_map(|holder| repeat_n(claim(holder), holder.count)).collect::<Vec<_>>()
        };
        obstructions.iter().flat_map(claims_of).collect()
    }

    /// The line of a log about a wait: what blocks the request, and when its turn may come.
    pub fn waiting(&self, obstructions: &[Obstruction]) -> String {
        format!("waiting: {}{}", self.hindrance(obstructions), self.then_turn(obstructions))
    }

    /// The line on a terminal. The place in the queue and the start of the wait come first, so that
    /// a narrow terminal does not cut them.
    pub fn status(&self, obstructions: &[Obstruction], asked: StoreTime) -> String {
        let place = self.place(obstructions).map(|place| format!("{place}, ")).unwrap_or_default();
        let since = time(asked);
        let of_day = since.get(11..19).unwrap_or_default();
        let turn = self.turn(obstructions).map(|turn| format!(", {turn}")).unwrap_or_default();
        let hindrance = self.hindrance(obstructions).without_count(!place.is_empty());
        format!("waiting, {place}since {of_day}Z{turn}: {hindrance}")
    }

    /// The line for a caller who reads the last lines of an output: it is complete by itself.
    /// `limit` is that of the wait.
    pub fn progress(&self, obstructions: &[Obstruction], waited: Duration, limit: Option<Duration>) -> String {
        let names = self.names();
        let place = self.place(obstructions).map(|place| format!("{place}, ")).unwrap_or_default();
        let hindrance = self.hindrance(obstructions).without_count(!place.is_empty());
        let limit = limit.map(|limit| format!(" of {}", in_seconds(limit))).unwrap_or_default();
        let why = if hindrance.what == names { hindrance.beside_names() } else { hindrance.to_string() };
        let turn = self.then_turn(obstructions);
        format!("waiting for {names}, {place}{}{limit}: {why}{turn}", in_seconds(waited))
    }

    fn then_turn(&self, obstructions: &[Obstruction]) -> String {
        self.turn(obstructions).map(|turn| format!("; {turn}")).unwrap_or_default()
    }

    /// The place in the queue: `2 of 3`.
    pub fn place(&self, obstructions: &[Obstruction]) -> Option<String> {
        let own = self.related.last()?;
        obstructions.iter().find_map(|obstruction| {
            let mine = obstruction.listing.waiters.iter().find(|waiter| waiter.session == *own)?;
            Some(format!("{} of {}", mine.position, obstruction.waiting))
        })
    }

    /// Tells `how` the command has ended and how long it `ran`. `waited` is the time that the
    /// request waited for the grant, if it is worth a word.
    pub fn ran(&self, how: &str, ran: Duration, waited: Option<Duration>) -> String {
        let waited = waited.map(|waited| format!("; waited {} for {}", whole_seconds(waited), self.names()));
        format!("ran: {how} after {}{}", whole_seconds(ran), waited.unwrap_or_default())
    }

    fn hindrance(&self, obstructions: &[Obstruction]) -> Hindrance {
        let mut found = in_the_way(self, &self.related, obstructions);
        let blocked = Blocked::find(&self.claims, &self.related, obstructions).holder;
        found.cure = blocked.and_then(|(of, it)| self.cure(&of.listing.name, it)).unwrap_or_default();
        found
    }

    /// What to do, with a semicolon, where the holder in the way belongs to the caller.
    fn cure(&self, name: &Resource, it: &HolderListing) -> Option<String> {
        let (what, process) = (part(name.as_str(), &it.span), &it.process);
        let is_own = |known: &Option<String>, own: &Option<String>| own.is_some() && known == own;
        // Only people know whether the hold is theirs: those whom an agent starts share its
        // process.
        if let Some(pid) = (self.owner_above)(process) {
            return Some(format!(
                "{what} is a hold for process {pid}, above this command: if it is yours, add --nested to 'rlock exec', or \
                 run 'rlock release {}'; ",
                self::words(name, &it.span)
            ));
        }
        match it.kept {
            true if is_own(&process.reason, &self.run) => Some(format!(
                "{what} is this run's own lock: add >> \"$GITHUB_ENV\" to its step, or what your CI has for that; "
            )),
            false if is_own(&process.owner, &self.agent) && process.host == self.own.host => Some(format!(
                "{what} is held by an earlier call of your own session, which still runs: see 'rlock help agents'; "
            )),
            false if (self.is_beside)(process) => {
                Some(format!("{what} is held at the other end of this pipe: lock once around both, as by -c 'A | B'; "))
            }
            _ => None,
        }
    }

    /// `why` is what [`in_the_way`](Self::in_the_way) or [`superseded`](Self::superseded) says, and
    /// `streak` counts the skips of the job in a row, if there are any.
    pub fn busy(&self, why: &str, streak: Option<&Streak>) -> String {
        format!("busy: {why}{}", in_a_row(streak))
    }

    /// Says why a busy request ends without the busy line.
    pub fn skip(&self, why: &str, streak: Option<&Streak>) -> String {
        format!("skipped: {why}{}", in_a_row(streak))
    }

    /// Names the process whose newer request has superseded this one.
    pub fn superseded(&self, by: &Process, waited: Option<Duration>) -> String {
        format!("the request for {} was superseded by {}{}", self.names(), process(by), after(waited))
    }

    /// Says why a request with --once-per runs nothing. Such a request has one resource.
    pub fn done(&self) -> String {
        format!("skipped: {} had a successful run within --once-per; see 'rlock history'", self.names())
    }

    /// Describes what blocks the request. `waited` is the length of its wait, if it was to wait.
    pub fn in_the_way(&self, obstructions: &[Obstruction], waited: Option<Duration>) -> String {
        let mut what = self.hindrance(obstructions);
        if self.waits_for_itself(obstructions) {
            what.cure = format!("{}; ", UNNAMED.replace("that command", "the command of the holder"));
        }
        format!("{what}{}{}", self.then_turn(obstructions), after(waited))
    }

    /// Whether a holder in the way runs its command around this process, and the variables do not
    /// name it.
    fn waits_for_itself(&self, obstructions: &[Obstruction]) -> bool {
        let holders =
            obstructions.iter().flat_map(|seen| seen.listing.holders.iter().map(|it| (&seen.listing.name, it)));
        let mut strangers = holders.filter(|(_, it)| !it.kept && !self.related.contains(&it.session));
        strangers.any(|(name, it)| {
            let blocks = |claim: &Claim| claim.resource == *name && may_block(claim, it.mode, &it.span);
            self.claims.iter().any(blocks) && (self.is_above)(&it.process, it.since)
        })
    }

    /// Says that `command` was ended by this signal, and that the lock stays held until the `count`
    /// processes of the command that are left have ended. `rest` are the first of them, which may
    /// have received SIGTERM.
    pub fn rest(&self, command: &str, signal: &str, count: usize, rest: &[RestProcess], had_term: bool) -> String {
        let names: Vec<_> = rest.iter().map(|process| format!("'{}'", process.name)).collect();
        let more = more(count, rest);
        let [run, end, them] = if count == 1 { ["runs", "it ends", "it"] } else { ["run", "they end", "them"] };
        let remedy = if had_term { "'rlock break' ends" } else { "TERM to rlock, or 'rlock break', ends" };
        format!(
            "'{command}' was ended by {signal}; {count} of its processes still {run} ({}{more}), and {} held until \
             {end}: {remedy} {them}",
            names.join(", "),
            self.they_are()
        )
    }

    /// Says that `count` processes of the command, of which `rest` are the first, have not ended
    /// since SIGKILL, and whether they hold the lock until they end.
    pub fn unkilled(&self, count: usize, rest: &[RestProcess], holds: bool) -> String {
        let details = |RestProcess { pid, name, state, user }: &RestProcess| {
            format!("'{name}', pid {pid}, state {state}, user {user}")
        };
        let details: Vec<_> = rest.iter().map(details).collect();
        let what = if count == 1 { "1 process has".to_owned() } else { format!("{count} processes have") };
        let ends = if count == 1 { "it ends" } else { "they end" };
        let then = match holds {
            true => format!("{} held until {ends}, or 'rlock break --now' breaks the hold", self.they_are()),
            false => format!("rlock waits until {ends}"),
        };
        format!("{what} not ended after KILL ({}{}): {then}", details.join("; "), more(count, rest))
    }

    /// The request has failed, for this reason.
    pub fn cannot_lock(&self, reason: &dyn Display) -> String {
        format!("cannot lock {}: {reason}", self.names())
    }

    /// `news` says which server has not known the request.
    pub fn asked_again(&self, news: &str) -> String {
        format!("the request for {} was made again: {news}", self.names())
    }

    /// `change` says what has changed about the store, and `outcome` what happens to the command,
    /// such as [`NOT_STARTED`]. Without leases, the change is the cause of the loss.
    pub fn lost(&self, change: Option<&str>, outcome: &str) -> String {
        match change {
            Some(change) if !self.has_leases => format!("lost: {} taken away: {change}{outcome}", self.they_were()),
            Some(change) => format!("lost: {}: {change}{outcome}", self.taken_away()),
            None => format!("lost: {}{outcome}", self.taken_away()),
        }
    }

    /// The command exceeded its maximum run time.
    pub fn timeout(&self, max_runtime: Option<Duration>) -> String {
        let limit = max_runtime.map(|limit| format!(" {}", words::duration(limit))).unwrap_or_default();
        format!(
            "timeout: {}: '{}' ran for longer than --max-runtime{limit} and is stopped",
            self.names(),
            self.command()
        )
    }

    /// The end of the message about a loss that ends the command.
    pub fn stopped(&self) -> String {
        format!("{STOPPED}: '{}'", self.command())
    }

    fn command(&self) -> String {
        shortened(&self.own.command.join(" ")).to_string()
    }

    /// The reason of a loss of which the store tells no cause: all that may have ended the grant.
    pub fn taken_away(&self) -> String {
        let by = match self.has_leases {
            true => "by 'rlock break', a failover, lost data or a step of the server's clock",
            false => "as 'rlock break' does",
        };
        format!("{} taken away, {by}", self.they_were())
    }

    /// The reason of a loss where the store knows that an operator ended the grant.
    pub fn revoked(&self) -> String {
        format!("{} revoked by 'rlock break'", self.they_were())
    }

    fn they_were(&self) -> String {
        format!("{} {}", self.names(), if named(&self.claims).len() == 1 { "was" } else { "were" })
    }

    fn they_are(&self) -> String {
        format!("{} {}", self.names(), if named(&self.claims).len() == 1 { "is" } else { "are" })
    }

    /// The grant counts as lost because its lease was not renewed. `trouble` is that of
    /// [`not_renewed`](Self::not_renewed), and `outcome` that of [`lost`](Self::lost).
    pub fn overdue(&self, trouble: Option<&str>, outcome: &str) -> String {
        format!("lost: {}{outcome}", self.not_renewed(trouble))
    }

    /// `trouble` is the reason why the store did not answer, if that reason is known.
    pub fn not_renewed(&self, trouble: Option<&str>) -> String {
        let reason = trouble.map(|trouble| format!(": {trouble}")).unwrap_or_default();
        format!("the lease on {} was not renewed in time{reason}", self.names())
    }

    /// The release has failed, for this reason, so the grant ends by itself.
    pub fn not_released(&self, reason: &dyn Display) -> String {
        let end = if self.has_leases { "the lease ends" } else { "rlock has ended" };
        format!("could not release {}, held until {end}: {reason}", self.names())
    }

    /// The store has not answered the release of a server that goes on. It may have made the
    /// release, or may still make it.
    pub fn not_confirmed(&self, reason: &dyn Display) -> String {
        let end = if self.has_leases { "its lease" } else { "the server" };
        format!("the release of {} is not confirmed, it may be held until {end} ends: {reason}", self.names())
    }

    /// Describes a deadlock in one line, and in another what to do instead: one request for all, or
    /// to pass the variables on if an `unnamed` session around this process is in the cycle.
    pub fn deadlock(&self, reading: &Reading, deadlock: &Deadlock, unnamed: &[SessionId]) -> [String; 2] {
        let refused = format!("refused: {}", cycle(reading, deadlock));
        let stranger = deadlock.links.iter().find(|link| unnamed.contains(&link.session));
        if let Some(stranger) = stranger {
            let is_named = self.related.contains(&stranger.session);
            return [refused, if is_named { OTHER_USER } else { UNNAMED }.to_owned()];
        }
        let above = self.related.iter().filter_map(|id| reading.get(id)).filter(|session| session.is_holder());
        let held = above.map(|session| session.claims.iter().map(|record| &record.claim).collect::<Vec<_>>());
        let options = as_options(&held.chain([self.claims.iter().collect()]).collect::<Vec<_>>());
        let count = ["it", "both"].get(options.len() - 1).unwrap_or(&"all");
        let is_own = |link: &&Link| self.related.contains(&link.session) && is_kept(reading, link.session);
        let own = deadlock.links.iter().find(is_own).map(|link| &reading[&link.session]);
        // The variables name the session of a kept hold; that of a process is found by its KEY.
        let key = own.filter(|own| own.process.lasts_for.is_some()).and_then(|own| own.resources().first().copied());
        let key = key.map(|key| format!(" {}", shell_quoted(key.as_str()))).unwrap_or_default();
        let first = if own.is_some() { format!("run 'rlock release{key}', then ") } else { String::new() };
        [refused, format!("{first}ask for {count} in one request: rlock exec {} -- COMMAND", options.join(" "))]
    }

    /// The first session that blocks the request.
    pub fn first_in_the_way(&self, obstructions: &[Obstruction]) -> Option<SessionId> {
        first_in_the_way(&self.claims, &self.related, obstructions)
    }

    /// The resources and the paths of the request, each once.
    pub fn names(&self) -> String {
        let names = named(&self.claims);
        let shown = names.iter().take(NAMES_MAX).map(|name| format!("'{name}'"));
        let others = (names.len() > NAMES_MAX).then(|| format!("{} others", names.len() - NAMES_MAX));
        shown.chain(others).collect::<Vec<_>>().join(", ")
    }
}

/// The number of the processes that `rest` leaves out of `count`, as words, if there are any.
fn more(count: usize, rest: &[RestProcess]) -> String {
    let left_out = count.saturating_sub(rest.len());
    if left_out > 0 { format!(" and {left_out} more") } else { String::new() }
}

/// The resources and the paths of claims, each once.
fn named(claims: &[Claim]) -> Vec<&str> {
    let mut seen = HashSet::new();
    let names = claims.iter().map(|claim| claim.span.as_path().unwrap_or(claim.resource.as_str()));
    names.filter(|name| seen.insert(*name)).collect()
}

/// A signal has ended a request before its command. `waited` is its time in the queue, and `place`
/// its last place there, as far as they are known.
pub fn left(signal: &str, waited: Option<Duration>, place: Option<&str>) -> String {
    let waited = waited.map(|waited| format!(" after {} in the queue", whole_seconds(waited))).unwrap_or_default();
    let place = place.map(|place| format!(", place {place}")).unwrap_or_default();
    format!("ended by {signal}{waited}{place}")
}

/// The end of a message about a busy request: how long it has waited, if it is worth a word.
pub fn after(waited: Option<Duration>) -> String {
    waited.map(|wait| format!("; waited {}", words::duration(wait))).unwrap_or_default()
}

fn in_a_row(streak: Option<&Streak>) -> String {
    streak.map(|streak| format!("; {}", skipped(streak))).unwrap_or_default()
}

/// How often a job was skipped in a row, and since when.
pub fn skipped(streak: &Streak) -> String {
    let times = if streak.count == 1 { "once".to_owned() } else { format!("{} times", streak.count) };
    format!("skipped {times} since {}", time(streak.since))
}

/// Says that the jobs of two commands without a name are two.
pub fn counted_apart(one: &[String], other: &[String]) -> String {
    let [one, other] = [one, other].map(|command| shortened(&command.join(" ")));
    format!(
        "warning: '{one}' and '{other}' are two jobs, and their skips are counted apart: give both the same --job NAME"
    )
}

/// Whether the name of a job is the hash that a job without a name gets. The past does not tell.
pub fn is_hash(job: &str) -> bool {
    job.len() == 16 && job.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The lines about the jobs that were skipped in a row on a resource. Jobs without a name that run
/// the same program share a line, unless it is to name each of them.
pub fn skips(name: &Resource, streaks: &[(&str, &Streak)], names_all: bool) -> Vec<String> {
    let mut unnamed: BTreeMap<&str, Vec<&Streak>> = BTreeMap::new();
    let mut lines = Vec::new();
    for (job, streak) in streaks {
        if is_hash(job) && !names_all {
            unnamed.entry(program(&streak.command)).or_default().push(streak);
        } else {
            lines.push(format!("job {job}, '{}', was {}", streak.command.join(" "), skipped(streak)));
        }
    }
    for (program, streaks) in unnamed {
        let first = streaks[0];
        let count = streaks.iter().fold(0, |sum: u32, streak| sum.saturating_add(streak.count));
        let since = streaks.iter().map(|streak| streak.since).min().unwrap_or(first.since);
        lines.push(match streaks.len() {
            1 => format!("'{}' was {}", first.command.join(" "), skipped(first)),
            jobs => format!("{jobs} jobs of '{program}' were {}", skipped(&Streak { count, since, ..first.clone() })),
        });
    }
    lines.into_iter().map(|line| format!("'{name}': {line}")).collect()
}

/// What rlock says where it cannot see the command's processes.
pub const NO_PROCESSES: &str = "warning: /proc does not show the processes of this container: if the command is killed, its descendants in \
                                       other process groups go on: mount a /proc";

/// What rlock says where the kernel does not make it the parent of orphans.
pub fn no_orphans(error: &(dyn Error + 'static)) -> String {
    let why = reason(error);
    format!(
        "warning: the kernel does not make rlock the parent of orphans ({why}): if the command is killed, they go on: \
         permit prctl(2)"
    )
}

/// The spare work has ended by itself, with a code other than 0.
pub fn spare_exited(code: u8) -> String {
    format!("the work of --meanwhile exited with {code}")
}

/// The signal with this number has ended the spare work.
pub fn spare_killed(signal: i32) -> String {
    format!("the work of --meanwhile was ended by signal {signal}")
}

/// The outcomes for a command whose grant is lost. The message about the loss ends with one of
/// them.
pub const NOT_STARTED: &str = "; the command was not started";
/// The outcome for a command that runs, which the loss ends.
pub const STOPPED: &str = "; the command is stopped";
/// The outcome for a command that had ended before the loss was noticed.
pub const ENDED_LATE: &str = "; the command has ended, but maybe too late";
/// The outcome for a wait while its store is out of reach.
pub const WAIT_GOES_ON: &str = "; the wait goes on";

/// What a request without a command or a hold has not brought about: the ends of its messages.
#[derive(Clone, Copy, Debug)]
pub struct Undone {
    /// Behind a busy line.
    pub busy: &'static str,
    /// Behind a loss.
    pub lost: &'static str,
}

impl Undone {
    /// For a request with a command, which was not started.
    pub const COMMAND: Self = Self { busy: NOT_STARTED, lost: NOT_STARTED };
    /// For `acquire`, which runs no command.
    pub const LOCK: Self = Self { busy: "; nothing was acquired", lost: "; nothing was printed" };
}

/// What to do where the variables that name the rlock around a request, and what it holds, have not
/// reached the request.
const UNNAMED: &str = "this process runs below that command without the variables of its rlock: pass them on, as by sudo \
     --preserve-env=RLOCK_SESSION,RLOCK_ANCESTORS,RLOCK_RESOURCE,RLOCK_HELD";

/// What to do where the store does not accept the session above a request.
const OTHER_USER: &str = "that rlock runs around this process for another user, so it is no ancestor: use one user for \
     both, or root for one";

/// Describes a deadlock in one line.
pub fn cycle(reading: &Reading, deadlock: &Deadlock) -> String {
    // A holder's own link has no claims: the request below it waits.
    let next = deadlock.links.iter().cycle().skip(1);
    let blocks = deadlock.links.iter().zip(next).filter_map(|(link, next)| Some((link.blocked.as_ref()?, next)));
    let mut blocks: Vec<_> = blocks.collect();
    // The line begins with what the ancestor of this request holds.
    let first = 1.min(blocks.len());
    blocks.rotate_right(first);
    let waits_for = blocks.iter().cycle().skip(1).map(|((claim, _), _)| &claim.claim);
    let lines = blocks.iter().zip(waits_for).map(|(((_, blocker), next), wanted)| {
        let Claim { resource, span, mode, .. } = &blocker.claim;
        let (what, wanted) = (part(resource.as_str(), span), part(wanted.resource.as_str(), &wanted.span));
        let who = |who: fn(&Process) -> String| reading.get(&next.session).map(|session| who(&session.process));
        if is_kept(reading, next.session) {
            let who = who(without_pid).unwrap_or_default();
            return format!("{what} is kept for {mode} by {who}, and a request below waits for {wanted}");
        }
        let doing = if blocker.rank.is_held() { "held for" } else { "waited for in mode" };
        format!("{what} is {doing} {mode} by {}, which waits for {wanted}", who(process).unwrap_or_default())
    });
    let lines: Vec<_> = lines.collect();
    format!("deadlock: {}", lines.join("; "))
}

/// What blocks `claims`: the first holder and the first waiter that are in the way, and the number
/// of all holders in the way. `related` are the sessions that cannot be in the way.
struct Blocked<'o> {
    holder: Option<(&'o Obstruction, &'o HolderListing)>,
    waiter: Option<(&'o Obstruction, &'o WaiterListing)>,
    holders: usize,
}

impl<'o> Blocked<'o> {
    fn find(claims: &[Claim], related: &[SessionId], obstructions: &'o [Obstruction]) -> Self {
        let stranger = |session: &SessionId| !related.contains(session);
        let listed: HashMap<_, _> =
            obstructions.iter().map(|obstruction| (&obstruction.listing.name, obstruction)).collect();
        let mut holders = HashSet::new();
        let (mut holder, mut waiter) = (None, None);
        for claim in claims {
            let Some(obstruction) = listed.get(&claim.resource) else { continue };
            let listing = &obstruction.listing;
            // A slot below others is one of theirs, so other sessions below them are in its way.
            let slots = |it: &&HolderListing| (claim.mode, it.mode) == (Mode::Slot, Mode::Slot);
            let above = listing.holders.iter().filter(|it| slots(it) && !stranger(&it.session));
            let above: Vec<_> = above.map(|it| it.session).collect();
            let may_block = |session: &SessionId, mode: Mode, span: &Span, ancestors: &[SessionId]| {
                let is_apart = mode == Mode::Slot && above.iter().any(|id| !ancestors.contains(id));
                stranger(session) && may_block(claim, mode, span) && !is_apart
            };
            for it in listing.holders.iter().filter(|it| may_block(&it.session, it.mode, &it.span, &it.ancestors)) {
                holders.insert(it.session);
                holder.get_or_insert((*obstruction, it));
            }
            // Only those ahead of the request are in its way.
            let own = related.last();
            let is_granted = listing.holders.iter().any(|it| Some(&it.session) == own);
            let mut waiters = listing.waiters.iter().take_while(|it| !is_granted && Some(&it.session) != own);
            if let Some(it) = waiters.find(|it| may_block(&it.session, it.mode, &it.span, &it.ancestors)) {
                waiter.get_or_insert((*obstruction, it));
            }
        }
        Self { holder, waiter, holders: holders.len() }
    }
}

/// On the embedded store, an ancestor of another user counts as a stranger. If nobody else is in
/// the way, these are the only sessions that are not.
fn without_ancestors(related: &[SessionId]) -> Option<&[SessionId]> {
    related.split_last().filter(|(_, above)| !above.is_empty()).map(|(own, _)| std::slice::from_ref(own))
}

fn first_in_the_way(claims: &[Claim], related: &[SessionId], obstructions: &[Obstruction]) -> Option<SessionId> {
    let found = Blocked::find(claims, related, obstructions);
    let first = found.holder.map(|(_, it)| it.session).or(found.waiter.map(|(_, it)| it.session));
    first.or_else(|| first_in_the_way(claims, without_ancestors(related)?, obstructions))
}

/// What blocks a request: `what` `is` or `was` in a `state`.
struct Hindrance {
    /// What to do, with a semicolon: first, since a narrow line loses its end.
    cure: String,
    what: String,
    verb: &'static str,
    state: String,
    /// How many wait.
    count: String,
}

impl Hindrance {
    /// The same without the count, if the place in the queue tells it.
    fn without_count(mut self, has_place: bool) -> Self {
        if has_place {
            self.count.clear();
        }
        self
    }

    /// The text of a line that has named the lock.
    fn beside_names(&self) -> String {
        format!("{}{}{}", self.cure, self.state, self.count)
    }
}

impl Display for Hindrance {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} {} {}{}", self.cure, self.what, self.verb, self.state, self.count)
    }
}

/// Describes in one line what blocks `claims`: the held part, its holder, the time since then, and
/// the numbers of other holders and of waiters. `related` are the sessions that cannot be in the
/// way.
fn in_the_way(messages: &Messages, related: &[SessionId], obstructions: &[Obstruction]) -> Hindrance {
    let Messages { claims, is_stopped, now, .. } = messages;
    let line = |obstruction: &Obstruction, what: String, claim: String, who: String, since: StoreTime, rest: &str| {
        let age = now().as_micros().saturating_sub(since.as_micros()) / 1_000_000;
        let age = if age == 0 { String::new() } else { format!(" ({})", whole_seconds(Duration::from_secs(age))) };
        let state = format!("{claim} by {who}, since {}{age}{rest}", time(since));
        let count = format!("; {}", waiting(obstruction, related));
        Hindrance { cure: String::new(), what, verb: "is", state, count }
    };
    let part = |of: &Obstruction, span: &Span| part(of.listing.name.as_str(), span);
    let stopped = |process| if is_stopped(process) { ", its process is stopped" } else { "" };
    let found = Blocked::find(claims, related, obstructions);
    if let Some((obstruction, it)) = found.holder {
        let others = others(found.holders - 1);
        return match it.kept {
            true => {
                let until = kept_until(it).map_or("without an end".to_owned(), |end| format!("until {}", time(end)));
                let claim = format!("kept {until} for {}", it.mode);
                line(obstruction, part(obstruction, &it.span), claim, without_pid(&it.process), it.since, &others)
            }
            false => {
                let (what, rest) = (part(obstruction, &it.span), stopped(&it.process).to_owned() + &others);
                let (what, claim) = match it.mode {
                    Mode::Slot => (format!("{} of {what}", holding(it)), "held".to_owned()),
                    mode => (what, format!("held for {mode}")),
                };
                line(obstruction, what, claim, process(&it.process), it.since, &rest)
            }
        };
    }
    if let Some((obstruction, it)) = found.waiter {
        let (claim, rest) = (format!("waited for in mode {}", it.mode), stopped(&it.process));
        return line(obstruction, part(obstruction, &it.span), claim, process(&it.process), it.since, rest);
    }
    if let Some(own) = without_ancestors(related) {
        return in_the_way(messages, own, obstructions);
    }
    let names: Vec<_> = named(claims).iter().map(|name| format!("'{name}'")).collect();
    let verb = if names.len() == 1 { "was" } else { "were" };
    let (what, state) = (names.join(", "), "held a moment ago".to_owned());
    Hindrance { cure: String::new(), what, verb, state, count: String::new() }
}

/// Claims in the words of the busy line.
fn held_all(claims: &[Claim]) -> String {
    let claims: Vec<_> = request::counted(claims).collect();
    let shown = claims.iter().take(NAMES_MAX);
    let shown = shown.map(|(it, count)| held(&it.resource, &it.span, it.mode, it.slots, *count));
    let others = (claims.len() > NAMES_MAX).then(|| format!("{} others", claims.len() - NAMES_MAX));
    shown.chain(others).collect::<Vec<_>>().join(", ")
}

/// `claims` are those of the resource before those that contain `span` shrink to it.
pub fn shrinks(claims: &[Claim], span: &Span) -> String {
    let shrunk: Vec<_> = claims.iter().filter(|claim| claim.shrinks_to(span)).cloned().collect();
    format!("shrinks {} to {span}", held_all(&shrunk))
}

/// `claims` are those of a kept hold that lasts for another `length`.
pub fn renews(claims: &[Claim], length: Duration) -> String {
    let end =
        if length < EVER { format!("for at least {}", words::duration(length)) } else { "without an end".to_owned() };
    format!("renews {} {end}", held_all(claims))
}

/// `claims` are those of the resource before the downgrade to `mode`.
pub fn downgrades(claims: &[Claim], mode: Mode) -> String {
    let lowered: Vec<_> = claims.iter().filter(|claim| claim.mode.lowers_to(mode)).cloned().collect();
    format!("downgrades {} to {mode}", held_all(&lowered))
}

/// A claim in the words of the busy line: `[1.2,1.8] of 'tree' for write`, or
/// `'gpu' for 2 slots of 5`.
pub fn held(resource: &Resource, span: &Span, mode: Mode, slots: Option<u32>, count: usize) -> String {
    if mode == Mode::Slot && count == 1 {
        return format!("a slot of {}", part(resource.as_str(), span));
    }
    let what = if count == 1 { mode.to_string() } else { self::mode(mode, slots, count) };
    format!("{} for {what}", part(resource.as_str(), span))
}

/// What a holder has: `write`, `slot 1 of 3`, `slots 0,2 of 4`.
pub fn holding(holder: &HolderListing) -> String {
    held_slots(&holder.numbers, holder.slots).unwrap_or_else(|| mode(holder.mode, holder.slots, holder.count))
}

/// The numbers of held slots and their resource's number of slots; `None` without slots.
pub fn held_slots(numbers: &[u32], of: Option<u32>) -> Option<String> {
    let slots = if numbers.len() == 1 { "slot" } else { "slots" };
    let of = of.filter(|_| !numbers.is_empty())?;
    Some(format!("{slots} {} of {of}", numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")))
}

/// A mode, and for slots how many of how many: `write`, `slot of 5`, `2 slots of 5`.
pub fn mode(mode: Mode, slots: Option<u32>, count: usize) -> String {
    match (slots, count) {
        (None, _) => mode.to_string(),
        (Some(slots), 1) => format!("{mode} of {slots}"),
        (Some(slots), _) => format!("{count} {mode}s of {slots}"),
    }
}

/// Whether a session of a reading holds its claims without a process.
fn is_kept(reading: &Reading, session: SessionId) -> bool {
    reading.get(&session).is_some_and(Session::is_kept)
}

/// The claims of some requests as options of `rlock exec`, for a shell. A claim that another one
/// includes is left out, and the slots that one request has of a resource are one option.
fn as_options(requests: &[Vec<&Claim>]) -> Vec<String> {
    let includes = |one: &Claim, other: &Claim| {
        let is_at_once = other.mode.below(one.mode) == Nesting::AtOnce;
        one.resource == other.resource && one.span.covers(&other.span) && is_at_once
    };
    let mut found: Vec<&Claim> = Vec::new();
    for claim in requests.iter().flatten() {
        if !found.iter().any(|known| includes(known, claim)) {
            found.retain(|known| !includes(claim, known));
            found.push(claim);
        }
    }
    let of = |claim: &Claim, request: &Vec<&Claim>| request.iter().filter(|other| **other == claim).count();
    let most = |claim: &Claim| requests.iter().map(|request| of(claim, request)).max().unwrap_or_default();
    found.into_iter().map(|claim| as_option(claim, most(claim))).collect()
}

/// A claim as an option of `rlock exec`, for a shell. So many slots are asked for.
fn as_option(Claim { resource, mode, span, slots }: &Claim, count: usize) -> String {
    let quoted = |text: &str| shlex::try_quote(text).map_or_else(|_| text.to_owned(), Into::into);
    // A value that begins with a hyphen would be an option of its own.
    let separator = if resource.as_str().starts_with('-') { '=' } else { ' ' };
    let name = format!("{separator}{}", quoted(resource.as_str()));
    match (slots, span.as_path()) {
        (Some(slots), _) if count > 1 => format!("--slot{name}={slots}:{count}"),
        (Some(slots), _) => format!("--slot{name}={slots}"),
        (None, Some(path)) if *mode == Mode::Read => format!("--path-read {}", quoted(path)),
        (None, Some(path)) => format!("--path {}", quoted(path)),
        (None, None) if span.is_whole() => format!("--{mode}{name}"),
        (None, None) => format!("--range-{mode}{name} {}", quoted(&span.to_string())),
    }
}

/// The number of other holders. A server lists only some of many holders, so the exact number ends
/// where every store knows it.
fn others(count: usize) -> String {
    match count {
        0 => String::new(),
        1..OTHERS_MAX => format!(", and {count} more"),
        _ => format!(", and {OTHERS_MAX} or more others"),
    }
}

/// A resource or a part of it: `'tree'`, `[1,2) of 'tree'`, `path '/srv/app'`.
pub fn part(name: &str, span: &Span) -> String {
    match span.as_path() {
        Some(path) => format!("path '{path}'"),
        None if span.is_whole() => format!("'{name}'"),
        None => format!("{span} of '{name}'"),
    }
}

/// The words that name a resource, or a path, to a subcommand.
pub fn words(resource: &Resource, span: &Span) -> String {
    match span.as_path() {
        Some(path) => format!("--path {}", shell_quoted(path)),
        None => shell_quoted(resource.as_str()),
    }
}

fn waiting(obstruction: &Obstruction, related: &[SessionId]) -> String {
    let listed: HashSet<_> = obstruction.listing.waiters.iter().map(|waiter| waiter.session).collect();
    let own = listed.iter().filter(|session| related.contains(session)).count();
    match obstruction.waiting.saturating_sub(own as u64) {
        0 => "nobody waits".to_owned(),
        1 => "1 waits".to_owned(),
        n => format!("{n} wait"),
    }
}

/// One line about a process: `owner (reason), user@host, pid 7, 'the command'`.
pub fn process(process: &Process) -> String {
    format!("{}, pid {}, '{}'", who_and_why(process), process.pid, shortened(&process.command.join(" ")))
}

/// The same about the process of a kept hold. That process is gone, so its number would mislead.
fn without_pid(process: &Process) -> String {
    format!("{}, '{}'", who_and_why(process), shortened(&process.command.join(" ")))
}

/// When a kept hold ends; `None` for any other hold.
pub fn kept_until(holder: &HolderListing) -> Option<StoreTime> {
    holder.expiry.filter(|_| holder.kept)
}

/// The owner of a process, if it is known, and its user: `owner, user@host`.
pub fn who(process: &Process) -> String {
    let owner = process.owner.as_deref().map(|owner| format!("{}, ", shortened(owner))).unwrap_or_default();
    format!("{owner}{}@{}", process.user, process.host)
}

/// The same with the reason, if it is known: `owner (reason), user@host`, or `user@host (reason)`.
pub(crate) fn who_and_why(process: &Process) -> String {
    let reason = process.reason.as_deref().map(|reason| format!(" ({})", shortened(reason))).unwrap_or_default();
    match &process.owner {
        Some(owner) => format!("{}{reason}, {}@{}", shortened(owner), process.user, process.host),
        None => format!("{}{reason}", who(process)),
    }
}

/// An instant of the store's clock in RFC 3339, UTC, to the millisecond. An instant that RFC 3339
/// cannot express is shown as the last one that it can: a server may send any number.
pub fn time(instant: StoreTime) -> String {
    let written = UNIX_EPOCH + Duration::from_micros(instant.as_micros().min(YEAR_10000 - 1));
    humantime::format_rfc3339_millis(written).to_string()
}

/// The first instant that RFC 3339 cannot express, in microseconds since the Unix epoch.
const YEAR_10000: u64 = 253_402_300_800_000_000;

/// A length of time without its milliseconds, in the units that the options accept.
pub(super) fn whole_seconds(length: Duration) -> String {
    words::duration(Duration::from_secs(length.as_secs()))
}

/// The same for a length of time that is compared with another one: up to two minutes in seconds.
pub fn in_seconds(length: Duration) -> String {
    match length.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        _ => whole_seconds(length),
    }
}

/// A length of time in its two largest units: `1h 3m`, `5s`, `0s`.
pub fn duration(length: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(length.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::{holder, resource, waiter};

    #[test]
    fn advice_names_no_claim_twice_and_no_option_that_a_shell_or_rlock_misreads() {
        let span = |text: &str| if text.is_empty() { Span::Whole } else { Span::parse(text).unwrap() };
        let claim = |resource: &str, mode, part| {
            let resource = Resource::new(resource).unwrap();
            Claim { resource, mode, span: span(part), slots: None }
        };
        let slot = Claim { slots: Some(4), ..claim("gpu", Mode::Slot, "") };
        let outer = [slot.clone(), slot.clone(), slot.clone(), claim("a", Mode::Prewrite, "")];
        let inner =
            [claim("a", Mode::Write, ""), claim("a", Mode::Read, "[0,1]"), claim("-x y", Mode::Write, ""), slot];
        let parts = [claim("b", Mode::Prewrite, "[0,9]"), claim("b", Mode::Write, "[1,2]")];
        let options = as_options(&[&outer[..], &inner, &parts].map(|claims| claims.iter().collect()));
        let expected = ["--slot gpu=4:3", "--write a", "--write='-x y'", "--range-prewrite b '[0,9]'"];
        assert_eq!(options, [&expected[..], &["--range-write b '[1,2]'"]].concat());
    }

    #[test]
    fn other_holders_are_counted_up_to_the_limit_of_a_servers_list() {
        let shown = [0, 1, 9, 10, 300].map(others);
        assert_eq!(shown, ["", ", and 1 more", ", and 9 more", ", and 10 or more others", ", and 10 or more others"]);
    }

    /// The messages about a request for these resources.
    fn messages(names: &[&str]) -> Messages {
        let claim = |name: &&str| {
            let resource = Resource::new(name).unwrap();
            Claim { resource, mode: Mode::Write, span: Span::Whole, slots: None }
        };
        Messages {
            claims: names.iter().map(claim).collect(),
            related: vec![SessionId([7; 16])],
            has_leases: false,
            is_stopped: |_| false,
            is_above: |_, _| false,
            owner_above: |_| None,
            is_beside: |_| false,
            runs: None,
            own: Process::default(),
            agent: None,
            run: None,
            now: StoreTime::default,
        }
    }

    #[test]
    fn last_lines_tell_times_in_whole_seconds() {
        let millis = Duration::from_millis;
        let tests = messages(&["tests"]);
        let line = tests.ran("exit 101", millis(12_345), Some(millis(100_999)));
        assert_eq!(line, "ran: exit 101 after 12s; waited 1m40s for 'tests'");
        assert_eq!(tests.ran("ended by KILL", millis(999), None), "ran: ended by KILL after 0s");
        let line = left("TERM", Some(millis(118_500)), Some("2 of 3"));
        assert_eq!(line, "ended by TERM after 1m58s in the queue, place 2 of 3");
        assert_eq!(left("INT", None, None), "ended by INT");
    }

    #[test]
    fn line_of_progress_tells_names_time_and_limit_before_what_is_in_the_way() {
        let (waited, limit) = (Duration::from_secs(30), Some(Duration::from_secs(110)));
        let one = messages(&["tests"]).progress(&[], waited, limit);
        assert_eq!(one, "waiting for 'tests', 30s of 110s: held a moment ago");
        let two = messages(&["a", "b"]).progress(&[], waited, None);
        assert_eq!(two, "waiting for 'a', 'b', 30s: held a moment ago");
    }

    /// A look may come while the grant is on its way.
    #[test]
    fn waiters_behind_a_request_are_not_in_its_way() {
        let messages = messages(&["a"]);
        let obstruction = |holders: &[u8], waiters: &[u8]| {
            let waiters = waiters.iter().zip(1..).map(|(number, position)| waiter(*number, position));
            let holders = holders.iter().map(|number| holder(*number));
            Obstruction::from(resource("a", holders.collect(), waiters.collect()))
        };
        let first = |holders, waiters| messages.first_in_the_way(&[obstruction(holders, waiters)]);
        assert_eq!(first(&[1], &[2, 7, 3]), Some(SessionId([1; 16])));
        assert_eq!(first(&[], &[2, 7, 3]), Some(SessionId([2; 16])));
        assert_eq!(first(&[], &[7, 3]), None);
        assert_eq!(first(&[7], &[3]), None);
        assert_eq!(first(&[], &[3]), Some(SessionId([3; 16])), "the request did not wait");
    }

    #[test]
    fn time_and_limit_of_a_wait_have_the_same_unit_up_to_two_minutes() {
        let shown = [1_500, 90_000, 110_000, 119_999, 120_000, 330_000];
        let shown = shown.map(|millis| in_seconds(Duration::from_millis(millis)));
        assert_eq!(shown, ["1s", "90s", "110s", "119s", "2m", "5m30s"]);
    }

    #[test]
    fn every_instant_can_be_formatted() {
        assert_eq!(time(StoreTime::default()), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(StoreTime::from_micros(YEAR_10000 - 1)), "9999-12-31T23:59:59.999Z");
        assert_eq!(time(StoreTime::from_micros(u64::MAX)), time(StoreTime::from_micros(YEAR_10000 - 1)));
        assert!(!duration(Duration::MAX).is_empty());
    }
}
