//! Unique identifiers of objects, in the 16 bytes of a UUID.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;

/// Length of the text of a UUID.
const LENGTH: usize = 36;
/// Places of the hyphens in the text of a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// The unique identifier of an object (`metadata.uid`).
///
/// The API defines it as a text. Nearly every one is a UUID, which takes 16 bytes here and none on the heap; any other
/// text is stored as it is. Two are equal if their texts are, they are ordered by their texts, and print exactly these.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Uid(Form);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    /// A UUID in canonical form: lower-case digits, with hyphens. Its second half begins with the variant, so that it
    /// is not zero, and the other form needs no further byte.
    Uuid(u64, NonZeroU64),
    /// Any other text. The inner box is two words long, the outer one a single word.
    Text(Box<Box<str>>),
}

const _: () = assert!(size_of::<Uid>() == 16);

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(uuid(text).unwrap_or_else(|| Form::Text(Box::new(text.into()))))
    }
}

/// Returns the UUID whose canonical form a text is.
fn uuid(text: &str) -> Option<Form> {
    let text: &[u8; LENGTH] = text.as_bytes().try_into().ok()?;
    let (mut high, mut low) = (0_u64, 0_u64);
    for (place, byte) in text.iter().enumerate() {
        let digit = match byte {
            b'-' if HYPHENS.contains(&place) => continue,
            _ if HYPHENS.contains(&place) => return None,
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        (high, low) = ((high << 4) | (low >> 60), (low << 4) | u64::from(digit));
    }
    Some(Form::Uuid(high, NonZeroU64::new(low)?))
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = match &self.0 {
            Form::Uuid(high, low) => (*high, low.get()),
            Form::Text(text) => return f.write_str(text),
        };
        let (first, second, third) = (high >> 32, (high >> 16) & 0xffff, high & 0xffff);
        let (fourth, last) = (low >> 48, low & 0xffff_ffff_ffff);
        write!(f, "{first:08x}-{second:04x}-{third:04x}-{fourth:04x}-{last:012x}")
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl PartialEq<str> for Uid {
    fn eq(&self, text: &str) -> bool {
        match &self.0 {
            form @ Form::Uuid(..) => uuid(text).as_ref() == Some(form),
            Form::Text(own) => ***own == *text,
        }
    }
}

impl PartialOrd for Uid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Uid {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            // The digits are ordered by their values, and the hyphens are at the same places.
            (Form::Uuid(high, low), Form::Uuid(other_high, other_low)) => {
                (high, low).cmp(&(other_high, other_low))
            }
            (Form::Text(text), Form::Text(other)) => text.cmp(other),
            (Form::Uuid(..), Form::Text(text)) => self.to_string().as_str().cmp(text),
            (Form::Text(text), Form::Uuid(..)) => (***text).cmp(other.to_string().as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOME: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

    fn is_in_place(text: &str) -> bool {
        matches!(Uid::from(text).0, Form::Uuid(..))
    }

    /// Returns texts that are UUIDs, nearly are, or have nothing to do with them.
    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            1 => "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-g]{12}",
            1 => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-0000-000000000000",
            1 => "[0-9a-f-]{36}",
            1 => ".{0,40}",
        ]
    }

    #[test]
    fn canonical_uuid_takes_no_heap_and_any_other_text_does() {
        assert!(is_in_place(SOME) && is_in_place("00000000-0000-0000-8000-000000000000"));
        let nil = "00000000-0000-0000-0000-000000000000";
        let bare = SOME.replace('-', "");
        let shifted = "0f8fad5bd-9cb-469f-a165-70867728950e";
        let upper = SOME.to_uppercase();
        for text in ["", nil, &bare, shifted, &upper, &format!("{SOME} "), "uid-web"] {
            assert!(!is_in_place(text), "{text:?}");
            assert_eq!(Uid::from(text).to_string(), text);
        }
        assert_eq!(format!("{:?}", Uid::from(SOME)), format!("{SOME:?}"));
    }

    proptest! {
        #[test]
        fn uid_prints_equals_and_orders_as_its_text_does(a in texts(), b in texts()) {
            let (first, second) = (Uid::from(a.as_str()), Uid::from(b.as_str()));
            prop_assert_eq!(first.to_string(), a.as_str());
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            prop_assert_eq!(first == second, a == b);
            prop_assert_eq!(first == *b.as_str(), a == b);
            prop_assert!(first == first.clone() && first == *a.as_str());
        }
    }
}
