//! A case while it is made: the nodes and the objects so far.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::weights::Weights;

/// The namespaces of the pods.
pub const NAMESPACES: [&str; 4] = ["ns0", "ns1", "ns2", "ns3"];
/// The zones of the nodes.
pub const ZONES: [&str; 4] = ["z0", "z1", "z2", "z3"];
/// The label that holds the name of the host.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The label that holds the zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The label that holds the region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The lists of a case.
pub const LISTS: [&str; 18] = [
    "nodes",
    "pods",
    "namespaces",
    "services",
    "replicationControllers",
    "replicaSets",
    "statefulSets",
    "persistentVolumes",
    "persistentVolumeClaims",
    "storageClasses",
    "csiNodes",
    "csiDrivers",
    "csiStorageCapacities",
    "volumeAttachments",
    "resourceSlices",
    "resourceClaims",
    "deviceClasses",
    "podDisruptionBudgets",
];

/// A node, as far as later parts of a case need it.
#[derive(Clone)]
pub struct Node {
    /// The name.
    pub name: String,
    /// The zone, if the node has the label.
    pub zone: Option<String>,
    /// Processor time that is not yet asked for, in thousandths.
    pub cpu: i64,
    /// Memory that is not yet asked for, in MiB.
    pub memory: i64,
    /// Pods that may still come.
    pub pods: i64,
}

/// A case while it is made.
pub struct World {
    /// The source of choices.
    pub dice: Dice,
    /// The probabilities of the features.
    pub weights: Weights,
    /// True if the nodes are full, so that something must be evicted.
    pub tight: bool,
    /// The nodes.
    pub nodes: Vec<Node>,
    lists: BTreeMap<&'static str, Vec<Value>>,
    counter: i64,
}

impl World {
    /// Returns an empty case.
    pub fn new(seed: u64, weights: Weights) -> Self {
        Self {
            dice: Dice::new(seed),
            weights,
            tight: false,
            nodes: Vec::new(),
            lists: BTreeMap::new(),
            counter: 0,
        }
    }

    /// Adds an object to a list of the case.
    pub fn add(&mut self, list: &'static str, object: Value) {
        self.lists.entry(list).or_default().push(object);
    }

    /// Returns the objects of a list.
    pub fn list(&self, list: &str) -> &[Value] {
        self.lists.get(list).map_or(&[], Vec::as_slice)
    }

    /// Returns a number that was not returned before.
    pub fn next(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    /// Returns a point in time that was not returned before; not in order of the calls.
    pub fn time(&mut self) -> String {
        let unique = self.next() % 50;
        let minute = self.dice.number(0..=59);
        let hour = self.counter / 50;
        format!("2026-01-{:02}T{:02}:{minute:02}:{unique:02}Z", self.dice.number(1..=28), hour % 24)
    }

    /// Returns the zones that nodes have, at least one.
    pub fn zones(&self) -> Vec<String> {
        let mut zones: Vec<String> = self.nodes.iter().filter_map(|node| node.zone.clone()).collect();
        zones.sort();
        zones.dedup();
        if zones.is_empty() {
            zones.push(ZONES[0].to_owned());
        }
        zones
    }

    /// Returns the index of a random node.
    pub fn node(&mut self) -> usize {
        self.dice.index(self.nodes.len())
    }

    /// Returns the case with `pod` as the pod to schedule.
    pub fn finish(mut self, pod: Value, config: Option<Value>) -> Value {
        let mut case = Map::new();
        for list in LISTS {
            let mut objects = self.lists.remove(list).unwrap_or_default();
            if objects.is_empty() {
                continue;
            }
            self.dice.shuffle(&mut objects);
            case.insert(list.to_owned(), Value::Array(objects));
        }
        case.insert("pod".to_owned(), pod);
        if let Some(config) = config {
            case.insert("config".to_owned(), config);
        }
        let mut case = Value::Object(case);
        remove_nulls(&mut case);
        case
    }
}

/// Removes fields without a value, which stored objects do not have.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Returns the metadata of a namespaced object.
pub fn metadata(namespace: &str, name: &str, labels: Value) -> Value {
    let mut metadata = json!({"namespace": namespace, "name": name});
    if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        metadata["labels"] = labels;
    }
    metadata
}
