//! Writes DER (X.690), as far as certificates need it.

use jiff::Timestamp;
use jiff::tz::TimeZone;

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const NULL: u8 = 0x05;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// Returns a value with its tag and length.
pub(super) fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            // A length has at most eight bytes.
            out.push(0x80 | bytes.len() as u8);
            out.extend(bytes);
        }
    }
    out.extend_from_slice(content);
    out
}

/// Returns a SEQUENCE of encoded values.
pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    value(SEQUENCE, &parts.concat())
}

/// Returns a context-specific, constructed value.
pub(super) fn explicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0xa0 | number, content)
}

/// Returns a context-specific, primitive value.
pub(super) fn implicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0x80 | number, content)
}

/// Returns an OBJECT IDENTIFIER of two arcs or more.
pub(super) fn oid(arcs: &[u64]) -> Vec<u8> {
    let [first, second, rest @ ..] = arcs else { return value(OID, &[]) };
    let mut content = Vec::new();
    for arc in std::iter::once(&(first * 40 + second)).chain(rest) {
        let mut groups = vec![(arc & 0x7f) as u8];
        let mut left = arc >> 7;
        while left > 0 {
            groups.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        content.extend(groups.iter().rev());
    }
    value(OID, &content)
}

/// Returns a RelativeDistinguishedName of one attribute.
pub(super) fn attribute(id: &[u64], text: &str) -> Vec<u8> {
    value(SET, &sequence(&[&oid(id), &value(UTF8_STRING, text.as_bytes())]))
}

/// Returns a BIT STRING of whole bytes.
pub(super) fn bits(content: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[0], content].concat())
}

/// Returns a BIT STRING of flags without trailing zeros; flag 0 comes first.
pub(super) fn flags(numbers: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let set = numbers.into_iter().fold(0u16, |set, number| set | (0x8000 >> number));
    let bytes = set.to_be_bytes();
    let used = if bytes[1] == 0 { &bytes[..1] } else { &bytes[..] };
    let unused = used.last().map_or(0, |byte| byte.trailing_zeros().min(7)) as u8;
    value(BIT_STRING, &[&[unused], used].concat())
}

/// Returns a point in time as certificates have it: UTCTime up to 2049, GeneralizedTime after that.
pub(super) fn time(time: Timestamp) -> Vec<u8> {
    let time = time.to_zoned(TimeZone::UTC);
    let rest = time.strftime("%m%d%H%M%SZ").to_string();
    match time.year() {
        1950..2050 => value(UTC_TIME, format!("{:02}{rest}", time.year() % 100).as_bytes()),
        year => value(GENERALIZED_TIME, format!("{year:04}{rest}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_x690_has_them() {
        assert_eq!(value(OCTET_STRING, &[1, 2]), [4, 2, 1, 2]);
        assert_eq!(value(OCTET_STRING, &[0; 200])[..3], [4, 0x81, 200]);
        assert_eq!(value(OCTET_STRING, &[0; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(oid(&[1, 2, 840, 113_549]), [6, 6, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]);
        assert_eq!(oid(&[2, 5, 29, 17]), [6, 3, 0x55, 0x1d, 0x11]);
        let attributes = [0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 3, 12, 1, b'a'];
        assert_eq!(attribute(&[2, 5, 4, 3], "a"), attributes);
        assert_eq!(flags([0]), [3, 2, 7, 0x80]);
        assert_eq!(flags([0, 2]), [3, 2, 5, 0xa0]);
        assert_eq!(flags([8]), [3, 3, 7, 0, 0x80]);
        assert_eq!(time("2026-06-01T12:03:04Z".parse().unwrap())[2..], *b"260601120304Z");
        assert_eq!(time("2050-06-01T12:03:04Z".parse().unwrap())[2..], *b"20500601120304Z");
    }
}
