//! The embedded store on a full disk.

use std::fs;
use std::process::Stdio;

use rlock_testkit::small_disk::SmallDisk;
use rlock_testkit::{Lab, Ran, Running};

/// A request that the store cannot record exits with 69 and does not start its command.
#[test]
fn full_disk_fails_new_requests_and_keeps_existing_holds() {
    let lab = Lab::new();
    let Some(disk) = SmallDisk::mount(lab.folder(), "512k") else { return };
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

    // The table has no room left for so many claims.
    let names: Vec<_> = (0..200).map(|number| format!("{number:0>100}")).collect();
    let mut words = vec!["exec", "-n"];
    words.extend(names.iter().flat_map(|name| ["--write", name.as_str()]));
    words.extend(["--", "true"]);
    let ran = Ran::of(&mut on_disk(&words));
    let text = ran.failed(69);
    assert!(text.contains("it has no room for this request"), "{text}");
    assert!(holder.runs());

    let listing = Ran::of(&mut on_disk(&["inspect", "--json"])).stdout;
    assert!(listing.contains("\"name\":\"k\"") && !listing.contains(&names[7]), "{listing}");
    fs::remove_file(filler).expect("the filler exists");
    words.truncate(22);
    words.extend(["--", "true"]);
    Ran::of(&mut on_disk(&words)).silently(0);
    assert_eq!(Ran::of(&mut on_disk(&["exec", "-n", "k", "--", "true"])).code(), Some(75));
    holder.end().silently(0);
    Ran::of(&mut on_disk(&["exec", "-n", "k", "--", "true"])).silently(0);
}
