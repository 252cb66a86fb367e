//! The task of a pod: plans, acts and observes in turn until the pod is deleted.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::{
    agent::Agent,
    limits,
    pod::{self, env::Sources, plan::Plan, plan::WHOLE_POD, status::Verdict},
    probe::{Kind, Probes},
    status_manager,
    tracked::{Mode, TrackedPod},
};

mod handler;
mod hooks;
mod prepare;
mod resize;
mod start;
mod stop;

/// The task of one pod.
pub(crate) struct Worker {
    agent: Arc<Agent>,
    tracked: Arc<TrackedPod>,
    probes: Probes,
    /// Objects that the pod refers to, once its directories and volumes have been set up.
    sources: Option<Sources>,
    /// Time at which a failed update of the volumes is retried.
    volumes_retry: Option<Timestamp>,
    /// True once a finished pod has been cleaned up.
    cleaned_up: bool,
    /// Delay after the last failure to clean up.
    tear_down_pause: Option<Duration>,
    /// Back-offs that have been reported by an event, by container and attempt.
    reported_backoffs: BTreeSet<(String, u32)>,
    status_task: Option<StatusTask>,
    /// Reason of the last failure of the pod as a whole, and the delay after it.
    last_failure: Option<(&'static str, Duration)>,
}

/// Aborts the task when dropped.
struct StatusTask(JoinHandle<()>);

impl Drop for StatusTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a pod until it is deleted. The caller removes it from the tracked pods.
pub(crate) async fn run(agent: Arc<Agent>, tracked: Arc<TrackedPod>) {
    let mut worker = Worker {
        agent,
        tracked,
        probes: Probes::default(),
        sources: None,
        volumes_retry: None,
        cleaned_up: false,
        tear_down_pause: None,
        reported_backoffs: BTreeSet::new(),
        status_task: None,
        last_failure: None,
    };
    let mut versions = worker.tracked.versions();
    // The existing containers must be known before anything is reported or done.
    while let Err(error) = worker.tracked.refresh(&worker.agent).await {
        debug!(pod = %worker.tracked.place.name, %error, "cannot refresh a pod");
        tokio::time::sleep(limits::START_RETRY).await;
    }
    let status_task =
        tokio::spawn(status_manager::run(Arc::clone(&worker.agent), Arc::clone(&worker.tracked)));
    worker.status_task = Some(StatusTask(status_task));
    loop {
        versions.mark_unchanged();
        let wait = match worker.tracked.mode() {
            Mode::Run => worker.step().await,
            Mode::Finish => worker.finish().await,
            Mode::Terminate => {
                worker.terminate().await;
                return;
            }
        };
        let Some(wait) = wait else { continue };
        tokio::select! {
            biased;
            changed = versions.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Reason of the event about a pod whose address leads to another node, and of the failure of one that does not restart.
const ADDRESS_LOST: &str = "PodAddressLost";

/// Maximum interval between steps of a pod that nothing happens to.
const IDLE: Duration = Duration::from_secs(60);

impl Worker {
    /// Carries out the next step; returns how long to wait for a change if there is nothing to do.
    async fn step(&mut self) -> Option<Duration> {
        let now = self.agent.ambient.now();
        let deadline = self.enforce_deadline(now);
        if self.tracked.mode() != Mode::Run {
            return None;
        }
        let lost = self.agent.lost_address(&self.tracked);
        if let Some(message) = lost.as_ref().filter(|_| !pod::restarts_always(&self.tracked.pod())) {
            self.fail_for_good(ADDRESS_LOST, message.clone());
            return None;
        }
        self.probes.reconcile(&self.agent, &self.tracked, &Kind::ALL);
        let refresh = self.keep_volumes_fresh(now).await;
        let resize = self.finish_resize(now).await;
        let plan = self.tracked.plan(now);
        self.record_back_offs(&plan);
        if plan.is_idle() && lost.is_none() {
            let until = [plan.wake_at, deadline, refresh, resize].into_iter().flatten().min();
            return Some(until.map_or(IDLE, |at| until_then(now, at)));
        }
        let tracked = Arc::clone(&self.tracked);
        let action = async {
            match lost {
                Some(message) => self.leave_sandbox(message).await,
                None => self.carry_out(plan).await,
            }
        };
        tokio::select! {
            biased;
            () = action => {}
            () = no_longer_wanted(&tracked) => debug!(pod = %tracked.place.name, "interrupted the plan: other things are wanted of the pod now"),
        }
        self.refresh().await;
        None
    }

    /// Refreshes the pod from the runtime, retrying while the runtime is unavailable.
    async fn refresh(&self) {
        if let Err(error) = self.tracked.refresh(&self.agent).await {
            warn!(pod = %self.tracked.place.name, %error, "cannot refresh a pod");
            tokio::time::sleep(limits::RETRY).await;
        }
    }

    async fn carry_out(&mut self, plan: Plan) {
        for id in &plan.stop_sandboxes {
            if let Err(error) = self.agent.runtime.stop_pod_sandbox(id).await {
                warn!(pod = %self.tracked.place.name, %error, "cannot stop a sandbox");
                self.fail_pod("KillPodSandboxError", &error.to_string());
                return;
            }
        }
        for kill in plan.kill.iter().filter(|kill| kill.resizes) {
            self.tracked.state().resize.restarting.insert(kill.id.clone());
        }
        let killed = self.kill(&plan.kill).await;
        if let Some(attempt) = plan.create_sandbox {
            self.create_sandbox(attempt).await;
            return;
        }
        if !plan.resize.is_empty() {
            self.resize(&plan.resize).await;
        }
        for start in &plan.start {
            self.start(start).await;
        }
        if !self.remove(&plan).await || !killed {
            // Retry after a delay.
            tokio::time::sleep(limits::RETRY).await;
        }
    }

    /// Removes dead containers and sandboxes that are no longer needed, with their logs; returns whether all
    /// were removed.
    async fn remove(&self, plan: &Plan) -> bool {
        let mut all = true;
        for id in &plan.remove_containers {
            let known = self.tracked.state().runtime.by_id(id).map(|c| (c.name.clone(), c.attempt));
            match self.agent.runtime.remove_container(id).await {
                Ok(()) => {
                    if let Some((name, attempt)) = known {
                        self.agent.machine.remove_attempt(&self.tracked.place, &name, attempt).await;
                    }
                }
                Err(error) => {
                    all = false;
                    debug!(%error, "cannot remove a container");
                }
            }
        }
        for id in &plan.remove_sandboxes {
            if let Err(error) = self.agent.runtime.remove_pod_sandbox(id).await {
                all = false;
                debug!(%error, "cannot remove a sandbox");
            }
        }
        all
    }

    /// Fails a pod whose active deadline has passed; otherwise returns when it will.
    fn enforce_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let pod = self.tracked.pod();
        let seconds = pod::spec(&pod).active_deadline_seconds?;
        let started = self.tracked.state().status.start_time.clone()?.0;
        let deadline = started.checked_add(jiff::SignedDuration::from_secs(seconds)).ok()?;
        if deadline > now {
            return Some(deadline);
        }
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        self.fail_for_good("DeadlineExceeded", message);
        None
    }

    /// Fails a pod, for a reason that an event tells.
    fn fail_for_good(&self, reason: &'static str, message: String) {
        self.agent.event(&self.tracked.pod(), None, reason, message.clone());
        self.tracked.change(|state| state.verdict = Some(Verdict { reason, message }));
    }

    /// Stops a pod that runs in a sandbox of no use, so that it gets another one after a pause: until the runtime has
    /// read the network's configuration, it would get an address of the same range.
    async fn leave_sandbox(&mut self, message: String) {
        let message = format!("{message}: the pod gets a new sandbox");
        self.agent.event(&self.tracked.pod(), None, ADDRESS_LOST, message.clone());
        self.kill_pod(stop::grace(&self.tracked.pod())).await;
        self.stop_sandboxes().await;
        self.fail_pod(ADDRESS_LOST, &message);
    }

    fn record_back_offs(&mut self, plan: &Plan) {
        for name in &plan.backing_off {
            let attempt = self.tracked.state().runtime.newest(name).map_or(0, |status| status.attempt);
            if self.reported_backoffs.insert((name.clone(), attempt)) {
                let message =
                    format!("Back-off restarting failed container {name} in pod {}", self.tracked.place.name);
                self.agent.event(&self.tracked.pod(), Some(name), "BackOff", message);
            }
        }
    }

    /// Records that a container could not be started and when to retry.
    fn fail(&self, name: &str, reason: &str, message: &str, pause: Duration) {
        let retry_at = self.agent.ambient.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
        let failure = pod::plan::Failure { reason: reason.to_owned(), message: message.to_owned(), retry_at };
        self.tracked.change(|state| state.failures.insert(name.to_owned(), failure));
    }

    /// Like [`Worker::fail`] for the pod as a whole, with delays that grow while the same failure repeats.
    fn fail_pod(&mut self, reason: &'static str, message: &str) {
        let pause = match self.last_failure {
            Some((before, pause)) if before == reason => (pause * 2).min(limits::MAX_RETRY),
            _ => limits::RETRY,
        };
        self.last_failure = Some((reason, pause));
        self.fail(WHOLE_POD, reason, message, pause);
    }

    /// Returns a callback that wakes the pod when an object that it refers to has changed.
    fn wake_callback(&self) -> Arc<dyn Fn() + Send + Sync> {
        let tracked: Weak<TrackedPod> = Arc::downgrade(&self.tracked);
        Arc::new(move || {
            let Some(tracked) = tracked.upgrade() else { return };
            tracked.change(|state| {
                state.volumes_outdated = true;
                // Failures because of a missing object may be resolved now.
                state.failures.retain(|_, f| {
                    !matches!(f.reason.as_str(), "CreateContainerConfigError" | "FailedMount")
                });
            });
        })
    }

    /// Stops the remaining containers of a finished pod and releases its resources.
    async fn finish(&mut self) -> Option<Duration> {
        self.probes.reconcile(&self.agent, &self.tracked, &[]);
        if self.cleaned_up {
            return Some(IDLE);
        }
        if self.tracked.state().runtime.has_running() {
            let grace = self.tracked.state().verdict.as_ref().and_then(Verdict::grace);
            let grace = grace.unwrap_or_else(|| stop::grace(&self.tracked.pod()));
            self.kill_pod(grace).await;
            self.refresh().await;
            if self.tracked.state().runtime.has_running() {
                return Some(limits::RETRY);
            }
        }
        // A sandbox that died on its own may still hold its network.
        self.stop_sandboxes().await;
        self.refresh().await;
        if let Some(pause) = self.tear_down().await {
            return Some(pause);
        }
        self.agent.objects.forget(&self.tracked.place.uid);
        self.cleaned_up = true;
        None
    }

    /// Removes everything that the pod has on the node; after a failure returns the delay until the retry.
    /// The first failure is logged as a warning, and another one once the delay reaches its maximum.
    async fn tear_down(&mut self) -> Option<Duration> {
        let error = self.agent.machine.tear_down_pod(&self.tracked.place).await.err()?;
        let (place, error) = (&self.tracked.place, &error as &dyn std::error::Error);
        let pause = self.tear_down_pause.map_or(limits::RETRY, |pause| (pause * 2).min(limits::MAX_RETRY));
        let before = self.tear_down_pause.replace(pause);
        if before.is_none() || pause == limits::MAX_RETRY && before != Some(pause) {
            warn!(
                pod = place.name,
                namespace = place.namespace,
                error,
                ?pause,
                "cannot clean up a pod, retrying"
            );
        } else {
            debug!(pod = place.name, namespace = place.namespace, error, ?pause, "cannot clean up a pod");
        }
        Some(pause)
    }

    /// Stops a pod that is being deleted, and deletes its object.
    async fn terminate(&mut self) {
        // A container tells by its readiness whether it still serves while it terminates.
        self.probes.reconcile(&self.agent, &self.tracked, &[Kind::Readiness]);
        self.stop_all().await;
        self.probes.reconcile(&self.agent, &self.tracked, &[]);
        self.tracked.change(|state| state.terminated = true);
        self.stop_sandboxes().await;
        while let Some(pause) = self.tear_down().await {
            tokio::time::sleep(pause).await;
        }
        self.agent.objects.forget(&self.tracked.place.uid);
        // The final status must be written before the object is deleted.
        if let Some(status_task) = &mut self.status_task {
            let _ = (&mut status_task.0).await;
        }
        if !self.tracked.state().gone {
            stop::delete(&self.agent, &self.tracked).await;
        }
        self.forget_runtime().await;
        info!(pod = %self.tracked.place.name, namespace = %self.tracked.place.namespace, "pod is gone");
    }
}

/// Returns when the pod should no longer run.
async fn no_longer_wanted(tracked: &TrackedPod) {
    let mut versions = tracked.versions();
    while tracked.mode() == Mode::Run {
        if versions.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the duration from now until `then`, at least a moment.
fn until_then(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default().max(Duration::from_millis(1))
}
