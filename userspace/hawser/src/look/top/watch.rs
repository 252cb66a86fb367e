//! Round-trip times, read no more often than their cost allows.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use userspace_dataplane::inspect::{InspectError, Inspector, Latencies, LatencyRow, LatencyWatch};

use crate::limits;

/// The last reading, and the schedule of the next one.
#[derive(Default)]
pub struct Watch {
    kernel: LatencyWatch,
    last: Option<Look>,
    /// The last failure that was printed, so that it is not printed again.
    failure: Option<String>,
}

/// The result of one reading.
struct Look {
    latencies: Latencies,
    at: Instant,
    took: Duration,
    /// Time since the previous reading; `None` at the first one.
    since: Option<Duration>,
}

/// The extent and the time of a reading.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Looked {
    /// Established TCP connections of this node, to services or not.
    pub connections: usize,
    /// Network namespaces that were asked.
    pub namespaces: usize,
    /// Duration of the reading.
    pub seconds: f64,
    /// Age of the reading.
    pub age_seconds: f64,
}

/// The established TCP connections of one service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tcp {
    pub connections: usize,
    pub rtt_p50_seconds: Option<f64>,
    pub rtt_p99_seconds: Option<f64>,
    pub rtt_max_seconds: Option<f64>,
    pub rtt_min_seconds: Option<f64>,
    /// Retransmitted segments; `None` before the second reading.
    pub retransmits_per_second: Option<f64>,
}

impl Watch {
    /// Returns `true` if the last reading is old enough for the next one.
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.as_ref().is_none_or(|last| now >= last.at + last.took * limits::TOP_PAUSE)
    }

    /// Takes a reading. A failure is printed once, and the previous reading remains.
    pub fn refresh(&mut self, inspector: &Inspector) {
        let began = Instant::now();
        let looked = self.kernel.look(inspector);
        self.note(looked, began, Instant::now());
    }

    fn note(&mut self, looked: Result<Latencies, InspectError>, began: Instant, ended: Instant) {
        match looked {
            Ok(latencies) => {
                let since = self.last.as_ref().map(|last| ended - last.at);
                self.last = Some(Look { latencies, at: ended, took: ended - began, since });
                self.failure = None;
            }
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                if self.failure.as_ref() != Some(&text) {
                    tracing::warn!("no round-trip times: {text}");
                }
                self.failure = Some(text);
            }
        }
    }

    /// Services with established connections.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        let services = self.last.iter().flat_map(|last| last.latencies.services.keys());
        services.map(String::as_str)
    }

    /// Returns what is known of a service's connections, if anything.
    pub fn tcp(&self, service: &str) -> Option<Tcp> {
        let last = self.last.as_ref()?;
        let row = last.latencies.services.get(service)?;
        Some(tcp(row, last.since))
    }

    /// Returns the extent of the last reading; `None` before the first one.
    pub fn looked(&self) -> Option<Looked> {
        let last = self.last.as_ref()?;
        Some(Looked {
            connections: last.latencies.sockets,
            namespaces: last.latencies.namespaces,
            seconds: last.took.as_secs_f64(),
            age_seconds: last.at.elapsed().as_secs_f64(),
        })
    }
}

fn tcp(row: &LatencyRow, since: Option<Duration>) -> Tcp {
    let rate = |since: Duration| row.retransmits as f64 / since.as_secs_f64().max(f64::MIN_POSITIVE);
    Tcp {
        connections: row.connections,
        rtt_p50_seconds: row.rtt_p50_seconds,
        rtt_p99_seconds: row.rtt_p99_seconds,
        rtt_max_seconds: row.rtt_max_seconds,
        rtt_min_seconds: row.rtt_min_seconds,
        retransmits_per_second: since.map(rate),
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns a watch after two readings a second apart, of which the second found these rows.
    pub fn watch(services: &[(&str, LatencyRow)]) -> Watch {
        let mut watch = Watch::default();
        let now = Instant::now();
        watch.note(Ok(Latencies::default()), now, now);
        let services = services.iter().map(|(name, row)| ((*name).to_owned(), row.clone()));
        let latencies = Latencies { services: services.collect(), sockets: 12, namespaces: 3 };
        let ended = now + Duration::from_secs(2);
        watch.note(Ok(latencies), ended - Duration::from_millis(100), ended);
        watch
    }

    #[test]
    fn retransmits_are_a_rate_between_looks() {
        let row = LatencyRow { connections: 4, retransmits: 6, ..LatencyRow::default() };
        let watch = watch(&[("default/web", row.clone())]);
        let known = watch.tcp("default/web").unwrap();
        assert_eq!((known.connections, known.retransmits_per_second), (4, Some(3.0)));
        assert_eq!(watch.tcp("default/other"), None);
        assert_eq!(tcp(&row, None).retransmits_per_second, None);
        let looked = watch.looked().unwrap();
        assert_eq!((looked.connections, looked.namespaces), (12, 3));
        assert!((looked.seconds - 0.1).abs() < 1e-6);
    }

    #[test]
    fn failed_poll_keeps_the_previous_rows() {
        let mut watch = watch(&[("default/web", LatencyRow::default())]);
        let now = Instant::now();
        let failure = InspectError::Sockets(std::io::ErrorKind::PermissionDenied.into());
        watch.note(Err(failure), now, now);
        assert!(watch.failure.as_ref().unwrap().contains("permission denied"), "{:?}", watch.failure);
        assert_eq!(watch.services().collect::<Vec<_>>(), ["default/web"]);
        watch.note(Ok(Latencies { services: BTreeMap::new(), ..Latencies::default() }), now, now);
        assert_eq!((watch.services().count(), &watch.failure), (0, &None));
    }

    #[test]
    fn a_long_look_is_followed_by_a_long_pause() {
        let mut watch = Watch::default();
        let began = Instant::now();
        assert!(watch.is_due(began));
        let ended = began + Duration::from_secs(2);
        watch.note(Ok(Latencies::default()), began, ended);
        assert!(!watch.is_due(ended + Duration::from_secs(17)));
        assert!(watch.is_due(ended + Duration::from_secs(18)));
        // Without maps, a reading fails.
        let root = tempfile::tempdir().unwrap();
        let layout = userspace_dataplane::inspect::LAYOUT_VERSION;
        std::fs::create_dir_all(root.path().join(format!("v{layout}/maps"))).unwrap();
        watch.refresh(&Inspector::open(root.path()).unwrap());
        assert!(watch.failure.as_ref().unwrap().contains("CONNECTED"), "{:?}", watch.failure);
    }
}
