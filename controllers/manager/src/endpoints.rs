//! The Endpoints controller. Endpoints are the predecessor of EndpointSlices and are still read by people and
//! charts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, ObjectKey, Recorder};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::endpointslice::follow_pods;
use crate::index::Pods;
use crate::limits::ENDPOINTS_ADDRESSES;
use crate::meta::{is_deleted, name};
use crate::patch;
use crate::pods::{Pod, endpoint_addresses};
use crate::ports::{ResolvedPort, resolve};
use crate::trigger::{Seen, set_trigger_time};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const HEADLESS: &str = "service.kubernetes.io/headless";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("endpoints");
    let services = context.services.cache().clone();
    let pods = context.informers.cache::<Pod>();
    let endpoints = context.informers.cache::<Endpoints>();
    context.feed(tasks, &services, &queue);
    context.feed(tasks, &endpoints, &queue);
    follow_pods(&pods, &context.services, &queue, context.config.slicing.endpoints_pause);
    let controller = Controller {
        client: context.client.clone(),
        recorder: context.recorder.named(CONTROLLER),
        services: services.clone(),
        pods: context.pods.clone(),
        endpoints: endpoints.clone(),
        changes: Mutex::default(),
    };
    context.start(tasks, queue, controller, async move {
        services.synced().await;
        pods.synced().await;
        endpoints.synced().await;
    });
}

struct Controller {
    client: Client,
    recorder: Recorder,
    services: Cache<Service>,
    pods: Pods,
    endpoints: Cache<Endpoints>,
    /// The changes of each Service's pods that are in its Endpoints.
    changes: Mutex<BTreeMap<ObjectKey, Seen>>,
}

impl Reconcile for Controller {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.namespace);
        let existing = self.endpoints.get(key);
        let service = self.services.get(key).filter(|service| !is_deleted(&service.metadata));
        let Some(service) = service else {
            self.lock().remove(key);
            if existing.is_some_and(|existing| is_ours(&existing)) {
                let deleted = api.delete(&key.name, &DeleteParams::default()).await;
                let deleted = deleted.attempt(|| format!("delete endpoints {key}"));
                if !deleted.as_ref().is_err_and(Error::is_not_found) {
                    deleted?;
                }
            }
            return Ok(Outcome::Done);
        };
        let Some(selector) = selector(&service) else { return Ok(Outcome::Done) };
        let pods = self.pods.selected(&key.namespace, selector);
        let trigger = self.lock().entry(key.clone()).or_default().oldest_change(&service, &pods);
        let trigger = trigger.map(|time| time.to_string());
        match existing {
            Some(existing) => {
                let mut new = wanted(&service, &pods, Some(&existing));
                if new == *existing {
                    return Ok(Outcome::Done);
                }
                set_trigger_time(&mut new.metadata, &trigger);
                if let Err(error) = patch::update(&api, existing.as_ref(), &new).await {
                    let message = format!("Failed to update endpoint {key}: {}", error.api_message());
                    self.recorder.warning(reference(&new), "FailedToUpdateEndpoint", message);
                    return Err(error);
                }
            }
            None => {
                let mut new = wanted(&service, &pods, None);
                set_trigger_time(&mut new.metadata, &trigger);
                let created = api.create(&PostParams::default(), &new).await;
                match created.attempt(|| format!("create endpoints {key}")) {
                    Err(error) if !error.is_namespace_terminating() => {
                        let message =
                            format!("Failed to create endpoint for service {key}: {}", error.api_message());
                        self.recorder.warning(reference(&new), "FailedToCreateEndpoint", message);
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
        Ok(Outcome::Done)
    }
}

impl Controller {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Seen>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_ours(endpoints: &Endpoints) -> bool {
    endpoints
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(MANAGED_BY))
        .is_some_and(|by| by == CONTROLLER)
}

fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    spec.selector
        .as_ref()
        .filter(|selector| !selector.is_empty() && spec.type_.as_deref() != Some("ExternalName"))
}

/// Returns the Endpoints object for a Service's pods, based on the existing one.
fn wanted(service: &Service, pods: &[Arc<Pod>], existing: Option<&Endpoints>) -> Endpoints {
    let mut new = existing.cloned().unwrap_or_default();
    new.metadata.name = service.metadata.name.clone();
    new.metadata.namespace = service.metadata.namespace.clone();
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    new.metadata.labels = Some(labels);
    let (subsets, truncated) = subsets(service, pods);
    let annotations = new.metadata.annotations.get_or_insert_default();
    if truncated {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    new.metadata.annotations.take_if(|annotations| annotations.is_empty());
    new.subsets = (!subsets.is_empty()).then_some(subsets);
    new
}

/// Groups addresses by their ports; returns whether there were too many.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let publish = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true);
    let mut ready: BTreeMap<Vec<ResolvedPort>, Vec<EndpointAddress>> = BTreeMap::new();
    let mut unready = ready.clone();
    let mut count = 0;
    // Ready pods first, so that what is left out is less useful.
    let mut pods: Vec<&Arc<Pod>> = pods.iter().filter(|pod| !pod.is_finished()).collect();
    pods.sort_by_key(|pod| !pod.is_ready());
    for pod in pods {
        if is_deleted(&pod.metadata) && !publish {
            continue;
        }
        let ports = resolve(service, pod);
        let has_ports =
            service.spec.as_ref().is_some_and(|spec| spec.ports.iter().flatten().next().is_some());
        let Some(address) = address(service, pod) else { continue };
        if has_ports && ports.is_empty() {
            continue;
        }
        count += 1;
        if count > ENDPOINTS_ADDRESSES {
            return (join(ready, unready), true);
        }
        let list = if publish || pod.is_ready() { &mut ready } else { &mut unready };
        list.entry(ports).or_default().push(address);
    }
    (join(ready, unready), false)
}

fn join(
    mut ready: BTreeMap<Vec<ResolvedPort>, Vec<EndpointAddress>>,
    mut unready: BTreeMap<Vec<ResolvedPort>, Vec<EndpointAddress>>,
) -> Vec<EndpointSubset> {
    let sorted = |addresses: Option<Vec<EndpointAddress>>| {
        let mut addresses = addresses?;
        addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
        Some(addresses)
    };
    let keys: BTreeSet<_> = ready.keys().chain(unready.keys()).cloned().collect();
    keys.into_iter()
        .map(|ports| EndpointSubset {
            addresses: sorted(ready.remove(&ports)),
            not_ready_addresses: sorted(unready.remove(&ports)),
            ports: (!ports.is_empty()).then(|| ports.into_iter().map(to_port).collect()),
        })
        .collect()
}

fn to_port(port: ResolvedPort) -> EndpointPort {
    EndpointPort {
        app_protocol: port.app_protocol,
        name: (!port.name.is_empty()).then_some(port.name),
        port: port.number,
        protocol: Some(port.protocol),
    }
}

/// Returns the pod's address of the Service's first IP family.
fn address(service: &Service, pod: &Pod) -> Option<EndpointAddress> {
    let spec = service.spec.as_ref()?;
    let v6 = match spec.ip_families.as_ref().and_then(|families| families.first()) {
        Some(family) => family == "IPv6",
        None => spec.cluster_ip.as_deref().is_some_and(|address| address.contains(':')),
    };
    let ip = endpoint_addresses(pod).find(|address| address.contains(':') == v6)?.to_owned();
    let hostname = pod.hostname().filter(|hostname| {
        !hostname.is_empty() && pod.spec().subdomain.as_deref() == Some(name(&service.metadata))
    });
    Some(EndpointAddress {
        ip,
        hostname: hostname.map(str::to_owned),
        node_name: Some(pod.node_name().to_owned()).filter(|node| !node.is_empty()),
        target_ref: Some(pod.target_reference()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, meta, running, set_ready, slim, time};
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};

    #[test]
    fn ready_and_unready_addresses_share_a_subset_and_terminating_ones_are_left_out() {
        let service = Service {
            metadata: meta("web"),
            spec: Some(ServiceSpec {
                selector: Some(labels(&[("app", "test")])),
                ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        let mut unready = running("b", "n", "10.0.0.2");
        set_ready(&mut unready, false, 1);
        let mut leaving = running("c", "n", "10.0.0.3");
        leaving.metadata.deletion_timestamp = time(1);
        let pods = slim([running("a", "n", "10.0.0.1"), unready, leaving]);
        let endpoints = wanted(&service, &pods, None);
        let [subset] = endpoints.subsets.as_deref().unwrap() else { panic!("{endpoints:?}") };
        let ips = |list: &Option<Vec<EndpointAddress>>| -> Vec<String> {
            list.iter().flatten().map(|address| address.ip.clone()).collect()
        };
        assert_eq!(ips(&subset.addresses), ["10.0.0.1"]);
        assert_eq!(ips(&subset.not_ready_addresses), ["10.0.0.2"]);
        assert_eq!(subset.ports.as_ref().unwrap()[0].port, 80);
        assert!(is_ours(&endpoints));
        assert_eq!(wanted(&service, &pods, Some(&endpoints)), endpoints);
    }
}
