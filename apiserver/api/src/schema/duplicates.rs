//! Duplicate keys in a JSON text. A parsed value no longer has them, so the text is read once more,
//! only where `fieldValidation` asks for it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// No more are reported.
const LIMIT: usize = 100;

/// `duplicate field "spec.replicas"` for each key that occurs again in its object. Text that is
/// not JSON has none.
pub fn duplicate_fields(json: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seed = Node { place: Place::Root, found: &mut found };
    // A syntax error was or will be reported by the real parse.
    let _ = seed.deserialize(&mut deserializer);
    found
}

/// Where a value is. It becomes text only where there is something to say, which is hardly ever.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

struct Node<'a> {
    place: Place<'a>,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0usize;
        loop {
            let node = Node { place: Place::Index(&self.place, index), found: &mut *self.found };
            if list.next_element_seed(node)?.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<Key<'de>>()? {
            let place = Place::Field(&self.place, &key.0);
            if seen.contains(&key.0) {
                if self.found.len() < LIMIT {
                    self.found.push(format!("duplicate field \"{place}\""));
                }
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Node { place, found: &mut *self.found })?;
                seen.insert(key.0);
            }
        }
        Ok(())
    }
}

/// A key, borrowed from the text unless it has escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
