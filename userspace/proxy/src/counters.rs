//! What the programs count, how full the maps are and how uplinks run XDP, as metrics.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use tokio::time::Instant;
use tracing::debug;
use userspace_dataplane::inspect::{InspectError, Inspector, Pressure, ServiceRow};
use userspace_dataplane::tables::XdpRow;

/// Services with series of their own: those with most connections. More would cost the one who
/// scrapes; `hawser proxy services` shows all.
pub(crate) const MAX_SERVICES: usize = 200;
/// A reading is good for this long.
const FRESH: Duration = Duration::from_secs(5);

/// Read from the tables when somebody asks.
#[derive(Default)]
pub(crate) struct Counters {
    /// Set once, where the tables are the kernel's.
    observer: OnceLock<Inspector>,
    reading: Mutex<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    taken: Option<Instant>,
    counters: BTreeMap<&'static str, u64>,
    pressure: Vec<Pressure>,
    /// At most [`MAX_SERVICES`].
    services: Vec<ServiceRow>,
    service_count: usize,
    xdp: BTreeMap<String, XdpRow>,
}

impl Counters {
    /// Reads here from now on.
    pub fn observe(&self, observer: Inspector) {
        // A second call would bring the same directory.
        let _ = self.observer.set(observer);
    }

    /// How uplinks run XDP.
    pub fn xdp(&self, xdp: BTreeMap<String, XdpRow>) {
        self.lock().xdp = xdp;
    }

    /// The last reading is old.
    pub fn is_due(&self, now: Instant) -> bool {
        self.observer.get().is_some() && self.lock().taken.is_none_or(|taken| now - taken >= FRESH)
    }

    /// Reads everything anew, which takes tens of milliseconds where tables are large.
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
            Err(error) => debug!(error = &error as &dyn std::error::Error, "counters cannot be read"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Read = (BTreeMap<&'static str, u64>, Vec<Pressure>, Vec<ServiceRow>);

fn read(observer: &Inspector) -> Result<Read, InspectError> {
    Ok((observer.metrics()?, observer.pressure()?, observer.counted()?))
}

/// The services with most connections, by name.
fn busiest(mut services: Vec<ServiceRow>) -> Vec<ServiceRow> {
    services.sort_by_cached_key(|row| (Reverse(row.connections + row.refused), row.name.clone()));
    services.truncate(MAX_SERVICES);
    services.sort_by(|a, b| a.name.cmp(&b.name));
    services
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("reading", &self.reading).finish_non_exhaustive()
    }
}

impl Collector for Counters {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let reading = self.lock();
        let counters = reading.counters.iter().map(|(label, value)| ([("counter", *label)], *value));
        series(&mut encoder, Counter("events", "What programs counted, by counter"), counters)?;
        let suppressed = reading.counters.get("events_suppressed").copied();
        let suppressed = suppressed.into_iter().map(|value| ([("reason", "budget")], value));
        let help = "Events about single packets that were left out";
        series(&mut encoder, Counter("suppressed_packet_events", help), suppressed)?;
        let used = reading.pressure.iter().map(|row| ([("map", row.map)], row.used as u64));
        series(&mut encoder, Gauge("map_used", "Elements of a map that are in use"), used)?;
        let limits = reading.pressure.iter().map(|row| ([("map", row.map)], row.limit as u64));
        series(&mut encoder, Gauge("map_limit", "Elements that a map has room for"), limits)?;
        let of = |value: fn(&ServiceRow) -> u64| {
            reading.services.iter().map(move |row| ([("service", row.name.as_str())], value(row)))
        };
        let help = "Connections that got a backend, of the services with most";
        series(&mut encoder, Counter("service_connections", help), of(|row| row.connections))?;
        let help = "Connections that found no backend, of the services with most connections";
        series(&mut encoder, Counter("service_refused", help), of(|row| row.refused))?;
        let count = [([("state", "programmed")], reading.service_count as u64)];
        series(&mut encoder, Gauge("services", "Services in the tables"), count.into_iter())?;
        let modes = ["native", "generic", "off"];
        let xdp = reading.xdp.iter().flat_map(|(interface, row)| {
            modes.map(|mode| {
                ([("interface", interface.as_str()), ("mode", mode)], u64::from(row.mode == mode))
            })
        });
        series(
            &mut encoder,
            Gauge("xdp_mode", "How an uplink runs XDP: 1 for its mode; with off, tcx carries all"),
            xdp,
        )
    }
}

/// Kind, name and explanation of a family.
enum Family {
    Counter(&'static str, &'static str),
    Gauge(&'static str, &'static str),
}
use Family::{Counter, Gauge};

fn series<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    family: Family,
    values: impl Iterator<Item = (L, u64)>,
) -> fmt::Result {
    let (name, help, kind) = match family {
        Counter(name, help) => (name, help, MetricType::Counter),
        Gauge(name, help) => (name, help, MetricType::Gauge),
    };
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let mut one = metric.encode_family(&labels)?;
        match family {
            Counter(..) => one.encode_counter::<[(&str, &str); 0], _, u64>(&value, None)?,
            Gauge(..) => one.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use std::sync::Arc;

    fn row(name: &str, connections: u64) -> ServiceRow {
        ServiceRow { id: 1, name: name.to_owned(), frontends: 0, backends: 0, connections, refused: 1 }
    }

    #[test]
    fn the_page_names_every_series() {
        let counters = Arc::new(Counters::default());
        {
            let mut reading = counters.lock();
            reading.counters = BTreeMap::from([("flow_created", 7), ("events_suppressed", 2)]);
            reading.pressure = vec![Pressure { map: "FLOWS4", used: 3, limit: 16 }];
            reading.services = vec![row("default/web", 9)];
            let off = XdpRow { mode: "off", reason: Some("a virtual interface".to_owned()) };
            reading.xdp = BTreeMap::from([("eth0".to_owned(), off)]);
        }
        let mut registry = Registry::with_prefix("hawser_dataplane");
        registry.register_collector(Box::new(Arc::clone(&counters)));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "hawser_dataplane_events_total{counter=\"flow_created\"} 7",
            "hawser_dataplane_suppressed_packet_events_total{reason=\"budget\"} 2",
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
        let all = (0..MAX_SERVICES as u64 + 50).map(|n| row(&format!("default/s{n:04}"), n)).collect();
        let kept = busiest(all);
        assert_eq!((kept.len(), kept[0].name.as_str()), (MAX_SERVICES, "default/s0050"));
    }
}
