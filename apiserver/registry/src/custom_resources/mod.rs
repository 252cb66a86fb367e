//! The kinds that a CustomResourceDefinition adds to the registry, and the schemas and operations that OpenAPI
//! publishes of them.

mod openapi;
mod published;

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_schema::meta;
use serde_json::Value;

pub use self::openapi::{Dialect, operations};
pub use self::published::schemas;
use crate::behaviour::{Behaviour, Dependents, Subresource, Verb};
use crate::definition::{Custom, Definition, columns};
use crate::resource::Resource;

impl Definition {
    /// The kinds that are served, the preferred version first; none before the definition is established.
    pub fn resources(self: &Arc<Self>) -> Vec<Resource> {
        self.served().into_iter().map(|custom| resource(&Arc::new(custom))).collect()
    }

    /// The kind in the version that is stored, served or not.
    pub fn stored(self: &Arc<Self>) -> Option<Resource> {
        self.stored_version().map(|custom| resource(&Arc::new(custom)))
    }
}

fn resource(custom: &Arc<Custom>) -> Resource {
    let (definition, rest) = (&custom.definition, custom.rest());
    let (columns, cells) = columns::of(rest);
    let texts = |pointer: &str| -> Vec<String> {
        meta::list(&definition.names, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut verbs = vec![Verb::Delete, Verb::DeleteCollection, Verb::Get, Verb::List];
    if definition.terminating {
        verbs.push(Verb::Watch);
    } else {
        verbs.extend([Verb::Patch, Verb::Create, Verb::Update, Verb::Watch]);
    }
    let selectable = meta::list(rest, "/selectableFields").iter();
    let selectable =
        selectable.filter_map(|f| Some(f["jsonPath"].as_str()?.trim_start_matches('.').to_owned()));
    let reversed: Vec<&str> = definition.group.split('.').rev().collect();
    Resource {
        group: definition.group.clone(),
        version: custom.version().to_owned(),
        plural: definition.plural().to_owned(),
        singular: definition.text("singular").to_owned(),
        kind: definition.kind().to_owned(),
        namespaced: definition.namespaced,
        verbs,
        subresources: subresources(rest),
        short_names: texts("/shortNames"),
        categories: texts("/categories"),
        storage_prefix: definition.storage_prefix(),
        selectable: selectable.collect(),
        columns,
        cells,
        schema: format!("{}.{}.{}", reversed.join("."), custom.version(), definition.kind()),
        behaviour: behaviour(custom),
        custom: Some(Arc::clone(custom)),
        stored: true,
    }
}

fn subresources(rest: &Value) -> Vec<Subresource> {
    let verbs = || vec![Verb::Get, Verb::Patch, Verb::Update];
    let mut list = Vec::new();
    if rest["subresources"]["status"].is_object() {
        list.push(Subresource { name: "status", kind: "", group: "", version: "", verbs: verbs() });
    }
    if rest["subresources"]["scale"].is_object() {
        list.push(Subresource {
            name: "scale",
            kind: "Scale",
            group: "autoscaling",
            version: "v1",
            verbs: verbs(),
        });
    }
    list
}

fn behaviour(custom: &Arc<Custom>) -> Behaviour {
    let status_subresource = custom.rest()["subresources"]["status"].is_object();
    let (defaults, check, change) = (Arc::clone(custom), Arc::clone(custom), Arc::clone(custom));
    Behaviour {
        generation: true,
        counted: None,
        graceful_delete: false,
        returns_deleted: false,
        dependents: Dependents::Deleted,
        delete_warning: None,
        spec_finalizers: false,
        expires: false,
        created_with_status: false,
        optional_name: false,
        allocates_addresses: false,
        errors_name_core_group: false,
        status_subresource,
        shared_labels: None,
        needs_version: true,
        create_on_update: false,
        unowned: &[],
        set_requester: None,
        retain_status: None,
        prepare_status_times: None,
        admin_access: None,
        default: Arc::new(move |object| defaults.schema().apply_defaults(object)),
        prepare_create: Arc::new(move |object: &mut Value| {
            if status_subresource && let Some(map) = object.as_object_mut() {
                map.remove("status");
            }
        }),
        prepare_update: Arc::new(|_: &mut Value, _: &Value| {}),
        prepare_status: Arc::new(|_: &mut Value, _: &Value| {}),
        default_times: None,
        prepare_times: None,
        early_warnings: None,
        validate: Arc::new(move |object| check.validate(object)),
        validate_update: Arc::new(|_: &Value, _: &Value| Vec::new()),
        validate_status: None,
        validate_change: Some(Arc::new(move |new, old, written| change.validate_change(new, old, written))),
        warnings: Some(Arc::new(finalizer_warnings)),
        prepare_delete: None,
    }
}

/// Returns warnings about finalizers without a domain, which may collide with others.
fn finalizer_warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let before: BTreeSet<&str> = old.map(meta::finalizers).unwrap_or_default().into_iter().collect();
    let added = meta::finalizers(new).into_iter().filter(|f| !before.contains(f));
    let bare = added.filter(|f| !f.contains('/') && !STANDARD.contains(f));
    bare.map(|finalizer| {
        let how = if finalizer.contains('.') { " including a path (/)" } else { "" };
        format!(
            "metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name{how} to avoid accidental conflicts with other finalizer writers"
        )
    })
    .collect()
}
