//! Amounts of resources, as pods request and nodes offer them.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::slim::shared_text;
use apiserver_meta::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// CPU, in thousandths of a core, that the scores assume for a container without a request.
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// Memory in bytes that the scores assume for a container without a request.
pub const DEFAULT_MEMORY: i64 = 200 << 20;

/// Amounts of resources: CPU in thousandths of a core, everything else in its base unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU in thousandths of a core.
    pub cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Ephemeral storage in bytes.
    pub ephemeral_storage: i64,
    /// Extended resources, huge pages and attachable volumes, by name.
    pub scalar: BTreeMap<Arc<str>, i64>,
}

impl Resources {
    /// Parses a `ResourceList`. Amounts that cannot be parsed, which validation refuses, are omitted.
    pub fn parse(list: &BTreeMap<String, Quantity>) -> Self {
        Self::collect(list.iter().filter_map(|(name, text)| Some((name.as_str(), quantity::read(text)?))))
    }

    /// Collects amounts by resource. The number of `pods` is not one of them.
    pub fn collect<'a>(amounts: impl IntoIterator<Item = (&'a str, quantity::Quantity)>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in amounts {
            match name {
                "cpu" => resources.cpu = quantity.milli(),
                "memory" => resources.memory = quantity.value(),
                "ephemeral-storage" => resources.ephemeral_storage = quantity.value(),
                "pods" => {}
                _ => {
                    resources.scalar.insert(shared_text(name), quantity.value());
                }
            }
        }
        resources
    }

    /// Returns the amount of a resource; 0 if there is none.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            _ => self.scalar.get(name).copied().unwrap_or_default(),
        }
    }

    pub fn add(&mut self, more: &Self) {
        self.change(more, 1);
    }

    pub fn subtract(&mut self, less: &Self) {
        self.change(less, -1);
    }

    fn change(&mut self, other: &Self, sign: i64) {
        self.cpu += sign * other.cpu;
        self.memory += sign * other.memory;
        self.ephemeral_storage += sign * other.ephemeral_storage;
        for (name, amount) in &other.scalar {
            *self.scalar.entry(Arc::clone(name)).or_default() += sign * amount;
        }
    }
}

/// CPU and memory as the scores count them: with defaults for containers that request nothing, so that such pods
/// spread too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scored {
    /// CPU in thousandths of a core.
    pub cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
}

impl Scored {
    pub fn add(&mut self, more: Self) {
        self.cpu += more.cpu;
        self.memory += more.memory;
    }

    pub fn subtract(&mut self, less: Self) {
        self.cpu -= less.cpu;
        self.memory -= less.memory;
    }
}
