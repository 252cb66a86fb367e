//! `hawser proxy top`: what happens now, refreshed each interval. Latencies of programming are in
//! the agent's `/metrics`; the kernel's programs measure no times.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;
use userspace_dataplane::inspect::{InspectError, Inspector, Pressure};

use super::print::{self, words};
use crate::args::TopArgs;

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// What is dropped or refused, and by whose fault, goes first.
const DROPS: [&str; 16] = [
    "socket_refused",
    "packet_refused",
    "packet_dropped_empty",
    "source_range_dropped",
    "unallocated_dropped",
    "unknown_port_refused",
    "snat_exhausted",
    "snat_no_address",
    "flow_insert_failed",
    "flow_evicted",
    "fragment_unknown",
    "too_big",
    "bind_refused",
    "malformed",
    "events_suppressed",
    "frontend_reread",
];

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Connections and refusals, by service.
    services: BTreeMap<String, (u64, u64)>,
    counters: BTreeMap<&'static str, u64>,
}

/// What happened in an interval, in events a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Frame {
    seconds: f64,
    services: Vec<ServiceRate>,
    drops: BTreeMap<&'static str, f64>,
    counters: BTreeMap<&'static str, f64>,
    pressure: Vec<Pressure>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ServiceRate {
    service: String,
    connections: f64,
    refused: f64,
}

/// Prints a frame an interval, until it is interrupted.
pub async fn run(args: &TopArgs) -> Result<()> {
    let inspector = super::open(&args.look.bpf_root)?;
    let interval = Duration::from_secs_f64(args.interval.max(0.1));
    let terminal = std::io::stdout().is_terminal() && !args.look.json && !args.once;
    let read = |inspector: &Inspector| sample(inspector).context("cannot read the counters");
    let (mut last, mut then) = (read(&inspector)?, Instant::now());
    loop {
        tokio::time::sleep_until(then + interval).await;
        let (next, now) = (read(&inspector)?, Instant::now());
        let pressure = inspector.pressure().context("cannot read how full the maps are")?;
        let frame = between(&last, &next, (now - then).as_secs_f64(), pressure);
        (last, then) = (next, now);
        if args.look.json {
            print::json(&[&frame])?;
        } else {
            let clear = if terminal { CLEAR } else { "" };
            print::line(&format!("{clear}{}", lines(&frame, args.lines).join("\n")))?;
        }
        if args.once {
            return Ok(());
        }
    }
}

fn sample(inspector: &Inspector) -> Result<Sample, InspectError> {
    let services = inspector.counted()?.into_iter().map(|row| (row.name, (row.connections, row.refused)));
    Ok(Sample { services: services.collect(), counters: inspector.metrics()? })
}

/// Rates between two samples. A counter that shrank belongs to a service that was made anew.
fn between(old: &Sample, new: &Sample, seconds: f64, pressure: Vec<Pressure>) -> Frame {
    let rate =
        |before: u64, now: u64| if now < before { now as f64 } else { (now - before) as f64 } / seconds;
    let mut services: Vec<ServiceRate> = Vec::new();
    for (name, (connections, refused)) in &new.services {
        let before = old.services.get(name).copied().unwrap_or((*connections, *refused));
        let row = ServiceRate {
            service: name.clone(),
            connections: rate(before.0, *connections),
            refused: rate(before.1, *refused),
        };
        if row.connections > 0.0 || row.refused > 0.0 {
            services.push(row);
        }
    }
    services.sort_by(|a, b| {
        let busy = |row: &ServiceRate| Reverse(((row.connections + row.refused) * 1_000.0) as u64);
        busy(a).cmp(&busy(b)).then_with(|| a.service.cmp(&b.service))
    });
    let of = |label: &&'static str, value: &u64| rate(old.counters.get(*label).copied().unwrap_or(0), *value);
    let rates = new.counters.iter().map(|(label, value)| (*label, of(label, value)));
    let (drops, counters) = rates.partition(|(label, _)| DROPS.contains(label));
    Frame { seconds, services, drops, counters, pressure }
}

/// A frame as text, with at most so many services.
fn lines(frame: &Frame, services: usize) -> Vec<String> {
    let number = |rate: f64| if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") };
    let mut text = vec![format!("over {:.1} s", frame.seconds), String::new()];
    let mut table = vec![words(&["SERVICE", "CONNECTIONS/s", "REFUSED/s"])];
    table.extend(
        frame
            .services
            .iter()
            .take(services)
            .map(|row| vec![row.service.clone(), number(row.connections), number(row.refused)]),
    );
    text.extend(print::aligned(&table));
    if frame.services.len() > services {
        text.push(format!("and {} more", frame.services.len() - services));
    }
    for (title, rates) in [("DROPPED OR REFUSED", &frame.drops), ("COUNTER", &frame.counters)] {
        let mut busy: Vec<_> = rates.iter().filter(|(_, rate)| **rate > 0.0).collect();
        busy.sort_by_key(|(label, rate)| (Reverse((**rate * 1_000.0) as u64), **label));
        let mut table = vec![words(&[title, "/s"])];
        table.extend(busy.into_iter().map(|(label, rate)| vec![(*label).to_owned(), number(*rate)]));
        text.push(String::new());
        text.extend(print::aligned(&table));
    }
    let mut table = vec![words(&["MAP", "USED", "LIMIT", "FULL"])];
    table.extend(frame.pressure.iter().filter(|row| row.used > 0).map(|row| {
        let full = row.used as f64 / row.limit.max(1) as f64 * 100.0;
        vec![row.map.to_owned(), row.used.to_string(), row.limit.to_string(), format!("{full:.1} %")]
    }));
    text.push(String::new());
    text.extend(print::aligned(&table));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use userspace_dataplane::inspect::Pressure;

    fn sample(services: &[(&str, u64, u64)], counters: &[(&'static str, u64)]) -> Sample {
        Sample {
            services: services.iter().map(|(name, c, r)| ((*name).to_owned(), (*c, *r))).collect(),
            counters: counters.iter().copied().collect(),
        }
    }

    #[test]
    fn rates_are_sorted_and_quiet_services_left_out() {
        let old = sample(&[("a", 10, 0), ("b", 0, 0), ("c", 5, 5), ("d", 90, 0)], &[("flow_created", 100)]);
        let new = sample(
            &[("a", 20, 0), ("b", 100, 2), ("c", 5, 5), ("d", 4, 0), ("new", 50, 0)],
            &[("flow_created", 300), ("packet_refused", 4)],
        );
        let frame = between(&old, &new, 2.0, Vec::new());
        let names: Vec<_> = frame.services.iter().map(|row| row.service.as_str()).collect();
        assert_eq!(names, ["b", "a", "d"]);
        assert_eq!((frame.services[0].connections, frame.services[0].refused), (50.0, 1.0));
        assert_eq!(frame.services[2].connections, 2.0);
        assert_eq!(frame.counters["flow_created"], 100.0);
        assert_eq!(frame.drops["packet_refused"], 2.0);
    }

    #[test]
    fn a_frame_names_what_is_full() {
        let new = sample(&[("a", 5, 0), ("b", 4, 0)], &[("flow_created", 5)]);
        let old = sample(&[("a", 0, 0), ("b", 0, 0)], &[]);
        let frame = between(&old, &new, 1.0, vec![Pressure { map: "FLOWS4", used: 8, limit: 16 }]);
        let text = lines(&frame, 1).join("\n");
        assert!(text.contains("a         5.0") && text.contains("and 1 more"), "{text}");
        assert!(text.contains("FLOWS4   8      16      50.0 %"), "{text}");
    }
}
