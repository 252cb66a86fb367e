//! Texts that are no Unicode. Go's JSON decoder puts U+FFFD in the place of each byte that belongs to no
//! character, and of each half of a surrogate pair without the other, and goes on.

use std::borrow::Cow;

/// The text with what is no Unicode replaced; `None` if there is nothing to replace. It is meant for
/// bodies that could not be read otherwise.
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

/// The text without single surrogates among its escapes, if it has such. In JSON there are no escapes but
/// in strings.
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
            // The backslash and what it stands before, which may have more than one byte.
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    changed.then_some(out)
}

/// The number of the escape `\uXXXX` that the text begins with.
fn escaped(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_unicode_is_replaced_and_nothing_else() {
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
}
