//! Schedules and time zones of CronJobs.

use apiserver_meta::cron::{Schedule, time_zone};
use jiff::tz::TimeZone;

/// Checks that a text is a schedule: five fields or a descriptor such as `@daily`.
pub(crate) fn parse(schedule: &str) -> Result<(), String> {
    Schedule::parse(schedule, &TimeZone::UTC).map(drop)
}

/// Returns the faults of a `timeZone`.
pub(crate) fn time_zone_faults(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    let fits = |part: &str| {
        !matches!(part, "." | "..")
            && !part.starts_with('-')
            && (1..=14).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-_.".contains(&b))
    };
    if !name.split('/').all(fits) {
        return vec![format!("unknown time zone {name}")];
    }
    let mut faults = Vec::new();
    if name.eq_ignore_ascii_case("local") {
        let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        faults.push(why.to_owned());
    }
    faults.extend(time_zone(name).err());
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_parsed_or_refused() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 jan-mar SUN",
            "@daily",
            "@every 1h30m",
            "0-30/10 2 ? * 1-5",
            "5/10 * * * *",
            "TZ=UTC 0 * * * *",
        ] {
            assert_eq!(parse(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@sometimes", "unrecognized descriptor: @sometimes"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("@every 5d", "failed to parse duration @every 5d: time: unknown unit \"d\" in duration \"5d\""),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(parse(bad), Err(why.to_owned()), "{bad}");
        }
    }

    #[test]
    fn unknown_time_zones_are_refused() {
        let explicit = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        for (name, faults) in [
            ("UTC", &[][..]),
            ("", &["timeZone must be nil or non-empty string"]),
            ("a b", &["unknown time zone a b"]),
            ("../x", &["unknown time zone ../x"]),
            ("/UTC", &["unknown time zone /UTC"]),
            ("ThisPartIsTooLong", &["unknown time zone ThisPartIsTooLong"]),
            ("Local", &[explicit]),
        ] {
            assert_eq!(time_zone_faults(name), faults, "{name}");
        }
    }
}
