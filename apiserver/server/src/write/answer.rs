//! Stage `answer`: the stored object, in the form that the client accepts.

use apiserver_registry::Resource;
use bytes::Bytes;

use crate::context::Context;
use crate::object_answer::object_answer;
use crate::respond::Answer;

/// 201 with an object that was created.
pub fn created(context: &Context, resource: &Resource, object: Bytes) -> Answer {
    object_answer(context, resource, 201, object)
}

/// 200 with an object that was changed, or would have been.
pub fn updated(context: &Context, resource: &Resource, object: Bytes) -> Answer {
    object_answer(context, resource, 200, object)
}
