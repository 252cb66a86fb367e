//! Query parameters, decoded.

use apiserver_api::error::ApiError;

/// Decoded query parameters in their order.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=1&b=%2F`.
    pub fn parse(raw: &str) -> Self {
        let pairs = raw.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true), decode(value, true))
        });
        Self(pairs.collect())
    }

    /// The first value; `""` counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|v| !v.is_empty())
    }

    /// All values.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A boolean as Kubernetes reads it: present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        value.is_some_and(|v| !v.eq_ignore_ascii_case("false") && v != "0")
    }

    /// A whole number, with Go's words where it is none: `ListOptions` are read so.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()) else {
            return Ok(None);
        };
        let number = text.parse::<i64>().map_err(|error| {
            use std::num::IntErrorKind::{NegOverflow, PosOverflow};
            let large = matches!(error.kind(), PosOverflow | NegOverflow);
            let why = if large { "value out of range" } else { "invalid syntax" };
            ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
        })?;
        Ok(Some(number))
    }
}

/// Percent-decoding; what is no escape stays as it is, and what is not UTF-8 is replaced.
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
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch=1&x=&follow=false&t=a+b%");
        assert_eq!(query.get("labelSelector"), Some("a=b,c"));
        assert_eq!(query.get("x"), None);
        assert!(query.flag("watch"));
        assert!(query.flag("x"));
        assert!(!query.flag("follow"));
        assert!(!query.flag("absent"));
        assert_eq!(query.get("t"), Some("a b%"));
        let limit = |text: &str| Query::parse(text).integer("limit");
        assert_eq!((limit("limit=-1"), limit("x=1")), (Ok(Some(-1)), Ok(None)));
        assert_eq!(limit("limit=").unwrap_err().message, "strconv.ParseInt: parsing \"\": invalid syntax");
    }
}
