//! Texts that are not Unicode. Go's JSON decoder replaces each byte that belongs to no character, and each
//! unpaired surrogate, by U+FFFD and goes on; its YAML decoder refuses them.

use std::borrow::Cow;

/// Returns the text with bytes that are not Unicode replaced; `None` if there is nothing to replace. It is
/// meant for bodies that could not be read otherwise.
pub fn replaced(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = unicode(bytes);
    let whole = pairs(&text);
    match (&text, whole) {
        (_, Some(whole)) => Some(whole.into_bytes()),
        (Cow::Owned(_), None) => Some(text.into_owned().into_bytes()),
        (Cow::Borrowed(_), None) => None,
    }
}

fn unicode(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(out)
}

/// Returns the text without unpaired surrogates among its escapes, if it has any. In JSON only strings have
/// escapes.
fn pairs(text: &str) -> Option<String> {
    let (mut out, mut rest, mut changed) = (String::new(), text, false);
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_low = |escape: Option<u32>| matches!(escape, Some(0xdc00..=0xdfff));
        let length = match escaped(rest) {
            Some(0xd800..=0xdbff) if is_low(rest.get(6..).and_then(escaped)) => 12,
            Some(0xd800..=0xdfff) => {
                changed = true;
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            Some(_) => 6,
            // The backslash and the character after it, which may have more than one byte.
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    changed.then_some(out)
}

/// Returns the number of the escape `\uXXXX` that the text begins with.
fn escaped(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

/// Returns the text of a YAML body without its byte order mark; the error for bytes that are not Unicode, or
/// a character that YAML does not allow, is in the words of Go's reader.
pub fn of_yaml(bytes: &[u8]) -> Result<&str, String> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(is_printable) => Ok(text),
        Ok(_) => Err("control characters are not allowed".to_owned()),
        Err(error) => {
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            // The first fault in the text is reported.
            let controls = std::str::from_utf8(valid).is_ok_and(|text| !text.chars().all(is_printable));
            let why = if controls { "control characters are not allowed" } else { octets(rest) };
            Err(why.to_owned())
        }
    }
}

/// Returns `true` if YAML 1.1 allows the character (section 5.1); a byte order mark may only begin the text.
fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}'
        | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
}

/// Returns the fault of octets that do not begin a character.
fn octets(rest: &[u8]) -> &'static str {
    let width = match rest.first() {
        Some(0xc0..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf7) => 4,
        _ => return "invalid leading UTF-8 octet",
    };
    let Some(octets) = rest.get(..width) else { return "incomplete UTF-8 octet sequence" };
    if octets[1..].iter().any(|octet| octet & 0xc0 != 0x80) {
        return "invalid trailing UTF-8 octet";
    }
    let lead = u32::from(octets[0]) & (0x7f >> width);
    let value = octets[1..].iter().fold(lead, |value, octet| value << 6 | u32::from(octet & 0x3f));
    let least = [0x80, 0x800, 0x10000][width - 2];
    if value < least { "invalid length of a UTF-8 sequence" } else { "invalid Unicode character" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invalid_unicode_is_replaced() {
        for (sent, read) in [
            (&b"\"\xff\xfe\""[..], Some("\"\u{fffd}\u{fffd}\"")),
            (b"\"\xe2\x82\"", Some("\"\u{fffd}\u{fffd}\"")),
            (br#""\ud800""#, Some(r#""\ufffd""#)),
            (br#""\udc00\ud800x""#, Some(r#""\ufffd\ufffdx""#)),
            (br#""\ud83d\ude00\ud83d""#, Some(r#""\ud83d\ude00\ufffd""#)),
            (br#""\ud83d\ude00""#, None),
            (br#""\\ud800""#, None),
            (br#""\n\u00e9\"""#, None),
            (br#""\ud8"#, None),
            (b"\"\\", None),
        ] {
            assert_eq!(replaced(sent).as_deref(), read.map(str::as_bytes), "{}", sent.escape_ascii());
        }
    }

    #[test]
    fn yaml_is_text_that_can_be_printed() {
        for (bytes, read) in [
            (&b"a: b\r\n\t"[..], Ok("a: b\r\n\t")),
            ("\u{feff}a: \u{e9}\u{1f600}".as_bytes(), Ok("a: \u{e9}\u{1f600}")),
            (b"a: \xff", Err("invalid leading UTF-8 octet")),
            (b"a: \x80", Err("invalid leading UTF-8 octet")),
            (b"a: \xe2\x82", Err("incomplete UTF-8 octet sequence")),
            (b"a: \xe2\x82\x28", Err("invalid trailing UTF-8 octet")),
            (b"a: \xc0\x80", Err("invalid length of a UTF-8 sequence")),
            (b"a: \xed\xa0\x80", Err("invalid Unicode character")),
            (b"a: \xf7\xbf\xbf\xbf", Err("invalid Unicode character")),
            (b"a: \x01", Err("control characters are not allowed")),
            (b"a: \x7f", Err("control characters are not allowed")),
            (b"\x01 \xff", Err("control characters are not allowed")),
            ("a: \u{feff}".as_bytes(), Err("control characters are not allowed")),
        ] {
            assert_eq!(of_yaml(bytes), read.map_err(str::to_owned), "{}", bytes.escape_ascii());
        }
    }
}
