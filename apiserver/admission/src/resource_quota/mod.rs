//! ResourceQuota: what is created or grows is charged to the quotas of its namespace before it is stored.
//!
//! ```text
//!  request ─▶ desk of the namespace: one serves all that wait ─▶ decide (pure) ─▶ status.used: compare and swap
//! ```
//!
//! A quota's `status.used` counts what is stored and what is about to be. No object of the namespace is read: the
//! controller keeps `status.used` true, and never takes away what was charged for an object that may still be stored.
//! A charge for an object that was not stored is given back.

mod decide;
mod desk;

use std::sync::Arc;

use apiserver_cache::Cache;
use apiserver_meta::quota::{self, Object};
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{AdmissionRequest, Operation};
use decide::Request;
pub use desk::{Charges, Desks};

/// The plugin's name in metrics.
pub(crate) const NAME: &str = "ResourceQuota";

/// An object that is counted.
#[derive(Debug)]
enum Counted {
    Pod(Box<Pod>),
    Service(Box<Service>),
    Claim(Box<PersistentVolumeClaim>),
    Other,
}

impl Counted {
    fn object(&self) -> Object<'_> {
        match self {
            Self::Pod(pod) => Object::Pod(pod),
            Self::Service(service) => Object::Service(service),
            Self::Claim(claim) => Object::Claim(claim),
            Self::Other => Object::Other,
        }
    }

    /// Reads what quotas count of an object.
    fn read(kind: &str, object: &Value) -> Result<Self, ApiError> {
        Ok(match kind {
            "pods" => Self::Pod(Box::new(part(object, &["metadata", "spec", "status"])?)),
            "services" => Self::Service(Box::new(part(object, &["metadata", "spec"])?)),
            "persistentvolumeclaims" => Self::Claim(Box::new(part(object, &["metadata", "spec", "status"])?)),
            _ => Self::Other,
        })
    }
}

/// Reads some fields of an object, without its managed fields.
fn part<T: DeserializeOwned>(object: &Value, fields: &[&str]) -> Result<T, ApiError> {
    let mut part = json!({});
    for field in fields {
        part[*field] = object[*field].clone();
    }
    if let Some(metadata) = part["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    serde_json::from_value(part)
        .map_err(|error| ApiError::internal(format!("cannot count the object for quotas: {error}")))
}

/// Returns `true` if an object that is about to be stored may have to be charged: its namespace has quotas, and writes
/// of this sort can use more.
pub fn is_limited(request: &AdmissionRequest<'_>, object: &Value) -> Result<bool, ApiError> {
    let (resource, cluster) = (request.resource, request.cluster);
    if request.operation == Operation::Delete || !resource.namespaced || !resource.stored {
        return Ok(false);
    }
    let kind = quota::kind_name(&resource.group, &resource.plural);
    let is_new = request.operation == Operation::Create;
    if quota::is_ignored(&kind) || !may_use_more(&kind, request.subresource, is_new) {
        return Ok(false);
    }
    let Some(quotas) = cluster.kind("", "v1", "resourcequotas") else { return Ok(false) };
    Ok(has_quotas(cluster.cache(quotas)?.as_ref(), request.namespace(object)))
}

/// Charges an object that is about to be stored to the quotas of its namespace. A dry run charges nothing.
///
/// # Errors
/// 403 for an object that a quota has no room for; the errors of the store.
pub async fn charge(
    request: &AdmissionRequest<'_>,
    object: &Value,
    dry_run: bool,
) -> Result<Charges, ApiError> {
    let (resource, cluster) = (request.resource, request.cluster);
    let Some(quotas) = cluster.kind("", "v1", "resourcequotas") else { return Ok(Charges::default()) };
    let kind = quota::kind_name(&resource.group, &resource.plural);
    let new = Counted::read(&kind, object)?;
    let old = request.old.map(|old| Counted::read(&kind, old)).transpose()?;
    if !is_charged(request.subresource, &new, old.as_ref()) {
        return Ok(Charges::default());
    }
    let is_status = request.subresource == "status";
    let asked = Request { kind, new, old, is_status, now: cluster.ambient().now(), dry_run };
    let desks = cluster.quota_desks();
    let charged = desks.charge(cluster, quotas, request.namespace(object), Arc::new(asked)).await;
    charged.map_err(|refused| match refused {
        desk::Refused::Forbidden(why) => request.forbidden(object, &why),
        desk::Refused::Failed(error) => error,
    })
}

/// Returns `true` if writes of this sort can use more of what quotas limit.
fn may_use_more(kind: &str, subresource: &str, is_new: bool) -> bool {
    match (kind, subresource) {
        ("pods", "resize") | ("persistentvolumeclaims", "status") => !is_new,
        ("pods" | "services" | "persistentvolumeclaims", "") => true,
        (_, "") => is_new,
        _ => false,
    }
}

/// Returns `false` for an update of a pod that does not move it from one scope to another: requests of containers
/// change by the subresource `resize` alone.
fn is_charged(subresource: &str, new: &Counted, old: Option<&Counted>) -> bool {
    match (new, old) {
        (Counted::Pod(new), Some(Counted::Pod(old))) if subresource.is_empty() => {
            quota::is_terminating(new) != quota::is_terminating(old)
        }
        _ => true,
    }
}

fn has_quotas(cache: &Cache, namespace: &str) -> bool {
    let snapshot = cache.snapshot();
    let prefix: Arc<str> = format!("{namespace}/").into();
    let first = snapshot.objects.range(Arc::clone(&prefix)..).next();
    first.is_some_and(|(key, _)| key.starts_with(&*prefix))
}

/// Gives back what was charged for an object that was not stored. A charge that cannot be given back is written off by
/// the controller.
pub async fn refund(cluster: &dyn crate::Cluster, charges: Charges) {
    let quotas: Option<&Resource> = cluster.kind("", "v1", "resourcequotas");
    if let Some(quotas) = quotas {
        cluster.quota_desks().refund(cluster, quotas, charges).await;
    }
}
