//! Starts one task for each pod of the node, and cleans up after pods that no longer exist in the API.

use apiserver_meta::pods;
use apiserver_meta::resources::QosClass;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apiserver_client::{Cache, Change, Latest};
use k8s_openapi::api::core::v1::Pod;
use kubelet_cri::{SandboxSummary, labels};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    agent::Agent,
    limits,
    machine::PodPlace,
    pod::{
        self,
        admit::{NodeView, admit, admit_resize},
        resources::class_cgroup,
        spec::GRACE_PERIOD,
    },
    tracked::{Mode, TrackedPod},
    worker,
};

/// Runs a task for each pod of the node until shutdown. On shutdown the tasks end, but the pods keep running.
pub(crate) async fn run(agent: Arc<Agent>, pods: Cache<Pod>, shutdown: CancellationToken) {
    // By uid: no more than there are pods.
    let changes = Latest::new();
    let to = changes.clone();
    pods.on_change(move |change| {
        let (pod, deleted) = match change {
            Change::Applied { new, .. } => (new, false),
            Change::Deleted(last) => (last, true),
        };
        to.put(pod::uid(pod).to_owned(), (Arc::clone(pod), deleted));
    });
    let mut workers = JoinSet::new();
    // Separate from the loop because cleaning up may take long; one run at a time.
    let mut cleanup = JoinSet::new();
    let reported = Arc::new(tokio::sync::Mutex::default());
    let mut housekeeping = tokio::time::interval(limits::HOUSEKEEPING);
    housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            (pod, deleted) = changes.take() => {
                if deleted {
                    forget(&agent, &pod);
                    retry_resizes(&agent);
                } else if let Some(tracked) = apply_pod(&agent, pod, pods.has_synced()) {
                    let agent = Arc::clone(&agent);
                    workers.spawn(async move {
                        worker::run(Arc::clone(&agent), Arc::clone(&tracked)).await;
                        tracked.change(|state| state.terminated = true);
                        if tracked.state().gone {
                            agent.tracked_pods().remove(&tracked.place.uid);
                        }
                    });
                }
            }
            Some(ended) = workers.join_next(), if !workers.is_empty() => {
                if let Err(error) = ended {
                    warn!(%error, "the task of a pod failed");
                }
            }
            _ = housekeeping.tick(), if pods.has_synced() => {
                retry_resizes(&agent);
                while cleanup.try_join_next().is_some() {}
                if cleanup.is_empty() {
                    let (agent, reported) = (Arc::clone(&agent), Arc::clone(&reported));
                    cleanup.spawn(async move { clean_up_orphans(&agent, &mut *reported.lock().await).await });
                }
            }
        }
    }
}

/// Applies a new state of a pod from the API; returns the tracked pod if it is new.
///
/// No resize is decided before all pods are known, since the missing ones would seem to leave room.
fn apply_pod(agent: &Agent, pod: Arc<Pod>, all_known: bool) -> Option<Arc<TrackedPod>> {
    let uid = pod::uid(&pod).to_owned();
    let known = agent.tracked_pods().get(&uid).cloned();
    if let Some(tracked) = known {
        update(agent, &tracked, pod, all_known);
        return None;
    }
    let now = agent.ambient.now();
    let tracked = Arc::new(TrackedPod::new(Arc::clone(&pod), &agent.config.cgroup_root, now));
    // A pod that has been started is no longer refused.
    let has_begun = pod.status.as_ref().is_some_and(|status| status.start_time.is_some());
    if !has_begun && pod.metadata.deletion_timestamp.is_none() {
        let others = active(agent);
        let others: Vec<&Pod> = others.iter().map(Arc::as_ref).collect();
        let labels = agent.node_labels();
        let node = NodeView {
            name: &agent.config.node_name,
            allocatable: &agent.allocatable,
            labels: labels.as_ref(),
            sysctls: &agent.sysctls,
            apparmor: agent.machine.info().apparmor,
            strict_groups: agent.runtime_status.load().supplemental_groups_policy,
        };
        if let Err(verdict) = admit(&node, &pod, &others) {
            warn!(pod = pod::name(&pod), reason = verdict.reason, "pod was refused");
            agent.event(&pod, None, verdict.reason, verdict.message.clone());
            tracked.state().verdict = Some(verdict);
        }
    }
    agent.tracked_pods().insert(uid, Arc::clone(&tracked));
    Some(tracked)
}

/// Returns the pods that hold resources of the node, with the resources that they are granted.
fn active(agent: &Agent) -> Vec<Arc<Pod>> {
    let held = |tracked: &Arc<TrackedPod>| {
        let state = tracked.state();
        let finished = pods::is_final(state.status.phase.as_deref().unwrap_or_default());
        (!finished && !state.gone && state.verdict.is_none()).then(|| Arc::clone(&state.pod))
    };
    agent.tracked_pods().values().filter_map(held).collect()
}

/// Applies a new state of a known pod, and decides on its resize.
fn update(agent: &Agent, tracked: &TrackedPod, pod: Arc<Pod>, all_known: bool) {
    let (runs, granted) = (tracked.mode() == Mode::Run, tracked.state().resize.grants(&pod));
    let verdict = match (runs && all_known, granted) {
        (false, _) => None,
        (true, true) => Some(Ok(())),
        (true, false) => {
            let others = active(agent);
            let others: Vec<&Pod> =
                others.iter().map(Arc::as_ref).filter(|other| pod::uid(other) != tracked.place.uid).collect();
            Some(admit_resize(&agent.allocatable, &pod, &others))
        }
    };
    let event = tracked.replace_pod(Arc::clone(&pod), verdict, agent.ambient.now());
    if let Some((reason, message)) = event {
        agent.event(&pod, None, reason, message);
    }
}

/// Decides again on deferred resizes: higher priority first, then those that have waited longer.
fn retry_resizes(agent: &Agent) {
    let mut waiting: Vec<_> = agent
        .tracked_pods()
        .values()
        .filter_map(|tracked| {
            let runs = tracked.mode() == Mode::Run;
            let state = tracked.state();
            if !runs || state.resize.grants(&state.desired) {
                return None;
            }
            let priority = pod::spec(&state.desired).priority.unwrap_or_default();
            let since = state.resize.pending.as_ref().map(|condition| condition.since);
            Some(((std::cmp::Reverse(priority), since), Arc::clone(tracked), Arc::clone(&state.desired)))
        })
        .collect();
    waiting.sort_by_key(|(order, ..)| *order);
    for (_, tracked, desired) in waiting {
        update(agent, &tracked, desired, true);
    }
}

/// Marks a pod as gone after its object was deleted. Its worker stops what still runs; if the worker has
/// already ended, the pod is removed.
fn forget(agent: &Agent, pod: &Pod) {
    let tracked = agent.tracked_pods().get(pod::uid(pod)).cloned();
    let Some(tracked) = tracked else { return };
    let over = tracked.change(|state| {
        state.gone = true;
        state.terminated
    });
    if over {
        agent.tracked_pods().remove(&tracked.place.uid);
    }
}

/// Removes sandboxes, directories and cgroups that belong to no pod of the API. `reported` contains the uids of
/// those that could not be cleaned up and have already been logged.
async fn clean_up_orphans(agent: &Agent, reported: &mut BTreeSet<String>) {
    let (sandboxes, containers) =
        match (agent.runtime.list_pod_sandboxes(None).await, agent.runtime.list_containers(None).await) {
            (Ok(sandboxes), Ok(containers)) => (sandboxes, containers),
            (Err(error), _) | (_, Err(error)) => return debug!(%error, "cannot list orphaned pods"),
        };
    let known: BTreeSet<String> = agent.tracked_pods().keys().cloned().collect();
    let mut orphans: BTreeMap<String, Vec<SandboxSummary>> = BTreeMap::new();
    for sandbox in sandboxes.into_iter().filter(|sandbox| !known.contains(&sandbox.uid)) {
        orphans.entry(sandbox.uid.clone()).or_default().push(sandbox);
    }
    for (uid, sandboxes) in &orphans {
        let mine = |labels: &BTreeMap<String, String>| labels.get(labels::POD_UID) == Some(uid);
        for container in containers.iter().filter(|container| mine(&container.labels)) {
            let seconds =
                container.annotations.get(GRACE_PERIOD).and_then(|text| text.parse().ok()).unwrap_or(30);
            if let Err(error) =
                agent.runtime.stop_container(&container.id, Duration::from_secs(seconds)).await
            {
                debug!(%error, "cannot stop an orphaned pod");
            }
        }
        for sandbox in sandboxes {
            info!(pod = sandbox.name, namespace = sandbox.namespace, "removing an orphaned pod");
            let removed = async {
                agent.runtime.stop_pod_sandbox(&sandbox.id).await?;
                agent.runtime.remove_pod_sandbox(&sandbox.id).await
            };
            if let Err(error) = removed.await {
                debug!(%error, "cannot remove an orphaned pod");
            }
        }
        if let Some(sandbox) = sandboxes.first() {
            let place = PodPlace {
                uid: uid.clone(),
                namespace: sandbox.namespace.clone(),
                name: sandbox.name.clone(),
                cgroup: String::new(),
            };
            agent.machine.remove_logs(&place).await;
            clean(agent, place, reported).await;
        }
    }
    let on_disk = agent.machine.pods_on_disk().await;
    reported.retain(|uid| orphans.contains_key(uid) || on_disk.contains(uid));
    for uid in on_disk {
        if !known.contains(&uid) && !agent.tracked_pods().contains_key(&uid) && !orphans.contains_key(&uid) {
            clean(agent, PodPlace { uid, ..PodPlace::default() }, reported).await;
        }
    }
}

/// Removes the directory and the cgroup of a pod of which only the uid is known for certain.
async fn clean(agent: &Agent, place: PodPlace, reported: &mut BTreeSet<String>) {
    let mut failure = None;
    for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
        let cgroup = format!("{}/pod{}", class_cgroup(&agent.config.cgroup_root, class), place.uid);
        let place = PodPlace { cgroup, ..place.clone() };
        failure = agent.machine.tear_down_pod(&place).await.err().or(failure);
    }
    let uid = place.uid;
    match failure {
        None => {
            reported.remove(&uid);
        }
        Some(error) => {
            let error = &error as &dyn std::error::Error;
            if reported.insert(uid.clone()) {
                warn!(uid, error, "cannot clean up an orphaned pod, retrying");
            } else {
                debug!(uid, error, "cannot clean up an orphaned pod");
            }
        }
    }
}
