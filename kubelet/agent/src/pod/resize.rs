//! In-place resize: the resources that a pod requests, those that it is granted, and those that its
//! containers have.
//!
//! The requested resources may change through the API at any time. The rest of the kubelet sees the pod with
//! its granted resources, so a resize that has to wait has no effect.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver_meta::quantity;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Pod, PodCondition, ResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde_json::json;

use super::{Role, all_containers};

/// Condition of a pod that requests more than it is granted.
pub const PENDING: &str = "PodResizePending";
/// Condition of a pod whose containers do not have the granted resources yet.
pub const IN_PROGRESS: &str = "PodResizeInProgress";
/// Reason of a resize that waits until other pods release resources.
const DEFERRED: &str = "Deferred";
/// Reason of a resize that this node can never grant.
const INFEASIBLE: &str = "Infeasible";
/// Reason of a resize that was granted but could not be carried out.
const ERROR: &str = "Error";
/// Resources that can be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// One of the two conditions, which are true whenever they exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeCondition {
    pub reason: String,
    pub message: String,
    /// Generation of the pod in which the resize was requested.
    pub generation: Option<i64>,
    pub since: Timestamp,
}

/// Reason for which a resize is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The pod would fit if other pods were smaller.
    Deferred(String),
    /// The pod would not fit on the empty node.
    Infeasible(String),
}

/// Reason and message of an event to record.
pub type EventText = (&'static str, String);

/// Resize state of the containers of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resize {
    /// Granted resources of each init and main container, by name.
    pub allocated: BTreeMap<String, ResourceRequirements>,
    /// Resources last applied to each container, by id. A container that is not listed has its granted
    /// resources.
    pub actuated: BTreeMap<String, ResourceRequirements>,
    /// Ids of containers that are stopped in order to be restarted with their granted resources. They are
    /// restarted regardless of how they end.
    pub restarting: BTreeSet<String>,
    pub pending: Option<ResizeCondition>,
    pub in_progress: Option<ResizeCondition>,
    /// Time at which a resize that could not be carried out is retried.
    pub retry_at: Option<Timestamp>,
}

/// Action that a running container needs in order to have its granted resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No action.
    None,
    /// New limits on the running container.
    InPlace,
    /// A restart, as required by its resize policy.
    Restart,
}

impl Resize {
    /// Restores the state from the status of a pod, so that a restarted kubelet continues where the previous
    /// one stopped.
    pub fn from_status(pod: &Pod, now: Timestamp) -> Self {
        let mut resize = Self { allocated: requested(pod), ..Self::default() };
        let Some(status) = &pod.status else { return resize };
        for known in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
            resize.remember(known);
        }
        let recorded = |kind: &str| {
            let conditions = status.conditions.iter().flatten();
            let condition = conditions.into_iter().find(|condition| condition.type_ == kind)?;
            Some(ResizeCondition {
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
                generation: condition.observed_generation,
                since: condition.last_transition_time.as_ref().map_or(now, |time| time.0),
            })
        };
        (resize.pending, resize.in_progress) = (recorded(PENDING), recorded(IN_PROGRESS));
        resize
    }

    fn remember(&mut self, known: &ContainerStatus) {
        let Some(resources) = &known.resources else { return };
        let Some(allocated) = self.allocated.get_mut(&known.name) else { return };
        for name in RESIZABLE {
            set(&mut allocated.requests, name, quantity_of(known.allocated_resources.as_ref(), name));
            set(&mut allocated.limits, name, quantity_of(resources.limits.as_ref(), name));
        }
        let running = known.state.as_ref().is_some_and(|state| state.running.is_some());
        let id = known.container_id.as_deref().and_then(|id| id.split_once("://"));
        if let Some((_, id)) = id.filter(|_| running) {
            self.actuated.insert(id.to_owned(), resources.clone());
        }
    }

    /// Returns `true` if the pod is granted what it requests.
    pub fn grants(&self, desired: &Pod) -> bool {
        requested(desired).iter().all(|(name, requested)| {
            self.allocated.get(name).is_none_or(|granted| is_equal(requested, granted))
        })
    }

    /// Grants the requested resources, or records why they are not granted; returns an event if the decision
    /// is new.
    pub fn decide(
        &mut self,
        desired: &Pod,
        verdict: Result<(), Refusal>,
        now: Timestamp,
    ) -> Option<EventText> {
        let generation = desired.metadata.generation;
        let (event, reason, message) = match verdict {
            Ok(()) => {
                self.pending = None;
                let is_new = !self.grants(desired);
                self.allocated = requested(desired);
                if !is_new {
                    return None;
                }
                let (reason, message) = (String::new(), String::new());
                self.in_progress = Some(ResizeCondition { reason, message, generation, since: now });
                self.retry_at = None;
                return Some(("ResizeStarted", event_text("Pod resize started", desired, generation, "")));
            }
            Err(Refusal::Deferred(message)) => ("ResizeDeferred", DEFERRED, message),
            Err(Refusal::Infeasible(message)) => ("ResizeInfeasible", INFEASIBLE, message),
        };
        let before = self.pending.take();
        let same = before.as_ref().filter(|recorded| recorded.reason == reason);
        let is_new = same.is_none_or(|recorded| recorded.generation != generation);
        let since = same.map_or(now, |recorded| recorded.since);
        let text = event_text(&format!("Pod resize {reason}"), desired, generation, &message);
        self.pending = Some(ResizeCondition { reason: reason.to_owned(), message, generation, since });
        is_new.then_some((event, text))
    }

    /// Records that the granted resources could not be applied and when to retry; returns an event if the
    /// failure is new.
    pub fn fail(
        &mut self,
        pod: &Pod,
        message: String,
        now: Timestamp,
        retry_at: Timestamp,
    ) -> Option<EventText> {
        self.retry_at = Some(retry_at);
        let before = self.in_progress.take();
        let generation = before.as_ref().map_or(pod.metadata.generation, |recorded| recorded.generation);
        let since = before
            .as_ref()
            .filter(|recorded| recorded.reason == ERROR)
            .map_or(now, |recorded| recorded.since);
        let is_new = before.is_none_or(|recorded| recorded.message != message);
        let text = event_text("Pod resize error", pod, generation, &message);
        self.in_progress = Some(ResizeCondition { reason: ERROR.to_owned(), message, generation, since });
        is_new.then_some(("ResizeError", text))
    }

    /// Records that all containers have their granted resources; returns an event if a resize was in
    /// progress.
    pub fn complete(&mut self, pod: &Pod) -> Option<EventText> {
        self.retry_at = None;
        let recorded = self.in_progress.take()?;
        Some(("ResizeCompleted", event_text("Pod resize completed", pod, recorded.generation, "")))
    }

    /// Removes containers that are gone.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.actuated.retain(|id, _| keep(id));
        self.restarting.retain(|id| keep(id));
    }

    /// Returns the action that a running container needs.
    pub fn change(&self, id: &str, container: &Container) -> Change {
        let none = ResourceRequirements::default();
        let Some(has) = self.actuated.get(id) else { return Change::None };
        let granted = container.resources.as_ref().unwrap_or(&none);
        let changed: Vec<&str> =
            RESIZABLE.into_iter().filter(|name| !is_equal_in(name, granted, has)).collect();
        let restarts = container.resize_policy.iter().flatten().any(|policy| {
            policy.restart_policy == "RestartContainer" && changed.contains(&policy.resource_name.as_str())
        });
        match (changed.is_empty(), restarts) {
            (true, _) => Change::None,
            (false, false) => Change::InPlace,
            (false, true) => Change::Restart,
        }
    }

    /// Returns the resources to show in a container's status; the granted ones if it is not running.
    pub fn shown(&self, running: Option<&str>, container: &Container) -> ResourceRequirements {
        let mut resources = container.resources.clone().unwrap_or_default();
        let Some(has) = running.and_then(|id| self.actuated.get(id)) else { return resources };
        for name in RESIZABLE {
            set(&mut resources.requests, name, quantity_of(has.requests.as_ref(), name));
            set(&mut resources.limits, name, quantity_of(has.limits.as_ref(), name));
        }
        // Equal amounts in different notation are not a change.
        match &container.resources {
            Some(granted) if is_equal(granted, &resources) => granted.clone(),
            _ => resources,
        }
    }

    /// Returns the pod conditions that describe the resize.
    pub fn conditions(&self) -> impl Iterator<Item = PodCondition> {
        [(PENDING, &self.pending), (IN_PROGRESS, &self.in_progress)].into_iter().filter_map(
            |(kind, recorded)| {
                let recorded = recorded.as_ref()?;
                let text = |text: &String| (!text.is_empty()).then(|| text.clone());
                Some(PodCondition {
                    type_: kind.to_owned(),
                    status: "True".to_owned(),
                    reason: text(&recorded.reason),
                    message: text(&recorded.message),
                    observed_generation: recorded.generation,
                    last_probe_time: None,
                    last_transition_time: Some(Time(recorded.since)),
                })
            },
        )
    }
}

/// Returns the pod with its granted resources.
pub fn granted(desired: &Arc<Pod>, resize: &Resize) -> Arc<Pod> {
    if resize.grants(desired) {
        return Arc::clone(desired);
    }
    let mut pod = Pod::clone(desired);
    let spec = pod.spec.get_or_insert_default();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(granted) = resize.allocated.get(&container.name) {
            container.resources = Some(granted.clone());
        }
    }
    Arc::new(pod)
}

/// Returns the pod with the resources that its running containers have; `running` maps a container's name to
/// its id.
pub fn as_it_runs(pod: &Pod, resize: &Resize, running: impl Fn(&str) -> Option<String>) -> Pod {
    let mut pod = pod.clone();
    let spec = pod.spec.get_or_insert_default();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.resources = Some(resize.shown(running(&container.name).as_deref(), container));
    }
    pod
}

/// Returns the requested resources, by container.
fn requested(pod: &Pod) -> BTreeMap<String, ResourceRequirements> {
    let resources = |container: &Container| container.resources.clone().unwrap_or_default();
    all_containers(pod).map(|(_, container)| (container.name.clone(), resources(container))).collect()
}

type Amounts = BTreeMap<String, Quantity>;

fn quantity_of<'a>(amounts: Option<&'a Amounts>, name: &str) -> Option<&'a Quantity> {
    amounts?.get(name)
}

fn set(amounts: &mut Option<Amounts>, name: &str, value: Option<&Quantity>) {
    match value {
        Some(value) => {
            amounts.get_or_insert_default().insert(name.to_owned(), value.clone());
        }
        None => {
            if let Some(amounts) = amounts {
                amounts.remove(name);
            }
        }
    }
}

fn is_equal(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    RESIZABLE.into_iter().all(|name| is_equal_in(name, a, b))
}

/// Returns `true` if requests and limits are the same amounts, regardless of notation.
fn is_equal_in(name: &str, a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let same = |a: Option<&Quantity>, b: Option<&Quantity>| match (a, b) {
        (Some(a), Some(b)) => {
            a == b || quantity::read(a).is_some_and(|value| quantity::read(b) == Some(value))
        }
        (a, b) => a.is_none() && b.is_none(),
    };
    same(quantity_of(a.requests.as_ref(), name), quantity_of(b.requests.as_ref(), name))
        && same(quantity_of(a.limits.as_ref(), name), quantity_of(b.limits.as_ref(), name))
}

/// Returns the message of an event in the format of Kubernetes.
fn event_text(prefix: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let (mut init, mut main) = (Vec::new(), Vec::new());
    for (role, container) in all_containers(pod) {
        let resources = container.resources.as_ref().map_or(Cow::Owned(Default::default()), Cow::Borrowed);
        let entry = json!({"name": container.name, "resources": *resources});
        if matches!(role, Role::Main) { main.push(entry) } else { init.push(entry) }
    }
    let mut summary = json!({"generation": generation.unwrap_or_default()});
    for (field, entries) in [("initContainers", init), ("containers", main)] {
        if !entries.is_empty() {
            summary[field] = entries.into();
        }
    }
    if !error.is_empty() {
        summary["error"] = error.into();
    }
    format!("{prefix}: {summary}")
}

#[cfg(test)]
mod tests;
