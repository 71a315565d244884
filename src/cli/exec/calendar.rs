//! The hour, day, week, month or year of an instant, for `--once-per`. Where the clocks change, a day
//! has 23 or 25 hours, and it may begin after midnight.

use std::time::Duration;

use tz::{DateTime, TimeZone, UtcDateTime};

use rlock_arguments::values::Unit;
use rlock_model::request::Calendar;
use rlock_show::failure::Failure;
use rlock_sys::clock::StoreTime;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The present hour, day, week, month or year in the time zone of `TZ`, or of the machine without
/// it.
///
/// # Errors
/// The zone is unknown.
pub(super) fn now(unit: Unit) -> Result<Calendar, Failure> {
    let zone = zone()?;
    period(unit, StoreTime::of_machine(), &zone)
        .ok_or_else(|| Failure::usage("TZ: the time zone does not know the present time: set another one"))
}

/// The time zone of `TZ`, or of the machine without it.
///
/// # Errors
/// The zone is unknown.
pub(in crate::cli) fn zone() -> Result<TimeZone, Failure> {
    let Some(name) = std::env::var_os("TZ") else { return local_zone() };
    let name = name.to_string_lossy();
    let known = match name.trim_start_matches(':') {
        // These need no file, which a container may lack.
        "" | "UTC" | "Etc/UTC" => Ok(TimeZone::utc()),
        // The C library takes the present rules of the United States for a zone with summer time
        // and without rules, such as CET-1CEST.
        _ => TimeZone::from_posix_tz(&name).or_else(|_| TimeZone::from_posix_tz(&format!("{name},M3.2.0,M11.1.0"))),
    };
    known.map_err(|_| {
        Failure::usage(format!(
            "TZ: '{name}' is not a time zone of this machine: write it as Europe/Berlin, UTC or EST5, or unset it"
        ))
    })
}

/// What the clocks of a zone show at an instant: the instant at which UTC is the same. It is UTC
/// where the zone does not know the instant.
pub(in crate::cli) fn wall_clock(at: StoreTime, zone: &TimeZone) -> StoreTime {
    let seconds = i64::try_from(at.as_micros() / 1_000_000).unwrap_or(i64::MAX);
    let offset = zone.find_local_time_type(seconds).map_or(0, |local| i64::from(local.ut_offset()));
    StoreTime::from_micros(at.as_micros().saturating_add_signed(offset * 1_000_000))
}

/// The time zone of the machine. Without /etc/localtime, it is UTC.
fn local_zone() -> Result<TimeZone, Failure> {
    match TimeZone::local() {
        Err(tz::Error::Io(_)) => Ok(TimeZone::utc()),
        known => known.map_err(|error| Failure::usage(format!("can't read the time zone in /etc/localtime: {error}"))),
    }
}

/// The hour, day, week, month or year that contains an instant, and the start of the next. `None` if
/// the zone does not know that time.
fn period(unit: Unit, at: StoreTime, zone: &TimeZone) -> Option<Calendar> {
    let at = i64::try_from(at.as_micros() / 1_000_000).ok()?;
    let local = DateTime::from_timespec(at, 0, zone.as_ref()).ok()?;
    let first_of = |year, month| UtcDateTime::new(year, month, 1, 0, 0, 0, 0).ok().map(|date| date.unix_time());
    let (year, month) = (local.year(), local.month());
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    // The date, as the instant at which it begins in UTC.
    let date = first_of(year, month)? + (i64::from(local.month_day()) - 1) * DAY;
    let monday = date - (i64::from(local.week_day()) + 6) % 7 * DAY;
    let (start, next) = match unit {
        // By the difference to UTC that is in force, because an hour may come twice.
        Unit::Hour => {
            let since = i64::from(local.minute()) * 60 + i64::from(local.second());
            (at - since, at - since + HOUR)
        }
        Unit::Day => (start_of(date, zone)?, start_of(date + DAY, zone)?),
        Unit::Week => (start_of(monday, zone)?, start_of(monday + 7 * DAY, zone)?),
        Unit::Month => (start_of(first_of(year, month)?, zone)?, start_of(first_of(next_year, next_month)?, zone)?),
        Unit::Year => (start_of(first_of(year, 1)?, zone)?, start_of(first_of(year + 1, 1)?, zone)?),
    };
    let instant = |seconds| Some(StoreTime::default() + Duration::from_secs(u64::try_from(seconds).ok()?));
    Some(Calendar { start: instant(start)?, next: instant(next)? })
}

/// The first instant of a date in a zone.
fn start_of(date: i64, zone: &TimeZone) -> Option<i64> {
    let date = UtcDateTime::from_timespec(date, 0).ok()?;
    let midnight = DateTime::find(date.year(), date.month(), date.month_day(), 0, 0, 0, 0, zone.as_ref()).ok()?;
    midnight.earliest().map(|start| start.unix_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The period that contains a time of UTC, as two times of UTC.
    fn period_of(unit: Unit, zone: &str, at: &str) -> [String; 2] {
        let zone = TimeZone::from_posix_tz(zone).unwrap();
        let at = humantime::parse_rfc3339(&format!("{at}:00Z")).unwrap();
        let at = StoreTime::default() + at.duration_since(std::time::UNIX_EPOCH).unwrap();
        let calendar = period(unit, at, &zone).unwrap();
        [calendar.start, calendar.next].map(|start| {
            let time = std::time::UNIX_EPOCH + (start - StoreTime::default());
            humantime::format_rfc3339_seconds(time).to_string().replace(":00Z", "")
        })
    }

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
    /// The clocks go forward at midnight, and back at midnight.
    const MIDNIGHT: &str = "<-04>4<-03>,M9.1.6/24,M4.1.6/24";

    #[test]
    fn day_of_a_zone_without_changes_has_24_hours() {
        assert_eq!(period_of(Unit::Day, "UTC0", "2026-11-26T06:45"), ["2026-11-26T00:00", "2026-11-27T00:00"]);
        assert_eq!(period_of(Unit::Day, "IST-5:30", "2026-11-26T18:29"), ["2026-11-25T18:30", "2026-11-26T18:30"]);
        assert_eq!(period_of(Unit::Day, "IST-5:30", "2026-11-26T18:30"), ["2026-11-26T18:30", "2026-11-27T18:30"]);
    }

    #[test]
    fn day_on_which_the_clocks_change_has_23_or_25_hours() {
        assert_eq!(period_of(Unit::Day, BERLIN, "2026-03-29T12:00"), ["2026-03-28T23:00", "2026-03-29T22:00"]);
        assert_eq!(period_of(Unit::Day, BERLIN, "2026-10-25T12:00"), ["2026-10-24T22:00", "2026-10-25T23:00"]);
    }

    #[test]
    fn day_without_a_midnight_begins_when_the_clocks_have_changed() {
        // 2026-09-06 begins at 01:00, which is 04:00 in UTC.
        assert_eq!(period_of(Unit::Day, MIDNIGHT, "2026-09-06T04:00"), ["2026-09-06T04:00", "2026-09-07T03:00"]);
        assert_eq!(period_of(Unit::Day, MIDNIGHT, "2026-09-06T03:59"), ["2026-09-05T04:00", "2026-09-06T04:00"]);
    }

    #[test]
    fn day_whose_last_hour_comes_twice_ends_after_the_second() {
        // At the end of 2026-04-04, 24:00 becomes 23:00.
        assert_eq!(period_of(Unit::Day, MIDNIGHT, "2026-04-05T03:30"), ["2026-04-04T03:00", "2026-04-05T04:00"]);
        assert_eq!(period_of(Unit::Day, MIDNIGHT, "2026-04-05T04:00"), ["2026-04-05T04:00", "2026-04-06T04:00"]);
    }

    #[test]
    fn hour_that_comes_twice_is_two_hours() {
        assert_eq!(period_of(Unit::Hour, BERLIN, "2026-10-25T00:59"), ["2026-10-25T00:00", "2026-10-25T01:00"]);
        assert_eq!(period_of(Unit::Hour, BERLIN, "2026-10-25T01:00"), ["2026-10-25T01:00", "2026-10-25T02:00"]);
        assert_eq!(period_of(Unit::Hour, "IST-5:30", "2026-11-26T06:45"), ["2026-11-26T06:30", "2026-11-26T07:30"]);
    }

    #[test]
    fn week_begins_on_monday() {
        // 2026-11-23 is a Monday.
        for at in ["2026-11-23T00:00", "2026-11-26T06:45", "2026-11-29T23:59"] {
            assert_eq!(period_of(Unit::Week, "UTC0", at), ["2026-11-23T00:00", "2026-11-30T00:00"], "{at}");
        }
        assert_eq!(period_of(Unit::Week, BERLIN, "2026-10-25T12:00"), ["2026-10-18T22:00", "2026-10-25T23:00"]);
    }

    #[test]
    fn year_begins_with_january() {
        assert_eq!(period_of(Unit::Year, "UTC0", "2028-02-29T23:59"), ["2028-01-01T00:00", "2029-01-01T00:00"]);
        assert_eq!(period_of(Unit::Year, BERLIN, "2026-12-31T23:00"), ["2026-12-31T23:00", "2027-12-31T23:00"]);
    }

    #[test]
    fn month_ends_with_its_last_day() {
        assert_eq!(period_of(Unit::Month, "UTC0", "2028-02-29T23:59"), ["2028-02-01T00:00", "2028-03-01T00:00"]);
        assert_eq!(period_of(Unit::Month, BERLIN, "2026-12-31T22:59"), ["2026-11-30T23:00", "2026-12-31T23:00"]);
        assert_eq!(period_of(Unit::Month, BERLIN, "2026-12-31T23:00"), ["2026-12-31T23:00", "2027-01-31T23:00"]);
    }
}
