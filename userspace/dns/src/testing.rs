//! Messages for tests.

/// Returns a query for a name; EDNS is the size and whether DNSSEC is wanted.
pub fn question(id: u16, name: &str, kind: u16, edns: Option<(u16, bool)>) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(id.to_be_bytes());
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns.is_some())]);
    for label in name.trim_end_matches('.').split('.').filter(|label| !label.is_empty()) {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    if let Some((size, dnssec)) = edns {
        message.extend([0, 0, 41]);
        message.extend(size.to_be_bytes());
        message.extend([0, 0, if dnssec { 0x80 } else { 0 }, 0, 0, 0]);
    }
    message
}
