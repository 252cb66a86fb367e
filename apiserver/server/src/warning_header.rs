//! The `Warning` headers of one answer (RFC 7234, section 5.5): code 299, no agent, and the text of
//! the warning as a quoted string.
//!
//! Their text is bounded as in Kubernetes: when all warnings together have more than
//! [`limits::WARNING_CHARS`] characters, each is cut to [`limits::CUT_WARNING_CHARS`], and no
//! further one is sent once as many characters have been.

use http::HeaderValue;

use crate::limits;

/// Returns the values of the `Warning` headers for `warnings`, in their order.
///
/// A text with control characters cannot be sent in a header and is left out.
pub fn values(warnings: &[String]) -> Vec<HeaderValue> {
    let total: usize = warnings.iter().map(|text| text.chars().count()).sum();
    let item = if total > limits::WARNING_CHARS { limits::CUT_WARNING_CHARS } else { total };
    let mut sent = 0;
    let mut values = Vec::new();
    for text in warnings {
        if sent >= limits::WARNING_CHARS {
            break;
        }
        let text = shortened(text, item);
        if text.chars().any(char::is_control) {
            continue;
        }
        sent += text.chars().count();
        values.extend(HeaderValue::from_bytes(quoted(text).as_bytes()));
    }
    values
}

/// `text` without what follows its first `most` characters.
pub fn shortened(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

/// `text` as the value of a header: a quoted string after the code and the agent.
fn quoted(text: &str) -> String {
    let mut value = String::with_capacity(text.len() + 8);
    value.push_str("299 - \"");
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            value.push('\\');
        }
        value.push(c);
    }
    value.push('"');
    value
}

#[cfg(test)]
mod tests {
    use super::values;
    use crate::limits::{CUT_WARNING_CHARS, WARNING_CHARS};

    fn texts(warnings: &[&str]) -> Vec<String> {
        let warnings: Vec<String> = warnings.iter().map(|&text| text.to_owned()).collect();
        values(&warnings).iter().map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap()).collect()
    }

    #[test]
    fn warnings_that_fit_are_sent_whole() {
        assert_eq!(
            texts(&[r#"unknown field "a\b""#, "größer"]),
            [r#"299 - "unknown field \"a\\b\"""#, r#"299 - "größer""#]
        );
        let whole = "x".repeat(WARNING_CHARS);
        assert_eq!(texts(&[&whole]), [format!("299 - \"{whole}\"")]);
    }

    #[test]
    fn warnings_that_are_too_long_together_are_each_cut() {
        let long = "ä".repeat(WARNING_CHARS);
        let cut = format!("299 - \"{}\"", "ä".repeat(CUT_WARNING_CHARS));
        assert_eq!(texts(&["short", &long]), ["299 - \"short\"".to_owned(), cut.clone()]);
        let many = vec![long.as_str(); 40];
        assert_eq!(texts(&many), vec![cut; WARNING_CHARS / CUT_WARNING_CHARS]);
    }

    #[test]
    fn a_warning_with_control_characters_is_left_out() {
        assert_eq!(texts(&["a\r\nSet-Cookie: b", "c"]), ["299 - \"c\""]);
    }
}
