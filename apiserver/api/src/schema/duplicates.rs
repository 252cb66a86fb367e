//! Duplicate keys in a JSON text. A parsed value no longer has them, so who parses notes whether there
//! were any, and only then the text is read once more to say which, if `fieldValidation` asks for it.
//! The objects of a text are counted at the same time.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// No more are reported.
const LIMIT: usize = 100;
/// JSON objects that have fields, of one text. The smallest take eight bytes of it and 700 of memory; what the
/// store takes of JSON has no room for so many.
pub const OBJECTS: usize = 200_000;

/// A JSON text, and whether a key occurs again in an object of it; the last value counts. An error if it
/// holds more than [`OBJECTS`].
pub fn parse_noting(json: &[u8]) -> Result<(Value, bool), serde_json::Error> {
    let mut notes = Notes::default();
    let value = read(json, &mut notes)?;
    Ok((value, notes.repeats))
}

/// `duplicate field "spec.replicas"` for each key that occurs again in its object. Text that is
/// not JSON has none.
pub fn duplicate_fields(json: &[u8]) -> Vec<String> {
    let mut notes = Notes { named: Some(Vec::new()), ..Notes::default() };
    // A syntax error was or will be reported by who wants the value.
    let _ = read(json, &mut notes);
    notes.named.unwrap_or_default()
}

fn read(json: &[u8], notes: &mut Notes) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Noting { place: Place::Root, notes }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// What is noted of repeated keys.
#[derive(Default)]
struct Notes {
    repeats: bool,
    /// Objects that have fields.
    objects: usize,
    /// Where they are, for who wants to know.
    named: Option<Vec<String>>,
}

impl Notes {
    fn repeated(&mut self, place: Place<'_>) {
        self.repeats = true;
        if let Some(named) = self.named.as_mut().filter(|named| named.len() < LIMIT) {
            named.push(format!("duplicate field \"{place}\""));
        }
    }
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

/// Makes a value and notes repeated keys.
struct Noting<'p, 'n> {
    place: Place<'p>,
    notes: &'n mut Notes,
}

impl<'de> DeserializeSeed<'de> for Noting<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Noting<'_, '_> {
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
        // The parser takes `-0` for a double; it is an integer.
        if value.to_bits() == (-0.0_f64).to_bits() {
            return Ok(0.into());
        }
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
        loop {
            let place = Place::Index(&self.place, items.len());
            match list.next_element_seed(Noting { place, notes: &mut *self.notes })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let place = Place::Field(&self.place, &key);
            if map.is_empty() {
                self.notes.objects += 1;
                if self.notes.objects > OBJECTS {
                    return Err(A::Error::custom(format_args!("it holds more than {OBJECTS} objects")));
                }
            }
            let value = fields.next_value_seed(Noting { place, notes: &mut *self.notes })?;
            match map.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(value);
                }
                Entry::Occupied(mut entry) => {
                    self.notes.repeated(Place::Field(&self.place, entry.key()));
                    entry.insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

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

    #[test]
    fn a_text_holds_so_many_objects_that_have_fields() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        assert!(parse_noting(list("{}", 4 * OBJECTS).as_bytes()).is_ok());
        assert!(parse_noting(list(r#"{"a":0}"#, OBJECTS).as_bytes()).is_ok());
        for item in [r#"{"a":0}"#, r#"{"a":{},"a":{"b":0}}"#] {
            let error = parse_noting(list(item, OBJECTS + 1).as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("it holds more than 200000 objects"), "{error}");
        }
    }

    #[test]
    fn as_many_are_named_as_fit() {
        let again = format!("{{{}}}", vec!["\"a\":1"; 300].join(","));
        assert_eq!(duplicate_fields(again.as_bytes()), vec!["duplicate field \"a\""; LIMIT]);
        let within = r#"{"a":{"b":1,"b":2},"a":{"c":1,"c":2}}"#;
        assert_eq!(
            duplicate_fields(within.as_bytes()),
            ["duplicate field \"a.b\"", "duplicate field \"a.c\"", "duplicate field \"a\""]
        );
    }
}
