//! Metrics: counters, gauges, histograms and families of them, and the pages that Prometheus reads.
//!
//! A component holds its metrics as plain fields, counts with atomic additions, and builds a [`Page`]
//! when somebody asks for it. Nothing is registered and nothing is formatted before.

mod page;
mod process;
mod value;

pub use page::{Format, Page, Samples};
pub use value::{Counter, Family, FloatGauge, Gauge, Histogram, Member};
