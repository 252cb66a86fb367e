//! The caches that the proxy reads.

use apiserver_client::cache::Selection;
use apiserver_client::{Cache, Informers};
use k8s_openapi::api::core::v1::Node;

use crate::compile::{ServiceProjection, Slice};
use crate::exempt::Exemptions;
use crate::host_ports::HostPod;
use crate::masquerade::Rules;
use crate::policy::PolicyObjects;
use crate::service_ranges::ServiceRanges;

/// The caches of Services, EndpointSlices and the own Node, and three facts that are looked up separately.
#[derive(Clone)]
pub struct Caches {
    pub services: Cache<ServiceProjection>,
    pub slices: Cache<Slice>,
    /// The own Node only.
    pub nodes: Cache<Node>,
    /// The node's own pods, if their host ports are served or their bandwidth is limited.
    pub pods: Option<Cache<HostPod>>,
    /// The ranges of services' addresses, used if the configuration names none.
    pub service_ranges: ServiceRanges,
    /// Pods whose sockets are left alone.
    pub exempt: Exemptions,
    /// The ConfigMap of ip-masq-agent.
    pub agent: Rules,
    /// The objects of network policies, if this proxy enforces them.
    pub policies: Option<PolicyObjects>,
}

impl Caches {
    /// Returns the caches of a process, shared with other users of the same kinds.
    pub fn of(informers: &Informers, node_name: &str, pods: bool) -> Self {
        let own = Selection { fields: format!("metadata.name={node_name}"), ..Selection::default() };
        let here = Selection { fields: format!("spec.nodeName={node_name}"), ..Selection::default() };
        Self {
            services: informers.cache(),
            slices: informers.cache(),
            nodes: informers.select(own),
            pods: pods.then(|| informers.select(here)),
            service_ranges: ServiceRanges::default(),
            exempt: Exemptions::default(),
            agent: Rules::default(),
            policies: None,
        }
    }

    /// Waits for the first whole list of each.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.nodes.synced().await;
        if let Some(pods) = &self.pods {
            pods.synced().await;
        }
    }
}
