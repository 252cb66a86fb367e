//! JSON values as expressions see them: names escaped, texts with a format as what they mean.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

use super::super::{Additional, Kind, Structural};

/// Words of the language, which cannot be names.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A property's name in an expression: `a-b` is `a__dash__b`; `None` if it has none.
pub fn escape(name: &str) -> Option<String> {
    let mut characters = name.chars();
    let starts = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || "_.-/".contains(c));
    if !starts || !characters.all(|c| c.is_ascii_alphanumeric() || "_.-/".contains(c)) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

fn key(name: String) -> Key {
    Key::String(Arc::new(name))
}

fn text(text: &str) -> Cel {
    Cel::String(Arc::new(text.to_owned()))
}

fn map(entries: HashMap<Key, Cel>) -> Cel {
    Cel::Map(Map { map: Arc::new(entries) })
}

/// A value of a schema; with `object` one that has a type and metadata.
pub fn of(value: &Value, schema: &Structural, object: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) if schema.kind == Some(Kind::Number) => {
            Cel::Float(number.as_f64().unwrap_or(f64::NAN))
        }
        Value::Number(number) => number.as_i64().map_or_else(
            || {
                let float = number.as_f64().unwrap_or(f64::NAN);
                // `1.0` is an integer where one is wanted; the cast saturates.
                if schema.kind == Some(Kind::Integer) { Cel::Int(float as i64) } else { Cel::Float(float) }
            },
            Cel::Int,
        ),
        Value::String(found) => formatted(found, schema),
        Value::Array(list) => {
            let open = Structural::default();
            let items = schema.items.as_deref().unwrap_or(&open);
            Cel::List(Arc::new(list.iter().map(|item| of(item, items, items.embedded)).collect()))
        }
        Value::Object(fields) => {
            let mut entries = HashMap::with_capacity(fields.len());
            for (name, value) in fields {
                if let Some(property) = schema.properties.get(name).filter(|_| !object || name != "metadata")
                {
                    if let Some(escaped) = escape(name) {
                        entries.insert(key(escaped), of(value, property, property.embedded));
                    }
                } else if let Additional::Schema(values) = &schema.additional {
                    // Keys of maps are data and stay as they are.
                    entries.insert(key(name.clone()), of(value, values, values.embedded));
                }
            }
            if object {
                type_and_names(value, &mut entries);
            }
            map(entries)
        }
    }
}

/// `apiVersion`, `kind`, and of the metadata what rules may see.
fn type_and_names(object: &Value, entries: &mut HashMap<Key, Cel>) {
    for field in ["apiVersion", "kind"] {
        let found = object.get(field).and_then(Value::as_str).unwrap_or_default();
        entries.insert(key(field.to_owned()), text(found));
    }
    let mut metadata = HashMap::new();
    for field in ["name", "generateName"] {
        if let Some(found) = object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str) {
            metadata.insert(key(field.to_owned()), text(found));
        }
    }
    entries.insert(key("metadata".to_owned()), map(metadata));
}

fn formatted(found: &str, schema: &Structural) -> Cel {
    let format = schema.checks.as_ref().and_then(|c| c.format).filter(|_| schema.kind == Some(Kind::String));
    match format.map(super::super::Format::name) {
        Some("datetime") => converted(&TIMESTAMP, found),
        Some("date") => converted(&TIMESTAMP, &format!("{found}T00:00:00Z")),
        Some("duration") => converted(&DURATION, found),
        Some("byte") => {
            STANDARD.decode(found).map_or_else(|_| text(found), |bytes| Cel::Bytes(Arc::new(bytes)))
        }
        _ => text(found),
    }
}

static TIMESTAMP: LazyLock<Program> =
    LazyLock::new(|| Program::compile("timestamp(text)").expect("the expression is a constant"));
static DURATION: LazyLock<Program> =
    LazyLock::new(|| Program::compile("duration(text)").expect("the expression is a constant"));

/// The language's own conversion, so that its types are its own; the text where it fails.
fn converted(program: &Program, found: &str) -> Cel {
    let mut context = Context::default();
    context.add_variable_from_value("text", found.to_owned());
    program.execute(&context).unwrap_or_else(|_| text(found))
}

/// How large the lists and texts of a value are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The most items or fields of one list or object.
    pub list: u64,
    /// The longest text, characters.
    pub text: u64,
}

impl Sizes {
    /// The largest of a value.
    pub fn of(value: &Value) -> Self {
        let mut sizes = Self::default();
        sizes.grow(value);
        sizes
    }

    /// The larger of two.
    pub fn max(self, other: Self) -> Self {
        Self { list: self.list.max(other.list), text: self.text.max(other.text) }
    }

    fn grow(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text = self.text.max(text.len() as u64),
            Value::Array(list) => {
                self.list = self.list.max(list.len() as u64);
                list.iter().for_each(|item| self.grow(item));
            }
            Value::Object(fields) => {
                self.list = self.list.max(fields.len() as u64);
                fields.iter().for_each(|(name, value)| {
                    self.text = self.text.max(name.len() as u64);
                    self.grow(value);
                });
            }
            _ => {}
        }
    }
}
