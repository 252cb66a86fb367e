//! The built-in kinds: `data/resources.json` lists them, the table here has the properties of each. A kind
//! without a line gets the defaults.

mod table;
mod table_devices;
mod table_extensions;

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::columns;
use crate::conversion::Conversion;
use crate::defaulting;
use crate::disabled;
use crate::validation::status;
use crate::warnings;
use apiserver_registry::definition;
use apiserver_registry::{
    Behaviour, Cells, Change, ChangeAt, ChangeFrom, CheckChange, CheckFrom, Mark, Registry, Resource,
    Subresource, Verb, Warnings,
};
use apiserver_schema::deleted;
use apiserver_schema::error::FieldError;

use crate::entries::{Entry, entries};
use table::Row;

/// The registry of all built-in kinds: those of Kubernetes 1.36, each in every version.
pub fn registry() -> Registry {
    Registry::new(entries().into_iter().map(resource).collect())
}

/// Group, version and plural of every built-in kind in every version.
pub fn paths() -> &'static [(String, String, String)] {
    static PATHS: LazyLock<Vec<(String, String, String)>> =
        LazyLock::new(|| entries().into_iter().map(|e| (e.group, e.version, e.plural)).collect());
    &PATHS
}

fn resource(entry: Entry) -> Resource {
    let row = table::row(&entry.group, &entry.plural);
    let verbs = verbs(&entry.verbs);
    // Reviews and bindings can be created and nothing else; nothing is kept of them.
    let stored = verbs.contains(&Verb::Create) && verbs.contains(&Verb::Get);
    let conversion = Conversion::of(&entry.group, &entry.version, &entry.plural).filter(|c| c.reshapes());
    let layout = columns::layout(&entry.group, &entry.plural);
    let prefix = if row.prefix.is_empty() { entry.plural.as_str() } else { row.prefix };
    Resource {
        schema: format!("{}.{}.{}", package(&entry.group), entry.version, entry.kind),
        singular: entry.kind.to_lowercase(),
        subresources: entry
            .subresources
            .iter()
            .filter_map(|(name, verbs)| subresource(&entry.plural, name, verbs))
            .collect(),
        short_names: row.short_names.iter().map(ToString::to_string).collect(),
        categories: row.category.iter().map(ToString::to_string).collect(),
        storage_prefix: format!("/registry/{prefix}"),
        selectable: row.selectable.iter().map(ToString::to_string).collect(),
        columns: layout.columns(),
        cells: cells(layout.cells, conversion),
        custom: None,
        behaviour: behaviour(&entry, row, stored, conversion),
        group: entry.group,
        version: entry.version,
        plural: entry.plural,
        kind: entry.kind,
        namespaced: entry.namespaced,
        verbs,
        stored,
    }
}

/// Returns the package that defines the types of a group, as OpenAPI names it.
fn package(group: &str) -> String {
    match group {
        "" => "io.k8s.api.core".to_owned(),
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions".to_owned(),
        "apiregistration.k8s.io" => "io.k8s.kube-aggregator.pkg.apis.apiregistration".to_owned(),
        "internal.apiserver.k8s.io" => "io.k8s.api.apiserverinternal".to_owned(),
        group => format!("io.k8s.api.{}", group.split('.').next().unwrap_or_default()),
    }
}

/// The hooks of a row see the version that is kept, whichever is served.
fn behaviour(entry: &Entry, row: &Row, stored: bool, conversion: Option<&'static Conversion>) -> Behaviour {
    let definition = row.group == definition::GROUP;
    let validate: fn(&Value) -> Vec<FieldError> = if stored { row.validate } else { no_errors };
    let (prepare_create, prepare_update, prepare_status) = prepared(entry, row);
    let plain = Behaviour {
        generation: row.generation,
        counted: row.counted,
        graceful_delete: row.graceful_delete,
        returns_deleted: deleted::answers_with_object(&entry.group, &entry.plural),
        status_subresource: entry.subresources.contains_key("status"),
        needs_version: row.needs_version,
        dependents: row.dependents,
        delete_warning: row.delete_warning,
        spec_finalizers: row.spec_finalizers,
        expires: row.expires,
        created_with_status: row.created_with_status,
        optional_name: row.optional_name,
        allocates_addresses: row.allocates_addresses,
        errors_name_core_group: row.errors_name_core_group,
        unowned: row.unowned,
        set_requester: row.set_requester,
        retain_status: row.retain_status,
        prepare_status_times: row.prepare_status_times.map(|times| -> ChangeAt { Arc::new(times) }),
        admin_access: row.admin_access,
        shared_labels: row.shared_labels,
        create_on_update: row.create_on_update,
        default: Arc::new(defaults(entry, row)),
        default_times: row.default_times.map(|times| -> Mark { Arc::new(times) }),
        prepare_create,
        prepare_update,
        prepare_status,
        prepare_times: row.prepare_times.map(|times| -> ChangeAt { Arc::new(times) }),
        // Kinds that are not stored need no name.
        validate: Arc::new(validate),
        validate_update: Arc::new(row.validate_update),
        validate_status: status::check(&entry.group, &entry.plural)
            .map(|check| -> CheckFrom { Arc::new(check) }),
        validate_change: row.validate_change.map(|check| -> CheckChange { Arc::new(check) }),
        early_warnings: warnings::before(&entry.group, &entry.plural),
        warnings: if definition {
            Some(Arc::new(definition::warnings))
        } else {
            warnings::of(&entry.group, &entry.plural).map(|warnings| -> Warnings { Arc::new(warnings) })
        },
        prepare_delete: definition.then(|| -> Mark { Arc::new(definition::prepare_delete) }),
    };
    match conversion {
        Some(conversion) => converted(plain, conversion),
        None => plain,
    }
}

/// The defaults of a kind. They run on the version that is kept, but some versions have defaults of their own.
fn defaults(entry: &Entry, row: &Row) -> fn(&mut Value) {
    match (entry.group.as_str(), entry.version.as_str(), entry.plural.as_str()) {
        (
            "admissionregistration.k8s.io",
            "v1alpha1",
            "mutatingadmissionpolicybindings" | "validatingadmissionpolicybindings",
        ) => defaulting::extensions::alpha_policy_binding,
        ("resource.k8s.io", "v1beta1", "resourceclaims") => defaulting::devices::older_claim,
        ("resource.k8s.io", "v1beta1", "resourceclaimtemplates") => defaulting::devices::older_template,
        _ => row.default,
    }
}

/// The hooks that prepare an object, with the fields dropped whose feature gate is off.
fn prepared(entry: &Entry, row: &Row) -> (Change, ChangeFrom, ChangeFrom) {
    let (create, update) = (row.prepare_create, row.prepare_update);
    let kind = || (entry.group.clone(), entry.plural.clone());
    let (of_create, of_update, of_status) = (kind(), kind(), kind());
    (
        Arc::new(move |new| {
            disabled::drop_fields(&of_create.0, &of_create.1, new, None);
            create(new);
        }),
        Arc::new(move |new, old| {
            disabled::drop_fields(&of_update.0, &of_update.1, new, Some(old));
            update(new, old);
        }),
        Arc::new(move |new, old| disabled::drop_status_fields(&of_status.0, &of_status.1, new, old)),
    )
}

/// The same hooks for a version of another shape.
fn converted(plain: Behaviour, conversion: &'static Conversion) -> Behaviour {
    let kept = |object: &Value| {
        let mut object = object.clone();
        conversion.to_kept(&mut object);
        object
    };
    let around = move |object: &mut Value, change: &dyn Fn(&mut Value)| {
        conversion.to_kept(object);
        change(object);
        conversion.from_kept(object);
    };
    let Behaviour { default, prepare_create, prepare_update, validate, validate_update, .. } = plain.clone();
    let (status, change) = (plain.validate_status.clone(), plain.validate_change.clone());
    let (prepare_status, times) = (plain.prepare_status.clone(), plain.default_times.clone());
    let changed_times = plain.prepare_times.clone();
    Behaviour {
        default: Arc::new(move |object| around(object, &*default)),
        prepare_create: Arc::new(move |object| around(object, &*prepare_create)),
        prepare_update: Arc::new(move |new, old| {
            let old = kept(old);
            around(new, &|new| prepare_update(new, &old));
        }),
        prepare_status: Arc::new(move |new, old| {
            let old = kept(old);
            around(new, &|new| prepare_status(new, &old));
        }),
        default_times: times.map(|times| -> Mark {
            Arc::new(move |object, now| around(object, &|object| times(object, now)))
        }),
        prepare_times: changed_times.map(|times| -> ChangeAt {
            Arc::new(move |new, old, now| {
                let old = kept(old);
                around(new, &|new| times(new, &old, now));
            })
        }),
        validate: Arc::new(move |object| validate(&kept(object))),
        validate_update: Arc::new(move |new, old| validate_update(&kept(new), &kept(old))),
        validate_status: status
            .map(|check| -> CheckFrom { Arc::new(move |new, old| check(&kept(new), &kept(old))) }),
        validate_change: change.map(|check| -> CheckChange {
            Arc::new(move |new, old, part| check(&kept(new), &kept(old), part))
        }),
        warnings: plain.warnings.clone().map(|warnings| -> Warnings {
            Arc::new(move |new, old| warnings(&kept(new), old.map(kept).as_ref()))
        }),
        ..plain
    }
}

fn cells(plain: fn(&Value, jiff::Timestamp) -> Vec<Value>, conversion: Option<&'static Conversion>) -> Cells {
    match conversion {
        Some(conversion) => Arc::new(move |object, now| {
            let mut object = object.clone();
            conversion.to_kept(&mut object);
            plain(&object, now)
        }),
        None => Arc::new(plain),
    }
}

fn verbs(names: &[String]) -> Vec<Verb> {
    let known = |name: &String| match name.as_str() {
        "get" => Some(Verb::Get),
        "list" => Some(Verb::List),
        "watch" => Some(Verb::Watch),
        "create" => Some(Verb::Create),
        "update" => Some(Verb::Update),
        "patch" => Some(Verb::Patch),
        "delete" => Some(Verb::Delete),
        "deletecollection" => Some(Verb::DeleteCollection),
        _ => None,
    };
    names.iter().filter_map(known).collect()
}

/// Subresources of another kind than their parent: name, kind, group, version.
const SUBRESOURCE_KINDS: &[(&str, &str, &str, &str)] = &[
    ("binding", "Binding", "", "v1"),
    ("eviction", "Eviction", "policy", "v1"),
    ("scale", "Scale", "autoscaling", "v1"),
    ("token", "TokenRequest", "authentication.k8s.io", "v1"),
    ("attach", "PodAttachOptions", "", "v1"),
    ("exec", "PodExecOptions", "", "v1"),
    ("portforward", "PodPortForwardOptions", "", "v1"),
];

/// Options of a request that is passed on, by the plural of the resource that it is passed on to.
const PROXY_KINDS: &[(&str, &str)] =
    &[("nodes", "NodeProxyOptions"), ("pods", "PodProxyOptions"), ("services", "ServiceProxyOptions")];

/// Subresources of their parent's own kind.
const OWN_SUBRESOURCES: &[&str] = &["approval", "ephemeralcontainers", "finalize", "log", "resize", "status"];

fn subresource(plural: &str, name: &str, names: &[String]) -> Option<Subresource> {
    if name == "proxy" {
        let (_, kind) = PROXY_KINDS.iter().find(|(parent, _)| *parent == plural)?;
        // Every method is passed on.
        let verbs = vec![Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];
        return Some(Subresource { name: "proxy", kind, group: "", version: "v1", verbs });
    }
    let (name, kind, group, version) = SUBRESOURCE_KINDS
        .iter()
        .copied()
        .find(|row| row.0 == name)
        .or_else(|| OWN_SUBRESOURCES.iter().find(|own| **own == name).map(|own| (*own, "", "", "")))?;
    let verbs =
        if names.iter().any(|n| n == "connect") { vec![Verb::Create, Verb::Get] } else { verbs(names) };
    Some(Subresource { name, kind, group, version, verbs })
}

fn nothing(_: &mut Value) {}

fn nothing_on_update(_: &mut Value, _: &Value) {}

fn no_errors(_: &Value) -> Vec<FieldError> {
    Vec::new()
}

fn no_immutable_fields(_: &Value, _: &Value) -> Vec<FieldError> {
    Vec::new()
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod openapi_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod selector_tests;
#[cfg(test)]
mod tests;
