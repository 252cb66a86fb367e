//! JSON to protobuf, byte for byte as Kubernetes' generated encoders write it: fields by ascending number;
//! fields that are not pointers always, even if they are zero; maps by key; nothing for empty lists.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use super::tree::{Node, Object};
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
    encode_into(&mut out, &Object::of(message, object)?)?;
    Ok(out.finish())
}

/// Encodes an object before what `out` holds already.
pub fn encode_into(out: &mut Backward, object: &Object<'_>) -> Result<(), Unencodable> {
    fields(out, object.message(), object.members())
}

fn fields(out: &mut Backward, message: Message, members: &[(u8, Node<'_>)]) -> Result<(), Unencodable> {
    let mut rest = members;
    for (place, field) in message.fields().iter().enumerate().rev() {
        let mut value = &Node::Null;
        // Most fields of most objects are absent.
        if let Some(((at, node), before)) = rest.split_last()
            && usize::from(*at) == place
        {
            (value, rest) = (node, before);
        }
        if let (true, Kind::Message(inner)) = (field.name().is_empty(), field.kind) {
            let end = out.len();
            fields(out, at(inner), if let Node::Object(members) = value { members } else { &[] })?;
            out.close(field.number, end);
            continue;
        }
        whole(out, field, value).map_err(|error| {
            error.unwrap_or(Unencodable::Type { message: message.name(), field: field.name() })
        })?;
    }
    Ok(())
}

/// `None`: the value itself does not fit.
type Failure = Option<Unencodable>;

fn whole(out: &mut Backward, field: &Field, value: &Node<'_>) -> Result<(), Failure> {
    match (field.shape, value) {
        (Shape::One, Node::Null) if field.pointer => Ok(()),
        (Shape::One, Node::Null) => zero(out, field),
        (Shape::One, value) => one(out, field.number, field.kind, value),
        (_, Node::Null) => Ok(()),
        (Shape::List, Node::List(list)) => {
            list.iter().rev().try_for_each(|item| one(out, field.number, field.kind, item))
        }
        (Shape::Map, Node::Map(map)) => {
            for (key, value) in map.iter().rev() {
                let end = out.len();
                one(out, 2, field.kind, value)?;
                out.bytes(1, key.as_bytes());
                out.close(field.number, end);
            }
            Ok(())
        }
        _ => Err(None),
    }
}

/// Writes what Go writes for a field that is not a pointer and was not set.
fn zero(out: &mut Backward, field: &Field) -> Result<(), Failure> {
    let number = field.number;
    match field.kind {
        Kind::Text | Kind::Time | Kind::MicroTime | Kind::Raw => out.bytes(number, b""),
        Kind::Flag | Kind::Int32 | Kind::Int64 => out.integer(number, 0),
        Kind::Double => out.double(number, 0.0),
        Kind::Quantity => quantity(out, number, "0"),
        Kind::IntOrString => int_or_string(out, number, 0, ""),
        Kind::Message(inner) => {
            let end = out.len();
            fields(out, at(inner), &[])?;
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
fn one(out: &mut Backward, number: u16, kind: Kind, value: &Node<'_>) -> Result<(), Failure> {
    match (kind, value) {
        (Kind::Text, value) => out.bytes(number, text(value)?.as_bytes()),
        (Kind::Flag, Node::Flag(flag)) => out.integer(number, i64::from(*flag)),
        (Kind::Flag, Node::Null) => out.integer(number, 0),
        (Kind::Int32 | Kind::Int64, value) => out.integer(number, integer(value)?),
        (Kind::Double, Node::Number(value)) => out.double(number, value.as_f64().ok_or(None)?),
        (Kind::Bytes, value) => {
            let content = STANDARD.decode(text(value)?).map_err(|_| None)?;
            out.bytes(number, &content);
        }
        (Kind::Quantity, Node::Number(value)) => quantity(out, number, &value.to_string()),
        (Kind::Quantity, value) => quantity(out, number, text(value)?),
        (Kind::IntOrString, Node::Text(text)) => int_or_string(out, number, 1, text),
        (Kind::IntOrString, value) => {
            let value = integer(value)?;
            let end = out.len();
            out.bytes(3, b"");
            out.integer(2, value);
            out.integer(1, 0);
            out.close(number, end);
        }
        (Kind::Time | Kind::MicroTime | Kind::Raw, Node::Null) => out.bytes(number, b""),
        (Kind::Time | Kind::MicroTime, value) => {
            let moment = time::parse(text(value)?).ok_or(None)?;
            timestamp(out, number, moment, kind == Kind::MicroTime);
        }
        (Kind::Raw, Node::Json(json)) => {
            let end = out.len();
            out.bytes(1, json.get().as_bytes());
            out.close(number, end);
        }
        (_, value) => return composite(out, number, kind, value),
    }
    Ok(())
}

fn composite(out: &mut Backward, number: u16, kind: Kind, value: &Node<'_>) -> Result<(), Failure> {
    let end = out.len();
    match (kind, value) {
        (Kind::Message(inner), Node::Object(map)) => fields(out, at(inner), map)?,
        (Kind::Message(inner), Node::Null) => fields(out, at(inner), &[])?,
        (Kind::Texts, Node::List(list)) => texts(out, 1, list)?,
        (Kind::Texts | Kind::SchemaOrTexts(_) | Kind::SchemaOrList(_), Node::Null) => {}
        (Kind::SchemaOrTexts(_), Node::List(list)) => texts(out, 2, list)?,
        (Kind::SchemaOrList(inner), Node::List(list)) => {
            list.iter().rev().try_for_each(|item| one(out, 2, Kind::Message(inner), item))?;
        }
        (Kind::SchemaOrTexts(inner) | Kind::SchemaOrList(inner), value @ Node::Object(_)) => {
            one(out, 1, Kind::Message(inner), value)?;
        }
        (Kind::SchemaOrFlag(_), Node::Flag(flag)) => out.integer(1, i64::from(*flag)),
        (Kind::SchemaOrFlag(inner), value @ Node::Object(_)) => {
            one(out, 2, Kind::Message(inner), value)?;
            out.integer(1, 1);
        }
        _ => return Err(None),
    }
    out.close(number, end);
    Ok(())
}

fn texts(out: &mut Backward, number: u16, list: &[Node<'_>]) -> Result<(), Failure> {
    list.iter().rev().try_for_each(|item| one(out, number, Kind::Text, item))
}

fn text<'a>(value: &'a Node<'_>) -> Result<&'a str, Failure> {
    match value {
        Node::Text(text) => Ok(text),
        Node::Null => Ok(""),
        _ => Err(None),
    }
}

fn integer(value: &Node<'_>) -> Result<i64, Failure> {
    match value {
        Node::Null => Ok(0),
        Node::Number(number) => number
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
