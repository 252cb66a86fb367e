//! Node controllers: networks, heartbeats, and eviction of pods from lost or tainted nodes.

pub(crate) mod eviction;
mod health;
pub(crate) mod ipam;
pub(crate) mod lifecycle;
mod schedule;
mod zones;
