//! Node controllers: networks, heartbeats, and eviction of pods from lost or tainted nodes.

pub(crate) mod eviction;
mod health;
pub(crate) mod ipam;
pub(crate) mod lifecycle;

pub(crate) use eviction::put_disruption;
