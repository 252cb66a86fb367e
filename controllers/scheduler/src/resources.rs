//! Amounts of resources, as pods request and nodes offer them.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::slim::shared_text;
use apiserver_meta::quantity;
pub use apiserver_meta::resources::is_extended;
use apiserver_meta::resources::is_prefixed_native;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// CPU, in thousandths of a core, that the scores assume for a container without a request.
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// Memory in bytes that the scores assume for a container without a request.
pub const DEFAULT_MEMORY: i64 = 200 << 20;

/// Greatest amount that counts, 2^50: a pebibyte, or a trillion cores. Greater ones are taken for it, so that the sums for the
/// pods of a node cannot overflow.
pub const MOST: i64 = 1 << 50;

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
    /// No amount of any resource.
    pub const NONE: Self = Self { cpu: 0, memory: 0, ephemeral_storage: 0, scalar: BTreeMap::new() };

    /// Parses a `ResourceList`. Amounts that cannot be parsed, which validation refuses, are omitted.
    pub fn parse(list: &BTreeMap<String, Quantity>) -> Self {
        Self::collect(list.iter().filter_map(|(name, text)| Some((name.as_str(), quantity::read(text)?))))
    }

    /// Collects amounts by resource. The number of `pods` is not one of them, and names that are no resources of
    /// scheduling are omitted.
    pub fn collect<'a>(amounts: impl IntoIterator<Item = (&'a str, quantity::Quantity)>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in amounts {
            let value = || quantity.value().min(MOST);
            match name {
                "cpu" => resources.cpu = quantity.milli().min(MOST),
                "memory" => resources.memory = value(),
                "ephemeral-storage" => resources.ephemeral_storage = value(),
                _ if is_scalar(name) => {
                    resources.scalar.insert(shared_text(name), value());
                }
                _ => {}
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

/// Returns `true` if a resource is one besides CPU, memory and ephemeral storage that scheduling counts: an extended or
/// prefixed native one, huge pages, or attachable volumes.
pub fn is_scalar(name: &str) -> bool {
    let of_nodes = name.starts_with("hugepages-") || name.starts_with("attachable-volumes-");
    of_nodes || is_prefixed_native(name) || is_extended(name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_scheduling_are_known_by_their_names() {
        for name in [
            "example.com/gpu",
            "kubernetes.io/thing",
            "sub.kubernetes.io/thing",
            "hugepages-2Mi",
            "attachable-volumes-csi",
        ] {
            assert!(is_scalar(name), "{name}");
        }
        for name in
            ["pods", "storage", "gpu", "requests.example.com/gpu", "example.com/", "a/b/c", "Example.com/gpu"]
        {
            assert!(!is_scalar(name), "{name}");
        }
        assert!(
            is_extended("example.com/gpu")
                && !is_extended("kubernetes.io/thing")
                && !is_extended("hugepages-2Mi")
        );
    }
}
