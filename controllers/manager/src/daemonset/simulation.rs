//! A DaemonSet in a cluster that changes under it: kubelets, nodes and templates come and go, the cache is behind, and
//! the controller crashes between any two writes. What it promises holds after each of its writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::seeded;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{self, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::backoff::Backoff;
use super::placement::{Fit, Placement};
use super::plan::{Plan, plan};
use super::template::{Current, HASH_LABEL, hash_of, new_pod, target};
use super::tests::{daemon_set, roll, taint};
use super::view::View;
use super::{Written, rolling, status};
use crate::history;
use crate::meta::{is_deleted, name, uid};
use crate::pods::{Pod, is_available};
use crate::testing::dice::Dice;
use crate::testing::{self, at, labels, set_ready};

const LIVES: u64 = 150;
const NODES: u64 = 6;

enum Event {
    Put(Box<v1::Pod>),
    Gone(ObjectKey),
}

/// The server, the nodes and the controller.
struct World {
    random: Ambient,
    set: DaemonSet,
    nodes: BTreeMap<String, Node>,
    /// Pods by name, as the API has them and as the controllers store them.
    pods: BTreeMap<String, (v1::Pod, Pod)>,
    version: u64,
    second: i64,
    /// Changes of pods that the cache does not show yet.
    events: VecDeque<Event>,
    cache: Cache<Pod>,
    written: Written,
    backoff: Backoff,
    surge: usize,
    unavailable: usize,
    /// Nodes on which no pod is available for another reason than the update, until one is.
    disturbed: BTreeSet<String>,
    quiet: bool,
    seed: u64,
    /// Numbers of crashes, and of available pods that were deleted.
    crashes: usize,
    replaced: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = seeded::ambient(seed).0;
        let (surge, unavailable) = [(0, 1), (0, 2), (1, 0), (2, 0)][index(&random, 4)];
        let mut set = daemon_set("ds");
        let count = |count: usize| IntOrString::Int(i32::try_from(count).unwrap());
        roll(&mut set, count(surge), count(unavailable));
        let spec = set.spec.as_mut().unwrap();
        spec.min_ready_seconds = Some([0, 5][index(&random, 2)]);
        spec.template.spec.as_mut().unwrap().node_selector = Some(labels(&[("role", "worker")]));
        let mut world = Self {
            random,
            set,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            version: 1,
            second: 0,
            events: VecDeque::new(),
            cache: Cache::default(),
            written: Written::default(),
            backoff: Backoff::default(),
            surge,
            unavailable,
            disturbed: BTreeSet::new(),
            quiet: false,
            seed,
            crashes: 0,
            replaced: 0,
        };
        for number in 0..NODES {
            world.put_node(worker(number));
        }
        world
    }

    /// Returns `true` in one of `of` cases on average, and never once all is quiet.
    fn happens(&self, of: usize) -> bool {
        !self.quiet && index(&self.random, of) == 0
    }

    fn now(&self) -> Timestamp {
        at(self.second)
    }

    fn key() -> ObjectKey {
        ObjectKey::new("ns", "ds")
    }

    fn hash(&self) -> String {
        let template = &self.set.spec.as_ref().unwrap().template;
        let revision = history::new_revision(&self.set, template, 1, 0, HASH_LABEL);
        hash_of(&revision.metadata).unwrap().to_owned()
    }

    fn fit(&self, node: &str) -> Fit {
        self.nodes.get(node).map(|node| Placement::new(&self.set).fit(node)).unwrap_or_default()
    }

    fn put_node(&mut self, node: Node) {
        let key = name(&node.metadata).to_owned();
        let before = self.fit(&key).run;
        self.nodes.insert(key.clone(), node);
        if before != self.fit(&key).run {
            self.disturbed.insert(key);
        }
    }

    fn put(&mut self, mut pod: v1::Pod) -> v1::Pod {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        self.pods.insert(name(&pod.metadata).to_owned(), (pod.clone(), pod.clone().into()));
        self.events.push_back(Event::Put(Box::new(pod.clone())));
        pod
    }

    fn remove(&mut self, pod: &str) {
        self.pods.remove(pod);
        self.events.push_back(Event::Gone(ObjectKey::new("ns", pod)));
    }

    fn create(&mut self, mut pod: v1::Pod) -> v1::Pod {
        let made = format!("p{:05}", self.version);
        pod.metadata.uid = Some(format!("uid-{made}"));
        pod.metadata.name = Some(made);
        pod.metadata.creation_timestamp = Some(Time(self.now()));
        self.put(pod)
    }

    /// Deletes a pod as the server does: one that is bound stays until its kubelet has stopped it.
    fn delete(&mut self, pod: &Pod) -> bool {
        let live = self.pods.get(name(&pod.metadata));
        let Some((live, slim)) = live.filter(|(live, _)| uid(&live.metadata) == uid(&pod.metadata)) else {
            return false;
        };
        let (mut live, unbound) = (live.clone(), slim.node_name().is_empty());
        if unbound {
            self.remove(name(&pod.metadata));
        } else if !is_deleted(&live.metadata) {
            live.metadata.deletion_timestamp = Some(Time(self.now()));
            self.put(live);
        }
        true
    }

    fn deliver(&mut self) {
        match self.events.pop_front() {
            Some(Event::Put(pod)) => self.cache.apply(*pod),
            Some(Event::Gone(key)) => self.cache.delete(&key),
            None => {}
        }
    }

    /// Starts the controller anew, with a complete list in its cache.
    fn crash(&mut self) {
        self.crashes += 1;
        self.events.clear();
        self.cache = Cache::default();
        self.pods.values().for_each(|(pod, _)| self.cache.apply(pod.clone()));
        self.written = Written::default();
        self.backoff = Backoff::default();
    }

    /// Lets the scheduler, a kubelet or the pod garbage collector do something to one pod.
    fn attend(&mut self) {
        let picked = index(&self.random, self.pods.len().max(1));
        let Some((pod, slim)) = self.pods.values().nth(picked) else { return };
        let (mut pod, node) = (pod.clone(), target(slim).unwrap().to_owned());
        let unbound = slim.node_name().is_empty();
        if is_deleted(&pod.metadata) || (!unbound && !self.nodes.contains_key(&node)) {
            return self.remove(name(&pod.metadata));
        }
        if unbound {
            if !self.nodes.contains_key(&node) {
                return;
            }
            pod.spec.as_mut().unwrap().node_name = Some(node);
        } else if self.happens(12) {
            pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
            set_ready(&mut pod, false, self.second);
            self.disturbed.insert(node);
        } else if pod.status.is_none() {
            pod.status.get_or_insert_default().phase = Some("Running".to_owned());
            set_ready(&mut pod, true, self.second);
        } else {
            return;
        }
        self.put(pod);
    }

    /// Changes the template or a node.
    fn change(&mut self) {
        let mut node = worker(u64::try_from(index(&self.random, 6)).unwrap());
        match index(&self.random, 8) {
            0..=2 => {
                let image = format!("image:{}", index(&self.random, 3));
                let template = &mut self.set.spec.as_mut().unwrap().template;
                template.spec.as_mut().unwrap().containers[0].image = Some(image);
            }
            3 => node.metadata.labels = None,
            4 => taint(&mut node, "k", "NoSchedule"),
            5 => taint(&mut node, "k", "NoExecute"),
            6 => {
                let gone = name(&node.metadata).to_owned();
                self.nodes.remove(&gone);
                self.disturbed.insert(gone);
                return;
            }
            _ => {}
        }
        self.put_node(node);
    }

    /// Lets something happen outside of the controller.
    fn pass(&mut self) {
        match index(&self.random, 8) {
            0..=2 => self.attend(),
            3..=5 => self.deliver(),
            6 => self.second += 1,
            _ if self.happens(4) => self.change(),
            _ => {}
        }
        self.recover();
    }

    /// Ends the disturbance of nodes on which a pod is available again, or none is wanted.
    fn recover(&mut self) {
        let over = |node: &String| !self.fit(node).run || self.has_available(node);
        let over: Vec<_> = self.disturbed.iter().filter(|node| over(node)).cloned().collect();
        for node in over {
            // A node that is not wanted is disturbed when it is wanted again.
            self.disturbed.remove(&node);
        }
    }

    fn has_available(&self, node: &str) -> bool {
        let min_ready = self.set.spec.as_ref().unwrap().min_ready_seconds.unwrap();
        self.live(node).any(|pod| is_available(pod, min_ready, self.now()))
    }

    /// Returns the pods for a node that neither have ended nor are being deleted.
    fn live(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let live =
            move |pod: &&Pod| !is_deleted(&pod.metadata) && !pod.is_finished() && target(pod) == Some(node);
        self.pods.values().map(|(_, pod)| pod).filter(live)
    }

    /// Reconciles as the controller does, on a view that may be out of date, and checks after each write.
    fn reconcile(&mut self) {
        if !self.written.is_shown(&Self::key(), &self.cache) {
            return;
        }
        let is_fresh = self.events.is_empty();
        let (set, hash) = (self.set.clone(), self.hash());
        let nodes: Vec<_> = self.nodes.values().cloned().map(Arc::new).collect();
        let pods = self.cache.list();
        let view = View::new(&set, &hash, &nodes, &pods, self.now());
        let mut backoff = std::mem::take(&mut self.backoff);
        backoff.refresh("uid", 1, view.now);
        let mut next = plan(&view, &mut backoff);
        self.backoff = backoff;
        if next.is_empty() {
            next = rolling::plan(&view);
        }
        let undisturbed = self.write(&view, &next);
        if is_fresh && undisturbed {
            self.check_places();
        }
    }

    /// Writes what is planned; returns `true` unless it crashed or something happened meanwhile.
    fn write(&mut self, view: &View<'_>, plan: &Plan) -> bool {
        let mut undisturbed = true;
        for node in &plan.create {
            if self.happens(20) {
                self.crash();
                return false;
            }
            let pod = self.create(new_pod(view.set, Current::new(view.set, view.current.hash), node));
            self.check();
            if self.happens(20) {
                self.crash();
                return false;
            }
            self.written.pods.wrote(&Self::key(), &pod);
            undisturbed &= !self.interrupt();
        }
        for pod in &plan.delete {
            if self.happens(20) {
                self.crash();
                return false;
            }
            let node = target(pod).unwrap();
            let beside = view.places.iter().find(|place| place.node == node).map(|place| &place.pods[..]);
            let beside = beside.unwrap_or_default();
            let other =
                |other: &&Arc<Pod>| name(&other.metadata) != name(&pod.metadata) && view.is_available(other);
            self.replaced += usize::from(view.is_available(pod));
            if !view.is_available(pod) || beside.iter().any(other) {
                // It may have become available since, or the other pod may have failed.
                self.disturbed.insert(node.to_owned());
            }
            let deleted = self.delete(pod);
            self.recover();
            self.check();
            if self.happens(20) {
                self.crash();
                return false;
            }
            if deleted {
                self.written.removals.deleted(&Self::key(), pod);
            }
            undisturbed &= !self.interrupt();
        }
        undisturbed
    }

    fn interrupt(&mut self) -> bool {
        let happens = self.happens(3);
        if happens {
            self.attend();
            self.recover();
        }
        happens
    }

    /// Checks what holds at any time.
    fn check(&self) {
        let wanted = || self.nodes.keys().filter(|node| self.fit(node).run);
        for node in wanted() {
            let count = self.live(node).count();
            assert!(count <= 1 + usize::from(self.surge > 0), "{} for {node}", self.describe(node));
        }
        let missing = wanted().filter(|node| !self.disturbed.contains(*node) && !self.has_available(node));
        let missing: Vec<_> = missing.collect();
        let described = || missing.iter().map(|node| self.describe(node)).collect::<Vec<_>>().join("");
        assert!(missing.len() <= self.unavailable, "no pod is available on {missing:?}: {}", described());
    }

    /// Returns the server's and the cache's pods for a node.
    fn describe(&self, node: &str) -> String {
        let bounds = (self.surge, self.unavailable);
        let mut text = format!("seed {}, second {}, bounds {bounds:?}\n", self.seed, self.second);
        let shown = self.cache.list();
        let server = self.pods.values().map(|(_, pod)| ("server", pod));
        for (place, pod) in server.chain(shown.iter().map(|pod| ("cache", &**pod))) {
            if target(pod) == Some(node) {
                let hash = hash_of(&pod.metadata);
                let bound = !pod.node_name().is_empty();
                let gone = is_deleted(&pod.metadata);
                let since = crate::pods::ready_since(pod).map(|since| since.duration_since(at(0)).as_secs());
                let name = name(&pod.metadata);
                text += &format!(
                    "{place}: {name} of {hash:?}, bound {bound}, ready since {since:?}, gone {gone}\n"
                );
            }
        }
        text + &format!("current {}\n", self.hash())
    }

    /// Checks that one reconciliation leaves no pod on a node that should have none.
    fn check_places(&self) {
        for node in self.nodes.keys().filter(|node| !self.fit(node).keep) {
            assert_eq!(self.live(node).count(), 0, "seed {}: pods on {node}", self.seed);
        }
    }

    /// Lets everything come to rest, and checks that the right pods remain.
    fn rest(&mut self) {
        self.quiet = true;
        for _ in 0..40 {
            // Long enough for every pod to be attended to, and for the longest back-off to end.
            self.second += 30;
            (0..24).for_each(|_| self.pass());
            self.reconcile();
        }
        let hash = self.hash();
        for node in self.nodes.keys() {
            let pods: Vec<_> = self.live(node).collect();
            let fit = self.fit(node);
            if fit.run {
                assert_eq!(pods.len(), 1, "seed {}: pods on {node}", self.seed);
                assert!(self.has_available(node), "seed {}: {node} has no available pod", self.seed);
                assert_eq!(hash_of(&pods[0].metadata), Some(hash.as_str()), "seed {}", self.seed);
            } else if !fit.keep {
                assert!(pods.is_empty(), "seed {}: pods on {node}", self.seed);
            }
        }
        assert!(
            self.pods.values().all(|(_, pod)| self.nodes.contains_key(target(pod).unwrap())),
            "seed {}",
            self.seed
        );
        let nodes: Vec<_> = self.nodes.values().cloned().map(Arc::new).collect();
        let pods = self.cache.list();
        let status = status::status(&View::new(&self.set, &hash, &nodes, &pods, self.now()));
        assert_eq!(status.number_unavailable, None, "seed {}: {status:?}", self.seed);
        assert_eq!(status.updated_number_scheduled.unwrap_or(0), status.desired_number_scheduled);
    }
}

fn index(random: &Ambient, of: usize) -> usize {
    usize::try_from(random.random.next_u64() % u64::try_from(of).unwrap()).unwrap()
}

fn worker(number: u64) -> Node {
    let mut node = testing::node(&format!("n{number}"));
    node.metadata.labels = Some(labels(&[("role", "worker")]));
    node
}

#[tokio::test(start_paused = true)]
async fn promises_hold_through_updates_crashes_and_changes_of_nodes() {
    let (mut crashes, mut replaced) = (0, 0);
    let seeds = crate::seeded::seeds(LIVES);
    let is_all = seeds.end - seeds.start >= LIVES;
    for seed in seeds {
        let mut world = World::new(seed);
        for _ in 0..Dice::new(seed).steps(1200) {
            world.pass();
            if world.happens(3) {
                world.reconcile();
            }
        }
        world.rest();
        crashes += world.crashes;
        replaced += world.replaced;
    }
    assert!(!is_all || crashes > 8 && replaced > 8, "{crashes} crashes, {replaced} replaced pods");
}
