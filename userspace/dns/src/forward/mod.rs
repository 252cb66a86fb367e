//! Forwarding: questions to upstreams over fresh sockets, and their answers.

mod exchange;
mod pool;
mod reply;

pub use exchange::{ExchangeError, exchange};
pub use pool::{ForwardError, ForwardMetrics, Policy, Pool, PoolSettings, Upstream};
pub use reply::{Reply, ReplyError, question};
