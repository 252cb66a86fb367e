//! The input of the encoder: JSON values, decoded into maps of their own, or borrowed from the text, which
//! costs a fraction if the value is needed for nothing else.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Number, Value};

/// A JSON value.
pub trait Tree: Sized {
    /// An object's members.
    type Members: Members<Self>;

    /// The value.
    fn view(&self) -> View<'_, Self>;

    /// Returns its JSON text.
    fn json(&self) -> String;
}

/// The members of an object, each name once.
pub trait Members<T> {
    /// The member of that name.
    fn member(&self, name: &str) -> Option<&T>;

    /// All, the greatest name first.
    fn descending<'a>(&'a self) -> impl Iterator<Item = (&'a str, &'a T)>
    where
        T: 'a;

    /// The text of the object.
    fn json(&self) -> String;
}

/// A view of a value for the encoder.
pub enum View<'a, T: Tree> {
    Null,
    Flag(bool),
    Number(&'a Number),
    Text(&'a str),
    List(&'a [T]),
    Object(&'a T::Members),
}

impl Tree for Value {
    type Members = Map<String, Self>;

    fn view(&self) -> View<'_, Self> {
        match self {
            Self::Null => View::Null,
            Self::Bool(flag) => View::Flag(*flag),
            Self::Number(number) => View::Number(number),
            Self::String(text) => View::Text(text),
            Self::Array(list) => View::List(list),
            Self::Object(map) => View::Object(map),
        }
    }

    fn json(&self) -> String {
        self.to_string()
    }
}

impl Members<Value> for Map<String, Value> {
    fn member(&self, name: &str) -> Option<&Value> {
        self.get(name)
    }

    fn descending<'a>(&'a self) -> impl Iterator<Item = (&'a str, &'a Value)>
    where
        Value: 'a,
    {
        self.iter().rev().map(|(key, value)| (key.as_str(), value))
    }

    fn json(&self) -> String {
        // All names are texts, and nothing else can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A JSON value that borrows from its text.
#[derive(Clone, Debug, PartialEq)]
pub enum Borrowed<'a> {
    Null,
    Flag(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    /// An object, sorted by name.
    Object(Sorted<'a>),
}

/// Members in the order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct Sorted<'a>(Vec<(Cow<'a, str>, Borrowed<'a>)>);

impl<'a> Borrowed<'a> {
    /// Reads JSON. Of members of the same name the last counts.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// A member of an object, to be changed.
    pub fn member_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Self::Object(Sorted(members)) = self else { return None };
        let at = members.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        Some(&mut members[at].1)
    }

    /// Sets a member of an object; a value that is not an object stays unchanged.
    pub fn insert(&mut self, name: &'a str, value: Self) {
        let Self::Object(Sorted(members)) = self else { return };
        match members.binary_search_by(|(key, _)| key.as_ref().cmp(name)) {
            Ok(at) => members[at].1 = value,
            Err(at) => members.insert(at, (Cow::Borrowed(name), value)),
        }
    }

    /// The text of a member; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        match self {
            Self::Object(members) => match members.member(name) {
                Some(Self::Text(text)) => text,
                _ => "",
            },
            _ => "",
        }
    }
}

impl<'a> Tree for Borrowed<'a> {
    type Members = Sorted<'a>;

    fn view(&self) -> View<'_, Self> {
        match self {
            Self::Null => View::Null,
            Self::Flag(flag) => View::Flag(*flag),
            Self::Number(number) => View::Number(number),
            Self::Text(text) => View::Text(text),
            Self::List(list) => View::List(list),
            Self::Object(members) => View::Object(members),
        }
    }

    fn json(&self) -> String {
        // All names are texts, and nothing else can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl<'a> Members<Borrowed<'a>> for Sorted<'a> {
    fn member(&self, name: &str) -> Option<&Borrowed<'a>> {
        let at = self.0.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    fn descending<'b>(&'b self) -> impl Iterator<Item = (&'b str, &'b Borrowed<'a>)>
    where
        Borrowed<'a>: 'b,
    {
        self.0.iter().rev().map(|(key, value)| (key.as_ref(), value))
    }

    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Borrowed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => {
                let mut out = serializer.serialize_seq(Some(list.len()))?;
                list.iter().try_for_each(|item| out.serialize_element(item))?;
                out.end()
            }
            Self::Object(members) => members.serialize(serializer),
        }
    }
}

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(key, value)| out.serialize_entry(key, value))?;
        out.end()
    }
}

impl<'de> Deserialize<'de> for Borrowed<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

/// A name that is borrowed where it can be.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Any {
    type Value = Borrowed<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Borrowed::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Borrowed::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Borrowed::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Borrowed::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(number).map_or(Borrowed::Null, Borrowed::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Borrowed::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Borrowed::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Borrowed::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(Cow<'de, str>, Borrowed<'de>)> = Vec::new();
        let mut sorted = true;
        while let Some((Name(key), value)) = map.next_entry()? {
            sorted &= members.last().is_none_or(|(last, _)| *last < key);
            members.push((key, value));
        }
        if !sorted {
            // Stable, and the last of a name comes first then and stays.
            members.reverse();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            members.dedup_by(|(later, _), (kept, _)| later == kept);
        }
        Ok(Borrowed::Object(Sorted(members)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrowed_reader_agrees_with_the_decoder() {
        for text in [
            r#"{"b":[1,-2,2.5,1e300,true,null,"x","\u00e9\n"],"a":{},"c":{"z":1,"y":{"":"e"}}}"#,
            r#"{"a":1,"b":2,"a":3}"#,
            "[]",
            r#""text""#,
        ] {
            let (value, borrowed): (Value, _) =
                (serde_json::from_str(text).unwrap(), Borrowed::parse(text).unwrap());
            assert_eq!(borrowed.json(), value.to_string(), "{text}");
        }
        assert!(Borrowed::parse(r#"{"a":}"#).is_err());
        assert_eq!(Borrowed::parse(r#"{"kind":"Pod","n":1}"#).unwrap().text("kind"), "Pod");
    }
}
