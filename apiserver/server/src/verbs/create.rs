//! `create`: a new object.

use apiserver_registry::Resource;
use bytes::Bytes;

use crate::context::Context;
use crate::respond::Answer;
use crate::write;
use crate::write::{Tracking, answer, decode, options};

/// Creates the object of the body.
pub async fn create(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    options::check_options(context, "CreateOptions")?;
    let mut object = decode::object(context, resource, bytes)?;
    decode::drop_repeated_owners(context, &mut object, false);
    let created = write::create(context, resource, object, Tracking::Update).await?;
    answer::created(context, resource, created)
}
