//! Bytes in base64 as Go reads them: line breaks are passed over, and the bits that fill up the last
//! character may be anything. It writes them without either, and so do we.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, PAD, STANDARD};

/// Reads what Go reads.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, PAD.with_decode_allow_trailing_bits(true));

/// Decodes a text; returns `None` if it is not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if is_broken(text) {
        return LENIENT.decode(joined(text)).ok();
    }
    LENIENT.decode(text).ok()
}

/// Returns the bytes of a text, or the error that Go has for it.
pub fn decode_or_error(text: &str) -> Result<Vec<u8>, String> {
    decode(text).ok_or_else(|| illegal_base64(text))
}

fn illegal_base64(text: &str) -> String {
    let at = text
        .bytes()
        .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'\n' | b'\r')))
        .unwrap_or(text.len() / 4 * 4);
    format!("illegal base64 data at input byte {at}")
}

/// Returns the canonical form of a text if it differs from the text. A text that is not base64 stays.
pub fn canonical(text: &str) -> Option<String> {
    // Only the last four characters can have unused bits.
    let end = text.len().checked_sub(4).map_or(Some(text), |at| text.get(at..))?;
    if !is_broken(text) && STANDARD.decode(end).is_ok() {
        return None;
    }
    decode(text).map(|bytes| STANDARD.encode(bytes))
}

fn is_broken(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

fn joined(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_and_loose_bits_are_read_and_not_written() {
        for (sent, kept) in [
            ("YWJj\nZGVm\r\n", Some("YWJjZGVm")),
            ("YQ=\n=\n", Some("YQ==")),
            ("\n", Some("")),
            ("YR==", Some("YQ==")),
            ("YQ==", None),
            ("", None),
            ("YWJj", None),
        ] {
            assert!(decode(sent).is_some(), "{sent:?}");
            assert_eq!(canonical(sent).as_deref(), kept, "{sent:?}");
        }
        for wrong in ["YQ", "Y Q=", "é", "YQ==YQ==", "-_-_"] {
            assert_eq!((decode(wrong), canonical(wrong)), (None, None), "{wrong}");
        }
    }
}
