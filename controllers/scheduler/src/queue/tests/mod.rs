//! Covers the cases that kube-scheduler's tests of its queue name, at the feature gates' defaults; docs/scheduler.md counts them.

mod attempts;
mod backoff;
mod gates;
mod groups;
mod metrics;
mod model;
mod order;
mod updates;
mod wakes;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::groups::group_of;
use crate::framework::{Code, Hint, Plugin, Reach, Refusal, Sampling};
use crate::pod::PodInfo;

const NODE_ADD: Event = Event::new(Resource::Node, Actions::ADD);
const VOLUME_ADD: Event = Event::new(Resource::PersistentVolume, Actions::ADD);
const CLAIM_ADD: Event = Event::new(Resource::PersistentVolumeClaim, Actions::ADD);
const CSI_NODE_UPDATE: Event = Event::new(Resource::CsiNode, Actions::UPDATE);
const ASSIGNED_ADD: Event = Event::new(Resource::AssignedPod, Actions::ADD);
const ASSIGNED_DELETE: Event = Event::new(Resource::AssignedPod, Actions::DELETE);
const OWN_UPDATE: Event = Event::new(Resource::UnscheduledPod, Actions::UPDATE);

/// The plugin for which pods matter to those of their own group alone.
const BY_GROUP: &str = "ByGroup";

/// A plugin with scripted answers.
struct Fake {
    name: &'static str,
    events: Vec<Event>,
    hint: Hint,
    /// Labels of which a pod must have one to pass PreEnqueue; all pods pass if there is no list.
    allowed: Option<Arc<Mutex<Vec<&'static str>>>>,
    /// Number of calls of `hint`.
    hints: Arc<AtomicUsize>,
}

impl Plugin for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn pre_enqueue(&self, pod: &PodInfo, _: &Cluster) -> Option<Refusal> {
        let allowed = self.allowed.as_ref()?.lock().unwrap();
        let passes = allowed.iter().any(|label| pod.labels().contains_key(*label));
        (!passes).then(|| Refusal::new(Code::Unresolvable, "not allowed"))
    }

    fn events(&self) -> Vec<Event> {
        self.events.clone()
    }

    fn reach(&self, change: &Change<'_>, _: &Cluster) -> Reach {
        match change {
            Change::Pod(Versions { new: Some(pod), .. }) if self.name == BY_GROUP => {
                group_of(pod).map_or(Reach::None, Reach::Group)
            }
            _ => Reach::All,
        }
    }

    fn hint(&self, _: &PodInfo, _: &Change<'_>, _: &Cluster) -> Hint {
        self.hints.fetch_add(1, Ordering::Relaxed);
        self.hint
    }
}

/// A queue with scripted plugins and a clock.
struct Rig {
    queue: Queue,
    cluster: Cluster,
    start: Instant,
    now: Instant,
    pods: BTreeMap<String, Arc<PodInfo>>,
    hints: Arc<AtomicUsize>,
    gates: BTreeMap<&'static str, Arc<Mutex<Vec<&'static str>>>>,
}

/// A plugin's name, its events and its hint.
type Script = (&'static str, &'static [Event], Hint);

/// Plugins that wait for nodes and for updates of the pod itself, one of which always says that these do not help, and
/// those that wait for other things.
const USUAL: &[Script] = &[
    ("Queues", &[NODE_ADD, OWN_UPDATE], Hint::Queue),
    ("Skips", &[NODE_ADD, OWN_UPDATE], Hint::Skip),
    ("Volumes", &[VOLUME_ADD], Hint::Queue),
    ("Deaf", &[], Hint::Queue),
];

impl Rig {
    fn new() -> Self {
        Self::with(USUAL)
    }

    fn with(scripts: &[Script]) -> Self {
        Self::configured(QueueConfig::default(), scripts, &[])
    }

    /// Makes a queue whose plugins named in `gated` let nothing pass PreEnqueue until [`Self::allow`].
    fn configured(config: QueueConfig, scripts: &[Script], gated: &[&'static str]) -> Self {
        let hints = Arc::new(AtomicUsize::new(0));
        let gates: BTreeMap<_, _> = gated.iter().map(|name| (*name, Arc::default())).collect();
        let profile = |name: &str| {
            let plugin = |(name, events, hint): &Script| -> Box<dyn Plugin> {
                Box::new(Fake {
                    name,
                    events: events.to_vec(),
                    hint: *hint,
                    allowed: gates.get(name).map(Arc::clone),
                    hints: Arc::clone(&hints),
                })
            };
            let all: Vec<usize> = (0..scripts.len()).collect();
            Profile {
                name: name.to_owned(),
                plugins: scripts.iter().map(plugin).collect(),
                pre_enqueue: all,
                pre_filter: Vec::new(),
                filter: Vec::new(),
                post_filter: Vec::new(),
                score: Vec::new(),
                reserve: Vec::new(),
                permit: Vec::new(),
                pre_bind: Vec::new(),
                post_bind: Vec::new(),
                sampling: Sampling::All,
            }
        };
        let profiles = vec![profile("default-scheduler"), profile("second")].into();
        let start = Instant::now();
        Self {
            queue: Queue::new(config, profiles),
            cluster: Cluster::default(),
            start,
            now: start,
            pods: BTreeMap::new(),
            hints,
            gates,
        }
    }

    fn allow(&self, gate: &str, labels: &[&'static str]) {
        *self.gates[gate].lock().unwrap() = labels.to_vec();
    }

    fn pod(&mut self, uid: &str, fields: Value) -> Arc<PodInfo> {
        let pod = Arc::new(pod(uid, fields));
        self.pods.insert(uid.to_owned(), Arc::clone(&pod));
        pod
    }

    fn add(&mut self, uid: &str) {
        self.add_pod(uid, json!({}));
    }

    fn add_with_priority(&mut self, uid: &str, priority: i32) {
        self.add_pod(uid, json!({"spec": {"priority": priority}}));
    }

    fn add_labeled(&mut self, uid: &str, label: &str) {
        self.add_pod(uid, json!({"metadata": {"labels": {label: ""}}}));
    }

    fn add_pod(&mut self, uid: &str, fields: Value) {
        let pod = self.pod(uid, fields);
        self.queue.add(pod, &self.cluster, self.now);
    }

    fn update(&mut self, uid: &str, fields: Value) {
        let old = Arc::clone(&self.pods[uid]);
        let new = self.pod(uid, fields);
        self.queue.update(&old, new, &self.cluster, self.now);
    }

    fn attempt(&mut self) -> Option<Attempting> {
        self.queue.pop(self.now)
    }

    fn pop(&mut self) -> Option<String> {
        self.attempt().map(|attempt| attempt.pod.uid.to_string())
    }

    fn pop_all(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    fn fail(&mut self, uid: &str, plugins: &[&'static str], pending: &[&'static str]) {
        let failure = Failure {
            plugins: plugins.iter().copied().collect(),
            pending: pending.iter().copied().collect(),
            is_error: false,
        };
        let pod = Arc::clone(&self.pods[uid]);
        self.queue.failed(&pod, failure, &self.cluster, self.now);
    }

    fn error(&mut self, uid: &str) {
        self.fail(uid, &[], &[]);
    }

    /// Adds a pod and lets its attempt fail.
    fn refused(&mut self, uid: &str, plugins: &[&'static str], pending: &[&'static str]) {
        self.add_with_priority(uid, i32::MAX);
        assert_eq!(self.pop().as_deref(), Some(uid));
        self.fail(uid, plugins, pending);
    }

    fn happen(&mut self, event: Event) {
        self.queue.happened(event, &Change::Other, &self.cluster, self.now);
    }

    /// Lets time pass, in which nobody calls the queue.
    fn pass(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }

    /// Lets time pass and calls [`Queue::flush`] whenever it is due.
    fn run(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while let Some(deadline) = self.queue.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.queue.flush(&self.cluster, self.now);
            assert_ne!(self.queue.deadline(), Some(deadline), "what was due is done");
        }
        self.now = end;
    }

    fn activate(&mut self, uid: &str) {
        self.queue.activate([&Uid::from(uid)], &self.cluster, self.now);
    }

    fn remove(&mut self, uid: &str) {
        self.queue.remove(&Uid::from(uid));
    }

    fn done(&mut self, uid: &str) {
        self.queue.done(&Uid::from(uid));
    }

    fn pool(&self, uid: &str) -> Option<Pool> {
        self.queue.pool_of(&Uid::from(uid))
    }

    /// Returns the numbers of pods that are active, in back-off, unschedulable and gated.
    fn counts(&self) -> [usize; 4] {
        let counts = self.queue.counts();
        [counts.active, counts.backoff, counts.unschedulable, counts.gated]
    }

    fn hints(&self) -> usize {
        self.hints.swap(0, Ordering::Relaxed)
    }
}

/// Parses a pod with this uid and these fields.
fn pod(uid: &str, fields: Value) -> PodInfo {
    let mut pod =
        json!({"metadata": {"name": uid, "namespace": "default", "uid": uid}, "spec": {"containers": []}});
    merge(&mut pod, fields);
    PodInfo::parse(from_value(pod).unwrap())
}

fn merge(into: &mut Value, fields: Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (name, value) in fields {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, fields) => *into = fields,
    }
}
