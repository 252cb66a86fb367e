//! Admission of a request's writes: this server as the plugins of [`apiserver_admission`] see it.

use std::sync::Arc;
use std::time::Duration;

use apiserver_admission::{Cluster, Phase, Write};
use apiserver_auth::authorizer::Authorizer;
use apiserver_cache::Cache;
use apiserver_meta::ambient::Ambient;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

pub use apiserver_admission::Operation;

use crate::context::Context;

/// A write of a request.
pub struct Admission<'a> {
    pub context: &'a Context,
    pub resource: &'a Resource,
    /// `status`, `approval`, `eviction`, …; empty for the object itself.
    pub subresource: &'a str,
    pub operation: Operation,
    /// The object before; `None` on create.
    pub old: Option<&'a Value>,
}

impl<'a> Admission<'a> {
    fn write(&self) -> Write<'a> {
        let info = &self.context.info;
        Write {
            cluster: self.context,
            identity: &self.context.identity,
            resource: self.resource,
            subresource: self.subresource,
            operation: self.operation,
            place: (&info.namespace, &info.name),
            old: self.old,
        }
    }
}

/// Runs the plugins that change the object.
pub async fn mutate(admission: &Admission<'_>, object: &mut Value) -> Result<(), ApiError> {
    apiserver_admission::admit(&admission.write(), object).await
}

/// Runs the plugins that only judge.
pub async fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    apiserver_admission::validate(&admission.write(), object).await
}

/// Judges an object that is sent to a subresource, and is not stored but carried out: a Binding, an Eviction, a
/// request for a token.
pub async fn order(
    context: &Context,
    resource: &Resource,
    subresource: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let admission = Admission { context, resource, subresource, operation: Operation::Create, old: None };
    let mut object = object.clone();
    mutate(&admission, &mut object).await?;
    validate(&admission, &object).await
}

impl Cluster for Context {
    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<&Resource> {
        self.server.objects().registry().lookup(group, version, plural).map(|kind| &**kind)
    }

    fn cache(&self, resource: &Resource) -> Result<Arc<Cache>, ApiError> {
        self.server.objects().cache(resource)
    }

    fn stored<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, ApiError>> {
        let read = self.server.objects().fetch(resource, namespace, name);
        read.map(|read| read.map(|stored| stored.map(|stored| stored.object))).boxed()
    }

    fn referred<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, ApiError>> {
        self.server.objects().referred(resource, namespace, name).boxed()
    }

    fn authorizer(&self) -> &Authorizer {
        self.server.access().authorizer()
    }

    fn ambient(&self) -> &Ambient {
        self.server.ambient()
    }

    fn aside<'a>(&'a self, wait: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.place.aside(wait).map(|waited| waited.map_err(ApiError::from)).boxed()
    }

    fn timed(&self, plugin: Option<&str>, operation: Operation, phase: Phase, refused: bool, took: Duration) {
        let metrics = self.server.metrics();
        match plugin {
            None => metrics.admission_step(operation.name(), refused, phase.name(), took),
            Some(name) => metrics.admission_plugin(name, operation.name(), refused, phase.name(), took),
        }
    }
}
