//! The normal form of an object of a built-in kind: what Kubernetes makes of it by decoding it into a
//! type of Go's and encoding that again, and what our encoding gives back too.
//!
//! A field that is no pointer and has its type's zero is not there, nor is an empty list or map, unless
//! it is a field that Go's JSON always has; a struct that is no pointer is there. Lists and maps that
//! are always there become null where they are written ([`super::complete`]), and not here: what judges
//! an object sees them as they were sent.

use serde_json::{Map, Value};

use super::decode::double;
use crate::messages::{Absent, Field, Kind, Message, Shape, at};

/// Brings an object into its normal form, in one pass, which allocates nothing if it already has that form. A
/// value that is not an object is left alone, and so are values of another type than the field's: they have
/// been refused before, or belong to another party.
pub fn normalize(message: Message, object: &mut Value) {
    if let Value::Object(map) = object {
        fields(message, map, Quantities::Filled);
    }
}

/// Does what [`normalize`] does, except for quantities that were not sent: in a list that is compared as a
/// whole, Kubernetes' server-side apply distinguishes them from a zero.
pub fn normalize_as_sent(message: Message, object: &mut Value) {
    if let Value::Object(map) = object {
        fields(message, map, Quantities::AsSent);
    }
}

/// The treatment of a quantity that is not a pointer and was not set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantities {
    Filled,
    AsSent,
}

fn fields(message: Message, map: &mut Map<String, Value>, quantities: Quantities) {
    for field in message.fields() {
        let name = field.name();
        if name.is_empty() {
            if let Kind::Message(inner) = field.kind {
                fields(at(inner), map, quantities);
            }
            continue;
        }
        match map.get_mut(name) {
            None => {
                if let Some(value) = lacking(field, quantities) {
                    map.insert(name.to_owned(), value);
                }
            }
            Some(value) if value.is_null() => match lacking(field, quantities) {
                Some(struct_of) => *value = struct_of,
                None => drop(map.remove(name)),
            },
            // An empty list of entries is a request to forget them all, and their contents are not fields of
            // a Go type.
            Some(_) if name == "managedFields" => {}
            Some(value) if is_left_out(field, value) => drop(map.remove(name)),
            Some(value) => held(field, value, quantities),
        }
    }
}

/// Returns the struct that is present although it was not written.
fn lacking(field: &Field, quantities: Quantities) -> Option<Value> {
    match field.absent() {
        Absent::Object(inner) => {
            let mut map = Map::new();
            fields(inner, &mut map, quantities);
            Some(Value::Object(map))
        }
        // A quantity is a struct too.
        Absent::Zero(_) if field.kind == Kind::Quantity && !field.always => {
            (quantities == Quantities::Filled).then(|| "0".into())
        }
        _ => None,
    }
}

/// Returns `true` if Go's encoder leaves the value out because of `omitempty`.
fn is_left_out(field: &Field, value: &Value) -> bool {
    if field.always || field.pointer {
        return false;
    }
    match (field.shape, field.kind, value) {
        (Shape::List, _, Value::Array(items)) => items.is_empty(),
        (Shape::Map, _, Value::Object(entries)) => entries.is_empty(),
        (Shape::One, Kind::Text | Kind::Bytes, Value::String(text)) => text.is_empty(),
        (Shape::One, Kind::Flag, Value::Bool(set)) => !set,
        (Shape::One, Kind::Int32 | Kind::Int64 | Kind::Double, Value::Number(number)) => {
            number.as_f64() == Some(0.0)
        }
        (Shape::One, Kind::Texts, Value::Array(items)) => items.is_empty(),
        _ => false,
    }
}

/// Brings the value of a field into normal form.
fn held(field: &Field, value: &mut Value, quantities: Quantities) {
    match (field.shape, value) {
        (Shape::One, value) => one(field.kind, value, quantities),
        (Shape::List, Value::Array(items)) if has_parts(field.kind) => {
            items.iter_mut().for_each(|item| one(field.kind, item, quantities));
        }
        (Shape::Map, Value::Object(entries)) if has_parts(field.kind) => {
            entries.values_mut().for_each(|entry| one(field.kind, entry, quantities));
        }
        _ => {}
    }
}

fn has_parts(kind: Kind) -> bool {
    kind == Kind::Double || kind.message().is_some()
}

fn one(kind: Kind, value: &mut Value, quantities: Quantities) {
    match (kind.message(), value) {
        (Some(inner), Value::Object(map)) => fields(inner, map, quantities),
        // `JSONSchemaPropsOrArray`.
        (Some(inner), Value::Array(items)) => {
            for item in items {
                if let Value::Object(map) = item {
                    fields(inner, map, quantities);
                }
            }
        }
        (None, Value::Number(number)) if kind == Kind::Double && number.is_f64() => {
            if let Some(float) = number.as_f64() {
                *number = match double(float) {
                    Value::Number(number) => number,
                    _ => return,
                };
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protobuf::{complete, from_envelope, of_object, to_envelope};

    fn normal(mut object: Value) -> Value {
        normalize(of_object(&object).unwrap(), &mut object);
        object
    }

    #[test]
    fn zeros_go_and_pointers_to_them_stay() {
        let pod = normal(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "", "labels": {}, "creationTimestamp": null,
                "managedFields": []},
            "spec": {"hostNetwork": false, "nodeName": "", "priority": 0, "enableServiceLinks": false,
                "securityContext": {"runAsUser": 0, "supplementalGroups": []}, "tolerations": [],
                "containers": [{"name": "", "stdin": false, "workingDir": "", "args": [],
                    "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"resourceFieldRef":
                        {"resource": "limits.cpu"}}}],
                    "ports": [{"containerPort": 0, "hostPort": 0}],
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false}]}],
                "volumes": [{"name": "v", "emptyDir": {}, "hostPath": null}]}}));
        let spec = json!({"priority": 0, "enableServiceLinks": false, "securityContext": {"runAsUser": 0},
            "containers": [{"name": "", "resources": {},
                "env": [{"name": "A"}, {"name": "B", "valueFrom": {"resourceFieldRef":
                    {"resource": "limits.cpu", "divisor": "0"}}}],
                "ports": [{"containerPort": 0}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}]});
        assert_eq!(pod["spec"], spec);
        assert_eq!(pod["metadata"], json!({"name": "p", "managedFields": []}));
        assert_eq!(normal(pod.clone()), pod);
    }

    #[test]
    fn the_normal_form_is_what_the_encoding_gives_back() {
        for object in [
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "", "loadBalancerIP": "",
                "publishNotReadyAddresses": false, "externalIPs": [], "selector": {},
                "ports": [{"name": "", "port": 80, "nodePort": 0, "targetPort": 80}]}}),
            json!({"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": false, "podCIDR": "",
                "taints": [{"key": "k", "value": "", "effect": "NoSchedule"}]}}),
            json!({"apiVersion": "v1", "kind": "Secret", "type": "", "data": {"empty": ""},
                "immutable": false}),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"paused": false,
                "minReadySeconds": 0, "replicas": 0, "selector": {}, "template": null}}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [
                {"verbs": [], "apiGroups": [], "resources": ["pods"]}]}),
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "spec": {"group": "g", "preserveUnknownFields": false, "versions": [{"name": "v1",
                    "deprecated": false, "schema": {"openAPIV3Schema": {"type": "object",
                    "required": [], "additionalProperties": false, "properties": {
                        "a": {"type": "number", "nullable": false, "maximum": 5.0, "minLength": 0}}}}}]}}),
        ] {
            let (mut ours, message) = (normal(object.clone()), of_object(&object).unwrap());
            complete(message, &mut ours);
            assert_eq!(from_envelope(&to_envelope(&object).unwrap()).unwrap(), ours, "{object}");
        }
    }
}
