//! A disk that is full.

use std::fs;
use std::process::Stdio;

use super::support::small_disk::SmallDisk;
use super::support::{Lab, Ran, Running};

/// A store that cannot be used exits 69, and the command is not started.
#[test]
fn a_full_disk_is_an_error_for_those_who_come_and_none_for_those_who_hold() {
    let lab = Lab::new();
    let Some(disk) = SmallDisk::mount(lab.folder(), "64k") else { return };
    let on_disk = |words: &[&str]| {
        let mut command = lab.rlock(words);
        command.env("RLOCK_STORE", format!("file://{}/store", disk.place().display()));
        command
    };
    let mut holder = Running::start(
        on_disk(&["exec", "k", "--", "sh", "-c", "echo held; exec cat > /dev/null"]).stdin(Stdio::piped()),
    );
    holder.expect_held();
    let filler = disk.fill();

    // More claims than what is left in the table has room for.
    let names: Vec<_> = (0..200).map(|number| format!("{number:0>100}")).collect();
    let mut words = vec!["exec", "-n"];
    words.extend(names.iter().flat_map(|name| ["--write", name.as_str()]));
    words.extend(["--", "true"]);
    let ran = Ran::of(&mut on_disk(&words));
    let text = ran.failed(69);
    assert!(text.contains("no space left on device"), "{text}");
    assert!(holder.runs());

    let listing = Ran::of(&mut on_disk(&["inspect", "--json"])).stdout;
    assert!(listing.contains("\"name\":\"k\"") && !listing.contains(&names[7]), "{listing}");
    fs::remove_file(filler).expect("it is there");
    words.truncate(22);
    words.extend(["--", "true"]);
    Ran::of(&mut on_disk(&words)).silently(0);
    assert_eq!(Ran::of(&mut on_disk(&["exec", "-n", "k", "--", "true"])).code(), Some(75));
    holder.end().silently(0);
    Ran::of(&mut on_disk(&["exec", "-n", "k", "--", "true"])).silently(0);
}
