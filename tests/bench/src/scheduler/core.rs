//! The core in this process: the queue and one attempt after the other, as the scheduler's loop makes them, with caches
//! that show each binding at once. Nothing is sent or waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use controllers_scheduler::cluster::devices::{ClaimPlan, DevicePlan};
use controllers_scheduler::cluster::terms::Owner;
use controllers_scheduler::cluster::{Cluster, NodeFacts, NodeId};
use controllers_scheduler::config::default_profile;
use controllers_scheduler::framework::{
    Actions, Change, Diagnosis, Event, Meter, NominatedFirst, PreBind, Profile, Resource, Versions, Views,
    choose, find_feasible,
};
use controllers_scheduler::pod::PodInfo;
use controllers_scheduler::preemption::{Candidate, Found, post_filter};
use controllers_scheduler::queue::{Attempting, Failure, Queue, QueueConfig};
use controllers_scheduler::selector::Selector;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::workloads::{Group, Workload};

/// A pod of the churn comes after so many others: as many as kube-scheduler is expected to place (160 a second) in the
/// 200 ms between two such pods.
pub const CHURN_EVERY: usize = 32;
/// Number of attempts whose latency is measured.
const ATTEMPTS: usize = 200;

/// The state of the loop, which one task owns elsewhere.
pub struct Core {
    profiles: Arc<[Profile]>,
    cluster: Cluster,
    views: Views,
    queue: Queue,
    start: usize,
    random: u64,
    /// Number of pods that were made.
    made: u64,
    /// The objects of pods that may be nominated.
    objects: BTreeMap<Uid, Value>,
}

/// Figures of a workload.
pub struct Figures {
    pub per_second: f64,
    /// Processor time per pod in seconds.
    pub cpu: f64,
    /// Attempts that refused a pod which then waits, per second.
    pub refusals_per_second: Option<f64>,
    /// Time of the first attempt for a template.
    pub first: f64,
    /// Times of further attempts.
    pub latencies: Vec<f64>,
}

/// Measures a workload.
pub fn measure(workload: &Workload) -> Result<Figures> {
    let mut core = Core::new(workload)?;
    for group in &workload.init {
        let pods = core.pods(group, 0..group.count)?;
        core.place_all(pods, Vec::new())?;
    }
    let mut refusals_per_second = None;
    if let Some(parked) = &workload.parked {
        let pods = core.pods(parked, 0..parked.count)?;
        let took = core.refuse_all(pods)?;
        refusals_per_second = Some(parked.count as f64 / took.as_secs_f64());
    }
    let latencies = core.latencies(&workload.measured)?;
    let (first, latencies) = latencies.split_first().context("there was no attempt")?;
    let measured = core.pods(&workload.measured, 0..workload.measured.count)?;
    let churn = match &workload.churn {
        Some(churn) => core.pods(churn, 0..measured.len() / CHURN_EVERY)?,
        None => Vec::new(),
    };
    let count = measured.len();
    let before = processor_time()?;
    let took = core.place_all(measured, churn)?;
    let cpu = (processor_time()? - before).as_secs_f64() / count as f64;
    Ok(Figures {
        per_second: count as f64 / took.as_secs_f64(),
        cpu,
        refusals_per_second,
        first: *first,
        latencies: latencies.to_vec(),
    })
}

impl Core {
    /// Returns a cluster with the nodes of a workload and the objects that its pods refer to.
    pub fn new(workload: &Workload) -> Result<Self> {
        let profiles: Arc<[Profile]> = vec![default_profile()].into();
        let mut core = Self {
            queue: Queue::new(QueueConfig::default(), Arc::clone(&profiles)),
            profiles,
            cluster: Cluster::default(),
            views: Views::default(),
            start: 0,
            random: 1,
            made: 0,
            objects: BTreeMap::new(),
        };
        for node in workload.nodes() {
            core.cluster.set_node(Arc::new(NodeFacts::parse(parse::<Node>(node)?)));
        }
        core.cluster.set_namespace("default", Some(BTreeMap::new()));
        workload.others().into_iter().try_for_each(|(_, object)| core.add(object))?;
        Ok(core)
    }

    /// Adds an object that is neither a node nor a pod.
    fn add(&mut self, object: Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let key = ObjectKey::new(&namespace, &name);
        let storage = &mut self.cluster.storage;
        match object["kind"].as_str().unwrap_or_default() {
            "ServiceAccount" | "PriorityClass" => {}
            "Namespace" => {
                let labels = parse::<Namespace>(object)?.metadata.labels;
                self.cluster.set_namespace(&name, Some(labels.unwrap_or_default()));
            }
            "Service" => {
                let selector = parse::<Service>(object)?.spec.and_then(|spec| spec.selector);
                self.cluster.set_service(&namespace, &name, selector);
            }
            "ReplicaSet" => {
                let spec = parse::<ReplicaSet>(object)?.spec;
                let selector = spec.map(|spec| Selector::parse(Some(&spec.selector)));
                self.cluster.set_controller(Owner::ReplicaSet, &namespace, &name, selector);
            }
            "CSINode" => drop(storage.set_csi_node(&name, Some(Arc::new(parse(object)?)))),
            "PersistentVolume" => drop(storage.set_volume(&name, Some(Arc::new(parse(object)?)))),
            "PersistentVolumeClaim" => drop(storage.set_claim(&key, Some(Arc::new(parse(object)?)))),
            "DeviceClass" => self.cluster.device_classes.set(Arc::new(parse(object)?)),
            "ResourceSlice" => drop(self.cluster.devices.set_slice(&name, Some(Arc::new(parse(object)?)))),
            "ResourceClaim" => {
                self.made += 1;
                let mut claim: ResourceClaim = parse(object)?;
                claim.metadata.uid = Some(uid(self.made));
                self.cluster.devices.set_claim(&key, Some(Arc::new(claim)));
            }
            other => bail!("the core is not told of a {other}"),
        }
        Ok(())
    }

    /// Returns pods of a group as a cache holds them.
    fn pods(&mut self, group: &Group, of: std::ops::Range<usize>) -> Result<Vec<Arc<PodInfo>>> {
        of.map(|i| {
            self.made += 1;
            let mut object = group.pod(i);
            object["metadata"]["uid"] = uid(self.made).into();
            if object["spec"]["priority"].is_number() {
                self.objects.insert(Uid::from(uid(self.made).as_str()), object.clone());
            }
            Ok(Arc::new(PodInfo::parse(parse::<Pod>(object)?)))
        })
        .collect()
    }

    /// Places pods, and attempts one of `churn` after each [`CHURN_EVERY`]; returns the time that this takes.
    fn place_all(&mut self, pods: Vec<Arc<PodInfo>>, churn: Vec<Arc<PodInfo>>) -> Result<Duration> {
        let (count, mut churn) = (pods.len(), churn.into_iter());
        let began = Instant::now();
        for pod in pods {
            self.queue.add(pod, &self.cluster, tokio::time::Instant::now());
        }
        let (mut placed, mut why) = (0, None);
        while placed < count {
            let Some(attempting) = self.queue.pop(tokio::time::Instant::now()) else { break };
            // The next pod of the churn may come before the last one is placed.
            let is_churn = attempting.pod.name().starts_with("churn");
            match self.attempt(&attempting) {
                Ok(()) if is_churn => {}
                Ok(()) => placed += 1,
                Err(diagnosis) => why = Some(diagnosis),
            }
            if !is_churn
                && placed % CHURN_EVERY == 0
                && let Some(pod) = churn.next()
            {
                self.queue.add(pod, &self.cluster, tokio::time::Instant::now());
            }
        }
        let took = began.elapsed();
        ensure!(placed == count, "{} of {count} pods have no node: {why:?}", count - placed);
        Ok(took)
    }

    /// Attempts pods that no node has room for; returns the time that this takes.
    fn refuse_all(&mut self, pods: Vec<Arc<PodInfo>>) -> Result<Duration> {
        let began = Instant::now();
        for pod in pods {
            self.queue.add(pod, &self.cluster, tokio::time::Instant::now());
            let attempting = self.queue.pop(tokio::time::Instant::now()).context("no pod waits")?;
            ensure!(self.attempt(&attempting).is_err(), "{} has a node", attempting.pod.key());
        }
        Ok(began.elapsed())
    }

    /// Returns the times of attempts for pods that are not counted afterwards.
    fn latencies(&mut self, group: &Group) -> Result<Vec<f64>> {
        let pods = self.pods(group, 0..ATTEMPTS.min(group.count))?;
        let mut times = Vec::new();
        for pod in pods {
            let began = Instant::now();
            match self.choose(&pod) {
                Ok(id) => {
                    self.assume(&pod, id)?;
                    times.push(began.elapsed().as_secs_f64());
                    self.cluster.devices.unreserve(&pod);
                    self.cluster.remove_pod(&pod);
                }
                Err(mut diagnosis) => {
                    self.search(&pod, &mut diagnosis);
                    times.push(began.elapsed().as_secs_f64());
                }
            }
        }
        Ok(times)
    }

    /// Attempts a pod; returns why it has no node.
    fn attempt(&mut self, attempting: &Attempting) -> Result<(), String> {
        let pod = &attempting.pod;
        let id = match self.choose(pod) {
            Ok(id) => id,
            Err(diagnosis) => return self.refuse(pod, *diagnosis),
        };
        self.cluster.nominated.remove(pod);
        let devices = self.assume(pod, id).map_err(|error| error.to_string())?;
        self.queue.done(&pod.uid);
        // The caches show the pod on its node, with its devices.
        for claim in devices.into_iter().flat_map(|plan| plan.claims) {
            self.allocate(pod, claim);
        }
        let node = Arc::clone(&self.cluster.node(id).name);
        self.cluster.place(pod, &node);
        self.happened(Actions::ADD, Versions { old: None, new: Some(pod) });
        Ok(())
    }

    fn happened(&mut self, action: Actions, pod: Versions<'_, PodInfo>) {
        let event = Event::new(Resource::AssignedPod, action);
        self.queue.happened(event, &Change::Pod(pod), &self.cluster, tokio::time::Instant::now());
    }

    /// Returns the best node for a pod.
    fn choose(&mut self, pod: &PodInfo) -> Result<NodeId, Box<Diagnosis>> {
        let (profile, cluster, views) = (&self.profiles[0], &mut self.cluster, &mut self.views);
        cluster.devices.steps.reset();
        let feasible = find_feasible(
            profile,
            pod,
            cluster,
            views,
            self.start,
            NominatedFirst::Yes,
            &mut Meter::default(),
        )?;
        self.start = (self.start + feasible.evaluated) % cluster.capacity().max(1);
        if let Some(only) = feasible.only() {
            return Ok(only);
        }
        let random = next_random(&mut self.random);
        let chosen = choose(profile, pod, cluster, views, &feasible, random, &mut Meter::default());
        Ok(chosen.expect("there are feasible nodes"))
    }

    /// Gives a claim its devices.
    fn allocate(&mut self, pod: &PodInfo, plan: ClaimPlan) {
        let mut claim = ResourceClaim::clone(&plan.claim);
        let consumer = ResourceClaimConsumerReference {
            resource: "pods".to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid.to_string(),
            ..ResourceClaimConsumerReference::default()
        };
        let reserved_for = Some(vec![consumer]);
        claim.status = Some(ResourceClaimStatus {
            allocation: plan.allocation,
            reserved_for,
            ..ResourceClaimStatus::default()
        });
        self.cluster.devices.set_claim(&ObjectKey::of(&claim), Some(Arc::new(claim)));
    }

    /// Counts a pod on a node, and reserves what plugins want; returns the devices that its claims are to get.
    fn assume(&mut self, pod: &Arc<PodInfo>, id: NodeId) -> Result<Option<Box<DevicePlan>>> {
        let node = Arc::clone(&self.cluster.node(id).name);
        self.cluster.place(pod, &node);
        let (profile, mut devices) = (&self.profiles[0], None);
        for &plugin in &profile.reserve {
            let plan = profile.plugin(plugin).reserve(pod, id, &mut self.cluster);
            let plan = plan.map_err(|why| anyhow::anyhow!("{} is refused: {}", pod.key(), why.message()))?;
            match plan {
                None => {}
                Some(PreBind::Devices(plan)) => devices = Some(plan),
                Some(PreBind::Volumes(_)) => bail!("{}: there are volumes to bind before", pod.key()),
            }
        }
        Ok(devices)
    }

    /// Looks for pods to preempt.
    fn search(&mut self, pod: &PodInfo, diagnosis: &mut Diagnosis) -> Option<Found> {
        let random = next_random(&mut self.random);
        post_filter(&self.profiles[0], pod, &mut self.cluster, diagnosis, random)
    }

    /// Preempts other pods, if that helps, and returns the pod to the queue.
    fn refuse(&mut self, pod: &Arc<PodInfo>, mut diagnosis: Diagnosis) -> Result<(), String> {
        let found = self.search(pod, &mut diagnosis);
        let failure = Failure {
            plugins: diagnosis.plugins.clone(),
            pending: diagnosis.pending.clone(),
            is_error: diagnosis.is_error(),
        };
        self.queue.failed(pod, failure, &self.cluster, tokio::time::Instant::now());
        if let Some(Found::Candidate(candidate)) = found {
            self.evict(pod, candidate).map_err(|error| format!("{error:#}"))?;
        }
        Err(diagnosis.to_string())
    }

    /// Removes the victims of a pod at once, and lets it try again.
    fn evict(&mut self, pod: &PodInfo, candidate: Candidate) -> Result<()> {
        let node = Arc::clone(&self.cluster.node(candidate.node).name);
        let mut object = self.objects.get(&pod.uid).context("the pod has no priority")?.clone();
        object["status"]["nominatedNodeName"] = (*node).into();
        let nominated = Arc::new(PodInfo::parse(parse::<Pod>(object)?));
        self.cluster.nominated.set(&nominated, &node);
        let now = tokio::time::Instant::now();
        self.queue.add(Arc::clone(&nominated), &self.cluster, now);
        for victim in &candidate.victims {
            self.cluster.remove_pod(victim);
            self.happened(Actions::DELETE, Versions { old: Some(victim), new: None });
        }
        self.queue.activate([&nominated.uid], &self.cluster, now);
        Ok(())
    }
}

/// Returns the processor time that this thread has had.
fn processor_time() -> Result<Duration> {
    const PATH: &str = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}"))?;
    let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    nanoseconds.map(Duration::from_nanos).with_context(|| format!("{PATH} has {text:?}"))
}

/// Returns the uid of a pod by its number.
pub fn uid(number: u64) -> String {
    format!("{number:08x}-8d5e-4b0e-9a60-0f2b6f6f1c11")
}

fn parse<T: DeserializeOwned>(object: Value) -> Result<T> {
    let text = object.to_string();
    serde_json::from_value(object).with_context(|| format!("{text} cannot be read"))
}

/// Returns the next number of a sequence, by a step of xorshift.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::workloads;

    #[test]
    fn each_workload_places_all_its_pods_at_a_hundredth_of_its_size() {
        for workload in workloads::all() {
            let small = workload.of_size(workload.nodes / 100);
            let figures = measure(&small).unwrap_or_else(|error| panic!("{}: {error:#}", small.name));
            assert!(figures.per_second > 0.0 && !figures.latencies.is_empty(), "{}", small.name);
        }
    }
}
