//! Rewrites the links of an HTML page as it arrives, in pieces of any length, and nothing else in it. Start
//! tags are found as by the HTML standard's tokenizer; unclosed ones are passed on unchanged.

use super::links::Links;
use crate::limits;

/// Attributes whose value is a URL, by element.
const LINKS: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements that contain only text, even if it looks like markup.
const RAW_TEXT: [&str; 8] =
    ["iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title"];

/// Longer than the name of any element or attribute above.
const NAME: usize = 16;

/// The part of a page that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// Behind `<`, which is held back.
    Open,
    /// Behind `</`.
    Close,
    /// After `<!` and this many hyphens.
    Markup(usize),
    /// In a comment, after this many hyphens, and whether an exclamation mark follows them.
    Comment(usize, bool),
    /// In a declaration or anything else that ends with `>`.
    Bogus,
    /// In an element of [`RAW_TEXT`], after this many bytes of its end tag.
    Raw(&'static str, usize),
    Tag(Part),
}

/// A part of a start or end tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Name,
    BeforeKey,
    Key,
    AfterKey,
    BeforeValue,
    /// Between quotation marks of this kind.
    Quoted(u8),
    Unquoted,
}

/// The value of an attribute that is a URL: where it is in its tag.
struct Link {
    start: usize,
    end: usize,
    quoted: bool,
}

/// A start or end tag that has not ended.
#[derive(Default)]
struct Tag {
    closing: bool,
    name: Vec<u8>,
    key: Vec<u8>,
    links: Vec<Link>,
    /// The beginning of a link that has not ended.
    begun: Option<Link>,
    /// All bytes of it, from `<` on; none where it is not kept.
    text: Vec<u8>,
    /// True if its links may be rewritten. Those of end tags and of tags that are too long are not.
    kept: bool,
}

/// Rewrites the links of one page.
pub struct Rewriter {
    state: State,
    tag: Tag,
    links: Links,
}

impl Rewriter {
    /// Returns a rewriter for a page of the backend that `links` knows.
    pub fn new(links: Links) -> Self {
        Self { state: State::Text, tag: Tag::default(), links }
    }

    /// Takes the next piece, and appends the known part of the new page to `out`.
    pub fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for &byte in piece {
            match self.state {
                State::Text if byte == b'<' => self.state = State::Open,
                State::Text => out.push(byte),
                State::Tag(part) => self.in_tag(part, byte, out),
                _ => self.in_markup(byte, out),
            }
        }
    }

    /// Appends the rest of the page when it has ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.state == State::Open {
            out.push(b'<');
        }
        out.append(&mut self.tag.text);
    }

    /// Takes a byte that belongs to no tag, or begins one.
    fn in_markup(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.state == State::Open {
            if byte.is_ascii_alphabetic() {
                self.tag = Tag { text: vec![b'<', byte], kept: true, ..Tag::default() };
                self.state = self.name(byte);
                return;
            }
            out.push(b'<');
        }
        if byte != b'<' || self.state != State::Open {
            out.push(byte);
        }
        self.state = match (self.state, byte) {
            (State::Open, b'<') => State::Open,
            (State::Open, b'/') => State::Close,
            (State::Open, b'!') => State::Markup(0),
            (State::Open, b'?') => State::Bogus,
            (State::Close, byte) if byte.is_ascii_alphabetic() => {
                self.tag = Tag { closing: true, ..Tag::default() };
                self.name(byte)
            }
            // `<!-->` and `<!--->` are whole comments.
            (State::Markup(1), b'-') => State::Comment(2, false),
            (State::Markup(0), b'-') => State::Markup(1),
            (State::Close | State::Markup(_) | State::Bogus, b'>') => State::Text,
            (State::Close | State::Markup(_) | State::Bogus, _) => State::Bogus,
            (State::Comment(2.., _), b'>') => State::Text,
            (State::Comment(_, true), b'-') => State::Comment(1, false),
            (State::Comment(hyphens, _), b'-') => State::Comment(hyphens.saturating_add(1), false),
            (State::Comment(2.., false), b'!') => State::Comment(2, true),
            (State::Comment(..), _) => State::Comment(0, false),
            (State::Raw(name, seen), byte) => raw(name, seen, byte),
            (State::Open | State::Text | State::Tag(_), _) => State::Text,
        };
    }

    /// Takes a byte of a tag.
    fn in_tag(&mut self, part: Part, byte: u8, out: &mut Vec<u8>) {
        if byte == b'>' && !matches!(part, Part::Quoted(_)) {
            self.end_link();
            self.push(byte, out);
            self.state = self.end_tag(out);
            return;
        }
        let blank = byte.is_ascii_whitespace();
        self.state = match (part, byte) {
            (Part::Quoted(mark), byte) if byte == mark => {
                self.end_link();
                State::Tag(Part::BeforeKey)
            }
            (Part::Quoted(_), _) => State::Tag(part),
            (Part::Unquoted, _) if blank => {
                self.end_link();
                State::Tag(Part::BeforeKey)
            }
            (Part::Unquoted, _) => State::Tag(part),
            (Part::BeforeValue, _) if blank => State::Tag(part),
            (Part::BeforeValue, b'"' | b'\'') => {
                self.begin_link(true);
                State::Tag(Part::Quoted(byte))
            }
            (Part::BeforeValue, _) => {
                self.begin_link(false);
                State::Tag(Part::Unquoted)
            }
            (Part::Key | Part::AfterKey, b'=') => State::Tag(Part::BeforeValue),
            (Part::Key | Part::AfterKey, _) if blank => State::Tag(Part::AfterKey),
            (Part::Name | Part::BeforeKey, _) if blank => State::Tag(Part::BeforeKey),
            (_, b'/') => State::Tag(Part::BeforeKey),
            (Part::Name, _) => self.name(byte),
            (Part::Key, _) => self.key(byte),
            (Part::BeforeKey | Part::AfterKey, _) => {
                self.tag.key.clear();
                self.key(byte)
            }
        };
        self.push(byte, out);
    }

    fn name(&mut self, byte: u8) -> State {
        note(&mut self.tag.name, byte);
        State::Tag(Part::Name)
    }

    fn key(&mut self, byte: u8) -> State {
        note(&mut self.tag.key, byte);
        State::Tag(Part::Key)
    }

    /// Notes that a value begins with the present byte, or behind it if that is a quotation mark.
    fn begin_link(&mut self, quoted: bool) {
        let tag = &mut self.tag;
        let keys =
            LINKS.iter().find(|(name, _)| name.as_bytes() == tag.name).map_or(&[][..], |(_, keys)| keys);
        if tag.kept && keys.iter().any(|key| key.as_bytes() == tag.key) {
            let start = tag.text.len() + usize::from(quoted);
            tag.begun = Some(Link { start, end: start, quoted });
        }
    }

    /// Notes that the value that has begun ends before the present byte.
    fn end_link(&mut self) {
        let end = self.tag.text.len();
        self.tag.links.extend(self.tag.begun.take().map(|link| Link { end, ..link }));
    }

    /// Buffers a byte of a tag. A tag that is too long is passed on unchanged.
    fn push(&mut self, byte: u8, out: &mut Vec<u8>) {
        let tag = &mut self.tag;
        if !tag.kept {
            return out.push(byte);
        }
        tag.text.push(byte);
        if tag.text.len() > limits::HTML_TAG {
            out.append(&mut tag.text);
            (tag.links, tag.begun, tag.kept) = (Vec::new(), None, false);
        }
    }

    /// Appends a whole tag with its links rewritten; returns what comes behind it.
    fn end_tag(&mut self, out: &mut Vec<u8>) -> State {
        let tag = std::mem::take(&mut self.tag);
        let mut written = 0;
        for link in &tag.links {
            let Some(new) = self.links.rewrite(&tag.text[link.start..link.end]) else { continue };
            out.extend_from_slice(&tag.text[written..link.start]);
            let mark: &[u8] = if link.quoted { b"" } else { b"\"" };
            out.extend([mark, &new, mark].concat());
            written = link.end;
        }
        out.extend_from_slice(&tag.text[written..]);
        let raw = RAW_TEXT.into_iter().find(|name| !tag.closing && name.as_bytes() == tag.name);
        raw.map_or(State::Text, |name| State::Raw(name, 0))
    }
}

/// Appends a byte of a name, as long as it can be one of the relevant names.
fn note(name: &mut Vec<u8>, byte: u8) {
    if name.len() < NAME {
        name.push(byte.to_ascii_lowercase());
    }
}

/// Returns the state behind a byte of raw text. The end tag counts only where its name is whole.
fn raw(name: &'static str, seen: usize, byte: u8) -> State {
    let expected = |at: usize| match at {
        0 => Some(b'<'),
        1 => Some(b'/'),
        at => name.as_bytes().get(at - 2).copied(),
    };
    match expected(seen) {
        Some(wanted) if wanted == byte.to_ascii_lowercase() => State::Raw(name, seen + 1),
        // Nothing ends this one.
        None if name == "plaintext" => State::Raw(name, 0),
        None if byte == b'>' => State::Text,
        None if byte == b'/' || byte.is_ascii_whitespace() => State::Tag(Part::BeforeKey),
        _ => State::Raw(name, usize::from(byte == b'<')),
    }
}

#[cfg(test)]
#[path = "html_tests.rs"]
mod tests;
