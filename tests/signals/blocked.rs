//! Standard error that takes nothing: a terminal that Ctrl-S has stopped, and a pipe that nobody
//! reads.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::session::Session;
use rlock_testkit::{Lab, wait_until};

/// A pipe that is full.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().expect("there are descriptors left");
    // A description of its own, so that the pipe itself stays blocking.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    let mut own: File = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("a pipe opens again").into();
    while own.write(&[b'.'; 512]).is_ok() {}
    (reader, writer)
}

fn start(lab: &Lab, stderr: &PipeWriter, words: &[&str]) -> Child {
    let stderr = stderr.try_clone().expect("there are descriptors left");
    lab.rlock(words).current_dir(lab.folder()).stderr(stderr).spawn().expect("rlock starts")
}

#[track_caller]
fn code(child: &mut Child) -> Option<i32> {
    let mut status = None;
    wait_until("rlock ends", || {
        status = child.try_wait().expect("rlock is a child");
        status.is_some()
    });
    status.and_then(|status| status.code())
}

/// "Messages never block while a request waits or a command runs."
#[test]
fn full_pipe_at_standard_error_holds_up_neither_the_wait_nor_a_signal_nor_the_command() {
    let lab = Lab::new();
    let (_reader, stderr) = full_pipe();
    let holder = lab.hold("k");
    assert_eq!(code(&mut start(&lab, &stderr, &["exec", "-v", "-w", "10ms", "k", "--", "true"])), Some(75));

    let mut cancelled = start(&lab, &stderr, &["exec", "-v", "k", "--", "true"]);
    lab.until_waiting("k", 1);
    kill_process(Pid::from_child(&cancelled), Signal::TERM).unwrap();
    assert_eq!(code(&mut cancelled), Some(128 + 15));

    let mut waiter = start(&lab, &stderr, &["exec", "-v", "k", "--", "touch", "started"]);
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    wait_until("the command runs", || lab.folder().join("started").exists());
    assert_eq!(code(&mut waiter), Some(0));
    lab.assert_idle();
}

/// The text that did not fit follows when the reader goes on, before the last line.
#[test]
fn text_that_did_not_fit_is_written_when_the_reader_goes_on() {
    let lab = Lab::new();
    let (mut reader, stderr) = full_pipe();
    let holder = lab.hold("k");
    let mut waiter = start(&lab, &stderr, &["exec", "-v", "k", "--", "true"]);
    drop(stderr);
    lab.until_waiting("k", 1);
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !text.ends_with(b"rlock: waits for 'k'\n") {
        let read = reader.read(&mut buffer).expect("the pipe can be read");
        text.extend_from_slice(&buffer[..read]);
    }
    holder.end().silently(0);
    reader.read_to_end(&mut text).expect("the pipe can be read");
    let lines = String::from_utf8_lossy(&text).trim_start_matches('.').to_owned();
    assert_eq!(lines, "rlock: waits for 'k'\nrlock: holds 'k' for write\nrlock: releases 'k' for write\n");
    assert_eq!(code(&mut waiter), Some(0));
}

/// "The last line before the exit is written in full, for at most a second."
#[test]
fn last_line_waits_for_its_reader_for_a_second() {
    let lab = Lab::new();
    let (mut reader, stderr) = full_pipe();
    let begun = Instant::now();
    let mut mistaken = start(&lab, &stderr, &["exec", "k", "--no-such-option"]);
    assert_eq!(code(&mut mistaken), Some(64));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());

    let mut mistaken = start(&lab, &stderr, &["exec", "k", "--no-such-option"]);
    drop(stderr);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("the text is UTF-8");
    assert!(text.ends_with('\n') && text.contains("rlock: ") && text.contains("--no-such-option"), "{text:?}");
    assert_eq!(code(&mut mistaken), Some(64));
}

/// A lock whose variables nobody takes is released again.
#[test]
fn acquire_whose_output_is_not_taken_within_a_second_releases_the_lock() {
    let lab = Lab::new();
    let (_reader, stdout) = full_pipe();
    let mut acquire = lab.rlock(["acquire", "k", "--for", "1h"]);
    let mut acquire = acquire.stdout(stdout).stderr(Stdio::piped()).spawn().expect("rlock starts");
    assert_eq!(code(&mut acquire), Some(125));
    let mut text = String::new();
    acquire.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "rlock: can't write to standard output, so the lock is released again: timed out\n");
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

/// Ctrl-S stops the terminal while rlock waits.
#[test]
fn stopped_terminal_holds_up_neither_the_command_nor_a_signal() {
    for is_cancelled in [false, true] {
        let lab = Lab::new();
        let holder = lab.hold("k");
        let mut session = Session::on_terminal(&lab, ["rlock", "exec", "-v", "k", "--", "touch", "started"]);
        session.output.expect("rlock: waiting, 1 of 1");
        session.types("\x13");
        // The line about the wait changes, and cannot be shown.
        let other = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        if is_cancelled {
            session.signal(Signal::TERM);
            session.until_gone();
            holder.end().silently(0);
        } else {
            holder.end().silently(0);
            wait_until("the command runs", || lab.folder().join("started").exists());
        }
        drop(other.end());
    }
}

/// rlock and other programs share standard error, which stays as it was.
#[test]
fn shared_standard_error_stays_blocking() {
    let lab = Lab::new();
    let (mut reader, stderr) = pipe().unwrap();
    let holder = lab.hold("k");
    let mut busy = start(&lab, &stderr, &["exec", "-n", "k", "--", "true"]);
    assert_eq!(code(&mut busy), Some(75));
    assert!(!rustix::fs::fcntl_getfl(&stderr).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    drop(stderr);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("rlock: busy: 'k' is held"), "{text:?}");
    holder.end().silently(0);
}
