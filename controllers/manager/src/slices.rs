//! The EndpointSlices that a controller manages: found by their Service, and written.

use std::sync::Arc;

use apiserver_client::{Cache, Index, IndexBy, ObjectKey};
use controllers_runtime::metrics::Measure;
use controllers_runtime::{Attempt, Error, Ledger, Result, WorkQueue};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};

use crate::context::Context;
use crate::meta::{is_deleted, name, namespace, only_this};
use crate::metrics::Metrics;
use crate::patch;

/// Label with the name of a slice's Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label with the controller that manages a slice.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// A request to the API.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    Create(Box<EndpointSlice>),
    Update { old: Arc<EndpointSlice>, new: Box<EndpointSlice> },
    Delete(Arc<EndpointSlice>),
}

/// Index by the managing controller and the Service.
struct ByService;

impl IndexBy<EndpointSlice> for ByService {
    type Value = (String, ObjectKey);

    fn values(slice: &EndpointSlice) -> Vec<(String, ObjectKey)> {
        let label = |key| slice.metadata.labels.as_ref()?.get(key).cloned();
        let service = label(SERVICE_NAME).map(|name| ObjectKey::new(namespace(&slice.metadata), &name));
        label(MANAGED_BY).zip(service).into_iter().collect()
    }
}

/// Returns `true` if the controller with this name manages a slice.
pub(crate) fn is_managed_by(slice: &EndpointSlice, manager: &str) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == manager)
}

/// The slices of one controller.
pub(crate) struct Slices {
    client: Client,
    manager: &'static str,
    cache: Cache<EndpointSlice>,
    index: Index<EndpointSlice, ByService>,
    ledger: Ledger<ObjectKey>,
    metrics: Metrics,
    changes: &'static Measure,
}

impl Slices {
    /// Returns the slices with this `manager`, whose changes from now on add the keys of their Services to `queue`.
    /// Each write is counted by `changes`.
    pub fn new(
        context: &Context,
        manager: &'static str,
        queue: &WorkQueue<ObjectKey>,
        changes: &'static Measure,
    ) -> Self {
        let cache = context.informers.cache::<EndpointSlice>();
        let queue = queue.clone();
        cache.on_change(move |change| {
            let values = ByService::values(change.object()).into_iter();
            values.filter(|(by, _)| by == manager).for_each(|(_, key)| queue.add(key));
        });
        let index = cache.index();
        Self {
            client: context.client.clone(),
            manager,
            cache,
            index,
            ledger: Ledger::default(),
            metrics: context.config.metrics.clone(),
            changes,
        }
    }

    pub fn cache(&self) -> &Cache<EndpointSlice> {
        &self.cache
    }

    /// Returns `true` if the cache shows every slice of the Service as it was written last.
    pub fn are_shown(&self, service: &ObjectKey) -> bool {
        self.ledger.is_shown(service, &self.cache)
    }

    /// Forgets what was written for a Service that is gone.
    pub fn forget(&self, service: &ObjectKey) {
        self.ledger.forget(service);
    }

    /// Returns the slices of a Service, without those that are being deleted.
    pub fn of(&self, service: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.index.get(&(self.manager.to_owned(), service.clone()));
        slices.retain(|slice| !is_deleted(&slice.metadata));
        slices
    }

    /// Carries out all actions for a Service, also if one of them fails; an error comes with the words of Kubernetes
    /// about the first one that did.
    pub async fn execute(
        &self,
        service: &ObjectKey,
        actions: impl IntoIterator<Item = Action>,
    ) -> std::result::Result<(), (String, Error)> {
        let (mut results, mut words) = (Vec::new(), None);
        for action in actions {
            let operation = match &action {
                Action::Create(_) => "create",
                Action::Update { .. } => "update",
                Action::Delete(_) => "delete",
            };
            let object = match &action {
                Action::Create(_) => "EndpointSlice".to_owned(),
                Action::Update { old: slice, .. } | Action::Delete(slice) => {
                    format!("{} EndpointSlice", name(&slice.metadata))
                }
            };
            let result = self.carry_out(service, action).await;
            match &result {
                Ok(()) => self.metrics.count(self.changes, &[operation]),
                Err(error) => drop(words.get_or_insert_with(|| {
                    format!("failed to {operation} {object} for Service {service}: {}", error.api_message())
                })),
            }
            results.push(result);
        }
        Error::collect(results).map_err(|error| (words.unwrap_or_default(), error))
    }

    async fn carry_out(&self, service: &ObjectKey, action: Action) -> Result<()> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &service.namespace);
        match action {
            Action::Create(slice) => {
                let created = api.create(&PostParams::default(), &slice).await;
                match created.attempt(|| format!("create an endpoint slice of service {service}")) {
                    Ok(slice) => self.ledger.wrote(service, &slice),
                    Err(error) if error.is_namespace_terminating() => {}
                    Err(error) => return Err(error),
                }
            }
            Action::Update { old, new } => {
                if let Some(written) = patch::update(&api, old.as_ref(), new.as_ref()).await? {
                    self.ledger.wrote(service, &written);
                }
            }
            Action::Delete(slice) => {
                let options = only_this(&slice.metadata, DeleteParams::default());
                let name = name(&slice.metadata);
                let deleted = api.delete(name, &options).await;
                let deleted = deleted.attempt(|| format!("delete endpoint slice {name}"));
                if !deleted.as_ref().is_err_and(Error::is_not_found) {
                    deleted?;
                }
            }
        }
        Ok(())
    }
}
