//! The stories show the lock model of docs/design.md in scenes. Each scene runs on the bare model,
//! and with the real program on the embedded store and on each kind of server. A scene without
//! nesting also runs through `rlock serve` on these stores. After every step the replies and the
//! tables must be equal.
//!
//! A scene starts with an empty table, and at its end all sessions leave. This is the format of
//! tests/stories/NAME.story:
//!
//! ```text
//! # Prose.
//! == the title of a scene
//! model only: the reason why the command line cannot express the scene (an optional line)
//!
//! B write tree [0,1] no-wait below A
//! ----
//! granted
//! tree: A write t1; B write [0,1] t1
//! ```
//!
//! | step | reply |
//! | --- | --- |
//! | `A read tree`, `A slot gpu=3`, `A slot gpu=3:2`, `A read a + write b` | `granted`, `waiting`, `busy` or `refused: …` |
//! | `A releases`, `A cancels`, `A is killed` | `done` |
//! | `A shrinks tree to [0,1)`, `A downgrades tree to read` | `done`, `lost` or `refused: …` |
//! | `break tree` | `broke A, B` or `broke no session` |
//!
//! A scene with the line `store only: the reason` uses operations that the command line cannot
//! express one by one. The model and the stores play it, the latter through their interface for the
//! subcommands.
//!
//! | step | reply |
//! | --- | --- |
//! | `A exits 1` | as `A releases`, and the store remembers how the command ended |
//! | `A gives up` | `busy`, or `granted` in the meantime |
//! | `A is extended by 2s`, `2s pass` | `done` |
//! | `history of tree` | the ended requests: `A exit 1; B skipped 2` |
//! | `slots of A` | the numbers of the slots that A holds: `0` |
//!
//! Such a request may also end with `for 1h`, `for ever`, `at-least 1h`, `as JOB`, `once-per 1h`,
//! `skip-ok`, `supersede`, `max-waiting 2` and `history 3`. `once-per 4s since 1s` asks for one run
//! in a part of the calendar: a day of 4 seconds that began one second ago.
//!
//! A request may end with `no-wait`, and with `below B`, which makes B and B's ancestors the
//! ancestors of A. The tokens of a resource are numbered from the start of the scene, even if the
//! resource lost its state in between. So t2 is above t1, and equal tokens have the same name.
//!
//! `REWRITE=1 cargo test --test stories on_the_model` writes the replies of the model into the
//! files. Review the diff.

mod engine;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine::{library, model, program, served};

/// Defines a test for each story on each engine.
macro_rules! stories {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(mod $name {
            #[test]
            fn on_the_model() {
                super::model::run_story(&super::path(stringify!($name)));
            }

            #[test]
            fn on_the_embedded_store() {
                super::program::run_story(&super::path(stringify!($name)));
            }

            #[test]
            fn in_the_library() {
                super::library::run_story(&super::path(stringify!($name)));
            }

            #[test]
            fn on_postgres() {
                super::program::run_story_on_postgres(&super::path(stringify!($name)));
            }

            mod in_the_library {
                #[test]
                fn on_postgres() {
                    crate::library::run_story_on_postgres(&crate::path(stringify!($name)));
                }

                rlock_testkit::servers::on_each_kind!(|kind| crate::library::run_story_on(kind, &crate::path(stringify!($name))));
            }

            rlock_testkit::servers::on_each_kind!(|kind| super::program::run_story_on(kind, &super::path(stringify!($name))));

            mod through_serve {
                #[test]
                fn on_postgres() {
                    crate::served::run_story_on_postgres(&crate::path(stringify!($name)));
                }

                #[test]
                fn on_the_embedded_store() {
                    crate::served::run_story(&crate::path(stringify!($name)));
                }

                rlock_testkit::servers::on_each_kind!(|kind| crate::served::run_story_on(kind, &crate::path(stringify!($name))));
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
    overtaking
    upgrade
    slots
    shrink_and_downgrade
    tokens
    leaving
    kept_holds
    jobs
    superseded
    history
    slot_numbers
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories")
}

fn path(name: &str) -> PathBuf {
    folder().join(name).with_extension("story")
}

#[test]
fn every_story_is_listed() {
    let files = fs::read_dir(folder()).expect("the folder of the stories exists");
    let paths = files.map(|file| file.expect("the folder is readable").path());
    let found: BTreeSet<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "story")).collect();
    let listed: BTreeSet<_> = NAMES.iter().map(|name| path(name)).collect();
    assert_eq!(found, listed, "the files in tests/stories differ from the list in tests/stories/main.rs");
}

#[test]
fn scenes_without_nesting_are_played_through_serve() {
    let count = |name: &&str| served::count_scenes(&path(name));
    let played: usize = NAMES.iter().map(count).sum();
    assert!(played >= 70, "only {played} scenes are played through serve");
}
