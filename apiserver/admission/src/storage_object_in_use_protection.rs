//! StorageObjectInUseProtection: claims, volumes and classes of attributes get a finalizer, so that none is
//! removed while it is in use. Controllers remove the finalizers again.

use apiserver_meta::finalizers;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// Keeps storage objects from being removed while they are in use.
pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Admit && request.operation == Operation::Create && request.subresource.is_empty()
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        mutate(request.resource, object);
        Ok(())
    }
}

/// Adds the finalizer of the kind to an object that is created without it.
fn mutate(resource: &Resource, object: &mut Value) {
    let Some(finalizer) = finalizers::finalizer(&resource.group, &resource.plural) else { return };
    let metadata = meta::metadata_mut(object);
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if finalizers.is_null() {
        *finalizers = json!([]);
    }
    if let Value::Array(finalizers) = finalizers
        && !finalizers.iter().any(|present| present == finalizer)
    {
        finalizers.push(finalizer.into());
    }
}
