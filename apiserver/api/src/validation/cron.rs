//! Schedules and time zones of CronJobs.

/// Whether a text is a schedule: five fields or a descriptor such as `@daily`.
pub(super) fn parse(schedule: &str) -> Result<(), String> {
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
        Some(span) if is_duration(span) => Ok(()),
        Some(span) => Err(format!("failed to parse duration {text}: time: invalid duration {span:?}")),
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

/// `1h30m`, `1.5s`: numbers, each with a unit.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        if number.matches('.').count() > 1 || !number.bytes().any(|b| b.is_ascii_digit()) {
            return false;
        }
        let unit = ["ns", "us", "µs", "ms", "s", "m", "h"].iter().find(|unit| {
            after
                .strip_prefix(**unit)
                .is_some_and(|r| r.is_empty() || r.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        });
        let Some(unit) = unit else { return false };
        rest = &after[unit.len()..];
        any = true;
    }
    any
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

/// Whether a text is the name of a time zone. A machine without zones knows none, so there any
/// name of the right form is taken.
pub(super) fn time_zone(name: &str) -> Result<(), String> {
    if name.eq_ignore_ascii_case("local") {
        let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return Err(why.to_owned());
    }
    let unknown = || format!("unknown time zone {name}");
    // As the reference's own expression has it: letters, digits and `+-_/`, no dots.
    let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-_/".contains(&b));
    if !fits || name.len() > 14 * 6 {
        return Err(unknown());
    }
    let zones = jiff::tz::db();
    if name == "UTC" || zones.is_definitively_empty() || zones.get(name).is_ok() {
        Ok(())
    } else {
        Err(unknown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
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
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(parse(bad), Err(why.to_owned()), "{bad}");
        }
    }

    #[test]
    fn time_zones() {
        assert_eq!(time_zone("UTC"), Ok(()));
        assert_eq!(time_zone("a b"), Err("unknown time zone a b".to_owned()));
        assert!(time_zone("Local").is_err());
    }
}
