//! Stage `default`: the fields that a client may leave out. The defaults of a kind are the hook `default` of its
//! behaviour.

use apiserver_cache::encoding;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use super::Write;

/// Fills in defaults, and refuses an object that has become too large by them.
pub(super) fn fill_in(write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    encoding::fill_in(write.resource, object, write.now())?;
    meta::drop_empty(object);
    if write.current.is_none() {
        encoding::normalize_as(write.resource, object);
    }
    Ok(())
}
