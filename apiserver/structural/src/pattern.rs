//! Regular expressions of schemas. They are written in Go's dialect (RE2); a linear-time engine
//! of nearly the same dialect runs them, after a translation of what differs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter::Peekable;
use std::str::Chars;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

use regex::{Regex, RegexBuilder};

use crate::limits::{
    DEFINITION_BYTES, GROUP_NESTING, PATTERN_BYTES, PROGRAM_BYTES, REPETITION, STATES_BYTES,
};

/// Sizes that are tried one after the other, so that what an expression needs is known about: an attempt
/// ends where it needs more, and all but the last take a seventh of that.
const SIZES: [usize; 5] = [8 * 1024, 64 * 1024, 512 * 1024, 4 * 1024 * 1024, PROGRAM_BYTES];

/// An expression, compiled when it is first used.
#[derive(Clone)]
pub struct Pattern(Arc<Shared>);

/// A compiled pattern, shared by all who hold it: schemas repeat their expressions hundreds of times.
struct Shared {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    /// An expression that need not be valid: an invalid one matches nothing.
    pub fn new(text: &str) -> Self {
        static KNOWN: LazyLock<Mutex<BTreeMap<String, Weak<Shared>>>> = LazyLock::new(Mutex::default);
        static TIDY_AT: Mutex<usize> = Mutex::new(0);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = known.get(text).and_then(Weak::upgrade) {
            return Self(shared);
        }
        let mut tidy_at = TIDY_AT.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= *tidy_at {
            known.retain(|_, shared| shared.strong_count() > 0);
            *tidy_at = 2 * known.len() + 64;
        }
        let shared = Arc::new(Shared { text: text.to_owned(), compiled: OnceLock::new() });
        known.insert(text.to_owned(), Arc::downgrade(&shared));
        Self(shared)
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns `true` if the text contains a match, in time linear in both.
    pub fn is_match(&self, text: &str) -> bool {
        let Shared { text: pattern, compiled } = &*self.0;
        compiled.get_or_init(|| compile(pattern).ok()).as_ref().is_some_and(|r| r.is_match(text))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.0.text).finish()
    }
}

/// The expressions of one definition, which together have a bound.
#[derive(Default)]
pub struct Patterns {
    /// The fault of each expression, or `None` if it is valid.
    known: HashMap<String, Option<String>>,
    spent: usize,
}

impl Patterns {
    /// Returns the fault of an expression, if it has one.
    pub fn fault(&mut self, text: &str) -> Option<String> {
        if let Some(fault) = self.known.get(text) {
            return fault.clone();
        }
        if self.spent >= DEFINITION_BYTES {
            // The expression is not named, because one that was not compiled may be valid.
            return Some(format!(
                "the expressions of the definition need more than {DEFINITION_BYTES} bytes compiled"
            ));
        }
        let (compiled, size) = measured(text);
        self.spent += size;
        let fault = compiled.err();
        self.known.insert(text.to_owned(), fault.clone());
        fault
    }

    /// Returns about how many bytes the expressions have taken so far.
    pub fn bytes(&self) -> usize {
        self.spent
    }
}

/// Compiles an expression within bounds; the error describes its fault.
pub fn compile(text: &str) -> Result<Regex, String> {
    measured(text).0
}

/// [`compile`], and about how many bytes that took, whether it was one or not.
pub fn measured(text: &str) -> (Result<Regex, String>, usize) {
    if text.len() > PATTERN_BYTES {
        return (Err(format!("expression is longer than {PATTERN_BYTES} bytes")), SIZES[0].max(text.len()));
    }
    let translated = match translate(text) {
        Ok(translated) => translated,
        Err(fault) => return (Err(fault), SIZES[0].max(text.len())),
    };
    for size in SIZES {
        let compiled = RegexBuilder::new(&translated)
            .size_limit(size)
            .dfa_size_limit(STATES_BYTES)
            .nest_limit(GROUP_NESTING)
            .build();
        match compiled {
            Ok(regex) => return (Ok(regex), size),
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(error) => return (Err(syntax_fault(error)), SIZES[0].max(text.len())),
        }
    }
    (Err(format!("expression needs more than {PROGRAM_BYTES} bytes compiled")), PROGRAM_BYTES)
}

fn syntax_fault(error: regex::Error) -> String {
    match error {
        regex::Error::Syntax(text) => {
            let last = text.lines().last().unwrap_or_default();
            format!("error parsing regexp: {}", last.strip_prefix("error: ").unwrap_or(last))
        }
        other => other.to_string(),
    }
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

/// Translates the part of a character class that follows `[`, up to the closing bracket.
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

/// Translates what follows `{`: a repetition, or a literal brace.
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
    fn the_expressions_of_a_definition_have_a_bound_together() {
        let big = |n: usize| format!(r"(\pL{{1,100}}){{1,4}}x{n}");
        let (compiled, size) = measured(&big(0));
        assert!(compiled.is_err() && size == PROGRAM_BYTES);
        let mut patterns = Patterns::default();
        for n in 0..DEFINITION_BYTES / PROGRAM_BYTES {
            assert!(patterns.fault(&big(n)).unwrap().starts_with("expression needs more"));
        }
        // These are not compiled any more, so any number of them takes no time.
        for n in 1000..100_000 {
            assert!(patterns.fault(&big(n)).unwrap().starts_with("the expressions of the definition need"));
        }
        // One that is there often counts once.
        let mut patterns = Patterns::default();
        for _ in 0..100_000 {
            assert_eq!(patterns.fault("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"), None);
        }
        assert_eq!(patterns.spent, SIZES[0]);
        let (one, other) = (Pattern::new("^ab*$"), Pattern::new("^ab*$"));
        assert!(Arc::ptr_eq(&one.0, &other.0) && one.is_match("abb"));
    }

    #[test]
    fn patterns_beyond_linear_time_or_bounded_memory_are_refused() {
        for bad in [r"(a", r"(?=a)", r"\1", "[a", r"a{1001}", "a\\", "((a{1000}){1000}){1000}"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
        assert!(compile(&"(".repeat(10_000)).is_err() && compile(&"a".repeat(PATTERN_BYTES + 1)).is_err());
        assert!(!Pattern::new("(").is_match("("));
        // Catastrophic for engines that go back.
        let long = "a".repeat(50_000);
        assert!(!Pattern::new("^(a+)+$").is_match(&format!("{long}b")));
    }
}
