//! Timestamps in the formats of `metav1.Time` and `metav1.MicroTime`, and ages as kubectl shows them.

use jiff::Timestamp;

/// Formats a timestamp as `2006-01-02T15:04:05Z`, without fractions.
pub fn rfc3339(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats the day of a timestamp as `2006-01-02`.
pub fn day(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%d").to_string()
}

/// Returns `true` if a text is a day as [`day`] formats it.
pub fn is_day(text: &str) -> bool {
    text.len() == 10 && text.as_bytes()[4] == b'-' && text.parse::<jiff::civil::Date>().is_ok()
}

/// Formats a timestamp as `2006-01-02T15:04:05.000000Z`, always with six fractional digits.
pub fn rfc3339_micro(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Parses an RFC 3339 timestamp with any offset; `None` if it is invalid.
pub fn parse(text: &str) -> Option<Timestamp> {
    // jiff accepts more notations than RFC 3339.
    let bytes = text.as_bytes();
    let shaped =
        bytes.len() >= 20 && bytes[4] == b'-' && matches!(bytes[10], b'T' | b't') && bytes[13] == b':';
    if !shaped || text.ends_with(']') {
        return None;
    }
    text.parse().ok()
}

/// Formats a duration in one or two units, coarser the longer it is: `5s`, `3m20s`, `47h`, `3d4h`, `2y10d`.
pub fn human(seconds: i64) -> String {
    let two = |big: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(hours / 24, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => two(hours / 24 / 365, 'y', hours / 24 % 365, 'd'),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// Formats how long ago `moment` was, for a table column; `<unknown>` if there is no such time.
pub fn age(moment: Option<&str>, now: Timestamp) -> String {
    match moment.and_then(parse) {
        Some(moment) => human(now.as_second() - moment.as_second()),
        None => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_formatted_and_recognized() {
        assert_eq!(day(parse("2026-01-02T23:59:59Z").unwrap()), "2026-01-02");
        assert!(is_day("2026-01-02"));
        for text in
            ["", "2026-13-01", "2026-1-2", "20260102", "2026-01-02T00:00:00Z", "2026/01/02", "ä026-01-0"]
        {
            assert!(!is_day(text), "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_as_in_kubectl() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (179 * 60 + 59, "179m"),
            (180 * 60, "3h"),
            (3 * 3600 + 60 * 7, "3h7m"),
            (8 * 3600 + 60, "8h"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (50 * 3600, "2d2h"),
            (8 * 86400 + 3600, "8d"),
            (729 * 86400, "729d"),
            (2 * 365 * 86400, "2y"),
            (2 * 365 * 86400 + 86400, "2y1d"),
            (9 * 365 * 86400, "9y"),
        ];
        for (seconds, text) in cases {
            assert_eq!(human(seconds), text, "{seconds} s");
        }
    }

    #[test]
    fn timestamps_are_parsed_and_formatted() {
        let moment = parse("2024-02-29T12:34:56.789012345+02:00").unwrap();
        assert_eq!(rfc3339(moment), "2024-02-29T10:34:56Z");
        assert_eq!(rfc3339_micro(moment), "2024-02-29T10:34:56.789012Z");
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse("2024-02-29"), None);
        assert_eq!(age(None, moment), "<unknown>");
        assert_eq!(age(Some("2024-02-29T10:34:00Z"), moment), "56s");
    }
}
