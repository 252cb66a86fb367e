//! Random objects of any message, in the normal form that decoders give: for tests of what reads and writes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::table::{Field, Kind, Message, Shape, at};

/// Makes objects at random, the same ones from the same seed.
pub struct Random {
    state: u64,
    /// Every text and number is another one.
    serial: u32,
    /// The number of optional fields that are present, out of 8.
    density: u64,
    /// So many more values, then the object ends as soon as it can.
    left: u32,
}

impl Random {
    /// Makes the source of a seed, with so many of 8 optional fields present.
    pub fn new(seed: u64, density: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, serial: 0, density, left: 3000 }
    }

    /// Returns a number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % limit
    }

    fn often(&mut self) -> bool {
        self.below(8) < self.density
    }

    fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    /// An object of the message; below `depth` messages nothing is added that need not be there.
    pub fn object(&mut self, message: Message, depth: usize) -> Map<String, Value> {
        let mut object = Map::new();
        for field in message.fields() {
            if let ("", Kind::Message(inner)) = (field.name(), field.kind) {
                object.extend(self.object(at(inner), depth));
            } else if let Some(value) = self.field(field, depth) {
                object.insert(field.name().to_owned(), value);
            }
        }
        object
    }

    fn field(&mut self, field: &Field, depth: usize) -> Option<Value> {
        self.left = self.left.saturating_sub(1);
        let deep = (depth == 0 || self.left == 0) && field.kind.message().is_some();
        match field.shape {
            Shape::List => {
                let length = if deep || !self.often() { 0 } else { 1 + self.below(3) };
                let list: Vec<Value> = (0..length).map(|_| self.value(field.kind, depth)).collect();
                if list.is_empty() { field.always.then_some(Value::Null) } else { Some(Value::Array(list)) }
            }
            Shape::Map => {
                let length = if deep || !self.often() { 0 } else { 1 + self.below(3) };
                let map: Map<String, Value> = (0..length)
                    .map(|_| (format!("key{}", self.below(1000)), self.value(field.kind, depth)))
                    .collect();
                if map.is_empty() { field.always.then_some(Value::Null) } else { Some(Value::Object(map)) }
            }
            Shape::One if field.pointer => {
                let value = (!deep && self.often()).then(|| self.value(field.kind, depth));
                value.filter(|v| !v.is_null()).or_else(|| field.always.then_some(Value::Null))
            }
            Shape::One => self.plain(field, depth),
        }
    }

    /// Makes a value of a field that is not a pointer.
    fn plain(&mut self, field: &Field, depth: usize) -> Option<Value> {
        if let Kind::Message(inner) = field.kind {
            let object = self.object(at(inner), depth.saturating_sub(1));
            return Some(Value::Object(object));
        }
        let value = self.value(field.kind, depth);
        let null = |wanted: bool| wanted.then_some(Value::Null);
        match field.kind {
            Kind::Quantity | Kind::IntOrString => Some(value),
            Kind::Time if !self.often() => null(field.name() != "creationTimestamp"),
            Kind::MicroTime | Kind::Raw if !self.often() => null(true),
            Kind::Time | Kind::MicroTime | Kind::Raw => Some(value),
            Kind::Bytes | Kind::Texts if matches!(value.to_string().as_str(), "\"\"" | "[]") => {
                null(field.always)
            }
            _ if field.always => Some(value),
            _ => {
                let zero = matches!(value.to_string().as_str(), "0" | "false" | "\"\"" | "[]");
                (self.often() && !zero).then_some(value)
            }
        }
    }

    fn value(&mut self, kind: Kind, depth: usize) -> Value {
        let zero = self.below(6) == 0;
        match kind {
            Kind::Text if zero => "".into(),
            Kind::Text => format!("t{}", self.serial()).into(),
            Kind::Flag => (self.below(2) == 1).into(),
            Kind::Int32 if self.below(8) == 0 => json!([i32::MIN, i32::MAX, -1, 0][self.below(4) as usize]),
            Kind::Int64 if self.below(8) == 0 => json!([i64::MIN, i64::MAX, -1, 0][self.below(4) as usize]),
            Kind::Int32 | Kind::Int64 => (1_000_000 + self.serial()).into(),
            Kind::Double => json!([0.5, -2.25, 1e-9, 1.5e300][self.below(4) as usize]),
            Kind::Bytes => {
                STANDARD.encode([0xff, 0, self.below(256) as u8].split_at(if zero { 0 } else { 3 }).0).into()
            }
            Kind::Message(inner) => Value::Object(self.object(at(inner), depth.saturating_sub(1))),
            Kind::Texts => self.texts(0),
            Kind::Time => self.moment(false),
            Kind::MicroTime => self.moment(true),
            Kind::Quantity => ["0", "100m", "1Gi", "3e6", "-5"][self.below(5) as usize].into(),
            Kind::IntOrString if self.below(2) == 0 => self.value(Kind::Int32, depth),
            Kind::IntOrString => format!("p{}", self.serial()).into(),
            Kind::Raw => match self.below(5) {
                0 => json!({}),
                1 => json!({"a": [1, {"b": null}], "c": "d"}),
                2 => json!([false, 2.5]),
                _ => json!({"f:metadata": {"f:name": {}}}),
            },
            Kind::SchemaOrList(inner) if self.below(2) == 0 => (0..1 + self.below(2))
                .map(|_| Value::Object(self.object(at(inner), depth.saturating_sub(1))))
                .collect(),
            Kind::SchemaOrTexts(_) if self.below(2) == 0 => self.texts(1),
            Kind::SchemaOrFlag(_) if self.below(2) == 0 => (self.below(2) == 1).into(),
            Kind::SchemaOrList(inner) | Kind::SchemaOrFlag(inner) | Kind::SchemaOrTexts(inner) => {
                Value::Object(self.object(at(inner), depth.saturating_sub(1)))
            }
        }
    }

    /// Makes a moment between 1938 and 2065.
    fn moment(&mut self, micro: bool) -> Value {
        let micros = self.below(4_000_000_000_000_000) as i64 - 1_000_000_000_000_000;
        let moment = jiff::Timestamp::from_microsecond(micros).unwrap_or_default();
        let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
        moment.strftime(format).to_string().into()
    }

    fn texts(&mut self, least: u64) -> Value {
        (0..least + self.below(3)).map(|_| self.value(Kind::Text, 0)).collect()
    }
}
