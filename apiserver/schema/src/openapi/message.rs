//! OpenAPI documents as the messages of gnostic. A table gives the shape of each message; what a
//! document has and the table has not is an error, so nothing is lost silently.
//!
//! The build script includes this file too.

#[path = "message_v2.rs"]
mod v2;
#[path = "message_v3.rs"]
mod v3;

use serde_json::Value;

/// The mapping of the keys of a JSON object to the fields of a message.
pub struct Message {
    /// JSON key, field number, shape; ascending numbers, which is the order on the wire.
    fields: &'static [(&'static str, u32, Shape)],
    /// The place of the keys that `fields` does not name.
    rest: Rest,
}

enum Rest {
    /// There must be none.
    Nothing,
    /// `x-…` are repeated pairs of name and YAML text in the field of this number.
    Extensions(u32),
    /// All are repeated pairs of name and value in the field of this number.
    Pairs(u32, Shape),
}

#[derive(Clone, Copy)]
enum Shape {
    Text,
    Flag,
    Integer,
    Double,
    /// Any value, as YAML; JSON is YAML.
    Yaml,
    Object(&'static Message),
    /// A field for each element of the list.
    List(&'static Shape),
    /// One message with field 1 for each element; a single value counts as a list of one.
    Listed(&'static Shape),
    /// A message whose only field, of this number, is the value: an arm of a `oneof`.
    Arm(u32, &'static Shape),
    /// A value in the arm of the first number, or a boolean in that of the last.
    Either(u32, &'static Shape, u32),
    /// A number, a boolean or a text, arms 1, 2 and 3; others are left out.
    Scalar,
    /// A shape that depends on the value.
    By(fn(&Value) -> Result<&'static Shape, Unfit>),
}

use Rest::{Extensions, Nothing, Pairs};

/// A document has what its message has not.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit(pub String);

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

/// The bytes of `openapi.v2.Document` for a document or a part of one: two parts one after the other
/// are the document of both.
pub fn v2(document: &Value) -> Result<Vec<u8>, Unfit> {
    message(&v2::DOCUMENT, document)
}

/// The bytes of `openapi.v3.Document` for a document.
#[allow(dead_code, reason = "the build script writes v2 alone")]
pub fn v3(document: &Value) -> Result<Vec<u8>, Unfit> {
    message(&v3::DOCUMENT, document)
}

fn message(shape: &Message, value: &Value) -> Result<Vec<u8>, Unfit> {
    let object = value.as_object().ok_or_else(|| Unfit(format!("an object is expected, not {value}")))?;
    let mut out = Vec::new();
    for (key, number, shape) in shape.fields {
        if let Some(value) = object.get(*key) {
            field(&mut out, *number, *shape, value)?;
        }
    }
    for (key, value) in object {
        if shape.fields.iter().any(|(known, ..)| known == key) {
            continue;
        }
        let (number, shape) = match shape.rest {
            Pairs(number, shape) => (number, shape),
            Extensions(number) if key.starts_with("x-") => (number, Shape::Yaml),
            Extensions(_) | Nothing => {
                return Err(Unfit(format!("no field of the message holds {key:?}: {value}")));
            }
        };
        let mut pair = Vec::new();
        bytes(&mut pair, 1, key.as_bytes());
        field(&mut pair, 2, shape, value)?;
        bytes(&mut out, number, &pair);
    }
    Ok(out)
}

fn field(out: &mut Vec<u8>, number: u32, shape: Shape, value: &Value) -> Result<(), Unfit> {
    match shape {
        Shape::Text => bytes(out, number, text(value)?.as_bytes()),
        Shape::Flag => {
            if flag(value)? {
                boolean(out, number, true);
            }
        }
        Shape::Integer => {
            let whole = value.as_f64().filter(|n| n.fract() == 0.0);
            let whole = whole.ok_or_else(|| Unfit(format!("a whole number is expected, not {value}")))?;
            varint(out, u64::from(number) << 3);
            // Lengths and counts are far from the ends of the range.
            varint(out, (whole as i64).cast_unsigned());
        }
        Shape::Double => {
            let value = value.as_f64().ok_or_else(|| Unfit(format!("a number is expected, not {value}")))?;
            double(out, number, value);
        }
        Shape::Yaml => {
            let mut any = Vec::new();
            bytes(&mut any, 2, value.to_string().as_bytes());
            bytes(out, number, &any);
        }
        Shape::Object(shape) => bytes(out, number, &message(shape, value)?),
        Shape::List(shape) => {
            let list = value.as_array().ok_or_else(|| Unfit(format!("a list is expected, not {value}")))?;
            list.iter().try_for_each(|element| field(out, number, *shape, element))?;
        }
        Shape::Listed(shape) => {
            let mut inner = Vec::new();
            let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            list.iter().try_for_each(|element| field(&mut inner, 1, *shape, element))?;
            bytes(out, number, &inner);
        }
        Shape::Arm(arm, shape) => {
            let mut inner = Vec::new();
            field(&mut inner, arm, *shape, value)?;
            bytes(out, number, &inner);
        }
        Shape::Either(arm, shape, flag) => {
            let mut inner = Vec::new();
            match value {
                // An arm is written even if it has a zero value.
                Value::Bool(value) => boolean(&mut inner, flag, *value),
                value => field(&mut inner, arm, *shape, value)?,
            }
            bytes(out, number, &inner);
        }
        Shape::Scalar => {
            let mut inner = Vec::new();
            match value {
                Value::Number(value) => double(&mut inner, 1, value.as_f64().unwrap_or_default()),
                Value::Bool(value) => boolean(&mut inner, 2, *value),
                Value::String(value) => bytes(&mut inner, 3, value.as_bytes()),
                _ => return Ok(()),
            }
            bytes(out, number, &inner);
        }
        Shape::By(choose) => field(out, number, *choose(value)?, value)?,
    }
    Ok(())
}

fn text(value: &Value) -> Result<&str, Unfit> {
    value.as_str().ok_or_else(|| Unfit(format!("a string is expected, not {value}")))
}

fn flag(value: &Value) -> Result<bool, Unfit> {
    value.as_bool().ok_or_else(|| Unfit(format!("a boolean is expected, not {value}")))
}

fn boolean(out: &mut Vec<u8>, number: u32, value: bool) {
    varint(out, u64::from(number) << 3);
    out.push(u8::from(value));
}

fn double(out: &mut Vec<u8>, number: u32, value: f64) {
    varint(out, u64::from(number) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A string, bytes or an embedded message.
fn bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
