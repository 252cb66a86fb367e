//! PEM (RFC 7468): the blocks between `-----BEGIN` and `-----END`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One block.
pub(crate) struct Block {
    /// `CERTIFICATE`, `CERTIFICATE REQUEST`, …
    pub kind: String,
    /// True if there are headers before the content.
    pub headers: bool,
    pub bytes: Vec<u8>,
}

/// The blocks of a text, in order. What is none, or is broken, is passed over.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, from)) = rest.split_once("-----BEGIN ") {
        rest = from;
        let Some((kind, body)) = from.split_once("-----") else { break };
        let Some((body, after)) = body.split_once(&format!("-----END {kind}-----")) else { continue };
        let lines = body.lines().map(str::trim);
        let content: String = lines.filter(|line| !line.contains(':')).collect();
        if let Ok(bytes) = STANDARD.decode(content) {
            blocks.push(Block { kind: kind.to_owned(), headers: body.contains(':'), bytes });
            rest = after;
        }
    }
    blocks
}
