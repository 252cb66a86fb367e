//! Computes the displayed frame from counters at two moments. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use userspace_dataplane::inspect::Pressure;

use super::super::print::{aligned, words};
use super::watch::{Looked, Tcp, Watch};

/// Names of the counters of drops and refusals, and of their causes, which are displayed before the others.
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
pub struct Sample {
    /// Connections and refusals by service.
    pub services: BTreeMap<String, (u64, u64)>,
    pub counters: BTreeMap<&'static str, u64>,
}

/// The activity within an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    pub interval_seconds: f64,
    /// The busiest first; services without activity are left out.
    pub services: Vec<Service>,
    /// The source of the round-trip times; `None` if the kernel could not be asked.
    pub tcp: Option<Looked>,
    pub drops_per_second: BTreeMap<&'static str, f64>,
    pub counters_per_second: BTreeMap<&'static str, f64>,
    pub maps: Vec<Pressure>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    pub service: String,
    /// New connections, or first datagrams.
    pub connections_per_second: f64,
    pub refused_per_second: f64,
    /// `None` if none of its connections has an end on this node.
    pub tcp: Option<Tcp>,
}

impl Frame {
    /// Computes rates between two samples. A counter that decreased belongs to a service that was created
    /// again.
    pub fn between(old: &Sample, new: &Sample, seconds: f64, maps: Vec<Pressure>, watch: &Watch) -> Self {
        let rate =
            |before: u64, now: u64| if now < before { now as f64 } else { (now - before) as f64 } / seconds;
        let mut services: Vec<Service> = Vec::new();
        for (name, (connections, refused)) in &new.services {
            let before = old.services.get(name).copied().unwrap_or((*connections, *refused));
            let row = Service {
                service: name.clone(),
                connections_per_second: rate(before.0, *connections),
                refused_per_second: rate(before.1, *refused),
                tcp: watch.tcp(name),
            };
            if row.connections_per_second > 0.0 || row.refused_per_second > 0.0 || row.tcp.is_some() {
                services.push(row);
            }
        }
        // Connections outlive their service.
        let gone = watch.services().filter(|name| !new.services.contains_key(*name));
        services.extend(gone.map(|name| Service {
            service: name.to_owned(),
            connections_per_second: 0.0,
            refused_per_second: 0.0,
            tcp: watch.tcp(name),
        }));
        services.sort_by_cached_key(|row| {
            let rate = ((row.connections_per_second + row.refused_per_second) * 1_000.0) as u64;
            let open = row.tcp.as_ref().map_or(0, |tcp| tcp.connections);
            (Reverse(rate), Reverse(open), row.service.clone())
        });
        let of =
            |label: &&'static str, value: &u64| rate(old.counters.get(*label).copied().unwrap_or(0), *value);
        let rates = new.counters.iter().map(|(label, value)| (*label, of(label, value)));
        let (drops_per_second, counters_per_second) = rates.partition(|(label, _)| DROPS.contains(label));
        let tcp = watch.looked();
        Self { interval_seconds: seconds, services, tcp, drops_per_second, counters_per_second, maps }
    }

    /// Formats the frame as text, with at most this number of services.
    pub fn lines(&self, services: usize) -> Vec<String> {
        let mut text = vec![self.title(), String::new()];
        let mut table = vec![words(&[
            "SERVICE",
            "CONNECTIONS/s",
            "REFUSED/s",
            "OPEN",
            "RTT-P50",
            "RTT-P99",
            "RETRANSMITS/s",
        ])];
        table.extend(self.services.iter().take(services).map(service));
        text.extend(aligned(&table));
        if self.services.len() > services {
            text.push(format!("and {} more", self.services.len() - services));
        }
        for (title, rates) in
            [("DROPPED OR REFUSED", &self.drops_per_second), ("COUNTER", &self.counters_per_second)]
        {
            let mut busy: Vec<_> = rates.iter().filter(|(_, rate)| **rate > 0.0).collect();
            busy.sort_by_key(|(label, rate)| (Reverse((**rate * 1_000.0) as u64), **label));
            let mut table = vec![words(&[title, "/s"])];
            table.extend(busy.into_iter().map(|(label, rate)| vec![(*label).to_owned(), number(*rate)]));
            text.push(String::new());
            text.extend(aligned(&table));
        }
        let mut table = vec![words(&["MAP", "USED", "LIMIT", "FULL"])];
        table.extend(self.maps.iter().filter(|row| row.used > 0).map(|row| {
            let full = row.used as f64 / row.limit.max(1) as f64 * 100.0;
            vec![row.map.to_owned(), row.used.to_string(), row.limit.to_string(), format!("{full:.1} %")]
        }));
        text.push(String::new());
        text.extend(aligned(&table));
        text
    }

    fn title(&self) -> String {
        let text = format!("over {:.1} s", self.interval_seconds);
        match &self.tcp {
            None => format!("{text}; no round-trip times: the kernel could not be asked"),
            Some(looked) => format!(
                "{text}; round-trip times of {:.1} s ago, from {} TCP connections in {} network namespaces",
                looked.age_seconds, looked.connections, looked.namespaces
            ),
        }
    }
}

fn service(row: &Service) -> Vec<String> {
    let unknown = || "-".to_owned();
    let time = |time: Option<f64>| time.map_or_else(unknown, duration);
    let tcp = row.tcp.as_ref();
    vec![
        row.service.clone(),
        number(row.connections_per_second),
        number(row.refused_per_second),
        tcp.map_or_else(unknown, |tcp| tcp.connections.to_string()),
        time(tcp.and_then(|tcp| tcp.rtt_p50_seconds)),
        time(tcp.and_then(|tcp| tcp.rtt_p99_seconds)),
        tcp.and_then(|tcp| tcp.retransmits_per_second).map_or_else(unknown, number),
    ]
}

/// Formats a rate, with one decimal if it is small.
fn number(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Formats a time with a unit that leaves two or three digits: `24us`, `1.3ms`, `250ms`, `2.0s`.
fn duration(seconds: f64) -> String {
    if seconds < 0.000_999_5 {
        format!("{:.0}us", seconds * 1_000_000.0)
    } else if seconds < 0.009_95 {
        format!("{:.1}ms", seconds * 1_000.0)
    } else if seconds < 0.999_5 {
        format!("{:.0}ms", seconds * 1_000.0)
    } else {
        format!("{seconds:.1}s")
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::tests::watch;
    use super::*;
    use serde_json::json;
    use userspace_dataplane::inspect::LatencyRow;

    fn sample(services: &[(&str, u64, u64)], counters: &[(&'static str, u64)]) -> Sample {
        Sample {
            services: services.iter().map(|(name, c, r)| ((*name).to_owned(), (*c, *r))).collect(),
            counters: counters.iter().copied().collect(),
        }
    }

    fn latency(connections: usize) -> LatencyRow {
        LatencyRow {
            connections,
            rtt_p50_seconds: Some(0.000_024),
            rtt_p99_seconds: Some(0.25),
            rtt_max_seconds: Some(1.5),
            rtt_min_seconds: Some(0.000_01),
            retransmits: 6,
        }
    }

    #[test]
    fn rates_are_sorted_and_quiet_services_left_out() {
        let old = sample(&[("a", 10, 0), ("b", 0, 0), ("c", 5, 5), ("d", 90, 0)], &[("flow_created", 100)]);
        let new = sample(
            &[("a", 20, 0), ("b", 100, 2), ("c", 5, 5), ("d", 4, 0), ("new", 50, 0)],
            &[("flow_created", 300), ("packet_refused", 4)],
        );
        let frame = Frame::between(&old, &new, 2.0, Vec::new(), &Watch::default());
        let names: Vec<_> = frame.services.iter().map(|row| row.service.as_str()).collect();
        assert_eq!(names, ["b", "a", "d"]);
        let first = &frame.services[0];
        assert_eq!((first.connections_per_second, first.refused_per_second), (50.0, 1.0));
        assert_eq!(frame.services[2].connections_per_second, 2.0);
        assert_eq!(frame.counters_per_second["flow_created"], 100.0);
        assert_eq!(frame.drops_per_second["packet_refused"], 2.0);
        assert!(frame.lines(9)[0].ends_with("the kernel could not be asked"));
    }

    #[test]
    fn quiet_services_with_connections_are_shown_and_so_are_those_that_are_gone() {
        let watch = watch(&[("quiet", latency(2)), ("more", latency(3)), ("gone", latency(1))]);
        let same = sample(&[("quiet", 5, 0), ("more", 5, 0), ("silent", 5, 0)], &[]);
        let frame = Frame::between(&same, &same, 1.0, Vec::new(), &watch);
        let names: Vec<_> = frame.services.iter().map(|row| row.service.as_str()).collect();
        assert_eq!(names, ["more", "quiet", "gone"]);
    }

    #[test]
    fn a_frame_as_text() {
        let new = sample(&[("a", 5, 0), ("b", 4, 0), ("c", 1, 0)], &[("flow_created", 5)]);
        let old = sample(&[("a", 0, 0), ("b", 0, 0), ("c", 0, 0)], &[]);
        let maps = vec![Pressure { map: "FLOWS4", used: 8, limit: 16 }];
        let frame = Frame::between(&old, &new, 1.0, maps, &watch(&[("a", latency(7))]));
        let text = frame.lines(2).join("\n");
        let expected = "\
SERVICE   CONNECTIONS/s   REFUSED/s   OPEN   RTT-P50   RTT-P99   RETRANSMITS/s
a         5.0             0.0         7      24us      250ms     3.0
b         4.0             0.0         -      -         -         -
and 1 more
";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("FLOWS4   8      16      50.0 %"), "{text}");
        assert!(text.lines().next().unwrap().ends_with("from 12 TCP connections in 3 network namespaces"));
    }

    #[test]
    fn a_frame_in_json() {
        let new = sample(&[("a", 5, 1), ("b", 2, 0)], &[("flow_created", 5), ("malformed", 1)]);
        let old = sample(&[("a", 0, 0), ("b", 0, 0)], &[]);
        let maps = vec![Pressure { map: "FLOWS4", used: 8, limit: 16 }];
        let mut frame = Frame::between(&old, &new, 1.0, maps, &watch(&[("a", latency(7))]));
        let looked = Looked { connections: 12, namespaces: 3, seconds: 0.5, age_seconds: 0.25 };
        assert_eq!(frame.tcp.replace(looked).map(|looked| looked.connections), Some(12));
        let expected = json!({
            "intervalSeconds": 1.0,
            "services": [
                {
                    "service": "a", "connectionsPerSecond": 5.0, "refusedPerSecond": 1.0,
                    "tcp": {
                        "connections": 7, "rttP50Seconds": 0.000_024, "rttP99Seconds": 0.25,
                        "rttMaxSeconds": 1.5, "rttMinSeconds": 0.000_01, "retransmitsPerSecond": 3.0,
                    },
                },
                {"service": "b", "connectionsPerSecond": 2.0, "refusedPerSecond": 0.0, "tcp": null},
            ],
            "tcp": {"connections": 12, "namespaces": 3, "seconds": 0.5, "ageSeconds": 0.25},
            "dropsPerSecond": {"malformed": 1.0},
            "countersPerSecond": {"flow_created": 5.0},
            "maps": [{"map": "FLOWS4", "used": 8, "limit": 16}],
        });
        assert_eq!(serde_json::to_value(frame).unwrap(), expected);
    }

    #[test]
    fn times_have_two_or_three_digits() {
        let times = [0.000_024, 0.000_999_6, 0.001_26, 0.009_96, 0.25, 0.999_6, 12.0];
        assert_eq!(times.map(duration), ["24us", "1.0ms", "1.3ms", "10ms", "250ms", "1.0s", "12.0s"]);
    }
}
