//! The only request of a process.

use std::thread;

use super::*;
use rlock_sys::clock::Boottime;

/// Renames the table while a transaction fails for want of it.
fn without_the_table<T>(lab: &Lab, fails: impl FnOnce() -> T) -> T {
    fs::rename(lab.file("table"), lab.0.path().join("aside")).unwrap();
    let failed = fails();
    fs::rename(lab.0.path().join("aside"), lab.file("table")).unwrap();
    failed
}

/// The command may still run, so its lock is not free before the release.
#[test]
fn hold_whose_look_fails_lasts_until_its_release() {
    let lab = Lab::new();
    let mut holder = lab.handle(request(1, Mode::Write, None));
    assert!(is_granted(&holder.check().unwrap()));
    let mut site = lab.open();
    let (standing, _waiter) = site.ask(2);
    assert_eq!(standing, Standing::Waiting);
    beacon::wake(&site.0.directory, id(1), None, Wake::Now).unwrap();
    let failed = without_the_table(&lab, || holder.check());
    assert!(failed.is_err_and(|error| error.to_string().contains("damaged")));
    assert_eq!(site.stand(2), Standing::Waiting);
    assert_eq!(holder.release(None).unwrap(), Released::Done);
    assert!(is_granted(&site.stand(2)));
}

#[test]
fn store_hears_nothing_of_a_request_before_its_instant() {
    let lab = Lab::new();
    let mut site = lab.open();
    let from = Boottime::now() + Duration::from_millis(200);
    let options = AcquireOptions { from, ..AcquireOptions::default() };
    let mut late =
        Handle::new(Box::new(lab.open().0).sessions(false).unwrap(), request(1, Mode::Write, None), options).unwrap();
    assert_eq!((late.check().unwrap(), late.timeout()), (Standing::Asking, Some(from)));
    assert_eq!(site.counts(), (0, 0));
    let (standing, _holder) = site.ask(2);
    assert!(is_granted(&standing));
    thread::sleep(from - Boottime::now());
    assert_eq!(late.check().unwrap(), Standing::Waiting);
}

/// `--skip-ok` decides by the streak whether a busy job counts as failed.
#[test]
fn request_that_is_given_up_before_the_lock_is_free_counts_as_busy() {
    let lab = Lab::new();
    let (standing, _holder) = lab.open().ask(1);
    assert!(is_granted(&standing));
    let stopped = lab.stop();
    let mut hasty = request(2, Mode::Write, None);
    hasty.job.skips = true;
    let mut hasty = lab.handle(hasty);
    assert_eq!(hasty.check().unwrap(), Standing::Asking);
    drop(stopped);
    let given_up = hasty.give_up().unwrap();
    assert!(matches!(&given_up, Standing::Busy { streak: Some(streak), .. } if streak.count == 1), "{given_up:?}");
}
