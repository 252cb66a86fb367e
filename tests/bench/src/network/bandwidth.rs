//! TCP between two pods of a node, of which one has a limit of bandwidth.
//!
//! The figure is what the receiver has got, payload alone, and its ratio to the limit, which counts headers as
//! well: of a segment of 1,514 bytes 1,448 are payload, 96 %.

use anyhow::{Context, Result};
use userspace_dataplane::tables::{Bandwidths, PodBandwidth};
use userspace_dataplane::{DataPlane, XdpMode};

use super::pair::{Pair, Path};
use crate::node;
use crate::place::{self, in_namespace};
use crate::row::Report;
use crate::sockets::{BYTES, RATIO};
use crate::stage::UPLOAD;
use crate::subject::{Plan, Subject};

const RATES: [(&str, u64); 4] =
    [("1M", 1_000_000), ("10M", 10_000_000), ("100M", 100_000_000), ("1G", 1_000_000_000)];
const DIRECTIONS: [&str; 2] = ["egress", "ingress"];

/// Measures bulk data at some limits.
pub fn run(report: &Report, plan: &Plan) {
    let all = RATES.into_iter().flat_map(|rate| DIRECTIONS.map(|direction| (rate, direction)));
    let cases: Vec<_> = all
        .map(|((name, rate), direction)| {
            (format!("bandwidth/rate={name}/direction={direction}"), rate, direction == "egress")
        })
        .filter(|(case, ..)| plan.has(case))
        .collect();
    if cases.is_empty() || !plan.subjects.contains(&Subject::Hawser) {
        return;
    }
    report.attempt("bandwidth", || {
        let pair = Pair::new(Subject::Hawser, Path::Node)?;
        cases.iter().try_for_each(|(case, rate, egress)| {
            limit(&pair, *rate, *egress)?;
            let (rounds, seconds) = plan.choose((3, 1.5), (3, 5.0));
            // The burst passes first.
            pair.work(UPLOAD, 1.0)?;
            let turns: Result<Vec<f64>> = (0..rounds)
                .map(|_| pair.work(UPLOAD, seconds * plan.stretch)?.first().copied().context("no number"))
                .collect();
            let turns = turns?;
            let ratios: Vec<f64> = turns.iter().map(|bytes| bytes * 8.0 / *rate as f64).collect();
            report.row("network", case, "hawser", BYTES, &turns)?;
            report.row("network", case, "hawser", RATIO, &ratios)
        })
    });
}

/// Limits what the first pod sends, or what the second one receives.
fn limit(pair: &Pair, rate: u64, egress: bool) -> Result<()> {
    let lab = pair.lab();
    in_namespace(&place::node_namespace(lab), || {
        let mut kernel = node::open(lab, node::limits(1), XdpMode::Off)?;
        let (interface, limits) = if egress {
            ("pod0", PodBandwidth { egress: Some(rate), ingress: None })
        } else {
            ("pod1", PodBandwidth { egress: None, ingress: Some(rate) })
        };
        let limits = Bandwidths::from([(place::interface(interface)?, limits)]);
        kernel.set_bandwidths(&limits).context("cannot limit a pod")
    })
}
