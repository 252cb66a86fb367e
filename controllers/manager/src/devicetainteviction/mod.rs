//! Evicts pods that use devices with `NoExecute` taints, immediately or when their toleration ends. Taints are published
//! by drivers in ResourceSlices, or set by DeviceTaintRules, which the API server serves only if it is told to.

mod follow;
mod plan;
mod rule;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, Index, Object, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::sync::watch;

use self::plan::{Eviction, NO_EXECUTE, RuleId, View, matches, rule_id};
use self::rule::{Counts, Due};
use crate::context::{Context, Tasks};
use crate::device_claims::allocated;
use crate::device_slices::{ByPlace, ByPool, Place, PoolId, PoolSlice, current};
use crate::limits::RULE_STATUS_PERIOD;
use crate::meta::{is_deleted, name, namespace, only_this, uid};
use crate::patch;
use crate::pods::{Pod, put_disruption, until};

const NAME: &str = "device-taint-eviction-controller";
const REASON: &str = "DeviceTaintManagerEviction";

/// A rule whose condition is looked at, or a pod that may have to leave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Rule(String),
    Pod(ObjectKey),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule:{name}"),
            Self::Pod(key) => write!(f, "pod:{key}"),
        }
    }
}

/// Rules, once it is known that the API server has them.
type Rules = Arc<OnceLock<Cache<DeviceTaintRule>>>;

/// The caches of what pods use, with their indexes.
#[derive(Clone)]
struct Devices {
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
    by_place: Index<ResourceClaim, ByPlace>,
    slices: Cache<PoolSlice>,
    by_pool: Index<PoolSlice, ByPool>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new(NAME);
    let claims = context.informers.cache::<ResourceClaim>();
    let slices = context.informers.cache::<PoolSlice>();
    let devices = Devices {
        pods: context.informers.cache(),
        by_place: claims.index(),
        claims,
        by_pool: slices.index(),
        slices,
    };
    let rules = Rules::default();
    follow::pods(&devices, &queue);
    follow::claims(&devices, &queue);
    follow::slices(&devices, &queue);
    let (known, is_known) = watch::channel(false);
    let found =
        follow::find_rules(context.clone(), devices.clone(), queue.clone(), Arc::clone(&rules), known);
    context.spawn(tasks, found);
    context.spawn(tasks, follow::resync(devices.clone(), queue.clone()));
    let controller = Evictions {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named(NAME),
        queue: queue.clone(),
        devices: devices.clone(),
        rules,
        deleted: Ledger::default(),
        written_rules: Ledger::default(),
        memory: Mutex::default(),
    };
    context.start(tasks, queue, controller, async move {
        devices.pods.synced().await;
        devices.claims.synced().await;
        devices.slices.synced().await;
        let mut is_known = is_known;
        // The sender ends with this program.
        let _ = is_known.wait_for(|known| *known).await;
    });
}

/// Pods that are to leave, and counts of those that had to.
#[derive(Default)]
struct Memory {
    /// The pods that are to leave, by their UIDs.
    scheduled: BTreeMap<ObjectKey, String>,
    /// Numbers of evicted pods by the names of the rules.
    evicted: BTreeMap<String, Evicted>,
}

#[derive(Default)]
struct Evicted {
    /// UID of the rule.
    uid: String,
    pods: u64,
}

struct Evictions {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    queue: WorkQueue<Key>,
    devices: Devices,
    rules: Rules,
    /// Deletions of pods that the cache does not show yet.
    deleted: Ledger<Key>,
    written_rules: Ledger<Key>,
    memory: Mutex<Memory>,
}

impl Reconcile for Evictions {
    type Key = Key;

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        match key {
            Key::Pod(pod) => self.judge(key, pod).await,
            Key::Rule(rule) => self.report(key, rule).await,
        }
    }
}

impl Evictions {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `decide` with what the caches show, and with these rules.
    fn view<T>(&self, rules: &[Arc<DeviceTaintRule>], decide: impl FnOnce(&View<'_>) -> T) -> T {
        let claim = |key: &ObjectKey| self.devices.claims.get(key);
        let pool = |id: &PoolId| self.devices.by_pool.get(id);
        decide(&View { claim: &claim, pool: &pool, rules })
    }

    fn evicting_rules(&self) -> Vec<Arc<DeviceTaintRule>> {
        let mut rules = self.rules.get().map(Cache::list).unwrap_or_default();
        rules.retain(|rule| rule.spec.taint.effect == NO_EXECUTE);
        rules
    }

    /// Evicts a pod if it is time.
    async fn judge(&self, key: &Key, pod_key: &ObjectKey) -> Result<Outcome> {
        let pod = self.devices.pods.get(pod_key).filter(|pod| !is_deleted(&pod.metadata));
        if !self.deleted.is_shown(key, &self.devices.pods) {
            return Ok(Outcome::Behind);
        }
        let Some(pod) = pod else {
            self.memory().scheduled.remove(pod_key);
            return Ok(Outcome::Done);
        };
        let eviction = self.view(&self.evicting_rules(), |view| view.pod_eviction(&pod));
        let Some(eviction) = eviction else {
            let scheduled = self.memory().scheduled.remove(pod_key);
            if scheduled.as_deref() == Some(uid(&pod.metadata)) {
                self.recorder.normal(reference(pod.as_ref()), REASON, "Cancelling deletion");
            }
            return Ok(Outcome::Done);
        };
        self.memory().scheduled.insert(pod_key.clone(), uid(&pod.metadata).to_owned());
        self.look_later(&eviction);
        let now = self.ambient.now();
        if eviction.at > now {
            return Ok(Outcome::After(until(eviction.at, now)));
        }
        match self.evict(key, &pod).await {
            // Somebody else was faster.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
            Ok(()) => {
                self.count(&eviction);
                self.look_later(&eviction);
            }
        }
        self.memory().scheduled.remove(pod_key);
        Ok(Outcome::Done)
    }

    /// Has the conditions of the rules looked at when more pods may have been affected.
    fn look_later(&self, eviction: &Eviction) {
        for (rule, _) in &eviction.rules {
            self.queue.add_after(Key::Rule(rule.clone()), RULE_STATUS_PERIOD);
        }
    }

    fn count(&self, eviction: &Eviction) {
        let mut memory = self.memory();
        for (rule, uid) in &eviction.rules {
            let evicted = memory.evicted.entry(rule.clone()).or_default();
            if evicted.uid != *uid {
                *evicted = Evicted { uid: uid.clone(), pods: 0 };
            }
            evicted.pods += 1;
        }
    }

    async fn evict(&self, key: &Key, pod: &Pod) -> Result<()> {
        let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), namespace(&pod.metadata));
        self.recorder.normal(reference(pod), REASON, "Marking for deletion");
        let old = pod.to_api();
        let mut new = old.clone();
        let message = "Device Taint manager: deleting due to NoExecute taint";
        put_disruption(&mut new, "DeletionByDeviceTaintManager", message, self.ambient.now());
        patch::update_status(&api, &old, &new).await?;
        let options = only_this(&pod.metadata, DeleteParams::default());
        let deleted = api.delete(name(&pod.metadata), &options).await;
        let deleted = deleted.attempt(|| format!("delete pod {}", ObjectKey::of(pod)))?;
        if let Some(pod) = deleted.left() {
            self.deleted.wrote(key, &pod);
        }
        Ok(())
    }

    /// Writes the condition of a rule if it has changed.
    async fn report(&self, key: &Key, rule: &str) -> Result<Outcome> {
        let Some(rules) = self.rules.get() else { return Ok(Outcome::Done) };
        if !self.written_rules.is_shown(key, rules) {
            return Ok(Outcome::Behind);
        }
        let Some(rule) = rules.get(&ObjectKey::new("", rule)) else {
            self.memory().evicted.remove(rule);
            return Ok(Outcome::Done);
        };
        let now = self.ambient.now();
        match rule::due(&rule, now) {
            Due::Now => {}
            Due::After(pause) => return Ok(Outcome::After(pause)),
            Due::Never => return Ok(Outcome::Done),
        }
        let counts = if rule::counts_pods(&rule) { self.counts(&rule) } else { Counts::default() };
        let evicted = self.evicted(&rule_id(&rule));
        let new = rule::with_condition(&rule, counts, evicted, now);
        let api: Api<DeviceTaintRule> = Api::all(self.client.clone());
        match patch::write_status(&api, rule.as_ref(), &new).await {
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            Err(error) => return Err(error),
            Ok(Some(written)) => self.written_rules.wrote(key, &written),
            Ok(None) => {}
        }
        let is_pending = rule.spec.taint.effect == NO_EXECUTE && counts.pods > 0;
        Ok(if is_pending { Outcome::After(RULE_STATUS_PERIOD) } else { Outcome::Done })
    }

    fn evicted(&self, (name, uid): &RuleId) -> u64 {
        self.memory()
            .evicted
            .get(name)
            .filter(|evicted| evicted.uid == *uid)
            .map_or(0, |evicted| evicted.pods)
    }

    /// Counts what a rule affects, or would affect if it evicted pods.
    fn counts(&self, rule: &DeviceTaintRule) -> Counts {
        let id = rule_id(rule);
        let evicting = [Arc::new(rule::as_evicting(rule))];
        let claims = self.devices.selected(rule);
        let users: BTreeSet<ObjectKey> = claims.iter().flat_map(|claim| follow::pods_of(claim)).collect();
        let pods = users.iter().filter_map(|key| self.devices.pods.get(key));
        let pods = pods.filter(|pod| !is_deleted(&pod.metadata));
        let affected: Vec<Arc<Pod>> = self.view(&evicting, |view| {
            let is_affected =
                |pod: &Arc<Pod>| view.pod_eviction(pod).is_some_and(|it| it.rules.contains(&id));
            pods.filter(is_affected).collect()
        });
        let namespaces: BTreeSet<&str> = affected.iter().map(|pod| namespace(&pod.metadata)).collect();
        let devices = claims.iter().flat_map(|claim| allocated(claim));
        let allocated = devices.filter(|one| matches(rule, &one.driver, &one.pool, &one.device)).count();
        let published = self.devices.published(rule);
        Counts { published, allocated, pods: affected.len(), namespaces: namespaces.len() }
    }
}

impl Devices {
    /// Returns the claims that may have a device which a rule taints.
    fn selected(&self, rule: &DeviceTaintRule) -> Vec<Arc<ResourceClaim>> {
        let Some(selector) = &rule.spec.device_selector else { return Vec::new() };
        match (&selector.driver, &selector.pool) {
            (Some(driver), Some(pool)) => {
                self.by_place.get(&Place::Pool(PoolId { driver: driver.clone(), pool: pool.clone() }))
            }
            (Some(driver), None) => self.by_place.get(&Place::Driver(driver.clone())),
            // Rules change rarely, and most name a driver.
            (None, _) => self.claims.list(),
        }
    }

    /// Returns the number of devices in up-to-date slices that a rule taints.
    fn published(&self, rule: &DeviceTaintRule) -> usize {
        let ids: BTreeSet<PoolId> = self.slices.list().iter().map(|slice| slice.id.clone()).collect();
        let in_pool = |id: &PoolId| {
            let devices = |slice: &PoolSlice| {
                slice.devices.iter().filter(|one| matches(rule, &id.driver, &id.pool, &one.name)).count()
            };
            current(&self.by_pool.get(id)).map(devices).sum::<usize>()
        };
        ids.iter().map(in_pool).sum()
    }
}
