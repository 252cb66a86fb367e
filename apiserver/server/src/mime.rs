//! Media types of bodies, read as strictly as Go's `mime` package reads them.

use std::collections::BTreeMap;

/// Returns the media type without its parameters, in small letters; `None` where it, or a parameter, is none.
pub fn media_type(text: &str) -> Option<String> {
    let base = text.split(';').next().unwrap_or_default();
    let media = base.trim().to_lowercase();
    let (main, rest) = token(&media);
    let (sub, end) = if rest.is_empty() { ("-", "") } else { token(rest.strip_prefix('/')?) };
    if main.is_empty() || sub.is_empty() || !end.is_empty() {
        return None;
    }
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut rest = text[base.len()..].trim_start();
    while !rest.is_empty() {
        let Some((key, value, after)) = parameter(rest) else {
            return (rest.trim() == ";").then_some(media);
        };
        if *seen.entry(key).or_insert_with(|| value.clone()) != value {
            return None;
        }
        rest = after.trim_start();
    }
    Some(media)
}

/// `;key=value` and what follows it.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let (key, rest) = token(text.strip_prefix(';')?.trim_start());
    if key.is_empty() {
        return None;
    }
    let rest = rest.trim_start().strip_prefix('=')?.trim_start();
    let (value, after) = match rest.strip_prefix('"') {
        Some(inner) => quoted(inner)?,
        None => {
            let (value, after) = token(rest);
            if value.is_empty() {
                return None;
            }
            (value.to_owned(), after)
        }
    };
    Some((key.to_lowercase(), value, after))
}

/// Returns the text up to the closing quote, and the rest after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            // Go leaves other backslashes alone, for the paths of Windows.
            '\\' if letters.peek().is_some_and(|(_, next)| SPECIAL.contains(*next)) => {
                value.extend(letters.next().map(|(_, next)| next));
            }
            '\r' | '\n' => return None,
            letter => value.push(letter),
        }
    }
    None
}

/// The characters that cannot be part of a token.
const SPECIAL: &str = "()<>@,;:\\\"/[]?=";

fn token(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_graphic() || SPECIAL.contains(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_read_exactly_as_in_go() {
        let json = Some("application/json".to_owned());
        for text in [
            "application/json",
            " Application/JSON ",
            "application/json;",
            "application/json; charset=utf-8",
            "application/json ; Charset = \"utf-8\" ; charset=utf-8",
            r#"application/json;a="x\"y;z=""#,
        ] {
            assert_eq!(media_type(text), json, "{text}");
        }
        assert_eq!(media_type("json").as_deref(), Some("json"));
        for text in [
            "",
            " ",
            ";charset=utf-8",
            "application/",
            "/json",
            "application json",
            "application/json/x",
            "application/json;;",
            "application/json;charset",
            "application/json;charset=",
            "application/json;=utf-8",
            "application/json;a=\"x",
            "application/json;a=1;a=2",
            "application/json, text/plain",
        ] {
            assert_eq!(media_type(text), None, "{text}");
        }
    }
}
