//! Admission of a request's writes: this server as the plugins of [`apiserver_admission`] see it.

use std::sync::Arc;
use std::time::Duration;

use apiserver_admission::{AdmissionRequest, Cluster, Desks, Operation, Phase, Replaced};
use apiserver_auth::authorizer::Authorizer;
use apiserver_cache::{Cache, encoding};
use apiserver_meta::ambient::Ambient;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::context::Context;
use crate::objects::Outcome;

/// Describes a write of a request to the plugins. `old`: the object before; `None` on create.
pub fn described<'a>(
    context: &'a Context,
    resource: &'a Resource,
    subresource: &'a str,
    operation: Operation,
    old: Option<&'a Value>,
) -> AdmissionRequest<'a> {
    let info = &context.info;
    let place = (info.namespace.as_str(), info.name.as_str());
    AdmissionRequest {
        cluster: context,
        identity: &context.identity,
        resource,
        subresource,
        operation,
        place,
        old,
    }
}

/// Judges an object that is sent to a subresource, and is not stored but carried out: a Binding, an Eviction, a
/// request for a token.
pub async fn order(
    context: &Context,
    resource: &Resource,
    subresource: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let request = described(context, resource, subresource, Operation::Create, None);
    let mut object = object.clone();
    apiserver_admission::admit(&request, &mut object).await?;
    apiserver_admission::validate(&request, &object).await
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

    fn replace<'a>(
        &'a self,
        resource: &'a Resource,
        object: Value,
        expected: i64,
    ) -> BoxFuture<'a, Result<Replaced, ApiError>> {
        let put = self.server.objects().put(resource, object, expected);
        put.map(|outcome| match outcome? {
            Outcome::Done(bytes) | Outcome::Unchanged(bytes) => revision(&bytes).map(Replaced::Done),
            Outcome::Conflict(current) => {
                Ok(Replaced::Conflict(current.map(|stored| (stored.object, stored.revision))))
            }
        })
        .boxed()
    }

    fn quota_desks(&self) -> &Desks {
        self.server.quota_desks()
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

/// Returns the revision of an object as it was written.
fn revision(bytes: &[u8]) -> Result<i64, ApiError> {
    let object = encoding::read(bytes).map_err(|error| ApiError::internal(error.to_string()))?;
    meta::resource_version(&object)
        .parse()
        .map_err(|_| ApiError::internal("the object has no resource version after it was written"))
}
