//! Schedules of CronJobs: five fields, or a descriptor such as `@daily` or `@every 1h30m`, in a time zone.

use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

use crate::duration;

/// Years after which a schedule without a match is taken to have none.
const YEARS: i16 = 5;

/// A parsed schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// Points of local time that match all fields.
    Fields(Box<Fields>),
    /// A constant delay of whole seconds.
    Every(Duration),
}

#[derive(Clone, Debug, PartialEq)]
struct Fields {
    minutes: Set,
    hours: Set,
    days: Set,
    months: Set,
    weekdays: Set,
    zone: TimeZone,
}

/// Numbers that a field matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Set {
    bits: u64,
    /// True if the field contains `*` or `?` without a step.
    any: bool,
}

impl Set {
    fn contains(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.bits & (1_u64.checked_shl(number).unwrap_or(0)) != 0)
    }
}

/// Lowest and highest number of a field, and its words, the first of which is the lowest number.
type Bounds = (u32, u32, &'static [&'static str]);

const MINUTES: Bounds = (0, 59, &[]);
const HOURS: Bounds = (0, 23, &[]);
const DAYS: Bounds = (1, 31, &[]);
const MONTHS: Bounds =
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]);
const WEEKDAYS: Bounds = (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]);

impl Schedule {
    /// Parses a schedule in the words of `robfig/cron`. A time zone in the text (`TZ=` or `CRON_TZ=`) has precedence
    /// over `zone`.
    ///
    /// # Errors
    /// Returns the message of Kubernetes about the first fault.
    pub fn parse(text: &str, zone: &TimeZone) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let Some(zoned) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) else {
            return Self::in_zone(text, zone.clone());
        };
        let Some((name, rest)) = zoned.split_once(' ') else {
            return Err(format!("expected exactly 5 fields, found 0: [{zoned}]"));
        };
        let zone = time_zone(name).map_err(|why| format!("provided bad location {name}: {why}"))?;
        Self::in_zone(rest.trim(), zone)
    }

    fn in_zone(text: &str, zone: TimeZone) -> Result<Self, String> {
        if text.starts_with('@') {
            return descriptor(text, zone);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        Ok(Self(Kind::Fields(Box::new(Fields {
            minutes: field(minutes, MINUTES)?,
            hours: field(hours, HOURS)?,
            days: field(days, DAYS)?,
            months: field(months, MONTHS)?,
            weekdays: field(weekdays, WEEKDAYS)?,
            zone,
        }))))
    }

    /// Returns the first point of the schedule after `time`; `None` if there is none within five years. Local times
    /// that a change of the clock skips have no point, and those that it repeats have two.
    pub fn next(&self, time: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Kind::Every(delay) => {
                let whole = Timestamp::from_second(time.as_second()).ok()?;
                whole.checked_add(*delay).ok()
            }
            Kind::Fields(fields) => fields.next(time),
        }
    }
}

fn descriptor(text: &str, zone: TimeZone) -> Result<Schedule, String> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(span) = text.strip_prefix("@every ") else {
                return Err(format!("unrecognized descriptor: {text}"));
            };
            let nanoseconds = duration::parse(span)
                .map_err(|why| format!("failed to parse duration {text}: time: {why}"))?;
            let seconds = u64::try_from(nanoseconds / 1_000_000_000).unwrap_or(0).max(1);
            return Ok(Schedule(Kind::Every(Duration::from_secs(seconds))));
        }
    };
    Schedule::in_zone(fields, zone)
}

fn field(text: &str, bounds: Bounds) -> Result<Set, String> {
    let mut all = Set::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let set = range(part, bounds)?;
        all = Set { bits: all.bits | set.bits, any: all.any || set.any };
    }
    Ok(all)
}

fn range(range: &str, (low, high, words): Bounds) -> Result<Set, String> {
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let is_any = matches!(ends[0], "*" | "?");
    let (start, mut end) = if is_any {
        (low, high)
    } else {
        let start = number(ends[0], low, words)?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, end] => (start, number(end, low, words)?),
            _ => return Err(format!("too many hyphens: {range}")),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            // `5/10` is every tenth from the fifth on.
            if ends.len() == 1 && !is_any {
                end = high;
            }
            number(step, 0, &[])?
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {range}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    let step_size = usize::try_from(step).unwrap_or(usize::MAX);
    let bits = (start..=end).step_by(step_size).fold(0, |bits, number| bits | 1_u64 << number);
    Ok(Set { bits, any: is_any && step == 1 })
}

/// Parses a number, or a word: the first one has the number `first`.
fn number(text: &str, first: u32, words: &[&str]) -> Result<u32, String> {
    if let Some((_, number)) = words.iter().zip(first..).find(|(word, _)| word.eq_ignore_ascii_case(text)) {
        return Ok(number);
    }
    let number: i64 = text.parse().map_err(|_| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })?;
    if number < 0 {
        return Err(format!("negative number ({number}) not allowed: {text}"));
    }
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

/// Returns the time zone of this name, in its exact case. `Local` means UTC; so does every name on a machine without a
/// time zone database.
///
/// # Errors
/// Fails if there is no such zone.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    let zones = jiff::tz::db();
    if matches!(name, "UTC" | "Local") || zones.is_definitively_empty() {
        return Ok(TimeZone::UTC);
    }
    let zone = zones.get(name).ok().filter(|zone| zone.iana_name().is_none_or(|own| own == name));
    zone.ok_or_else(|| format!("unknown time zone {name}"))
}

impl Fields {
    fn next(&self, time: Timestamp) -> Option<Timestamp> {
        if self.minutes.bits == 0 || self.hours.bits == 0 {
            // A field of commas alone, for which five years of minutes would be tried.
            return None;
        }
        // The next whole minute: seconds are always zero.
        let minute = time.as_second().div_euclid(60) + 1;
        let mut next = Timestamp::from_second(minute * 60).ok()?.to_zoned(self.zone.clone());
        let last_year = next.year() + YEARS;
        while next.year() <= last_year {
            let date = next.date();
            if self.matches_date(date)
                && let Some(found) = self.in_day(next.clone())
            {
                return Some(found.timestamp());
            }
            next = self.day_after(date)?;
        }
        None
    }

    /// Returns the beginning of the first day after `date` that may match: months without a match are skipped.
    fn day_after(&self, date: Date) -> Option<Zoned> {
        let following = if self.months.contains(date.month()) {
            date.tomorrow().ok()?
        } else {
            date.first_of_month().checked_add(1.month()).ok()?
        };
        DateTime::from_parts(following, jiff::civil::Time::midnight()).to_zoned(self.zone.clone()).ok()
    }

    fn matches_date(&self, date: Date) -> bool {
        let day = self.days.contains(date.day());
        let weekday = self.weekdays.contains(date.weekday().to_sunday_zero_offset());
        let day_matches = if self.days.any || self.weekdays.any { day && weekday } else { day || weekday };
        day_matches && self.months.contains(date.month())
    }

    /// Returns the first match at or after `time` on its day. Time passes as on a clock, so that hours which the day
    /// does not have are skipped, and those which it has twice come twice.
    fn in_day(&self, time: Zoned) -> Option<Zoned> {
        let day = time.date();
        let mut next = time;
        while next.date() == day {
            let step = if !self.hours.contains(next.hour()) {
                60 - i64::from(next.minute())
            } else if !self.minutes.contains(next.minute()) {
                1
            } else {
                return Some(next);
            };
            next = next.checked_add(SignedDuration::from_mins(step)).ok()?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(text: &str) -> Schedule {
        Schedule::parse(text, &TimeZone::UTC).unwrap()
    }

    /// Returns the first points after a time, as local times with their offset.
    fn points(text: &str, after: &str, count: usize) -> Vec<String> {
        let schedule = schedule(text);
        let zone =
            text.strip_prefix("TZ=").and_then(|rest| rest.split_once(' ')).map_or("UTC", |(zone, _)| zone);
        let mut time: Timestamp = after.parse().unwrap();
        let mut found = Vec::new();
        for _ in 0..count {
            let Some(next) = schedule.next(time) else { break };
            time = next;
            found.push(next.to_zoned(time_zone(zone).unwrap()).strftime("%Y-%m-%d %H:%M %:z").to_string());
        }
        found
    }

    #[test]
    fn fields_match_minutes_hours_days_months_and_weekdays() {
        for (text, after, expected) in [
            ("*/15 * * * *", "2012-07-09T14:45:01Z", "2012-07-09 15:00 +00:00"),
            ("*/15 * * * *", "2012-07-09T14:59:59Z", "2012-07-09 15:00 +00:00"),
            ("* * * * *", "2012-07-09T14:59:00Z", "2012-07-09 15:00 +00:00"),
            ("20-35/15 * * * *", "2012-07-09T15:45:00Z", "2012-07-09 16:20 +00:00"),
            ("20-35/15 */2 * * *", "2012-07-09T15:36:00Z", "2012-07-09 16:20 +00:00"),
            ("5/10 3 * * *", "2012-07-09T03:45:00Z", "2012-07-09 03:55 +00:00"),
            ("0 0 */10 * *", "2012-07-15T00:00:00Z", "2012-07-21 00:00 +00:00"),
            ("0 0 * feb Mon", "2012-07-09T00:00:00Z", "2013-02-04 00:00 +00:00"),
            ("0 0 29 2 *", "2012-07-09T00:00:00Z", "2016-02-29 00:00 +00:00"),
            ("59 23 31 12 *", "2012-12-31T23:59:00Z", "2013-12-31 23:59 +00:00"),
            // Day and weekday: both if one of them is a star, either if none is.
            ("0 0 * * 1", "2012-07-15T01:00:00Z", "2012-07-16 00:00 +00:00"),
            ("0 0 1 * 1", "2012-07-15T01:00:00Z", "2012-07-16 00:00 +00:00"),
            ("0 0 ? * 1-5", "2012-07-13T00:00:00Z", "2012-07-16 00:00 +00:00"),
            ("0 0 1,15 * sun", "2012-07-09T00:00:00Z", "2012-07-15 00:00 +00:00"),
            ("0 0 */1 * 1", "2012-07-14T00:00:00Z", "2012-07-16 00:00 +00:00"),
            ("@yearly", "2012-07-09T00:00:00Z", "2013-01-01 00:00 +00:00"),
            ("@monthly", "2012-07-09T00:00:00Z", "2012-08-01 00:00 +00:00"),
            ("@weekly", "2012-07-09T00:00:00Z", "2012-07-15 00:00 +00:00"),
            ("@midnight", "2012-07-09T00:00:00Z", "2012-07-10 00:00 +00:00"),
            ("@hourly", "2012-07-09T00:00:00Z", "2012-07-09 01:00 +00:00"),
            ("@every 90m", "2012-07-09T00:00:00.7Z", "2012-07-09 01:30 +00:00"),
        ] {
            assert_eq!(points(text, after, 1), [expected], "{text} {after}");
        }
        for never in ["59 23 31 2 *", "0 0 30 feb ?", ", * * * *"] {
            assert!(points(never, "2012-07-09T00:00:00Z", 1).is_empty(), "{never}");
        }
        let second = schedule("@every 10ms").next("2012-07-09T00:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(second.to_string(), "2012-07-09T00:00:01Z");
    }

    #[test]
    fn hours_that_the_clock_skips_do_not_match_and_those_repeated_match_twice() {
        let new_york = "TZ=America/New_York";
        for (fields, after, expected) in [
            (
                "0 * * * *",
                "2012-03-11T06:30:00Z",
                &["2012-03-11 03:00 -04:00", "2012-03-11 04:00 -04:00"][..],
            ),
            ("30 2 * * *", "2012-03-11T05:00:00Z", &["2012-03-12 02:30 -04:00"]),
            ("30 1 * * *", "2012-11-04T04:00:00Z", &["2012-11-04 01:30 -04:00", "2012-11-04 01:30 -05:00"]),
            ("0 3 * * *", "2012-11-04T04:00:00Z", &["2012-11-04 03:00 -05:00"]),
            ("0 0 * * *", "2012-03-11T04:00:00Z", &["2012-03-11 00:00 -05:00", "2012-03-12 00:00 -04:00"]),
        ] {
            assert_eq!(points(&format!("{new_york} {fields}"), after, expected.len()), expected, "{fields}");
        }
        // A zone whose clock skips midnight, so that the day begins at one.
        let found = points("TZ=America/Sao_Paulo 0 1 * * *", "2018-11-03T10:00:00Z", 2);
        assert_eq!(found, ["2018-11-04 01:00 -02:00", "2018-11-05 01:00 -02:00"]);
        let skipped = points("TZ=America/Sao_Paulo 30 0 * * *", "2018-11-03T10:00:00Z", 1);
        assert_eq!(skipped, ["2018-11-05 00:30 -02:00"]);
        // A change of half an hour.
        let half = points("TZ=Australia/Lord_Howe 15 * * * *", "2012-10-06T14:30:00Z", 2);
        assert_eq!(half, ["2012-10-07 01:15 +10:30", "2012-10-07 03:15 +11:00"]);
    }

    #[test]
    fn zone_in_the_text_has_precedence() {
        let tokyo = time_zone("Asia/Tokyo").unwrap();
        let at: Timestamp = "2012-07-09T00:00:00Z".parse().unwrap();
        let next = |text: &str| Schedule::parse(text, &tokyo).unwrap().next(at).unwrap().to_string();
        assert_eq!(next("0 12 * * *"), "2012-07-09T03:00:00Z");
        assert_eq!(next("CRON_TZ=UTC 0 12 * * *"), "2012-07-09T12:00:00Z");
        assert!(time_zone("asia/tokyo").is_err() && time_zone("No/Where").is_err());
    }
}
