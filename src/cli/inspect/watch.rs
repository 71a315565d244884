//! `rlock inspect --watch`: shows each change of the holders and waiters.
//!
//! On a terminal the listing is drawn anew. Elsewhere, and with `--json`, each change is a line.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use super::{Form, Inspect, listing, sources};
use crate::cli::look::look;
use crate::environment::{after_all_but, say};
use rlock_show::Look;
use rlock_show::changes::{Request, Seen, changes};
use rlock_show::columns::cut;
use rlock_show::failure::Failure;
use rlock_show::json::change_as_json;
use rlock_store::{self as store, Inspection, Notices, Store};
use rlock_sys::alarm::Alarm;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::exit;
use rlock_sys::signals::Receiver;
use rlock_words::{json, one_line};

/// The number of entries of a resource's history to read: more than may come between two looks.
const ENTRIES: u32 = 100;

/// How often the ages on a terminal are brought up to date.
const TICK: Duration = Duration::from_secs(1);

/// Shows changes until the user has seen enough. Returns the exit code.
pub(super) fn run(inspect: &Inspect, store: Box<dyn Store>, every: Duration, look: Look) -> anyhow::Result<u8> {
    let mut watch = Watch { inspect, store, every, notices: None, alarm: Alarm::default(), due: None };
    let first = watch.look().map_err(Failure::from)?;
    after_all_but(&watch.store.take_unusable());
    if look.width.is_some() && inspect.form() != Form::Json { draw(watch, first) } else { tell(watch, first) }
}

/// A store under watch.
struct Watch<'i> {
    inspect: &'i Inspect,
    store: Box<dyn Store>,
    every: Duration,
    notices: Option<Notices>,
    alarm: Alarm,
    /// When to look again even if no notice comes.
    due: Option<Boottime>,
}

impl Watch<'_> {
    /// Looks at the store.
    fn look(&mut self) -> Result<Seen, store::Error> {
        let now = Boottime::now();
        self.notices = None;
        self.due = Some(now + self.every);
        // Only the first look tells what it had to skip.
        self.store.take_unusable();
        let names = &self.inspect.resources;
        let (mut inspection, notices) = self.store.inspect_and_watch(names)?;
        self.inspect.narrow(&mut inspection);
        // The history comes after the listing: see `Seen`.
        let pasts = self.store.history(names, ENTRIES)?;
        let is_told = notices.as_ref().is_some_and(|notices| notices.are_complete);
        self.notices = notices;
        let holders = inspection.resources.iter().flat_map(|listing| &listing.holders);
        // A server goes on listing a kept hold that is over until somebody uses its resource.
        let ends = holders.filter(|holder| holder.kept).filter_map(|holder| holder.expiry);
        let ends = ends.filter(|end| *end > inspection.now).min();
        let ends = ends.map(|end| now + (end - inspection.now) + Duration::from_millis(1));
        let asks = (!is_told).then(|| now + self.every);
        self.due = [ends, asks].into_iter().flatten().min();
        Ok(Seen { inspection, pasts })
    }

    /// Waits for a change, for one of the `others` or the `signals`, or at most `limit`. Returns
    /// whether it is time to look, and what became ready of the others.
    fn wait(
        &self,
        signals: Option<&mut Receiver>,
        others: &[(BorrowedFd<'_>, PollFlags)],
        limit: Option<Duration>,
    ) -> io::Result<(bool, Vec<bool>)> {
        let descriptors = self.notices.iter().flat_map(|notices| &notices.descriptors);
        let notices = descriptors.map(|descriptor| (descriptor.as_fd(), PollFlags::IN));
        let all = others.iter().copied().chain(notices);
        let mut polled: Vec<_> = all.map(|(descriptor, flags)| PollFd::from_borrowed_fd(descriptor, flags)).collect();
        let limit = limit.map(|limit| Boottime::now() + limit);
        let until = [self.due, limit].into_iter().flatten().min();
        match signals {
            Some(signals) => signals.wait(&self.alarm, &mut polled, until)?,
            None => self.alarm.wait(&mut polled, until)?,
        }
        let ready: Vec<_> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        let (others, notices) = ready.split_at(others.len());
        let is_due = self.due.is_some_and(|due| due <= Boottime::now());
        Ok((is_due || notices.contains(&true), others.to_vec()))
    }
}

/// Writes a line for each change until nobody reads them any more.
fn tell(mut watch: Watch<'_>, mut last: Seen) -> anyhow::Result<u8> {
    let stdout = io::stdout();
    let (mut trouble, mut told) = (None, Vec::new());
    loop {
        // A pipe without a reader reports an error.
        let (is_due, ready) = watch.wait(None, &[(stdout.as_fd(), PollFlags::empty())], None).context("can't wait")?;
        if ready[0] {
            return Ok(0);
        }
        if !is_due {
            continue;
        }
        let seen = match watch.look() {
            Ok(seen) => seen,
            Err(error) => {
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    say(&text);
                }
                trouble = Some(text);
                continue;
            }
        };
        trouble = None;
        let mut text = String::new();
        for change in changes(&last, &seen, &mut told) {
            let (paths, name) = (&watch.inspect.paths, &change.resource);
            let is_meant = |request: &Request| request.claims.iter().any(|(claim, _)| paths.include(name, &claim.span));
            if !change.request.as_ref().map_or(!paths.narrow(name), is_meant) {
                continue;
            }
            text += &match watch.inspect.form() {
                Form::Json => json(&change_as_json(&change)),
                _ => change.line(),
            };
            text.push('\n');
        }
        match stdout.lock().write_all(text.as_bytes()).and_then(|()| stdout.lock().flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
            written => written.context("can't write to standard output")?,
        }
        last = seen;
    }
}

/// Draws the listing until the user ends it.
fn draw(mut watch: Watch<'_>, first: Seen) -> anyhow::Result<u8> {
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCONT, SIGWINCH];
    let mut signals = Receiver::new(signals).context("can't receive signals")?;
    let stdin = io::stdin();
    let mut screen = Screen::enter().context("can't use the terminal")?;
    let mut shown = Shown { inspection: first.inspection, at: Boottime::now(), trouble: None };
    loop {
        screen.draw(&shown.lines(&watch)).context("can't write to the terminal")?;
        let keys = [(stdin.as_fd(), PollFlags::IN)];
        let others = if screen.has_keys() { &keys[..] } else { &[] };
        let (is_due, ready) = watch.wait(Some(&mut signals), others, Some(TICK)).context("can't wait")?;
        while let Some(arrival) = signals.next_signal() {
            match arrival.signal {
                SIGWINCH => screen.forget(),
                // The shell may have changed the terminal while rlock was stopped.
                SIGCONT => screen.resume().context("can't use the terminal")?,
                signal => {
                    drop(screen);
                    return Ok(exit::SIGNAL_BASE + u8::try_from(signal).unwrap_or(0));
                }
            }
        }
        if ready.first() == Some(&true) {
            match screen.key() {
                Key::End => return Ok(0),
                Key::Stop => screen.stop().context("can't use the terminal")?,
                Key::Other => {}
            }
        }
        if is_due {
            match watch.look() {
                Ok(Seen { inspection, .. }) => shown = Shown { inspection, at: Boottime::now(), trouble: None },
                Err(error) => shown.trouble = Some(error.to_string()),
            }
        }
    }
}

/// The last listing.
struct Shown {
    inspection: Inspection,
    at: Boottime,
    /// Why the store did not answer since.
    trouble: Option<String>,
}

impl Shown {
    /// The lines of the screen.
    fn lines(&self, watch: &Watch<'_>) -> Vec<String> {
        let look = look(watch.inspect.look.color, watch.inspect.verbose);
        let now = self.inspection.now + (Boottime::now() - self.at);
        let mut inspection = Inspection { now, ..self.inspection.clone() };
        // What does not fit the screen is cut at its end.
        inspection.resources.sort_by_key(|listing| listing.waiters.is_empty());
        let holders = inspection.resources.iter().flat_map(|listing| &listing.holders);
        let held = holders.filter(|holder| !holder.is_over(now)).count();
        let waiting: usize = inspection.resources.iter().map(|listing| listing.waiters.len()).sum();
        let heading = format!("{}   {held} held, {waiting} waiting   q ends", seconds(now));
        let width = look.width.unwrap_or(usize::MAX);
        let trouble = self.trouble.iter().map(|text| {
            let alarm = look.palette.alarm;
            format!("{alarm}{}{alarm:#}", cut(&one_line(text), width, false))
        });
        let mut lines = vec![cut(&heading, width, false)];
        lines.extend(trouble);
        lines.extend(listing(watch.inspect.form(), &inspection, &look));
        let places = sources(watch.store.as_ref(), &[], &Look { palette: rlock_show::Palette::plain(), ..look });
        lines.extend(places.lines().map(|line| cut(line, width, false)));
        lines
    }
}

/// The time of day in whole seconds.
fn seconds(now: StoreTime) -> String {
    let text = rlock_show::messages::time(now);
    text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}

/// A key that the user has pressed.
enum Key {
    End,
    Stop,
    Other,
}

/// The screen of the terminal, which is restored on drop.
struct Screen {
    /// The settings of the terminal, if rlock reads keys from it.
    settings: Option<Termios>,
    shown: Vec<String>,
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let settings = if isatty(&stdin) { Some(tcgetattr(&stdin)?) } else { None };
        let mut screen = Self { settings, shown: Vec::new() };
        screen.resume()?;
        Ok(screen)
    }

    /// Whether the user's keys reach rlock.
    fn has_keys(&self) -> bool {
        self.settings.is_some()
    }

    /// Takes the screen, and lets each key reach rlock at once and unseen.
    fn resume(&mut self) -> io::Result<()> {
        if let Some(settings) = &self.settings {
            let mut raw = settings.clone();
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        }
        write(ENTER)?;
        self.forget();
        Ok(())
    }

    fn leave(&self) {
        // There is nobody left to tell if the terminal is gone.
        let _ = write(LEAVE);
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, settings);
        }
    }

    /// Stops rlock as Ctrl-Z does.
    fn stop(&mut self) -> io::Result<()> {
        self.leave();
        rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
        self.resume()
    }

    /// The key that was pressed. The end of the input counts as the end.
    fn key(&mut self) -> Key {
        let mut keys = [0; 32];
        let count = match rustix::io::read(io::stdin(), &mut keys) {
            Ok(0) => return Key::End,
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Err(_) => return Key::End,
        };
        // Ctrl-C, Ctrl-D, Ctrl-\, and Ctrl-Z.
        let ends = keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4 | 28));
        match keys[..count].contains(&26) {
            _ if ends => Key::End,
            true => Key::Stop,
            false => Key::Other,
        }
    }

    /// Draws everything anew at the next time.
    fn forget(&mut self) {
        self.shown.clear();
    }

    /// Draws the lines that fit the screen, unless it shows them already.
    fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        if self.shown == lines {
            return Ok(());
        }
        let rows = tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
        let rows = if rows == 0 { 24 } else { rows };
        let mut text = String::from("\x1b[H");
        let count = if lines.len() > rows { rows.saturating_sub(1) } else { lines.len() };
        for (index, line) in lines[..count].iter().enumerate() {
            text += if index == 0 { "" } else { "\r\n" };
            text += line;
            text += "\x1b[K";
        }
        if count < lines.len() {
            text += &format!("\r\n... {} more lines\x1b[K", lines.len() - count);
        }
        write(&(text + "\x1b[J"))?;
        self.shown = lines.to_vec();
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
