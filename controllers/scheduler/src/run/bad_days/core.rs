//! Random days of the loop, whose cluster, updated change by change, is compared with one built anew from the same objects.
//! `LIVES=1000 cargo test -p controllers-scheduler --lib bad_days::core` looks for what no seed has found.

use std::collections::BTreeSet;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1;
use tokio::time::Instant;

use super::super::bind::Outcome;
use super::super::follow::{StorageFact, Update};
use super::super::tests::unanswered;
use super::super::{Cluster, Scheduler, Views};
use super::*;
use crate::cluster::NodeFacts;
use crate::framework::{Meter, NominatedFirst, best, choose, find_feasible, score};

/// Objects as the API server has them, by name, and the scheduler that hears of them.
struct World {
    scheduler: Scheduler,
    dice: fastrand::Rng,
    pods: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    /// Pods of which the watch has not told the newest version.
    untold: BTreeSet<String>,
    made: usize,
}

/// Claims that pods may use: an ordinary one, and one that only one pod may use.
pub(super) const CLAIMS: [(&str, &str); 2] = [("shared", "ReadWriteMany"), ("alone", "ReadWriteOncePod")];

pub(super) fn claim(name: &str, mode: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": [mode], "volumeName": format!("v-{name}"), "storageClassName": "c"},
        "status": {"phase": "Bound"}})
}

pub(super) fn volume(name: &str, mode: &str) -> Value {
    json!({"metadata": {"name": format!("v-{name}"), "resourceVersion": "1"},
        "spec": {"accessModes": [mode], "storageClassName": "c", "csi": {"driver": "d", "volumeHandle": name},
            "claimRef": {"namespace": "ns", "name": name, "uid": name}}})
}

pub(super) fn facts(node: &Value) -> Arc<NodeFacts> {
    Arc::new(NodeFacts::parse(serde_json::from_value(node.clone()).unwrap()))
}

fn object(pod: &Value) -> v1::Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

pub(super) fn info(pod: &Value) -> Arc<PodInfo> {
    Arc::new(PodInfo::parse(object(pod)))
}

/// Returns the fields of a pod with one of the features of scheduling.
fn feature(number: usize) -> Value {
    let selects = |app: &str| json!({"matchLabels": {"app": app}});
    let term = |key: &str, app: &str| json!({"topologyKey": key, "labelSelector": selects(app)});
    let spread = |key: &str, what: &str| {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": what,
            "labelSelector": selects("a")}]})
    };
    let claims =
        |name: &str| json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]});
    let required = |kind: &str, key: &str, app: &str| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term(key, app)]}}});
    let preferred = |kind: &str, key: &str, app: &str| {
        let term = json!([{"weight": 7, "podAffinityTerm": term(key, app)}]);
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": term}}})
    };
    match number {
        0 => required("podAntiAffinity", "zone", "a"),
        1 => required("podAffinity", "zone", "b"),
        2 => preferred("podAntiAffinity", "disk", "b"),
        3 => preferred("podAffinity", "zone", "a"),
        4 => spread("zone", "DoNotSchedule"),
        5 => spread("disk", "ScheduleAnyway"),
        6 => claims("shared"),
        7 => claims("alone"),
        8 => json!({"nodeSelector": {"disk": "x"}}),
        9 => json!({"tolerations": [{"key": "t", "operator": "Exists"}]}),
        _ => json!({}),
    }
}

/// Returns a pod with a feature, labels, and a request for CPU.
pub(super) fn pod(name: &str, number: usize, app: &str, cpu: usize) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "i:1", "resources": {"requests": {"cpu": cpu.to_string()}}}]},
        "status": {},
    });
    merge(&mut pod["spec"], feature(number));
    pod
}

impl World {
    fn new(seed: u64) -> Self {
        let mut scheduler = unanswered();
        for (name, mode) in CLAIMS {
            let claim = serde_json::from_value(claim(name, mode)).unwrap();
            scheduler.apply(Update::Storage(StorageFact::Claim(
                ObjectKey::new("ns", name),
                Some(Arc::new(claim)),
            )));
            let volume = serde_json::from_value(volume(name, mode)).unwrap();
            let key = ObjectKey::new("", &format!("v-{name}"));
            scheduler.apply(Update::Storage(StorageFact::Volume(key, Some(Arc::new(volume)))));
        }
        let dice = fastrand::Rng::with_seed(seed);
        let (pods, nodes, untold) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { scheduler, dice, pods, nodes, untold, made: 0 }
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.dice.usize(..times) == 0
    }

    fn any_pod(&mut self, wanted: impl Fn(&Value) -> bool) -> Option<String> {
        let names: Vec<&String> =
            self.pods.iter().filter(|(_, pod)| wanted(pod)).map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| names[self.dice.usize(..names.len())].clone())
    }

    /// Changes a pod, of which the watch tells now or later.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let pod = self.pods.get_mut(name).unwrap();
        change(pod);
        self.made += 1;
        pod["metadata"]["resourceVersion"] = json!((self.made + 1).to_string());
        self.untold.insert(name.to_owned());
    }

    fn tell(&mut self, name: &str) {
        self.untold.remove(name);
        if let Some(pod) = self.pods.get(name) {
            self.scheduler.pods.apply(object(pod));
            let pod = info(pod);
            self.scheduler.apply(Update::Pod(pod));
        }
    }

    fn set_node(&mut self) {
        let name = format!("n{}", self.dice.usize(..5));
        let mut labels = json!({"zone": (["x", "y"][self.dice.usize(..2)])});
        if self.once_in(3) {
            labels["disk"] = json!(["x", "y"][self.dice.usize(..2)]);
        }
        if self.once_in(6) {
            labels = json!({});
        }
        let taints = if self.once_in(5) { json!([{"key": "t", "effect": "NoSchedule"}]) } else { json!([]) };
        let images =
            if self.once_in(2) { json!([{"names": ["i:1"], "sizeBytes": 700_000_000}]) } else { json!([]) };
        let cpu = (2 + self.dice.usize(..3)).to_string();
        let node = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": self.once_in(8)},
            "status": {"allocatable": {"cpu": cpu, "pods": "8"}, "images": images}});
        self.scheduler.apply(Update::Node(facts(&node)));
        self.nodes.insert(name, node);
    }

    fn remove_node(&mut self) {
        let name = format!("n{}", self.dice.usize(..5));
        if self.nodes.remove(&name).is_some() {
            self.scheduler.apply(Update::NodeGone(name));
        }
    }

    fn add_pod(&mut self) {
        self.made += 1;
        let name = format!("p{}", self.made);
        let (number, app) = (self.dice.usize(..13), ["a", "b"][self.dice.usize(..2)]);
        let mut pod = pod(&name, number, app, 1 + self.dice.usize(..2));
        pod["spec"]["priority"] = json!(self.dice.usize(..3));
        if self.once_in(6) {
            pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        }
        if self.once_in(8) {
            // Somebody else has bound it, perhaps to a node that is not known yet.
            pod["spec"]["nodeName"] = json!(format!("n{}", self.dice.usize(..5)));
        }
        self.pods.insert(name.clone(), pod);
        self.tell(&name);
    }

    fn change_pod(&mut self) {
        let Some(name) = self.any_pod(|_| true) else { return };
        let what = self.dice.usize(..4);
        self.change(&name, |pod| match what {
            0 => pod["metadata"]["labels"]["app"] = json!("b"),
            1 => pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            2 if node_of(pod).is_some() => pod["status"]["phase"] = json!("Succeeded"),
            _ => pod["metadata"]["labels"]["more"] = json!("c"),
        });
        if self.once_in(2) {
            self.tell(&name);
        }
    }

    fn delete_pod(&mut self, name: &str) {
        let Some(pod) = self.pods.remove(name) else { return };
        self.untold.remove(name);
        self.scheduler.pods.delete(&ObjectKey::new("ns", name));
        self.scheduler.apply(Update::PodGone(info(&pod)));
    }

    /// Attempts a pod. The API server has the nomination at once.
    fn attempt(&mut self) {
        let now = Instant::now();
        self.scheduler.queue.flush(&self.scheduler.cluster, now);
        let Some(attempting) = self.scheduler.queue.pop(now) else { return };
        self.scheduler.attempt(&attempting);
        let pod = &attempting.pod;
        let (name, node) = (pod.name().to_owned(), self.scheduler.cluster.nominated.node_of(pod).cloned());
        let is_binding = self.scheduler.binding.contains_key(&pod.uid);
        let shown = self.pods.get(&name).map(|pod| pod["status"]["nominatedNodeName"].clone());
        if !is_binding && shown.is_some_and(|shown| shown.as_str() != node.as_deref()) {
            self.change(&name, |pod| pod["status"]["nominatedNodeName"] = json!(node.as_deref()));
            self.tell(&name);
        }
    }

    fn place_of(&self, uid: &Uid) -> Option<String> {
        let pod = self.scheduler.binding.get(uid)?;
        let id = self.scheduler.cluster.place_of(pod)?;
        Some(self.scheduler.cluster.node(id).name.to_string())
    }

    /// Answers a binding: it is carried out or refused, and the watch tells of it before, later or not at all.
    fn answer(&mut self, may_fail: bool) {
        let uids: Vec<Uid> = self.scheduler.binding.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = uids[self.dice.usize(..uids.len())].clone();
        let assumed = Arc::clone(&self.scheduler.binding[&uid]);
        let name = assumed.name().to_owned();
        let place = self.place_of(&uid);
        let is_there = self.pods.get(&name).is_some_and(|pod| node_of(pod).is_none());
        let is_free = is_there && self.pods[&name]["metadata"]["deletionTimestamp"].is_null();
        let refuses = may_fail && self.once_in(4);
        let outcome = match place {
            Some(node) if is_free && !refuses => {
                self.change(&name, |pod| pod["spec"]["nodeName"] = json!(node));
                if self.once_in(3) {
                    self.tell(&name);
                }
                Outcome::Bound
            }
            _ if !self.pods.contains_key(&name) => Outcome::Gone,
            _ if !is_there => return,
            _ => Outcome::Failed("refused".to_owned()),
        };
        let failed = matches!(outcome, Outcome::Failed(_));
        self.scheduler.apply(Update::Binding(assumed, outcome));
        if failed && self.pods[&name]["status"]["nominatedNodeName"].is_string() {
            self.change(&name, |pod| pod["status"]["nominatedNodeName"] = Value::Null);
            self.tell(&name);
        }
    }

    /// Ends a preemption: its victims are being deleted, or are gone, or a request has failed.
    fn end_preemption(&mut self) {
        let Some((uid, victims)) = self.scheduler.victims.iter().next() else { return };
        let (uid, victims) = (uid.clone(), victims.clone());
        let all_deleted = !self.once_in(4);
        for victim in &victims {
            if !self.pods.contains_key(victim.name()) {
                continue;
            }
            if self.once_in(2) {
                self.delete_pod(victim.name());
            } else {
                self.change(victim.name(), |pod| {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                });
            }
        }
        self.scheduler.apply(Update::Preempted { uid, all_deleted });
    }

    async fn step(&mut self) {
        match self.dice.usize(..20) {
            0..2 => self.set_node(),
            2 if self.once_in(3) => self.remove_node(),
            3..7 => self.add_pod(),
            7 => self.change_pod(),
            8 => {
                if let Some(name) = self.any_pod(|_| true) {
                    self.delete_pod(&name);
                }
            }
            9 => {
                let ended = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
                if let Some(name) = self.any_pod(ended) {
                    self.delete_pod(&name);
                }
            }
            10..15 => self.attempt(),
            15..17 => self.answer(true),
            17 => self.end_preemption(),
            18 => {
                if let Some(name) = self.untold.iter().next().cloned() {
                    self.tell(&name);
                }
            }
            _ => tokio::time::advance(Duration::from_millis(700)).await,
        }
    }

    /// Lets the watch catch up.
    fn catch_up(&mut self) {
        for name in std::mem::take(&mut self.untold) {
            self.tell(&name);
        }
    }

    /// Builds the cluster anew from the objects, and from what is decided and not written.
    fn anew(&self) -> Cluster {
        let mut cluster = Cluster::default();
        for (name, mode) in CLAIMS {
            let claim = serde_json::from_value(claim(name, mode)).unwrap();
            cluster.storage.set_claim(&ObjectKey::new("ns", name), Some(Arc::new(claim)));
            let volume = serde_json::from_value(volume(name, mode)).unwrap();
            cluster.storage.set_volume(&format!("v-{name}"), Some(Arc::new(volume)));
        }
        self.nodes.values().for_each(|node| cluster.set_node(facts(node)));
        for object in self.pods.values() {
            let pod = info(object);
            if pod.is_finished {
                continue;
            }
            let assumed = self.place_of(&pod.uid).map(Arc::from);
            let is_assumed = assumed.is_some();
            if let Some(node) = pod.node.clone().or(assumed) {
                // A decision is for the pod as it was then.
                let pod = if is_assumed { &self.scheduler.binding[&pod.uid] } else { &pod };
                cluster.place(pod, &node);
            } else if let Some(node) =
                pod.nominated.as_ref().filter(|_| !self.scheduler.binding.contains_key(&pod.uid))
            {
                cluster.nominated.set(&pod, node);
            }
        }
        cluster
    }

    fn compare(&mut self) {
        self.catch_up();
        let mut anew = self.anew();
        let kept = &mut self.scheduler.cluster;
        assert_eq!(picture(kept), picture(&anew));
        let profile = &self.scheduler.profiles[0];
        for number in 0..11 {
            for app in ["a", "b"] {
                let probe = info(&pod("probe", number, app, 1));
                let mut fresh = Views::default();
                let expected = verdict(profile, &probe, &mut anew, &mut fresh);
                let found = verdict(profile, &probe, kept, &mut self.scheduler.views);
                assert_eq!(found, expected, "feature {number} of {app}");
            }
        }
        for object in self.pods.values() {
            let pod = info(object);
            let waits = self.scheduler.queue.pool_of(&pod.uid).is_some();
            let is_placed = self.scheduler.cluster.place_of(&pod).is_some();
            let is_under_way = self.scheduler.binding.contains_key(&pod.uid);
            if pod.node.is_none() && !pod.is_finished && !pod.is_terminating() {
                assert!(waits || is_under_way, "{} is forgotten", pod.key());
            }
            assert!(!(waits && is_placed), "{} waits and has a place", pod.key());
        }
    }

    /// Removes everything, and checks that nothing is left.
    fn end(&mut self) {
        for name in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.delete_pod(&name);
        }
        while !self.scheduler.victims.is_empty() {
            self.end_preemption();
        }
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.scheduler.apply(Update::NodeGone(name));
        }
        let scheduler = &self.scheduler;
        assert!(scheduler.binding.is_empty() && scheduler.cluster.is_empty());
        assert!(scheduler.cluster.nominated.is_empty());
        assert_eq!(scheduler.queue.counts(), crate::queue::Counts::default());
        assert!(
            CLAIMS.iter().all(|(name, _)| !scheduler.cluster.storage.is_used(&ObjectKey::new("ns", name)))
        );
        let [groups, holders, ..] = scheduler.cluster.terms.sizes();
        assert_eq!((groups, holders), (0, 0));
    }
}

/// Returns all that a cluster says of its nodes, by name.
pub(super) fn picture(cluster: &Cluster) -> BTreeMap<String, Vec<String>> {
    let mut picture = BTreeMap::new();
    let names = (0..5).map(|number| format!("n{number}"));
    for name in names {
        let mut lines = Vec::new();
        if let Some(node) = cluster.named(&name) {
            let mut scalar = node.requested.scalar.clone();
            scalar.retain(|_, amount| *amount != 0);
            let (cpu, memory) = (node.requested.cpu, node.requested.memory);
            lines.push(format!("{:?}", node.facts));
            lines.push(format!("{cpu} {memory} {scalar:?} {:?}", node.scored));
            let mut ports: Vec<String> = node.ports.iter().map(|port| format!("{port:?}")).collect();
            let mut pods: Vec<String> =
                node.pods.iter().map(|pod| format!("{} {:?}", pod.uid, pod.labels())).collect();
            let mut users: Vec<String> =
                cluster.storage.pods_on(node.id).iter().map(|pod| pod.uid.to_string()).collect();
            ports.sort();
            pods.sort();
            users.sort();
            lines.extend(ports.into_iter().chain(pods).chain(users));
            for key in ["zone", "disk", "none"] {
                let domains = cluster.terms.key(key);
                let is_own = domains.domain(node.labels.get(key).map_or("", String::as_str))
                    == Some(domains.of(node.id));
                lines.push(format!(
                    "{key} {}",
                    is_own || domains.of(node.id) == crate::cluster::terms::MISSING
                ));
            }
        }
        let mut nominated: Vec<String> =
            cluster.nominated.on(&name).iter().map(|pod| format!("nominated {}", pod.uid)).collect();
        nominated.sort();
        lines.extend(nominated);
        picture.insert(name, lines);
    }
    picture
}

/// Returns the feasible nodes of a pod with their scores, or why there are none.
pub(super) fn verdict(
    profile: &crate::framework::Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    views: &mut Views,
) -> Result<BTreeMap<String, i64>, String> {
    let feasible = find_feasible(profile, pod, cluster, views, 0, NominatedFirst::No, &mut Meter::default());
    let feasible = feasible.map_err(|diagnosis| diagnosis.to_string())?;
    let totals = score(profile, pod, cluster, views, &feasible, &mut Meter::default());
    for random in 0..5 {
        let chosen = choose(profile, pod, cluster, views, &feasible, random, &mut Meter::default());
        assert_eq!(chosen, best(feasible.list(), &totals, random));
    }
    let names = feasible.nodes.iter().map(|id| cluster.node(id).name.to_string());
    Ok(names.zip(totals).collect())
}

#[tokio::test(start_paused = true)]
async fn cluster_that_is_updated_change_by_change_is_the_one_that_is_built_anew() {
    for seed in crate::seeded::seeds(10) {
        let mut world = World::new(seed);
        for step in 0..250 {
            world.step().await;
            if step % 10 == 9 {
                world.compare();
            }
        }
        // The API server answers: what has room is placed, and what was decided is written.
        for _ in 0..200 {
            world.answer(false);
            world.end_preemption();
            world.catch_up();
        }
        world.compare();
        assert!(world.scheduler.binding.is_empty() && world.scheduler.victims.is_empty(), "seed {seed}");
        world.end();
    }
}
