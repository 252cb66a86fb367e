//! Fields that come once for each item or entry.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::fields::nothing;
use super::value::Value;
use super::{Context, Error};
use crate::scalars::text;
use crate::table::{Field, Kind, Shape};
use crate::wire::{Malformed, Reader, Wire};

/// All items of a list, or entries of a map.
pub(super) struct Run<'de> {
    field: &'static Field,
    items: Items<'de>,
}

impl<'de> Run<'de> {
    /// Takes the fields of one number that follow each other, the first of which `after` has read.
    pub(super) fn take(
        field: &'static Field,
        before: Reader<'de>,
        after: &mut Reader<'de>,
        context: Context,
    ) -> Result<Self, Malformed> {
        let number = u64::from(field.number);
        let mut reader = before;
        let mut left = 0;
        while let Some((found, wire)) = reader.field()?
            && found == number
        {
            left += match wire {
                Wire::Bytes(packed) if is_packable(field.kind) => {
                    // The last byte of a number is below 0x80.
                    packed.iter().filter(|byte| **byte < 0x80).count()
                }
                _ => 1,
            };
            *after = reader;
        }
        let items = Items { kind: field.kind, number, reader: before, packed: Reader(&[]), left, context };
        Ok(Self { field, items })
    }
}

/// Returns `true` for kinds whose values may be sent in one field, which Kubernetes' encoders never do.
fn is_packable(kind: Kind) -> bool {
    matches!(kind, Kind::Flag | Kind::Int32 | Kind::Int64)
}

impl<'de> Deserializer<'de> for Run<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.field.shape {
            Shape::Map => visitor.visit_map(Entries { items: self.items, value: None }),
            Shape::List | Shape::One => visitor.visit_seq(self.items),
        }
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

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct enum identifier
    }
}

/// The items of a run.
pub(super) struct Items<'de> {
    kind: Kind,
    number: u64,
    reader: Reader<'de>,
    /// The rest of a field that holds several numbers.
    packed: Reader<'de>,
    left: usize,
    context: Context,
}

impl<'de> Items<'de> {
    /// Returns the items of a message that is a list of texts, in fields of this number.
    pub(super) fn of_message(
        kind: Kind,
        number: u64,
        bytes: &'de [u8],
        context: Context,
    ) -> Result<Self, Malformed> {
        let (mut reader, mut left) = (Reader(bytes), 0);
        while let Some((found, _)) = reader.field()? {
            left += usize::from(found == number);
        }
        Ok(Self { kind, number, reader: Reader(bytes), packed: Reader(&[]), left, context })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    fn next(&mut self) -> Result<Option<Wire<'de>>, Malformed> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        loop {
            if !self.packed.0.is_empty() {
                return self.packed.varint().map(|number| Some(Wire::Varint(number)));
            }
            match self.reader.field()? {
                Some((number, Wire::Bytes(packed))) if number == self.number && is_packable(self.kind) => {
                    self.packed = Reader(packed);
                }
                Some((number, wire)) if number == self.number => return Ok(Some(wire)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn value(&self, number: u64, wire: Wire<'de>) -> Value<'de> {
        Value { kind: self.kind, number, wire, context: self.context }
    }
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        match self.next()? {
            Some(wire) => seed.deserialize(self.value(self.number, wire)).map(Some),
            None => Ok(None),
        }
    }

    /// The exact number, so that vectors have no room to spare.
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The entries of a map.
struct Entries<'de> {
    items: Items<'de>,
    value: Option<Wire<'de>>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(entry) = self.items.next()? else { return Ok(None) };
        let mut reader = Reader(entry.bytes(self.items.number)?);
        // A missing value is the type's zero.
        let (mut key, mut value) = ("", nothing(self.items.kind));
        while let Some((part, wire)) = reader.field()? {
            match part {
                1 => key = text(wire.bytes(part)?)?,
                2 => value = wire,
                _ => {}
            }
        }
        self.value = Some(value);
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = self.value.take().ok_or(Malformed::Short)?;
        seed.deserialize(self.items.value(2, value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.left)
    }
}
