//! Counters of the programs, fill levels of the maps and XDP modes of the uplinks, as metrics.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::time::Instant;
use tracing::debug;
use userspace_daemon::metrics::Exposition;
use userspace_dataplane::inspect::{InspectError, Inspector, Pressure, ServiceRow};
use userspace_dataplane::tables::XdpRow;

use crate::limits;

const XDP_MODES: [&str; 3] = ["native", "generic", "off"];

/// Series about packets of pods that leave the cluster: name, counter of the programs, and help.
const MASQUERADE: [(&str, &str, &str); 3] = [
    (
        "masqueraded_flows_total",
        "masqueraded",
        "Flows of pods that left the cluster under the node's address.",
    ),
    (
        "masquerade_exhausted_total",
        "masquerade_exhausted",
        "Packets of pods that were dropped because no port was free at the node's address.",
    ),
    (
        "masquerade_foreign_source_packets_total",
        "masquerade_source",
        "Packets that left the cluster unchanged because their source is not a pod of this node.",
    ),
];

/// A reading of the tables, taken on request.
#[derive(Default)]
pub(crate) struct Counters {
    /// The tables, set once, if they are the kernel's.
    observer: OnceLock<Inspector>,
    reading: Mutex<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    taken: Option<Instant>,
    counters: BTreeMap<&'static str, u64>,
    pressure: Vec<Pressure>,
    /// At most [`limits::METRIC_SERVICES`].
    services: Vec<ServiceRow>,
    service_count: usize,
    xdp: BTreeMap<String, XdpRow>,
}

impl Counters {
    /// Reads these tables from now on.
    pub fn observe(&self, observer: Inspector) {
        // A second call would pass the same directory.
        let _ = self.observer.set(observer);
    }

    /// Sets the XDP modes of the uplinks.
    pub fn xdp(&self, xdp: BTreeMap<String, XdpRow>) {
        self.lock().xdp = xdp;
    }

    /// Sets a reading, for tests.
    #[cfg(test)]
    pub fn fill(&self) {
        let mut reading = self.lock();
        reading.counters =
            BTreeMap::from([("flow_created", 7), ("events_suppressed", 2), ("masqueraded", 4)]);
        reading.pressure = vec![Pressure { map: "FLOWS4", used: 3, limit: 16 }];
        let name = "default/web".to_owned();
        reading.services =
            vec![ServiceRow { id: 1, name, frontends: 0, backends: 0, connections: 9, refused: 1 }];
        reading.service_count = 1;
        let row = |mode| XdpRow { mode, reason: None };
        reading.xdp = BTreeMap::from([("eth0".to_owned(), row("off")), ("eth1".to_owned(), row("native"))]);
    }

    /// Returns `true` if the last reading is old.
    pub fn is_due(&self, now: Instant) -> bool {
        self.observer.get().is_some()
            && self.lock().taken.is_none_or(|taken| now - taken >= limits::COUNTERS_FRESH)
    }

    /// Takes a new reading, which takes tens of milliseconds for large tables.
    pub fn read(&self) {
        let Some(observer) = self.observer.get() else { return };
        let outcome = read(observer);
        let mut reading = self.lock();
        reading.taken = Some(Instant::now());
        match outcome {
            Ok((counters, pressure, services)) => {
                reading.counters = counters;
                reading.pressure = pressure;
                reading.service_count = services.len();
                reading.services = busiest(services);
            }
            Err(error) => debug!(error = &error as &dyn std::error::Error, "cannot read the counters"),
        }
    }

    /// Adds the last reading to a page.
    pub fn add(&self, page: &mut Exposition) {
        let reading = self.lock();
        let mut add = |name: &str, kind: &str, help: &str, rows: &[Row<'_>]| {
            page.family(&format!("hawser_dataplane_{name}"), kind, help, |s| {
                rows.iter().for_each(|(labels, value)| s.value(labels, *value as f64));
            });
        };
        let counters = |(label, value): (&&'static str, &u64)| (vec![("counter", *label)], *value);
        let counters: Vec<_> = reading.counters.iter().map(counters).collect();
        add("events_total", "counter", "Events counted by the programs, by counter.", &counters);
        let suppressed = reading.counters.get("events_suppressed");
        let suppressed: Vec<_> =
            suppressed.map(|value| (vec![("reason", "budget")], *value)).into_iter().collect();
        let help = "Events about single packets that were left out.";
        add("suppressed_packet_events_total", "counter", help, &suppressed);
        for (name, counter, help) in MASQUERADE {
            let value = reading.counters.get(counter).map(|value| (Vec::new(), *value));
            add(name, "counter", help, &value.into_iter().collect::<Vec<_>>());
        }
        let maps = |value: fn(&Pressure) -> usize| -> Vec<_> {
            reading.pressure.iter().map(|row| (vec![("map", row.map)], value(row) as u64)).collect()
        };
        add("map_used", "gauge", "Elements of a map that are in use.", &maps(|row| row.used));
        add("map_limit", "gauge", "Elements that a map has room for.", &maps(|row| row.limit));
        let services = |value: fn(&ServiceRow) -> u64| -> Vec<_> {
            reading.services.iter().map(|row| (vec![("service", row.name.as_str())], value(row))).collect()
        };
        let help = "Connections that got a backend, of the services with most.";
        add("service_connections_total", "counter", help, &services(|row| row.connections));
        let help = "Connections that found no backend, of the services with most connections.";
        add("service_refused_total", "counter", help, &services(|row| row.refused));
        let count = [(vec![("state", "programmed")], reading.service_count as u64)];
        add("services", "gauge", "Services in the tables.", &count);
        let mut modes: Vec<Row<'_>> = Vec::new();
        for (interface, row) in &reading.xdp {
            let label =
                |mode| (vec![("interface", interface.as_str()), ("mode", mode)], u64::from(row.mode == mode));
            modes.extend(XDP_MODES.map(label));
        }
        add(
            "xdp_mode",
            "gauge",
            "XDP mode of an uplink: 1 for its mode; with off, tcx handles all packets.",
            &modes,
        );
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Labels and value of a sample.
type Row<'a> = (Vec<(&'a str, &'a str)>, u64);

type Read = (BTreeMap<&'static str, u64>, Vec<Pressure>, Vec<ServiceRow>);

fn read(observer: &Inspector) -> Result<Read, InspectError> {
    Ok((observer.metrics()?, observer.pressure()?, observer.counted()?))
}

/// Returns the services with the most connections, by name.
fn busiest(mut services: Vec<ServiceRow>) -> Vec<ServiceRow> {
    services.sort_by_cached_key(|row| (Reverse(row.connections + row.refused), row.name.clone()));
    services.truncate(limits::METRIC_SERVICES);
    services.sort_by(|a, b| a.name.cmp(&b.name));
    services
}

#[cfg(test)]
mod tests {
    use super::*;
    use userspace_daemon::metrics::Format;

    fn row(name: &str, connections: u64) -> ServiceRow {
        ServiceRow { id: 1, name: name.to_owned(), frontends: 0, backends: 0, connections, refused: 1 }
    }

    #[test]
    fn the_page_names_every_series() {
        let counters = Counters::default();
        counters.fill();
        let mut page = Exposition::new(Format::Text);
        counters.add(&mut page);
        let text = page.finish();
        for line in [
            "hawser_dataplane_events_total{counter=\"flow_created\"} 7",
            "hawser_dataplane_suppressed_packet_events_total{reason=\"budget\"} 2",
            "hawser_dataplane_masqueraded_flows_total 4",
            "hawser_dataplane_map_used{map=\"FLOWS4\"} 3",
            "hawser_dataplane_map_limit{map=\"FLOWS4\"} 16",
            "hawser_dataplane_service_connections_total{service=\"default/web\"} 9",
            "hawser_dataplane_service_refused_total{service=\"default/web\"} 1",
            "hawser_dataplane_xdp_mode{interface=\"eth0\",mode=\"off\"} 1",
            "hawser_dataplane_xdp_mode{interface=\"eth0\",mode=\"native\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn only_the_busiest_services_have_series() {
        let all =
            (0..limits::METRIC_SERVICES as u64 + 50).map(|n| row(&format!("default/s{n:04}"), n)).collect();
        let kept = busiest(all);
        assert_eq!((kept.len(), kept[0].name.as_str()), (limits::METRIC_SERVICES, "default/s0050"));
    }
}
