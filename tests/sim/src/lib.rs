//! A whole cluster in one process: API server, embedded store on a simulated disk, controllers,
//! scheduler, kubelets over the fake runtime, proxies over the fake data plane, on one thread, on
//! paused time, from one seed. It runs the product's own code; only clock, randomness, transport,
//! disk, runtime and data plane are swapped.
//!
//! ```text
//!  harness ─ process with seeded randomness ─▶ Simulation ─▶ control: store, apiserver, controllers, scheduler
//!                                                 │      └─▶ node: kubelet, proxy, runtime, tables
//!                                                 │      └─▶ network between them
//!                                  store's watch ─┴▶ Model: every change, every promise
//! ```

pub mod ambient;
pub mod control;
pub mod entropy;
pub mod facts;
pub mod harness;
pub mod model;
pub mod network;
pub mod node;
pub mod simulation;
pub mod workload;

pub use harness::scenario;
pub use model::Model;
pub use simulation::Simulation;
