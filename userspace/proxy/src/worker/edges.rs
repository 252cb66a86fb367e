//! The machine's interfaces and addresses, the policies and limits of the pods behind them, and the check that
//! the data path is unchanged.

use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::error_chain;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use userspace_dataplane::tables::{DataPlaneError, Interface, NodeTables};

use super::{Worker, in_place};
use crate::host_ports::HostPod;
use crate::limits;
use crate::links::attachment_log;
use crate::masquerade::Agent;
use crate::node_tables::{NodeInputs, interfaces, node_tables};
use crate::policy;
use crate::retry::Retry;

/// The interfaces and addresses that the data plane was last given.
#[derive(Default)]
pub(super) struct Edges {
    pub interfaces: Option<Vec<Interface>>,
    /// Reasons why packets from outside do not reach the data plane.
    pub missing: Vec<String>,
    pub node: Option<NodeTables>,
    pub retry: Option<Retry>,
}

impl Worker {
    /// Gives the data plane the interfaces and node addresses that it does not know yet.
    pub(super) fn apply_edges(&mut self) {
        self.edges.retry = match self.try_edges() {
            Ok(()) => None,
            Err(error) => {
                self.failed("interfaces and node addresses", &error);
                Some(self.retry_after(self.edges.retry))
            }
        };
    }

    fn try_edges(&mut self) -> Result<(), DataPlaneError> {
        let links = self.links.links.as_deref();
        let node = self.caches.nodes.get(&ObjectKey::new("", &self.config.node_name));
        let service_ranges = self.caches.service_ranges.get();
        let agent = self.caches.agent.get();
        let inputs = NodeInputs {
            config: &self.config,
            node: node.as_deref(),
            links,
            service_ranges: service_ranges.as_deref().unwrap_or_default(),
            agent: &agent,
        };
        // Like services, addresses and ranges are not withdrawn before the first lists.
        let ranges_known = service_ranges.is_some() || !self.config.service_ranges.is_empty();
        if self.synced && ranges_known && agent != Agent::Unknown {
            let mut tables = node_tables(&inputs, self.caches.exempt.get());
            if tables.masquerade.is_none() && !self.config.masquerade.is_empty() {
                // A Node that is gone leaves its pods for a while.
                tables.masquerade = self.edges.node.as_ref().and_then(|last| last.masquerade.clone());
            }
            if self.edges.node.as_ref() != Some(&tables) {
                in_place(|| self.plane.set_node(&tables))?;
                // kube-proxy, too, listens on all addresses by default.
                let all = self.config.nodeport_addresses.all;
                self.health.listen_on((!all).then(|| tables.addresses.clone()));
                self.metrics.exempt.set(i64::try_from(tables.exempt.len()).unwrap_or(i64::MAX));
                let before = self.edges.node.as_ref().map(|before| &before.addresses);
                if before != Some(&tables.addresses) {
                    info!(addresses = ?tables.addresses, "the node's own addresses");
                }
                debug!(?tables, "the node's own settings");
                self.edges.node = Some(tables);
            }
        }
        let Some(interfaces) = interfaces(&inputs) else { return Ok(()) };
        // Before programs are attached to an interface: a new pod is closed until its policies are known.
        let known = links.unwrap_or_default();
        let slices = || self.tracker.slices(&policy::dns_service());
        in_place(|| self.enforcer.apply(&mut *self.plane, known, &interfaces, slices))?;
        // Like services, limits are not withdrawn before the first lists. If there are too many, pods without one
        // are served all the same.
        let mut limited = Ok(());
        if self.synced && self.limiter.is_due(known, &interfaces) {
            let pods = self.limited_pods();
            let pods: Vec<_> = pods.iter().map(|pod| pod.bandwidth()).collect();
            limited = in_place(|| self.limiter.apply(&mut *self.plane, known, &interfaces, &pods));
        }
        let missing = attachment_log::missing(links.unwrap_or_default(), &interfaces, &self.config);
        if missing != self.edges.missing {
            for reason in missing.iter().filter(|reason| !self.edges.missing.contains(*reason)) {
                warn!("packets from outside do not reach the data path: {reason}");
            }
            self.status.unreachable(missing.clone());
            self.edges.missing = missing;
        }
        if self.edges.interfaces.as_ref() != Some(&interfaces) {
            in_place(|| self.plane.set_interfaces(&interfaces))?;
            attachment_log::log_changes(self.edges.interfaces.as_deref(), &interfaces);
            self.edges.interfaces = Some(interfaces);
            // Checked at once, so that the XDP modes of the uplinks are shown.
            self.check_due = self.check_due.map(|_| Instant::now());
        }
        let waiting = policy::waiting(links.unwrap_or_default());
        if !waiting.is_empty() && self.enforcer.is_applied() && self.check_due.is_some() {
            tokio::spawn(policy::mark(waiting));
        }
        limited
    }

    /// Checks that the data path is unchanged.
    pub(super) fn check(&mut self) {
        let result = in_place(|| self.plane.check());
        let faults = match result {
            Ok(checkup) => {
                self.metrics.counters.xdp(checkup.xdp);
                self.metrics.reconciled(&checkup.reconciled);
                for fault in &checkup.faults {
                    warn!(%fault, "the data path was changed by others; repaired as far as possible");
                }
                checkup.faults
            }
            Err(error) => {
                self.failed("the data path", &error);
                vec![format!("{}", error_chain(&error))]
            }
        };
        self.metrics.faults.add(faults.len() as u64);
        let pause = if faults.is_empty() { limits::CHECK_PAUSE } else { limits::CHECK_AGAIN_PAUSE };
        self.check_due = Some(Instant::now() + pause);
        self.status.faults(faults);
    }

    /// Returns this node's pods, if their annotations limit them.
    fn limited_pods(&self) -> Vec<Arc<HostPod>> {
        self.caches.pods.iter().filter(|_| self.config.pod_bandwidth).flat_map(Cache::list).collect()
    }

    /// Reports the annotations of pods that are not followed.
    pub(super) fn report_bandwidth_faults<'a>(&mut self, pods: impl Iterator<Item = &'a ObjectKey>) {
        if !self.config.pod_bandwidth {
            return;
        }
        for key in pods {
            let pod = self.caches.pods.as_ref().and_then(|pods| pods.get(key));
            self.pod_warnings.report_new(key, pod.as_ref().map(|pod| pod.bandwidth()));
        }
    }
}
