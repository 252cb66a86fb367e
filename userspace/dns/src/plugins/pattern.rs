//! Names as text, and what they are compared with. Whatever a pattern is, the time to match a name is in proportion to
//! the name's length and the pattern's program, and both have a bound.

use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::limits;
use crate::name::{Name, labels};
use crate::syntax::{Line, LineError, wrong};

/// Returns the text of a name with the dot at its end. `None` if a label has other characters than those that stand for
/// themselves in a file, such as a dot or a space: who asks could make one name look like another.
pub fn text(name: &Name) -> Option<String> {
    let stands_for_itself = |byte: &u8| byte.is_ascii_graphic() && !b".\\\"();$@#{}".contains(byte);
    labels(name.bytes()).all(|label| label.iter().all(stands_for_itself)).then(|| name.to_string())
}

/// A regular expression of Go's, which has the same syntax. Classes such as `\d` are those of ASCII, as in Go.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Pattern {
    /// Compiles an expression, and counts it.
    pub fn new(text: &str, line: Line, count: &mut usize) -> Result<Self, LineError> {
        *count += 1;
        if text.len() > limits::PATTERN {
            return wrong(line, format!("a regular expression is longer than {} bytes", limits::PATTERN));
        }
        let mut builder = RegexBuilder::new(text);
        builder.unicode(false).size_limit(limits::PATTERN_PROGRAM).dfa_size_limit(limits::PATTERN_STATES);
        match builder.build() {
            Ok(regex) => Ok(Self(regex)),
            Err(regex::Error::CompiledTooBig(_)) => {
                wrong(line, format!("the regular expression {text:?} takes too much memory: repeat less"))
            }
            Err(_) => wrong(line, format!("{text:?} is not a regular expression")),
        }
    }

    pub fn captures<'t>(&self, text: &'t str) -> Option<Groups<'t>> {
        self.0.captures(text.as_bytes()).map(Groups)
    }

    /// Returns the number of groups, with the whole match.
    pub fn groups(&self) -> usize {
        self.0.captures_len()
    }

    pub fn has_group(&self, name: &str) -> bool {
        self.0.capture_names().flatten().any(|own| own == name)
    }
}

/// The groups of a match.
pub struct Groups<'t>(Captures<'t>);

impl<'t> Groups<'t> {
    /// Returns a group, which is empty if it took no part in the match. `None` if there is no such group.
    pub fn number(&self, at: usize) -> Option<&'t str> {
        (at < self.0.len()).then(|| text_of(self.0.get(at)))
    }

    pub fn named(&self, name: &str) -> Option<&'t str> {
        self.0.name(name).map(|found| text_of(Some(found)))
    }

    /// Returns a text with groups in place of `{0}`, `{1}` and so on.
    pub fn replaced(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for at in 0..self.0.len() {
            text = text.replace(&format!("{{{at}}}"), text_of(self.0.get(at)));
        }
        text
    }
}

fn text_of(found: Option<regex::bytes::Match<'_>>) -> &str {
    // Names are ASCII.
    found.and_then(|found| std::str::from_utf8(found.as_bytes()).ok()).unwrap_or_default()
}

/// A comparison with a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Matcher {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Pattern),
}

impl Matcher {
    /// Parses the sort of a comparison and its text. `None` if there is no such sort.
    pub fn parse(sort: &str, text: &str, line: Line, count: &mut usize) -> Result<Option<Self>, LineError> {
        Ok(Some(match sort {
            "exact" => Self::Exact(dotted(text)),
            "prefix" => Self::Prefix(dotted(text)),
            "suffix" => Self::Suffix(dotted(text)),
            "substring" => Self::Substring(dotted(text)),
            "regex" => Self::Regex(Pattern::new(text, line, count)?),
            _ => return Ok(None),
        }))
    }

    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => name == text,
            Self::Prefix(text) => name.starts_with(text),
            Self::Suffix(text) => name.ends_with(text),
            Self::Substring(text) => name.contains(text),
            Self::Regex(pattern) => pattern.0.is_match(name.as_bytes()),
        }
    }

    /// Returns the name with `to` in place of what matches. `None` if nothing does.
    pub fn replaced(&self, name: &str, to: &str) -> Option<String> {
        match self {
            Self::Exact(text) => (name == text).then(|| to.to_owned()),
            Self::Prefix(text) => name.strip_prefix(text).map(|rest| format!("{to}{rest}")),
            Self::Suffix(text) => name.strip_suffix(text).map(|rest| format!("{rest}{to}")),
            Self::Substring(text) => name.contains(text).then(|| name.replace(text, to)),
            Self::Regex(pattern) => pattern.captures(name).map(|groups| groups.replaced(to)),
        }
    }
}

/// Returns a text in lower case, with a dot at its end, as names have.
pub fn dotted(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    if text.ends_with('.') { text } else { text + "." }
}
