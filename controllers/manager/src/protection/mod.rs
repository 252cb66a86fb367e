//! Protection of storage objects in use: three controllers, each of which removes the finalizer that the API
//! server sets on new objects of its kind, once a deleted object is no longer used.

pub(crate) mod attributes;
pub(crate) mod claims;
#[cfg(test)]
mod tests;
pub(crate) mod volumes;

use std::fmt::Debug;

use controllers_runtime::{Outcome, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::meta::is_deleted;
use crate::patch;

/// Next step for the finalizer of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Keep,
    /// Add the finalizer: the object is older than the protection of its kind, or the finalizer was removed.
    Add,
    /// The object is being deleted: remove the finalizer unless the object is in use.
    RemoveIfUnused,
}

fn step(meta: &ObjectMeta, finalizer: &str) -> Step {
    let present = meta.finalizers.iter().flatten().any(|name| name == finalizer);
    match (is_deleted(meta), present) {
        (true, true) => Step::RemoveIfUnused,
        (false, false) => Step::Add,
        _ => Step::Keep,
    }
}

/// Writes the object with or without the finalizer.
async fn set<K>(api: &Api<K>, object: &K, finalizer: &str, present: bool) -> Result<Outcome>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let mut new = object.clone();
    let mut finalizers = new.meta_mut().finalizers.take().unwrap_or_default();
    if present {
        finalizers.push(finalizer.to_owned());
    } else {
        finalizers.retain(|name| name != finalizer);
    }
    new.meta_mut().finalizers = (!finalizers.is_empty()).then_some(finalizers);
    match patch::update(api, object, &new).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(Outcome::Done),
    }
}
