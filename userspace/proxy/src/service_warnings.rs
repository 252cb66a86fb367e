//! Reports settings of Services that are not followed to their owners: in the log, in a metric, and as a
//! Warning Event about the Service.
//!
//! Each is reported when it is new: once for as long as the Service has it. All nodes find the same, so they
//! write one Event between them (`Recorder::shared_warning`). The number of Events is bounded, for a Service
//! whose annotations alternate and for a cluster full of odd ones; the rest is only logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::events::{Recorder, reference};
use k8s_openapi::api::core::v1::Service;
use tokio::time::Instant;
use tracing::warn;

use crate::compile::Warning;
use crate::limits;

const OF_SERVICE: Bound = Bound { burst: limits::SERVICE_EVENTS, pause: limits::SERVICE_EVENT_PAUSE };
const OF_ALL: Bound = Bound { burst: limits::ALL_EVENTS, pause: limits::ALL_EVENTS_PAUSE };

struct Bound {
    burst: u32,
    pause: Duration,
}

/// The number of Events that may still be written: as many as the burst, fewer for a while after each.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u32,
    /// The time for which `left` was computed.
    since: Instant,
}

impl Allowance {
    fn new(bound: &Bound, now: Instant) -> Self {
        Self { left: bound.burst, since: now }
    }

    /// Adds what has become available by now.
    fn refill(&mut self, bound: &Bound, now: Instant) {
        let back = (now - self.since).as_nanos() / bound.pause.as_nanos();
        match u32::try_from(back) {
            Ok(back) if self.left.saturating_add(back) < bound.burst => {
                self.left += back;
                self.since += bound.pause * back;
            }
            _ => *self = Self::new(bound, now),
        }
    }
}

/// The warnings that have been reported.
pub(crate) struct ServiceWarnings {
    /// `None` if there is no API server.
    recorder: Option<Recorder>,
    said: BTreeMap<Arc<str>, Vec<Warning>>,
    all: Allowance,
    /// Services that have had Events recently.
    services: BTreeMap<Arc<str>, Allowance>,
}

impl ServiceWarnings {
    pub fn new(recorder: Option<Recorder>) -> Self {
        let all = Allowance::new(&OF_ALL, Instant::now());
        Self { recorder, said: BTreeMap::new(), all, services: BTreeMap::new() }
    }

    /// Reports the new ones of these warnings; returns their number.
    pub fn tell(&mut self, name: &Arc<str>, service: &Service, warnings: Vec<Warning>) -> u64 {
        if warnings.is_empty() {
            self.said.remove(name);
            return 0;
        }
        let said = self.said.insert(Arc::clone(name), warnings.clone()).unwrap_or_default();
        let mut told = 0;
        for warning in warnings.iter().filter(|warning| !said.contains(warning)) {
            warn!(service = %name, "ignored: {warning}; {}", warning.instead());
            told += 1;
            if let Some(recorder) = self.recorder.clone().filter(|_| self.may_write(name)) {
                let message = format!("{warning}; {}", warning.instead());
                recorder.shared_warning(reference(service), warning.reason(), message);
            }
        }
        told
    }

    /// Forgets a Service that is gone.
    pub fn forget(&mut self, name: &str) {
        self.said.remove(name);
    }

    /// Forgets all Services except these.
    pub fn keep_only(&mut self, names: &BTreeSet<String>) {
        self.said.retain(|name, _| names.contains(name.as_ref()));
    }

    fn may_write(&mut self, name: &Arc<str>) -> bool {
        let now = Instant::now();
        self.all.refill(&OF_ALL, now);
        if self.all.left == 0 {
            return false;
        }
        // The number of entries is bounded by what `OF_ALL` admits in the time after which one is forgotten.
        self.services.retain(|_, allowance| {
            allowance.refill(&OF_SERVICE, now);
            allowance.left < OF_SERVICE.burst
        });
        let new = Allowance::new(&OF_SERVICE, now);
        let service = self.services.entry(Arc::clone(name)).or_insert(new);
        let may = service.left > 0;
        if may {
            service.left -= 1;
            self.all.left -= 1;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_are_bounded_by_service_and_in_all_and_come_back() {
        let mut service_warnings = ServiceWarnings::new(None);
        let name = |n: usize| Arc::from(format!("default/s{n}"));
        let count = |service_warnings: &mut ServiceWarnings, n: usize, tries: usize| {
            (0..tries).filter(|_| service_warnings.may_write(&name(n))).count()
        };
        assert_eq!(count(&mut service_warnings, 0, 20), 5);
        assert_eq!((1..40).map(|n| count(&mut service_warnings, n, 5)).sum::<usize>(), 95);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(count(&mut service_warnings, 0, 20), 0);
        assert_eq!((100..140).map(|n| count(&mut service_warnings, n, 1)).sum::<usize>(), 10);
        tokio::time::advance(Duration::from_mins(11)).await;
        assert_eq!(count(&mut service_warnings, 0, 20), 2);
        tokio::time::advance(Duration::from_hours(2)).await;
        assert_eq!(count(&mut service_warnings, 0, 20), 5);
        assert_eq!(service_warnings.services.len(), 1);
    }
}
