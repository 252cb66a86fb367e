//! The one task that owns the desired state and the data plane.

mod edges;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey, Projection};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::error_chain;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{DataPlaneError, Scope, ServiceTables};

use self::edges::Edges;
use crate::bandwidth::{Limiter, PodWarnings};
use crate::caches::Caches;
use crate::change_tracker::{Batch, Cause, ChangeTracker};
use crate::compile::{self, Context, Desired, NodeView};
use crate::config::Config;
use crate::health::{HealthChecks, Report};
use crate::host_ports::{self, HostPod};
use crate::limits;
use crate::links::Known;
use crate::local_server::{LocalServer, changed};
use crate::metrics::{FAMILIES, Metrics, PolicyLabel, Seconds, family};
use crate::policy::{self, Enforcer};
use crate::retry::Retry;
use crate::service_warnings::ServiceWarnings;
use crate::status::Status;
use crate::takeover::Takeover;

pub(crate) struct Worker {
    config: Config,
    caches: Caches,
    tracker: Arc<ChangeTracker>,
    plane: Box<dyn DataPlane + Send>,
    ambient: Ambient,
    status: Arc<Status>,
    metrics: Arc<Metrics>,
    health: Arc<HealthChecks>,
    context: Context,
    desired: Desired,
    /// The own Node has been seen: its absence means that it was deleted.
    node_seen: bool,
    service_warnings: ServiceWarnings,
    /// The time of the next check of the data path; `None` if it is not the kernel's.
    check_due: Option<Instant>,
    /// The first lists have arrived.
    synced: bool,
    /// Everything was applied at least once; from then on single changes are enough.
    programmed: bool,
    /// The Services that are not in the tables as desired, with the causes of their changes.
    pending: BTreeMap<Arc<str>, Cause>,
    retries: BTreeMap<Arc<str>, Retry>,
    full_retry: Option<Retry>,
    /// The time of the next comparison of everything.
    full_due: Instant,
    /// The known state of the machine's interfaces.
    links: Known,
    edges: Edges,
    /// Network policies of this node's pods.
    enforcer: Enforcer,
    /// Limits of this node's pods.
    limiter: Limiter,
    pod_warnings: PodWarnings,
    /// Connections that another proxy's rules translate.
    takeover: Takeover,
    /// Those of [`FAMILIES`] that have services.
    families: BTreeSet<&'static str>,
    /// Services with policy Local that have endpoints on other nodes only, by scope and family.
    no_local: BTreeMap<(Scope, &'static str), BTreeSet<Arc<str>>>,
}

impl Worker {
    pub fn new(
        config: Config,
        caches: Caches,
        tracker: Arc<ChangeTracker>,
        plane: Box<dyn DataPlane + Send>,
        ambient: Ambient,
        report: Report,
        alone: watch::Sender<Option<bool>>,
    ) -> Self {
        let Report { status, metrics, health, service_warnings, pod_warnings } = report;
        let node = NodeView::named(&config.node_name);
        let context = Context {
            node,
            external_ips: config.external_ips,
            masquerade_all: config.masquerade_all,
            ..Context::default()
        };
        let full_due = Instant::now() + config.full_sync;
        let check_due = plane.observer().map(|_| Instant::now() + limits::CHECK_PAUSE);
        let adopted = plane.adopted_services() > 0;
        if adopted {
            status.record_adopted();
        }
        let enforcer = Enforcer::new(caches.policies.clone());
        Self {
            config,
            caches,
            tracker,
            plane,
            ambient,
            status,
            metrics,
            health,
            context,
            desired: Desired::default(),
            node_seen: false,
            service_warnings,
            check_due,
            synced: false,
            programmed: false,
            pending: BTreeMap::new(),
            retries: BTreeMap::new(),
            full_retry: None,
            full_due,
            links: Known::default(),
            edges: Edges::default(),
            enforcer,
            limiter: Limiter::default(),
            pod_warnings,
            takeover: Takeover::new(adopted, alone),
            families: BTreeSet::from([FAMILIES[0]]),
            no_local: BTreeMap::new(),
        }
    }

    /// Works until shutdown.
    pub async fn run(
        mut self,
        mut synced: BoxFuture<'static, ()>,
        mut known: watch::Receiver<Known>,
        mut local_server: Option<LocalServer>,
        shutdown: CancellationToken,
    ) {
        if let Some(server) = &mut local_server {
            let serves = *server.serves.borrow_and_update();
            self.serves_here(&server.service, serves);
        }
        loop {
            let wake = self.next_due();
            tokio::select! {
                // Polled in order, so that equal histories give equal results.
                biased;
                () = shutdown.cancelled() => break,
                () = &mut synced, if !self.synced => {
                    self.synced = true;
                    self.apply_everything();
                }
                Ok(()) = known.changed() => {
                    self.links = known.borrow_and_update().clone();
                    self.apply_edges();
                    self.apply_host_ports().await;
                }
                () = self.tracker.noted(), if self.synced => self.apply_changes().await,
                serves = changed(&mut local_server) => {
                    let service = local_server.as_ref().map(|server| server.service.clone());
                    self.lead(&service.unwrap_or_default(), serves).await;
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            self.work_off_due().await;
            self.report_pending();
        }
        if let Some(server) = &local_server {
            self.lead(&server.service, false).await;
        }
    }

    /// Leads a Service to this node's own server, or away from it.
    async fn lead(&mut self, service: &ObjectKey, here: bool) {
        if self.serves_here(service, here) && self.programmed {
            let effect = self.compile_one(service);
            self.apply_services(effect.changed.into_iter().collect()).await;
        }
    }

    /// Records that a Service's server on this node serves or not. Returns `true` if that is new.
    fn serves_here(&mut self, service: &ObjectKey, serves: bool) -> bool {
        let away = &mut self.context.not_serving_here;
        if serves { away.remove(service) } else { away.insert(service.clone()) }
    }

    fn next_due(&self) -> Instant {
        let retries = self.retries.values().map(|retry| retry.due);
        let edges = self.edges.retry.map(|retry| retry.due);
        // Before the first lists there is nothing to compare, however long they take.
        let full = self.synced.then_some(self.full_due);
        let again = self.full_retry.filter(|_| self.synced).map(|retry| retry.due);
        let (policies, limits) = (self.enforcer.due(), self.limiter.due());
        let others =
            [edges, full, again, policies, limits, self.check_due, self.takeover.due()].into_iter().flatten();
        retries.chain(others).min().unwrap_or_else(|| Instant::now() + self.config.full_sync)
    }

    async fn work_off_due(&mut self) {
        let now = Instant::now();
        let due = |retry: &Option<Retry>| retry.is_some_and(|retry| retry.due <= now);
        if self.check_due.is_some_and(|due| due <= now) {
            self.check();
        }
        let waiting = [self.enforcer.due(), self.limiter.due()].into_iter().flatten();
        if due(&self.edges.retry) || waiting.min().is_some_and(|due| due <= now) {
            self.apply_edges();
        }
        if self.takeover.due().is_some_and(|due| due <= now) {
            in_place(|| self.takeover.look(&mut *self.plane));
        }
        if self.synced && (self.full_due <= now || due(&self.full_retry)) {
            self.apply_everything();
        }
        let again: Vec<_> = self
            .retries
            .iter()
            .filter(|(_, retry)| retry.due <= now)
            .map(|(name, _)| Arc::clone(name))
            .collect();
        self.apply_services(again).await;
    }

    /// Compiles all Services and makes the data plane equal to the result.
    fn apply_everything(&mut self) {
        self.full_due = Instant::now() + self.config.full_sync;
        let batch = self.tracker.take();
        self.note_batch(&batch);
        self.refresh_node();
        in_place(|| self.recompile());
        let tables = in_place(|| self.desired.tables());
        in_place(|| self.takeover.before(&mut *self.plane));
        let start = Instant::now();
        let result = in_place(|| self.plane.apply_full(&tables));
        match result {
            Ok(applied) => {
                let took = start.elapsed();
                let found: BTreeSet<_> = tables.values().flat_map(families).collect();
                if !found.is_empty() {
                    self.families = found;
                }
                self.metrics.applied(true, took, &self.families);
                info!(services = tables.len(), ?took, ?applied, "applied all services");
                self.full_retry = None;
                self.retries.clear();
                self.no_local.clear();
                for (name, tables) in &tables {
                    self.count_local(&Arc::from(name.as_str()), Some(tables));
                }
                self.programmed = true;
                self.status.programmed();
                for name in self.pending.keys().cloned().collect::<Vec<_>>() {
                    self.done(&name);
                }
                self.applied();
            }
            Err(error) => {
                self.failed("all services", &error);
                self.full_retry = Some(self.retry_after(self.full_retry));
                // If one map is full, everything that fits has been applied: single changes go on, and the
                // whole is tried again.
                self.programmed |= matches!(error, DataPlaneError::Full { .. });
            }
        }
        self.apply_edges();
        if self.programmed {
            in_place(|| self.takeover.after(&mut *self.plane));
        }
        drop((batch, tables));
        in_place(userspace_daemon::heap::release_file_pages);
    }

    fn recompile(&mut self) {
        let mut desired = Desired::default();
        let mut found = BTreeSet::new();
        for service in self.caches.services.list() {
            let service = service.read();
            let key = ObjectKey::of(&service);
            let tables = self.compile(&key, &service);
            desired.set(&key.to_string(), compile::rank(&service), Some(tables));
            found.insert(key);
        }
        self.health.keep_only(&found);
        for pod in self.pods_with_ports() {
            let tables = host_ports::compile(&pod, self.links.links.as_deref().unwrap_or_default());
            desired.set(&host_ports::name_of(&pod.key()), host_ports::RANK, Some(tables));
        }
        let names: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        self.service_warnings.keep_only(&names);
        self.desired = desired;
    }

    /// Compiles what changed and applies it.
    async fn apply_changes(&mut self) {
        let batch = self.tracker.take();
        self.note_batch(&batch);
        if batch.node && self.refresh_node() {
            self.apply_everything();
            return;
        }
        // Policies first: queries must not be led to a server that they do not know.
        let servers = batch.services.keys().any(policy::is_dns);
        if (batch.policies || servers || !batch.limited.is_empty()) && !batch.node {
            self.apply_edges();
        }
        if !self.programmed {
            // The whole is tried again soon, from the newest objects.
            return;
        }
        let mut effect = compile::Effect::default();
        for key in batch.services.keys() {
            effect.merge(self.compile_one(key));
        }
        for key in &batch.pods {
            effect.merge(self.compile_host_ports(key));
        }
        let (last, first): (Vec<_>, Vec<_>) =
            effect.changed.iter().cloned().partition(|name| effect.yielded.contains(name));
        self.apply_services(first.into_iter().chain(last).collect()).await;
        for key in batch.services.keys() {
            let name: Arc<str> = Arc::from(key.to_string());
            if !self.retries.contains_key(&name) {
                self.done(&name);
            }
        }
    }

    /// Compiles the host ports of all pods again, which follow from the node's addresses.
    async fn apply_host_ports(&mut self) {
        if !self.programmed {
            return;
        }
        let keys: Vec<ObjectKey> = self.pods_with_ports().iter().map(|pod| pod.key()).collect();
        let mut effect = compile::Effect::default();
        for key in &keys {
            effect.merge(self.compile_host_ports(key));
        }
        self.apply_services(effect.changed.into_iter().collect()).await;
    }

    /// Returns the pods whose host ports are served.
    fn pods_with_ports(&self) -> Vec<Arc<HostPod>> {
        let pods = self.caches.pods.iter().filter(|_| self.config.host_ports).flat_map(Cache::list);
        pods.filter(|pod| pod.has_ports()).collect()
    }

    fn compile_host_ports(&mut self, key: &ObjectKey) -> compile::Effect {
        let pod = self.caches.pods.as_ref().and_then(|pods| pods.get(key));
        let links = self.links.links.as_deref().unwrap_or_default();
        let served = self.config.host_ports;
        let tables = pod.filter(|pod| served && pod.has_ports()).map(|pod| host_ports::compile(&pod, links));
        self.desired.set(&host_ports::name_of(key), host_ports::RANK, tables)
    }

    fn compile_one(&mut self, key: &ObjectKey) -> compile::Effect {
        let name = key.to_string();
        let Some(service) = self.caches.services.get(key) else {
            self.health.set(key, None);
            self.service_warnings.forget(&name);
            return self.desired.set(&name, compile::Rank(0), None);
        };
        let service = service.read();
        let tables = self.compile(key, &service);
        self.desired.set(&name, compile::rank(&service), Some(tables))
    }

    /// Returns the tables of one Service. Reports its health check and its warnings on the way.
    fn compile(&mut self, key: &ObjectKey, service: &Service) -> ServiceTables {
        let slices = self.tracker.slices(key);
        let slices = || slices.iter().map(Arc::as_ref);
        self.health.set(key, compile::health_check(service, slices(), &self.context));
        let new = self.service_warnings.report_new(
            &Arc::from(key.to_string()),
            service,
            compile::warnings(service),
        );
        self.metrics.warnings.add(new);
        compile::compile_service(service, slices(), &self.context)
    }

    async fn apply_services(&mut self, names: Vec<Arc<str>>) {
        for (n, name) in names.iter().enumerate() {
            if n % limits::SERVICE_TURN == limits::SERVICE_TURN - 1 {
                tokio::task::yield_now().await;
            }
            self.apply_one(name);
        }
    }

    fn apply_one(&mut self, name: &Arc<str>) {
        let tables = self.desired.effective(name);
        let start = Instant::now();
        let result = in_place(|| self.plane.apply_service(name, tables.as_ref()));
        match result {
            Ok(applied) => {
                let took = start.elapsed();
                debug!(service = %name, ?took, ?applied, "applied a service");
                self.families.extend(tables.iter().flat_map(families));
                self.metrics.applied(false, took, &self.families);
                self.retries.remove(name);
                if applied.frontends_deleted + applied.blocks_freed > 0 {
                    self.takeover.lost();
                }
                self.count_local(name, tables.as_ref());
                self.done(name);
                self.applied();
            }
            Err(error) => {
                self.failed(name, &error);
                let retry = self.retry_after(self.retries.get(name).copied());
                self.retries.insert(Arc::clone(name), retry);
            }
        }
    }

    /// Reads the own Node again. Returns `true` if tables depend on what changed.
    fn refresh_node(&mut self) -> bool {
        let key = ObjectKey::new("", &self.config.node_name);
        let node = self.caches.nodes.get(&key);
        self.node_seen |= node.is_some();
        let mut view = node.map_or_else(|| self.context.node.clone(), |node| NodeView::of(&node));
        // A deleted Node counts as one that is about to be deleted; what is known of it stays.
        view.eligible &= !self.node_seen || self.caches.nodes.get(&key).is_some();
        self.status.eligible(view.eligible);
        let matters = !view.compiles_as(&self.context.node);
        self.context.node = view;
        self.apply_edges();
        matters
    }

    /// Records everything that waits to be applied.
    fn note_batch(&mut self, batch: &Batch) {
        self.note(&batch.services);
        if batch.policies {
            self.enforcer.note();
        }
        if !batch.limited.is_empty() {
            self.limiter.note();
            self.report_bandwidth_faults(batch.limited.iter());
        }
    }

    fn note(&mut self, changes: &BTreeMap<ObjectKey, Cause>) {
        if changes.is_empty() {
            return;
        }
        self.stamp(&self.metrics.last_queued);
        for (key, cause) in changes {
            self.metrics.service_changes.add(cause.service_changes);
            self.metrics.endpoint_changes.add(cause.endpoint_changes);
            let mut cause = cause.clone();
            if !self.programmed {
                // Changes from before this process say nothing about its speed.
                cause.triggers.clear();
            }
            match self.pending.entry(Arc::from(key.to_string())) {
                std::collections::btree_map::Entry::Vacant(entry) => drop(entry.insert(cause)),
                std::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().merge(cause),
            }
        }
    }

    /// Records that a Service is in the tables as desired.
    fn done(&mut self, name: &Arc<str>) {
        let Some(cause) = self.pending.remove(name) else { return };
        let now = self.ambient.now();
        for (trigger, ip_family) in cause.triggers {
            let took = now.duration_since(trigger).as_secs_f64();
            self.metrics.programming.get(&[ip_family]).value.observe(took.max(0.0));
        }
    }

    fn applied(&self) {
        self.stamp(&self.metrics.last_applied);
        self.status.applied(self.ambient.now());
    }

    /// Sets a time to now, for each family that has services.
    fn stamp(&self, time: &Seconds) {
        let now = seconds(self.ambient.now());
        for ip_family in &self.families {
            time.get(&[ip_family]).value.set(now);
        }
    }

    fn failed(&self, what: &str, error: &DataPlaneError) {
        warn!(what, error = error as &dyn std::error::Error, "apply failed, trying again");
        self.metrics.apply_failures.add(1);
        self.status.failed(format!("{what}: {}", error_chain(error)));
    }

    fn retry_after(&self, earlier: Option<Retry>) -> Retry {
        Retry::after(earlier, Instant::now(), self.ambient.random.next_u64())
    }

    fn count_local(&mut self, name: &Arc<str>, tables: Option<&ServiceTables>) {
        let policies = [(Scope::Internal, PolicyLabel::Internal), (Scope::External, PolicyLabel::External)];
        for ((scope, traffic_policy), ip_family) in
            policies.into_iter().flat_map(|policy| FAMILIES.map(|family| (policy, family)))
        {
            let missing = tables.is_some_and(|tables| {
                tables.frontends.iter().any(|frontend| {
                    (frontend.key.scope, family(frontend.key.address)) == (scope, ip_family)
                        && frontend.drop_when_empty
                        && frontend.backends.is_empty()
                })
            });
            let names = self.no_local.entry((scope, ip_family)).or_default();
            if missing {
                names.insert(Arc::clone(name));
            } else {
                names.remove(name);
            }
            let count = i64::try_from(names.len()).unwrap_or(i64::MAX);
            self.metrics.no_local_endpoints.get(&[ip_family, traffic_policy.name()]).value.set(count);
        }
    }

    fn report_pending(&self) {
        let sum = |count: fn(&Cause) -> u64| {
            i64::try_from(self.pending.values().map(count).sum::<u64>()).unwrap_or(i64::MAX)
        };
        self.metrics.service_changes_pending.set(sum(|cause| cause.service_changes));
        self.metrics.endpoint_changes_pending.set(sum(|cause| cause.endpoint_changes));
        let others = [self.full_retry, self.edges.retry].into_iter().flatten();
        let retries = self.retries.values().copied().chain(others).map(|retry| retry.since);
        let waiting = self.pending.values().map(|cause| cause.since).chain(self.links.failing_since);
        let oldest = waiting.chain(retries).min();
        self.status.pending(oldest, self.retries.keys().map(ToString::to_string).collect());
    }
}

/// Returns the families of a Service's addresses, one for each frontend.
fn families(tables: &ServiceTables) -> impl Iterator<Item = &'static str> {
    tables.frontends.iter().map(|frontend| family(frontend.key.address))
}

/// Runs blocking work without delaying the other tasks of a multi-threaded runtime.
fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

fn seconds(time: jiff::Timestamp) -> f64 {
    time.as_millisecond() as f64 / 1000.0
}
