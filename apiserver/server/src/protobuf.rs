//! Request bodies in the protobuf encoding of Kubernetes, which kubectl and Go clients prefer.
//! They become the JSON that the same client would have sent; answers are never protobuf.
//!
//! Go writes every field that is not a pointer, so zero values are dropped here as its JSON
//! encoder would drop them.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use apiserver_api::error::ApiError;
use apiserver_api::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Nesting of messages.
const DEPTH: usize = 64;

static TABLE: &str = include_str!("../data/protobuf.txt");

/// Decodes a body to the object that it holds. Errors are 400.
pub fn decode(bytes: &[u8]) -> Result<Value, ApiError> {
    decode_known(bytes).map_err(|error| {
        ApiError::bad_request(format!("the body of the request cannot be decoded from protobuf: {error}"))
    })
}

/// What is wrong with a body.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Malformed {
    #[error("it does not begin with the bytes of a Kubernetes object")]
    Magic,
    #[error("it ends early")]
    Short,
    #[error("it is nested too deeply")]
    Deep,
    #[error("a text is not UTF-8")]
    Text,
    #[error("field {0} has an unexpected wire type")]
    Wire(u64),
    #[error("no kind {kind} is known in {api_version}")]
    Kind { api_version: String, kind: String },
    #[error("its content is {0}, not protobuf")]
    Content(String),
}

fn decode_known(bytes: &[u8]) -> Result<Value, Malformed> {
    let mut envelope = Reader(bytes.strip_prefix(MAGIC).ok_or(Malformed::Magic)?);
    let (mut api_version, mut kind, mut raw, mut content) =
        (String::new(), String::new(), &[][..], String::new());
    while let Some((number, field)) = envelope.next()? {
        match number {
            1 => {
                let mut meta = Reader(field.bytes(number)?);
                while let Some((number, field)) = meta.next()? {
                    match number {
                        1 => api_version = text(field.bytes(number)?)?,
                        2 => kind = text(field.bytes(number)?)?,
                        _ => {}
                    }
                }
            }
            2 => raw = field.bytes(number)?,
            4 => content = text(field.bytes(number)?)?,
            _ => {}
        }
    }
    if !content.is_empty() && content != "application/vnd.kubernetes.protobuf" {
        return Err(Malformed::Content(content));
    }
    let message = message_of(&api_version, &kind)
        .ok_or_else(|| Malformed::Kind { api_version: api_version.clone(), kind: kind.clone() })?;
    let mut object = message.object(raw, DEPTH)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

fn message_of(api_version: &str, kind: &str) -> Option<&'static Message> {
    if kind == "DeleteOptions" {
        // Clients send it with the group of what they delete.
        return messages().get("meta/v1.DeleteOptions");
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let package = group.split('.').next().unwrap_or_default();
    messages().get(format!("{package}/{version}.{kind}").as_str())
}

/// The fields of a message by number.
struct Message(BTreeMap<u64, Field>);

struct Field {
    /// Empty: the fields of the message stand in its parent.
    name: &'static str,
    optional: bool,
    shape: Shape,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
    Map,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    Integer,
    Double,
    Bytes,
    Message(&'static str),
    Texts,
    Time { micro: bool },
    Quantity,
    IntOrString,
    Raw,
    Dropped,
}

fn messages() -> &'static HashMap<&'static str, Message> {
    static MESSAGES: OnceLock<HashMap<&'static str, Message>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let mut messages = HashMap::new();
        let mut current = "";
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            if let Some((number, field)) = line.strip_prefix(' ').and_then(field) {
                let message: &mut Message =
                    messages.entry(current).or_insert_with(|| Message(BTreeMap::new()));
                message.0.insert(number, field);
            } else {
                current = line;
                messages.insert(current, Message(BTreeMap::new()));
            }
        }
        messages
    })
}

/// `2 selector *mmeta/v1.LabelSelector`
fn field(line: &'static str) -> Option<(u64, Field)> {
    let mut parts = line.split(' ');
    let (number, name, mut kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let optional = kind.starts_with('*');
    kind = kind.strip_prefix('*').unwrap_or(kind);
    let shape = match kind.as_bytes().first() {
        Some(b'[') => Shape::List,
        Some(b'{') => Shape::Map,
        _ => Shape::One,
    };
    kind = if shape == Shape::One { kind } else { &kind[1..] };
    let kind = match kind.as_bytes().first()? {
        b's' => Kind::Text,
        b'b' => Kind::Flag,
        b'i' => Kind::Integer,
        b'f' => Kind::Double,
        b'y' => Kind::Bytes,
        b'm' => Kind::Message(&kind[1..]),
        b'L' => Kind::Texts,
        b't' => Kind::Time { micro: false },
        b'u' => Kind::Time { micro: true },
        b'q' => Kind::Quantity,
        b'o' => Kind::IntOrString,
        b'r' => Kind::Raw,
        _ => Kind::Dropped,
    };
    Some((number, Field { name: if name == "-" { "" } else { name }, optional, shape, kind }))
}

impl Message {
    fn object(&self, bytes: &[u8], depth: usize) -> Result<Map<String, Value>, Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed::Deep)?;
        let mut object = Map::new();
        let mut reader = Reader(bytes);
        while let Some((number, wire)) = reader.next()? {
            // Fields of a newer version are unknown here, as they are in JSON.
            let Some(field) = self.0.get(&number) else { continue };
            match field.shape {
                Shape::One => field.one(&mut object, number, wire, depth)?,
                Shape::List => {
                    let value = field.kind.value(number, wire, depth)?;
                    let list = object.entry(field.name).or_insert_with(|| json!([]));
                    if let Some(list) = list.as_array_mut() {
                        list.push(value);
                    }
                }
                Shape::Map => {
                    let (key, value) = field.entry(number, wire, depth)?;
                    let map = object.entry(field.name).or_insert_with(|| json!({}));
                    map[key] = value;
                }
            }
        }
        Ok(object)
    }
}

impl Field {
    fn one(
        &self,
        object: &mut Map<String, Value>,
        number: u64,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<(), Malformed> {
        let value = self.kind.value(number, wire, depth)?;
        if self.name.is_empty() {
            if let Value::Object(fields) = value {
                object.extend(fields);
            }
        } else if self.optional || !is_zero(&value) {
            object.insert(self.name.to_owned(), value);
        }
        Ok(())
    }

    fn entry(&self, number: u64, wire: Wire<'_>, depth: usize) -> Result<(String, Value), Malformed> {
        let mut reader = Reader(wire.bytes(number)?);
        // A missing value is the type's zero.
        let (mut key, mut value) = (String::new(), None);
        while let Some((part, wire)) = reader.next()? {
            match part {
                1 => key = text(wire.bytes(part)?)?,
                2 => value = Some(self.kind.value(part, wire, depth)?),
                _ => {}
            }
        }
        let zero = || if matches!(self.kind, Kind::Message(_)) { json!({}) } else { json!("") };
        Ok((key, value.unwrap_or_else(zero)))
    }
}

impl Kind {
    fn value(self, number: u64, wire: Wire<'_>, depth: usize) -> Result<Value, Malformed> {
        Ok(match self {
            Self::Text => text(wire.bytes(number)?)?.into(),
            Self::Flag => (wire.varint(number)? != 0).into(),
            Self::Integer => signed(wire.varint(number)?).into(),
            Self::Double => match wire {
                Wire::Fixed64(bits) => json!(f64::from_bits(bits)),
                _ => return Err(Malformed::Wire(number)),
            },
            Self::Bytes => STANDARD.encode(wire.bytes(number)?).into(),
            Self::Message(name) => match messages().get(name) {
                Some(message) => Value::Object(message.object(wire.bytes(number)?, depth)?),
                None => Value::Null,
            },
            Self::Texts => {
                let mut list = Vec::new();
                let mut reader = Reader(wire.bytes(number)?);
                while let Some((number, wire)) = reader.next()? {
                    list.push(Value::String(text(wire.bytes(number)?)?));
                }
                Value::Array(list)
            }
            Self::Time { micro } => moment(wire.bytes(number)?, micro)?,
            Self::Quantity => match Reader(wire.bytes(number)?).next()? {
                Some((1, wire)) => text(wire.bytes(1)?)?.into(),
                _ => "0".into(),
            },
            Self::IntOrString => int_or_string(wire.bytes(number)?)?,
            Self::Raw => match Reader(wire.bytes(number)?).next()? {
                Some((1, wire)) => serde_json::from_slice(wire.bytes(1)?).unwrap_or(Value::Null),
                _ => Value::Null,
            },
            Self::Dropped => Value::Null,
        })
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn moment(bytes: &[u8], micro: bool) -> Result<Value, Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => seconds = signed(wire.varint(number)?),
            2 => nanos = signed(wire.varint(number)?),
            _ => {}
        }
    }
    // Go's zero time, and what lies outside of the calendar.
    let moment = jiff::Timestamp::new(seconds, i32::try_from(nanos).unwrap_or(0));
    Ok(match moment {
        Ok(moment) if !bytes.is_empty() && micro => time::rfc3339_micro(moment).into(),
        Ok(moment) if !bytes.is_empty() => time::rfc3339(moment).into(),
        _ => Value::Null,
    })
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Malformed> {
    let (mut is_text, mut number_value, mut text_value) = (false, 0, String::new());
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => is_text = wire.varint(number)? != 0,
            2 => number_value = signed(wire.varint(number)?),
            3 => text_value = text(wire.bytes(number)?)?,
            _ => {}
        }
    }
    Ok(if is_text { text_value.into() } else { number_value.into() })
}

/// Negative numbers are sent as 64 bits in two's complement.
fn signed(value: u64) -> i64 {
    value.cast_signed()
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed::Text)
}

/// One value as it is on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Wire<'a> {
    fn bytes(self, number: u64) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::Wire(number)),
        }
    }

    fn varint(self, number: u64) -> Result<u64, Malformed> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(Malformed::Wire(number)),
        }
    }
}

/// The fields of a message, one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => {
                let bytes: [u8; 8] = self.take(8)?.try_into().map_err(|_| Malformed::Short)?;
                Wire::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Short)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            _ => return Err(Malformed::Wire(tag >> 3)),
        };
        Ok(Some((tag >> 3, wire)))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed::Short)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::Short)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
#[path = "protobuf_tests.rs"]
mod tests;
