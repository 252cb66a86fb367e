//! JSON texts with the keys in the order in which Kubernetes writes them: objects of built-in kinds, lists
//! and answers in the order of the fields of their Go types, everything else by name.

use serde_json::{Map, Value};

use crate::numbers;

use crate::messages::{self, Field, Kind, Message, Shape};

/// The position of an object's metadata in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The brace that begins them.
    pub begin: usize,
    /// The position at which a resource version is inserted: before the first field that sorts after it, or
    /// before the brace that ends the metadata.
    pub version: usize,
    /// `true` if a field follows that place.
    pub followed: bool,
}

/// The beginning of every object of a built-in kind; keys in the order of their names never begin so.
pub const BEGIN: &[u8] = br#"{"kind":"#;

/// The field of the metadata that is put into stored texts.
const VERSION: &str = "resourceVersion";

/// Returns `true` if a field of the metadata follows the resource version in a text whose keys are `sorted`
/// by name or have the order of the Go type.
pub fn follows_version(field: &str, sorted: bool) -> bool {
    if sorted {
        return field > VERSION;
    }
    !matches!(field, "name" | "generateName" | "namespace" | "selfLink" | "uid" | VERSION)
}

/// A value as JSON text.
pub fn json_text(value: &Value) -> String {
    let mut out = Vec::new();
    write(&mut out, value);
    String::from_utf8(out).expect("JSON of texts is a text")
}

/// Writes a value, and returns the position of its metadata if it is an object that has them.
pub fn write(out: &mut Vec<u8>, value: &Value) -> Option<Metadata> {
    let Value::Object(map) = value else {
        plain(out, value);
        return None;
    };
    let mut found = None;
    match message_of(value) {
        Some(message) => members(out, &in_order(message, map), &mut |out, (name, field, value)| match (
            name,
            field.map(|field| field.kind),
            value,
        ) {
            ("metadata", Some(Kind::Message(inner)), Value::Object(map)) => {
                found = Some(metadata(out, &in_order(messages::at(inner), map), false));
            }
            _ => member(out, field, value),
        }),
        None => {
            let table = value["kind"] == "Table";
            let all: Vec<_> = if table { keyed(map, &TABLE) } else { sorted(map) };
            members(out, &all, &mut |out, (name, _, value)| match (name, value) {
                ("metadata", Value::Object(map)) => found = Some(metadata(out, &sorted(map), true)),
                ("columnDefinitions", Value::Array(list)) if table => items(out, list, &mut |out, column| {
                    keyed_object(out, column, &COLUMN);
                }),
                ("rows", Value::Array(list)) if table => items(out, list, &mut row),
                _ => plain(out, value),
            });
        }
    }
    found
}

/// Writes an object of this message, or a list of such.
pub fn write_message(out: &mut Vec<u8>, message: Message, value: &Value) {
    match value {
        Value::Array(list) => items(out, list, &mut |out, item| write_message(out, message, item)),
        Value::Object(map) => {
            members(out, &in_order(message, map), &mut |out, (_, field, value)| member(out, field, value));
        }
        other => plain(out, other),
    }
}

/// Writes a row of a table.
pub fn row(out: &mut Vec<u8>, row: &Value) {
    let Value::Object(map) = row else { return plain(out, row) };
    members(out, &keyed(map, &ROW), &mut |out, (name, _, value)| match (name, value) {
        ("object", value) => drop(write(out, value)),
        ("conditions", Value::Array(list)) => items(out, list, &mut |out, condition| {
            keyed_object(out, condition, &["type", "status", "reason", "message"]);
        }),
        _ => plain(out, value),
    });
}

/// Writes the columns of a table.
pub fn columns(out: &mut Vec<u8>, columns: &Value) {
    match columns {
        Value::Array(list) => items(out, list, &mut |out, column| keyed_object(out, column, &COLUMN)),
        other => plain(out, other),
    }
}

/// A table has no message.
const TABLE: [&str; 5] = ["kind", "apiVersion", "metadata", "columnDefinitions", "rows"];
const COLUMN: [&str; 5] = ["name", "type", "format", "description", "priority"];
const ROW: [&str; 3] = ["cells", "conditions", "object"];

/// The message of an answer, which may be of a version whose fields are the same as another's, or of the
/// legacy group without saying so.
fn message_of(value: &Value) -> Option<Message> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let kind = text("kind")?;
    match text("apiVersion").unwrap_or("v1") {
        "meta.k8s.io/v1beta1" => messages::of_kind("meta.k8s.io/v1", kind),
        "apidiscovery.k8s.io/v2beta1" => messages::of_kind("apidiscovery.k8s.io/v2", kind),
        version => messages::of_kind(version, kind),
    }
}

/// A member of an object: its name, its field where it is one, its value.
type Member<'a> = (&'a str, Option<&'static Field>, &'a Value);

/// Returns the members in the order of the Go type: the type of the object, its fields, and the rest by name.
fn in_order(message: Message, map: &Map<String, Value>) -> Vec<Member<'_>> {
    let mut all: Vec<(u16, Member<'_>)> = map
        .iter()
        .map(|(name, value)| {
            let (place, field) = match message.member(name) {
                Some((place, field)) => (2 + u16::from(place), Some(field)),
                None if name == "kind" => (0, None),
                None if name == "apiVersion" => (1, None),
                None => (u16::MAX, None),
            };
            (place, (name.as_str(), field, value))
        })
        .collect();
    if !all.is_sorted_by_key(|(place, _)| *place) {
        all.sort_by_key(|(place, _)| *place);
    }
    all.into_iter().map(|(_, member)| member).collect()
}

fn sorted(map: &Map<String, Value>) -> Vec<Member<'_>> {
    map.iter().map(|(name, value)| (name.as_str(), None, value)).collect()
}

/// The members of these names first.
fn keyed<'a>(map: &'a Map<String, Value>, names: &[&str]) -> Vec<Member<'a>> {
    let mut all = sorted(map);
    all.sort_by_key(|(name, ..)| names.iter().position(|known| known == name).unwrap_or(names.len()));
    all
}

fn keyed_object(out: &mut Vec<u8>, value: &Value, names: &[&str]) {
    match value {
        Value::Object(map) => members(out, &keyed(map, names), &mut |out, (_, _, value)| plain(out, value)),
        other => plain(out, other),
    }
}

/// Writes the metadata of an object and finds the place of the resource version.
fn metadata(out: &mut Vec<u8>, all: &[Member<'_>], sorted: bool) -> Metadata {
    let begin = out.len();
    let mut version = None;
    members_with(out, all, &mut |out, (_, field, value)| member(out, field, value), &mut |at, name| {
        if version.is_none() && follows_version(name, sorted) {
            version = Some(at);
        }
    });
    Metadata { begin, version: version.unwrap_or(out.len() - 1), followed: version.is_some() }
}

fn members(out: &mut Vec<u8>, all: &[Member<'_>], write: &mut dyn FnMut(&mut Vec<u8>, Member<'_>)) {
    members_with(out, all, write, &mut |_, _| {});
}

/// Writes an object; `before` is called with the beginning of each of its names.
fn members_with(
    out: &mut Vec<u8>,
    all: &[Member<'_>],
    write: &mut dyn FnMut(&mut Vec<u8>, Member<'_>),
    before: &mut dyn FnMut(usize, &str),
) {
    out.push(b'{');
    for (i, member) in all.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        let (name, field, _) = *member;
        before(out.len(), name);
        if field.is_some() {
            // Names of fields have nothing to escape.
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.push(b'"');
        } else {
            text(out, name);
        }
        out.push(b':');
        write(out, *member);
    }
    out.push(b'}');
}

fn member(out: &mut Vec<u8>, field: Option<&'static Field>, value: &Value) {
    let message = field.and_then(|field| Some((field.shape, field.kind.message()?)));
    match (message, value) {
        (None, value) => plain(out, value),
        (Some((Shape::Map, inner)), Value::Object(map)) => {
            members(out, &sorted(map), &mut |out, (_, _, value)| write_message(out, inner, value));
        }
        (Some((_, inner)), value) => write_message(out, inner, value),
    }
}

fn items(out: &mut Vec<u8>, list: &[Value], write: &mut dyn FnMut(&mut Vec<u8>, &Value)) {
    out.push(b'[');
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text can be written, and memory takes everything");
}

fn plain(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(content) => text(out, content),
        other => {
            numbers::write_json(out, other)
                .expect("the keys of a value are strings, and memory takes everything");
        }
    }
}
