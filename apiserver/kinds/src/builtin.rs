//! The registry of the built-in kinds: `data/resources.json` lists them with their versions and verbs, and
//! `table.rs` has the entry of each. A kind without an entry gets the defaults.

use std::sync::{Arc, LazyLock};

use apiserver_registry::{
    Behaviour, Cells, Change, ChangeAt, ChangeFrom, CheckChange, CheckFrom, Mark, Registry, Resource,
    Subresource, Verb, Warnings,
};
use apiserver_schema::deleted;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, metadata};
use serde_json::Value;

use crate::conversion::Conversion;
use crate::entries::{Entry, entries};
use crate::kind::Kind;
use crate::table;

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
    let kind = table::kind(&entry.group, &entry.plural);
    let verbs = verbs(&entry.verbs);
    // Reviews and bindings can be created and nothing else; they are not stored.
    let stored = verbs.contains(&Verb::Create) && verbs.contains(&Verb::Get);
    let conversion = Conversion::of(&entry.group, &entry.version, &entry.plural).filter(|c| c.reshapes());
    let prefix = if kind.prefix.is_empty() { entry.plural.as_str() } else { kind.prefix };
    Resource {
        schema: format!("{}.{}.{}", package(&entry.group), entry.version, entry.kind),
        singular: entry.kind.to_lowercase(),
        subresources: entry
            .subresources
            .iter()
            .filter_map(|(name, verbs)| subresource(&entry.plural, name, verbs))
            .collect(),
        short_names: kind.short_names.iter().map(ToString::to_string).collect(),
        categories: kind.category.iter().map(ToString::to_string).collect(),
        storage_prefix: format!("/registry/{prefix}"),
        selectable: kind.selectable.iter().map(ToString::to_string).collect(),
        columns: kind.columns.columns(),
        cells: cells(kind.columns.cells, conversion),
        custom: None,
        behaviour: behaviour(&entry, kind, stored, conversion),
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

/// Returns the hooks of a kind in one of its versions.
fn behaviour(
    entry: &Entry,
    kind: &'static Kind,
    stored: bool,
    conversion: Option<&'static Conversion>,
) -> Behaviour {
    // Kinds that are not stored need no name.
    let validate: fn(&Value) -> Vec<FieldError> = if stored { kind.validate } else { |_| Vec::new() };
    let default = kind.version(&entry.version).and_then(|version| version.default).unwrap_or(kind.default);
    let (prepare_create, prepare_update, prepare_status) = prepared(kind);
    let plain = Behaviour {
        generation: kind.generation,
        counted: kind.counted,
        graceful_delete: kind.graceful_delete,
        returns_deleted: deleted::answers_with_object(&entry.group, &entry.plural),
        status_subresource: entry.subresources.contains_key("status"),
        needs_version: kind.needs_version,
        dependents: kind.dependents,
        delete_warning: kind.delete_warning,
        spec_finalizers: kind.spec_finalizers,
        expires: kind.expires,
        created_with_status: kind.created_with_status,
        optional_name: kind.optional_name,
        allocates_addresses: kind.allocates_addresses,
        errors_name_core_group: kind.errors_name_core_group,
        unowned: kind.unowned,
        set_requester: kind.set_requester,
        retain_status: kind.retain_status,
        prepare_status_times: kind.prepare_status_times.map(|times| -> ChangeAt { Arc::new(times) }),
        admin_access: kind.admin_access,
        shared_labels: kind.shared_labels,
        create_on_update: kind.create_on_update,
        default: Arc::new(default),
        default_times: kind.default_times.map(|times| -> Mark { Arc::new(times) }),
        prepare_create,
        prepare_update,
        prepare_status,
        prepare_times: kind.prepare_times.map(|times| -> ChangeAt { Arc::new(times) }),
        validate: Arc::new(validate),
        validate_update: Arc::new(kind.validate_update),
        validate_status: kind.validate_status.map(status_check),
        validate_change: kind.validate_change.map(|check| -> CheckChange { Arc::new(check) }),
        early_warnings: kind.early_warnings,
        warnings: kind.warnings.map(|warnings| -> Warnings { Arc::new(warnings) }),
        prepare_delete: kind.prepare_delete.map(|prepare| -> Mark { Arc::new(prepare) }),
    };
    match conversion {
        Some(conversion) => converted(plain, conversion),
        None => plain,
    }
}

/// Returns the validation of a status with that of the metadata, which every write has.
fn status_check(status: fn(&Value, &Value) -> Vec<FieldError>) -> CheckFrom {
    Arc::new(move |new, old| {
        let mut errors = Errors::default();
        metadata::common(new, &mut errors);
        errors.extend(status(new, old));
        errors.list()
    })
}

/// Returns the hooks that prepare an object, with the fields dropped whose feature gate is off.
fn prepared(kind: &'static Kind) -> (Change, ChangeFrom, ChangeFrom) {
    let drop_disabled = |new: &mut Value, old: Option<&Value>| {
        if let Some(drop) = kind.drop_disabled {
            drop(new, old);
        }
    };
    (
        Arc::new(move |new| {
            drop_disabled(new, None);
            (kind.prepare_create)(new);
        }),
        Arc::new(move |new, old| {
            drop_disabled(new, Some(old));
            (kind.prepare_update)(new, old);
        }),
        Arc::new(move |new, old| {
            if let Some(drop) = kind.drop_disabled_status {
                drop(new, old);
            }
        }),
    )
}

/// Returns the hooks of `plain` for a version of another shape.
fn converted(plain: Behaviour, conversion: &'static Conversion) -> Behaviour {
    let stored_form = |object: &Value| {
        let mut object = object.clone();
        conversion.to_stored(&mut object);
        object
    };
    let around = move |object: &mut Value, change: &dyn Fn(&mut Value)| {
        conversion.to_stored(object);
        change(object);
        conversion.from_stored(object);
    };
    let Behaviour { default, prepare_create, prepare_update, validate, validate_update, .. } = plain.clone();
    let (status, change) = (plain.validate_status.clone(), plain.validate_change.clone());
    let (prepare_status, times) = (plain.prepare_status.clone(), plain.default_times.clone());
    let changed_times = plain.prepare_times.clone();
    Behaviour {
        default: Arc::new(move |object| around(object, &*default)),
        prepare_create: Arc::new(move |object| around(object, &*prepare_create)),
        prepare_update: Arc::new(move |new, old| {
            let old = stored_form(old);
            around(new, &|new| prepare_update(new, &old));
        }),
        prepare_status: Arc::new(move |new, old| {
            let old = stored_form(old);
            around(new, &|new| prepare_status(new, &old));
        }),
        default_times: times.map(|times| -> Mark {
            Arc::new(move |object, now| around(object, &|object| times(object, now)))
        }),
        prepare_times: changed_times.map(|times| -> ChangeAt {
            Arc::new(move |new, old, now| {
                let old = stored_form(old);
                around(new, &|new| times(new, &old, now));
            })
        }),
        validate: Arc::new(move |object| validate(&stored_form(object))),
        validate_update: Arc::new(move |new, old| validate_update(&stored_form(new), &stored_form(old))),
        validate_status: status.map(|check| -> CheckFrom {
            Arc::new(move |new, old| check(&stored_form(new), &stored_form(old)))
        }),
        validate_change: change.map(|check| -> CheckChange {
            Arc::new(move |new, old, part| check(&stored_form(new), &stored_form(old), part))
        }),
        warnings: plain.warnings.clone().map(|warnings| -> Warnings {
            Arc::new(move |new, old| warnings(&stored_form(new), old.map(stored_form).as_ref()))
        }),
        ..plain
    }
}

fn cells(plain: fn(&Value, jiff::Timestamp) -> Vec<Value>, conversion: Option<&'static Conversion>) -> Cells {
    match conversion {
        Some(conversion) => Arc::new(move |object, now| {
            let mut object = object.clone();
            conversion.to_stored(&mut object);
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

#[cfg(test)]
mod default_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod metadata_tests;
#[cfg(test)]
mod openapi_tests;
#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod selector_tests;
#[cfg(test)]
mod status_tests;
#[cfg(test)]
mod tests;
