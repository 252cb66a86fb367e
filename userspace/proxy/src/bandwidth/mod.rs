//! `kubernetes.io/egress-bandwidth` and `kubernetes.io/ingress-bandwidth`: how much pods of this node may send
//! and receive.
//!
//! ```text
//!  Pod ─ annotation ─┐
//!  interfaces ───────┴─▶ plan (interface ▶ bits per second) ─▶ Limiter ─▶ DataPlane
//! ```
//!
//! As in Kubernetes, a value is a quantity of bits per second from 1k to 1P. One that is not gets a Warning
//! Event; the other direction, and the pod, are not affected. Changes of the annotations are followed.

mod annotation;
mod limiter;
mod warnings;

pub(crate) use annotation::Limited;
pub(crate) use limiter::{Known, Limiter};
pub(crate) use warnings::PodWarnings;
