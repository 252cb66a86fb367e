//! The scheduling loop: applies changes, finds a node for one pod after another, and leaves all writing to tasks, so that
//! a slow API never stalls decisions.

mod apply;
#[cfg(test)]
mod bad_days;
mod bind;
mod conditions;
mod evict;
mod extend;
mod follow;
mod group;
mod measure;
mod permit;
mod place;
mod preparing;
mod report;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use apiserver_client::{Cache, Informers, SeriesRecorder};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::uid::Uid;
use controllers_runtime::{LeaderElection, Leadership};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::bind::{Binder, Placed};
use self::extend::Desk;
use self::follow::Updates;
use self::group::Turn;
use self::measure::Measured;
use self::waiting::Waiting;
use crate::cluster::Cluster;
use crate::cluster::groups::Groups;
use crate::config::{Gates, default_profile};
use crate::extenders::Extenders;
use crate::framework::{Meter, Profile, Views};
use crate::limits;
use crate::metrics::Metrics;
use crate::pod::{DEFAULT_SCHEDULER, PodInfo};
use crate::queue::{Queue, QueueConfig};

/// Configuration of the scheduler.
#[derive(Clone)]
pub struct Config {
    /// One for each `schedulerName` whose pods are scheduled.
    pub profiles: Arc<[Profile]>,
    pub queue: QueueConfig,
    pub gates: Gates,
    /// Services that take part in decisions.
    pub extenders: Extenders,
    /// Name of the machine, which events name as a part of the instance that reports.
    pub host: String,
    /// Lease to hold while working; `None` for a single instance.
    pub leader_election: Option<LeaderElection>,
    /// Is filled while the scheduler works.
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profiles: Arc::from(vec![default_profile()]),
            queue: QueueConfig::default(),
            gates: Gates::default(),
            extenders: Extenders::default(),
            host: String::new(),
            leader_election: None,
            metrics: Metrics::default(),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.profiles.iter().map(|profile| profile.name.as_str()).collect();
        f.debug_struct("Config")
            .field("profiles", &names)
            .field("queue", &self.queue)
            .field("gates", &self.gates)
            .field("extenders", &self.extenders)
            .field("host", &self.host)
            .field("leader_election", &self.leader_election)
            .finish_non_exhaustive()
    }
}

/// Schedules pods until shutdown; with leader election, only while this process leads.
///
/// # Errors
///
/// Fails if the lease was lost: another process may be scheduling now.
pub async fn run(
    config: Config,
    informers: Informers,
    ambient: Ambient,
    shutdown: CancellationToken,
) -> Result<(), controllers_runtime::Error> {
    let Some(election) = config.leader_election.clone() else {
        work(config, informers, ambient, shutdown.into()).await;
        return Ok(());
    };
    let (client, time) = (informers.client().clone(), ambient.clone());
    controllers_runtime::lead(election, client, time, shutdown, |leading| {
        work(config, informers, ambient, leading)
    })
    .await
}

async fn work(config: Config, informers: Informers, ambient: Ambient, leading: Leadership) {
    let Leadership { stop: shutdown, fence } = leading;
    let client = fence.around(informers.client().clone());
    let updates = Updates::new();
    let pods = informers.cache::<PodInfo>();
    let queue = measure::queue(&config);
    let metrics = config.metrics;
    let binder = Binder::new(
        client.clone(),
        updates.clone(),
        &informers,
        ambient.clone(),
        Arc::clone(&config.profiles),
        metrics.clone(),
    );
    let (writer, time, stop) = (client.clone(), ambient.clone(), shutdown.clone());
    let recorder =
        SeriesRecorder::new(writer, time, (DEFAULT_SCHEDULER, &config.host), binder.is_busy(), stop);
    let names = config.profiles.iter().map(|profile| profile.name.clone());
    let recorders = names.map(|name| (name.clone(), recorder.named(&name))).collect();
    let followed = follow::all(&informers, &updates, config.gates);
    metrics.begin(&config.profiles, pods.clone());
    if config.gates.async_api_calls {
        metrics.count_calls();
    }
    let desk = Desk::new(config.extenders, client.clone(), fence, &informers);
    let mut cluster = Cluster::default();
    cluster.devices.are_awaited = true;
    cluster.groups = Groups::new(config.gates.generic_workload);
    let mut scheduler = Scheduler {
        queue,
        turn: None,
        binder,
        desk,
        meter: Meter::new(Instant::now),
        measured: Measured::new(metrics),
        profiles: config.profiles,
        cluster,
        views: Views::default(),
        start: 0,
        binding: BTreeMap::new(),
        waiting: Waiting::default(),
        victims: BTreeMap::new(),
        namespaces: BTreeMap::new(),
        pods: pods.clone(),
        client,
        ambient,
        recorders,
        updates: updates.clone(),
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        // Decisions based on incomplete lists would overcommit nodes.
        () = async {
            let devices = followed.synced(&updates).await;
            tokio::join!(scheduler.run(), devices);
        } => {}
    }
}

/// The state of the loop, which one task owns.
struct Scheduler {
    profiles: Arc<[Profile]>,
    cluster: Cluster,
    views: Views,
    queue: Queue,
    /// The attempt of a group under way.
    turn: Option<Box<Turn>>,
    /// Index of the node where the next sample begins.
    start: usize,
    /// Pods that are placed and whose binding is not confirmed.
    binding: BTreeMap<Uid, Arc<PodInfo>>,
    /// Those of them that plugins have not permitted to be bound yet.
    waiting: Waiting<Placed>,
    /// Victims of pods that preempt others, until all are being deleted.
    victims: BTreeMap<Uid, Vec<Arc<PodInfo>>>,
    /// The namespaces as they were last told.
    namespaces: BTreeMap<String, Arc<Namespace>>,
    pods: Cache<PodInfo>,
    binder: Binder,
    desk: Desk,
    client: Client,
    ambient: Ambient,
    recorders: BTreeMap<String, SeriesRecorder>,
    updates: Updates,
    /// Measures the attempt under way.
    meter: Meter,
    measured: Measured,
}

impl Scheduler {
    async fn run(&mut self) {
        let updates = self.updates.clone();
        loop {
            while let Some(update) = updates.try_take() {
                self.apply(update);
            }
            let now = Instant::now();
            self.queue.flush(&self.cluster, now);
            self.expire(now);
            self.show_counts(now);
            if self.step(now) {
                // Give other tasks of this process a chance to run.
                tokio::task::yield_now().await;
                continue;
            }
            let due = [self.queue.deadline(), self.measured.due(), self.waiting.deadline()];
            let deadline = due.into_iter().flatten().min().unwrap_or_else(|| now + limits::IDLE);
            tokio::select! {
                biased;
                update = updates.take() => self.apply(update),
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Goes on with the turn of a group, or begins the next attempt; returns `false` if there is nothing to do.
    fn step(&mut self, now: Instant) -> bool {
        if self.go_on() {
            return true;
        }
        let served = self.serve();
        let popped = self.queue.pop(now);
        if let Some(attempting) = &popped {
            self.attempt(attempting);
        }
        served || popped.is_some()
    }

    /// Returns the profile of a pod; `None` if another scheduler is responsible for it.
    fn profile_of(&self, pod: &PodInfo) -> Option<usize> {
        self.profiles.iter().position(|profile| *profile.name == *pod.spec.scheduler)
    }
}
