//! Memory of the core with many pods, in a process of its own.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result};
use apiserver_client::Projection as _;
use controllers_scheduler::cluster::{Cluster, NodeFacts};
use controllers_scheduler::pod::PodInfo;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::core::uid;
use super::objects;
use super::{BYTES, goal, row, sizes};
use crate::api::lines_of;
use crate::api::objects::{NODES, running_pod};
use crate::cluster::memory;
use crate::row::{Metric, Report};
use crate::subject::Plan;

/// Number of pods, and the goal for the resident memory with them.
const PODS: usize = 150_000;
const GOAL: f64 = 150.0 * 1024.0 * 1024.0;
/// Resident bytes per pod above those of a process without pods.
const PER_OBJECT: Metric = ("bytes_per_object", "bytes");

/// A pod in a cache, which is ordered by names and has no copy of them, as those of the scheduler.
struct Cached(Arc<PodInfo>);

impl Ord for Cached {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.names().cmp(&other.0.names())
    }
}

impl PartialOrd for Cached {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cached {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Cached {}

/// Runs the case if the plan has it.
pub fn run(report: &Report, plan: &Plan) {
    for pods in sizes(plan, PODS) {
        let case = format!("core/memory/pods={pods}");
        if plan.has(&case) {
            report.attempt(&case, || measure(report, &case, pods));
        }
    }
}

fn measure(report: &Report, case: &str, pods: usize) -> Result<()> {
    let (empty, full) = (resident(0)?, resident(pods)?);
    row(report, case, BYTES, full)?;
    row(report, case, PER_OBJECT, (full - empty) / pods as f64)?;
    goal(report, case, BYTES, GOAL * pods as f64 / PODS as f64)
}

/// Returns the resident memory of a process that holds as many pods.
fn resident(pods: usize) -> Result<f64> {
    let lines = lines_of(&["scheduler-memory", &pods.to_string()])?;
    let line = lines.iter().find(|(name, _)| name == "resident");
    line.and_then(|(_, values)| values.first()).copied().context("the process said nothing")
}

/// Holds a cluster of [`NODES`] nodes with as many pods, and a cache of them; prints the resident memory.
pub fn hold(pods: usize) -> Result<()> {
    let (mut cluster, mut cache) = (Cluster::default(), BTreeSet::new());
    for i in 0..NODES {
        let node: Node = serde_json::from_value(objects::node(i)).context("no node")?;
        cluster.set_node(Arc::new(NodeFacts::parse(node)));
    }
    for i in 0..pods {
        let mut object = running_pod(&format!("web-6b7f9d9c5d-{i:06}"), i);
        object["metadata"]["uid"] = uid(i as u64).into();
        object["metadata"]["resourceVersion"] = (i + 1).to_string().into();
        object["spec"]["nodeName"] = format!("node-{:05}", i % NODES).into();
        let pod: Pod = serde_json::from_value(object).context("no pod")?;
        let pod = Arc::new(PodInfo::parse(pod));
        let node = pod.node.clone().context("the pod has no node")?;
        cluster.place(&pod, &node);
        cache.insert(Cached(pod));
    }
    println!("resident {}", memory(std::process::id(), "VmRSS:")?);
    std::hint::black_box((&cluster, &cache));
    Ok(())
}
