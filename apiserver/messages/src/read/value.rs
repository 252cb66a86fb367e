//! One value.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::fields::{Fields, Object};
use super::items::Items;
use super::{Context, Encoded, Error};
use crate::envelope::is_envelope;
use crate::scalars::{self, IntOrString, Moment, text};
use crate::table::{Kind, at};
use crate::wire::{Malformed, Reader, Wire};

/// A value that is not read before its type is known.
#[derive(Clone, Copy)]
pub(super) struct Value<'de> {
    pub kind: Kind,
    /// The number of its field.
    pub number: u64,
    pub wire: Wire<'de>,
    pub context: Context,
}

impl<'de> Value<'de> {
    /// Returns a text that is no field of its message.
    pub(super) fn of_text(text: &'de str, context: Context) -> Self {
        Self { kind: Kind::Text, number: 0, wire: Wire::Bytes(text.as_bytes()), context }
    }

    fn bytes(self) -> Result<&'de [u8], Malformed> {
        self.wire.bytes(self.number)
    }

    /// Visits the JSON that the message of a `RawExtension` or the like contains.
    fn visit_raw<V: Visitor<'de>>(self, visit: RawVisit, visitor: V) -> Result<V::Value, Error> {
        let raw = scalars::first(self.bytes()?)?.unwrap_or_default();
        if raw.is_empty() {
            return visitor.visit_unit();
        }
        if is_envelope(raw) {
            // Some clients embed an object in the encoding that they speak.
            let object = Object::new(Encoded::open(raw)?, self.context.deeper()?);
            return match visit {
                RawVisit::Option => visitor.visit_some(ObjectDeserializer(object)),
                RawVisit::Any | RawVisit::Newtype(_) => visitor.visit_map(object),
            };
        }
        let mut json = serde_json::Deserializer::from_slice(raw);
        let read = match visit {
            RawVisit::Any => json.deserialize_any(visitor),
            RawVisit::Option => json.deserialize_option(visitor),
            RawVisit::Newtype(name) => json.deserialize_newtype_struct(name, visitor),
        };
        read.and_then(|value| json.end().map(|()| value)).map_err(Error::custom)
    }

    /// Returns the choice that one of the types around `JSONSchemaProps` is.
    fn choice(self, schema: u16) -> Result<Choice<'de>, Malformed> {
        let bytes = self.bytes()?;
        let (mut flag, mut one) = (None, None);
        let numbers_one = if matches!(self.kind, Kind::SchemaOrFlag(_)) { 2 } else { 1 };
        let mut reader = Reader(bytes);
        while let Some((number, wire)) = reader.field()? {
            match number {
                _ if number == numbers_one => one = Some(wire.bytes(number)?),
                1 => flag = Some(wire.varint(number)? != 0),
                _ => {}
            }
        }
        let item = match self.kind {
            Kind::SchemaOrTexts(_) => Kind::Text,
            Kind::SchemaOrList(_) => Kind::Message(schema),
            _ => {
                return Ok(match one {
                    Some(bytes) => Choice::One(Fields::new(at(schema), bytes, self.context)?),
                    None => Choice::Flag(flag.unwrap_or(false)),
                });
            }
        };
        let items = Items::of_message(item, 2, bytes, self.context)?;
        Ok(match one {
            _ if !items.is_empty() => Choice::List(items),
            Some(bytes) => Choice::One(Fields::new(at(schema), bytes, self.context)?),
            None => Choice::Nothing,
        })
    }
}

/// The method of the visitor that is called with embedded JSON.
enum RawVisit {
    Any,
    Option,
    Newtype(&'static str),
}

enum Choice<'de> {
    Nothing,
    Flag(bool),
    One(Fields<'de>),
    List(Items<'de>),
}

impl Choice<'_> {
    fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let number = self.number;
        match self.kind {
            Kind::Text => visitor.visit_borrowed_str(text(self.bytes()?)?),
            Kind::Flag => visitor.visit_bool(self.wire.varint(number)? != 0),
            // Negative numbers are sent as 64 bits in two's complement.
            Kind::Int32 => visitor.visit_i32((self.wire.varint(number)? as u32).cast_signed()),
            Kind::Int64 => visitor.visit_i64(self.wire.varint(number)?.cast_signed()),
            Kind::Double => {
                let Wire::Fixed64(bits) = self.wire else { return Err(Malformed::Wire(number).into()) };
                let value = f64::from_bits(bits);
                match scalars::whole(value) {
                    Some(whole) => visitor.visit_i64(whole),
                    None => visitor.visit_f64(value),
                }
            }
            Kind::Bytes => visitor.visit_string(STANDARD.encode(self.bytes()?)),
            Kind::Message(inner) => visitor.visit_map(Fields::new(at(inner), self.bytes()?, self.context)?),
            Kind::Texts => visitor.visit_seq(Items::of_message(Kind::Text, 1, self.bytes()?, self.context)?),
            Kind::Time | Kind::MicroTime => {
                let micro = self.kind == Kind::MicroTime;
                match Moment::read(self.bytes()?, micro)? {
                    Some(moment) => visitor.visit_str(moment.spell(micro, &mut [0; 27])),
                    None => visitor.visit_unit(),
                }
            }
            Kind::Quantity => match scalars::first(self.bytes()?)? {
                Some(content) => visitor.visit_borrowed_str(text(content)?),
                None => visitor.visit_borrowed_str("0"),
            },
            Kind::IntOrString => match scalars::int_or_string(self.bytes()?)? {
                IntOrString::Int(integer) => visitor.visit_i32(integer),
                IntOrString::String(text) => visitor.visit_borrowed_str(text),
            },
            Kind::Raw => self.visit_raw(RawVisit::Any, visitor),
            Kind::SchemaOrList(inner) | Kind::SchemaOrFlag(inner) | Kind::SchemaOrTexts(inner) => {
                match self.choice(inner)? {
                    Choice::Nothing => visitor.visit_unit(),
                    Choice::Flag(flag) => visitor.visit_bool(flag),
                    Choice::One(fields) => visitor.visit_map(fields),
                    Choice::List(items) => visitor.visit_seq(items),
                }
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let is_null = match self.kind {
            Kind::Raw => return self.visit_raw(RawVisit::Option, visitor),
            Kind::Time | Kind::MicroTime => {
                Moment::read(self.bytes()?, self.kind == Kind::MicroTime)?.is_none()
            }
            Kind::SchemaOrList(inner) | Kind::SchemaOrTexts(inner) => self.choice(inner)?.is_nothing(),
            _ => false,
        };
        if is_null { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.kind {
            Kind::Raw => self.visit_raw(RawVisit::Newtype(name), visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.kind {
            Kind::Text => {
                BorrowedStrDeserializer::new(text(self.bytes()?)?).deserialize_enum(name, variants, visitor)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier
    }
}

/// A whole object, or one that is embedded in another.
pub(super) struct ObjectDeserializer<'de>(pub Object<'de>);

impl<'de> Deserializer<'de> for ObjectDeserializer<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
