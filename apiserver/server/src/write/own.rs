//! Stage `own`: managed fields. The writer becomes the owner of the fields that it changed; fields that a kind
//! does not let a request write are in `reset`.

use apiserver_apply::{FieldManager, FieldSet, Incomplete, NeedsConversion, Versions, manager_of_user_agent};
use apiserver_cache::encoding;
use apiserver_cache::stored_version;
use apiserver_registry::definition::Custom;
use apiserver_registry::{Registry, Resource};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::schema::Shape;
use apiserver_schema::schema::shape::{Builtin, Untyped};
use apiserver_structural::CustomShape;
use http::header::USER_AGENT;
use serde_json::{Value, json};

use super::{Write, reset, retain};
use crate::context::Context;
use crate::conversion::{Conversions, Webhooked, by_webhook};

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

/// Returns the manager of a write: `fieldManager`, or the beginning of the user agent. The server's own
/// writes have neither.
pub fn manager(context: &Context) -> String {
    if let Some(manager) = context.query.get("fieldManager") {
        return manager.to_owned();
    }
    if let Some(agent) = context.headers.get(USER_AGENT) {
        return manager_of_user_agent(&String::from_utf8_lossy(agent.as_bytes()));
    }
    if context.internal { "kube-apiserver".to_owned() } else { String::new() }
}

/// Sets the managed fields of `new`, which takes the place of the current object or is created.
pub(super) async fn own(write: &Write<'_>, new: &mut Value) -> Result<(), ApiError> {
    match (write.tracking, write.old()) {
        (Tracking::Update, _) => update(write, new).await?,
        (Tracking::Keep, Some(old)) => retain::retain_metadata(old, new, "managedFields"),
        (Tracking::Keep, None) | (Tracking::Done, _) => {}
    }
    if write.current.is_some() {
        // Owners are determined from the values as they were sent; admission sees the normal form.
        encoding::normalize_as(write.resource, new);
    }
    Ok(())
}

/// Makes the author of the write the owner of the fields in which `new` differs from the current object.
pub async fn update(write: &Write<'_>, new: &mut Value) -> Result<(), ApiError> {
    let (name, reset) = (manager(write.context), reset::fields(write, new));
    finish(write, &reset, &mut Update { live: write.old(), new, name: &name }).await
}

/// Returns the object that applying `config` to the current object makes, with its managed fields.
pub async fn apply(write: &Write<'_>, config: &Value) -> Result<Value, ApiError> {
    let (name, reset) = (manager(write.context), reset::fields(write, config));
    let force = write.context.query.flag("force");
    finish(write, &reset, &mut Apply { live: write.old(), config, name: &name, force }).await
}

/// A step of the field manager, for a kind of any shape.
trait Step {
    type Output;

    fn take<S: Shape>(&mut self, fields: &FieldManager<'_, S>) -> Result<Self::Output, Incomplete>;
}

struct Update<'a> {
    live: Option<&'a Value>,
    new: &'a mut Value,
    name: &'a str,
}

impl Step for Update<'_> {
    type Output = ();

    fn take<S: Shape>(&mut self, fields: &FieldManager<'_, S>) -> Result<(), Incomplete> {
        Ok(fields.update(self.live, self.new, self.name)?)
    }
}

struct Apply<'a> {
    live: Option<&'a Value>,
    config: &'a Value,
    name: &'a str,
    force: bool,
}

impl Step for Apply<'_> {
    type Output = Value;

    fn take<S: Shape>(&mut self, fields: &FieldManager<'_, S>) -> Result<Value, Incomplete> {
        fields.apply(self.live, self.config, self.name, self.force)
    }
}

/// Takes a step to its end. It says which conversion it needs, and is taken again with the object that the
/// webhook made. Each conversion is asked for once, and a step needs a few for each version of the kind.
async fn finish<T: Step>(write: &Write<'_>, reset: &FieldSet, step: &mut T) -> Result<T::Output, ApiError> {
    let mut conversions = Conversions::default();
    loop {
        match take(write, reset, &conversions, step) {
            Ok(done) => return Ok(done),
            Err(Incomplete::Refused(error)) => return Err(error),
            Err(Incomplete::NeedsConversion(needed)) => {
                conversions
                    .fetch(write.context.server.objects().webhook_caller(), write.resource, needed)
                    .await?;
            }
        }
    }
}

fn take<T: Step>(
    write: &Write<'_>,
    reset: &FieldSet,
    conversions: &Conversions,
    step: &mut T,
) -> Result<T::Output, Incomplete> {
    let resource = write.resource;
    if let Some(custom) = &resource.custom {
        let custom: &Custom = custom;
        let shape = CustomShape::of(custom.schema());
        // No webhook is asked about the owners of an object that did not exist: those in other versions go.
        let conversions = write.current.map(|_| conversions);
        let webhooked = Webhooked { custom, conversions };
        let versions: &dyn Versions<_> = if by_webhook(resource).is_some() { &webhooked } else { &custom };
        return with(write, reset, shape, versions, step);
    }
    let served = Served { registry: write.context.server.objects().registry(), resource };
    match Builtin::of(&resource.schema) {
        Some(shape) => with(write, reset, shape, &served, step),
        None => with(write, reset, Untyped, &served, step),
    }
}

/// Takes a step with the field manager of this request.
fn with<S: Shape, T: Step>(
    write: &Write<'_>,
    reset: &FieldSet,
    shape: S,
    versions: &dyn Versions<S>,
    step: &mut T,
) -> Result<T::Output, Incomplete> {
    step.take(&FieldManager {
        versions,
        shape,
        api_version: &write.resource.api_version(),
        kind: &write.resource.kind,
        subresource: &write.context.info.subresource,
        reset,
        now: write.now(),
    })
}

/// A shape that is found by the schema of its kind.
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
    registry: &'a Registry,
    resource: &'a Resource,
}

impl Served<'_> {
    /// Returns the kind in a version, if it is another view of the same stored objects.
    fn find(&self, api_version: &str) -> Option<&Resource> {
        let found = self.registry.by_kind(api_version, &self.resource.kind)?;
        (found.storage_prefix == self.resource.storage_prefix).then_some(&**found)
    }

    /// Returns an object in another version, if both are served.
    fn converted(&self, object: &Value, api_version: &str) -> Option<Value> {
        let from = self.find(meta::text(object, "/apiVersion"))?;
        let to = self.find(api_version)?;
        let mut object = object.clone();
        if from.api_version() == to.api_version() {
            return Some(object);
        }
        if let Some(convert) = stored_version::to_stored(from) {
            convert(&mut object);
        }
        if let Some(convert) = stored_version::from_stored(to) {
            convert(&mut object);
        }
        object["apiVersion"] = json!(api_version);
        Some(object)
    }
}

impl<S: OfKind> Versions<S> for Served<'_> {
    fn shape(&self, api_version: &str) -> Option<S> {
        S::of_kind(self.find(api_version)?)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
        Ok(self.converted(object, api_version))
    }
}
