//! How a story is told: read, carried out step by step on an engine, and compared with what it says.
//!
//! An engine is whatever has a lock table: see [`Engine`]. What a story ought to say is no business of this module.

pub(crate) mod model;
pub(crate) mod program;

mod actor;
mod dump;
mod script;
mod step;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dump::{Row, Tokens};
use script::{Scene, Scripted};
use step::Step;

/// How long to wait before looking again at what other processes do: shortly at first, then ever longer up to this.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// A lock table that a scene plays on.
trait Engine {
    /// How long a step may take to show all of its effect.
    const PATIENCE: Duration;

    /// Carries out a step, or starts to.
    fn act(&mut self, step: &Step);

    /// What the last step has been answered by now, and all that is held or waits.
    fn look(&mut self) -> (String, Vec<Row>);

    /// Lets everybody leave of their own accord. Asked again until it answers that nothing is left, or says what is.
    fn leave(&mut self) -> Result<(), String>;

    /// What else may tell why a step went wrong.
    fn notes(&self) -> String {
        String::new()
    }
}

/// Plays a scene on an engine that nothing else plays on.
///
/// # Panics
/// Where the engine had its time and still does not answer as the scene says.
fn play<E: Engine>(engine: &mut E, story: &Path, scene: &Scene) {
    let mut tokens = Tokens::default();
    for scripted in &scene.steps {
        engine.act(&scripted.step);
        tokens = wait_for(E::PATIENCE, || {
            let (text, tokens) = shown(engine, &tokens);
            if text == scripted.expected { Ok(tokens) } else { Err(text) }
        })
        .unwrap_or_else(|text| panic!("{}", complaint(story, scene, scripted, &text) + &engine.notes()));
    }
    wait_for(E::PATIENCE, || engine.leave()).unwrap_or_else(|left| {
        panic!("{}: '{}': everybody leaves, but {left}\n{}", story.display(), scene.title, engine.notes())
    });
}

/// The answer and the table as a story shows them, and the tokens that have names then.
fn shown<E: Engine>(engine: &mut E, tokens: &Tokens) -> (String, Tokens) {
    // What a look too early saw must not count, so names are given to a copy.
    let mut tokens = tokens.clone();
    let (answer, rows) = engine.look();
    (format!("{answer}\n{}", dump::text(rows, &mut tokens)), tokens)
}

/// Asks until the answer is good, at least once, and gives up when it isn't for too long.
fn wait_for<T>(patience: Duration, mut ask: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    let [mut pause, longest] = PAUSES;
    loop {
        match ask() {
            Err(_) if start.elapsed() < patience => thread::sleep(pause),
            settled => return settled,
        }
        pause = longest.min(pause * 3 / 2);
    }
}

/// The answer to a break.
fn broke(labels: &[&str]) -> String {
    if labels.is_empty() { "broke nobody".to_owned() } else { format!("broke {}", labels.join(", ")) }
}

fn complaint(story: &Path, scene: &Scene, scripted: &Scripted, found: &str) -> String {
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
