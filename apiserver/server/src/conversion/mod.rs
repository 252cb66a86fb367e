//! Conversion by webhooks of objects in other versions: those that are stored are converted to the version of a
//! request, and those that are written to the stored version.

pub mod shared;
mod turns;
pub mod webhook;

use std::sync::Arc;

use apiserver_apply::{NeedsConversion, Versions};
use apiserver_cache::Caches;
use apiserver_meta::ambient::Ambient;
use apiserver_registry::Resource;
use apiserver_registry::definition::Custom;
use apiserver_schema::error::ApiError;
use apiserver_structural::CustomShape;
use serde_json::Value;

use crate::lookups::Lookups;
use crate::metrics::Metrics;
use crate::streams::Kubelets;

/// The calls of webhooks of a server.
#[derive(Default)]
pub struct Calls {
    turns: turns::Turns,
    shared: shared::Shared,
    /// The host names of webhooks that are being looked up.
    lookups: Arc<Lookups>,
}

/// A server whose webhooks can be called from a task.
pub trait Host: Send + Sync {
    /// Returns what a call needs.
    fn webhook_caller(&self) -> Caller<'_>;
}

/// The parts of a server that a call of a webhook needs.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub calls: &'a Calls,
    /// False if the request has done something already: it then waits for the turn of its call as long as it may take.
    pub refusable: bool,
    /// The Services and their EndpointSlices.
    pub caches: &'a Caches,
    /// The ways to pods; without it they are dialled directly.
    pub kubelets: Option<&'a Kubelets>,
    pub metrics: &'a Metrics,
    /// For the uid of a review.
    pub ambient: &'a Ambient,
}

/// Returns the custom kind, if a webhook converts its objects.
pub fn by_webhook(resource: &Resource) -> Option<&Arc<Custom>> {
    // An empty apiVersion stands for any version other than its own.
    resource.custom.as_ref().filter(|custom| custom.webhook("").is_some())
}

/// One object in the version of `resource`, by its webhook if it has one.
pub async fn convert(caller: Caller<'_>, resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    let Some(custom) = by_webhook(resource) else { return Ok(()) };
    // A call over TLS is a large future, and few writes make one.
    Box::pin(webhook::convert(caller, custom, std::slice::from_mut(object))).await
}

/// One object in the version that is stored.
pub async fn to_stored(caller: Caller<'_>, resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    let Some(stored) = by_webhook(resource).and_then(|custom| custom.stored()) else { return Ok(()) };
    Box::pin(webhook::convert(caller, &stored, std::slice::from_mut(object))).await
}

/// The objects that a webhook converted for one step of managed fields.
#[derive(Default)]
pub struct Conversions(Vec<(NeedsConversion, Value)>);

impl Conversions {
    /// Has the webhook of a kind make a conversion.
    pub async fn fetch(
        &mut self,
        caller: Caller<'_>,
        resource: &Resource,
        needed: NeedsConversion,
    ) -> Result<(), ApiError> {
        let target = by_webhook(resource).and_then(|custom| custom.in_version(&needed.api_version));
        let Some(target) = target else { return Err(ApiError::internal(needed.to_string())) };
        let mut converted = needed.object.clone();
        Box::pin(webhook::convert(caller, &target, std::slice::from_mut(&mut converted))).await?;
        self.0.push((needed, converted));
        Ok(())
    }
}

/// The versions of a kind that a webhook converts.
pub struct Webhooked<'a> {
    pub custom: &'a Custom,
    /// The conversions so far; `None` if the webhook is not to be asked, and no object can be converted.
    pub conversions: Option<&'a Conversions>,
}

impl<'a> Versions<CustomShape<'a>> for Webhooked<'a> {
    fn shape(&self, api_version: &str) -> Option<CustomShape<'a>> {
        Versions::shape(&self.custom, api_version)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
        if object["apiVersion"] == api_version {
            return Ok(Some(object.clone()));
        }
        // A version that is not served any more has no owners.
        let Some(conversions) = self.conversions.filter(|_| self.shape(api_version).is_some()) else {
            return Ok(None);
        };
        let done = |(needed, _): &&(NeedsConversion, Value)| {
            needed.api_version == api_version && needed.object == *object
        };
        match conversions.0.iter().find(done) {
            Some((_, converted)) => Ok(Some(converted.clone())),
            None => Err(NeedsConversion { object: object.clone(), api_version: api_version.to_owned() }),
        }
    }
}
