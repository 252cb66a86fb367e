//! Regular expressions of schemas. They are written in Go's dialect (RE2); a linear-time engine
//! of nearly the same dialect runs them, after a translation of what differs.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// Longest expression, bytes.
const LENGTH: usize = 32 * 1024;
/// Memory of a compiled expression, bytes. `^[\p{L}]{1,253}$` takes about 2 MiB.
const PROGRAM: usize = 8 * 1024 * 1024;
/// Memory of the states that are made while matching, bytes.
const STATES: usize = 2 * 1024 * 1024;
/// Nesting of groups.
const NESTING: u32 = 250;
/// Largest repetition, as in Go.
const REPETITION: u32 = 1000;

/// An expression, compiled when it is first used.
pub struct Pattern {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    /// An expression that need not be valid: an invalid one matches nothing.
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), compiled: OnceLock::new() }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the text contains a match; in time linear in both.
    pub fn is_match(&self, text: &str) -> bool {
        self.compiled.get_or_init(|| compile(&self.text).ok()).as_ref().is_some_and(|r| r.is_match(text))
    }
}

impl Clone for Pattern {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), compiled: self.compiled.clone() }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

/// Compiles an expression within bounds; the error says what is wrong with it.
pub fn compile(text: &str) -> Result<Regex, String> {
    if text.len() > LENGTH {
        return Err(format!("expression is longer than {LENGTH} bytes"));
    }
    RegexBuilder::new(&translate(text)?)
        .size_limit(PROGRAM)
        .dfa_size_limit(STATES)
        .nest_limit(NESTING)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(text) => {
                let last = text.lines().last().unwrap_or_default();
                format!("error parsing regexp: {}", last.strip_prefix("error: ").unwrap_or(last))
            }
            regex::Error::CompiledTooBig(limit) => {
                format!("expression needs more than {limit} bytes compiled")
            }
            other => other.to_string(),
        })
}

/// From Go's dialect to that of the engine: in Go `\d`, `\w`, `\s` and `\b` mean ASCII, `[`, `&&`
/// and `--` are plain inside of classes, `{` is plain where it begins no repetition, and `\Q…\E`
/// quotes.
fn translate(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\\' => escape(&mut rest, &mut out, false)?,
            '[' => class(&mut rest, &mut out)?,
            '{' => repetition(&mut rest, &mut out)?,
            other => out.push(other),
        }
    }
    Ok(out)
}

fn escape(rest: &mut Peekable<Chars<'_>>, out: &mut String, in_class: bool) -> Result<(), String> {
    let Some(character) = rest.next() else {
        return Err("error parsing regexp: trailing backslash at end of expression".to_owned());
    };
    let (open, close) = if in_class { ("", "") } else { ("[", "]") };
    match character {
        'd' => out.push_str(&format!("{open}0-9{close}")),
        'w' => out.push_str(&format!("{open}0-9A-Za-z_{close}")),
        's' => out.push_str(&format!("{open}\\t\\n\\x0C\\r {close}")),
        'D' => out.push_str("[^0-9]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        'S' => out.push_str("[^\\t\\n\\x0C\\r ]"),
        'b' | 'B' if !in_class => out.push_str(&format!("(?-u:\\{character})")),
        'Q' if !in_class => quoted(rest, out),
        '<' | '>' => out.push(character),
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    Ok(())
}

fn quoted(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    while let Some(character) = rest.next() {
        if character == '\\' && rest.peek() == Some(&'E') {
            rest.next();
            return;
        }
        out.push_str(&regex::escape(&character.to_string()));
    }
}

/// What follows `[`, to the closing bracket.
fn class(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    out.push('[');
    if rest.peek() == Some(&'^') {
        out.extend(rest.next());
    }
    let mut first = true;
    while let Some(character) = rest.next() {
        match character {
            ']' if !first => {
                out.push(']');
                return Ok(());
            }
            ']' => out.push_str("\\]"),
            '\\' => escape(rest, out, true)?,
            '[' if rest.peek() == Some(&':') => {
                // `[:alpha:]`
                out.push('[');
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' => {
                out.push('\\');
                out.push(character);
            }
            // Twice in a row it would subtract.
            '-' if rest.peek() == Some(&'-') => out.push_str("\\-"),
            other => out.push(other),
        }
        first = false;
    }
    Err("error parsing regexp: missing closing ]".to_owned())
}

/// What follows `{`: a repetition, or a plain brace.
fn repetition(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let ahead: String = rest.clone().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
    let closed = rest.clone().nth(ahead.len()) == Some('}');
    let mut bounds = ahead.splitn(2, ',');
    let least = bounds.next().unwrap_or_default();
    let most = bounds.next().unwrap_or_default();
    if !closed || least.is_empty() || most.contains(',') {
        out.push_str("\\{");
        return Ok(());
    }
    for bound in [least, most] {
        if !bound.is_empty() && bound.parse().map_or(true, |n: u32| n > REPETITION) {
            return Err(format!("error parsing regexp: invalid repeat count: `{{{ahead}}}`"));
        }
    }
    out.push('{');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_is_that_of_go() {
        let table = [
            (r"^\d+$", "12", true),
            (r"^\d+$", "१२", false),
            (r"^\w+$", "é", false),
            (r"^[\w.-]+$", "a.b-c", true),
            (r"^[[a]+$", "[a", true),
            (r"^[a&&b]+$", "&a", true),
            (r"^[!--]+$", "-!", true),
            (r"^[]a]+$", "]a", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^a{2,}$", "aaa", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^\Qa.b\E$", "a.b", true),
            (r"\bfoo\b", "a foo b", true),
            (r"^\<a\>$", "<a>", true),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^[^\S]+$", " ", true),
            (r"^\/a$", "/a", true),
            (r"^{a}$", "{a}", true),
        ];
        for (pattern, text, matches) in table {
            assert!(compile(pattern).is_ok(), "{pattern}: {:?}", compile(pattern));
            assert_eq!(Pattern::new(pattern).is_match(text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn what_cannot_be_run_in_linear_time_or_bounded_memory_is_refused() {
        for bad in [r"(a", r"(?=a)", r"\1", "[a", r"a{1001}", "a\\", "((a{1000}){1000}){1000}"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
        assert!(compile(&"(".repeat(10_000)).is_err() && compile(&"a".repeat(LENGTH + 1)).is_err());
        assert!(!Pattern::new("(").is_match("("));
        // Catastrophic for engines that go back.
        let long = "a".repeat(50_000);
        assert!(!Pattern::new("^(a+)+$").is_match(&format!("{long}b")));
    }
}
