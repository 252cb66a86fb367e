//! Duplicate keys in a JSON text. A parsed value no longer has them, so who parses notes whether there
//! were any, and only then the text is read once more to say which, if `fieldValidation` asks for it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// No more are reported.
const LIMIT: usize = 100;

/// A JSON text, and whether a key occurs again in an object of it; the last value counts.
pub fn parse_noting(json: &[u8]) -> Result<(Value, bool), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let mut repeats = false;
    let value = Noting(&mut repeats).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, repeats))
}

/// Makes a value and notes repeated keys.
struct Noting<'a>(&'a mut bool);

impl<'de> DeserializeSeed<'de> for Noting<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Noting<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(Noting(&mut *self.0))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let value = fields.next_value_seed(Noting(&mut *self.0))?;
            *self.0 |= map.insert(key, value).is_some();
        }
        Ok(Value::Object(map))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_that_of_the_parser_and_repeats_are_noted() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for (text, repeats) in [
            (r#"{"a":[1,-2,3.5,1e300,18446744073709551615,"x\u00e9",null,true,{}],"b":{"a":1}}"#, false),
            (r#"{"a":1,"b":{"c":1,"c":{"d":2}}}"#, true),
            (r#"[{"a":1},{"a":2}]"#, false),
            (" 7 ", false),
            (r#"{"a":1"#, false),
            (r#"{"a" 1}"#, false),
            ("{} x", false),
            ("", false),
            (&deep, false),
        ] {
            let plain = serde_json::from_slice::<Value>(text.as_bytes()).map_err(|e| e.to_string());
            let noting = parse_noting(text.as_bytes()).map_err(|e| e.to_string());
            assert_eq!(noting, plain.map(|value| (value, repeats)), "{text}");
            assert_eq!(!duplicate_fields(text.as_bytes()).is_empty(), repeats, "{text}");
        }
    }
}
