//! The table of holders and waiters.

use std::time::Duration;

use anstyle::Style;

use super::columns::{Cell, Column, lines};
use super::{Look, Palette};
use crate::messages;
use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
use rlock_model::records::Revocation;
use rlock_model::request::{Process, SessionId};
use rlock_model::span::Span;
use rlock_model::text::shortened;
use rlock_store::Elsewhere;
use rlock_sys::clock::StoreTime;
use rlock_words::shell_quoted;

const fn column(heading: &'static str, leaves: u8) -> Column {
    Column { heading, narrowest: None, keeps_end: false, leaves: Some(leaves) }
}

/// The columns up to the command, which comes last because it is long.
const COLUMNS: [Column; 11] = [
    // The end of a name often tells it from others.
    Column { heading: "RESOURCE", narrowest: Some(10), keeps_end: true, leaves: None },
    Column { heading: "STATE", narrowest: None, keeps_end: false, leaves: None },
    column("MODE", 4),
    Column { narrowest: Some(9), ..column("SPAN", 5) },
    Column { narrowest: Some(14), keeps_end: true, ..column("WHO", 1) },
    column("PID", 3),
    column("FOR", 0),
    column("LEASE", 6),
    column("SESSION", 7),
    Column { narrowest: Some(9), ..column("REASON", 8) },
    Column { narrowest: Some(7), ..column("COMMAND", 2) },
];
/// The index of the column that shows an age or an instant, and its heading for instants.
const AGE: (usize, &str) = (6, "SINCE");

/// The table of these resources. `is_stopped` tells whether a process is stopped.
pub fn table(
    listings: &[ResourceListing],
    now: StoreTime,
    look: &Look,
    is_stopped: &mut dyn FnMut(&Process) -> bool,
) -> Vec<String> {
    let mut columns = COLUMNS;
    if look.verbose {
        columns[AGE.0].heading = AGE.1;
    }
    let mut table = Table { now, look, is_stopped, rows: Vec::new() };
    listings.iter().for_each(|listing| table.add(listing));
    let mut text = lines(&columns, look.palette.heading, &table.rows, look.width.filter(|_| !look.wide));
    text.extend(listings.iter().flat_map(|listing| revocations(listing, now)));
    text
}

/// A line for each revoked hold of a resource, with the process that has revoked it.
fn revocations(listing: &ResourceListing, now: StoreTime) -> impl Iterator<Item = String> {
    listing.holders.iter().filter_map(move |holder| {
        let Revocation { at, by } = holder.revoked.as_ref().filter(|_| !holder.is_over(now))?;
        let (name, pid, ago) = (&listing.name, holder.process.pid, messages::duration(now - *at));
        let text = format!("'{name}' of pid {pid} was revoked {ago} ago by {}", messages::process(by));
        Some(super::columns::escaped(&text))
    })
}

/// Where a listing comes from, of which names nothing is known there, and where else on this
/// machine people lock.
pub fn places(store: &str, namespace: &str, unknown: &[&str], others: &Elsewhere) -> String {
    let unknown = match unknown {
        [] => String::new(),
        names => format!(", where nothing is known of '{}'", names.join("', '")),
    };
    let line = |lock: &str, places: &[String]| match places {
        [] => String::new(),
        places => format!("\npeople {lock} in {}", places.join(", ")),
    };
    let also = line("also lock", &others.used) + &line("may also lock", &others.unreadable);
    let lines = format!("in {store}, namespace '{namespace}'{unknown}{also}");
    lines.lines().map(super::columns::escaped).collect::<Vec<_>>().join("\n")
}

/// The words of a command as a shell would read them. A word with characters that a terminal obeys
/// or hides is quoted as `$'…'`, with escapes.
pub fn command(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let escaped = super::columns::escaped(word);
        if escaped == *word {
            return shell_quoted(word);
        }
        let mut text = String::from("$'");
        for c in word.chars() {
            match c {
                '\'' | '\\' => text.extend(['\\', c]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                _ if !rlock_model::text::is_control_or_format(c) => text.push(c),
                _ if c.is_ascii() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
                _ => text.push_str(&format!("\\U{:08x}", u32::from(c))),
            }
        }
        text + "'"
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The program that a command runs: of a string for the shell, the first word.
pub fn program(command: &[String]) -> &str {
    match command {
        [shell, option, string] if shell == "/bin/sh" && option == "-c" => string.split_whitespace().next(),
        _ => command.first().map(String::as_str),
    }
    .unwrap_or_default()
}

/// The state of a holder, and its style.
pub(super) fn holder_state(
    holder: &HolderListing,
    now: StoreTime,
    palette: &Palette,
    is_stopped: &mut dyn FnMut(&Process) -> bool,
) -> (String, Style) {
    let is_over = holder.is_over(now);
    // The process of a kept hold is gone, and another one may have its number.
    let is_stopped = !holder.kept && is_stopped(&holder.process);
    match (is_over, messages::kept_until(holder), is_stopped) {
        (true, _, _) => ("expired".to_owned(), palette.alarm),
        _ if holder.revoked.is_some() => {
            (format!("revoked{}", if is_stopped { ", stopped" } else { "" }), palette.alarm)
        }
        (_, Some(end), _) => (format!("kept until {}", short_time(end, now)), palette.holder),
        (_, None, _) if holder.kept => ("kept, no end".to_owned(), palette.holder),
        (_, _, true) => ("holds, stopped".to_owned(), palette.alarm),
        _ if holder.gate.is_some() => ("waits for room".to_owned(), palette.waiter),
        _ => ("holds".to_owned(), palette.holder),
    }
}

/// An instant in whole seconds, without its date if it comes within a day.
fn short_time(instant: StoreTime, now: StoreTime) -> String {
    let text = messages::time(instant);
    let text = text.split_once('.').map_or(text.as_str(), |(seconds, _)| seconds);
    let of_day = text.split_once('T').filter(|_| instant - now < DAY);
    format!("{}Z", of_day.map_or(text, |(_, of_day)| of_day))
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The state of a waiter, and its style.
pub(super) fn waiter_state(
    waiter: &WaiterListing,
    palette: &Palette,
    is_stopped: &mut dyn FnMut(&Process) -> bool,
) -> (String, Style) {
    let (stopped, style) =
        if is_stopped(&waiter.process) { (", stopped", palette.alarm) } else { ("", palette.waiter) };
    (format!("waits {}{stopped}", waiter.position), style)
}

struct Table<'a> {
    now: StoreTime,
    look: &'a Look,
    is_stopped: &'a mut dyn FnMut(&Process) -> bool,
    rows: Vec<Vec<Cell>>,
}

/// A claim, whether held or waiting.
struct Line<'a> {
    state: String,
    style: Style,
    mode: String,
    span: &'a Span,
    since: StoreTime,
    lease: Option<String>,
    pid: Option<u32>,
    session: SessionId,
    process: &'a Process,
}

impl Table<'_> {
    fn add(&mut self, listing: &ResourceListing) {
        let palette = self.look.palette;
        let (name, from) = (listing.name.as_str(), self.rows.len());
        for holder in &listing.holders {
            let line = self.holder(holder);
            self.push(name, line, from, !listing.waiters.is_empty());
        }
        for waiter in &listing.waiters {
            let line = self.waiter(waiter);
            self.push(name, line, from, true);
        }
        if from == self.rows.len() {
            self.rows.push(vec![Cell::new(name, palette.dim), Cell::new("free", palette.dim)]);
        }
    }

    fn holder<'l>(&mut self, holder: &'l HolderListing) -> Line<'l> {
        let (state, style) = holder_state(holder, self.now, &self.look.palette, self.is_stopped);
        Line {
            state,
            style,
            mode: messages::holding(holder),
            span: &holder.span,
            since: holder.since,
            // A kept hold has neither a lease nor a process.
            lease: holder.expiry.filter(|_| !holder.kept).map(|expiry| messages::duration(expiry - self.now)),
            pid: (!holder.kept).then_some(holder.process.pid),
            session: holder.session,
            process: &holder.process,
        }
    }

    fn waiter<'l>(&mut self, waiter: &'l WaiterListing) -> Line<'l> {
        let (state, style) = waiter_state(waiter, &self.look.palette, self.is_stopped);
        Line {
            state,
            style,
            mode: messages::mode(waiter.mode, waiter.slots, waiter.count),
            span: &waiter.span,
            since: waiter.since,
            lease: None,
            pid: Some(waiter.process.pid),
            session: waiter.session,
            process: &waiter.process,
        }
    }

    fn push(&mut self, name: &str, line: Line<'_>, from: usize, is_busy: bool) {
        let (plain, Look { verbose, palette, .. }) = (Style::new(), *self.look);
        let text = |text: &str| Cell::new(text, plain);
        let is_repeated = self.look.width.is_some() && self.rows.len() > from;
        let process = line.process;
        let age = if verbose { messages::time(line.since) } else { messages::duration(self.now - line.since) };
        let optional = |shown: Option<String>| shown.map_or_else(Cell::none, |shown| Cell::new(&shown, plain));
        self.rows.push(vec![
            match is_repeated {
                true => Cell::ditto(),
                false => Cell::new(name, if is_busy { palette.busy } else { plain }),
            },
            Cell::new(&line.state, line.style),
            text(&line.mode),
            optional((!line.span.is_whole()).then(|| line.span.to_string())),
            text(&messages::who(process)),
            optional(line.pid.map(|pid| pid.to_string())),
            text(&age),
            optional(line.lease),
            optional(verbose.then(|| line.session.to_string())),
            optional(process.reason.as_deref().map(shortened)),
            if process.command.is_empty() { Cell::none() } else { text(&command(&process.command)) },
        ]);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::iter::repeat_n;
    use std::time::Duration;

    use unicode_width::UnicodeWidthStr as _;

    use super::super::{Look, Palette};
    use super::{command, places, table};
    use rlock_model::index::Rank;
    use rlock_model::mode::Mode;
    use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
    use rlock_model::records::{ClaimRecord, Phase, Session};
    use rlock_model::request::{Claim, Job, Process, SessionId};
    use rlock_model::span::Span;
    use rlock_store::{Elsewhere, Inspection};
    use rlock_sys::clock::StoreTime;

    /// The instant of each listing of the tests.
    pub(crate) const NOW: StoreTime = StoreTime::from_micros(1_000_000_000_000_000);

    pub(crate) fn ago(seconds: u64) -> StoreTime {
        StoreTime::from_micros(NOW.as_micros() - seconds * 1_000_000)
    }

    pub(crate) fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    pub(crate) fn process(pid: u32, words: &str) -> Process {
        let command = words.split(' ').map(str::to_owned).collect();
        Process { host: "web1".to_owned(), pid, user: "ada".to_owned(), command, ..Process::default() }
    }

    pub(crate) fn holder(number: u8) -> HolderListing {
        HolderListing {
            session: session(number),
            mode: Mode::Write,
            span: Span::Whole,
            slots: None,
            count: 1,
            numbers: Vec::new(),
            token: u64::from(number),
            since: ago(192),
            expiry: None,
            kept: false,
            revoked: None,
            ancestors: Vec::new(),
            process: process(4000 + u32::from(number), "./deploy.sh --to web1"),
            gate: None,
        }
    }

    pub(crate) fn waiter(number: u8, position: u32) -> WaiterListing {
        WaiterListing {
            session: session(number),
            mode: Mode::Write,
            span: Span::Whole,
            slots: None,
            count: 1,
            since: ago(20),
            position,
            ancestors: Vec::new(),
            process: process(5000 + u32::from(number), "make"),
        }
    }

    pub(crate) fn resource(name: &str, holders: Vec<HolderListing>, waiters: Vec<WaiterListing>) -> ResourceListing {
        ResourceListing { name: rlock_model::resource::Resource::new(name).expect("a name"), holders, waiters }
    }

    /// The listings with their sessions, as a store tells of them.
    pub(crate) fn inspection(listings: &[ResourceListing]) -> Inspection {
        let mut sessions = BTreeMap::new();
        for listing in listings {
            let mut add =
                |it: (SessionId, &Vec<SessionId>, &Process), phase, asked, (claim, count): (Claim, usize), rank| {
                    let (id, ancestors, process) = it;
                    let new = || Session {
                        ancestors: ancestors.clone(),
                        claims: Vec::new(),
                        phase,
                        asked,
                        since: asked,
                        expiry: None,
                        terms: None,
                        job: Job::default(),
                        last: None,
                        process: process.clone(),
                        revoked: None,
                        later: Vec::new(),
                    };
                    let is_slot =
                        |holder: &HolderListing| holder.mode == Mode::Slot && ancestors.contains(&holder.session);
                    let shares = claim.mode == Mode::Slot && listing.holders.iter().any(is_slot);
                    let record = ClaimRecord { claim, rank, token: 0, shares, slot: None };
                    sessions.entry(id).or_insert_with(new).claims.extend(repeat_n(record, count));
                };
            let claim =
                |mode, span: &Span, slots| Claim { resource: listing.name.clone(), mode, span: span.clone(), slots };
            for it in &listing.holders {
                let phase = if it.kept { Phase::Kept } else { Phase::Held };
                let claim = claim(it.mode, &it.span, it.slots);
                add((it.session, &it.ancestors, &it.process), phase, it.since, (claim, it.count), Rank::HELD);
            }
            for it in &listing.waiters {
                let claim = claim(it.mode, &it.span, it.slots);
                let rank = Rank::waiting(it.position.into());
                add((it.session, &it.ancestors, &it.process), Phase::Waiting, it.since, (claim, it.count), rank);
            }
            for it in &listing.holders {
                let session = sessions.get_mut(&it.session).expect("it was added");
                (session.expiry, session.revoked) = (it.expiry, it.revoked.clone());
                let records = session.claims.iter_mut().filter(|record| record.claim.resource == listing.name);
                records.for_each(|record| record.token = it.token);
            }
        }
        Inspection { now: NOW, resources: listings.to_vec(), sessions }
    }

    fn look(width: Option<usize>) -> Look {
        Look { width, verbose: false, wide: false, palette: Palette::plain() }
    }

    fn shown(listings: &[ResourceListing], width: Option<usize>) -> Vec<String> {
        table(listings, NOW, &look(width), &mut |process| process.pid == 4009)
    }

    #[test]
    fn terminal_shows_each_name_once_and_a_pipe_in_each_row() {
        let listings =
            [resource("db", vec![holder(1)], vec![waiter(2, 1), waiter(3, 2)]), resource("j", vec![], vec![])];
        assert_eq!(
            shown(&listings, Some(80)),
            [
                "RESOURCE  STATE    MODE   WHO       PID   FOR     COMMAND",
                "db        holds    write  ada@web1  4001  3m 12s  ./deploy.sh --to web1",
                "          waits 1  write  ada@web1  5002  20s     make",
                "          waits 2  write  ada@web1  5003  20s     make",
                "j         free",
            ]
        );
        assert_eq!(
            shown(&listings, None)[1..],
            [
                "db        holds    write  ada@web1  4001  3m 12s  ./deploy.sh --to web1",
                "db        waits 1  write  ada@web1  5002  20s     make",
                "db        waits 2  write  ada@web1  5003  20s     make",
                "j         free",
            ]
        );
    }

    #[test]
    fn narrow_terminal_keeps_who_holds_since_when() {
        let listings = [resource("production/web/database", vec![holder(1)], vec![waiter(2, 1)])];
        assert_eq!(
            shown(&listings, Some(60)),
            [
                "RESOURCE    STATE    MODE   WHO       PID   FOR     COMMAND",
                "produ…base  holds    write  ada@web1  4001  3m 12s  ./deplo…",
                "            waits 1  write  ada@web1  5002  20s     make",
            ]
        );
    }

    #[test]
    fn expired_kept_and_stopped_sessions_are_marked() {
        let with = |number, expiry, kept| HolderListing { expiry, kept, ..holder(number) };
        let listings = [resource(
            "k",
            vec![
                with(1, Some(NOW + Duration::from_secs(25)), false),
                with(2, Some(NOW + Duration::from_secs(3725)), true),
                with(3, Some(ago(1)), false),
                with(9, None, false),
                with(5, None, true),
            ],
            vec![WaiterListing { process: process(4009, "true"), ..waiter(4, 1) }],
        )];
        let lines = shown(&listings, None);
        let states: Vec<_> = lines.iter().map(|line| line[10..30].trim_end().to_owned()).collect();
        let kept = "kept until 02:48:45Z";
        assert_eq!(states, ["STATE", "holds", kept, "expired", "holds, stopped", "kept, no end", "waits 1, stopped"]);
        assert!(lines[0].contains("LEASE") && lines[1].contains("  25s    "), "{lines:?}");
        assert!(lines[2].contains("  -     3m 12s  -      ./"), "neither process nor lease: {lines:?}");
        assert!(lines[3].contains("  0s     ") && lines[4].contains("  -  "), "{lines:?}");
    }

    #[test]
    fn end_of_a_kept_hold_has_a_date_if_it_is_not_within_a_day() {
        let until = |seconds| {
            let holder = HolderListing { expiry: Some(NOW + Duration::from_secs(seconds)), kept: true, ..holder(1) };
            shown(&[resource("k", vec![holder], vec![])], None)[1].clone()
        };
        assert!(until(86_399).contains("kept until 01:46:39Z  write"), "{}", until(86_399));
        assert!(until(86_400).contains("kept until 2001-09-10T01:46:40Z  write"), "{}", until(86_400));
    }

    #[test]
    fn long_reason_hides_neither_the_user_nor_the_name() {
        let mut holder = holder(1);
        holder.process.reason = Some("a reason ".repeat(9));
        let listings = [resource("production/db", vec![holder], vec![])];
        let lines = shown(&listings, Some(80));
        assert!(lines[1].starts_with("production/db  holds  write  ada@web1  4001  "), "{lines:?}");
        assert!(lines.iter().all(|line| line.width() <= 80), "{lines:?}");
        let wide = table(&listings, NOW, &Look { wide: true, ..look(Some(80)) }, &mut |_| false);
        assert_eq!(wide, shown(&listings, None));
    }

    #[test]
    fn verbose_table_shows_instants_and_sessions() {
        let listings = [resource("k", vec![holder(1)], vec![])];
        let lines = table(&listings, NOW, &Look { verbose: true, ..look(None) }, &mut |_| false);
        assert_eq!(
            lines,
            [
                "RESOURCE  STATE  MODE   WHO       PID   SINCE                     SESSION                           COMMAND",
                "k         holds  write  ada@web1  4001  2001-09-09T01:43:28.000Z  01010101010101010101010101010101  ./deploy.sh --to web1",
            ]
        );
    }

    #[test]
    fn span_slots_owner_and_reason_have_their_places() {
        let claim = HolderListing {
            mode: Mode::Slot,
            slots: Some(3),
            numbers: vec![1],
            process: Process {
                owner: Some("nightly\u{202e}".to_owned()),
                reason: Some("release 7".to_owned()),
                ..process(1, "true")
            },
            ..holder(1)
        };
        let interval = HolderListing { span: Span::parse("[1,2)").expect("a span"), ..holder(2) };
        let lines = shown(&[resource("k", vec![claim, interval], vec![])], None);
        assert!(lines[1].contains(r"slot 1 of 3  -      nightly\u{202e}, ada@web1  1 "), "{lines:?}");
        assert!(lines[0].contains("  REASON     COMMAND") && lines[1].contains("  release 7  true"), "{lines:?}");
        assert!(lines[2].contains("write        [1,2)  ada@web1"), "{lines:?}");
    }

    #[test]
    fn command_is_quoted_as_a_shell_needs_it() {
        let quoted = |words: &[&str]| command(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(quoted(&["sh", "-c", "echo hi; cat"]), "sh -c 'echo hi; cat'");
        assert_eq!(quoted(&["a", "", "it's", "$x", "~"]), r"a '' 'it'\''s' '$x' '~'");
        assert_eq!(quoted(&["printf", "a\nb'\\\t\u{7}\u{202e}"]), r"printf $'a\nb\'\\\t\x07\U0000202e'");
    }

    #[test]
    fn places_name_the_store_and_other_directories() {
        let mut others = Elsewhere::default();
        assert_eq!(places("redis://h:1", "rlock", &[], &others), "in redis://h:1, namespace 'rlock'");
        let text = "in redis://h:1, namespace 'rlock', where nothing is known of 'a', 'b'";
        assert_eq!(places("redis://h:1", "rlock", &["a", "b"], &others), text);
        others.used = vec!["/run/rlock".to_owned(), "/run/lock/rlock-7 (ada)".to_owned()];
        let text = "in file:///a, namespace 'n'\npeople also lock in /run/rlock, /run/lock/rlock-7 (ada)";
        assert_eq!(places("file:///a", "n", &[], &others), text);
        others.unreadable = vec!["/run/lock/rlock-8 (bob)".to_owned()];
        let text = format!("{text}\npeople may also lock in /run/lock/rlock-8 (bob)");
        assert_eq!(places("file:///a", "n", &[], &others), text);
    }

    /// 0, 1 and 30 resources, 300 waiters, and long and odd names, at 60, 80 and 200 columns.
    #[test]
    fn table_fits_any_terminal_whatever_it_shows() {
        let many = |name: &str| {
            let waiters = (1..=300).map(|position| waiter(u8::try_from(position % 256).expect("a byte"), position));
            resource(name, vec![holder(1)], waiters.collect())
        };
        let names = [
            "a",
            "日本語のとても長い名前日本語のとても長い名前",
            &"long/".repeat(100),
            "it's \"odd\" $(x)",
            "e\u{301}\u{fe0f}❤\u{fe0f}",
        ];
        let thirty = (0..30).map(|number| {
            let mut holder = holder(number);
            holder.process.command = vec!["x y".repeat(usize::from(number)), "\u{1b}[2J".to_owned()];
            holder.process.host = "host.example.org".repeat(usize::from(number % 3 + 1));
            resource(names[usize::from(number) % names.len()], vec![holder], vec![waiter(number, 1)])
        });
        for listings in [vec![], vec![many("k")], thirty.collect(), names.map(many).to_vec()] {
            let rows: usize = listings.iter().map(|listing| listing.holders.len() + listing.waiters.len()).sum();
            for width in [20, 60, 80, 200] {
                let lines = shown(&listings, Some(width));
                assert_eq!(lines.len(), rows + 1);
                let wide = lines.iter().find(|line| line.width() > width || line.contains(char::is_control));
                assert_eq!(wide, None, "at {width}");
                assert!(lines[0].starts_with("RESOURCE"));
                let states = lines[1..].iter().filter(|line| line.contains("holds") || line.contains("waits"));
                assert!(width < 60 || states.count() == rows, "the state stays at {width}");
            }
        }
    }
}
