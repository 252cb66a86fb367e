//! Nodes: their networks, whether they are heard of, and what becomes of their pods if not.

mod eviction;
mod health;
mod ipam;
mod lifecycle;

pub(crate) use eviction::put_disruption;

use crate::context::{Context, Tasks};

/// Starts node lifecycle, eviction by taints and, with a cluster network, address management.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    lifecycle::start(context, tasks);
    eviction::start(context, tasks);
    if !context.config.cluster_cidrs.is_empty() {
        ipam::start(context, tasks);
    }
}
