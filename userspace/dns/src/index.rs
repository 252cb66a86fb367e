//! From caches to the zone: handlers record what changed, one task compiles it and publishes the next
//! snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, Change, Informers, ObjectKey, Projection};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::cluster::{Records, Service, Shape, Slice, Zone};
use crate::engine::Engine;
use crate::limits;
use crate::objects::{Namespace, Pod};
use crate::rights::Rights;

/// The caches that records follow from.
#[derive(Clone)]
pub struct Caches {
    pub services: Cache<Service>,
    pub slices: Cache<Slice>,
    /// Namespaces, if we may list them. Otherwise those with Services are known.
    pub namespaces: Option<Cache<Namespace>>,
    /// Pods, if their records are verified.
    pub pods: Option<Cache<Pod>>,
}

impl Caches {
    /// Returns the caches of a process.
    pub fn of(informers: &Informers, rights: Rights) -> Self {
        Self {
            services: informers.cache(),
            slices: informers.cache(),
            namespaces: rights.namespaces.then(|| informers.cache()),
            pods: rights.pods.then(|| informers.cache()),
        }
    }

    /// Waits for the first whole list of each.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        if let Some(namespaces) = &self.namespaces {
            namespaces.synced().await;
        }
        if let Some(pods) = &self.pods {
            pods.synced().await;
        }
    }
}

/// The changes that the zone does not have yet.
#[derive(Default)]
struct Tracker {
    changes: Mutex<Changes>,
    added: Notify,
}

#[derive(Default)]
struct Changes {
    services: BTreeSet<ObjectKey>,
    namespaces: BTreeSet<String>,
    pods: BTreeSet<(String, IpAddr)>,
    /// The slices of each Service: the objects of the cache, which take no memory of their own here.
    slices: BTreeMap<ObjectKey, Box<[Arc<Slice>]>>,
    /// The pods that have an address.
    owners: BTreeMap<(String, IpAddr), BTreeSet<String>>,
    /// Times of the changes that led to those of slices, by Service.
    triggers: Vec<(ObjectKey, Timestamp)>,
}

impl Tracker {
    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn service(&self, change: &Change<Service>) {
        self.lock().services.insert(change.key());
        self.added.notify_one();
    }

    fn slice(&self, change: &Change<Slice>) {
        let mut changes = self.lock();
        let (old, new) = match change {
            Change::Applied { old, new } => (old.as_ref(), Some(new)),
            Change::Deleted(old) => (Some(old), None),
        };
        for (slice, exists) in old.into_iter().map(|old| (old, false)).chain(new.map(|new| (new, true))) {
            let Some(service) = slice.service() else { continue };
            let is_measured = exists && changes.triggers.len() < limits::MEASURED;
            if let Some(time) = slice.trigger.filter(|_| is_measured) {
                changes.triggers.push((service.clone(), time));
            }
            let before = changes.slices.remove(&service).unwrap_or_default();
            let others = before.iter().filter(|other| other.names() != slice.names());
            let slices: Box<[Arc<Slice>]> = others.chain(exists.then_some(slice)).cloned().collect();
            if !slices.is_empty() {
                changes.slices.insert(service.clone(), slices);
            }
            changes.services.insert(service);
        }
        drop(changes);
        self.added.notify_one();
    }

    fn namespace(&self, change: &Change<Namespace>) {
        self.lock().namespaces.insert(change.key().name);
        self.added.notify_one();
    }

    fn pod(&self, change: &Change<Pod>) {
        let mut changes = self.lock();
        let (old, new) = match change {
            Change::Applied { old, new } => (old.as_ref(), Some(new)),
            Change::Deleted(old) => (Some(old), None),
        };
        for (pod, exists) in old.into_iter().map(|old| (old, false)).chain(new.map(|new| (new, true))) {
            let (namespace, name) = pod.names();
            for address in &pod.addresses {
                let key = (namespace.to_owned(), *address);
                let owners = changes.owners.entry(key.clone()).or_default();
                if exists {
                    owners.insert(name.to_owned());
                } else {
                    owners.remove(name);
                }
                if owners.is_empty() {
                    changes.owners.remove(&key);
                }
                changes.pods.insert(key);
            }
        }
        drop(changes);
        self.added.notify_one();
    }
}

/// Keeps the zone of the engine up to date until `stop`. Calls `ready` once the first lists are in it.
pub async fn run(engine: Arc<Engine>, caches: Caches, stop: CancellationToken, ready: impl FnOnce()) {
    let tracker = Arc::new(Tracker::default());
    subscribe(&caches, &tracker);
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = caches.synced() => {}
    }
    let mut zone = Zone::clone(&engine.zone.load());
    // Objects that existed before the start are no changes, whose latency would be measured.
    tracker.lock().triggers.clear();
    zone.set_complete();
    apply(&engine, &caches, &tracker, &mut zone);
    info!(services = zone.len(), "the cluster's names are known");
    ready();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tracker.added.notified() => apply(&engine, &caches, &tracker, &mut zone),
        }
    }
}

fn subscribe(caches: &Caches, tracker: &Arc<Tracker>) {
    let to = Arc::clone(tracker);
    caches.services.on_change(move |change| to.service(change));
    let to = Arc::clone(tracker);
    caches.slices.on_change(move |change| to.slice(change));
    if let Some(namespaces) = &caches.namespaces {
        let to = Arc::clone(tracker);
        namespaces.on_change(move |change| to.namespace(change));
    }
    if let Some(pods) = &caches.pods {
        let to = Arc::clone(tracker);
        pods.on_change(move |change| to.pod(change));
    }
}

/// Compiles what changed and publishes the next snapshot.
fn apply(engine: &Engine, caches: &Caches, tracker: &Tracker, zone: &mut Zone) {
    let (services, mut namespaces, pods, triggers) = {
        let mut changes = tracker.lock();
        let services: Vec<(ObjectKey, Box<[Arc<Slice>]>)> = std::mem::take(&mut changes.services)
            .into_iter()
            .map(|key| {
                let slices = changes.slices.get(&key).cloned().unwrap_or_default();
                (key, slices)
            })
            .collect();
        let pods: Vec<_> = std::mem::take(&mut changes.pods)
            .into_iter()
            .map(|key| (changes.owners.contains_key(&key), key))
            .collect();
        let triggers = std::mem::take(&mut changes.triggers);
        (services, std::mem::take(&mut changes.namespaces), pods, triggers)
    };
    if caches.namespaces.is_none() {
        namespaces.extend(services.iter().map(|(key, _)| key.namespace.to_string()));
    }
    for (key, slices) in services {
        let records = caches.services.get(&key).map(|service| Records::compile(&service, &slices));
        zone.set_service(&key.namespace, &key.name, records);
    }
    for name in namespaces {
        let exists = match &caches.namespaces {
            Some(all) => all.get(&ObjectKey::new("", &name)).is_some(),
            None => !caches.services.list_namespace(&name).is_empty(),
        };
        zone.set_namespace(&name, exists);
    }
    for (exists, (namespace, address)) in pods {
        zone.set_pod(&namespace, address, exists);
    }
    zone.set_serial(engine.ambient.now().as_second() as u32);
    engine.zone.store(Arc::new(zone.clone()));
    measure(engine, caches, triggers);
}

/// Counts the times from changes of pods to their records.
fn measure(engine: &Engine, caches: &Caches, triggers: Vec<(ObjectKey, Timestamp)>) {
    let now = engine.ambient.now();
    for (key, time) in triggers {
        let Some(service) = caches.services.get(&key) else { continue };
        let kind = if service.shape == Shape::Headless { "headless_with_selector" } else { "cluster_ip" };
        let seconds = now.duration_since(time).as_secs_f64();
        engine.metrics.programming.get(&[kind]).value.observe(seconds.max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use apiserver_meta::ambient::Ambient;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::cluster::{PodMode, Settings};
    use crate::corefile::Corefile;
    use crate::engine::{Origin, Outcome};
    use crate::metrics::{Metrics, Transport};
    use crate::name::Name;
    use crate::routes::Routes;
    use crate::testing::question;
    use crate::wire;

    fn engine(pods: PodMode) -> Arc<Engine> {
        let corefile = Corefile::parse(".:53 {\n kubernetes in-addr.arpa\n}\n").unwrap();
        let metrics = Arc::new(Metrics::default());
        let read = |_: &Path| String::new();
        let routes = Routes::build(&corefile, &read, &|_| false, &metrics, None);
        let domain = Name::parse("cluster.local").unwrap();
        let settings = Settings { domain, ttl: 5, pods, servers: Vec::new(), networks: Vec::new() };
        Arc::new(Engine::new(Zone::new(settings), routes, metrics, Ambient::system()))
    }

    fn answer(engine: &Engine, name: &str) -> Vec<u8> {
        let mut out = vec![0; 4096];
        let client = IpAddr::from([127, 0, 0, 1]);
        let origin = Origin { client, transport: Transport::Udp, began: Instant::now(), is_step: false };
        let request = question(1, name, wire::A, None);
        let Outcome::Done(length, None) = engine.answer(&request, origin, &mut out) else { panic!("{name}") };
        out.truncate(length);
        out
    }

    /// The first address of an answer; `None` if there is none.
    fn ask(engine: &Engine, name: &str) -> Option<[u8; 4]> {
        let answer = answer(engine, name);
        let has = wire::u16_at(&answer, 6) > 0;
        has.then(|| answer[answer.len() - 4..].try_into().unwrap())
    }

    fn of<K: Projection>(cache: &Cache<K>, object: Value)
    where
        K::Object: serde::de::DeserializeOwned,
    {
        cache.apply(serde_json::from_value(object).unwrap());
    }

    #[test]
    fn changes_reach_the_zone_and_nothing_is_left_of_what_is_gone() {
        let engine = engine(PodMode::Verified);
        let caches = Caches {
            services: Cache::default(),
            slices: Cache::default(),
            namespaces: Some(Cache::default()),
            pods: Some(Cache::default()),
        };
        let tracker = Arc::new(Tracker::default());
        subscribe(&caches, &tracker);
        let mut zone = Zone::clone(&engine.zone.load());
        let before = answer(&engine, "web.shop.svc.cluster.local");
        assert_eq!(
            (before[3] & 0xf, wire::u16_at(&before, 6)),
            (wire::SERVER_FAILURE, 0),
            "nothing is known yet"
        );
        assert_eq!(answer(&engine, "1.0.96.10.in-addr.arpa")[3] & 0xf, wire::SERVER_FAILURE);
        zone.set_complete();
        let mut applied = |name: &str| {
            apply(&engine, &caches, &tracker, &mut zone);
            ask(&engine, name)
        };
        let slice = |version: &str, service: &str, ip: &str| {
            json!({
                "metadata": {"namespace": "shop", "name": "s1", "resourceVersion": version, "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}, "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4", "endpoints": [{"addresses": [ip]}], "ports": [],
            })
        };
        // A slice may come before its Service.
        of(&caches.slices, slice("1", "web", "10.0.0.1"));
        of(caches.namespaces.as_ref().unwrap(), json!({"metadata": {"name": "shop"}}));
        assert_eq!(applied("web.shop.svc.cluster.local"), None);
        let service = |name: &str| json!({"metadata": {"namespace": "shop", "name": name, "resourceVersion": "2"}, "spec": {"clusterIP": "None"}});
        of(&caches.services, service("web"));
        of(&caches.services, service("other"));
        assert_eq!(applied("web.shop.svc.cluster.local"), Some([10, 0, 0, 1]));
        of(&caches.slices, slice("3", "web", "10.0.0.2"));
        assert_eq!(applied("web.shop.svc.cluster.local"), Some([10, 0, 0, 2]));
        // A slice that is given to another Service leaves the first.
        of(&caches.slices, slice("4", "other", "10.0.0.2"));
        assert_eq!(applied("web.shop.svc.cluster.local"), None);
        assert_eq!(applied("other.shop.svc.cluster.local"), Some([10, 0, 0, 2]));
        caches.slices.delete(&ObjectKey::new("shop", "s1"));
        caches.services.delete(&ObjectKey::new("shop", "web"));
        assert_eq!(applied("other.shop.svc.cluster.local"), None);
        assert_eq!(engine.zone.load().len(), 1);
        assert!(tracker.lock().slices.is_empty());
        let measured = engine.metrics.programming.get(&["headless_with_selector"]);
        assert_eq!(measured.value.cumulated().1, 2, "a slice whose Service is not there yet is not measured");
        // Two pods have an address one after the other.
        let pod = |name: &str| json!({"metadata": {"namespace": "shop", "name": name}, "status": {"podIPs": [{"ip": "10.0.0.7"}]}});
        let pods = caches.pods.clone().unwrap();
        of(&pods, pod("a"));
        of(&pods, pod("b"));
        pods.delete(&ObjectKey::new("shop", "a"));
        assert_eq!(applied("10-0-0-7.shop.pod.cluster.local"), Some([10, 0, 0, 7]));
        pods.delete(&ObjectKey::new("shop", "b"));
        assert_eq!(applied("10-0-0-7.shop.pod.cluster.local"), None);
        assert!(tracker.lock().owners.is_empty());
    }

    #[test]
    fn namespaces_that_we_may_not_list_are_those_with_services() {
        let engine = engine(PodMode::Insecure);
        let caches =
            Caches { services: Cache::default(), slices: Cache::default(), namespaces: None, pods: None };
        let tracker = Arc::new(Tracker::default());
        subscribe(&caches, &tracker);
        let mut zone = Zone::clone(&engine.zone.load());
        zone.set_complete();
        let mut pod = || {
            apply(&engine, &caches, &tracker, &mut zone);
            ask(&engine, "10-0-0-7.shop.pod.cluster.local")
        };
        assert_eq!(pod(), None);
        for name in ["web", "other"] {
            of(
                &caches.services,
                json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"clusterIP": "None"}}),
            );
        }
        assert_eq!(pod(), Some([10, 0, 0, 7]));
        caches.services.delete(&ObjectKey::new("shop", "web"));
        assert_eq!(pod(), Some([10, 0, 0, 7]));
        caches.services.delete(&ObjectKey::new("shop", "other"));
        assert_eq!(pod(), None);
    }
}
