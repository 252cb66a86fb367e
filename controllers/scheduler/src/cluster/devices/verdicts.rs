//! Verdicts of searches, which hold until something has changed that a search on the node looks at: pods of one template
//! have claims of one specification, and a placement changes the devices of one node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::slices::{PoolId, Slice, Slices};
use crate::cluster::{Node, NodeFacts};
use crate::limits;

/// Numbers that grow with each change of the devices that nodes have to do with.
#[derive(Debug, Default)]
pub struct Stamps {
    last: u64,
    of_all: u64,
    of_node: BTreeMap<String, u64>,
}

impl Stamps {
    /// Returns the number of the last change that concerns a node.
    pub fn of(&self, node: &str) -> u64 {
        self.of_node.get(node).copied().unwrap_or_default().max(self.of_all)
    }

    /// Notes a change that may concern any node.
    pub fn change_all(&mut self) {
        self.last += 1;
        self.of_all = self.last;
        self.of_node.clear();
    }

    /// Notes that other devices of an allocation's pools are in use than before.
    pub fn change(&mut self, allocation: &AllocationResult, slices: &Slices) {
        for result in allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten()) {
            let pool = PoolId { driver: result.driver.clone(), pool: result.pool.clone() };
            match only_node(slices.of_pool(&pool)) {
                Some(node) => {
                    self.last += 1;
                    self.of_node.insert(node.to_owned(), self.last);
                }
                None => self.change_all(),
            }
        }
    }
}

/// Returns the only node that has to do with any of the slices.
fn only_node<'a>(mut slices: impl Iterator<Item = &'a Slice>) -> Option<&'a str> {
    let node = slices.next()?.only_node()?;
    slices.all(|slice| slice.only_node() == Some(node)).then_some(node)
}

/// The verdict on a node, or why it is out of the question.
pub type Verdict = Result<(), Arc<str>>;

/// A verdict, with what it was reached for.
#[derive(Debug)]
struct Known {
    facts: Arc<NodeFacts>,
    stamp: u64,
    verdict: Verdict,
}

/// The verdicts for claims of the same specifications.
#[derive(Debug)]
pub struct Shape {
    claims: Vec<Arc<ResourceClaim>>,
    /// Version of the classes of devices.
    classes: u64,
    by_node: Mutex<Vec<Option<Known>>>,
}

impl Shape {
    /// Returns the verdict on a node that has not changed since; `stamp` is that of its devices.
    pub fn known(&self, node: &Node, stamp: u64) -> Option<Verdict> {
        let by_node = self.by_node.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_node.get(node.id.index())?.as_ref()?;
        let holds = known.stamp == stamp && Arc::ptr_eq(&known.facts, &node.facts);
        holds.then(|| known.verdict.clone())
    }

    /// Remembers the verdict on a node.
    pub fn learn(&self, node: &Node, stamp: u64, verdict: Verdict) {
        let mut by_node = self.by_node.lock().unwrap_or_else(PoisonError::into_inner);
        let index = node.id.index();
        if index >= by_node.len() {
            by_node.resize_with(index + 1, || None);
        }
        by_node[index] = Some(Known { facts: Arc::clone(&node.facts), stamp, verdict });
    }
}

/// The verdicts for the specifications that were searched for last.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<VecDeque<Arc<Shape>>>);

impl Verdicts {
    /// Returns the verdicts for claims like these, with this version of the classes of devices.
    pub fn shape(&self, claims: &[&Arc<ResourceClaim>], classes: u64) -> Arc<Shape> {
        let mut shapes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_like = |shape: &Arc<Shape>| {
            shape.classes == classes
                && shape.claims.len() == claims.len()
                && shape.claims.iter().zip(claims).all(|(known, claim)| known.spec == claim.spec)
        };
        let found = shapes.iter().position(is_like).and_then(|index| shapes.remove(index));
        let shape = found.unwrap_or_else(|| {
            let claims = claims.iter().map(|claim| Arc::clone(claim)).collect();
            Arc::new(Shape { claims, classes, by_node: Mutex::default() })
        });
        shapes.push_back(Arc::clone(&shape));
        if shapes.len() > limits::DEVICE_SHAPES {
            shapes.pop_front();
        }
        shape
    }
}
