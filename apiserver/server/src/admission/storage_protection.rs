//! StorageObjectInUseProtection: claims, volumes and classes of attributes get a finalizer, so that none is
//! removed while it is in use. Controllers remove the finalizers again.

use apiserver_meta::finalizers;
use apiserver_registry::Resource;
use apiserver_schema::meta;
use serde_json::{Value, json};

/// Adds the finalizer of the kind to an object that is created without it.
pub fn mutate(resource: &Resource, object: &mut Value) {
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
