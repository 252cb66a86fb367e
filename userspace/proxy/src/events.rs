//! The events that programs report about single packets: a few log lines, and the last events for `hawser
//! proxy events`. A ring buffer delivers each event once, so that nobody else can read it while the agent
//! does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_meta::ambient::Ambient;
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_dataplane::inspect::{EventRow, Events, Inspector};

use crate::limits;

/// The last events.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Log>);

#[derive(Default)]
struct Log {
    /// Sequence number of the last event; the first has 1.
    last: u64,
    events: VecDeque<Numbered>,
}

#[derive(Serialize)]
struct Numbered {
    number: u64,
    at: Timestamp,
    #[serde(flatten)]
    event: EventRow,
}

impl Recent {
    fn push(&self, at: Timestamp, event: EventRow) {
        let mut log = self.lock();
        log.last += 1;
        if log.events.len() == limits::EVENTS {
            log.events.pop_front();
        }
        let number = log.last;
        log.events.push_back(Numbered { number, at, event });
    }

    /// Returns the events after a sequence number, as JSON lines.
    pub fn lines(&self, after: u64) -> String {
        let log = self.lock();
        let wanted = log.events.iter().filter(|event| event.number > after);
        wanted.filter_map(|event| serde_json::to_string(event).ok()).map(|line| line + "\n").collect()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events within a window, by kind and service.
#[derive(Debug, Default)]
struct Window(BTreeMap<(String, Option<String>), Sum>);

#[derive(Debug)]
struct Sum {
    events: u64,
    suppressed: u64,
    /// The first event, as an example.
    first: EventRow,
}

impl Window {
    fn add(&mut self, event: &EventRow) {
        let sum = self.0.entry((event.kind.clone(), event.service.clone()));
        let sum = sum.or_insert_with(|| Sum { events: 0, suppressed: 0, first: event.clone() });
        sum.events += 1;
        sum.suppressed += u64::from(event.suppressed);
    }

    /// Returns one line per kind and service, the most frequent first, and the number of events in none of
    /// them.
    fn lines(self) -> (Vec<Sum>, u64) {
        let mut sums: Vec<Sum> = self.0.into_values().collect();
        sums.sort_by_key(|sum| std::cmp::Reverse(sum.events));
        let rest = sums.split_off(sums.len().min(limits::EVENT_LINES));
        (sums, rest.iter().map(|sum| sum.events).sum())
    }

    fn log(self) {
        let (sums, rest) = self.lines();
        for Sum { events, suppressed, first } in sums {
            let service = first.service.as_deref().unwrap_or("-");
            let (source, destination) = (place(first.source), place(first.destination));
            info!(
                kind = first.kind,
                service,
                events,
                suppressed,
                hook = first.hook,
                protocol = first.protocol,
                %source,
                %destination,
                interface = first.interface,
                "packets or calls were not served; the first is shown"
            );
        }
        if rest > 0 {
            info!(events = rest, "further packets or calls were not served");
        }
    }
}

fn place((address, port): (std::net::IpAddr, u16)) -> std::net::SocketAddr {
    std::net::SocketAddr::new(address, port)
}

/// Reads events until shutdown. It polls at intervals: programs emit so few per second that the ring holds
/// them all, and log lines summarize them anyway.
pub(crate) async fn follow(
    inspector: Inspector,
    recent: Arc<Recent>,
    ambient: Ambient,
    shutdown: CancellationToken,
) {
    let mut events = match inspector.events() {
        Ok(events) => events,
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "cannot read events: drops are only counted");
            return;
        }
    };
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(limits::EVENT_WINDOW) => {}
        }
        let mut window = Window::default();
        while take(&mut events, &recent, &mut window, ambient.now()) {
            tokio::task::yield_now().await;
        }
        window.log();
        events.forget_names();
    }
}

/// Takes the available events, within bounds; returns `true` if there may be more.
fn take(events: &mut Events, recent: &Recent, window: &mut Window, now: Timestamp) -> bool {
    for _ in 0..limits::EVENT_TURN {
        let Some(event) = events.read() else { return false };
        window.add(&event);
        recent.push(now, event);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, service: Option<&str>, suppressed: u32) -> EventRow {
        EventRow {
            time: 1,
            kind: kind.to_owned(),
            hook: "pod".to_owned(),
            protocol: 6,
            source: ([10, 0, 0, 1].into(), 40_000),
            destination: ([10, 96, 0, 1].into(), 80),
            service: service.map(str::to_owned),
            policy: None,
            interface: None,
            suppressed,
        }
    }

    #[test]
    fn a_window_has_one_line_for_each_kind_and_service() {
        let mut window = Window::default();
        for _ in 0..100 {
            window.add(&event("refused", Some("default/web"), 1));
        }
        window.add(&event("refused", Some("default/db"), 0));
        window.add(&event("unallocated", None, 0));
        let (lines, rest) = window.lines();
        let sums: Vec<_> = lines.iter().map(|sum| (sum.events, sum.suppressed)).collect();
        assert_eq!((sums, rest), (vec![(100, 100), (1, 0), (1, 0)], 0));
    }

    #[test]
    fn a_flood_of_kinds_has_bounded_lines() {
        let mut window = Window::default();
        for n in 0..100 {
            window.add(&event("refused", Some(&format!("default/s{n}")), 0));
        }
        let (lines, rest) = window.lines();
        assert_eq!((lines.len(), rest), (limits::EVENT_LINES, 100 - limits::EVENT_LINES as u64));
    }

    #[test]
    fn ring_keeps_the_newest_events_with_numbers() {
        let recent = Recent::default();
        for _ in 0..limits::EVENTS + 10 {
            recent.push(Timestamp::UNIX_EPOCH, event("refused", None, 0));
        }
        let all = recent.lines(0);
        assert_eq!(all.lines().count(), limits::EVENTS);
        assert!(all.starts_with("{\"number\":11,"), "{}", &all[..80]);
        assert_eq!(recent.lines(limits::EVENTS as u64 + 9).lines().count(), 1);
    }
}
