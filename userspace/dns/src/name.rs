//! Domain names in wire form: length-prefixed labels, in lower case, ended by the root's empty label.

use std::fmt;

/// Maximum length of a name in wire form (RFC 1035, 2.3.4).
pub const NAME_LENGTH: usize = 255;
/// Maximum length of a label.
pub const LABEL_LENGTH: usize = 63;
/// Maximum number of labels in a name: one byte and a length each, and the root.
const LABELS: usize = NAME_LENGTH / 2;

/// A name in lower case, without an allocation.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; NAME_LENGTH],
    length: u8,
}

/// Text or bytes that are no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name ends in the middle of a label")]
    Cut,
    #[error("a label is empty or longer than {LABEL_LENGTH} bytes")]
    Label,
    #[error("the name is longer than {NAME_LENGTH} bytes")]
    Length,
    #[error("the name is compressed where it cannot be")]
    Compressed,
}

impl Name {
    /// The name of the root.
    pub const ROOT: Self = Self { bytes: [0; NAME_LENGTH], length: 1 };

    /// Reads an uncompressed name at the start of `bytes`, such as that of a question, which nothing precedes
    /// that it could point to. Returns it with the number of bytes that it takes.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), NameError> {
        let mut at = 0;
        loop {
            let length = *bytes.get(at).ok_or(NameError::Cut)?;
            match length {
                0 => break,
                1..=63 => at += 1 + usize::from(length),
                _ => return Err(NameError::Compressed),
            }
            if at >= NAME_LENGTH {
                return Err(NameError::Length);
            }
        }
        let taken = at + 1;
        let mut name = Self::ROOT;
        name.bytes[..taken].copy_from_slice(bytes.get(..taken).ok_or(NameError::Cut)?);
        // Lengths of labels are below `A`.
        name.bytes[..taken].make_ascii_lowercase();
        name.length = taken as u8;
        Ok((name, taken))
    }

    /// Parses text such as `example.org` or `example.org.`; `.` is the root. Escapes are not supported.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut name = Self::ROOT;
        let mut at = 0;
        for label in text.split('.').filter(|_| !text.is_empty()) {
            if label.is_empty() || label.len() > LABEL_LENGTH {
                return Err(NameError::Label);
            }
            if at + 1 + label.len() >= NAME_LENGTH {
                return Err(NameError::Length);
            }
            name.bytes[at] = label.len() as u8;
            name.bytes[at + 1..at + 1 + label.len()].copy_from_slice(label.as_bytes());
            at += 1 + label.len();
        }
        name.bytes[..at].make_ascii_lowercase();
        name.length = (at + 1) as u8;
        Ok(name)
    }

    /// Returns the wire form, with the root's label.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Returns the wire form without the labels of `suffix`, or `None` if the name is not below it or equal
    /// to it.
    pub fn below(&self, suffix: &Self) -> Option<&[u8]> {
        let (own, suffix) = (self.bytes(), suffix.bytes());
        let at = own.len().checked_sub(suffix.len())?;
        // The same bytes may also begin within a label.
        (own[at..] == *suffix && is_boundary(own, at)).then_some(&own[..at])
    }

    /// Returns the name with labels in wire form before it; `None` if that is too long.
    pub fn with(&self, labels: &[u8]) -> Option<Self> {
        let bytes = [labels, self.bytes()].concat();
        let (name, taken) = Self::read(&bytes).ok()?;
        (taken == bytes.len()).then_some(name)
    }

    /// Returns the number of labels, without the root's.
    pub fn depth(&self) -> usize {
        labels(self.bytes()).count()
    }
}

fn is_boundary(name: &[u8], end: usize) -> bool {
    let mut at = 0;
    while at < end {
        at += 1 + usize::from(name[at]);
    }
    at == end
}

/// Returns the labels of a name or of a part of one in wire form, without the root's.
pub fn labels(mut wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&length, rest) = wire.split_first()?;
        let (label, rest) = rest.split_at_checked(usize::from(length))?;
        wire = rest;
        (length > 0).then_some(label)
    })
}

/// The labels of a name from the last to the first, without an allocation.
pub struct Reversed<'a> {
    wire: &'a [u8],
    /// Positions of the labels.
    starts: [u8; LABELS],
    left: usize,
}

impl<'a> Reversed<'a> {
    /// Begins at the last label of a part of a name.
    pub fn new(wire: &'a [u8]) -> Self {
        let (mut starts, mut left, mut at) = ([0; LABELS], 0, 0);
        while at < wire.len() && wire[at] != 0 && left < LABELS {
            starts[left] = at as u8;
            left += 1;
            at += 1 + usize::from(wire[at]);
        }
        Self { wire, starts, left }
    }

    /// Returns the bytes before the labels that were taken, in wire form.
    pub fn rest(&self) -> &'a [u8] {
        let end = self.starts[..self.left].last().map_or(0, |start| {
            let start = usize::from(*start);
            start + 1 + usize::from(self.wire[start])
        });
        &self.wire[..end.min(self.wire.len())]
    }
}

impl<'a> Iterator for Reversed<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let start = usize::from(self.starts[self.left]);
        let end = start + 1 + usize::from(self.wire[start]);
        self.wire.get(start + 1..end)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Name {}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in labels(self.bytes()) {
            write!(f, "{}.", label.escape_ascii())?;
        }
        if self.length == 1 { f.write_str(".") } else { Ok(()) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_lower_case_and_written_as_text() {
        let (name, taken) = Name::read(b"\x03WeB\x04shop\x00rest").unwrap();
        assert_eq!((name.to_string().as_str(), taken), ("web.shop.", 10));
        assert_eq!(name, Name::parse("web.Shop").unwrap());
        assert_eq!(Name::parse(".").unwrap().to_string(), ".");
        assert_eq!(Name::read(b"\x00").unwrap(), (Name::ROOT, 1));
    }

    #[test]
    fn bytes_that_are_no_name_are_refused() {
        assert_eq!(Name::read(b"\x03we").unwrap_err(), NameError::Cut);
        assert_eq!(Name::read(b"").unwrap_err(), NameError::Cut);
        assert_eq!(Name::read(b"\xc0\x0c").unwrap_err(), NameError::Compressed);
        let long: Vec<u8> = [b"\x01a".as_slice(); 128].concat();
        assert_eq!(Name::read(&long).unwrap_err(), NameError::Length);
        let longest: Vec<u8> = [[b"\x01a".as_slice(); 127].concat(), vec![0]].concat();
        assert_eq!(Name::read(&longest).unwrap().0.depth(), 127);
        assert_eq!(Name::parse("a..b").unwrap_err(), NameError::Label);
        assert_eq!(Name::parse(&"abc.".repeat(64)).unwrap_err(), NameError::Length);
    }

    #[test]
    fn a_suffix_ends_at_a_label() {
        let name = Name::parse("web.shop.svc.cluster.local").unwrap();
        let zone = Name::parse("cluster.local").unwrap();
        assert_eq!(name.below(&zone), Some(b"\x03web\x04shop\x03svc".as_slice()));
        assert_eq!(zone.below(&zone), Some(b"".as_slice()));
        assert_eq!(zone.below(&name), None);
        // A label that contains the bytes of the zone.
        let (odd, _) =
            Name::read(b"\x0ex\x07cluster\x05local\x00\x00").map_or((Name::ROOT, 0), |found| found);
        assert_eq!(odd.below(&zone), None);
        assert_eq!(name.below(&Name::ROOT).map(<[u8]>::len), Some(name.bytes().len() - 1));
    }

    #[test]
    fn labels_are_read_backwards() {
        let name = Name::parse("_http._tcp.web.shop").unwrap();
        let mut reversed = Reversed::new(&name.bytes()[..name.bytes().len() - 1]);
        assert_eq!(reversed.next(), Some(b"shop".as_slice()));
        assert_eq!(reversed.rest(), b"\x05_http\x04_tcp\x03web");
        assert_eq!(reversed.next(), Some(b"web".as_slice()));
        assert_eq!(reversed.rest(), b"\x05_http\x04_tcp");
        assert_eq!(reversed.by_ref().count(), 2);
        assert_eq!(reversed.rest(), b"");
    }
}
