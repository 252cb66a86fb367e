//! Dependencies of the controllers, and helpers to start them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Cache, Change, Fence, Informers, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Leadership, Reconcile, WorkQueue, resync, run_workers};
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::{Client, Resource};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::index::{Owned, Pods, Services};
use crate::limits;

/// Source of events that do not belong to a single controller.
const PROGRAM: &str = "kube-controller-manager";

/// Shared by all controllers; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub client: Client,
    pub informers: Informers,
    pub ambient: Ambient,
    /// Recorder of events. Each controller uses a name of its own: [`Recorder::named`].
    pub recorder: Recorder,
    pub config: Arc<Config>,
    pub pods: Pods,
    pub replica_sets: Owned<ReplicaSet>,
    pub services: Services,
    /// Number of workers of the controller that is started with this context, if it is configured.
    workers: Option<usize>,
    /// Interval after which the controller looks at every object again.
    pub resync: Duration,
    /// Open while this process leads.
    fence: Fence,
    pub shutdown: CancellationToken,
}

/// Tasks of all controllers. They end when the context's token is cancelled.
pub(crate) type Tasks = JoinSet<()>;

impl Context {
    /// Returns the dependencies, with the indexes of `informers`.
    pub fn new(
        config: Arc<Config>,
        informers: Informers,
        ambient: Ambient,
        leading: impl Into<Leadership>,
    ) -> Self {
        let Leadership { stop: shutdown, fence } = leading.into();
        let client = fence.around(informers.client().clone());
        let recorder = Recorder::new(client.clone(), ambient.clone(), PROGRAM, "", shutdown.clone());
        let pods = Pods::new(informers.cache());
        let (replica_sets, services) = (Owned::new(informers.cache()), Services::new(informers.cache()));
        Self {
            client,
            informers,
            ambient,
            recorder,
            pods,
            replica_sets,
            services,
            workers: None,
            resync: config.resync,
            fence,
            config,
            shutdown,
        }
    }

    /// Returns the context of the controller with this name and ServiceAccount; without one it is the manager's user.
    pub fn of(&self, name: &str, account: &str) -> Self {
        let workers = self.config.workers.get(name).copied();
        let resync = self.config.resyncs.get(name).copied().unwrap_or(self.config.resync);
        let clients = self.config.clients.as_ref().filter(|_| !account.is_empty());
        let own = clients.map(|clients| self.fence.around((clients.0)(account)));
        let client = own.unwrap_or_else(|| self.client.clone());
        // Its events are its own, too.
        let recorder = self.recorder.with_client(client.clone());
        Self { workers, resync, client, recorder, ..self.clone() }
    }

    /// Runs `work` until shutdown.
    pub fn spawn(&self, tasks: &mut Tasks, work: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Runs the number of workers that is configured for the controller on the queue once `ready` has completed.
    pub fn start<R: Reconcile>(
        &self,
        tasks: &mut Tasks,
        queue: WorkQueue<R::Key>,
        reconciler: R,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        let workers = self.workers(limits::WORKERS);
        self.start_with(tasks, queue, reconciler, workers, ready);
    }

    /// Returns the number of workers that is configured for the controller, or else `default`.
    pub fn workers(&self, default: usize) -> usize {
        self.workers.unwrap_or(default)
    }

    /// Like [`Context::start`], with the given number of workers.
    pub fn start_with<R: Reconcile>(
        &self,
        tasks: &mut Tasks,
        queue: WorkQueue<R::Key>,
        reconciler: R,
        workers: usize,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        self.config.metrics.add_queue(&queue);
        let shutdown = self.shutdown.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = ready => {}
            }
            run_workers(queue, workers, Arc::new(reconciler), shutdown).await;
        });
    }

    /// Adds the key of an object of `cache` to the queue on each change of the object and periodically.
    pub fn feed<K: Resource + Send + Sync + 'static>(
        &self,
        tasks: &mut Tasks,
        cache: &Cache<K>,
        queue: &WorkQueue<ObjectKey>,
    ) {
        let changed = queue.clone();
        cache.on_change(move |change: &Change<K>| changed.add(change.key()));
        tasks.spawn(resync(cache.clone(), queue.clone(), self.resync, self.shutdown.clone()));
    }
}
