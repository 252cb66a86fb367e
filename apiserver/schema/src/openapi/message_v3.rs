//! `openapi.v3.Document` of gnostic.

use super::Rest::{Extensions, Nothing, Pairs};
use super::Shape::{Arm, By, Double, Either, Flag, Integer, List, Listed, Object, Scalar, Text, Yaml};
use super::{Message, Shape, Unfit};
use serde_json::Value;

pub static DOCUMENT: Message = Message {
    fields: &[
        ("openapi", 1, Text),
        ("info", 2, Object(&INFO)),
        ("paths", 4, Object(&PATHS)),
        ("components", 5, Object(&COMPONENTS)),
        ("security", 6, List(&Object(&REQUIREMENT))),
    ],
    rest: Extensions(9),
};

static INFO: Message = Message {
    fields: &[("title", 1, Text), ("description", 2, Text), ("version", 6, Text)],
    rest: Extensions(7),
};

static PATHS: Message = Message { fields: &[], rest: Pairs(1, Object(&ITEM)) };

static COMPONENTS: Message = Message {
    fields: &[("schemas", 1, Object(&SCHEMAS)), ("securitySchemes", 7, Object(&SECURITY))],
    rest: Extensions(10),
};

/// Definitions, and properties of a schema.
static SCHEMAS: Message = Message { fields: &[], rest: Pairs(1, By(schema)) };

static SECURITY: Message = Message { fields: &[], rest: Pairs(1, Arm(1, &Object(&SECURITY_SCHEME))) };

static SECURITY_SCHEME: Message = Message {
    fields: &[("type", 1, Text), ("description", 2, Text), ("name", 3, Text), ("in", 4, Text)],
    rest: Extensions(9),
};

static REQUIREMENT: Message = Message { fields: &[], rest: Pairs(1, Listed(&Text)) };

static ITEM: Message = Message {
    fields: &[
        ("get", 4, Object(&OPERATION)),
        ("put", 5, Object(&OPERATION)),
        ("post", 6, Object(&OPERATION)),
        ("delete", 7, Object(&OPERATION)),
        ("options", 8, Object(&OPERATION)),
        ("head", 9, Object(&OPERATION)),
        ("patch", 10, Object(&OPERATION)),
        ("parameters", 13, List(&Arm(1, &Object(&PARAMETER)))),
    ],
    rest: Extensions(14),
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, List(&Text)),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("parameters", 6, List(&Arm(1, &Object(&PARAMETER)))),
        ("requestBody", 7, Arm(1, &Object(&BODY))),
        ("responses", 8, Object(&RESPONSES)),
    ],
    rest: Extensions(13),
};

static PARAMETER: Message = Message {
    fields: &[
        ("name", 1, Text),
        ("in", 2, Text),
        ("description", 3, Text),
        ("required", 4, Flag),
        ("schema", 10, By(schema)),
    ],
    rest: Extensions(14),
};

static BODY: Message = Message {
    fields: &[("description", 1, Text), ("content", 2, Object(&CONTENT)), ("required", 3, Flag)],
    rest: Extensions(4),
};

static CONTENT: Message = Message { fields: &[], rest: Pairs(1, Object(&MEDIA)) };

static MEDIA: Message = Message { fields: &[("schema", 1, By(schema))], rest: Extensions(5) };

static RESPONSES: Message = Message { fields: &[], rest: Pairs(2, Arm(1, &Object(&RESPONSE))) };

static RESPONSE: Message =
    Message { fields: &[("description", 1, Text), ("content", 3, Object(&CONTENT))], rest: Extensions(5) };

static REFERENCE: Message = Message { fields: &[("$ref", 1, Text)], rest: Nothing };

static SCHEMA: Message = Message {
    fields: &[
        ("nullable", 1, Flag),
        ("example", 7, Yaml),
        ("title", 9, Text),
        ("multipleOf", 10, Double),
        ("maximum", 11, Double),
        ("exclusiveMaximum", 12, Flag),
        ("minimum", 13, Double),
        ("exclusiveMinimum", 14, Flag),
        ("maxLength", 15, Integer),
        ("minLength", 16, Integer),
        ("pattern", 17, Text),
        ("maxItems", 18, Integer),
        ("minItems", 19, Integer),
        ("uniqueItems", 20, Flag),
        ("maxProperties", 21, Integer),
        ("minProperties", 22, Integer),
        ("required", 23, List(&Text)),
        ("enum", 24, List(&Yaml)),
        ("type", 25, Text),
        ("allOf", 26, List(&By(schema))),
        ("oneOf", 27, List(&By(schema))),
        ("anyOf", 28, List(&By(schema))),
        ("not", 29, Object(&SCHEMA)),
        ("items", 30, Arm(1, &By(schema))),
        ("properties", 31, Object(&SCHEMAS)),
        ("additionalProperties", 32, Either(1, &By(schema), 2)),
        // Scalars only; objects and lists are not allowed.
        ("default", 33, Scalar),
        ("description", 34, Text),
        ("format", 35, Text),
    ],
    rest: Extensions(36),
};

/// A schema or a reference to one.
fn schema(value: &Value) -> Result<&'static Shape, Unfit> {
    static SCHEMA_ARM: Shape = Arm(1, &Object(&SCHEMA));
    static REFERENCE_ARM: Shape = Arm(2, &Object(&REFERENCE));
    Ok(if value["$ref"].is_string() { &REFERENCE_ARM } else { &SCHEMA_ARM })
}
