//! The meaning of Services, and whether the product implements it.
//!
//! `model` is the oracle: it reads the objects and one connection attempt, and returns the allowed outcome.
//! It is written from the Kubernetes documentation and the KEPs, knows no tables, and shares nothing with
//! `compile`. It is compared with
//!
//! - `properties`: random clusters and attempts, compiled and put into the in-memory data plane;
//! - `cases`: the packet flows of kube-proxy's own tests, in `cases/*.txt`;
//! - `kernel`: the same clusters and cases in the real maps, packets through the programs by
//!   BPF_PROG_TEST_RUN and sockets through the cgroup hooks. Takes root.

mod cases;
mod kernel;
mod model;
mod plan;
mod properties;
mod tables;
