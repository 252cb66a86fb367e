//! `update`: an object in the place of another.

use std::sync::{Mutex, PoisonError};

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::Value;

use super::apply;
use crate::context::Context;
use crate::respond::Answer;
use crate::write;
use crate::write::change::{name_matches, same_uid, versioned};
use crate::write::{Part, Tracking, Update, answer, decode, options};

/// Replaces an object by that of the body.
pub async fn update(context: &Context, resource: &Resource, part: Part, bytes: Bytes) -> Answer {
    options::check_options(context, "UpdateOptions")?;
    let read = || -> Result<Value, ApiError> {
        let mut object = decode::object(context, resource, Bytes::clone(&bytes))?;
        decode::drop_repeated_owners(context, &mut object, false);
        Ok(object)
    };
    let object = read()?;
    name_matches(meta::name(&object), &context.info.name)?;
    // The object is rarely needed twice; a retry decodes it again.
    let decoded = Mutex::new(Some(object));
    let make = |old: &Value| {
        let first = decoded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let object = first.map_or_else(read, Ok)?;
        same_uid(context, resource, old, &object)?;
        versioned(resource, &object)?;
        Ok(object)
    };
    match write::update(context, resource, Update::of(context, part, &make)).await {
        Err(error) if error.code == 404 && part == Part::Main && resource.behaviour.create_on_update => {
            apply::may_create(context)?;
            let mut object = read()?;
            same_uid(context, resource, &Value::Null, &object)?;
            // If nothing exists, no version of it can be meant.
            meta::unset(&mut object, "resourceVersion");
            let created = write::create(context, resource, object, Tracking::Update).await?;
            answer::created(context, resource, created)
        }
        updated => answer::updated(context, resource, updated?),
    }
}
