//! `patch`: JSON patch, merge patch, strategic merge patch. Those that apply are in `apply`.

use std::borrow::Cow;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::quoted::quoted;
use apiserver_schema::schema::{self, go_kind};
use bytes::Bytes;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Map, Value};

use super::apply;
use crate::body;
use crate::context::Context;
use crate::limits;
use crate::negotiate;
use crate::respond::Answer;
use crate::write;
use crate::write::change::{name_matches, versioned};
use crate::write::decode::{FieldValidation, Patched};
use crate::write::{Part, Update, answer, decode, options};

/// A patch that has been read.
pub enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

/// Changes an object by the patch in the body.
pub async fn patch(context: &Context, resource: &Resource, part: Part, bytes: Bytes) -> Answer {
    let media = negotiate::patch_type(&context.headers);
    options::check_patch_options(context, media == negotiate::APPLY)?;
    if media == negotiate::APPLY {
        return apply::apply(context, resource, part, bytes).await;
    }
    check_media(resource, &media)?;
    let validation = FieldValidation::of(context)?;
    let (patch, misplaced) = Patch::read(&media, &bytes, validation != FieldValidation::Ignore)?;
    let make = |old: &Value| {
        let mut new = patch.apply(&resource.schema, old)?;
        let versioned = versioned(resource, &new);
        // A version that the patch did not choose is not a condition of the client.
        if meta::resource_version(&new) == meta::resource_version(old) && !patch.names_version() {
            meta::unset(&mut new, "resourceVersion");
        }
        check(context, resource, old, &mut new, &patch.made(&misplaced))?;
        versioned?;
        Ok(new)
    };
    let patched = write::update(context, resource, Update::of(context, part, &make)).await?;
    answer::updated(context, resource, patched)
}

/// Returns 415 for a media type that is not a patch of this kind.
pub fn check_media(resource: &Resource, media: &str) -> Result<(), ApiError> {
    let custom = resource.custom.is_some();
    if ACCEPTED.contains(&media) && !(custom && media == ACCEPTED[2]) {
        return Ok(());
    }
    // Lists of custom resources have no merge strategy.
    let accepted: Vec<&str> = ACCEPTED
        .into_iter()
        .enumerate()
        .filter(|(i, _)| !custom || *i != 2)
        .map(|(_, media)| media)
        .collect();
    Err(body::unsupported(&accepted))
}

fn check(
    context: &Context,
    resource: &Resource,
    old: &Value,
    new: &mut Value,
    patch: &Patched<'_>,
) -> Result<(), ApiError> {
    decode::patched(context, resource, new, patch)?;
    decode::namespace(context, resource, new)?;
    decode::drop_repeated_owners(context, new, true);
    name_matches(meta::name(new), meta::name(old))
}

const ACCEPTED: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    negotiate::APPLY,
];

impl Patch {
    /// Reads a patch; 415 for media types that are not served, 400 for malformed patches. With `strict` it
    /// also returns the repeated fields of the patch, and those that an operation does not have.
    pub fn read(media: &str, bytes: &[u8], strict: bool) -> Result<(Self, Vec<String>), ApiError> {
        if !ACCEPTED[..3].contains(&media) {
            return Err(body::unsupported(&ACCEPTED));
        }
        let refused = |why: &str| {
            let intro = if strict && media != ACCEPTED[2] { "error decoding patch: " } else { "" };
            ApiError::bad_request(format!("{intro}{why}"))
        };
        let (value, repeats) = match body::noting(bytes) {
            Ok(read) => read,
            Err(_) if !strict && media == ACCEPTED[1] => return Err(ApiError::bad_request(NO_MERGE_PATCH)),
            Err(error) => return Err(refused(&body::misread(bytes, &error))),
        };
        let mut misplaced = if repeats && strict { schema::duplicate_fields(bytes) } else { Vec::new() };
        let wrong =
            |value: &Value| refused(&format!("json: cannot unmarshal {} into Go {MAP}", go_kind(value)));
        let patch = match (media, value) {
            ("application/json-patch+json", value) => {
                if strict {
                    misplaced.extend(unknown_members(&value));
                }
                misplaced.iter_mut().for_each(|text| *text = format!("json patch {text}"));
                Self::Json(operations(value, strict, &refused)?)
            }
            ("application/merge-patch+json", value @ Value::Object(_)) => Self::Merge(value),
            ("application/merge-patch+json", Value::Null) => {
                return Err(ApiError::bad_request(NO_MERGE_PATCH));
            }
            // It replaces the object; the error is found when that is read.
            ("application/merge-patch+json", value @ Value::Array(_)) if !strict => Self::Merge(value),
            ("application/merge-patch+json", _) if !strict => {
                return Err(ApiError::bad_request(NO_MERGE_PATCH));
            }
            (_, value @ Value::Object(_)) => Self::Strategic(value),
            // It changes nothing.
            (_, Value::Null) => Self::Strategic(Value::Object(Map::new())),
            (_, value) => return Err(wrong(&value)),
        };
        Ok((patch, misplaced))
    }

    /// Returns the patched object.
    pub fn apply(&self, schema: &str, old: &Value) -> Result<Value, ApiError> {
        let mut new = old.clone();
        match self {
            Self::Json(patch) => apply_operations(&patch.0, &mut new)?,
            Self::Merge(patch) => json_patch::merge(&mut new, patch),
            Self::Strategic(patch) => schema::strategic_merge(schema, &mut new, patch)?,
        }
        Ok(new)
    }

    /// Returns the facts about the patch that reading its result needs; `misplaced` are the fields that
    /// [`Self::read`] gave.
    pub fn made<'p>(&'p self, misplaced: &'p [String]) -> Patched<'p> {
        let strategic = match self {
            Self::Strategic(patch) => Some(patch),
            Self::Json(_) | Self::Merge(_) => None,
        };
        Patched { strategic, misplaced }
    }

    /// Returns `true` if the patch sets the resource version, which makes it a condition.
    fn names_version(&self) -> bool {
        const VERSION: &str = "/metadata/resourceVersion";
        match self {
            Self::Json(patch) => patch.0.iter().any(|operation| {
                !matches!(operation, PatchOperation::Test(_)) && operation.path().as_str() == VERSION
            }),
            Self::Merge(patch) | Self::Strategic(patch) => patch.pointer(VERSION).is_some(),
        }
    }
}

/// The error for a text that is not a merge patch.
const NO_MERGE_PATCH: &str = "Invalid JSON Patch";
/// The type that a patch must have, as Go prints it.
const MAP: &str = "value of type map[string]interface {}";

/// Returns the unknown members in the operations of a JSON patch.
fn unknown_members(patch: &Value) -> Vec<String> {
    let operations = patch.as_array().into_iter().flatten().enumerate();
    let unknown = |(at, operation): (usize, &Value)| {
        let members = operation.as_object().into_iter().flatten().map(|(name, _)| name);
        let unknown = members.filter(|name| !matches!(name.as_str(), "op" | "path" | "from" | "value"));
        unknown.map(|name| format!("unknown field {}", quoted(&format!("[{at}].{name}")))).collect::<Vec<_>>()
    };
    operations.flat_map(unknown).take(limits::UNKNOWN_MEMBERS).collect()
}

/// Parses the operations of a JSON patch; `refused` gives the words in which a malformed one is refused,
/// which differ without strict reading.
fn operations(
    mut value: Value,
    strict: bool,
    refused: &dyn Fn(&str) -> ApiError,
) -> Result<json_patch::Patch, ApiError> {
    let (list, one) = match strict {
        true => ("[]handlers.jsonPatchOp", "handlers.jsonPatchOp"),
        false => ("jsonpatch.Patch", "jsonpatch.Operation"),
    };
    let wrong = |value: &Value, what: &str| {
        refused(&format!("json: cannot unmarshal {} into Go {what}", go_kind(value)))
    };
    let members = match &value {
        // No operations.
        Value::Null => return Ok(json_patch::Patch(Vec::new())),
        Value::Array(operations) => operations,
        other => return Err(wrong(other, &format!("value of type {list}"))),
    };
    for operation in members {
        let Value::Object(operation) = operation else {
            return Err(wrong(operation, &format!("value of type {one}")));
        };
        for member in ["op", "path", "from"] {
            let value = operation.get(member).filter(|value| !value.is_string() && !value.is_null());
            if let Some(value) = value.filter(|_| strict) {
                return Err(wrong(value, &format!("struct field jsonPatchOp.{member} of type string")));
            }
        }
    }
    if members.len() > limits::PATCH_OPERATIONS {
        return Err(body::too_large(format!(
            "The allowed maximum operations in a JSON patch is {}, got {}",
            limits::PATCH_OPERATIONS,
            members.len()
        )));
    }
    rooted(&mut value);
    // A well-formed text that is not an operation, or lacks a member, is found when it is applied.
    serde_json::from_value(value).map_err(unfit)
}

/// Moves the paths of operations to begin at their first slash, since Kubernetes ignores any text before it.
fn rooted(operations: &mut Value) {
    let operations = operations.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
    for operation in operations {
        for member in ["path", "from"] {
            if let Some(Value::String(place)) = operation.get_mut(member)
                && let Some(slash) = place.find('/')
            {
                place.drain(..slash);
            }
        }
    }
}

/// Returns 422: the patch does not fit the object. Kubernetes does not give the reason.
fn unfit(why: impl std::fmt::Display) -> ApiError {
    tracing::debug!(%why, "a patch does not fit");
    ApiError::unprocessable()
}

/// Items of lists that the operations of one JSON patch may push aside: each that adds or removes at the
/// front of a list moves all that come after. So many are 2 GiB of memory written.
const MOVES: usize = 64 * 1024 * 1024;

/// Returns the number of items after the place in a list at which one is inserted or removed.
fn pushed_aside(object: &Value, path: &str) -> usize {
    let Some((list, place)) = path.rsplit_once('/') else { return 0 };
    let length = object.pointer(list).and_then(Value::as_array).map_or(0, Vec::len);
    place.parse().map_or(0, |place| length.saturating_sub(place))
}

/// A copy of a member that its object does not have adds null, and a replacement of one adds it.
fn on_absent(object: &Value, operation: &PatchOperation) -> Option<PatchOperation> {
    let add =
        |path: &PointerBuf, value| Some(PatchOperation::Add(AddOperation { path: path.clone(), value }));
    match operation {
        PatchOperation::Copy(copy) if is_absent(object, copy.from.as_str()) => add(&copy.path, Value::Null),
        PatchOperation::Replace(replace) if is_absent(object, replace.path.as_str()) => {
            add(&replace.path, replace.value.clone())
        }
        _ => None,
    }
}

/// Returns `true` if the pointer names a member that its parent object lacks.
fn is_absent(object: &Value, place: &str) -> bool {
    let Some((parent, name)) = place.rsplit_once('/') else { return false };
    !name.is_empty()
        && object.pointer(parent).is_some_and(Value::is_object)
        && object.pointer(place).is_none()
}

/// One by one, so that copies of copies are stopped before they fill the memory.
fn apply_operations(operations: &[PatchOperation], object: &mut Value) -> Result<(), ApiError> {
    let (mut copied, mut moved) = (0, 0);
    for operation in operations {
        if let PatchOperation::Copy(copy) = operation {
            let source = object.pointer(copy.from.as_str());
            copied += source.map_or(0, |value| value.to_string().len());
            if copied > limits::PATCH_COPY {
                return Err(unfit(format_args!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {}",
                    limits::PATCH_COPY
                )));
            }
        }
        moved += match operation {
            PatchOperation::Add(add) => pushed_aside(object, add.path.as_str()),
            PatchOperation::Remove(remove) => pushed_aside(object, remove.path.as_str()),
            PatchOperation::Copy(copy) => pushed_aside(object, copy.path.as_str()),
            PatchOperation::Move(go) => {
                pushed_aside(object, go.from.as_str()) + pushed_aside(object, go.path.as_str())
            }
            PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
        };
        if moved > MOVES {
            return Err(unfit(format_args!("the operations move more than {} items", MOVES)));
        }
        // A missing value is null to Kubernetes' tests, and clients rely on it.
        let absent = |test: &json_patch::TestOperation| {
            test.value.is_null() && object.pointer(test.path.as_str()).is_none()
        };
        if matches!(operation, PatchOperation::Test(test) if absent(test)) {
            continue;
        }
        let operation = on_absent(object, operation).map_or(Cow::Borrowed(operation), Cow::Owned);
        json_patch::patch(object, std::slice::from_ref(&*operation)).map_err(unfit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_patch_path_with_text_before_its_first_slash_begins_at_the_slash() {
        let patch = br#"[{"op": "add", "path": "no/name", "value": 1}, {"op": "copy", "from": "a/name", "path": "/b"}]"#;
        let (patch, _) = Patch::read(ACCEPTED[0], patch, true).unwrap();
        let patched = patch.apply("io.k8s.api.core.v1.ConfigMap", &json!({})).unwrap();
        assert_eq!(patched, json!({"name": 1, "b": 1}));
        let without = br#"[{"op": "add", "path": "name", "value": 1}]"#;
        assert!(Patch::read(ACCEPTED[0], without, true).is_err());
    }
}
