//! Addresses for Services of type LoadBalancer, from ranges that the cluster's administrator gives.
//!
//! ```text
//!  Services ─▶ wishes ─┐
//!                      ├─ plan (all Services) ─▶ finalizer ─▶ status: addresses and a condition
//!  --load-balancer-ranges ┘
//! ```
//!
//! The condition [`CONDITION`] marks the addresses as ours: nodes announce those and no others. Users cannot write
//! it, because it is in the status. Services of other classes are left to their controllers.

#[cfg(test)]
mod api_tests;
mod plan;
mod service;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};

use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::meta::uid;
use crate::patch;

use plan::{Assignment, Wish, changed, plan};
use service::{Step, assigned, has_finalizer, released, step, wish, with_finalizer, without_finalizer};

/// The class of Services that are always ours.
pub const CLASS: &str = "hawser.dev/load-balancer";
/// The condition of a Service whose addresses are ours.
const CONDITION: &str = "hawser.dev/AddressAssigned";
/// The finalizer of Services whose load balancer has to be removed.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Starts the controller. Without ranges it only releases what an earlier process assigned.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("service-load-balancer");
    let services = context.informers.cache::<Service>();
    context.feed(tasks, &services, &queue);
    let controller = Balancers {
        client: context.client.clone(),
        recorder: context.recorder.named("service-load-balancer-controller"),
        ambient: context.ambient.clone(),
        config: Arc::clone(&context.config),
        services: services.clone(),
        queue: queue.clone(),
        written: Mutex::default(),
    };
    // A single worker, since two could assign the same address to two Services.
    context.start_with(tasks, queue, controller, 1, async move { services.synced().await });
}

struct Balancers {
    client: Client,
    recorder: Recorder,
    ambient: Ambient,
    config: Arc<Config>,
    services: Cache<Service>,
    queue: WorkQueue<ObjectKey>,
    /// Addresses that were written but may not be in the cache yet, by the Service's UID.
    written: Mutex<BTreeMap<String, Vec<IpAddr>>>,
}

impl Reconcile for Balancers {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(service) = self.services.get(key) else {
            self.wake(&self.plan(), key);
            return Ok(Outcome::Done);
        };
        match step(&service, &self.config) {
            Step::Ignore => Ok(Outcome::Done),
            Step::Release => self.release(&service, key).await,
            Step::Assign if !has_finalizer(&service) => {
                self.write(&service, &with_finalizer(&service)).await?;
                Ok(Outcome::Done)
            }
            Step::Assign => self.assign(&service, key).await,
        }
    }
}

impl Balancers {
    /// Returns the plan of all Services that are ours.
    fn plan(&self) -> Vec<(Wish, Assignment)> {
        let services = self.services.list();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alive = BTreeMap::new();
        let mut wishes = Vec::new();
        for service in services.iter().filter(|service| step(service, &self.config) == Step::Assign) {
            let mut wish = wish(service);
            if let Some(addresses) = written.remove(uid(&service.metadata)) {
                // Once the cache shows what was written, later changes of it count.
                if wish.held != addresses {
                    wish.held.clone_from(&addresses);
                    alive.insert(uid(&service.metadata).to_owned(), addresses);
                }
            }
            wishes.push(wish);
        }
        *written = alive;
        drop(written);
        plan(&self.config.load_balancer_ranges, wishes)
    }

    /// Adds the Services other than `key` whose addresses are not as planned to the queue.
    fn wake(&self, plan: &[(Wish, Assignment)], key: &ObjectKey) {
        changed(plan).into_iter().filter(|other| other != key).for_each(|other| self.queue.add(other));
    }

    async fn assign(&self, service: &Service, key: &ObjectKey) -> Result<Outcome> {
        let plan = self.plan();
        let Some((_, assignment)) = plan.iter().find(|(wish, _)| wish.key == *key) else {
            return Ok(Outcome::Done);
        };
        let new = assigned(service, assignment, self.ambient.now());
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        if patch::update_status(&api, service, &new).await? {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.insert(uid(&service.metadata).to_owned(), assignment.addresses.clone());
            drop(written);
            self.record_assignment(service, assignment);
        }
        self.wake(&plan, key);
        Ok(Outcome::Done)
    }

    fn record_assignment(&self, service: &Service, assignment: &Assignment) {
        let about = reference(service);
        match &assignment.problem {
            Some(problem) => self.recorder.warning(about, "SyncLoadBalancerFailed", problem.to_string()),
            None => {
                let list: Vec<_> = assignment.addresses.iter().map(ToString::to_string).collect();
                let message = format!("Assigned load balancer address {}", list.join(", "));
                self.recorder.normal(about, "EnsuredLoadBalancer", message);
            }
        }
    }

    /// Removes the finalizer, then takes the addresses back: the condition, which goes with them, is what marks the
    /// Service as ours.
    async fn release(&self, service: &Service, key: &ObjectKey) -> Result<Outcome> {
        if has_finalizer(service) {
            // The change brings the Service back if it is not gone then.
            self.write(service, &without_finalizer(service)).await?;
            return Ok(Outcome::Done);
        }
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        if patch::update_status(&api, service, &released(service)).await? {
            let message = "Released the load balancer address";
            self.recorder.normal(reference(service), "DeletedLoadBalancer", message);
        }
        self.wake(&self.plan(), key);
        Ok(Outcome::Done)
    }

    async fn write(&self, old: &Service, new: &Service) -> Result<()> {
        let namespace = old.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        match patch::update(&api, old, new).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
