//! LimitRanger: the defaults and bounds that the LimitRanges of a namespace set for containers, pods and claims.

mod bounds;
mod defaults;

use std::sync::Arc;

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::Value;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// Applies the LimitRanges of a namespace.
pub struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        // Containers of a pod change by the subresource alone, and objects that are being deleted may stay as they are.
        let is_deleted = request.old.is_some_and(|old| meta::deletion_timestamp(old).is_some());
        let of_pod = request.resource.is("", "Pod")
            && match request.operation {
                Operation::Create => request.subresource.is_empty(),
                Operation::Update => request.subresource == "resize",
                Operation::Delete => false,
            };
        let of_claim = request.resource.is("", "PersistentVolumeClaim")
            && request.operation != Operation::Delete
            && request.subresource.is_empty()
            && phase == Phase::Validate;
        (of_pod || of_claim) && !is_deleted
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        for range in ranges(request, object)? {
            defaults::set(object, &range);
        }
        Ok(())
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        for range in ranges(request, object)? {
            let broken = if request.resource.is("", "Pod") {
                bounds::broken_by_pod(object, &range)
            } else {
                bounds::broken_by_claim(object, &range)
            };
            if let Some(why) = shown(broken) {
                return Err(request.forbidden(object, &why));
            }
        }
        Ok(())
    }
}

/// Returns the LimitRanges of the object's namespace, by name.
fn ranges(request: &AdmissionRequest<'_>, object: &Value) -> Result<Vec<Value>, ApiError> {
    let Some(kind) = request.cluster.kind("", "v1", "limitranges") else { return Ok(Vec::new()) };
    let snapshot = request.cluster.cache(kind)?.snapshot();
    let prefix: Arc<str> = format!("{}/", request.namespace(object)).into();
    let entries = snapshot.objects.range(Arc::clone(&prefix)..);
    Ok(entries.take_while(|(key, _)| key.starts_with(&*prefix)).map(|(_, entry)| entry.value(None)).collect())
}

/// Returns several reasons as one text, as Kubernetes joins errors: each once, in brackets if there are several.
fn shown(reasons: Vec<String>) -> Option<String> {
    let mut once: Vec<String> = Vec::new();
    for reason in reasons {
        if !once.contains(&reason) {
            once.push(reason);
        }
    }
    match once.len() {
        0 => None,
        1 => once.pop(),
        _ => Some(format!("[{}]", once.join(", "))),
    }
}

/// Returns the limits of a LimitRange for a type of objects.
fn limits_of<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    meta::list(range, "/spec/limits").iter().filter(move |limit| limit["type"] == kind)
}
