//! The input of the encoder: JSON read by the message that it becomes, so that its members have the places of their
//! fields, texts are borrowed where they can be, and what protobuf holds as JSON is not taken apart.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::Unencodable;
use crate::messages::{Field, Kind, Message, Shape, at};

/// A JSON object as its message has it. Members that the message lacks are left out; of members of the same name the
/// last counts.
#[derive(Debug)]
pub struct Object<'a> {
    message: Message,
    /// `apiVersion`, empty if there is none.
    pub api_version: Cow<'a, str>,
    /// `kind`, empty if there is none.
    pub kind: Cow<'a, str>,
    members: Members<'a>,
}

/// The members of an object by the place of their field in [`Message::fields`], ascending, each place once.
pub(super) type Members<'a> = Vec<(u8, Node<'a>)>;

/// A JSON value.
#[derive(Debug)]
pub(super) enum Node<'a> {
    Null,
    Flag(bool),
    Number(Number),
    Text(Cow<'a, str>),
    /// A value that protobuf holds as JSON.
    Json(Box<RawValue>),
    List(Vec<Self>),
    /// By key, each key once.
    Map(Vec<(Cow<'a, str>, Self)>),
    /// An object with a message.
    Object(Members<'a>),
    /// An object where none belongs.
    Misplaced,
}

impl<'a> Object<'a> {
    /// Reads JSON text, which must be an object and nothing behind it.
    pub fn parse(message: Message, text: &'a str) -> Result<Self, Unencodable> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let object = Root(message).deserialize(&mut deserializer);
        let object = object.and_then(|object| deserializer.end().map(|()| object));
        object.map_err(|_| Self::misfit(message))
    }

    /// Reads a decoded value, which must be an object.
    pub fn of(message: Message, value: &'a Value) -> Result<Self, Unencodable> {
        Root(message).deserialize(value).map_err(|_| Self::misfit(message))
    }

    fn misfit(message: Message) -> Unencodable {
        Unencodable::Type { message: message.name(), field: "" }
    }

    /// Sets `metadata.resourceVersion`; an object without metadata stays unchanged.
    pub fn set_resource_version(&mut self, version: String) {
        let Some((place, field)) = position(self.message, "metadata", 0) else { return };
        let Kind::Message(metadata) = field.kind else { return };
        let found = self.members.iter_mut().find(|(at, _)| *at == place);
        let Some((_, Node::Object(members))) = found else { return };
        if let Some((place, _)) = position(at(metadata), "resourceVersion", 0) {
            put(members, place, Node::Text(Cow::Owned(version)));
        }
    }

    pub(super) fn message(&self) -> Message {
        self.message
    }

    pub(super) fn members(&self) -> &Members<'a> {
        &self.members
    }
}

/// The field of that name with its place, sought from `near` on: members come nearly in the order of the fields.
fn position(message: Message, name: &str, near: usize) -> Option<(u8, &'static Field)> {
    // Inlined messages have no name in JSON, and no member stands for one.
    if name.is_empty() {
        return None;
    }
    let fields = message.fields();
    let (before, behind) = fields.split_at(near.min(fields.len()));
    let is_it = |field: &Field| field.name() == name;
    let found = match behind.iter().position(is_it) {
        Some(place) => near + place,
        None => before.iter().position(is_it)?,
    };
    Some((u8::try_from(found).ok()?, &fields[found]))
}

/// Sets the member at a place.
fn put<'a>(members: &mut Members<'a>, place: u8, node: Node<'a>) {
    match members.binary_search_by_key(&place, |(at, _)| *at) {
        Ok(found) => members[found].1 = node,
        Err(next) => members.insert(next, (place, node)),
    }
}

/// Sets a member that belongs to a message that is inlined in this one.
fn put_inlined<'a>(members: &mut Members<'a>, message: Message, name: &str, node: Node<'a>) {
    let inlined = message.fields().iter().enumerate().find_map(|(place, field)| match field.kind {
        Kind::Message(inner) if field.name().is_empty() => {
            at(inner).member(name).is_some().then(|| (u8::try_from(place).ok(), at(inner)))
        }
        _ => None,
    });
    let Some((Some(place), inner)) = inlined else { return };
    let found = match members.iter().position(|(at, _)| *at == place) {
        Some(found) => found,
        None => {
            members.push((place, Node::Object(Vec::new())));
            members.len() - 1
        }
    };
    if let Node::Object(members) = &mut members[found].1 {
        match position(inner, name, 0) {
            Some((place, _)) => put(members, place, node),
            None => put_inlined(members, inner, name, node),
        }
    }
}

/// Reads an object with the type that it names.
struct Root(Message);

impl<'de> DeserializeSeed<'de> for Root {
    type Value = Object<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Root {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut names = Names::default();
        let members = members(self.0, map, Some(&mut names))?;
        Ok(Object { message: self.0, api_version: names.api_version, kind: names.kind, members })
    }
}

/// The type that an object names.
#[derive(Default)]
struct Names<'a> {
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
}

impl<'a> Names<'a> {
    /// Keeps the value if it is of a member that names the type.
    fn note(&mut self, name: &str, value: &Node<'a>) {
        let Node::Text(text) = value else { return };
        match name {
            "apiVersion" => self.api_version.clone_from(text),
            "kind" => self.kind.clone_from(text),
            _ => {}
        }
    }
}

/// A name that is borrowed where it can be.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn members<'de, A: MapAccess<'de>>(
    message: Message,
    mut map: A,
    mut names: Option<&mut Names<'de>>,
) -> Result<Members<'de>, A::Error> {
    let mut members = Members::new();
    let (mut near, mut is_sorted) = (0, true);
    while let Some(Name(name)) = map.next_key()? {
        if let Some((place, field)) = position(message, &name, near) {
            near = usize::from(place) + 1;
            is_sorted &= members.last().is_none_or(|(last, _)| *last < place);
            let node = map.next_value_seed(Expected::of(field))?;
            if let Some(names) = &mut names {
                names.note(&name, &node);
            }
            members.push((place, node));
        } else if let Some(names) = &mut names
            && matches!(name.as_ref(), "apiVersion" | "kind")
        {
            names.note(&name, &map.next_value_seed(Expected { kind: Kind::Text, shape: Shape::One })?);
        } else if let Some((_, field)) = message.member(&name) {
            is_sorted = false;
            let node = map.next_value_seed(Expected::of(field))?;
            put_inlined(&mut members, message, &name, node);
        } else {
            map.next_value::<IgnoredAny>()?;
        }
    }
    if !is_sorted {
        keep_last(&mut members, |(a, _), (b, _)| a.cmp(b));
    }
    Ok(members)
}

/// Sorts and keeps the last of equal ones.
fn keep_last<T>(items: &mut Vec<T>, order: impl Fn(&T, &T) -> std::cmp::Ordering) {
    // Stable, and the last of equals comes first then and stays.
    items.reverse();
    items.sort_by(&order);
    items.dedup_by(|later, kept| order(later, kept).is_eq());
}

/// Reads a value of a field.
#[derive(Clone, Copy)]
struct Expected {
    kind: Kind,
    shape: Shape,
}

impl Expected {
    fn of(field: &Field) -> Self {
        Self { kind: field.kind, shape: field.shape }
    }

    /// Returns what its items or entries are.
    fn inner(self) -> Self {
        Self { shape: Shape::One, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Expected {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if (self.kind, self.shape) != (Kind::Raw, Shape::One) {
            return deserializer.deserialize_any(self);
        }
        let json = Box::<RawValue>::deserialize(deserializer)?;
        Ok(if json.get() == "null" { Node::Null } else { Node::Json(json) })
    }
}

impl<'de> Visitor<'de> for Expected {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(number).map_or(Node::Null, Node::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Node::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Node::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(self.inner())? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        if self.shape == Shape::Map {
            let mut entries: Vec<(Cow<'de, str>, Node<'de>)> = Vec::new();
            let mut is_sorted = true;
            while let Some(Name(key)) = map.next_key()? {
                is_sorted &= entries.last().is_none_or(|(last, _)| *last < key);
                entries.push((key, map.next_value_seed(self.inner())?));
            }
            if !is_sorted {
                keep_last(&mut entries, |(a, _), (b, _)| a.cmp(b));
            }
            return Ok(Node::Map(entries));
        }
        if let (Some(message), Shape::One) = (self.kind.message(), self.shape) {
            return members(message, map, None).map(Node::Object);
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Node::Misplaced)
    }
}
