//! Metrics: counters, gauges, histograms and families of them, and the pages that Prometheus reads.
//!
//! A component holds its metrics as plain fields, counts with atomic additions, and builds an [`Exposition`]
//! on request. Nothing is registered and nothing is formatted before.

mod exposition;
mod process;
mod value;

pub use exposition::{Exposition, Format, Samples};
pub use value::{Counter, Family, FloatGauge, Gauge, Histogram, Member};
