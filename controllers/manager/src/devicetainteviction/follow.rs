//! Turns changes into work: the pods whose devices, claims or rules have changed.

use std::sync::Arc;

use apiserver_client::{Cache, Change, ObjectKey};
use controllers_runtime::WorkQueue;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use tokio::sync::watch;

use super::plan::{NO_EXECUTE, evicts};
use super::{Devices, Key, Rules};
use crate::context::Context;
use crate::device_claims::{allocation, consumers, entries, is_pod};
use crate::device_slices::Place;
use crate::discovery::wait_until_served;
use crate::limits::RESYNC;
use crate::meta::{name, namespace};

/// Returns the keys of the pods for which a claim is reserved.
pub(super) fn pods_of(claim: &ResourceClaim) -> impl Iterator<Item = ObjectKey> + '_ {
    let space = namespace(&claim.metadata);
    consumers(claim).iter().filter(|one| is_pod(one)).map(move |one| ObjectKey::new(space, &one.name))
}

fn add_users<'a>(queue: &WorkQueue<Key>, claims: impl IntoIterator<Item = &'a Arc<ResourceClaim>>) {
    claims.into_iter().flat_map(|claim| pods_of(claim)).for_each(|pod| queue.add(Key::Pod(pod)));
}

/// Returns the states of an object before and after a change.
fn versions<K>(change: &Change<K>) -> impl Iterator<Item = &Arc<K>> {
    let (old, new) = match change {
        Change::Applied { old, new } => (old.as_ref(), new),
        Change::Deleted(last) => (None, last),
    };
    old.into_iter().chain([new])
}

pub(super) fn pods(devices: &Devices, queue: &WorkQueue<Key>) {
    let queue = queue.clone();
    devices.pods.on_change(move |change| {
        if !entries(change.object()).is_empty() {
            queue.add(Key::Pod(change.key()));
        }
    });
}

pub(super) fn claims(devices: &Devices, queue: &WorkQueue<Key>) {
    let queue = queue.clone();
    devices.claims.on_change(move |change| {
        if versions(change).any(|claim| allocation(claim).is_some()) {
            add_users(&queue, versions(change));
        }
    });
}

/// Adds the users of a pool of devices when one of its slices changes, if it has or had taints. Slices may be out of
/// date by a change of another one.
pub(super) fn slices(devices: &Devices, queue: &WorkQueue<Key>) {
    let (queue, by_pool, by_place) = (queue.clone(), devices.by_pool.clone(), devices.by_place.clone());
    devices.slices.on_change(move |change| {
        let is_tainted = versions(change).any(|slice| evicts(slice));
        for slice in versions(change) {
            if is_tainted || by_pool.any(&slice.id, evicts) {
                add_users(&queue, &by_place.get(&Place::Pool(slice.id.clone())));
            }
        }
    });
}

/// Adds rules when their specifications change, and the pods that they affect.
fn follow_rules(rules: &Cache<DeviceTaintRule>, devices: Devices, queue: WorkQueue<Key>) {
    rules.on_change(move |change| {
        if let Change::Applied { old: Some(old), new } = change
            && old.metadata.uid == new.metadata.uid
            && old.spec == new.spec
        {
            return;
        }
        // The condition is written before pods are evicted.
        queue.add(Key::Rule(name(&change.object().metadata).to_owned()));
        for rule in versions(change).filter(|rule| rule.spec.taint.effect == NO_EXECUTE) {
            add_users(&queue, &devices.selected(rule));
        }
    });
}

/// Follows the rules as soon as the API server serves them. `known` tells whether it does.
pub(super) async fn find_rules(
    context: Context,
    devices: Devices,
    queue: WorkQueue<Key>,
    rules: Rules,
    known: watch::Sender<bool>,
) {
    wait_until_served::<DeviceTaintRule>(&context.client, &known).await;
    let cache = context.informers.cache::<DeviceTaintRule>();
    cache.synced().await;
    let cache = rules.get_or_init(|| cache);
    follow_rules(cache, devices, queue);
    known.send_replace(true);
}

/// Adds all pods with claims from time to time.
pub(super) async fn resync(devices: Devices, queue: WorkQueue<Key>) {
    loop {
        tokio::time::sleep(RESYNC).await;
        let pods = devices.pods.list().into_iter().filter(|pod| !entries(pod).is_empty());
        pods.for_each(|pod| queue.add(Key::Pod(ObjectKey::of(pod.as_ref()))));
    }
}
