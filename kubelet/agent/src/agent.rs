//! What all tasks of one kubelet share.

use std::{
    collections::BTreeMap,
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
    config::Config, machine::Machine, objects::Objects, pod, pod::sysctl::Allowlist, tracked::TrackedPod,
};

/// A pull under way, and how it ended.
pub(crate) type Pull = Arc<OnceCell<Result<String, String>>>;

/// What all tasks of one kubelet share.
pub(crate) struct Agent {
    pub config: Config,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub machine: Arc<dyn Machine>,
    pub ambient: Ambient,
    pub recorder: Recorder,
    pub objects: Objects,
    pub services: Cache<Service>,
    /// This kubelet's own Node, once it is there.
    pub nodes: Cache<Node>,
    /// Addresses of the node, the first family first.
    pub host_ips: Vec<String>,
    /// What pods may use of the node.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Kernel parameters that pods may set.
    pub sysctls: Allowlist,
    /// Sandboxes and containers that start at the same time.
    pub starts: Semaphore,
    /// Exec probes that run at the same time.
    pub exec_probes: Semaphore,
    /// Pulls under way, by image: whoever comes second waits for the first.
    pub pulls: Mutex<BTreeMap<String, Pull>>,
    /// By uid.
    pub tracked_pods: Mutex<BTreeMap<String, Arc<TrackedPod>>>,
    /// Asks for a list of the runtime at once.
    pub relist: Notify,
    /// Name of the runtime once it has answered.
    pub version: ArcSwap<kubelet_cri::Version>,
    /// What the runtime said last of itself.
    pub runtime_status: ArcSwap<kubelet_cri::RuntimeStatus>,
    pub metrics: crate::metrics::Metrics,
}

impl Agent {
    pub(crate) fn tracked_pods(&self) -> MutexGuard<'_, BTreeMap<String, Arc<TrackedPod>>> {
        self.tracked_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod of a name that is served, the youngest if there are several.
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

    /// Labels of the Node, also those that others have set; `None` before it is known.
    pub(crate) fn node_labels(&self) -> Option<BTreeMap<String, String>> {
        let node = self.nodes.get(&ObjectKey::new("", &self.config.node_name))?;
        Some(node.metadata.labels.clone().unwrap_or_default())
    }

    /// `containerd`, also before the runtime has said so.
    pub(crate) fn runtime_name(&self) -> String {
        let name = self.version.load().name.clone();
        if name.is_empty() { "containerd".to_owned() } else { name }
    }

    /// An event about a pod, or about one of its containers.
    pub(crate) fn event(&self, pod: &Pod, container: Option<&str>, reason: &'static str, message: String) {
        let mut about: ObjectReference = apiserver_client::events::reference(pod);
        about.field_path = container.map(|name| match pod::container(pod, name) {
            Some((pod::Role::Init | pod::Role::Sidecar, _)) => format!("spec.initContainers{{{name}}}"),
            _ => format!("spec.containers{{{name}}}"),
        });
        match reason {
            "Pulling" | "Pulled" | "Created" | "Started" | "Killing" | "ResizeStarted"
            | "ResizeCompleted" => self.recorder.normal(about, reason, message),
            // The BackOff of a container that ends again and again is a warning.
            "BackOff" if message.starts_with("Back-off pulling") => {
                self.recorder.normal(about, reason, message);
            }
            _ => self.recorder.warning(about, reason, message),
        }
    }
}
