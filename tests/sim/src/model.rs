//! A model of the cluster, built from the store's events, which checks the invariants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use apiserver_meta::fnv::fnv1a_64_after;
use apiserver_store::{Event, Revision};
use serde_json::Value;
use tokio::time::Instant;

use crate::facts::{self, Deployment, Node, Pod, Set};

/// Maximum duration of an unwanted but unavoidable state after the last fault.
pub const UNWANTED_STATE_LIMIT: Duration = Duration::from_secs(5);
/// Time that components may take to recover from a fault: a watch is retried after at most five seconds, and
/// a ReplicaSet stops waiting for its pods after five minutes.
pub const RECOVERY: Duration = Duration::from_secs(360);
/// Number of changes that are kept for the report of a failure.
const REMEMBERED: usize = 60;

/// 64-bit FNV-1a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = fnv1a_64_after(self.0, bytes.iter().copied());
    }
}

/// State of the cluster according to its store.
pub struct Model {
    /// Revision of the newest event.
    pub revision: Revision,
    /// Number of events so far.
    pub events: u64,
    hash: Hash,
    /// Revision of the newest write of each existing key.
    pub keys: BTreeMap<String, Revision>,
    pub pods: BTreeMap<String, Pod>,
    pub sets: BTreeMap<String, Set>,
    pub deployments: BTreeMap<String, Deployment>,
    pub nodes: BTreeMap<String, Node>,
    /// Time at which the pod with an address was removed, unless the address has been reused.
    gone: BTreeMap<IpAddr, Instant>,
    /// Node of each bound pod, by the pod's uid.
    bound: BTreeMap<String, String>,
    /// Time of the last write other than a heartbeat or an Event.
    pub changed: Instant,
    /// Time of the last fault. `None` in a run without faults, where stricter invariants hold.
    disturbed: Option<Instant>,
    /// Time since when a Deployment has more pods than allowed.
    over: BTreeMap<String, Instant>,
    /// The least number of ready pods of an app.
    guards: BTreeMap<String, usize>,
    /// Violated invariants.
    pub violations: Vec<String>,
    pub recent: VecDeque<String>,
    began: Instant,
}

impl Model {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            // An empty store is at revision 1, like etcd.
            revision: 1,
            events: 0,
            hash: Hash(0xcbf2_9ce4_8422_2325),
            keys: BTreeMap::new(),
            pods: BTreeMap::new(),
            sets: BTreeMap::new(),
            deployments: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gone: BTreeMap::new(),
            bound: BTreeMap::new(),
            changed: now,
            disturbed: None,
            over: BTreeMap::new(),
            guards: BTreeMap::new(),
            violations: Vec::new(),
            recent: VecDeque::new(),
            began: now,
        }
    }

    /// Records a fault.
    pub fn disturb(&mut self, what: &str) {
        self.disturbed = Some(Instant::now());
        self.report(format!("FAULT {what}"));
    }

    /// Returns a hash of everything that was written, in order: key, type, revision, value.
    pub fn history(&self) -> String {
        format!("{:016x}, {} events", self.hash.0, self.events)
    }

    /// Applies the next change.
    pub fn take(&mut self, event: &Event) {
        if event.revision != self.revision + 1 {
            let (from, to) = (self.revision, event.revision);
            self.violation(format!("{}: revision {to} follows {from}", event.key));
        }
        self.revision = event.revision;
        self.events += 1;
        let manner = match (&event.previous, &event.value) {
            (_, None) => "deleted",
            (None, Some(_)) => "added",
            (Some(_), Some(_)) => "changed",
        };
        self.hash.add(event.key.as_bytes());
        self.hash.add(manner.as_bytes());
        self.hash.add(&event.revision.to_le_bytes());
        self.hash.add(event.value.as_deref().unwrap_or_default());
        match event.value {
            Some(_) => self.keys.insert(event.key.clone(), event.revision),
            None => self.keys.remove(&event.key),
        };
        let Some((kind, name)) = facts::split(&event.key) else { return };
        if !matches!(kind, "leases" | "events") {
            self.changed = Instant::now();
        }
        if event.key.contains("/masterleases/") {
            return;
        }
        let object = event.value.as_deref().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        match kind {
            "pods" => self.take_pod(name, object.as_ref()),
            "replicasets" => self.take_set(name, object.as_ref()),
            "deployments" => self.take_deployment(name, object.as_ref()),
            "minions" => self.take_node(name, object.as_ref()),
            _ => {}
        }
    }

    fn take_pod(&mut self, name: &str, object: Option<&Value>) {
        let before = self.pods.get(name).cloned();
        let Some(pod) = object.map(Pod::read) else {
            self.report(format!("pod {name} is gone"));
            if let Some(address) = self.pods.remove(name).and_then(|pod| pod.address) {
                self.gone.insert(address, Instant::now());
            }
            self.check_guards();
            return self.check_rollouts();
        };
        if let Some(address) = pod.address {
            self.gone.remove(&address);
        }
        let fresh = before.as_ref().is_none_or(|before| before.uid != pod.uid);
        if before.as_ref() != Some(&pod) {
            self.report(format!("pod {name} {pod}"));
        }
        self.check_binding(name, &pod);
        self.pods.insert(name.to_owned(), pod.clone());
        if fresh {
            self.check_size_of_set(&pod);
        }
        if !pod.node.is_empty() && before.is_none_or(|before| before.node.is_empty()) {
            self.check_room(&pod.node);
        }
        self.check_guards();
        self.check_rollouts();
    }

    /// Demands that an app have this many ready pods from now on, also amid faults.
    pub fn guard(&mut self, app: &str, least: usize) {
        self.guards.insert(app.to_owned(), least);
        self.check_guards();
    }

    fn check_guards(&mut self) {
        let ready = |app: &String| self.ready_pods().filter(|(_, pod)| pod.app == *app).count();
        let broken = self.guards.iter().map(|(app, least)| (app.clone(), *least, ready(app)));
        let broken: Vec<_> = broken.filter(|(_, least, ready)| ready < least).collect();
        for (app, least, ready) in broken {
            // Once is enough.
            self.guards.remove(&app);
            self.violation(format!("{app} has {ready} ready pods, fewer than {least}"));
        }
    }

    fn take_set(&mut self, name: &str, object: Option<&Value>) {
        let Some(mut set) = object.map(Set::read) else {
            self.sets.remove(name);
            return;
        };
        if let Some(before) = self.sets.get(name) {
            set.shrunk = before.shrunk;
            if set.replicas < before.replicas {
                set.shrunk = Some((Instant::now(), before.replicas));
            }
            if set.replicas != before.replicas {
                self.report(format!("replicaset {name} {} -> {}", before.replicas, set.replicas));
            }
        }
        self.sets.insert(name.to_owned(), set);
        self.check_rollouts();
    }

    fn take_deployment(&mut self, name: &str, object: Option<&Value>) {
        let Some(mut deployment) = object.map(Deployment::read) else {
            self.deployments.remove(name);
            return;
        };
        let asked = self.requested_pods(&deployment.uid);
        if let Some(before) = self.deployments.get(name) {
            deployment.ceiling = before.ceiling;
            deployment.up = before.up && before.replicas == deployment.replicas;
        }
        // A smaller size is not reached immediately, but from here on it is only approached.
        deployment.ceiling = deployment.ceiling.min(asked).max(deployment.limit());
        self.deployments.insert(name.to_owned(), deployment);
        self.check_rollouts();
    }

    fn take_node(&mut self, name: &str, object: Option<&Value>) {
        match object.map(Node::read) {
            Some(node) => {
                if self.nodes.get(name).is_some_and(|before| before.ready != node.ready) {
                    self.report(format!("node {name} ready: {}", node.ready));
                }
                self.nodes.insert(name.to_owned(), node);
            }
            None => drop(self.nodes.remove(name)),
        }
    }

    /// Returns the sum of the sizes of a Deployment's ReplicaSets.
    fn requested_pods(&self, deployment_uid: &str) -> i64 {
        self.sets.values().filter(|set| set.owner == deployment_uid).map(|set| set.replicas).sum()
    }

    fn check_binding(&mut self, name: &str, pod: &Pod) {
        match self.bound.get(&pod.uid) {
            Some(node) if *node != pod.node => {
                let (node, other) = (node.clone(), pod.node.clone());
                self.violation(format!("pod {name} was bound to {node} and then to {other:?}"));
            }
            None if !pod.node.is_empty() => drop(self.bound.insert(pod.uid.clone(), pod.node.clone())),
            _ => {}
        }
    }

    /// Checks that a ReplicaSet never creates more pods than its size. After a fault it may, because it may
    /// not know of a pod that it created.
    fn check_size_of_set(&mut self, pod: &Pod) {
        if self.disturbed.is_some() {
            return;
        }
        let Some((name, set)) = self.sets.iter().find(|(_, set)| set.uid == pod.owner) else { return };
        let recently =
            set.shrunk.filter(|(at, _)| at.elapsed() < UNWANTED_STATE_LIMIT).map_or(0, |(_, size)| size);
        let limit = set.replicas.max(recently);
        let active = self.pods.values().filter(|other| other.owner == set.uid && other.is_active()).count();
        if active as i64 > limit {
            let name = name.clone();
            self.violation(format!("replicaset {name} made pod number {active} of {limit}"));
        }
    }

    fn check_room(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        let on_node: Vec<&Pod> = self.pods.values().filter(|pod| pod.node == name && !pod.finished).collect();
        let cpu: i64 = on_node.iter().map(|pod| pod.cpu).sum();
        let memory: i64 = on_node.iter().map(|pod| pod.memory).sum();
        if cpu > node.cpu || memory > node.memory || on_node.len() as i64 > node.pods {
            let (pods, node) = (on_node.len(), node.clone());
            self.violation(format!(
                "node {name} has {pods} pods, {cpu}m, {memory} bytes: more than {node:?}"
            ));
        }
    }

    /// Checks the bounds of rolling updates.
    fn check_rollouts(&mut self) {
        let mut broken = Vec::new();
        let mut deployments = std::mem::take(&mut self.deployments);
        for (name, deployment) in &mut deployments {
            let asked = self.requested_pods(&deployment.uid);
            if asked > deployment.ceiling {
                let (asked, ceiling) = (asked, deployment.ceiling);
                broken.push(format!("deployment {name} asks for {asked} pods, more than {ceiling}"));
            }
            deployment.ceiling = deployment.ceiling.min(asked).max(deployment.limit());
            let (active, ready) = self.count(&deployment.uid);
            if active.max(asked) > deployment.ceiling {
                self.over.entry(name.clone()).or_insert_with(Instant::now);
            } else {
                self.over.remove(name);
            }
            let floor = deployment.replicas - deployment.unavailable();
            if deployment.up && ready < floor && self.disturbed.is_none() {
                broken.push(format!("deployment {name} has {ready} ready pods, less than {floor}"));
                deployment.up = false;
            }
            deployment.up |= ready >= floor;
        }
        self.deployments = deployments;
        broken.into_iter().for_each(|text| self.violation(text));
    }

    /// Returns the numbers of active and of ready pods of a Deployment.
    pub fn count(&self, deployment_uid: &str) -> (i64, i64) {
        let sets: BTreeSet<&str> = self
            .sets
            .values()
            .filter(|set| set.owner == deployment_uid)
            .map(|set| set.uid.as_str())
            .collect();
        let active = self.pods.values().filter(|pod| pod.is_active() && sets.contains(pod.owner.as_str()));
        active.fold((0, 0), |(active, ready), pod| (active + 1, ready + i64::from(pod.ready)))
    }

    /// Checks states that must not last. Called repeatedly while time passes.
    pub fn check_lasting(&mut self) {
        let allowed = |since: &Instant, disturbed: Option<Instant>| {
            since.elapsed() <= UNWANTED_STATE_LIMIT || disturbed.is_some_and(|at| at.elapsed() <= RECOVERY)
        };
        let lasting: Vec<String> = self
            .over
            .iter()
            .filter(|(_, since)| !allowed(since, self.disturbed))
            .map(|(name, since)| format!("deployment {name} has had too many pods for {:?}", since.elapsed()))
            .collect();
        lasting.into_iter().for_each(|text| self.violation(text));
    }

    /// Returns the addresses of pods that were removed so long ago that nothing may lead there any more.
    pub fn long_gone(&self) -> BTreeSet<IpAddr> {
        if self.disturbed.is_some_and(|at| at.elapsed() <= RECOVERY) {
            return BTreeSet::new();
        }
        self.gone
            .iter()
            .filter(|(_, at)| at.elapsed() > UNWANTED_STATE_LIMIT)
            .map(|(address, _)| *address)
            .collect()
    }

    pub fn violation(&mut self, text: String) {
        self.report(format!("BROKEN {text}"));
        self.violations.push(text);
    }

    fn report(&mut self, text: String) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        let at = self.began.elapsed().as_millis();
        tracing::info!(at, revision = self.revision, "{text}");
        self.recent.push_back(format!("{at:>8} ms {:>6} {text}", self.revision));
    }

    /// Returns the ready pods by name.
    pub fn ready_pods(&self) -> impl Iterator<Item = (&String, &Pod)> {
        self.pods.iter().filter(|(_, pod)| pod.is_active() && pod.ready)
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}
