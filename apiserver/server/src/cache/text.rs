//! Short texts of an object, kept as places in its encoding: labels and selectable fields of a pod
//! would take as much memory as the pod.

use std::borrow::Cow;

use serde::Deserialize;

/// Texts that fields have where the object says nothing.
const KNOWN: [&str; 3] = ["", "false", "0"];
/// Instead of a place: the length is one in [`KNOWN`].
const IN_KNOWN: u32 = u32::MAX;

/// A text of an object.
pub(super) enum Text {
    /// Begin and length in the encoding.
    At(u32, u32),
    /// What the encoding does not have as it is: escaped, joined, not a string.
    Own(Box<str>),
}

impl Text {
    /// The text, of an object with this encoding.
    pub(super) fn get<'a>(&'a self, encoding: &'a [u8]) -> &'a str {
        match self {
            Self::At(IN_KNOWN, which) => KNOWN[*which as usize % KNOWN.len()],
            Self::At(from, length) => {
                let from = *from as usize;
                let bytes = encoding.get(from..from + *length as usize).unwrap_or_default();
                // It was found in a text, on the borders of characters.
                std::str::from_utf8(bytes).unwrap_or_default()
            }
            Self::Own(text) => text,
        }
    }
}

/// A text that is borrowed from JSON where it can be.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Word<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Where texts of the stored JSON are in the encoding: behind what comes before it, and from a
/// place in it on behind what was put in.
pub(super) struct Places<'a> {
    pub(super) stored: &'a str,
    pub(super) before: usize,
    pub(super) from: usize,
    pub(super) inserted: usize,
}

impl Places<'_> {
    /// A text as it is kept.
    pub(super) fn keep(&self, text: &str) -> Text {
        if let Some(which) = KNOWN.iter().position(|known| *known == text) {
            return Text::At(IN_KNOWN, which as u32);
        }
        let start = self.stored.as_ptr() as usize;
        let at =
            (text.as_ptr() as usize).checked_sub(start).filter(|at| at + text.len() <= self.stored.len());
        let at = at.map(|at| self.before + at + if at >= self.from { self.inserted } else { 0 });
        match at.map(|at| (u32::try_from(at), u32::try_from(text.len()))) {
            Some((Ok(at), Ok(length))) if at != IN_KNOWN => Text::At(at, length),
            _ => Text::Own(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_encoding_take_no_room_of_their_own() {
        assert_eq!(size_of::<Text>(), 16);
        let stored = "abc def";
        let places = Places { stored, before: 2, from: 4, inserted: 3 };
        let encoding = b"> abc +++def";
        for (text, in_place) in
            [(&stored[..3], true), (&stored[4..], true), ("other", false), ("false", true)]
        {
            let kept = places.keep(text);
            assert_eq!(matches!(kept, Text::At(..)), in_place, "{text}");
            assert_eq!(kept.get(encoding), text);
        }
    }
}
