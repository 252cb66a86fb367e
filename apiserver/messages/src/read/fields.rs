//! The fields of a message, as the members of a JSON object.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, MapAccess};

use super::items::Run;
use super::value::Value;
use super::{Context, Encoded, Error};
use crate::scalars::{self, Moment};
use crate::table::{Field, Kind, MANAGED_FIELDS, Message, Shape, at};
use crate::wire::{Malformed, Reader, Wire};

/// The only field of the API that is a time and that types require.
const TRANSITION: &str = "lastTransitionTime";
/// Go's zero time, as it prints it.
const UNSET: &str = "0001-01-01T00:00:00Z";

/// The members of an object: version, kind, and its fields.
pub(super) struct Object<'de> {
    names: [(&'static str, &'de str); 2],
    /// The name whose value is next, if it is not one of a field.
    next: Option<&'de str>,
    given: usize,
    fields: Fields<'de>,
}

impl<'de> Object<'de> {
    pub(super) fn new(object: Encoded<'de>, context: Context) -> Self {
        let names = [("apiVersion", object.api_version), ("kind", object.kind)];
        let level = Level::new(object.message, object.bytes, context);
        Self { names, next: None, given: 0, fields: Fields { level, outer: None, next: None, context } }
    }
}

impl<'de> MapAccess<'de> for Object<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        while let Some((name, text)) = self.names.get(self.given) {
            self.given += 1;
            if !text.is_empty() {
                self.next = Some(text);
                return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
            }
        }
        self.fields.next_key_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.next.take() {
            Some(text) => seed.deserialize(Value::of_text(text, self.fields.context)),
            None => self.fields.next_value_seed(seed),
        }
    }
}

/// The fields of a message and of those that are inlined in it.
pub(super) struct Fields<'de> {
    level: Level<'de>,
    /// The messages around an inlined one.
    outer: Option<Box<Outer<'de>>>,
    next: Option<Next<'de>>,
    context: Context,
}

struct Outer<'de> {
    level: Level<'de>,
    outer: Option<Box<Self>>,
}

/// A message that is being read.
struct Level<'de> {
    fields: &'static [Field],
    reader: Reader<'de>,
    /// Place of the last field in the table.
    at: usize,
    /// Fields that the bytes have, by their place.
    seen: u64,
    /// Fields that are there also if the bytes lack them.
    implied: u64,
    /// Fields that nobody reads.
    unread: u64,
}

impl<'de> Level<'de> {
    fn new(message: Message, bytes: &'de [u8], context: Context) -> Self {
        let unread = context.how.unread.map_or(0, |unread| unread.of(message));
        let implied = message.implied() & !unread;
        Self { fields: message.fields(), reader: Reader(bytes), at: 0, seen: 0, implied, unread }
    }

    /// Returns the next field that the bytes have, with what the reader was before it. Fields that a newer version has
    /// added are skipped.
    fn next(&mut self) -> Result<Option<(&'static Field, Wire<'de>, Reader<'de>)>, Malformed> {
        loop {
            let before = self.reader;
            let Some((number, wire)) = self.reader.field()? else { return Ok(None) };
            // Usually they come in order, and then the field is the same as before or one of the next.
            while self.fields.get(self.at).is_some_and(|field| u64::from(field.number) < number) {
                self.at += 1;
            }
            if self.fields.get(self.at).is_none_or(|field| u64::from(field.number) != number) {
                let found = self.fields.iter().position(|field| u64::from(field.number) == number);
                let Some(found) = found else { continue };
                self.at = found;
            }
            if self.unread & 1 << self.at != 0 {
                continue;
            }
            return Ok(Some((&self.fields[self.at], wire, before)));
        }
    }

    /// Returns a field that is there although the bytes lack it.
    fn lacking(&mut self) -> Option<&'static Field> {
        let missing = self.implied & !self.seen;
        let place = missing.trailing_zeros() as usize;
        let field = self.fields.get(place)?;
        self.seen |= 1 << place;
        Some(field)
    }
}

/// The value of the member whose name was given.
enum Next<'de> {
    Unset(&'static Field),
    One(&'static Field, Wire<'de>),
    Many(&'static Field, Run<'de>),
}

impl<'de> Fields<'de> {
    /// Returns the fields of a message; fails if it is nested too deeply.
    pub(super) fn new(message: Message, bytes: &'de [u8], context: Context) -> Result<Self, Malformed> {
        let level = Level::new(message, bytes, context);
        Ok(Self { level, outer: None, next: None, context: context.deeper()? })
    }

    /// Goes to the next member; returns its name, `None` at the end.
    fn step(&mut self) -> Result<Option<&'static str>, Malformed> {
        loop {
            if let Some((field, wire, before)) = self.level.next()? {
                if let Some(next) = self.held(field, wire, before)? {
                    self.next = Some(next);
                    return Ok(Some(field.name()));
                }
            } else if let Some(field) = self.level.lacking() {
                if let Some(inner) = inlined(field) {
                    self.enter(inner, &[]);
                    continue;
                }
                self.next = Some(Next::One(field, nothing(field.kind)));
                return Ok(Some(field.name()));
            } else {
                let Some(outer) = self.outer.take() else { return Ok(None) };
                (self.level, self.outer) = (outer.level, outer.outer);
            }
        }
    }

    /// Takes a field that the bytes have; `None` if it is not in the JSON, or has only fields in it.
    fn held(
        &mut self,
        field: &'static Field,
        wire: Wire<'de>,
        before: Reader<'de>,
    ) -> Result<Option<Next<'de>>, Malformed> {
        let bit = 1 << self.level.at;
        let again = self.level.seen & bit != 0;
        self.level.seen |= bit;
        if let Some(inner) = inlined(field) {
            self.enter(inner, wire.bytes(u64::from(field.number))?);
            return Ok(None);
        }
        if self.context.skips_managed_fields() && field.kind == MANAGED_FIELDS {
            return Ok(None);
        }
        if field.shape != Shape::One {
            if again {
                return Err(Malformed::Scattered(u64::from(field.number)));
            }
            let run = Run::take(field, before, &mut self.level.reader, self.context)?;
            return Ok(Some(Next::Many(field, run)));
        }
        if is_left_out(field, wire)? {
            let unset = self.context.how.with_unset_times && field.name() == TRANSITION;
            return Ok(unset.then_some(Next::Unset(field)));
        }
        Ok(Some(Next::One(field, wire)))
    }

    fn enter(&mut self, inner: Message, bytes: &'de [u8]) {
        let inner = Level::new(inner, bytes, self.context);
        let level = std::mem::replace(&mut self.level, inner);
        self.outer = Some(Box::new(Outer { level, outer: self.outer.take() }));
    }
}

/// Returns the message of a field whose fields are those of its parent in JSON.
fn inlined(field: &Field) -> Option<Message> {
    match field.kind {
        Kind::Message(inner) if field.name().is_empty() => Some(at(inner)),
        _ => None,
    }
}

/// Returns what a field has on the wire if it was not set, and is in JSON nevertheless.
pub(super) fn nothing<'de>(kind: Kind) -> Wire<'de> {
    match kind {
        Kind::Flag | Kind::Int32 | Kind::Int64 => Wire::Varint(0),
        Kind::Double => Wire::Fixed64(0),
        _ => Wire::Bytes(&[]),
    }
}

/// Returns `true` if JSON leaves the value out or has `null` in its place.
fn is_left_out(field: &Field, wire: Wire<'_>) -> Result<bool, Malformed> {
    let number = u64::from(field.number);
    let may_lack = !field.pointer && !field.always;
    Ok(match field.kind {
        Kind::Text => may_lack && wire.bytes(number)?.is_empty(),
        Kind::Flag | Kind::Int64 => may_lack && wire.varint(number)? == 0,
        Kind::Int32 => may_lack && wire.varint(number)? as u32 == 0,
        Kind::Double => may_lack && matches!(wire, Wire::Fixed64(bits) if f64::from_bits(bits) == 0.0),
        Kind::Bytes | Kind::Texts => !field.pointer && wire.bytes(number)?.is_empty(),
        Kind::Time | Kind::MicroTime => {
            Moment::read(wire.bytes(number)?, field.kind == Kind::MicroTime)?.is_none()
        }
        Kind::Raw => matches!(scalars::first(wire.bytes(number)?)?, None | Some(b"" | b"null")),
        _ => false,
    })
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        match self.step()? {
            Some(name) => seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, read) = match self.next.take() {
            Some(Next::Unset(field)) => (field.name(), seed.deserialize(Value::of_text(UNSET, self.context))),
            Some(Next::One(field, wire)) => {
                let number = u64::from(field.number);
                let value = Value { kind: field.kind, number, wire, context: self.context };
                (field.name(), seed.deserialize(value))
            }
            Some(Next::Many(field, run)) => (field.name(), seed.deserialize(run)),
            // Only if a value is asked for before its name.
            None => ("", Err(Malformed::Short.into())),
        };
        read.map_err(|error| error.in_field(name))
    }
}
