//! The grammar of labels, and of other names that follow it.

/// Longest value of a label, and longest key without its prefix.
const PART: usize = 63;
/// Longest prefix of a key.
const PREFIX: usize = 253;

/// Returns `true` if a text can be the value of a label.
pub fn is_value(text: &str) -> bool {
    text.is_empty() || is_part(text)
}

/// Returns `true` if a text can be the key of a label or the name of a resource: `name` or `prefix/name`, with a DNS
/// subdomain as the prefix.
pub fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_part(name),
        None => is_part(text),
    }
}

fn is_part(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= PART && ends(text, |byte| byte.is_ascii_alphanumeric()) && text.bytes().all(inner)
}

/// Returns `true` if a text is a DNS subdomain, as most names of objects are.
pub fn is_subdomain(text: &str) -> bool {
    let end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| ends(label, end) && label.bytes().all(|byte| end(byte) || byte == b'-');
    text.len() <= PREFIX && text.split('.').all(is_label)
}

/// Returns `true` if the text is not empty, and its first and last byte are good.
fn ends(text: &str, good: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| good(*byte)) && bytes.last().is_some_and(|byte| good(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_be_empty_and_end_with_letters_or_digits() {
        for good in ["", "a", "A.b_c-9", "0".repeat(63).as_str()] {
            assert!(is_value(good), "{good}");
        }
        for bad in ["-a", "a-", "a b", "a/b", "ä", "0".repeat(64).as_str()] {
            assert!(!is_value(bad), "{bad}");
        }
    }

    #[test]
    fn keys_may_have_a_subdomain_as_prefix() {
        for good in ["a", "A_b", "example.com/a", "a-1.b/C"] {
            assert!(is_key(good), "{good}");
        }
        for bad in
            ["", "/a", "a/", "a/b/c", "Example.com/a", "a..b/c", "-a/b", &format!("a/{}", "b".repeat(64))]
        {
            assert!(!is_key(bad), "{bad}");
        }
        assert!(!is_key(&format!("{}/a", "a".repeat(254))));
    }
}
