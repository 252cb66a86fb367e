//! `openapi.v2.Document` of gnostic, which older kubectl requests first.

use super::Rest::{Extensions, Nothing, Pairs};
use super::Shape::{Arm, By, Double, Either, Flag, Integer, List, Listed, Object, Text, Yaml};
use super::{Message, Shape, Unfit, text};
use serde_json::Value;

pub static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, Object(&INFO)),
        ("paths", 8, Object(&PATHS)),
        ("definitions", 9, Object(&SCHEMAS)),
        ("parameters", 10, Object(&PARAMETERS)),
        ("security", 12, List(&Object(&REQUIREMENT))),
        ("securityDefinitions", 13, Object(&SECURITY)),
    ],
    rest: Nothing,
};

static INFO: Message = Message { fields: &[("title", 1, Text), ("version", 2, Text)], rest: Nothing };

static PATHS: Message = Message { fields: &[], rest: Pairs(2, Object(&ITEM)) };

/// Definitions, and properties of a schema.
static SCHEMAS: Message = Message { fields: &[], rest: Pairs(1, Object(&SCHEMA)) };

/// Parameters that operations refer to.
static PARAMETERS: Message = Message { fields: &[], rest: Pairs(1, By(parameter)) };

static REFERENCE: Message = Message { fields: &[("$ref", 1, Text)], rest: Nothing };

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
        ("options", 6, Object(&OPERATION)),
        ("head", 7, Object(&OPERATION)),
        ("patch", 8, Object(&OPERATION)),
        ("parameters", 9, List(&By(parameter_or_reference))),
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
        ("parameters", 8, List(&By(parameter_or_reference))),
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
        ("multipleOf", 6, Double),
        ("maximum", 7, Double),
        ("exclusiveMaximum", 8, Flag),
        ("minimum", 9, Double),
        ("exclusiveMinimum", 10, Flag),
        ("maxLength", 11, Integer),
        ("minLength", 12, Integer),
        ("pattern", 13, Text),
        ("maxItems", 14, Integer),
        ("minItems", 15, Integer),
        ("uniqueItems", 16, Flag),
        ("maxProperties", 17, Integer),
        ("minProperties", 18, Integer),
        ("required", 19, List(&Text)),
        ("enum", 20, List(&Yaml)),
        ("additionalProperties", 21, Either(1, &Object(&SCHEMA), 2)),
        ("type", 22, Listed(&Text)),
        ("items", 23, Listed(&Object(&SCHEMA))),
        ("allOf", 24, List(&Object(&SCHEMA))),
        ("properties", 25, Object(&SCHEMAS)),
        ("example", 30, Yaml),
    ],
    rest: Extensions(31),
};

/// Returns the message of a parameter, which depends on its location.
fn parameter(value: &Value) -> Result<&'static Shape, Unfit> {
    static BODY: Shape = Arm(1, &Object(&BODY_PARAMETER));
    static QUERY: Shape = Arm(2, &Arm(3, &Object(&QUERY_PARAMETER)));
    static PATH: Shape = Arm(2, &Arm(4, &Object(&PATH_PARAMETER)));
    match text(&value["in"])? {
        "body" => Ok(&BODY),
        "query" => Ok(&QUERY),
        "path" => Ok(&PATH),
        other => Err(Unfit(format!("parameters in {other:?} have no message"))),
    }
}

fn parameter_or_reference(value: &Value) -> Result<&'static Shape, Unfit> {
    static PARAMETER: Shape = Arm(1, &By(parameter));
    static SHARED: Shape = Arm(2, &Object(&REFERENCE));
    Ok(if value["$ref"].is_string() { &SHARED } else { &PARAMETER })
}
