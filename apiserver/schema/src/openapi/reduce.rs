//! An OpenAPI document without some of its resources: their paths go, and the definitions that
//! nothing but those paths led to. The build script has this file too.

use std::collections::BTreeSet;

use serde_json::Value;

/// Removes from a document of either version the APIs for which `is_gone` is true, by group, version and
/// plural.
pub fn without(document: &mut Value, is_gone: &dyn Fn(&str, &str, &str) -> bool) {
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else { return };
    let mut gone = Vec::new();
    paths.retain(|path, item| {
        let stays = !place(path).is_some_and(|(group, version, plural)| is_gone(group, version, plural));
        if !stays {
            gone.push(item.take());
        }
        stays
    });
    // Groups and versions of which nothing is left.
    let left: Vec<String> = paths.keys().filter(|path| !path.ends_with('/')).cloned().collect();
    paths.retain(|path, _| !names_kinds(path) || left.iter().any(|other| other.starts_with(path.as_str())));
    let remaining: Vec<Value> = paths.values().cloned().collect();
    for (pointer, prefix) in
        [("/definitions", "#/definitions/"), ("/components/schemas", "#/components/schemas/")]
    {
        let Some(schemas) = document.pointer(pointer) else { continue };
        let (lost, used) = (reached(&gone, schemas, prefix), reached(&remaining, schemas, prefix));
        if let Some(schemas) = document.pointer_mut(pointer).and_then(Value::as_object_mut) {
            schemas.retain(|name, _| !lost.contains(name) || used.contains(name));
        }
    }
}

/// `true` if a path is that of a group or of a version: `/apis/apps/`, `/api/v1/`.
fn names_kinds(path: &str) -> bool {
    let of_group = path.starts_with("/apis/") || path.starts_with("/api/");
    of_group && path.ends_with('/') && path.matches('/').count() > 2
}

/// Group, version and plural of a path.
fn place(path: &str) -> Option<(&str, &str, &str)> {
    let mut parts = path.split('/').skip(1);
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let (version, first) = (parts.next()?, parts.next().filter(|first| !first.is_empty())?);
    let first = if first == "watch" { parts.next()? } else { first };
    let plural = match (first, parts.next(), parts.next()) {
        ("namespaces", Some("{namespace}"), Some(plural)) => plural,
        _ => first,
    };
    Some((group, version, plural))
}

/// The names of the definitions that values refer to, however far away.
pub fn reached(from: &[Value], schemas: &Value, prefix: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut open = Vec::new();
    from.iter().for_each(|value| references(value, prefix, &mut open));
    while let Some(name) = open.pop() {
        if let Some(schema) = schemas.get(&name)
            && names.insert(name)
        {
            references(schema, prefix, &mut open);
        }
    }
    names
}

fn references(value: &Value, prefix: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(prefix)) {
                found.push(name.to_owned());
            }
            map.values().for_each(|value| references(value, prefix, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, prefix, found)),
        _ => {}
    }
}
