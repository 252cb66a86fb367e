//! The formats of text and numbers that Kubernetes checks. Others are taken for comments.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnetwork::IpNetwork;
use regex::Regex;

use super::Kind;
use apiserver_schema::validation::names;

/// A format that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format(&'static Row);

struct Row {
    /// The format's name in messages.
    name: &'static str,
    check: Check,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Row {}

enum Check {
    Text(fn(&str) -> bool),
    Number,
}

const fn text(name: &'static str, check: fn(&str) -> bool) -> Row {
    Row { name, check: Check::Text(check) }
}

const fn number(name: &'static str) -> Row {
    Row { name, check: Check::Number }
}

static TEXTS: [Row; 26] = [
    text("bsonobjectid", |t| t.len() == 24 && t.bytes().all(|b| b.is_ascii_hexdigit())),
    text("uri", is_uri),
    text("email", is_email),
    text("hostname", is_hostname),
    text("ipv4", |t| t.contains('.') && sloppy_ip(t)),
    text("ipv6", |t| t.contains(':') && sloppy_ip(t)),
    text("cidr", is_cidr),
    text("mac", is_mac),
    text("uuid", |t| is_uuid(t, None, false)),
    text("uuid3", |t| is_uuid(t, Some('3'), false)),
    text("uuid4", |t| is_uuid(t, Some('4'), true)),
    text("uuid5", |t| is_uuid(t, Some('5'), true)),
    text("isbn", |t| is_isbn10(t) || is_isbn13(t)),
    text("isbn10", is_isbn10),
    text("isbn13", is_isbn13),
    text("creditcard", is_credit_card),
    text("ssn", |t| SSN.is_match(t)),
    text("hexcolor", |t| HEX_COLOR.is_match(t)),
    text("rgbcolor", |t| RGB_COLOR.is_match(t)),
    text("byte", |t| STANDARD.decode(t).is_ok()),
    text("password", |_| true),
    text("date", |t| t.len() == 10 && t.parse::<jiff::civil::Date>().is_ok()),
    text("duration", is_duration),
    text("datetime", is_date_time),
    text("k8s-short-name", |t| names::dns_label(t).is_empty()),
    text("k8s-long-name", |t| names::dns_subdomain(t).is_empty()),
];

static INTEGERS: [Row; 2] = [number("int32"), number("int64")];
static NUMBERS: [Row; 2] = [number("float"), number("double")];

impl Format {
    /// The format of that name on values of that type, if it is one that is checked.
    pub fn of(name: &str, kind: Option<Kind>) -> Option<Self> {
        let rows: &'static [Row] = match kind {
            None | Some(Kind::String) => &TEXTS,
            Some(Kind::Integer) => &INTEGERS,
            Some(Kind::Number) => &NUMBERS,
            Some(_) => return None,
        };
        let plain = |name: &str| name.replace('-', "");
        rows.iter().find(|row| plain(row.name) == plain(name)).map(Self)
    }

    /// Its name without hyphens, as rules know it.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the format's name in messages about values.
    pub fn shown(self) -> &'static str {
        if self.0.name == "datetime" { "date-time" } else { self.0.name }
    }

    /// Returns `true` if a text has the format; formats of numbers accept every text.
    pub fn accepts(self, value: &str) -> bool {
        match self.0.check {
            Check::Text(check) => check(value),
            Check::Number => true,
        }
    }

    /// Returns `true` if it is a format of numbers.
    pub fn is_number(self) -> bool {
        matches!(self.0.check, Check::Number)
    }
}

/// Returns `true` if the format is checked on values of that type.
pub fn known(name: &str, kind: &str) -> bool {
    Format::of(name, Kind::parse(kind)).is_some()
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the expression is a constant that the tests compile")
}

static SSN: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| pattern(r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*";
    pattern(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static CARD: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
});
static LABEL: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"^[a-zA-Z0-9\p{S}\p{L}]([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?$")
});

/// With a scheme, or an absolute path.
fn is_uri(text: &str) -> bool {
    if text.bytes().any(|b| b.is_ascii_control() || b == b' ') {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        && !rest.is_empty()
}

/// `name@host`, or `Somebody <name@host>`.
fn is_email(text: &str) -> bool {
    let address = match text.strip_suffix('>') {
        Some(rest) => rest.rsplit_once('<').map(|(_, address)| address),
        None => Some(text),
    };
    let Some((local, domain)) = address.and_then(|a| a.rsplit_once('@')) else { return false };
    let word = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| !c.is_control() && !c.is_whitespace() && !"()<>[]:;@\\,\"".contains(c))
    };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || local.split('.').all(word)) && domain.split('.').all(word)
}

fn is_hostname(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && text.split('.').all(|label| label.len() <= 63 && LABEL.is_match(label))
}

/// Go read addresses with leading zeros for long, and schemas rely on it.
fn sloppy_ip(text: &str) -> bool {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().is_ok();
    }
    let plain: Vec<&str> = text.split('.').map(|part| part.trim_start_matches('0')).collect();
    let plain: Vec<&str> = plain.into_iter().map(|part| if part.is_empty() { "0" } else { part }).collect();
    text.split('.').all(|part| !part.is_empty()) && plain.join(".").parse::<Ipv4Addr>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        sloppy_ip(address)
            && length.bytes().all(|b| b.is_ascii_digit())
            && if address.contains(':') {
                text.parse::<IpNetwork>().is_ok()
            } else {
                length.parse::<u8>().is_ok_and(|length| length <= 32)
            }
    })
}

/// 6, 8 or 20 bytes, with colons, dashes or dots.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, size: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        let fits = matches!(parts.len() * size, 12 | 16 | 40);
        fits && parts.iter().all(|p| p.len() == size && p.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2) || groups('-', 2) || groups('.', 4)
}

/// `variant`: whether the digit after the version's group is one of 8, 9, a, b.
fn is_uuid(text: &str, version: Option<char>, variant: bool) -> bool {
    let plain = text.replace('-', "");
    let dashes = text.match_indices('-').map(|(at, _)| at);
    let digits = |at: usize| text[..at].bytes().filter(|b| *b != b'-').count();
    plain.len() == 32
        && plain.bytes().all(|b| b.is_ascii_hexdigit())
        && !text.contains("--")
        && dashes.into_iter().all(|at| matches!(digits(at), 8 | 12 | 16 | 20))
        && version.is_none_or(|v| plain[12..].starts_with(v))
        && (!variant || plain[16..].starts_with(['8', '9', 'a', 'b', 'A', 'B']))
}

fn without_separators(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '-' | ' ')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = without_separators(text);
    let bytes = text.as_bytes();
    let digit = |i: usize| match bytes[i] {
        b'X' if i == 9 => Some(10),
        b if b.is_ascii_digit() => Some(u32::from(b - b'0')),
        _ => None,
    };
    bytes.len() == 10
        && (0..10u32)
            .map(|i| digit(i as usize).map(|d| d * (i + 1)))
            .sum::<Option<u32>>()
            .is_some_and(|sum| sum % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let text = without_separators(text);
    let weighted = text.bytes().enumerate().map(|(i, b)| {
        b.is_ascii_digit().then(|| u32::from(b.wrapping_sub(b'0')) * if i % 2 == 0 { 1 } else { 3 })
    });
    text.len() == 13 && weighted.sum::<Option<u32>>().is_some_and(|sum| sum % 10 == 0)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let luhn = digits.bytes().rev().enumerate().map(|(i, b)| {
        let digit = u32::from(b - b'0') * if i % 2 == 0 { 1 } else { 2 };
        if digit > 9 { digit - 9 } else { digit }
    });
    CARD.is_match(&digits) && luhn.sum::<u32>() % 10 == 0
}

/// Go's durations (`1h2m`), and numbers with words (`22 seconds`).
fn is_duration(text: &str) -> bool {
    apiserver_meta::duration::parse(text).is_ok() || worded_duration(text)
}

fn worded_duration(text: &str) -> bool {
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    let known = |unit: &str| {
        let unit = unit.to_lowercase();
        UNITS
            .iter()
            .any(|names| names.contains(&unit.as_str()) || names.last().is_some_and(|n| unit.starts_with(n)))
    };
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = rest[start..].trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphabetic() && c != 'µ').unwrap_or(rest.len());
        if end > 0 && known(&rest[..end]) {
            return true;
        }
        rest = &rest[end..];
    }
    false
}

/// RFC 3339, and ISO 8601 without a zone.
fn is_date_time(text: &str) -> bool {
    let dated = text.get(10..11).is_some_and(|t| matches!(t, "T" | "t"));
    dated && (text.parse::<jiff::Timestamp>().is_ok() || text.parse::<jiff::civil::DateTime>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_formats() {
        let table: [(&str, &[&str], &[&str]); 20] = [
            ("uri", &["http://a/b", "/a", "urn:x"], &["a b", "a", "1:2"]),
            ("email", &["a@b.c", "A B <a@b>"], &["a", "@b", "a@", "a b@c"]),
            ("hostname", &["a", "a.b-c", "1.example.com"], &["", "-a", "a-", "a..b", "a_b"]),
            ("ipv4", &["10.0.0.1", "010.0.0.1"], &["10.0.0", "::1", "10.0.0.256", "a.b.c.d"]),
            ("ipv6", &["::1", "fd00::1"], &["10.0.0.1", ":::"]),
            ("cidr", &["10.0.0.0/8", "fd00::/8"], &["10.0.0.0", "10.0.0.0/33", "x/8"]),
            ("mac", &["00:00:5e:00:53:01", "0000.5e00.5301"], &["00:00", "zz:00:5e:00:53:01"]),
            ("uuid", &["7d444840-9dc0-11d1-b245-5ffdce74fad2"], &["7d444840", "--"]),
            ("uuid4", &["7d444840-9dc0-41d1-b245-5ffdce74fad2"], &["7d444840-9dc0-11d1-b245-5ffdce74fad2"]),
            ("isbn", &["0321751043", "978-0321751041"], &["0321751044", "x"]),
            ("creditcard", &["4012 8888 8888 1881"], &["4012888888881882", "1"]),
            ("ssn", &["123-45-6789"], &["123-45-678"]),
            ("hexcolor", &["#FFF", "a1b2c3"], &["#FFFF", "x"]),
            ("rgbcolor", &["rgb(1, 2,255)"], &["rgb(1,2)", "rgb(256,0,0)"]),
            ("byte", &["aGk=", ""], &["a", "*"]),
            ("date", &["2024-02-29"], &["2023-02-29", "2024-2-1", "x"]),
            ("date-time", &["2024-02-29T00:00:00Z", "2024-02-29T00:00:00.5+01:00"], &["2024-02-29", "x"]),
            ("duration", &["1h2m3.5s", "22 ns", "3 days", "0"], &["1", "x", ""]),
            ("k8s-short-name", &["a-b"], &["a.b", "A"]),
            ("k8s-long-name", &["a.b"], &["A", "a_"]),
        ];
        for (name, good, bad) in table {
            let format = Format::of(name, Some(Kind::String)).unwrap_or_else(|| panic!("{name}"));
            good.iter().for_each(|text| assert!(format.accepts(text), "{name} {text}"));
            bad.iter().for_each(|text| assert!(!format.accepts(text), "{name} {text}"));
        }
    }

    #[test]
    fn other_formats_and_types_are_not_checked() {
        assert!(Format::of("int32", Some(Kind::Integer)).is_some_and(Format::is_number));
        assert_eq!(Format::of("int32", Some(Kind::String)), None);
        assert_eq!(Format::of("ipv4", Some(Kind::Object)), None);
        assert!(!known("color", "string") && known("date-time", "string") && known("double", "number"));
    }
}
