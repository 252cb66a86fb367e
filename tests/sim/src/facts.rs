//! The facts about objects that the invariants need, read from the stored form alone.

use std::fmt;
use std::net::IpAddr;

use apiserver_meta::{pods, quantity};
use serde_json::Value;
use tokio::time::Instant;

/// Splits a store key into plural and the rest: `/registry/pods/ns/name` gives `pods` and `ns/name`.
pub fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix("/registry/")?.split_once('/')
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// Returns the uid of the controlling owner.
fn owner(object: &Value) -> String {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    controller.map(|owner| text(owner, "/uid")).unwrap_or_default()
}

fn condition(object: &Value, kind: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub uid: String,
    /// Uid of its controller.
    pub owner: String,
    pub app: String,
    pub image: String,
    pub node: String,
    pub address: Option<IpAddr>,
    pub ready: bool,
    pub deleting: bool,
    pub finished: bool,
    /// CPU request in thousandths.
    pub cpu: i64,
    /// Memory request in bytes.
    pub memory: i64,
    pub restarts: i64,
}

impl Pod {
    pub fn read(object: &Value) -> Self {
        let containers = object.pointer("/spec/containers").and_then(Value::as_array);
        let asked = |name: &str| {
            let each = containers.into_iter().flatten().map(|container| {
                let asked = container.pointer(&format!("/resources/requests/{name}"));
                asked.and_then(|value| quantity::parse_value(value).ok())
            });
            each.flatten().fold(quantity::Quantity::from_value(0), quantity::Quantity::saturating_add)
        };
        let statuses = object.pointer("/status/containerStatuses").and_then(Value::as_array);
        Self {
            uid: text(object, "/metadata/uid"),
            owner: owner(object),
            app: text(object, "/metadata/labels/app"),
            image: text(object, "/spec/containers/0/image"),
            node: text(object, "/spec/nodeName"),
            address: text(object, "/status/podIP").parse().ok(),
            ready: condition(object, "Ready"),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            finished: pods::is_final(&text(object, "/status/phase")),
            cpu: asked("cpu").milli(),
            memory: asked("memory").value(),
            restarts: statuses.into_iter().flatten().map(|status| number(status, "/restartCount")).sum(),
        }
    }

    /// Returns `true` if the pod counts towards its controller's size.
    pub fn is_active(&self) -> bool {
        !self.deleting && !self.finished
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        write!(f, "{} on {:?} at {address:?}", self.image, self.node)?;
        for (name, holds) in [("ready", self.ready), ("deleting", self.deleting), ("finished", self.finished)]
        {
            if holds {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Set {
    pub uid: String,
    /// Uid of the Deployment.
    pub owner: String,
    pub replicas: i64,
    /// Time of the last scale-down, and the size before it.
    pub shrunk: Option<(Instant, i64)>,
}

impl Set {
    pub fn read(object: &Value) -> Self {
        Self {
            uid: text(object, "/metadata/uid"),
            owner: owner(object),
            replicas: number(object, "/spec/replicas"),
            shrunk: None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Deployment {
    pub uid: String,
    pub replicas: i64,
    surge: Value,
    unavailable: Value,
    /// True if its status is about its current specification.
    pub observed: bool,
    pub updated: i64,
    pub available: i64,
    pub total: i64,
    /// Maximum number of pods that it may request at this moment.
    pub ceiling: i64,
    /// True once it has had as many ready pods as it must keep.
    pub up: bool,
}

impl Deployment {
    pub fn read(object: &Value) -> Self {
        let strategy = |name: &str| {
            let value = object.pointer(&format!("/spec/strategy/rollingUpdate/{name}"));
            value.cloned().unwrap_or_else(|| "25%".into())
        };
        Self {
            uid: text(object, "/metadata/uid"),
            replicas: number(object, "/spec/replicas"),
            surge: strategy("maxSurge"),
            unavailable: strategy("maxUnavailable"),
            observed: number(object, "/status/observedGeneration") == number(object, "/metadata/generation"),
            updated: number(object, "/status/updatedReplicas"),
            available: number(object, "/status/availableReplicas"),
            total: number(object, "/status/replicas"),
            ceiling: 0,
            up: false,
        }
    }

    /// Returns how many pods it may have once the update is complete.
    pub fn limit(&self) -> i64 {
        self.replicas + self.share(&self.surge, 99)
    }

    /// Returns how many pods may be missing.
    pub fn unavailable(&self) -> i64 {
        let missing = self.share(&self.unavailable, 0);
        // If both are zero, one may be missing, because otherwise no update could begin.
        if missing == 0 && self.share(&self.surge, 99) == 0 { 1 } else { missing.min(self.replicas) }
    }

    fn share(&self, value: &Value, rounding: i64) -> i64 {
        match value.as_str().and_then(|text| text.strip_suffix('%')) {
            Some(percent) => (percent.parse::<i64>().unwrap_or(0) * self.replicas + rounding) / 100,
            None => value.as_i64().unwrap_or(0),
        }
    }

    /// Returns `true` if the update is complete, as `kubectl rollout status` decides it.
    pub fn is_complete(&self) -> bool {
        self.observed
            && self.updated == self.replicas
            && self.total == self.replicas
            && self.available == self.replicas
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub ready: bool,
    /// Allocatable CPU in thousandths.
    pub cpu: i64,
    /// Allocatable memory in bytes.
    pub memory: i64,
    pub pods: i64,
}

impl Node {
    pub fn read(object: &Value) -> Self {
        let allocatable = |name: &str| {
            let value = object.pointer(&format!("/status/allocatable/{name}"));
            value
                .and_then(|value| quantity::parse_value(value).ok())
                .unwrap_or(quantity::Quantity::from_value(0))
        };
        Self {
            ready: condition(object, "Ready"),
            cpu: allocatable("cpu").milli(),
            memory: allocatable("memory").value(),
            pods: allocatable("pods").value(),
        }
    }
}
