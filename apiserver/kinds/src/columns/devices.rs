//! Devices and claims.

use serde_json::{Value, json};

use super::{AGE, DEFAULT, Layout, NAME, age, count, name, text_or};
use apiserver_schema::meta;

pub(super) fn layout(plural: &str) -> Layout {
    match plural {
        "resourceclaims" => CLAIMS,
        "resourceslices" => SLICES,
        "deviceclasses" | "resourceclaimtemplates" => AGED,
        _ => DEFAULT,
    }
}

const AGED: Layout = Layout { head: &[NAME, AGE], cells: |object, now| vec![name(object), age(object, now)] };

const CLAIMS: Layout = Layout {
    head: &[
        NAME,
        ("State", "string", 0, "Whether devices were allocated, and to whom they are reserved"),
        AGE,
    ],
    cells: |object, now| vec![name(object), json!(state(object)), age(object, now)],
};

fn state(claim: &Value) -> String {
    let mut states = Vec::new();
    if meta::deletion_timestamp(claim).is_some() {
        states.push("deleted");
    }
    if claim.pointer("/status/allocation").is_some_and(|a| !a.is_null()) {
        states.push("allocated");
        if count(claim, "/status/reservedFor") > 0 {
            states.push("reserved");
        }
    } else if states.is_empty() {
        states.push("pending");
    }
    states.join(",")
}

const SLICES: Layout = Layout {
    head: &[
        NAME,
        ("Node", "string", 0, "Node that the devices belong to"),
        ("Driver", "string", 0, "Driver that manages them"),
        ("Pool", "string", 0, "Pool that they belong to"),
        AGE,
    ],
    cells: |object, now| {
        let node = match object.pointer("/spec/allNodes") {
            Some(Value::Bool(true)) => "<all>",
            _ if object.pointer("/spec/nodeSelector").is_some() => "<some>",
            _ => "<unset>",
        };
        vec![
            name(object),
            text_or(object, "/spec/nodeName", node),
            text_or(object, "/spec/driver", ""),
            text_or(object, "/spec/pool/name", ""),
            age(object, now),
        ]
    },
};
