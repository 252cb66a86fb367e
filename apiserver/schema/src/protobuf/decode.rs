//! Protobuf to JSON. The bytes may come from any client: depth and number of values are bounded, nothing
//! panics, and fields that a newer version has added are ignored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::MAGIC;
use super::complete::zero;
use crate::messages::limits::{MESSAGE_DEPTH, MESSAGE_VALUES};
use crate::messages::scalars::{self, IntOrString, Moment, first, text};
use crate::messages::{Absent, Encoded, Field, Kind, Malformed, Message, Reader, Shape, Wire, at};

/// The remainder of the bounds.
pub(super) struct Budget {
    depth: usize,
    values: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { depth: MESSAGE_DEPTH, values: MESSAGE_VALUES }
    }
}

impl Budget {
    pub(super) fn value(&mut self) -> Result<(), Malformed> {
        self.values = self.values.checked_sub(1).ok_or(Malformed::Large)?;
        Ok(())
    }

    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Malformed>) -> Result<T, Malformed> {
        self.enter()?;
        let result = inner(self);
        self.leave();
        result
    }

    pub(super) fn enter(&mut self) -> Result<(), Malformed> {
        self.depth = self.depth.checked_sub(1).ok_or(Malformed::Deep)?;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth += 1;
    }
}

/// The object in an envelope.
pub(super) fn envelope(bytes: &[u8], budget: &mut Budget) -> Result<Value, Malformed> {
    let opened = Encoded::open(bytes)?;
    let mut object = fields(opened.message, opened.bytes, budget)?;
    object.insert("apiVersion".to_owned(), opened.api_version.into());
    object.insert("kind".to_owned(), opened.kind.into());
    Ok(Value::Object(object))
}

/// The object that a message is, without an envelope: `apiVersion` and `kind` are not in it.
pub fn decode(message: Message, bytes: &[u8]) -> Result<Value, Malformed> {
    fields(message, bytes, &mut Budget::default()).map(Value::Object)
}

fn fields(message: Message, bytes: &[u8], budget: &mut Budget) -> Result<Map<String, Value>, Malformed> {
    budget.deeper(|budget| {
        let mut object = Map::new();
        let all = message.fields();
        let (mut reader, mut at) = (Reader(bytes), 0);
        // By place in the table; no message has more fields than there are bits.
        let mut seen = 0_u128;
        while let Some((number, wire)) = reader.field()? {
            // Usually they come in order, and then the field is the same as before or one of the next.
            while all.get(at).is_some_and(|field| u64::from(field.number) < number) {
                at += 1;
            }
            if all.get(at).is_none_or(|field| u64::from(field.number) != number) {
                // A field that a newer version has added is ignored, as in JSON.
                let Some(found) = all.iter().position(|field| u64::from(field.number) == number) else {
                    continue;
                };
                at = found;
            }
            let again = seen >> at & 1 == 1;
            seen |= 1 << at;
            take(&mut object, &all[at], again, wire, budget)?;
        }
        complete(&mut object, all, seen, budget)?;
        Ok(object)
    })
}

/// Takes one occurrence of a field; `again` if it is not the first.
fn take(
    object: &mut Map<String, Value>,
    field: &Field,
    again: bool,
    wire: Wire<'_>,
    budget: &mut Budget,
) -> Result<(), Malformed> {
    let number = u64::from(field.number);
    match field.shape {
        Shape::One => {
            let value = value(field.kind, number, wire, budget)?;
            if field.name().is_empty() {
                if let Value::Object(fields) = value {
                    object.extend(fields);
                }
            } else if !value.is_null() && (field.pointer || !is_zero(field.kind, &value)) {
                object.insert(field.name().to_owned(), value);
            } else if again {
                object.remove(field.name());
            }
        }
        Shape::List => {
            let mut items = Vec::new();
            items_of(field.kind, number, wire, budget, &mut items)?;
            // No name is copied for the second item.
            let list = match object.get_mut(field.name()) {
                Some(list) => list,
                None => object.entry(field.name()).or_insert_with(|| json!([])),
            };
            match list {
                Value::Array(list) => list.append(&mut items),
                // An inlined message has a field of that name; no table of Kubernetes' has that.
                _ => return Err(Malformed::Wire(number)),
            }
        }
        Shape::Map => {
            let (key, value) = entry(field.kind, number, wire, budget)?;
            match object.entry(field.name()).or_insert_with(|| json!({})) {
                Value::Object(map) => drop(map.insert(key, value)),
                _ => return Err(Malformed::Wire(number)),
            }
        }
    }
    Ok(())
}

/// Adds the fields that Go's JSON always has, for those that the bytes did not hold.
fn complete(
    object: &mut Map<String, Value>,
    all: &[Field],
    seen: u128,
    budget: &mut Budget,
) -> Result<(), Malformed> {
    for (i, field) in all.iter().enumerate() {
        let value = match field.absent() {
            Absent::Nothing => continue,
            _ if field.name().is_empty() && seen >> i & 1 == 1 => continue,
            _ if object.contains_key(field.name()) => continue,
            Absent::Null => Value::Null,
            Absent::Zero(text) => zero(text),
            // Its own fields may have implied values too.
            Absent::Object(inner) => Value::Object(fields(inner, b"", budget)?),
        };
        match value {
            Value::Object(inner) if field.name().is_empty() => object.extend(inner),
            value => {
                budget.value()?;
                object.insert(field.name().to_owned(), value);
            }
        }
    }
    Ok(())
}

/// The items that one field of a list brings: one, or several where numbers are packed.
fn items_of(
    kind: Kind,
    number: u64,
    wire: Wire<'_>,
    budget: &mut Budget,
    items: &mut Vec<Value>,
) -> Result<(), Malformed> {
    if let (Kind::Flag | Kind::Int32 | Kind::Int64, Wire::Bytes(packed)) = (kind, wire) {
        let mut reader = Reader(packed);
        while !reader.0.is_empty() {
            let wire = Wire::Varint(reader.varint()?);
            items.push(value(kind, number, wire, budget)?);
        }
        return Ok(());
    }
    items.push(value(kind, number, wire, budget)?);
    Ok(())
}

fn entry(kind: Kind, number: u64, wire: Wire<'_>, budget: &mut Budget) -> Result<(String, Value), Malformed> {
    let mut reader = Reader(wire.bytes(number)?);
    let (mut key, mut content) = (String::new(), None);
    while let Some((part, wire)) = reader.field()? {
        match part {
            1 => text(wire.bytes(part)?)?.clone_into(&mut key),
            2 => content = Some(value(kind, part, wire, budget)?),
            _ => {}
        }
    }
    // A missing value is the type's zero.
    let content = match content {
        Some(content) => content,
        None => match kind {
            Kind::Flag => false.into(),
            Kind::Int32 | Kind::Int64 | Kind::Double => 0.into(),
            Kind::Text | Kind::Bytes => "".into(),
            _ => value(kind, 2, Wire::Bytes(b""), budget)?,
        },
    };
    Ok((key, content))
}

pub(super) fn value(
    kind: Kind,
    number: u64,
    wire: Wire<'_>,
    budget: &mut Budget,
) -> Result<Value, Malformed> {
    budget.value()?;
    Ok(match kind {
        Kind::Text => text(wire.bytes(number)?)?.into(),
        Kind::Flag => (wire.varint(number)? != 0).into(),
        // Negative numbers are sent as 64 bits in two's complement.
        Kind::Int32 => (wire.varint(number)? as u32).cast_signed().into(),
        Kind::Int64 => wire.varint(number)?.cast_signed().into(),
        Kind::Double => match wire {
            Wire::Fixed64(bits) => double(f64::from_bits(bits)),
            _ => return Err(Malformed::Wire(number)),
        },
        Kind::Bytes => STANDARD.encode(wire.bytes(number)?).into(),
        Kind::Message(inner) => Value::Object(fields(at(inner), wire.bytes(number)?, budget)?),
        Kind::Texts => {
            let mut list = Vec::new();
            let mut reader = Reader(wire.bytes(number)?);
            while let Some((number, wire)) = reader.field()? {
                list.push(value(Kind::Text, number, wire, budget)?);
            }
            Value::Array(list)
        }
        Kind::Time | Kind::MicroTime => moment(wire.bytes(number)?, kind == Kind::MicroTime)?,
        Kind::Quantity => match first(wire.bytes(number)?)? {
            Some(content) => text(content)?.into(),
            None => "0".into(),
        },
        Kind::IntOrString => int_or_string(wire.bytes(number)?)?,
        Kind::Raw => match first(wire.bytes(number)?)? {
            None | Some(b"") => Value::Null,
            // Some clients embed an object in the encoding that they speak.
            Some(raw) if raw.starts_with(MAGIC) => budget.deeper(|budget| envelope(raw, budget))?,
            Some(raw) => serde_json::from_slice(raw).map_err(|_| Malformed::Json)?,
        },
        Kind::SchemaOrList(inner) => schema_or_list(at(inner), wire.bytes(number)?, budget)?,
        Kind::SchemaOrFlag(inner) => schema_or_flag(at(inner), wire.bytes(number)?, budget)?,
        Kind::SchemaOrTexts(inner) => schema_or_texts(at(inner), wire.bytes(number)?, budget)?,
    })
}

/// Returns `true` if Go's JSON encoder leaves out such a value of a field that is not a pointer.
pub(super) fn is_zero(kind: Kind, value: &Value) -> bool {
    match value {
        Value::Null => true,
        _ if kind == Kind::Raw => false,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        // A quantity is a struct to Go, and none of those is empty.
        Value::String(text) => text.is_empty() && kind != Kind::Quantity,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Whole numbers are written without a fraction, as Go does it.
pub(super) fn double(value: f64) -> Value {
    scalars::whole(value).map_or_else(|| json!(value), Value::from)
}

fn moment(bytes: &[u8], micro: bool) -> Result<Value, Malformed> {
    let moment = Moment::read(bytes, micro)?;
    Ok(moment.map_or(Value::Null, |moment| moment.spell(micro, &mut [0; 27]).into()))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Malformed> {
    Ok(match scalars::int_or_string(bytes)? {
        IntOrString::Int(integer) => integer.into(),
        IntOrString::String(text) => text.into(),
    })
}

fn schema_or_list(schema: Message, bytes: &[u8], budget: &mut Budget) -> Result<Value, Malformed> {
    let (mut one, mut list) = (None, Vec::new());
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match number {
            1 => one = Some(fields(schema, wire.bytes(number)?, budget)?),
            2 => list.push(Value::Object(fields(schema, wire.bytes(number)?, budget)?)),
            _ => {}
        }
    }
    Ok(match one {
        _ if !list.is_empty() => Value::Array(list),
        Some(schema) => Value::Object(schema),
        None => Value::Null,
    })
}

fn schema_or_flag(schema: Message, bytes: &[u8], budget: &mut Budget) -> Result<Value, Malformed> {
    let (mut flag, mut one) = (false, None);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match number {
            1 => flag = wire.varint(number)? != 0,
            2 => one = Some(fields(schema, wire.bytes(number)?, budget)?),
            _ => {}
        }
    }
    Ok(one.map_or(Value::Bool(flag), Value::Object))
}

fn schema_or_texts(schema: Message, bytes: &[u8], budget: &mut Budget) -> Result<Value, Malformed> {
    let (mut one, mut list) = (None, Vec::new());
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match number {
            1 => one = Some(fields(schema, wire.bytes(number)?, budget)?),
            2 => list.push(value(Kind::Text, number, wire, budget)?),
            _ => {}
        }
    }
    Ok(match one {
        _ if !list.is_empty() => Value::Array(list),
        Some(schema) => Value::Object(schema),
        None => Value::Null,
    })
}
