//! Schedules and time zones of CronJobs.

/// Checks that a text is a schedule: five fields or a descriptor such as `@daily`.
pub(crate) fn parse(schedule: &str) -> Result<(), String> {
    if schedule.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let rest = match schedule.strip_prefix("TZ=").or_else(|| schedule.strip_prefix("CRON_TZ=")) {
        Some(zoned) => match zoned.split_once(' ') {
            Some((zone, rest)) => {
                time_zone(zone).map_err(|why| format!("provided bad location {zone}: {why}"))?;
                rest.trim()
            }
            None => return Err(format!("expected exactly 5 fields, found 0: [{zoned}]")),
        },
        None => schedule,
    };
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let bounds: [(i64, i64, &[&str], i64); 5] =
        [(0, 59, &[], 0), (0, 23, &[], 0), (1, 31, &[], 0), (1, 12, &MONTHS, 1), (0, 6, &DAYS, 0)];
    for (field, (low, high, words, first)) in fields.iter().zip(bounds) {
        for range in field.split(',').filter(|range| !range.is_empty()) {
            self::range(range, (low, high), words, first)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    let known = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    if known.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        Some(span) => apiserver_meta::duration::parse(span)
            .map(drop)
            .map_err(|why| format!("failed to parse duration {text}: time: {why}")),
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

fn range(range: &str, (low, high): (i64, i64), words: &[&str], first: i64) -> Result<(), String> {
    let number = |text: &str| -> Result<i64, String> {
        let word = words.iter().zip(first..).find(|(w, _)| w.eq_ignore_ascii_case(text)).map(|(_, n)| n);
        if let Some(number) = word {
            return Ok(number);
        }
        let number: i64 = text.parse().map_err(|_| {
            format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
        })?;
        if number < 0 { Err(format!("negative number ({number}) not allowed: {text}")) } else { Ok(number) }
    };
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        (low, high)
    } else {
        let start = number(ends[0])?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, end] => (start, number(end)?),
            _ => return Err(format!("too many hyphens: {range}")),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            // `5/10` is every tenth from the fifth on.
            if ends.len() == 1 && !matches!(ends[0], "*" | "?") {
                end = high;
            }
            number(step)?
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
    Ok(())
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

/// Checks that a text is the name of a time zone, in its exact case. On a machine without a time zone
/// database every name is accepted.
fn time_zone(name: &str) -> Result<(), String> {
    let zones = jiff::tz::db();
    let known = || zones.get(name).is_ok_and(|zone| zone.iana_name().is_none_or(|own| own == name));
    if matches!(name, "UTC" | "Local") || zones.is_definitively_empty() || known() {
        Ok(())
    } else {
        Err(format!("unknown time zone {name}"))
    }
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
