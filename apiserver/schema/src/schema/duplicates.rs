//! Findings of strict decoding in a JSON text: repeated keys, and fields that a type does not have. A parsed
//! value has lost repeated keys and the order of the text, so the parser notes whether a key was repeated;
//! only then, or for unknown fields, the text is read once more. The objects of a text are counted at the
//! same time.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::graph::{Definition, Type, definition};
use crate::limits::{DUPLICATES, OBJECTS};
use crate::quoted::quoted;

/// A JSON text, and whether a key occurs again in an object of it; the last value counts. An error if it
/// holds more than [`OBJECTS`].
pub fn parse_noting(json: &[u8]) -> Result<(Value, bool), serde_json::Error> {
    let mut notes = Notes::default();
    let value = read(json, Expected::Anything, &mut notes)?;
    Ok((value, notes.repeats))
}

/// `duplicate field "spec.replicas"` for each key that occurs again in its object. Text that is
/// not JSON has none.
pub fn duplicate_fields(json: &[u8]) -> Vec<String> {
    named(json, Expected::Anything)
}

/// Returns the duplicate and unknown fields of an object of that definition, in the order of the text. The
/// contents of an unknown field, or of one that holds anything, are not checked. With an unknown definition
/// it is the same as [`duplicate_fields`].
pub fn misplaced_fields(name: &str, json: &[u8]) -> Vec<String> {
    named(json, definition(name).map_or(Expected::Anything, Expected::Object))
}

fn named(json: &[u8], expected: Expected) -> Vec<String> {
    let mut notes = Notes { named: Some(Vec::new()), ..Notes::default() };
    // A syntax error was or will be reported by the caller that wants the value.
    let _ = read(json, expected, &mut notes);
    notes.named.unwrap_or_default()
}

fn read(json: &[u8], expected: Expected, notes: &mut Notes) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Noting { place: Place::Root, expected, notes }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The type that a value is decoded into.
#[derive(Clone, Copy)]
enum Expected {
    /// A value without a type, in which keys may not be repeated.
    Anything,
    /// A value that is kept unchanged.
    Opaque,
    Object(Definition),
    Values(Type),
}

impl Expected {
    fn of(ty: Type) -> Self {
        match (ty.object(), ty) {
            (Some(definition), _) => Self::Object(definition),
            (None, Type::List(_) | Type::Map(_)) => ty.element().map_or(Self::Opaque, Self::Values),
            _ => Self::Opaque,
        }
    }

    /// Returns the type of a key's value, or `None` if the type does not have the field.
    fn field(self, key: &str) -> Option<Self> {
        match self {
            Self::Object(definition) => definition.field(key).map(|field| Self::of(field.ty())),
            other => Some(other.item()),
        }
    }

    /// Returns the type of a list's items.
    fn item(self) -> Self {
        match self {
            Self::Values(ty) => Self::of(ty),
            Self::Anything => Self::Anything,
            Self::Opaque | Self::Object(_) => Self::Opaque,
        }
    }
}

/// The notes about repeated keys and unknown fields.
#[derive(Default)]
struct Notes {
    repeats: bool,
    /// Objects that have fields.
    objects: usize,
    /// The findings to report, or `None` if the caller does not want them.
    named: Option<Vec<String>>,
    /// The number of findings so far: paths may be long, so no more are written than are kept.
    tries: usize,
}

impl Notes {
    /// Reports a field, once.
    fn name(&mut self, what: &str, place: Place<'_>) {
        if let Some(named) = self.named.as_mut().filter(|_| self.tries < DUPLICATES) {
            self.tries += 1;
            let text = format!("{what} field {}", quoted(&place.to_string()));
            if !named.contains(&text) {
                named.push(text);
            }
        }
    }
}

/// The path of a value. It is formatted only if there is something to report, which is rare.
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

/// Makes a value and notes repeated keys and unknown fields.
struct Noting<'p, 'n> {
    place: Place<'p>,
    expected: Expected,
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
        let (mut items, expected) = (Vec::new(), self.expected.item());
        loop {
            let place = Place::Index(&self.place, items.len());
            match list.next_element_seed(Noting { place, expected, notes: &mut *self.notes })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        // The keys of this object that were reported.
        let (mut map, mut told, mut counted) = (Map::new(), BTreeSet::new(), false);
        while let Some(key) = fields.next_key::<String>()? {
            let place = Place::Field(&self.place, &key);
            if !std::mem::replace(&mut counted, true) {
                self.notes.objects += 1;
                if self.notes.objects > OBJECTS {
                    return Err(A::Error::custom(format_args!("it holds more than {OBJECTS} objects")));
                }
            }
            let Some(expected) = self.expected.field(&key) else {
                if told.insert(key.clone()) {
                    self.notes.name("unknown", place);
                }
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            // Duplicates within the second value are reported after the value itself.
            if self.notes.named.is_some()
                && !matches!(self.expected, Expected::Opaque)
                && map.contains_key(&key)
                && told.insert(key.clone())
            {
                self.notes.name("duplicate", place);
            }
            let value = fields.next_value_seed(Noting { place, expected, notes: &mut *self.notes })?;
            self.notes.repeats |= map.insert(key, value).is_some();
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
    fn duplicate_fields_are_named_up_to_the_limit() {
        let again: Vec<String> = (0..300).map(|n| format!("\"a{n}\":1,\"a{n}\":2")).collect();
        assert_eq!(duplicate_fields(format!("{{{}}}", again.join(",")).as_bytes()).len(), DUPLICATES);
        let within = r#"{"a":{"b":1,"b":2,"b":3},"a":{"c":1,"c":2}}"#;
        assert_eq!(
            duplicate_fields(within.as_bytes()),
            ["duplicate field \"a.b\"", "duplicate field \"a\"", "duplicate field \"a.c\""]
        );
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named_in_the_order_of_the_text() {
        let text = r#"{"zz": {"x": 1, "x": 2}, "metadata": {"name": "a", "name": "b", "odd": 1,
            "labels": {"l": "1", "l": "2"}}, "aa": 1, "aa": 2, "spec": {"x": 1, "paused": true, "paused": false,
            "template": {"spec": {"containers": [{"name": "c"}, {"b": 1, "image": "i", "image": "j", "a": 1}]}}},
            "metadata": {"other": 1}}"#;
        assert_eq!(
            misplaced_fields("io.k8s.api.apps.v1.Deployment", text.as_bytes()),
            [
                "unknown field \"zz\"",
                "duplicate field \"metadata.name\"",
                "unknown field \"metadata.odd\"",
                "duplicate field \"metadata.labels.l\"",
                "unknown field \"aa\"",
                "unknown field \"spec.x\"",
                "duplicate field \"spec.paused\"",
                "unknown field \"spec.template.spec.containers[1].b\"",
                "duplicate field \"spec.template.spec.containers[1].image\"",
                "unknown field \"spec.template.spec.containers[1].a\"",
                "duplicate field \"metadata\"",
                "unknown field \"metadata.other\"",
            ]
        );
        let open = br#"{"data": {"a": 1, "a": 2}, "revision": 1, "revision": 2}"#;
        let revision = misplaced_fields("io.k8s.api.apps.v1.ControllerRevision", open);
        assert_eq!(revision, ["duplicate field \"revision\""]);
    }
}
