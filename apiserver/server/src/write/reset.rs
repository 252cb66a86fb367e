//! The fields that a request cannot write, so that nobody comes to own them by it: here those of all kinds and of
//! the subresources of pods; those of other kinds are `unowned` in their behaviour.

use apiserver_apply::{FieldSet, PathElement, field_path};
use apiserver_registry::Resource;
use serde_json::Value;

use super::{Part, Write};

/// Metadata that no status carries.
const NOT_OF_STATUS: [&str; 3] = ["deletionTimestamp", "finalizers", "ownerReferences"];

/// Returns the fields that a write leaves alone. `new` is the new object, or the configuration that is applied.
pub(super) fn fields(write: &Write<'_>, new: &Value) -> FieldSet {
    fields_of(write.resource, write.part, &write.context.info.subresource, new, write.old())
}

/// [`fields`] of a request through `subresource`, for this part of the object. `new` and `live` show which fields
/// exist.
fn fields_of(
    resource: &Resource,
    part: Part,
    subresource: &str,
    new: &Value,
    live: Option<&Value>,
) -> FieldSet {
    let mut set = FieldSet::new();
    match (part, subresource) {
        (Part::Whole, "ephemeralcontainers") => {
            all_but(&mut set, new, &["spec"]);
            below(&mut set, new, "spec", &["ephemeralContainers"]);
        }
        (Part::Whole, "resize") => {
            all_but(&mut set, new, &["spec"]);
            below(&mut set, new, "spec", &["containers", "initContainers"]);
            containers(&mut set, new);
        }
        (Part::Main, _) if resource.behaviour.status_subresource => set.insert(&field_path(&["status"])),
        (Part::Main | Part::Whole | Part::Admitted, _) => {}
        (Part::Status, _) => {
            for object in [Some(new), live].into_iter().flatten() {
                all_but(&mut set, object, &["metadata", "status"]);
            }
            for field in NOT_OF_STATUS {
                set.insert(&field_path(&["metadata", field]));
            }
        }
    }
    let of_kind = resource.behaviour.unowned.iter().filter(|(name, _)| *name == subresource);
    for path in of_kind.flat_map(|(_, paths)| *paths) {
        set.insert(&field_path(path));
    }
    set
}

/// Adds the fields of the object, except its type and those named.
fn all_but(set: &mut FieldSet, object: &Value, except: &[&str]) {
    for name in object.as_object().into_iter().flat_map(|fields| fields.keys()) {
        if !matches!(name.as_str(), "apiVersion" | "kind") && !except.contains(&name.as_str()) {
            set.insert(&field_path(&[name]));
        }
    }
}

/// Adds the fields of a field, except those named.
fn below(set: &mut FieldSet, object: &Value, field: &str, except: &[&str]) {
    for name in object[field].as_object().into_iter().flat_map(|fields| fields.keys()) {
        if !except.contains(&name.as_str()) {
            set.insert(&field_path(&[field, name]));
        }
    }
}

/// Adds the fields of containers that a resize does not change.
fn containers(set: &mut FieldSet, object: &Value) {
    for list in ["containers", "initContainers"] {
        for container in object["spec"][list].as_array().into_iter().flatten() {
            let item = PathElement::key(vec![("name".into(), container["name"].clone())]);
            for name in container.as_object().into_iter().flat_map(|fields| fields.keys()) {
                if !matches!(name.as_str(), "name" | "resources" | "resizePolicy") {
                    let mut path = field_path(&["spec", list]);
                    path.extend([item.clone(), PathElement::field(name)]);
                    set.insert(&path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_kinds::builtin;
    use serde_json::json;

    use super::*;

    fn shown(group: &str, version: &str, plural: &str, part: Part, subresource: &str, new: &Value) -> Value {
        let resource = builtin::registry().lookup(group, version, plural).cloned().unwrap();
        fields_of(&resource, part, subresource, new, None).to_fields_v1()
    }

    #[test]
    fn reset_fields_of_each_subresource_are_those_that_it_cannot_write() {
        let new = json!({"apiVersion": "v1", "kind": "X", "metadata": {"labels": {"a": "b"}}, "status": {},
            "spec": {"nodeName": "n", "ephemeralContainers": [],
                "containers": [{"name": "c", "image": "i", "resources": {}}]}});
        let metadata = json!({"f:deletionTimestamp": {}, "f:finalizers": {}, "f:ownerReferences": {}});
        assert_eq!(shown("", "v1", "pods", Part::Main, "", &new), json!({"f:status": {}}));
        assert_eq!(
            shown("", "v1", "pods", Part::Status, "status", &new),
            json!({"f:metadata": metadata, "f:spec": {}})
        );
        assert_eq!(
            shown("certificates.k8s.io", "v1", "certificatesigningrequests", Part::Main, "", &new),
            json!({"f:spec": {}, "f:status": {}})
        );
        assert_eq!(
            shown("apps", "v1", "deployments", Part::Status, "status", &new)["f:metadata"]["f:labels"],
            json!({})
        );
        assert_eq!(
            shown("", "v1", "pods", Part::Whole, "ephemeralcontainers", &new),
            json!({"f:metadata": {}, "f:status": {}, "f:spec": {"f:containers": {}, "f:nodeName": {}}})
        );
        let resized = shown("", "v1", "pods", Part::Whole, "resize", &new);
        assert_eq!(
            resized["f:spec"],
            json!({"f:nodeName": {}, "f:ephemeralContainers": {},
                "f:containers": {"k:{\"name\":\"c\"}": {"f:image": {}}}})
        );
        let approval =
            shown("certificates.k8s.io", "v1", "certificatesigningrequests", Part::Status, "approval", &new);
        assert_eq!(approval["f:status"], json!({"f:certificate": {}}));
    }
}
