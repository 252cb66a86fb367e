//! The network of pods: within a node, between nodes, out of the cluster, and names.

mod bandwidth;
mod dns;
mod egress;
mod load;
mod pair;
mod policy;
mod readiness;
mod routes;

pub use load::work as dns_load;
pub use readiness::work as readiness_rounds;

use crate::row::Report;
use crate::subject::Plan;

/// Measures all cases of the suite.
pub fn run(report: &Report, plan: &Plan) {
    pair::run(report, plan);
    bandwidth::run(report, plan);
    policy::run(report, plan);
    egress::run(report, plan);
    dns::run(report, plan);
    routes::run(report, plan);
    readiness::run(report, plan);
}
