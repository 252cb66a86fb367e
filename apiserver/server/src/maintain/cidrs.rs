//! ServiceCIDRs: the one made from the flags, and the life of all of them (KEP-1880).
//!
//! In Kubernetes their conditions and finalizer are kept by the controller manager. Here the
//! server does it, because it alone hands out the addresses: whether a range may still be used is
//! then known where it is used, and a server without controllers can take further ranges. A
//! controller manager that does the same beside it finds nothing to do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use ipnetwork::IpNetwork;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::OwnObjects;
use super::events::{Recorder, Report};
use crate::allocate::blocks::{Block, Blocks};
use crate::hooks::Hooks;
use crate::objects::{Objects, Stored};

/// The ServiceCIDR of the flags.
const DEFAULT: &str = "kubernetes";
/// Keeps a ServiceCIDR whose addresses are in use.
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// The grace period of a deletion: afterwards other servers know of it too and take no further address.
const DELETION_GRACE_PERIOD: Duration = Duration::from_secs(10);
/// The interval at which those that are being deleted are checked.
const AGAIN: Duration = Duration::from_secs(5);
const HOOK: &str = "poststarthook/start-kubernetes-service-cidr-controller";

/// Keeps the ServiceCIDRs.
pub struct ServiceCidrs<'a> {
    pub own: &'a OwnObjects,
    pub recorder: &'a Recorder,
    /// The ranges of all ServiceCIDRs, as the allocator uses them.
    pub blocks: &'a Blocks,
    /// The ranges of the flags.
    pub flags: &'a [IpNetwork],
    pub hooks: &'a Hooks,
}

impl ServiceCidrs<'_> {
    fn kind(&self) -> Option<&Resource> {
        let kind = self.own.objects().registry().by_kind("networking.k8s.io/v1", "ServiceCIDR");
        kind.map(|kind| &**kind)
    }

    /// Creates the ServiceCIDR `kubernetes`. An existing one stays; a second family that the flags have gained is
    /// added to it, and any other difference is reported in an Event.
    pub async fn ensure_default(&self) -> Result<(), ApiError> {
        if let Some(resource) = self.kind() {
            self.ensure_flags(resource).await?;
            self.look(resource, DEFAULT, false).await?;
        }
        self.hooks.done(HOOK);
        Ok(())
    }

    async fn ensure_flags(&self, resource: &Resource) -> Result<(), ApiError> {
        let flags: Vec<String> = self.flags.iter().map(ToString::to_string).collect();
        let Some(Stored { object: current, .. }) = self.own.objects().fetch(resource, "", DEFAULT).await?
        else {
            let object = json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": {"name": DEFAULT, "finalizers": [FINALIZER]},
                "spec": {"cidrs": flags},
            });
            return self.own.create(resource, object).await.map(drop);
        };
        let had: Vec<&str> = meta::list(&current, "/spec/cidrs").iter().filter_map(Value::as_str).collect();
        if had.len() == 1 && flags.len() == 2 && had[0] == flags[0] {
            let mut new = current.clone();
            new["spec"]["cidrs"] = json!(flags);
            self.own.put(resource, new).await?;
        } else if had != flags {
            let note = format!(
                "The default ServiceCIDR {had:?} does not match the flag --service-cluster-ip-range {flags:?}"
            );
            let report = Report {
                reporter: "kubernetes-service-cidr-controller",
                kind: "Warning",
                reason: "KubernetesDefaultServiceCIDRInconsistent",
                action: "KubernetesDefaultServiceCIDRInconsistent",
                note,
            };
            self.recorder.record(&current, report).await;
        }
        Ok(())
    }

    /// Looks after all ServiceCIDRs, for ever.
    pub async fn run(&self) {
        let Some(resource) = self.kind() else { return };
        // The times at which this server learnt of the deletions. Clocks of servers differ, so stamps are no
        // help.
        let mut going: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            let all = self.blocks.all();
            going.retain(|name, _| all.get(name).is_some_and(|block| block.going));
            for (name, block) in all.iter().filter(|(_, block)| !block.open) {
                let since = block.going.then(|| *going.entry(name.clone()).or_insert_with(Instant::now));
                let grace_period_over = since.is_some_and(|since| since.elapsed() >= DELETION_GRACE_PERIOD);
                if let Err(error) = self.look(resource, name, grace_period_over).await {
                    tracing::warn!(%error, %name, "a ServiceCIDR cannot be brought up to date");
                }
            }
            if !all.contains_key(DEFAULT)
                && let Err(error) = self.ensure_default().await
            {
                tracing::warn!(%error, "cannot update the default ServiceCIDR");
            }
            let _ = tokio::time::timeout(AGAIN, self.blocks.changed()).await;
        }
    }

    /// Brings one up to date. `grace_period_over`: all servers know by now that it is being deleted.
    async fn look(&self, resource: &Resource, name: &str, grace_period_over: bool) -> Result<(), ApiError> {
        let objects = self.own.objects();
        let Some(current) = objects.fetch(resource, "", name).await? else { return Ok(()) };
        let now = objects.ambient().now();
        let used = if meta::deletion_timestamp(&current.object).is_some() {
            objects.fresh().await?;
            is_used(objects, self.blocks, name, &Block::of(&current.object))?
        } else {
            false
        };
        match plan(&current.object, used, grace_period_over, now) {
            Step::Nothing => {}
            Step::Put(new) => drop(self.own.put(resource, new).await?),
            Step::Remove => drop(objects.remove(resource, "", name, current.revision).await?),
        }
        Ok(())
    }
}

/// Returns `true` if an address of the range is in use that no other range would cover.
fn is_used(objects: &Objects, blocks: &Blocks, name: &str, block: &Block) -> Result<bool, ApiError> {
    let Some(addresses) = objects.registry().by_kind("networking.k8s.io/v1", "IPAddress") else {
        return Ok(false);
    };
    let snapshot = objects.cache(addresses)?.snapshot();
    let inside = |address: &IpAddr| block.cidrs.iter().any(|range| range.contains(*address));
    Ok(snapshot
        .objects
        .keys()
        .filter_map(|key| key.parse::<IpAddr>().ok())
        .any(|address| inside(&address) && !blocks.covered_without(address, name)))
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Put(Value),
    Remove,
}

/// Decides what to do with a ServiceCIDR: pure.
fn plan(object: &Value, used: bool, grace_period_over: bool, now: Timestamp) -> Step {
    let mut new = object.clone();
    let finalizers = meta::finalizers(object);
    let mut kept: Vec<String> =
        finalizers.iter().filter(|f| **f != FINALIZER).map(|f| (*f).to_owned()).collect();
    if meta::deletion_timestamp(object).is_none() {
        if kept.len() == finalizers.len() {
            kept.push(FINALIZER.to_owned());
            meta::set_finalizers(&mut new, kept);
        }
        condition(&mut new, true, "", "Kubernetes Service CIDR is ready", now);
        return if new == *object { Step::Nothing } else { Step::Put(new) };
    }
    if kept.len() == finalizers.len() || (!used && !grace_period_over) {
        return Step::Nothing;
    }
    if used {
        let why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        condition(&mut new, false, "Terminating", why, now);
        return if new == *object { Step::Nothing } else { Step::Put(new) };
    }
    if kept.is_empty() {
        return Step::Remove;
    }
    meta::set_finalizers(&mut new, kept);
    Step::Put(new)
}

fn condition(object: &mut Value, ready: bool, reason: &str, message: &str, now: Timestamp) {
    let status = if ready { "True" } else { "False" };
    let mut conditions = meta::list(object, "/status/conditions").to_vec();
    let found = conditions.iter().position(|c| c["type"] == "Ready");
    if found.is_some_and(|index| conditions[index]["status"] == status) {
        return;
    }
    let new = json!({
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": time::rfc3339(now),
    });
    match found {
        Some(index) => conditions[index] = new,
        None => conditions.push(new),
    }
    object["status"]["conditions"] = Value::Array(conditions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_made_ready_guarded_and_let_go_when_nothing_uses_it() {
        let now = time::parse("2026-01-01T00:01:00Z").unwrap();
        let fresh = json!({"metadata": {"name": "a"}, "spec": {"cidrs": ["10.0.0.0/24"]}});
        let Step::Put(ready) = plan(&fresh, false, false, now) else { panic!("it becomes ready") };
        assert_eq!(meta::finalizers(&ready), [FINALIZER]);
        assert!(Block::of(&ready).open);
        assert_eq!(plan(&ready, true, false, now), Step::Nothing);

        let mut going = ready;
        meta::set(&mut going, "deletionTimestamp", "2026-01-01T00:00:00Z");
        assert_eq!(plan(&going, false, false, now), Step::Nothing, "others may not have heard of it");
        let Step::Put(waiting) = plan(&going, true, true, now) else { panic!("it says why it stays") };
        assert_eq!(waiting["status"]["conditions"][0]["reason"], "Terminating");
        assert!(!Block::of(&waiting).open);
        assert_eq!(plan(&waiting, true, true, now), Step::Nothing);
        assert_eq!(plan(&waiting, false, true, now), Step::Remove);
        let mut other = waiting;
        meta::set_finalizers(&mut other, vec!["example.com/x".to_owned(), FINALIZER.to_owned()]);
        let Step::Put(left) = plan(&other, false, true, now) else { panic!("another finalizer holds it") };
        assert_eq!(meta::finalizers(&left), ["example.com/x"]);
    }
}
