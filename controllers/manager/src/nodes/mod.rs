//! Node controllers: networks, heartbeats, and eviction of pods from lost or tainted nodes.

mod eviction;
mod health;
mod ipam;
mod lifecycle;

pub(crate) use eviction::put_disruption;

use crate::context::{Context, Tasks};

/// Starts node lifecycle, taint eviction and, if there is a cluster network, address management.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    lifecycle::start(context, tasks);
    eviction::start(context, tasks);
    if !context.config.cluster_cidrs.is_empty() {
        ipam::start(context, tasks);
    }
}
