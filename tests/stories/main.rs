//! The stories: sections 2 and 3 of the design, told scene by scene on the bare model, on the embedded store and on each server,
//! with equal answers and equal tables after every step.
//!
//! tests/stories/NAME.story reads as follows; a scene starts with an empty table, and ends with everybody leaving.
//!
//! ```text
//! # Prose.
//! == the title of a scene
//! model only: why the command line can't tell it (a line that most scenes don't have)
//!
//! B write tree [0,1] no-wait below A
//! ----
//! granted
//! tree: A write t1; B write [0,1] t1
//! ```
//!
//! | step | answer |
//! | --- | --- |
//! | `A read tree`, `A slot gpu=3`, `A read config + write db`, each with `no-wait` and `below B` at will | `granted`, `waiting`, `busy` or `refused: …` |
//! | `A releases`, `A gives up` (it waits no longer), `A dies` (as by kill -9) | `done` |
//! | `A shrinks tree to [0,1)`, `A downgrades tree to read` | `done`, `lost` or `refused: …` |
//! | `break tree` | `broke A, B` or `broke nobody` |
//!
//! `below B` makes B and B's ancestors the ancestors of A. Tokens are numbered in the order in which a resource gave them out, from
//! the start of the scene and whether or not it had state in between: t2 is above t1, and a token seen twice has one name.
//!
//! `REWRITE=1 cargo test --test stories on_the_model` writes what the model answers into the files: read the difference.

mod engine;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine::{model, program};
use support::servers::Kind;

/// Makes a test of each story on each engine.
macro_rules! stories {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(mod $name {
            #[test]
            fn on_the_model() {
                super::model::tell(&super::path(stringify!($name)));
            }

            #[test]
            fn on_the_embedded_store() {
                super::program::tell(&super::path(stringify!($name)));
            }

            #[test]
            fn on_redis_6() {
                super::program::tell_on(super::Kind::Redis6, &super::path(stringify!($name)));
            }

            #[test]
            fn on_redis_7() {
                super::program::tell_on(super::Kind::Redis7, &super::path(stringify!($name)));
            }

            #[test]
            fn on_redis_8() {
                super::program::tell_on(super::Kind::Redis8, &super::path(stringify!($name)));
            }

            #[test]
            fn on_valkey_9() {
                super::program::tell_on(super::Kind::Valkey9, &super::path(stringify!($name)));
            }
        })*
    };
}

stories! {
    compatibility
    queue
    spans
    several_claims
    nesting
    nesting_past_the_queue
    upgrade
    slots
    shrink_and_downgrade
    tokens
    leaving
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories")
}

fn path(name: &str) -> PathBuf {
    folder().join(name).with_extension("story")
}

#[test]
fn every_story_is_listed() {
    let files = fs::read_dir(folder()).expect("the package has its stories");
    let paths = files.map(|file| file.expect("the folder can be read").path());
    let found: BTreeSet<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "story")).collect();
    let listed: BTreeSet<_> = NAMES.iter().map(|name| path(name)).collect();
    assert_eq!(found, listed, "the files of tests/stories against the list in tests/stories/main.rs");
}
