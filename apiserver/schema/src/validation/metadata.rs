//! `metadata`, for every kind.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Errors;
use super::names::{self, Faults};
use crate::error::{FieldError, FieldReason};
use crate::limits::{ANNOTATIONS_BYTES, CONTROLLERS};
use crate::meta;

/// `metadata` of a kind whose names are RFC 1123 subdomains, as most are.
pub fn subdomain_name(object: &Value) -> Vec<FieldError> {
    of_builtin(object, names::dns_subdomain)
}

/// [`validate`] for a built-in kind, whose finalizers without a domain must be Kubernetes' own.
pub fn of_builtin(object: &Value, grammar: fn(&str) -> Faults) -> Vec<FieldError> {
    let mut errors = Errors::of(validate(object, grammar));
    standard_finalizers(object, &mut errors);
    errors.list()
}

fn standard_finalizers(object: &Value, errors: &mut Errors) {
    for (index, finalizer) in meta::finalizers(object).iter().enumerate() {
        let standard = matches!(*finalizer, "orphan" | "foregroundDeletion" | "kubernetes");
        if !finalizer.contains('/') && !standard {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            let path = format!("metadata.finalizers[{index}]");
            errors.push(FieldError::invalid(path, &json!(finalizer), detail));
        }
    }
}

/// `metadata` of a kind whose names follow `grammar`.
pub fn validate(object: &Value, grammar: fn(&str) -> Faults) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let name = meta::name(object);
    let generate_name = meta::generate_name(object);
    if !generate_name.is_empty() {
        // A dash at the end is what the generated suffix will follow.
        let base = generate_name.trim_end_matches('-');
        let shown = if base.is_empty() { generate_name } else { base };
        let faults = grammar(shown);
        errors.extend(
            faults.iter().map(|f| FieldError::invalid("metadata.generateName", &json!(generate_name), f)),
        );
    }
    if name.is_empty() {
        if generate_name.is_empty() {
            errors.push(FieldError::required("metadata.name", "name or generateName is required"));
        }
    } else {
        let faults = grammar(name);
        errors.extend(faults.iter().map(|f| FieldError::invalid("metadata.name", &json!(name), f)));
    }
    common(object, &mut errors);
    errors.list()
}

/// Validates `metadata` except for the name.
pub fn common(object: &Value, errors: &mut Errors) {
    let namespace = meta::namespace(object);
    if !namespace.is_empty() {
        let faults = names::dns_label(namespace);
        errors.extend(faults.iter().map(|f| FieldError::invalid("metadata.namespace", &json!(namespace), f)));
    }
    errors.not_negative("metadata.generation", meta::at(object, "/metadata/generation"));
    labels(meta::at(object, "/metadata/labels"), "metadata.labels", errors);
    annotations(meta::at(object, "/metadata/annotations"), "metadata.annotations", errors);
    owners(object, errors);
    finalizers(object, errors);
}

/// Names of finalizers, of which two exclude each other. Deletion adds the one that it is asked for
/// and takes the other away.
fn finalizers(object: &Value, errors: &mut Errors) {
    let path = "metadata.finalizers";
    let list = meta::finalizers(object);
    for finalizer in &list {
        let faults = names::qualified_name(finalizer);
        errors.extend(faults.iter().map(|f| FieldError::invalid(path, &json!(finalizer), f)));
    }
    if list.contains(&"orphan") && list.contains(&"foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, &json!(list), detail));
    }
}

/// Keys and values of a map of labels.
pub fn labels(labels: Option<&Value>, path: &str, errors: &mut Errors) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(names::qualified_name(key).iter().map(|f| FieldError::invalid(path, &json!(key), f)));
        let faults = names::label_value(value.as_str().unwrap_or_default());
        errors.extend(faults.iter().map(|f| FieldError::invalid(path, value, f)));
    }
}

/// Keys of a map of annotations, and its size.
pub fn annotations(annotations: Option<&Value>, path: &str, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        // Unlike label keys they may be written in capitals.
        let faults = names::qualified_name(&key.to_lowercase());
        errors.extend(faults.iter().map(|f| FieldError::invalid(path, &json!(key), f)));
    }
    if size > ANNOTATIONS_BYTES {
        errors.push(FieldError {
            field: path.to_owned(),
            reason: FieldReason::TooLong,
            message: format!("Too long: may not be more than {ANNOTATIONS_BYTES} bytes"),
        });
    }
}

fn owners(object: &Value, errors: &mut Errors) {
    let path = "metadata.ownerReferences";
    let (mut controller, mut refused): (Option<&Value>, usize) = (None, 0);
    for owner in meta::owner_references(object) {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let mut refuse = |field: &str, shown: &str, detail: &str| {
            errors.push(FieldError::invalid(format!("{path}.{field}"), &json!(shown), detail));
        };
        let version = text("apiVersion");
        // A text with more than one slash has no version.
        if version.matches('/').count() > 1 || version.rsplit('/').next().is_none_or(str::is_empty) {
            refuse("apiVersion", version, "version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                refuse(field, "", "must not be empty");
            }
        }
        // Events come and go and can own nothing.
        if text("kind") == "Event" && version == "v1" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner, detail));
        }
        if owner["controller"] == true {
            if let Some(first) = controller.filter(|_| refused < CONTROLLERS) {
                refused += 1;
                let name = |o: &Value| {
                    let text = |field: &str| o[field].as_str().unwrap_or_default();
                    format!("{}/{}", text("kind"), text("name"))
                };
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
                    name(first),
                    name(owner)
                );
                let owners: Vec<String> =
                    meta::owner_references(object).iter().map(|owner| in_order(owner, OWNER)).collect();
                errors.invalid_shown(path, &format!("[{}]", owners.join(",")), &detail);
            } else if controller.is_none() {
                controller = Some(owner);
            }
        }
    }
}

/// Fields of metadata, of an owner and of a managed entry, in the order in which Kubernetes shows them.
pub const METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];
const OWNER: &[&str] = &["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
const MANAGED: &[&str] =
    &["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];

/// Metadata as a refusal shows it.
pub fn shown(metadata: &Value) -> String {
    in_order(metadata, METADATA)
}

fn in_order(object: &Value, order: &[&str]) -> String {
    let shown = |field: &&str| {
        let value = object.get(*field).filter(|value| !value.is_null())?;
        let below = match *field {
            "ownerReferences" => OWNER,
            "managedFields" => MANAGED,
            _ => return Some(format!("{field:?}:{value}")),
        };
        let items: Vec<String> = value.as_array()?.iter().map(|item| in_order(item, below)).collect();
        Some(format!("{field:?}:[{}]", items.join(",")))
    };
    format!("{{{}}}", order.iter().filter_map(shown).collect::<Vec<_>>().join(","))
}

/// The number of times that the rules of a built-in kind validate the metadata of an update, besides the two
/// times for all kinds. Each time reports each fault as a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounds {
    /// Times that the metadata is judged as that of a change: all but names and finalizers, and immutable fields.
    changes: usize,
    /// Times that it is judged as that of any object.
    objects: usize,
    /// `true` if finalizers without a domain must be Kubernetes' own.
    standard: bool,
}

impl Rounds {
    fn of(group: &str, plural: &str) -> Self {
        let (changes, objects, standard) = match (group, plural) {
            ("", "events") | ("policy", _) | ("internal.apiserver.k8s.io", _) => (0, 0, false),
            ("", "persistentvolumes") => (0, 2, true),
            ("", "limitranges")
            | ("storage.k8s.io", "csinodes" | "volumeattachments")
            | ("discovery.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => (0, 1, true),
            ("admissionregistration.k8s.io", _) => (0, 1, false),
            ("", "podtemplates" | "replicationcontrollers" | "resourcequotas" | "services")
            | ("apps", "daemonsets" | "deployments" | "replicasets" | "statefulsets")
            | ("networking.k8s.io", "networkpolicies" | "servicecidrs")
            | ("resource.k8s.io", "resourceslices" | "devicetaintrules" | "resourcepoolstatusrequests")
            | ("batch", "cronjobs")
            | ("storage.k8s.io", "csidrivers")
            | ("autoscaling" | "events.k8s.io" | "scheduling.k8s.io", _) => (1, 0, true),
            ("apiextensions.k8s.io" | "coordination.k8s.io", _) => (1, 0, false),
            ("apiregistration.k8s.io" | "node.k8s.io", _) => (1, 1, false),
            _ => (1, 1, true),
        };
        Self { changes, objects, standard }
    }
}

/// Returns the number of times that a change of immutable metadata is reported, for a built-in kind.
pub fn rounds_of_changes(group: &str, plural: &str) -> usize {
    1 + Rounds::of(group, plural).changes
}

/// Errors of the metadata of an update of a built-in kind, as often as Kubernetes finds them, before those that the kind's
/// own rules found, of which `own` are all.
pub fn with_rounds(
    group: &str,
    plural: &str,
    new: &Value,
    old: &Value,
    own: Vec<FieldError>,
) -> Vec<FieldError> {
    let changed = validate_update(new, old);
    let whole = validate(new, |_| Vec::new());
    let mut standard = Errors::default();
    standard_finalizers(new, &mut standard);
    let standard_names = standard.list();
    let of_metadata = |error: &FieldError| error.field.starts_with("metadata.");
    // Every name must be fit for a path; by the kind's rules names are judged only where whole objects are.
    let is_name =
        |error: &FieldError| matches!(error.field.as_str(), "metadata.name" | "metadata.generateName");
    let in_path: Vec<_> = validate(new, names::path_segment).into_iter().filter(is_name).collect();
    if in_path.is_empty()
        && changed.is_empty()
        && whole.is_empty()
        && standard_names.is_empty()
        && !own.iter().any(of_metadata)
    {
        return own;
    }
    let rounds = Rounds::of(group, plural);
    let of_change = |error: &&FieldError| error.field != "metadata.finalizers";
    let change = || changed.iter().chain(whole.iter().filter(of_change)).cloned();
    let standard = || standard_names.iter().filter(|_| rounds.standard).cloned();
    let (mut named, own): (Vec<_>, Vec<_>) = own.into_iter().partition(is_name);
    named.truncate(named.len() * rounds.objects.min(1));
    let mut errors = Errors::default();
    errors.extend(
        in_path.into_iter().chain(whole.iter().filter(|error| !is_name(error)).cloned()).chain(change()),
    );
    for _ in 0..rounds.changes {
        errors.extend(change().chain(standard()));
    }
    for _ in 0..rounds.objects {
        errors.extend(named.iter().chain(&whole).cloned().chain(standard()));
    }
    let counted =
        |error: &FieldError| changed.iter().chain(&whole).chain(&standard_names).any(|known| known == error);
    errors.extend(own.into_iter().filter(|error| !counted(error)));
    errors.list()
}

/// Changes of `metadata` that no kind allows. Arguments: new, old.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    const FIXED: &str = "field is immutable";
    let mut errors = Vec::new();
    for field in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let (now, before) = (&new["metadata"][field], &old["metadata"][field]);
        if now != before {
            errors.push(FieldError::invalid(format!("metadata.{field}"), now, FIXED));
        }
    }
    if meta::deletion_timestamp(old).is_some() {
        let before: BTreeSet<&str> = meta::finalizers(old).into_iter().collect();
        let added: Vec<&str> = meta::finalizers(new).into_iter().filter(|f| !before.contains(f)).collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>().join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &detail));
        }
    }
    if meta::generation(new) < meta::generation(old) {
        let now = &new["metadata"]["generation"];
        errors.push(FieldError::invalid("metadata.generation", now, "must not be decremented"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::with_rounds;

    fn fields(group: &str, plural: &str, new: &Value) -> Vec<String> {
        let old = json!({"metadata": {"name": "a"}});
        let errors = with_rounds(group, plural, new, &old, Vec::new());
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn an_updates_metadata_is_judged_as_often_as_kubernetes_judges_it() {
        let count = |group: &str, plural: &str, metadata: Value| {
            fields(group, plural, &json!({"metadata": metadata})).len()
        };
        let kinds = [
            ("", "configmaps", 4, 2, 2),
            ("", "limitranges", 3, 1, 2),
            ("", "persistentvolumes", 4, 1, 3),
            ("", "events", 2, 1, 1),
            ("apps", "deployments", 3, 2, 1),
            ("policy", "poddisruptionbudgets", 2, 1, 1),
        ];
        for (group, plural, labels, deletion, finalizers) in kinds {
            assert_eq!(
                count(group, plural, json!({"name": "a", "labels": {"a": "b c"}})),
                labels,
                "{plural}"
            );
            let gone = json!({"name": "a", "deletionTimestamp": "2026-01-02T03:04:05Z"});
            assert_eq!(count(group, plural, gone), deletion, "{plural}");
            let finalized =
                fields(group, plural, &json!({"metadata": {"name": "a", "finalizers": ["a b/c"]}}));
            assert_eq!(finalized.len(), finalizers, "{plural}");
        }
    }

    #[test]
    fn any_updates_generated_name_is_fit_for_a_path() {
        let new = json!({"metadata": {"name": "a", "generateName": "a/b"}});
        assert_eq!(fields("apps", "deployments", &new), ["metadata.generateName"]);
    }
}
