//! Managed fields of a request: its manager, the fields that it cannot write, and the versions that a kind is
//! served in.

use apiserver_apply as managed;
use apiserver_apply::{FieldManager, FieldSet, Versions, check_manager_name};
use apiserver_registry::Resource;
use apiserver_registry::definition::Custom;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use apiserver_schema::schema::Shape;
use apiserver_schema::schema::shape::{Builtin, Untyped};
use apiserver_structural::CustomShape;
use http::header::USER_AGENT;
use serde_json::{Value, json};

use super::reset;
use super::update::Part;
use crate::context::Context;
use crate::custom::conversion::{Webhooked, by_webhook};
use crate::server::Server;
use apiserver_cache::convert;

/// The effect of a write on the managed fields of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// The author of the write owns the fields that have changed.
    Update,
    /// The new object has its managed fields already.
    Done,
    /// They stay as they are: the server itself writes.
    Keep,
}

impl Tracking {
    /// Returns the tracking of a change of an existing object: bindings and the like change pods in passing,
    /// without an owner.
    pub fn of(context: &Context) -> Self {
        if matches!(context.info.verb, "update" | "patch") { Self::Update } else { Self::Keep }
    }
}

/// Checks `fieldManager`; `options` is `CreateOptions`, `UpdateOptions` or `PatchOptions`. Errors
/// are 422.
pub fn check_options(context: &Context, options: &str) -> Result<(), ApiError> {
    let manager = context.query.get("fieldManager");
    let mut errors = unsupported_options(context);
    errors.extend(manager.into_iter().flat_map(|name| check_manager_name("fieldManager", name)));
    refuse(options, errors)
}

/// `dryRun` and `fieldValidation` have few values.
fn unsupported_options(context: &Context) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let dry: Vec<&str> = context.query.all("dryRun").collect();
    if dry.iter().any(|value| *value != "All") {
        errors.push(FieldError::not_supported("dryRun", &json!(dry), &["All"]));
    }
    if let Some(value) = context.query.get("fieldValidation")
        && !matches!(value, "Ignore" | "Strict" | "Warn")
    {
        errors.push(FieldError::not_supported(
            "fieldValidation",
            &json!(value),
            &["", "Ignore", "Strict", "Warn"],
        ));
    }
    errors
}

/// Checks the options of a patch; `apply` is true for a server-side apply.
pub fn check_patch_options(context: &Context, apply: bool) -> Result<(), ApiError> {
    let manager = context.query.get("fieldManager");
    let mut errors = unsupported_options(context);
    if apply && manager.is_none() {
        errors.push(FieldError::required("fieldManager", "is required for apply patch"));
    }
    if !apply && context.query.get("force").is_some() {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    errors.extend(manager.into_iter().flat_map(|name| check_manager_name("fieldManager", name)));
    refuse("PatchOptions", errors)
}

fn refuse(options: &str, errors: Vec<FieldError>) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", options, "", &errors)) }
}

/// Returns the manager of a write: `fieldManager`, or the beginning of the user agent. The server's own
/// writes have neither.
fn manager(context: &Context) -> String {
    if let Some(manager) = context.query.get("fieldManager") {
        return manager.to_owned();
    }
    if let Some(agent) = context.headers.get(USER_AGENT) {
        return managed::manager_of_user_agent(&String::from_utf8_lossy(agent.as_bytes()));
    }
    if context.internal { "kube-apiserver".to_owned() } else { String::new() }
}

/// Removes empty fields from the metadata.
pub fn drop_empty(object: &mut Value) {
    meta::drop_empty(object);
}

/// Fills in the managed fields of `new`, which takes the place of `live`, or is created.
pub fn update(context: &Context, resource: &Resource, part: Part, live: Option<&Value>, new: &mut Value) {
    let subresource = context.info.subresource.as_str();
    let (name, reset) = (manager(context), reset::fields(resource, part, subresource, new, live));
    if let Some(custom) = &resource.custom {
        let custom: &Custom = custom;
        let shape = CustomShape::of(custom.schema());
        let webhooked = Webhooked { custom, conversions: context.conversions_lock() };
        let versions: &dyn Versions<_> = if by_webhook(resource).is_some() { &webhooked } else { &custom };
        return run(context, resource, &reset, shape, versions, |f| f.update(live, new, &name));
    }
    match Builtin::of(&resource.schema) {
        Some(shape) => with(context, resource, &reset, shape, |fields| fields.update(live, new, &name)),
        None => with(context, resource, &reset, Untyped, |fields| fields.update(live, new, &name)),
    }
}

/// The object that applying `config` to `live` makes, with its managed fields.
pub fn apply(
    context: &Context,
    resource: &Resource,
    part: Part,
    live: Option<&Value>,
    config: &Value,
) -> Result<Value, ApiError> {
    let subresource = context.info.subresource.as_str();
    let (name, reset) = (manager(context), reset::fields(resource, part, subresource, config, live));
    let force = context.query.flag("force");
    if let Some(custom) = &resource.custom {
        let custom: &Custom = custom;
        let shape = CustomShape::of(custom.schema());
        let webhooked = Webhooked { custom, conversions: context.conversions_lock() };
        let versions: &dyn Versions<_> = if by_webhook(resource).is_some() { &webhooked } else { &custom };
        return run(context, resource, &reset, shape, versions, |f| f.apply(live, config, &name, force));
    }
    match Builtin::of(&resource.schema) {
        Some(shape) => {
            with(context, resource, &reset, shape, |fields| fields.apply(live, config, &name, force))
        }
        None => with(context, resource, &reset, Untyped, |fields| fields.apply(live, config, &name, force)),
    }
}

/// Runs `work` with the field manager of this request.
fn with<S: OfKind, T>(
    context: &Context,
    resource: &Resource,
    reset: &FieldSet,
    shape: S,
    work: impl FnOnce(&FieldManager<'_, S>) -> T,
) -> T {
    run(context, resource, reset, shape, &Served { server: &context.server, resource }, work)
}

fn run<S: Shape, T>(
    context: &Context,
    resource: &Resource,
    reset: &FieldSet,
    shape: S,
    versions: &dyn Versions<S>,
    work: impl FnOnce(&FieldManager<'_, S>) -> T,
) -> T {
    let api_version = resource.api_version();
    work(&FieldManager {
        versions,
        shape,
        api_version: &api_version,
        kind: &resource.kind,
        subresource: &context.info.subresource,
        reset,
        now: context.server.ambient().now(),
    })
}

/// A `Scale` written through the subresource: `new` by an update, `config` by applying it.
pub enum ScaleWrite {
    Update(Value),
    Apply(Value),
}

impl ScaleWrite {
    /// Returns true if the client requires a version of the object.
    pub fn names_version(&self) -> bool {
        let (Self::Update(scale) | Self::Apply(scale)) = self;
        !meta::resource_version(scale).is_empty()
    }
}

/// The `Scale` that a write makes of `live`, with its managed fields.
pub fn scale(context: &Context, schema: &str, live: &Value, write: ScaleWrite) -> Result<Value, ApiError> {
    let shape = Builtin::of(schema).ok_or_else(|| ApiError::internal(format!("no schema of {schema}")))?;
    let fields = FieldManager {
        versions: &ScaleVersion(shape),
        shape,
        api_version: SCALE_VERSION,
        kind: "Scale",
        subresource: "scale",
        reset: &FieldSet::new(),
        now: context.server.ambient().now(),
    };
    match write {
        ScaleWrite::Update(mut new) => {
            fields.update(Some(live), &mut new, &manager(context));
            Ok(new)
        }
        ScaleWrite::Apply(config) => {
            fields.apply(Some(live), &config, &manager(context), context.query.flag("force"))
        }
    }
}

const SCALE_VERSION: &str = "autoscaling/v1";

/// `Scale` is served in one version.
struct ScaleVersion(Builtin);

impl Versions<Builtin> for ScaleVersion {
    fn shape(&self, api_version: &str) -> Option<Builtin> {
        (api_version == SCALE_VERSION).then_some(self.0)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Option<Value> {
        (api_version == SCALE_VERSION).then(|| object.clone())
    }
}

/// Restores the old times if the managed fields are otherwise unchanged, and so is everything else: nothing
/// has happened.
pub fn forget_new_times(old: &Value, new: &mut Value) {
    fn entries(object: &Value) -> &[Value] {
        meta::list(object, "/metadata/managedFields")
    }
    if entries(old) == entries(new) || !managed::same_but_times(entries(old), entries(new)) {
        return;
    }
    let after = entries(new).to_vec();
    meta::set(new, "managedFields", entries(old).to_vec());
    if new != old {
        meta::set(new, "managedFields", after);
    }
}

/// A shape that is found by the kind's schema.
trait OfKind: Shape {
    fn of_kind(resource: &Resource) -> Option<Self>;
}

impl OfKind for Builtin {
    fn of_kind(resource: &Resource) -> Option<Self> {
        Self::of(&resource.schema)
    }
}

impl OfKind for Untyped {
    fn of_kind(_: &Resource) -> Option<Self> {
        Some(Self)
    }
}

/// The versions in which a kind is served.
struct Served<'a> {
    server: &'a Server,
    resource: &'a Resource,
}

impl Served<'_> {
    /// The kind in a version, if it is another view of the same stored objects.
    fn find(&self, api_version: &str) -> Option<&Resource> {
        let found = self.server.registry().by_kind(api_version, &self.resource.kind)?;
        (found.storage_prefix == self.resource.storage_prefix).then_some(&**found)
    }
}

impl<S: OfKind> Versions<S> for Served<'_> {
    fn shape(&self, api_version: &str) -> Option<S> {
        S::of_kind(self.find(api_version)?)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Option<Value> {
        let from = self.find(meta::text(object, "/apiVersion"))?;
        let to = self.find(api_version)?;
        let mut object = object.clone();
        if from.api_version() == to.api_version() {
            return Some(object);
        }
        if let Some(convert) = convert::to_storage(from) {
            convert(&mut object);
        }
        if let Some(convert) = convert::from_storage(to) {
            convert(&mut object);
        }
        object["apiVersion"] = json!(api_version);
        Some(object)
    }
}
