//! Values that many objects of a kind share, stored once: their labels, and values that do not occur in their
//! texts. For values that occur there only the place is stored.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Labels, in the order of their keys.
pub type Labels = BTreeMap<String, String>;

/// Different values that are remembered. A kind whose values all differ forgets them again and again,
/// and no more is lost than what sharing would have saved.
const REMEMBERED: usize = 1024;
/// Bytes of a text that is remembered; labels take up to 15 times theirs, so that those of a kind are 8 MiB
/// at most. Longer ones are hardly shared, and a client could fill the memory with them.
const REMEMBERED_TEXT: usize = 512;

/// The values of absent fields that do not default to the empty text.
const ZEROS: [&str; 2] = ["false", "0"];

/// A value that was found while an object was read.
#[derive(Clone, Debug)]
pub enum Found {
    /// The value occurs in the text of the object, here.
    There(Range<usize>),
    /// The value does not occur there: it was put together, or has escapes.
    Made(String),
}

impl Found {
    /// Returns `true` if it is the empty text.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::There(range) => range.is_empty(),
            Self::Made(text) => text.is_empty(),
        }
    }
}

/// The place of a value: 21 bits for the position in the object's text, which has no more than 1.5 MiB, and
/// 11 bits for its length, of which the last two values mean that it is stored elsewhere.
#[derive(Clone, Copy)]
struct Place(u32);

impl Place {
    const LENGTH_BITS: u32 = 11;
    const LENGTHS: u32 = (1 << Self::LENGTH_BITS) - 1;
    const OTHER: u32 = Self::LENGTHS;
    const ZERO: u32 = Self::LENGTHS - 1;
    /// The empty text.
    const EMPTY: Self = Self(0);

    fn new(at: usize, length: u32) -> Option<Self> {
        let at = u32::try_from(at).ok().filter(|at| at >> (u32::BITS - Self::LENGTH_BITS) == 0)?;
        Some(Self(at << Self::LENGTH_BITS | length))
    }

    fn there(range: &Range<usize>) -> Option<Self> {
        let length = u32::try_from(range.len()).ok().filter(|length| *length < Self::ZERO)?;
        Self::new(range.start, length)
    }

    fn at(self) -> usize {
        (self.0 >> Self::LENGTH_BITS) as usize
    }

    fn length(self) -> u32 {
        self.0 & Self::LENGTHS
    }
}

/// Values of one object, four bytes each if they occur in its text.
pub struct Values {
    places: Box<[Place]>,
    /// The values that do not, which are few; a box more, because most objects have none.
    #[expect(clippy::box_collection, reason = "eight bytes in every object rather than 24")]
    others: Option<Box<Vec<Arc<str>>>>,
}

impl Values {
    /// Returns the value of the object with that text; empty if there is none. Only the value is checked to
    /// be UTF-8: to check a whole object would take longer than all else, and selectors ask often.
    pub fn get<'a>(&'a self, place: usize, text: &'a [u8]) -> &'a str {
        std::str::from_utf8(self.bytes(place, text)).unwrap_or_default()
    }

    /// Bytes of memory that the values take, those included that other objects may share.
    pub fn weight(&self) -> usize {
        let others = self.others.iter().flat_map(|others| others.iter());
        size_of_val(&*self.places) + others.map(|text| size_of::<Arc<str>>() + text.len()).sum::<usize>()
    }

    /// Returns the bytes of a value, to compare it: texts have the order of their bytes.
    pub fn bytes<'a>(&'a self, place: usize, text: &'a [u8]) -> &'a [u8] {
        let Some(place) = self.places.get(place) else { return &[] };
        match place.length() {
            Place::OTHER => self
                .others
                .as_ref()
                .and_then(|others| others.get(place.at()))
                .map_or(&[], |text| text.as_bytes()),
            Place::ZERO => ZEROS.get(place.at()).map_or(&[], |text| text.as_bytes()),
            length => text.get(place.at()..place.at() + length as usize).unwrap_or_default(),
        }
    }
}

/// The values of one kind that were seen last.
#[derive(Default)]
pub struct Pool(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    // Looked up, never iterated, so their order cannot matter.
    /// The labels by their text in JSON, so that known ones need not be parsed.
    labels: HashMap<Box<str>, Arc<Labels>>,
    texts: HashSet<Arc<str>>,
}

impl Pool {
    /// Returns the labels in a JSON text, or none for `null`, shared with earlier objects.
    pub fn labels(&self, json: &str) -> Result<Arc<Labels>, serde_json::Error> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.labels.get(json) {
            return Ok(Arc::clone(known));
        }
        let labels: Option<Labels> = serde_json::from_str(json)?;
        let labels = Arc::new(labels.unwrap_or_default());
        if json.len() > REMEMBERED_TEXT {
            return Ok(labels);
        }
        if seen.labels.len() >= REMEMBERED {
            seen.labels.clear();
        }
        seen.labels.insert(json.into(), Arc::clone(&labels));
        Ok(labels)
    }

    /// Keeps the values of an object with that text.
    pub fn values(&self, text: &str, values: impl Iterator<Item = Found>) -> Values {
        let mut others = Vec::new();
        let mut other = |text: &str| {
            let place = Place::new(others.len(), Place::OTHER);
            others.push(self.text(text));
            // There are fewer fields than that.
            place.unwrap_or(Place::EMPTY)
        };
        let place = |found: Found| match found {
            found if found.is_empty() => Place::EMPTY,
            Found::There(range) => match Place::there(&range) {
                Some(place) => place,
                None => other(text.get(range).unwrap_or_default()),
            },
            Found::Made(made) => {
                let zero = ZEROS.iter().position(|zero| *zero == made);
                zero.and_then(|at| Place::new(at, Place::ZERO)).unwrap_or_else(|| other(&made))
            }
        };
        let places = values.map(place).collect();
        Values { places, others: (!others.is_empty()).then(|| Box::new(others)) }
    }

    /// Forgets what no object has any more.
    pub fn forget_unused(&self) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { labels, texts } = &mut *seen;
        labels.retain(|_, labels| Arc::strong_count(labels) > 1);
        texts.retain(|text| Arc::strong_count(text) > 1);
    }

    fn text(&self, text: &str) -> Arc<str> {
        if text.len() > REMEMBERED_TEXT {
            return Arc::from(text);
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.texts.get(text) {
            return Arc::clone(known);
        }
        if seen.texts.len() >= REMEMBERED {
            seen.texts.clear();
        }
        let text: Arc<str> = Arc::from(text);
        seen.texts.insert(Arc::clone(&text));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_no_more_than_a_bound() {
        let pool = Pool::default();
        let labels = || pool.labels(r#"{"app":"web"}"#).unwrap();
        assert!(Arc::ptr_eq(&labels(), &labels()));
        assert_eq!(labels()["app"], "web");
        assert!(pool.labels("null").unwrap().is_empty());
        assert!(pool.labels("[]").is_err());
        assert!(Arc::ptr_eq(&pool.text("a,b"), &pool.text("a,b")));
        (0..3 * REMEMBERED).for_each(|i| drop(pool.text(&i.to_string())));
        assert!(pool.0.lock().unwrap().texts.len() <= REMEMBERED);
    }

    #[test]
    fn shared_texts_are_dropped_with_their_last_object() {
        let pool = Pool::default();
        let (labels, text) = (pool.labels(r#"{"app":"web"}"#).unwrap(), pool.text("a,b"));
        drop((pool.labels(r#"{"app":"gone"}"#).unwrap(), pool.text("gone")));
        pool.forget_unused();
        assert!(Arc::ptr_eq(&labels, &pool.labels(r#"{"app":"web"}"#).unwrap()));
        assert!(Arc::ptr_eq(&text, &pool.text("a,b")));
        let seen = pool.0.lock().unwrap();
        assert_eq!((seen.labels.len(), seen.texts.len()), (1, 1));
    }

    /// The labels of one object, 700 KB of them and new ones with each write, were remembered 1,024 times.
    #[test]
    fn long_labels_and_values_are_not_remembered() {
        let pool = Pool::default();
        let long = "x".repeat(REMEMBERED_TEXT + 1);
        let labels = pool.labels(&format!(r#"{{"app":"{long}"}}"#)).unwrap();
        assert_eq!((&labels["app"], &*pool.text(&long)), (&long, &*long));
        assert_eq!((Arc::strong_count(&labels), pool.0.lock().unwrap().texts.len()), (1, 0));
    }

    #[test]
    fn values_are_found_in_the_text_or_beside_it() {
        let pool = Pool::default();
        let text = format!("{}web", "x".repeat(1 << 21));
        let of = |range: Range<usize>| Found::There(range);
        let values = [
            of(0..3),
            of(5..5),
            Found::Made("false".to_owned()),
            Found::Made("a,b".to_owned()),
            // Longer, and at a later position, than a place can express.
            of(1..1 + Place::ZERO as usize),
            of(1..Place::ZERO as usize),
            of(1 << 21..(1 << 21) + 3),
            Found::Made(String::new()),
        ];
        let values = pool.values(&text, values.into_iter());
        let found: Vec<&str> = (0..9).map(|place| values.get(place, text.as_bytes())).collect();
        let long = "x".repeat(Place::ZERO as usize);
        assert_eq!(found, ["xxx", "", "false", "a,b", &long, &long[1..], "web", "", ""]);
        assert_eq!(values.others.as_ref().map(|others| others.len()), Some(3));
        assert!(pool.values("web", [of(0..3)].into_iter()).others.is_none());
    }
}
