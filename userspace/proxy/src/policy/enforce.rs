//! Keeps the tables of policies equal to what the watched objects and the machine's interfaces give.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Cache, Change, Informers, Projection};
use tokio::time::Instant;
use tracing::{debug, warn};
use userspace_dataplane::DataPlane;
use userspace_dataplane::policy::PolicyTables;
use userspace_dataplane::tables::{DataPlaneError, Interface, Role};

use super::compile::{Inputs, LocalPod, compile};
use super::dns;
use super::object::{Policy, PolicyProjection};
use super::pods::{NamespaceLabels, PolicyNamespace, PolicyPod};
use crate::compile::Slice;
use crate::links::{self, Link};

/// The objects that policies depend on.
#[derive(Clone)]
pub struct PolicyObjects {
    pub policies: Cache<PolicyProjection>,
    /// Pods of all nodes: any of them may be a peer.
    pub pods: Cache<PolicyPod>,
    pub namespaces: Cache<PolicyNamespace>,
    /// The caches have no lists to wait for: whoever made them fills them.
    fed: bool,
}

impl PolicyObjects {
    /// Returns the caches of a process.
    pub fn of(informers: &Informers) -> Self {
        let (policies, pods, namespaces) = (informers.cache(), informers.cache(), informers.cache());
        Self { policies, pods, namespaces, fed: false }
    }

    /// Returns caches that the caller fills.
    pub fn fed() -> Self {
        let (policies, pods, namespaces) = (Cache::default(), Cache::default(), Cache::default());
        Self { policies, pods, namespaces, fed: true }
    }

    /// Waits for the first whole list of each.
    pub async fn synced(&self) {
        if self.fed {
            return;
        }
        self.policies.synced().await;
        self.pods.synced().await;
        self.namespaces.synced().await;
    }

    fn has_synced(&self) -> bool {
        self.fed || self.policies.has_synced() && self.pods.has_synced() && self.namespaces.has_synced()
    }

    /// Calls `note` after each change that can matter: most changes of pods do not.
    pub(crate) fn on_change(&self, note: impl Fn() + Clone + Send + Sync + 'static) {
        fn subscribe<K: Projection + Send + Sync>(
            cache: &Cache<K>,
            equal: fn(&K, &K) -> bool,
            note: impl Fn() + Send + Sync + 'static,
        ) {
            cache.on_change(move |change| match change {
                Change::Applied { old: Some(old), new } if equal(old, new) => {}
                _ => note(),
            });
        }
        subscribe(&self.policies, |old, new| old.policy == new.policy, note.clone());
        subscribe(&self.pods, PolicyPod::is_like, note.clone());
        subscribe(&self.namespaces, |old, new| old.labels == new.labels, note);
    }
}

/// The inputs of the compiler besides objects.
#[derive(Debug, PartialEq, Eq)]
struct Machine {
    local: Vec<LocalPod>,
    node: Vec<IpAddr>,
    /// A policy for packets that all pods may send.
    always: Option<Policy>,
}

/// The compiler with its inputs, and what was last applied.
#[derive(Default)]
pub(crate) struct Enforcer {
    /// `None` if this proxy does not enforce policies.
    objects: Option<PolicyObjects>,
    /// An object has changed since the last compilation.
    changed: bool,
    /// The inputs besides objects at the last compilation; `None` before the first one.
    machine: Option<Machine>,
    applied: Option<PolicyTables>,
    /// The time of the next compilation, if only objects have changed.
    next: Option<Instant>,
}

impl Enforcer {
    pub fn new(objects: Option<PolicyObjects>) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Records that objects have changed.
    pub fn note(&mut self) {
        self.changed = true;
    }

    /// Returns the time at which a change that is waiting is due.
    pub fn due(&self) -> Option<Instant> {
        self.next.filter(|_| self.changed && self.machine.is_some())
    }

    /// Returns `true` if policies of this machine's pods are in the tables.
    pub fn is_applied(&self) -> bool {
        self.applied.is_some()
    }

    /// Compiles and applies, if something has changed. Objects that change all the time take a fifth of the
    /// worker's time at most; new interfaces wait for nothing. `slices` are those of the cluster's DNS Service.
    pub fn apply(
        &mut self,
        plane: &mut dyn DataPlane,
        links: &[Link],
        interfaces: &[Interface],
        slices: impl FnOnce() -> Vec<Arc<Slice>>,
    ) -> Result<(), DataPlaneError> {
        let Some(objects) = self.objects.as_ref().filter(|objects| objects.has_synced()) else {
            return Ok(());
        };
        let machine = Machine {
            local: local_pods(links, interfaces),
            node: node_addresses(links, interfaces),
            always: dns::reachable(&slices()),
        };
        let same = self.machine.as_ref() == Some(&machine);
        let start = Instant::now();
        if same && (!self.changed || self.next.is_some_and(|next| start < next)) {
            return Ok(());
        }
        let tables = tables(objects, &machine);
        if self.applied.as_ref() != Some(&tables) {
            let result = plane.set_policies(&tables);
            if result.is_err() {
                // The next attempt must not take it for done.
                self.applied = None;
                self.machine = None;
            }
            result?;
            let (pods, rules, peers) = (tables.endpoints.len(), tables.rules.len(), tables.peers.len());
            debug!(pods, rules, peers, took = ?start.elapsed(), "applied network policies");
            self.applied = Some(tables);
        }
        self.machine = Some(machine);
        self.changed = false;
        self.next = Some(Instant::now() + start.elapsed().saturating_mul(4).min(Duration::from_secs(2)));
        Ok(())
    }
}

fn tables(objects: &PolicyObjects, Machine { local, node, always }: &Machine) -> PolicyTables {
    let policies: Vec<Arc<Policy>> =
        objects.policies.list().iter().map(|kept| Arc::clone(&kept.policy)).collect();
    let namespaces: NamespaceLabels = objects
        .namespaces
        .list()
        .iter()
        .map(|namespace| (namespace.name.to_string(), namespace.labels.clone()))
        .collect();
    let pods = objects.pods.list();
    let always = always.as_ref();
    compile(&Inputs { policies: &policies, pods: &pods, namespaces: &namespaces, local, node, always })
}

/// Returns the pods' interfaces of this machine.
pub(crate) fn local_pods(links: &[Link], interfaces: &[Interface]) -> Vec<LocalPod> {
    let pods = interfaces.iter().filter(|one| one.role == Role::Pod);
    pods.filter_map(|one| links.iter().find(|link| link.index == one.index))
        .map(|link| {
            let hosts =
                link.routes.iter().filter(|route| route.prefix() == if route.is_ipv4() { 32 } else { 128 });
            LocalPod {
                interface: link.index,
                name: link.name.clone(),
                uid: link.pod.clone(),
                addresses: hosts.map(|route| route.network()).collect(),
            }
        })
        .collect()
}

/// Returns the addresses of this machine.
fn node_addresses(links: &[Link], interfaces: &[Interface]) -> Vec<IpAddr> {
    let is_pod = |link: &&Link| interfaces.iter().any(|one| one.index == link.index && one.role == Role::Pod);
    let own = links.iter().filter(|link| !is_pod(link));
    let mut addresses: Vec<_> = own.flat_map(|link| &link.addresses).map(|one| one.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Tells the pod network that the policies of pods are in force: the runtime waits for it before it starts
/// their containers.
pub(crate) async fn mark(waiting: Vec<(u32, String)>) {
    if let Err(error) = links::mark_ready(&waiting).await {
        warn!(error = &error as &dyn std::error::Error, "cannot mark interfaces as ready");
    }
}

/// Returns the interfaces of pods that wait for their policies.
pub(crate) fn waiting(links: &[Link]) -> Vec<(u32, String)> {
    let waiting = links.iter().filter(|link| link.pod.is_some() && !link.ready);
    waiting.map(|link| (link.index, link.name.clone())).collect()
}
