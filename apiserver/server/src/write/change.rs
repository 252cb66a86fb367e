//! Stage `change`: the new object that an update makes of the current one, and the conditions that it sets: its
//! uid and resource version.

use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use apiserver_store::Revision;
use serde_json::Value;

use super::validate::immutable;
use super::{Configuration, Part, Tracking, Write, decode, own};
use crate::context::Context;
use crate::errors;
use crate::list_options;
use crate::objects::Stored;

/// A new object made of the current one.
pub type Make<'a> = &'a (dyn Fn(&Value) -> Result<Value, ApiError> + Sync);

/// A new object made of the current one and of what applying a configuration made of it.
pub type Take<'a> = &'a (dyn Fn(&Value, &Value) -> Result<Value, ApiError> + Sync);

/// The way in which an update makes the new object.
#[derive(Clone, Copy)]
pub enum Change<'a> {
    /// By a function of the current object: a replacement, a patch, a binding.
    Make(Make<'a>),
    /// By server-side apply. `take` is that of a subresource that writes one part of the object.
    Apply { config: &'a Configuration, take: Option<Take<'a>> },
}

/// A change of an existing object.
#[derive(Clone, Copy)]
pub struct Update<'a> {
    /// The name of the object; in the body of some requests, such as `bindings`, and not in the path.
    pub name: &'a str,
    pub part: Part,
    pub tracking: Tracking,
    pub change: Change<'a>,
}

impl<'a> Update<'a> {
    /// Returns the change that `make` makes of the object that the request names.
    pub fn of(context: &'a Context, part: Part, make: Make<'a>) -> Self {
        let (name, tracking) = (context.info.name.as_str(), Tracking::of(context));
        Self { name, part, tracking, change: Change::Make(make) }
    }

    /// Server-side apply of a configuration to the object that the request names.
    pub fn apply(
        context: &'a Context,
        part: Part,
        config: &'a Configuration,
        take: Option<Take<'a>>,
    ) -> Self {
        let (name, tracking) = (context.info.name.as_str(), Tracking::Done);
        Self { name, part, tracking, change: Change::Apply { config, take } }
    }
}

/// Makes the new object.
pub(super) async fn change(
    write: &Write<'_>,
    current: &Stored,
    change: &Change<'_>,
) -> Result<Value, ApiError> {
    let old = &current.object;
    match change {
        Change::Make(make) => make(old),
        Change::Apply { config, take: None } => applied(write, config).await,
        Change::Apply { config, take: Some(take) } => {
            let mut applied = applied(write, config).await?;
            let entries = applied["metadata"]["managedFields"].take();
            let mut new = take(old, &applied)?;
            meta::set(&mut new, "managedFields", entries);
            Ok(new)
        }
    }
}

/// Returns the current object after a configuration was applied to it.
async fn applied(write: &Write<'_>, config: &Configuration) -> Result<Value, ApiError> {
    let (context, resource) = (write.context, write.resource);
    let mut new = own::apply(write, &config.value).await?;
    if meta::resource_version(&config.value).is_empty() {
        // The version is a condition only where the configuration has one.
        meta::unset(&mut new, "resourceVersion");
    }
    decode::applied(context, resource, &mut new, &config.value)?;
    config.check_repeated(context)?;
    check_applied(context, resource, &mut new)?;
    Ok(new)
}

/// Checks that an applied object is what the URL names.
pub fn check_applied(context: &Context, resource: &Resource, new: &mut Value) -> Result<(), ApiError> {
    decode::namespace(context, resource, new)?;
    decode::drop_repeated_owners(context, new, true);
    name_matches(meta::name(new), &context.info.name)
}

/// 400 for an object that has another name than the one asked for, or none.
pub fn name_matches(found: &str, asked: &str) -> Result<(), ApiError> {
    if found.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({asked} based on URL) was undeterminable: name must be provided"
        )));
    }
    if found != asked {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({asked})"
        )));
    }
    Ok(())
}

/// Checks that an object has the uid that the change names. A PUT names the object that it means to replace;
/// a patch would give the object another uid.
pub fn same_uid(context: &Context, resource: &Resource, old: &Value, new: &Value) -> Result<(), ApiError> {
    let (had, has) = (meta::uid(old), meta::uid(new));
    if has.is_empty() || has == had {
        return Ok(());
    }
    let name = meta::name(old);
    if context.info.verb == "patch" {
        return Err(immutable(resource, name, "uid", &has.into()));
    }
    let key = resource.key(meta::namespace(old), name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: {has}, UID in object meta: {had}"
    );
    Err(ApiError::conflict(&resource.group, &resource.plural, name, &why))
}

/// Checks that a change has a resource version, for the kinds that require one.
pub fn versioned(resource: &Resource, new: &Value) -> Result<(), ApiError> {
    if !resource.behaviour.needs_version || !matches!(meta::resource_version(new), "" | "0") {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
    // Here Kubernetes has the resource where the kind is said elsewhere.
    Err(ApiError::invalid(&resource.group, &resource.plural, meta::name(new), &[error]))
}

/// Checks uid and resource version; returns true if the client requires a version of its own.
pub(super) fn is_pinned(write: &Write<'_>, current: &Stored, new: &Value) -> Result<bool, ApiError> {
    same_uid(write.context, write.resource, &current.object, new)?;
    match meta::resource_version(new) {
        "" | "0" => Ok(false),
        version => {
            let version: u64 = version
                .parse()
                .map_err(|error| ApiError::new(500, "", list_options::unread(version, &error)))?;
            if Revision::try_from(version) != Ok(current.revision) {
                return Err(errors::modified(write.resource, meta::name(&current.object)));
            }
            Ok(true)
        }
    }
}
