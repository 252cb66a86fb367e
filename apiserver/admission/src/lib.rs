//! Admission: the plugins that judge and change a write after it was decoded and before it is stored.
//!
//! [`PLUGINS`] lists them in the order in which Kubernetes runs them, except ResourceQuota, which is [`charge`]. A
//! further plugin is a module, a type that implements [`Plugin`], and a line in that list. Plugins see the server as
//! a [`Cluster`], and nothing of the request but what [`AdmissionRequest`] says.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod certificates;
mod default_storage_class;
mod default_toleration_seconds;
mod dns_endpoints;
mod escalation;
mod limit_ranger;
pub mod limits;
mod namespace_lifecycle;
mod node_restriction;
mod priority;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;

use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authorizer::Authorizer;
use apiserver_cache::Cache;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

pub use resource_quota::{Charges, Desks, is_limited, refund};

/// The plugins in the order in which they run, which is that of Kubernetes' `AllOrderedPlugins`. Those that are
/// missing have their places: MutatingAdmissionPolicy and MutatingAdmissionWebhook, ValidatingAdmissionPolicy and
/// ValidatingAdmissionWebhook after all of these. ResourceQuota is last of all, see [`charge`]: what others refuse is
/// not charged. `DnsEndpoints` is of this project.
pub const PLUGINS: [&dyn Plugin; 16] = [
    &namespace_lifecycle::NamespaceLifecycle,
    &limit_ranger::LimitRanger,
    &service_account::ServiceAccount,
    &node_restriction::NodeRestriction,
    &dns_endpoints::DnsEndpoints,
    &taint_nodes_by_condition::TaintNodesByCondition,
    &priority::Priority,
    &default_toleration_seconds::DefaultTolerationSeconds,
    &default_storage_class::DefaultStorageClass,
    &storage_object_in_use_protection::StorageObjectInUseProtection,
    &runtime_class::RuntimeClass,
    &certificates::CertificateApproval,
    &certificates::CertificateSigning,
    &certificates::ClusterTrustBundleAttest,
    &certificates::CertificateSubjectRestriction,
    &escalation::RoleEscalation,
];

/// A plugin of admission.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// The name under which metrics count the plugin: that of Kubernetes, where it is a plugin there too.
    fn name(&self) -> &'static str;

    /// Returns `true` if the plugin has anything to do with the write in this phase.
    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool;

    /// Changes the object or refuses it, before it is validated.
    async fn admit(&self, _request: &AdmissionRequest<'_>, _object: &mut Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Refuses the object or lets it pass, after it was validated.
    async fn validate(&self, _request: &AdmissionRequest<'_>, _object: &Value) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The phases of admission, in their order. A deletion has the second one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Admit,
    Validate,
}

impl Phase {
    /// Returns the phase's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
}

/// The operation that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    /// Returns the operation's name in reviews and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The server as plugins see it, for the request that they judge.
pub trait Cluster: Send + Sync {
    /// Returns a built-in kind; `None` if its API is switched off.
    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<&Resource>;

    /// Returns the watch cache of a kind.
    fn cache(&self, resource: &Resource) -> Result<Arc<Cache>, ApiError>;

    /// Reads an object from the store.
    fn stored<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, ApiError>>;

    /// Reads an object that another one refers to: from the cache where the store is far away, so that one that
    /// has just been deleted may still be found.
    fn referred<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, ApiError>>;

    /// Returns the authorizer, for rights that depend on the object's content.
    fn authorizer(&self) -> &Authorizer;

    /// Returns the clock and the source of randomness.
    fn ambient(&self) -> &Ambient;

    /// Writes an object for the server itself, if the stored one has the revision `expected`.
    fn replace<'a>(
        &'a self,
        resource: &'a Resource,
        object: Value,
        expected: i64,
    ) -> BoxFuture<'a, Result<Replaced, ApiError>>;

    /// Returns the desks at which requests are charged to quotas.
    fn quota_desks(&self) -> &Desks;

    /// Lets other requests have this one's place while it waits.
    fn aside<'a>(&'a self, wait: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Counts how long a plugin took, or all of a phase where `plugin` is `None`.
    fn timed(&self, plugin: Option<&str>, operation: Operation, phase: Phase, refused: bool, took: Duration);
}

/// The result of [`Cluster::replace`].
#[derive(Clone, Debug)]
pub enum Replaced {
    /// The object is written, at this revision.
    Done(i64),
    /// The object has another revision: the present one, if it is there.
    Conflict(Option<(Value, i64)>),
}

/// The write that plugins judge, as an AdmissionReview describes it.
#[derive(Clone, Copy)]
pub struct AdmissionRequest<'a> {
    pub cluster: &'a dyn Cluster,
    pub identity: &'a Identity,
    pub resource: &'a Resource,
    /// `status`, `approval`, `eviction`, …; empty for the object itself.
    pub subresource: &'a str,
    pub operation: Operation,
    /// The namespace and the name of the request's path.
    pub place: (&'a str, &'a str),
    /// The object before; `None` on create.
    pub old: Option<&'a Value>,
}

impl<'a> AdmissionRequest<'a> {
    /// Returns `true` if the write is about an object of this core kind itself.
    fn is(&self, operation: Operation, kind: &str) -> bool {
        self.operation == operation && self.subresource.is_empty() && self.resource.is("", kind)
    }

    /// The name of the object that is written; empty if it is still to be generated. What is sent to a
    /// subresource may not repeat it.
    fn name<'b>(&'b self, object: &'b Value) -> &'b str {
        if self.subresource.is_empty() { meta::name(object) } else { self.place.1 }
    }

    /// The namespace of the object that is written, likewise.
    fn namespace<'b>(&'b self, object: &'b Value) -> &'b str {
        if self.subresource.is_empty() { meta::namespace(object) } else { self.place.0 }
    }

    /// 403.
    fn forbidden(&self, object: &Value, why: &str) -> ApiError {
        let Resource { group, plural, .. } = self.resource;
        ApiError::forbidden(group, plural, shown_name(object, self.name(object)), why)
    }
}

/// Returns the name under which an object is reported that is refused before it has a name.
fn shown_name<'a>(object: &'a Value, name: &'a str) -> &'a str {
    match (name, meta::generate_name(object)) {
        ("", "") => "Unknown",
        ("", base) => base,
        (name, _) => name,
    }
}

/// Has the plugins change the object, or refuse it before it is validated.
///
/// # Errors
/// The refusal of the first plugin that refuses.
pub async fn admit(request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
    let whole = Timer::start(request, None, Phase::Admit);
    let mut result = Ok(());
    for plugin in PLUGINS.iter().filter(|plugin| plugin.handles(request, Phase::Admit)) {
        let one = Timer::start(request, Some(plugin.name()), Phase::Admit);
        result = one.end(plugin.admit(request, object).await);
        if result.is_err() {
            break;
        }
    }
    whole.end(result)
}

/// Has the plugins judge an object that was validated, or the object that is to be deleted.
///
/// # Errors
/// The refusal of the first plugin that refuses.
pub async fn validate(request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
    let whole = Timer::start(request, None, Phase::Validate);
    let mut result = Ok(());
    for plugin in PLUGINS.iter().filter(|plugin| plugin.handles(request, Phase::Validate)) {
        let one = Timer::start(request, Some(plugin.name()), Phase::Validate);
        result = one.end(plugin.validate(request, object).await);
        if result.is_err() {
            break;
        }
    }
    whole.end(result)
}

/// Charges an object that [`is_limited`] to the quotas of its namespace, after the plugins have accepted it and before
/// it is stored. The charges for one that is not stored are to be given back: [`refund`].
///
/// # Errors
/// 403 if a quota has no room.
pub async fn charge(
    request: &AdmissionRequest<'_>,
    object: &Value,
    dry_run: bool,
) -> Result<Charges, ApiError> {
    let timer = Timer::start(request, Some(resource_quota::NAME), Phase::Validate);
    let result = resource_quota::charge(request, object, dry_run).await;
    let refused = result.as_ref().err().cloned().map_or(Ok(()), Err);
    timer.end(refused)?;
    result
}

/// Measures one plugin, or one phase.
struct Timer<'a> {
    request: &'a AdmissionRequest<'a>,
    plugin: Option<&'static str>,
    phase: Phase,
    began: Instant,
}

impl<'a> Timer<'a> {
    fn start(request: &'a AdmissionRequest<'a>, plugin: Option<&'static str>, phase: Phase) -> Self {
        Self { request, plugin, phase, began: Instant::now() }
    }

    fn end(self, result: Result<(), ApiError>) -> Result<(), ApiError> {
        let Self { request, plugin, phase, began } = self;
        request.cluster.timed(plugin, request.operation, phase, result.is_err(), began.elapsed());
        result
    }
}
