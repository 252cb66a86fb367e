//! Bindings of roles.

use serde_json::{Value, json};

use super::{AGE, Layout, NAME, age, name};
use apiserver_schema::meta;

pub(super) const BINDINGS: Layout = Layout {
    head: &[
        NAME,
        ("Role", "string", 0, "What is granted"),
        AGE,
        ("Users", "string", 1, "Users to whom it is granted"),
        ("Groups", "string", 1, "Groups to which it is granted"),
        ("ServiceAccounts", "string", 1, "Service accounts to which it is granted"),
    ],
    cells: |object, now| {
        let role = &object["roleRef"];
        vec![
            name(object),
            json!(format!("{}/{}", meta::text(role, "/kind"), meta::text(role, "/name"))),
            age(object, now),
            subjects(object, "User"),
            subjects(object, "Group"),
            subjects(object, "ServiceAccount"),
        ]
    },
};

fn subjects(object: &Value, kind: &str) -> Value {
    let list = meta::list(object, "/subjects").iter().filter(|s| s["kind"] == kind).map(|subject| {
        let name = meta::text(subject, "/name");
        if kind == "ServiceAccount" {
            format!("{}/{name}", meta::text(subject, "/namespace"))
        } else {
            name.to_owned()
        }
    });
    json!(list.collect::<Vec<_>>().join(", "))
}
