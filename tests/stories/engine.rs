//! Runs a story: reads it, executes its steps on an engine, and compares each reply and each table
//! with the expected text.
//!
//! An [`Engine`] is an implementation of the lock table. This module does not know the lock model.

pub(crate) mod library;
pub(crate) mod model;
pub(crate) mod program;
pub(crate) mod served;

mod actor;
mod dump;
mod listing;
mod script;
mod step;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dump::{Row, Tokens};
use script::{Scene, Scripted};
use step::Step;

/// The first and the longest pause between two observations of other processes.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// A lock table that can execute the steps of a scene.
trait Engine {
    /// The time limit for the full effect of a step.
    const TIMEOUT: Duration;

    /// Executes a step, or starts it.
    fn execute(&mut self, step: &Step);

    /// The current reply to the last step, and all claims that are held or wait.
    fn observe(&mut self) -> (String, Vec<Row>);

    /// Lets all sessions release or cancel. The caller repeats the call until it returns `Ok`; an
    /// error says what is left.
    fn end_all(&mut self) -> Result<(), String>;

    /// Further text for the message of a failed step.
    fn diagnostics(&self) -> String {
        String::new()
    }
}

/// Plays a scene on an empty engine.
///
/// # Panics
/// If the reply or the table differs from the scene when the time limit is over.
fn play<E: Engine>(engine: &mut E, story: &Path, scene: &Scene) {
    let mut tokens = Tokens::default();
    for scripted in &scene.steps {
        engine.execute(&scripted.step);
        tokens = wait_for(E::TIMEOUT, || {
            let (text, tokens) = render(engine, &tokens);
            if text == scripted.expected { Ok(tokens) } else { Err(text) }
        })
        .unwrap_or_else(|text| panic!("{}", mismatch(story, scene, scripted, &text) + &engine.diagnostics()));
    }
    wait_for(E::TIMEOUT, || engine.end_all()).unwrap_or_else(|left| {
        panic!("{}: '{}': after all sessions left, {left}\n{}", story.display(), scene.title, engine.diagnostics())
    });
}

/// Plays scenes in parallel, each on the empty engine that `make` makes for it.
fn play_at_once<'a, E: Engine>(
    story: &Path,
    scenes: impl Iterator<Item = &'a Scene>,
    make: impl Fn(&Scene) -> E + Sync,
) {
    let make = &make;
    thread::scope(|scope| {
        for scene in scenes {
            scope.spawn(move || play(&mut make(scene), story, scene));
        }
    });
}

/// The reply and the table as a story shows them, and the names of the tokens.
fn render<E: Engine>(engine: &mut E, tokens: &Tokens) -> (String, Tokens) {
    // A too early observation must not name tokens, so the names are assigned in a copy.
    let mut tokens = tokens.clone();
    let (reply, rows) = engine.observe();
    (format!("{reply}\n{}", dump::text(rows, &mut tokens)), tokens)
}

/// Calls `probe` at least once, until it succeeds or the timeout is over.
fn wait_for<T>(timeout: Duration, mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    let [mut pause, longest] = PAUSES;
    loop {
        match probe() {
            Err(_) if start.elapsed() < timeout => thread::sleep(pause),
            settled => return settled,
        }
        pause = longest.min(pause * 3 / 2);
    }
}

/// The reply to a break.
fn break_reply(labels: &[&str]) -> String {
    if labels.is_empty() { "broke no session".to_owned() } else { format!("broke {}", labels.join(", ")) }
}

fn mismatch(story: &Path, scene: &Scene, scripted: &Scripted, found: &str) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "{}:{}: '{}': {}\n  expected\n{}  found\n{}",
        story.display(),
        scripted.line,
        scene.title,
        scripted.text,
        indented(&scripted.expected),
        indented(found),
    )
}
