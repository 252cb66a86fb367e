//! AppArmor profiles were annotations before Kubernetes 1.30; of a new pod they become fields.

use apiserver_schema::meta;
use serde_json::{Map, Value, json};

use crate::shared::defaults::{Object, each_object, object_or_insert, with_spec};

/// The annotation of a container is this and the container's name.
pub(crate) const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Longest path of a profile: `PATH_MAX` without its end.
pub(crate) const PROFILE_LENGTH: usize = 4095;

const FIELD: &str = "appArmorProfile";

/// The profile that an annotation means; `None` if it means none.
pub(crate) fn profile(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        other => {
            let local = other.strip_prefix("localhost/").filter(|local| !local.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": local}))
        }
    }
}

/// A profile that the field may hold, too.
fn valid(annotation: &str) -> Option<Value> {
    profile(annotation).filter(|profile| {
        let local = profile["localhostProfile"].as_str().unwrap_or_default();
        local.trim() == local && local.len() <= PROFILE_LENGTH
    })
}

/// Sets the profiles of a new pod's containers that have the annotation and not the field, unless the pod
/// has the same profile as a whole.
pub(crate) fn annotations_to_fields(pod: &mut Value) {
    let profiles = annotated(pod);
    if profiles.is_empty() {
        return;
    }
    with_spec(pod, |spec| {
        let whole = spec.get("securityContext").and_then(|context| context.get(FIELD)).cloned();
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            each_object(spec, list, |container| set(container, &profiles, whole.as_ref()));
        }
    });
}

fn set(container: &mut Object, profiles: &Map<String, Value>, whole: Option<&Value>) {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let Some(profile) = profiles.get(name).and_then(Value::as_str).and_then(valid) else { return };
    let own = container.get("securityContext").and_then(|context| context.get(FIELD));
    if own.is_some_and(|own| !own.is_null()) || whole == Some(&profile) {
        return;
    }
    if let Some(context) = object_or_insert(container, "securityContext") {
        context.insert(FIELD.to_owned(), profile);
    }
}

/// The annotations of a pod, by the container that they are about. On Windows they mean nothing.
fn annotated(pod: &Value) -> Map<String, Value> {
    if pod["spec"]["os"]["name"] == "windows" {
        return Map::new();
    }
    let annotations = meta::annotations(pod).into_iter().flatten();
    annotations
        .filter_map(|(key, value)| Some((key.strip_prefix(ANNOTATION)?.to_owned(), value.clone())))
        .collect()
}

/// Returns warnings about the annotations of a new pod, valid or not, that differ from its fields.
pub(crate) fn warnings(pod: &Value) -> Vec<String> {
    let profiles = annotated(pod);
    if profiles.is_empty() {
        return Vec::new();
    }
    let whole = &pod["spec"]["securityContext"][FIELD];
    let lists = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];
    let containers = lists.into_iter().flat_map(|list| meta::list(pod, list));
    let unsaid = containers.filter_map(|container| {
        let name = container["name"].as_str().unwrap_or_default();
        let annotation = profiles.get(name)?.as_str().unwrap_or_default();
        let given = !container["securityContext"][FIELD].is_null();
        (!given && valid(annotation).is_none_or(|profile| profile != *whole)).then_some(name)
    });
    unsaid.map(|name| deprecated("", name)).collect()
}

/// The warning about the annotation of a container; `prefix` is the path of the pod or template.
pub(crate) fn deprecated(prefix: &str, container: &str) -> String {
    format!(
        "{prefix}metadata.annotations[{ANNOTATION}{container}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotation: &str, own: Value, whole: Value) -> Value {
        let mut pod = json!({"metadata": {"annotations": {format!("{ANNOTATION}c"): annotation}},
            "spec": {"containers": [{"name": "c"}, {"name": "d"}]}});
        if !own.is_null() {
            pod["spec"]["containers"][0]["securityContext"] = json!({FIELD: own});
        }
        if !whole.is_null() {
            pod["spec"]["securityContext"] = json!({FIELD: whole});
        }
        pod
    }

    #[test]
    fn annotations_become_fields_unless_the_fields_are_set() {
        let (default, unconfined) = (json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}));
        let local = json!({"type": "Localhost", "localhostProfile": "a/b"});
        let long = format!("localhost/{}", "a".repeat(PROFILE_LENGTH + 1));
        let none = Value::Null;
        for (annotation, own, whole, wanted, warned) in [
            ("runtime/default", &none, &none, &default, true),
            ("unconfined", &none, &default, &unconfined, true),
            ("localhost/a/b", &none, &none, &local, true),
            ("localhost/", &none, &none, &none, true),
            ("localhost/ a", &none, &none, &none, true),
            (&long, &none, &none, &none, true),
            ("", &none, &default, &none, true),
            ("runtime/default", &none, &default, &none, false),
            ("runtime/default", &unconfined, &none, &unconfined, false),
        ] {
            let mut pod = pod(annotation, own.clone(), whole.clone());
            assert_eq!(warnings(&pod).len(), usize::from(warned), "{annotation} {own} {whole}");
            annotations_to_fields(&mut pod);
            let found = &pod["spec"]["containers"][0]["securityContext"][FIELD];
            assert_eq!(found, wanted, "{annotation} {own} {whole}");
            assert_eq!(pod["spec"]["containers"][1], json!({"name": "d"}));
        }
    }

    #[test]
    fn pods_of_windows_have_no_profiles() {
        let mut pod = pod("unconfined", Value::Null, Value::Null);
        pod["spec"]["os"] = json!({"name": "windows"});
        let before = pod.clone();
        annotations_to_fields(&mut pod);
        assert_eq!((pod, warnings(&before)), (before, Vec::new()));
    }
}
