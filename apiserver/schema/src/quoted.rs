//! Texts as Go quotes them.

/// A text as Go's `%q` writes it.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            other if other.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(other))),
            other if other.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(other))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, wanted) in [
            ("spec.a", r#""spec.a""#),
            ("spec.\"", r#""spec.\"""#),
            ("spec.\\", r#""spec.\\""#),
            ("line\nbreak", r#""line\nbreak""#),
            ("\u{7f}é", r#""\x7fé""#),
        ] {
            assert_eq!(quoted(text), wanted);
        }
    }
}
