//! PEM encoding (RFC 7468), formatted as by Go and OpenSSL.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Number of characters in a line.
const LINE: usize = 64;

/// Encodes a block of a `kind` such as `CERTIFICATE`.
pub fn encode(kind: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {kind}-----\n");
    let encoded = BASE64.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {kind}-----\n"));
    text
}
