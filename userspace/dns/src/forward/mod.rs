//! Forwarding: questions to upstreams over fresh sockets, and their answers.

mod exchange;
mod flights;
mod pool;
mod question;
mod reply;
mod tls;

pub use exchange::{ExchangeError, Link, exchange};
pub use flights::{Flights, Follower, Landed, Leader};
pub use pool::{ForwardError, ForwardMetrics, Policy, Pool, PoolSettings, Upstream};
pub use question::Question;
pub use reply::{Reply, ReplyError};
pub use tls::{Tls, TlsError, TlsSettings};
