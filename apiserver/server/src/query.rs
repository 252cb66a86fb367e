//! Query parameters, decoded.

use std::time::Duration;

use apiserver_meta::duration;
use apiserver_schema::error::ApiError;

/// Decoded query parameters in their order.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=1&b=%2F`. A pair with a semicolon, or with what looks like an escape and is none, is
    /// passed over, as Go does.
    pub fn parse(raw: &str) -> Self {
        let pairs = raw.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        let whole = pairs.filter(|pair| {
            pair.match_indices('%').all(|(at, _)| {
                pair.as_bytes().get(at + 1..at + 3).is_some_and(|digits| hex(digits).is_some())
            })
        });
        let decoded = whole.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true), decode(value, true))
        });
        Self(decoded.collect())
    }

    /// Returns the first value; `""` counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|v| !v.is_empty())
    }

    /// Returns all values of the parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Parses a boolean as Kubernetes does: present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        value.is_some_and(|v| !v.eq_ignore_ascii_case("false") && v != "0")
    }

    /// Returns a whole number, with Go's words where it is none: `ListOptions` are read so. A value that is there
    /// and empty is 400 too.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let raw = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        raw.map(whole).transpose()
    }

    /// Returns a span such as `1m30s`; 400 where it is none.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>, ApiError> {
        self.get(name).map(duration).transpose().map_err(|why| {
            ApiError::bad_request(format!("invalid timeout specified in the request URL - {why}"))
        })
    }
}

/// Returns a whole number as Go reads it; 400.
pub fn whole(text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let why = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    })
}

/// Parses a duration in Go's format; a negative one is 0.
fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = duration::parse(text).map_err(|error| format!("time: {error}"))?;
    Ok(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)))
}

/// Decodes percent escapes; malformed escapes stay, and bytes that are not UTF-8 are replaced.
pub fn decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let escaped = (byte == b'%').then(|| bytes.get(i + 1..i + 3).and_then(hex)).flatten();
        match escaped {
            Some(value) => {
                out.push(value);
                i += 3;
            }
            None => {
                out.push(if byte == b'+' && plus_is_space { b' ' } else { byte });
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(pair: &[u8]) -> Option<u8> {
    let digit = |b: u8| char::from(b).to_digit(16);
    match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_flags() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch=1&x=&follow=false&t=a+b%25");
        assert_eq!(query.get("labelSelector"), Some("a=b,c"));
        assert_eq!(query.get("x"), None);
        assert!(query.flag("watch"));
        assert!(query.flag("x"));
        assert!(!query.flag("follow"));
        assert!(!query.flag("absent"));
        assert_eq!(query.get("t"), Some("a b%"));
        let passed_over = Query::parse("a=1;b=2&c=%&d=%2&e=%zz&f%=1&g=1");
        assert_eq!(passed_over.0, [("g".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn numbers_and_durations_are_read_as_go_reads_them() {
        let number = |text: &str| Query::parse(text).integer("n").map_err(|error| error.message);
        assert_eq!(number(""), Ok(None));
        assert_eq!((number("n=7"), number("n=-1")), (Ok(Some(7)), Ok(Some(-1))));
        assert_eq!(number("n=x").unwrap_err(), r#"strconv.ParseInt: parsing "x": invalid syntax"#);
        assert_eq!(number("n=").unwrap_err(), r#"strconv.ParseInt: parsing "": invalid syntax"#);
        assert!(number("n=99999999999999999999").unwrap_err().ends_with("value out of range"));
        let seconds = |text: &str| duration(text).map(|duration| duration.as_secs_f64());
        for (text, expected) in [("1m30s", 90.0), ("1.5s", 1.5), ("0", 0.0), ("-5s", 0.0), ("250ms", 0.25)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        assert_eq!(duration("5").unwrap_err(), r#"time: missing unit in duration "5""#);
        assert_eq!(duration("5x").unwrap_err(), r#"time: unknown unit "x" in duration "5x""#);
        assert_eq!(duration("1..2s").unwrap_err(), r#"time: missing unit in duration "1..2s""#);
        for bad in ["s", "invalid", "-", "99999999999h"] {
            assert!(duration(bad).unwrap_err().starts_with("time: invalid duration"), "{bad}");
        }
    }
}
