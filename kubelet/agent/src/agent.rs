//! State shared by all tasks of one kubelet.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use apiserver_client::{Cache, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use arc_swap::ArcSwap;
use k8s_openapi::{
    api::core::v1::{Node, ObjectReference, Pod, Service},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::Client;
use kubelet_cri::Runtime;
use tokio::sync::{Notify, OnceCell, Semaphore};

use crate::{
    advertised::Advertised, config::Config, machine::Machine, objects::Objects, pod, pod::sysctl::Allowlist,
    restrictions::Restrictions, tracked::TrackedPod,
};

/// An image pull in progress, and its result once it has finished.
pub(crate) type Pull = Arc<OnceCell<Result<String, String>>>;

/// State shared by all tasks of one kubelet.
pub(crate) struct Agent {
    pub config: Config,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub machine: Arc<dyn Machine>,
    pub ambient: Ambient,
    pub recorder: Recorder,
    pub objects: Objects,
    pub services: Cache<Service>,
    /// Cache of this kubelet's own Node object.
    pub nodes: Cache<Node>,
    /// Restrictions of the Node, for the next object of it.
    pub restrictions: Arc<Restrictions>,
    /// Resources that others have added to the Node.
    pub advertised: Arc<Advertised>,
    /// Addresses of the node, primary IP family first.
    pub host_ips: Vec<String>,
    /// Resources of the node that are available to pods.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Kernel parameters that pods may set.
    pub sysctls: Allowlist,
    /// Limits how many sandboxes and containers start at the same time.
    pub starts: Semaphore,
    /// Limits how many exec probes run at the same time.
    pub exec_probes: Semaphore,
    /// Limits how many directories of volumes are removed at the same time.
    pub removals: Semaphore,
    /// Pulls in progress, by image: later requests for the same image wait for the first.
    pub pulls: Mutex<BTreeMap<String, Pull>>,
    /// Pods on this node, by uid.
    pub tracked_pods: Mutex<BTreeMap<String, Arc<TrackedPod>>>,
    /// Triggers an immediate relist of the runtime.
    pub relist: Notify,
    /// Name and version of the runtime, set once it has answered.
    pub version: ArcSwap<kubelet_cri::Version>,
    /// Status that the runtime last reported.
    pub runtime_status: ArcSwap<kubelet_cri::RuntimeStatus>,
    pub metrics: crate::metrics::Metrics,
}

impl Agent {
    pub(crate) fn tracked_pods(&self) -> MutexGuard<'_, BTreeMap<String, Arc<TrackedPod>>> {
        self.tracked_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pod with this name. If several share it, one that is neither gone nor being deleted is
    /// preferred.
    pub(crate) fn tracked_by_name(&self, namespace: &str, name: &str) -> Option<Arc<TrackedPod>> {
        let tracked_pods = self.tracked_pods();
        let of_name = tracked_pods
            .values()
            .filter(|tracked| tracked.place.namespace == namespace && tracked.place.name == name);
        of_name
            .max_by_key(|tracked| {
                let state = tracked.state();
                (!state.gone, state.pod.metadata.deletion_timestamp.is_none())
            })
            .cloned()
    }

    /// Shows the pods to those who have the configuration, for as long as the kubelet runs.
    pub(crate) fn show_pods(self: &Arc<Self>) {
        let running = Arc::downgrade(self);
        let has = move |address| running.upgrade().is_some_and(|agent| agent.has_pod_at(address));
        self.config.own_pods.become_those_of(has);
    }

    /// Returns `true` if `address` is that of a pod that has a ready sandbox on this node.
    pub(crate) fn has_pod_at(&self, address: SocketAddr) -> bool {
        let host_ips = pod::address::read(&self.host_ips);
        // The address of the node may be that of a router in front of it, which is another machine from here.
        if host_ips.contains(&address.ip()) && UdpSocket::bind((address.ip(), 0)).is_err() {
            return false;
        }
        let tracked_pods: Vec<_> = self.tracked_pods().values().cloned().collect();
        tracked_pods.iter().any(|tracked| {
            let state = tracked.state();
            let sandbox = state.runtime.ready_sandbox().filter(|_| !state.gone);
            sandbox.is_some_and(|sandbox| {
                pod::address::is_at(&state.pod, &pod::address::read(&sandbox.ips), &host_ips, address)
            })
        })
    }

    /// Returns why the address of a pod leads to another node, if it does: none of the node's ranges has it any more.
    pub(crate) fn lost_address(&self, tracked: &TrackedPod) -> Option<String> {
        let ranges = self.config.pod_ranges.borrow();
        let state = tracked.state();
        let sandbox = state.runtime.ready_sandbox().filter(|_| !pod::host_network(&state.pod))?;
        let lost = pod::address::outside(&pod::address::read(&sandbox.ips), &ranges)?;
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        Some(format!(
            "The pod's address {lost} is in none of the node's podCIDRs any more, {}",
            ranges.join(", ")
        ))
    }

    /// Returns `true` if a pod on this node has the volume behind one of its claims, also if its object is gone.
    pub(crate) fn has_claimed(&self, volume: &str) -> bool {
        let tracked_pods: Vec<_> = self.tracked_pods().values().cloned().collect();
        tracked_pods.iter().any(|tracked| tracked.state().claimed.contains(volume))
    }

    /// Returns the labels of the Node, including those set by others; `None` before the Node is known.
    pub(crate) fn node_labels(&self) -> Option<BTreeMap<String, String>> {
        let node = self.nodes.get(&ObjectKey::new("", &self.config.node_name))?;
        Some(node.metadata.labels.clone().unwrap_or_default())
    }

    /// Returns the name of the runtime; `containerd` until the runtime has reported it.
    pub(crate) fn runtime_name(&self) -> String {
        let name = self.version.load().name.clone();
        if name.is_empty() { "containerd".to_owned() } else { name }
    }

    /// Records an event about a pod, or about one of its containers.
    pub(crate) fn event(&self, pod: &Pod, container: Option<&str>, reason: &'static str, message: String) {
        let mut about: ObjectReference = apiserver_client::events::reference(pod);
        about.field_path = container.map(|name| match pod::container(pod, name) {
            Some((pod::Role::Init | pod::Role::Sidecar, _)) => format!("spec.initContainers{{{name}}}"),
            _ => format!("spec.containers{{{name}}}"),
        });
        match reason {
            "Pulling" | "Pulled" | "Created" | "Started" | "Killing" | "ResizeStarted"
            | "ResizeCompleted" => self.recorder.normal(about, reason, message),
            // The BackOff of a container that keeps ending is a warning; that of an image pull is not.
            "BackOff" if message.starts_with("Back-off pulling") => {
                self.recorder.normal(about, reason, message);
            }
            _ => self.recorder.warning(about, reason, message),
        }
    }
}
