//! The metrics of kube-scheduler.
//!
//! The loop and the tasks that bind count in plain families behind one lock, which each takes for well under a microsecond
//! and a few times an attempt. A scrape copies the families under the lock, and makes texts of the copy.
//! The queue counts for itself, and hands its counts over from time to time.

mod measure;
mod resources;
mod shown;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_client::Cache;
use controllers_runtime::metrics::{Family, Series};
use tokio::time::Instant;

use self::measure::*;
pub use self::resources::PodResources;
use crate::bind_devices::{Held, Waited};
use crate::framework::{Event, Meter, Profile, Stage, Status};
use crate::limits;
use crate::pod::PodInfo;
use crate::queue::{Counts, Incoming, Measures, QueueTimes};

/// Measures of the times that the queue takes.
pub(crate) const OF_THE_QUEUE: Measures = Measures { hints: &HINT_DURATION, pre_enqueue: &STAGE_DURATION };

/// The metrics of a scheduler; clones share them. Before the scheduler works, they are empty.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tally: Mutex<Option<Tally>>,
    /// Requests about pods are counted.
    counts_calls: AtomicBool,
    /// All pods; `None` before the scheduler works.
    pods: Mutex<Option<Cache<PodInfo>>>,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Scheduled,
    Unschedulable,
    Error,
}

/// The result of an attempt to schedule a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroupResult {
    Scheduled,
    Unschedulable,
    WaitingOnPreemption,
    Error,
}

/// A request to the API server about a pod, which is made beside the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    StatusPatch,
    Binding,
}

/// An attempt that has found a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// Index of the profile.
    pub profile: usize,
    pub began: Instant,
    /// Time at which the pod could first be attempted.
    pub first_attempt: Instant,
    pub attempts: u32,
    pub was_flushed: bool,
}

/// Counts of the queue and of the cluster, at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub pending: Counts,
    pub incoming: Incoming,
    /// Number of pods that wait because of a plugin, with the name of the profile.
    pub refusals: Vec<(String, &'static str, usize)>,
    pub times: Option<QueueTimes>,
    /// Number of attempts under way.
    pub in_flight: usize,
    /// Number of events that are remembered for them.
    pub events: Vec<(Event, usize)>,
    pub nodes: usize,
    pub pods: usize,
    pub assumed: usize,
}

/// The names of a profile.
#[derive(Clone, Debug)]
struct Names {
    profile: String,
    plugins: Vec<&'static str>,
    /// The plugins of each of the stages whose plugins are counted.
    stages: [Vec<usize>; 3],
}

/// Everything that is counted.
#[derive(Clone)]
struct Tally {
    names: Vec<Names>,
    attempts: Family<(Verdict, usize)>,
    algorithm: Family<()>,
    pod_duration: Family<u32>,
    pod_attempts: Family<()>,
    after_flush: Family<()>,
    stages: Family<(Stage, Status, usize)>,
    plugins: Family<(&'static str, Stage, Status)>,
    permit_waits: Family<Status>,
    groups: Family<(GroupResult, usize)>,
    group_algorithm: Family<()>,
    /// By profile, stage and plugin.
    evaluations: Vec<[Vec<u64>; 3]>,
    events: Family<Event>,
    preemption_attempts: Family<()>,
    victims: Family<()>,
    /// By success.
    preemptions: Family<bool>,
    volume_errors: Family<&'static str>,
    /// By kind and success.
    calls: Family<(Call, bool)>,
    pending_calls: Family<Call>,
    /// By success.
    claims_made: Family<bool>,
    /// By profile and driver.
    device_waits: Family<(usize, String, Waited)>,
    device_allocations: Family<(usize, String, Waited)>,
    /// Number of bindings that are being written.
    bindings: usize,
    state: State,
}

impl Names {
    fn of(profile: &Profile) -> Self {
        let score = profile.score.iter().map(|(index, _)| *index).collect();
        Self {
            profile: profile.name.clone(),
            plugins: profile.plugins.iter().map(|plugin| plugin.name()).collect(),
            stages: [profile.pre_filter.clone(), profile.filter.clone(), score],
        }
    }
}

impl Tally {
    fn new(profiles: &[Profile]) -> Self {
        let evaluations = |profile: &Profile| std::array::from_fn(|_| vec![0; profile.plugins.len()]);
        let mut tally = Self {
            names: profiles.iter().map(Names::of).collect(),
            attempts: Family::new(&ATTEMPT_DURATION),
            algorithm: Family::new(&ALGORITHM_DURATION),
            pod_duration: Family::new(&POD_DURATION),
            pod_attempts: Family::new(&POD_ATTEMPTS),
            after_flush: Family::new(&AFTER_FLUSH),
            stages: Family::new(&STAGE_DURATION),
            plugins: Family::new(&PLUGIN_DURATION),
            permit_waits: Family::new(&PERMIT_WAIT),
            groups: Family::new(&GROUP_DURATION),
            group_algorithm: Family::new(&GROUP_ALGORITHM_DURATION),
            evaluations: profiles.iter().map(evaluations).collect(),
            events: Family::new(&EVENT_DURATION),
            preemption_attempts: Family::new(&PREEMPTION_ATTEMPTS),
            victims: Family::new(&PREEMPTION_VICTIMS),
            preemptions: Family::new(&PREEMPTION_DURATION),
            volume_errors: Family::new(&VOLUME_ERRORS),
            claims_made: Family::new(&CLAIMS_MADE),
            device_waits: Family::new(&DEVICE_WAIT),
            device_allocations: Family::new(&DEVICE_ALLOCATIONS),
            calls: Family::new(&CALL_DURATION),
            pending_calls: Family::new(&PENDING_CALLS),
            bindings: 0,
            state: State::default(),
        };
        // Metrics without labels are there from the start.
        for family in [
            &mut tally.algorithm,
            &mut tally.pod_attempts,
            &mut tally.after_flush,
            &mut tally.preemption_attempts,
            &mut tally.victims,
        ] {
            family.touch(());
        }
        tally
    }
}

impl Metrics {
    /// Returns all metrics, as far as they have values.
    pub fn series(&self) -> Vec<Series> {
        let tally = self.lock().clone();
        tally.map_or_else(Vec::new, |tally| tally.series())
    }

    /// Returns the requests and limits of all pods; `None` before the scheduler works.
    pub fn pod_resources(&self) -> Option<PodResources> {
        let pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pods.map(|pods| PodResources::new(pods.list()))
    }

    /// Begins to count for these profiles.
    pub(crate) fn begin(&self, profiles: &[Profile], pods: Cache<PodInfo>) {
        *self.lock() = Some(Tally::new(profiles));
        *self.0.pods.lock().unwrap_or_else(PoisonError::into_inner) = Some(pods);
    }

    /// Counts what an attempt has run, until a node was reserved or none was found.
    pub(crate) fn decided(&self, profile: usize, meter: &Meter) {
        self.change(|tally| {
            tally.algorithm.time((), meter.algorithm());
            for &(stage, status, took) in meter.stages() {
                tally.stages.time((stage, status, profile), took);
            }
            if let Some(counts) = tally.evaluations.get_mut(profile) {
                for (stage, plugin) in meter.evaluations() {
                    if let Some(count) = counts[stage].get_mut(plugin) {
                        *count += 1;
                    }
                }
            }
            for time in meter.plugins() {
                let names = tally.names.get(profile).and_then(|names| names.plugins.get(time.plugin));
                if let Some(&name) = names {
                    tally.plugins.time((name, time.stage, time.status), time.took);
                }
            }
        });
    }

    /// Counts an attempt that has not led to a binding.
    pub(crate) fn failed(&self, profile: usize, verdict: Verdict, took: Duration) {
        self.change(|tally| tally.attempts.time((verdict, profile), took));
    }

    /// Counts a task that writes a binding, until [`Self::bound`] or [`Self::not_bound`].
    pub(crate) fn binding(&self) {
        self.change(|tally| tally.bindings += 1);
    }

    /// Counts an extension point that ran in such a task.
    pub(crate) fn stage(&self, profile: usize, stage: Stage, status: Status, took: Duration) {
        self.change(|tally| tally.stages.time((stage, status, profile), took));
    }

    /// Counts the search for nodes for a group.
    pub(crate) fn group_tried(&self, took: Duration) {
        self.change(|tally| tally.group_algorithm.time((), took));
    }

    /// Counts an attempt to schedule a group.
    pub(crate) fn group_ended(&self, profile: usize, result: GroupResult, took: Duration) {
        self.change(|tally| tally.groups.time((result, profile), took));
    }

    /// Counts the end of the wait of a placed pod for plugins.
    pub(crate) fn permit_waited(&self, status: Status, took: Duration) {
        self.change(|tally| tally.permit_waits.time(status, took));
    }

    /// Counts a pod that is bound now.
    pub(crate) fn bound(&self, of: Placement, now: Instant) {
        self.change(|tally| {
            tally.bindings -= 1;
            tally.attempts.time((Verdict::Scheduled, of.profile), now - of.began);
            tally.pod_attempts.observe((), f64::from(of.attempts));
            tally.pod_duration.time(of.attempts.min(shown::MANY_ATTEMPTS), now - of.first_attempt);
            if of.was_flushed {
                tally.after_flush.add((), 1.0);
            }
        });
    }

    /// Counts a pod whose binding has failed.
    pub(crate) fn not_bound(&self, of: Placement, now: Instant) {
        self.change(|tally| {
            tally.bindings -= 1;
            tally.attempts.time((Verdict::Error, of.profile), now - of.began);
        });
    }

    /// Counts claims of a pod that were not bound.
    pub(crate) fn volumes_failed(&self) {
        self.change(|tally| tally.volume_errors.add("bind", 1.0));
    }

    /// Counts a claim that was made for a pod, and the wait until its devices were ready.
    pub(crate) fn devices_bound(&self, profile: usize, held: &Held) {
        if held.made.is_none() && held.waited.is_none() {
            return;
        }
        self.change(|tally| {
            if let Some(is_made) = held.made {
                tally.claims_made.add(is_made, 1.0);
            }
            let Some((waited, took)) = held.waited else { return };
            for (driver, has_conditions) in held.drivers() {
                let labels = (profile, driver.to_owned(), waited);
                let is_full = tally.device_waits.len() >= limits::SHOWN_DRIVERS;
                if is_full && !tally.device_waits.contains(&labels) {
                    continue;
                }
                tally.device_waits.time(labels.clone(), took);
                if has_conditions {
                    tally.device_allocations.add(labels, 1.0);
                }
            }
        });
    }

    /// Begins to count requests about pods (`SchedulerAsyncAPICalls`).
    pub(crate) fn count_calls(&self) {
        self.0.counts_calls.store(true, Ordering::Relaxed);
    }

    /// Counts a request that waits, until [`Self::call_waits_no_more`].
    pub(crate) fn call_waits(&self, call: Call) {
        self.change_calls(|tally| tally.pending_calls.add(call, 1.0));
    }

    pub(crate) fn call_waits_no_more(&self, call: Call) {
        self.change_calls(|tally| tally.pending_calls.add(call, -1.0));
    }

    /// Counts a request that was made.
    pub(crate) fn called(&self, call: Call, is_success: bool, took: Duration) {
        self.change_calls(|tally| tally.calls.time((call, is_success), took));
    }

    fn change_calls(&self, change: impl FnOnce(&mut Tally)) {
        if self.0.counts_calls.load(Ordering::Relaxed) {
            self.change(change);
        }
    }

    /// Counts an event that was applied.
    pub(crate) fn applied(&self, event: Event, took: Duration) {
        self.change(|tally| tally.events.time(event, took));
    }

    /// Counts a search for pods to preempt.
    pub(crate) fn preemption_tried(&self) {
        self.change(|tally| tally.preemption_attempts.add((), 1.0));
    }

    /// Counts a preemption with so many victims.
    pub(crate) fn preempting(&self, victims: usize) {
        self.change(|tally| tally.victims.observe((), victims as f64));
    }

    /// Counts a preemption that has ended.
    pub(crate) fn preempted(&self, all_deleted: bool, took: Duration) {
        self.change(|tally| tally.preemptions.time(all_deleted, took));
    }

    /// Replaces what the queue and the cluster count.
    pub(crate) fn publish(&self, state: State) {
        self.change(|tally| tally.state = state);
    }

    fn change(&self, change: impl FnOnce(&mut Tally)) {
        if let Some(tally) = &mut *self.lock() {
            change(tally);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tally>> {
        self.0.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
