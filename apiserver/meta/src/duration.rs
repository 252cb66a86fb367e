//! Durations as Go writes them: numbers with units, one after the other, such as `1h2m3.5s`.

use std::fmt;

/// Units with their nanoseconds. Both characters that look like a micro sign are accepted.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits of a fraction that can matter: more are below a nanosecond in every unit.
const FRACTION_DIGITS: usize = 18;

/// A text is not a duration. The message is that of Go's `time.ParseDuration`, without its prefix `time: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurationError {
    text: String,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    Invalid,
    MissingUnit,
    UnknownUnit(String),
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match &self.fault {
            Fault::Invalid => write!(f, "invalid duration {text:?}"),
            Fault::MissingUnit => write!(f, "missing unit in duration {text:?}"),
            Fault::UnknownUnit(unit) => write!(f, "unknown unit {unit:?} in duration {text:?}"),
        }
    }
}

impl std::error::Error for DurationError {}

/// Returns the nanoseconds of a duration, which may have a sign; `0` needs no unit.
///
/// # Errors
/// Fails if a number or its unit is missing, if there is no such unit, and if the duration exceeds 64 bits
/// with a sign (some 292 years).
pub fn parse(text: &str) -> Result<i64, DurationError> {
    read(text).map_err(|fault| DurationError { text: text.to_owned(), fault })
}

fn read(text: &str) -> Result<i64, Fault> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(Fault::Invalid);
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (whole, after) = leading_digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), leading_digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(Fault::Invalid);
        }
        let (name, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        if name.is_empty() {
            return Err(Fault::MissingUnit);
        }
        let known = UNITS.into_iter().find(|(unit, _)| *unit == name);
        let (_, unit) = known.ok_or_else(|| Fault::UnknownUnit(name.to_owned()))?;
        let part = amount(whole, fraction, unit).ok_or(Fault::Invalid)?;
        total = total.checked_add(part).ok_or(Fault::Invalid)?;
        rest = after;
    }
    i64::try_from(sign * total).map_err(|_| Fault::Invalid)
}

/// Returns the nanoseconds of a number with a unit; `None` if it is too large.
fn amount(whole: &str, fraction: &str, unit: i128) -> Option<i128> {
    let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<i128>().ok() };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let below = number(fraction)? * unit / 10_i128.pow(fraction.len() as u32);
    number(whole)?.checked_mul(unit)?.checked_add(below)
}

fn leading_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_read_to_the_nanosecond() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("1h0m0s", 3_600_000_000_000),
            ("1.s", 1_000_000_000),
            (".5m", 30_000_000_000),
            ("-1h2m3.5s", -3_723_500_000_000),
            ("+300ms", 300_000_000),
            ("1us2\u{b5}s3\u{3bc}s4ns", 6_004),
            ("0.100000000000000000000h", 360_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_in_the_words_of_go() {
        for (text, expected) in [
            ("", "invalid duration \"\""),
            ("-", "invalid duration \"-\""),
            ("s", "invalid duration \"s\""),
            (".s", "invalid duration \".s\""),
            ("1..s", "missing unit in duration \"1..s\""),
            ("3", "missing unit in duration \"3\""),
            ("1h2", "missing unit in duration \"1h2\""),
            ("1d", "unknown unit \"d\" in duration \"1d\""),
            ("1 s", "unknown unit \" s\" in duration \"1 s\""),
            ("9223372036854775808ns", "invalid duration"),
            ("99999999999999999999999999999999999999999h", "invalid duration"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
