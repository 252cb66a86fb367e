//! JSON to protobuf, byte for byte as Kubernetes' generated encoders write it: fields by ascending number;
//! fields that are not pointers always, even if they are zero; maps by key; nothing for empty lists.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use super::tree::{Members, Tree, View};
use crate::messages::{Backward, Field, Kind, Message, Shape, at};
use apiserver_meta::time;

/// An object that has no protobuf form.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unencodable {
    /// Custom resources, tables.
    #[error("{kind} of {api_version} has no protobuf encoding")]
    Kind { api_version: String, kind: String },
    /// A value is not of its field's type.
    #[error("field {field} of {message} holds a value of another type")]
    Type { message: &'static str, field: &'static str },
}

/// The message of an object, without an envelope. Fields that the message lacks are left out.
pub fn encode(message: Message, object: &Value) -> Result<Vec<u8>, Unencodable> {
    let mut out = Backward::default();
    encode_into(&mut out, message, object)?;
    Ok(out.finish())
}

/// Encodes an object before what `out` holds already.
pub fn encode_into<T: Tree>(out: &mut Backward, message: Message, object: &T) -> Result<(), Unencodable> {
    match object.view() {
        View::Object(map) => fields::<T>(out, message, Some(map)),
        _ => Err(Unencodable::Type { message: message.name(), field: "" }),
    }
}

fn fields<T: Tree>(
    out: &mut Backward,
    message: Message,
    map: Option<&T::Members>,
) -> Result<(), Unencodable> {
    for field in message.fields().iter().rev() {
        let name = field.name();
        if let (true, Kind::Message(inner)) = (name.is_empty(), field.kind) {
            let end = out.len();
            fields::<T>(out, at(inner), map)?;
            out.close(field.number, end);
            continue;
        }
        // Most fields of most objects are absent.
        let value = map.and_then(|map| map.member(name)).map_or(View::Null, Tree::view);
        whole::<T>(out, field, value)
            .map_err(|error| error.unwrap_or(Unencodable::Type { message: message.name(), field: name }))?;
    }
    Ok(())
}

/// `None`: the value itself does not fit.
type Failure = Option<Unencodable>;

fn whole<T: Tree>(out: &mut Backward, field: &Field, value: View<'_, T>) -> Result<(), Failure> {
    match (field.shape, value) {
        (Shape::One, View::Null) if field.pointer => Ok(()),
        (Shape::One, View::Null) => zero::<T>(out, field),
        (Shape::One, value) => one(out, field.number, field.kind, value),
        (_, View::Null) => Ok(()),
        (Shape::List, View::List(list)) => {
            list.iter().rev().try_for_each(|item| one(out, field.number, field.kind, item.view()))
        }
        (Shape::Map, View::Object(map)) => {
            for (key, value) in map.descending() {
                let end = out.len();
                one(out, 2, field.kind, value.view())?;
                out.bytes(1, key.as_bytes());
                out.close(field.number, end);
            }
            Ok(())
        }
        _ => Err(None),
    }
}

/// Writes what Go writes for a field that is not a pointer and was not set.
fn zero<T: Tree>(out: &mut Backward, field: &Field) -> Result<(), Failure> {
    let number = field.number;
    match field.kind {
        Kind::Text | Kind::Time | Kind::MicroTime | Kind::Raw => out.bytes(number, b""),
        Kind::Flag | Kind::Int32 | Kind::Int64 => out.integer(number, 0),
        Kind::Double => out.double(number, 0.0),
        Kind::Quantity => quantity(out, number, "0"),
        Kind::IntOrString => int_or_string(out, number, 0, ""),
        Kind::Message(inner) => {
            let end = out.len();
            fields::<T>(out, at(inner), None)?;
            out.close(number, end);
        }
        // Slices, which are absent where they are nil, and what occurs as a pointer alone.
        Kind::Bytes
        | Kind::Texts
        | Kind::SchemaOrList(_)
        | Kind::SchemaOrFlag(_)
        | Kind::SchemaOrTexts(_) => {}
    }
    Ok(())
}

/// One value with its tag. A null is an item or a map's value, and means the type's zero.
fn one<T: Tree>(out: &mut Backward, number: u16, kind: Kind, value: View<'_, T>) -> Result<(), Failure> {
    match (kind, value) {
        (Kind::Text, value) => out.bytes(number, text(&value)?.as_bytes()),
        (Kind::Flag, View::Flag(flag)) => out.integer(number, i64::from(flag)),
        (Kind::Flag, View::Null) => out.integer(number, 0),
        (Kind::Int32 | Kind::Int64, value) => out.integer(number, integer(&value)?),
        (Kind::Double, View::Number(value)) => out.double(number, value.as_f64().ok_or(None)?),
        (Kind::Bytes, value) => {
            let content = STANDARD.decode(text(&value)?).map_err(|_| None)?;
            out.bytes(number, &content);
        }
        (Kind::Quantity, View::Number(value)) => quantity(out, number, &value.to_string()),
        (Kind::Quantity, value) => quantity(out, number, text(&value)?),
        (Kind::IntOrString, View::Text(text)) => int_or_string(out, number, 1, text),
        (Kind::IntOrString, value) => {
            let value = integer(&value)?;
            let end = out.len();
            out.bytes(3, b"");
            out.integer(2, value);
            out.integer(1, 0);
            out.close(number, end);
        }
        (Kind::Time | Kind::MicroTime | Kind::Raw, View::Null) => out.bytes(number, b""),
        (Kind::Time | Kind::MicroTime, value) => {
            let moment = time::parse(text(&value)?).ok_or(None)?;
            timestamp(out, number, moment, kind == Kind::MicroTime);
        }
        (Kind::Raw, value) => {
            let end = out.len();
            out.bytes(1, raw(&value).as_bytes());
            out.close(number, end);
        }
        (_, value) => return composite(out, number, kind, value),
    }
    Ok(())
}

fn composite<T: Tree>(
    out: &mut Backward,
    number: u16,
    kind: Kind,
    value: View<'_, T>,
) -> Result<(), Failure> {
    let end = out.len();
    match (kind, value) {
        (Kind::Message(inner), View::Object(map)) => fields::<T>(out, at(inner), Some(map))?,
        (Kind::Message(inner), View::Null) => fields::<T>(out, at(inner), None)?,
        (Kind::Texts, View::List(list)) => texts(out, 1, list)?,
        (Kind::Texts | Kind::SchemaOrTexts(_) | Kind::SchemaOrList(_), View::Null) => {}
        (Kind::SchemaOrTexts(_), View::List(list)) => texts(out, 2, list)?,
        (Kind::SchemaOrList(inner), View::List(list)) => {
            list.iter().rev().try_for_each(|item| one(out, 2, Kind::Message(inner), item.view()))?;
        }
        (Kind::SchemaOrTexts(inner) | Kind::SchemaOrList(inner), value @ View::Object(_)) => {
            one(out, 1, Kind::Message(inner), value)?;
        }
        (Kind::SchemaOrFlag(_), View::Flag(flag)) => out.integer(1, i64::from(flag)),
        (Kind::SchemaOrFlag(inner), value @ View::Object(_)) => {
            one(out, 2, Kind::Message(inner), value)?;
            out.integer(1, 1);
        }
        _ => return Err(None),
    }
    out.close(number, end);
    Ok(())
}

fn texts<T: Tree>(out: &mut Backward, number: u16, list: &[T]) -> Result<(), Failure> {
    list.iter().rev().try_for_each(|item| one(out, number, Kind::Text, item.view()))
}

fn text<'a, T: Tree>(value: &View<'a, T>) -> Result<&'a str, Failure> {
    match value {
        View::Text(text) => Ok(text),
        View::Null => Ok(""),
        _ => Err(None),
    }
}

/// The JSON text of a value.
fn raw<T: Tree>(value: &View<'_, T>) -> String {
    match value {
        View::Null => "null".to_owned(),
        View::Flag(flag) => flag.to_string(),
        View::Number(number) => number.to_string(),
        View::Text(text) => Value::from(*text).to_string(),
        View::List(list) => format!("[{}]", list.iter().map(Tree::json).collect::<Vec<_>>().join(",")),
        View::Object(map) => map.json(),
    }
}

fn integer<T: Tree>(value: &View<'_, T>) -> Result<i64, Failure> {
    match value {
        View::Null => Ok(0),
        View::Number(number) => number
            .as_i64()
            // `3.0` is an integer to a JSON decoder of Go's too.
            .or_else(|| number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15).map(|f| f as i64))
            .ok_or(None),
        _ => Err(None),
    }
}

fn quantity(out: &mut Backward, number: u16, text: &str) {
    let end = out.len();
    out.bytes(1, text.as_bytes());
    out.close(number, end);
}

fn int_or_string(out: &mut Backward, number: u16, is_text: i64, text: &str) {
    let end = out.len();
    out.bytes(3, text.as_bytes());
    out.integer(2, 0);
    out.integer(1, is_text);
    out.close(number, end);
}

fn timestamp(out: &mut Backward, number: u16, moment: Timestamp, micro: bool) {
    // Seconds are counted from below, so that the rest is never negative.
    let nanos = moment.as_nanosecond();
    let (seconds, rest) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    let end = out.len();
    out.integer(2, if micro { rest as i64 / 1000 * 1000 } else { 0 });
    out.integer(1, seconds as i64);
    out.close(number, end);
}
