//! The OpenAPI v2 document as the message `openapi.v2.Document` of gnostic, which kubectl asks for
//! before it looks at anything else. A table gives the shape of each message; what the document
//! has and the table has not stops the build, so nothing is lost silently.

use serde_json::Value;

/// How the keys of a JSON object become the fields of a message.
struct Message {
    /// JSON key, field number, shape; ascending numbers, which is the order on the wire.
    fields: &'static [(&'static str, u32, Shape)],
    /// Where the keys go that `fields` does not name.
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
    /// Any value, as YAML; JSON is YAML.
    Yaml,
    Object(&'static Message),
    /// A field for each element of the list.
    List(&'static Shape),
    /// One message with field 1 for each element; a single value counts as a list of one.
    Listed(&'static Shape),
    /// A message whose only field, of this number, is the value: an arm of a `oneof`.
    Arm(u32, &'static Shape),
    /// A schema or a boolean, arms 1 and 2.
    SchemaOrFlag,
    /// A parameter, by what stands in `in`.
    Parameter,
}

use Rest::{Extensions, Nothing, Pairs};
use Shape::{Arm, Flag, List, Listed, Object, Parameter, SchemaOrFlag, Text, Yaml};

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, Object(&INFO)),
        ("paths", 8, Object(&PATHS)),
        ("definitions", 9, Object(&SCHEMAS)),
        ("security", 12, List(&Object(&REQUIREMENT))),
        ("securityDefinitions", 13, Object(&SECURITY)),
    ],
    rest: Nothing,
};

static INFO: Message = Message { fields: &[("title", 1, Text), ("version", 2, Text)], rest: Nothing };

static PATHS: Message = Message { fields: &[], rest: Pairs(2, Object(&ITEM)) };

/// Definitions, and properties of a schema.
static SCHEMAS: Message = Message { fields: &[], rest: Pairs(1, Object(&SCHEMA)) };

static REQUIREMENT: Message = Message { fields: &[], rest: Pairs(1, Listed(&Text)) };

static SECURITY: Message = Message { fields: &[], rest: Pairs(1, Arm(2, &Object(&API_KEY))) };

static API_KEY: Message = Message {
    fields: &[("type", 1, Text), ("name", 2, Text), ("in", 3, Text), ("description", 4, Text)],
    rest: Extensions(5),
};

static ITEM: Message = Message {
    fields: &[
        ("get", 2, Object(&OPERATION)),
        ("put", 3, Object(&OPERATION)),
        ("post", 4, Object(&OPERATION)),
        ("delete", 5, Object(&OPERATION)),
        ("patch", 8, Object(&OPERATION)),
        ("parameters", 9, List(&Parameter)),
    ],
    rest: Extensions(10),
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, List(&Text)),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("produces", 6, List(&Text)),
        ("consumes", 7, List(&Text)),
        ("parameters", 8, List(&Parameter)),
        ("responses", 9, Object(&RESPONSES)),
        ("schemes", 10, List(&Text)),
    ],
    rest: Extensions(13),
};

static RESPONSES: Message = Message { fields: &[], rest: Pairs(1, Arm(1, &Object(&RESPONSE))) };

static RESPONSE: Message = Message {
    fields: &[("description", 1, Text), ("schema", 2, Arm(1, &Object(&SCHEMA)))],
    rest: Extensions(5),
};

static BODY_PARAMETER: Message = Message {
    fields: &[
        ("description", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("required", 4, Flag),
        ("schema", 5, Object(&SCHEMA)),
    ],
    rest: Extensions(6),
};

static QUERY_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 6, Text),
        ("format", 7, Text),
        ("uniqueItems", 20, Flag),
    ],
    rest: Extensions(23),
};

static PATH_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("format", 6, Text),
        ("uniqueItems", 19, Flag),
    ],
    rest: Extensions(22),
};

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("title", 3, Text),
        ("description", 4, Text),
        ("default", 5, Yaml),
        ("pattern", 13, Text),
        ("uniqueItems", 16, Flag),
        ("required", 19, List(&Text)),
        ("enum", 20, List(&Yaml)),
        ("additionalProperties", 21, SchemaOrFlag),
        ("type", 22, Listed(&Text)),
        ("items", 23, Listed(&Object(&SCHEMA))),
        ("allOf", 24, List(&Object(&SCHEMA))),
        ("properties", 25, Object(&SCHEMAS)),
    ],
    rest: Extensions(31),
};

/// The bytes of the message for `document`.
pub fn encode(document: &Value) -> Vec<u8> {
    message(&DOCUMENT, document)
}

fn message(shape: &Message, value: &Value) -> Vec<u8> {
    let object = value.as_object().unwrap_or_else(|| panic!("an object is expected, not {value}"));
    let mut out = Vec::new();
    for (key, number, shape) in shape.fields {
        if let Some(value) = object.get(*key) {
            field(&mut out, *number, *shape, value);
        }
    }
    for (key, value) in object {
        if shape.fields.iter().any(|(known, ..)| known == key) {
            continue;
        }
        let (number, shape) = match shape.rest {
            Pairs(number, shape) => (number, shape),
            Extensions(number) if key.starts_with("x-") => (number, Yaml),
            Extensions(_) | Nothing => panic!("no field of the message holds {key:?}: {value}"),
        };
        let mut pair = Vec::new();
        bytes(&mut pair, 1, key.as_bytes());
        field(&mut pair, 2, shape, value);
        bytes(&mut out, number, &pair);
    }
    out
}

fn field(out: &mut Vec<u8>, number: u32, shape: Shape, value: &Value) {
    match shape {
        Text => bytes(out, number, text(value).as_bytes()),
        Flag => {
            if flag(value) {
                boolean(out, number, true);
            }
        }
        Yaml => {
            let mut any = Vec::new();
            bytes(&mut any, 2, value.to_string().as_bytes());
            bytes(out, number, &any);
        }
        Object(shape) => bytes(out, number, &message(shape, value)),
        List(shape) => {
            let list = value.as_array().unwrap_or_else(|| panic!("a list is expected, not {value}"));
            list.iter().for_each(|element| field(out, number, *shape, element));
        }
        Listed(shape) => {
            let mut inner = Vec::new();
            let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            list.iter().for_each(|element| field(&mut inner, 1, *shape, element));
            bytes(out, number, &inner);
        }
        Arm(arm, shape) => {
            let mut inner = Vec::new();
            field(&mut inner, arm, *shape, value);
            bytes(out, number, &inner);
        }
        SchemaOrFlag => {
            let mut inner = Vec::new();
            match value {
                // An arm is written whatever its value.
                Value::Bool(flag) => boolean(&mut inner, 2, *flag),
                schema => field(&mut inner, 1, Object(&SCHEMA), schema),
            }
            bytes(out, number, &inner);
        }
        Parameter => field(out, number, Arm(1, parameter(value)), value),
    }
}

fn parameter(value: &Value) -> &'static Shape {
    static BODY: Shape = Arm(1, &Object(&BODY_PARAMETER));
    static QUERY: Shape = Arm(2, &Arm(3, &Object(&QUERY_PARAMETER)));
    static PATH: Shape = Arm(2, &Arm(4, &Object(&PATH_PARAMETER)));
    match text(&value["in"]) {
        "body" => &BODY,
        "query" => &QUERY,
        "path" => &PATH,
        other => panic!("parameters in {other:?} have no message"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a string is expected, not {value}"))
}

fn flag(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| panic!("a boolean is expected, not {value}"))
}

fn boolean(out: &mut Vec<u8>, number: u32, value: bool) {
    varint(out, u64::from(number) << 3);
    out.push(u8::from(value));
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
