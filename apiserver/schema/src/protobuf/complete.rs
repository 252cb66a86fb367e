//! The parts that Go's JSON of an object always has, whether or not they were set: structs, which `omitempty`
//! does not leave out, and fields without `omitempty`. Clients with types of their own refuse an object
//! without them.

use serde_json::{Map, Value};

use crate::messages::{Absent, Field, Kind, Message, Shape, at};

/// Adds the structs that an object lacks, and nothing else, so that it is validated with them, as in
/// Kubernetes. A value that is not an object is left alone.
pub fn complete_structs(message: Message, object: &mut Value) {
    if let Value::Object(map) = object {
        walk(message, map, &|field, map| {
            if let Absent::Object(_) = field.absent() {
                fill(map, field.name(), &|| Value::Object(Map::new()));
            }
        });
    }
}

/// Adds the fields that Go's JSON always has. An empty list or map among them becomes null, because protobuf
/// cannot tell it from an absent one.
pub fn complete(message: Message, object: &mut Value) {
    if let Value::Object(map) = object {
        walk(message, map, &|field, map| {
            let name = field.name();
            match field.absent() {
                Absent::Nothing => {}
                Absent::Object(_) => fill(map, name, &|| Value::Object(Map::new())),
                Absent::Zero(text) => fill(map, name, &|| zero(text)),
                Absent::Null => match map.get_mut(name) {
                    Some(value) if is_empty(field, value) => *value = Value::Null,
                    Some(_) => {}
                    None => drop(map.insert(name.to_owned(), Value::Null)),
                },
            }
        });
    }
}

/// Returns the fields of a message that Go's JSON always has, with their values if they are not set. The
/// fields of a struct are left to its own message.
pub fn implied(message: Message) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    for field in message.fields() {
        match (field.name(), field.kind) {
            ("", Kind::Message(inner)) => found.extend(implied(at(inner))),
            (name, _) => match field.absent() {
                Absent::Nothing => {}
                Absent::Null => found.push((name, Value::Null)),
                Absent::Zero(text) => found.push((name, zero(text))),
                Absent::Object(_) => found.push((name, Value::Object(Map::new()))),
            },
        }
    }
    found
}

/// The value of [`Absent::Zero`].
pub(super) fn zero(text: &str) -> Value {
    match text {
        "false" => Value::Bool(false),
        "0" => Value::from(0),
        text => Value::from(text.trim_matches('"')),
    }
}

fn is_empty(field: &Field, value: &Value) -> bool {
    match (field.shape, value) {
        (Shape::List, Value::Array(list)) => list.is_empty(),
        (Shape::Map, Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}

fn fill(map: &mut Map<String, Value>, name: &str, value: &dyn Fn() -> Value) {
    match map.get_mut(name) {
        Some(found) if found.is_null() => *found = value(),
        Some(_) => {}
        None => drop(map.insert(name.to_owned(), value())),
    }
}

/// Applies a function to each field of an object, then to its contents.
fn walk(message: Message, map: &mut Map<String, Value>, each: &dyn Fn(&Field, &mut Map<String, Value>)) {
    for field in message.fields() {
        let inner = match field.kind {
            Kind::Message(inner) => Some(at(inner)),
            _ => None,
        };
        if let (true, Some(inner)) = (field.name().is_empty(), inner) {
            walk(inner, map, each);
            continue;
        }
        each(field, map);
        let Some(inner) = inner else { continue };
        let mut enter = |value: &mut Value| {
            if let Value::Object(map) = value {
                walk(inner, map, each);
            }
        };
        match (field.shape, map.get_mut(field.name())) {
            (Shape::One, Some(value)) => enter(value),
            (Shape::List, Some(Value::Array(items))) => items.iter_mut().for_each(&mut enter),
            (Shape::Map, Some(Value::Object(entries))) => entries.values_mut().for_each(&mut enter),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protobuf::{from_envelope, message, of_object, to_envelope};

    #[test]
    fn implied_zero_fields_survive_the_encoding() {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "r"}, "rules": []});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}});
        for (mut object, path, wanted) in [
            (role, "/rules", json!(null)),
            (pod.clone(), "/spec/containers/0/resources", json!({})),
            (pod, "/status/conditions/0/lastProbeTime", json!(null)),
            (event.clone(), "/source", json!({})),
            (event, "/eventTime", json!(null)),
        ] {
            let message = of_object(&object).unwrap();
            complete(message, &mut object);
            assert_eq!(object.pointer(path), Some(&wanted), "{object}");
            assert_eq!(object["metadata"].get("creationTimestamp"), None);
            assert_eq!(from_envelope(&to_envelope(&object).unwrap()).unwrap(), object);
        }
    }

    #[test]
    fn structs_come_alone_and_nulls_go() {
        let deployment = message("apps/v1.Deployment").unwrap();
        let mut object = json!({"spec": {"selector": null}});
        complete_structs(deployment, &mut object);
        let template = json!({"metadata": {}, "spec": {}});
        let spec = json!({"selector": null, "template": template, "strategy": {}});
        assert_eq!(object, json!({"metadata": {}, "spec": spec, "status": {}}));
        complete(deployment, &mut object);
        assert_eq!(object["spec"]["template"]["spec"], json!({"containers": null}));
        super::super::normalize(deployment, &mut object);
        let template = json!({"metadata": {}, "spec": {}});
        assert_eq!(object["spec"], json!({"template": template, "strategy": {}}));
    }
}
