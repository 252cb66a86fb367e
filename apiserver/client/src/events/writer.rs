//! Writes Events of `events.k8s.io/v1` and their series, several at one time, and again if the API server gives no answer.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::recorder::{IsBusy, Recorded};
use super::refusals::Refusals;
use super::series::Series;
use crate::limits;

/// An event that is to be written.
struct Write {
    event: Event,
    purpose: Purpose,
}

/// The reason for which an event is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// It has happened; it has been tried to write this so many times.
    New { attempts: u32 },
    /// Its series goes on, and is written again later.
    Refresh,
    /// Its series is over.
    End,
}

pub(super) struct Writer {
    client: Client,
    ambient: Ambient,
    is_busy: IsBusy,
    /// Time since which events wait because the component is busy.
    busy_since: Option<Instant>,
    series: Series,
    /// Writes that are to begin, by time.
    waiting: BTreeMap<(Instant, u64), Write>,
    /// Number that tells writes of one time apart.
    next: u64,
    writing: JoinSet<(Write, kube::Result<()>)>,
    refusals: Refusals,
}

impl Writer {
    pub fn new(client: Client, ambient: Ambient, is_busy: IsBusy) -> Self {
        Self {
            client,
            ambient,
            is_busy,
            busy_since: None,
            series: Series::default(),
            waiting: BTreeMap::new(),
            next: 0,
            writing: JoinSet::new(),
            refusals: Refusals::default(),
        }
    }

    /// Writes until shutdown, or until there is nobody left who records events and all are written.
    pub async fn run(mut self, mut events: mpsc::Receiver<Recorded>, shutdown: CancellationToken) {
        let begin = |period| interval_at(Instant::now() + period, period);
        let (mut ends, mut refreshes) =
            (begin(limits::EVENT_SERIES_SILENCE), begin(limits::EVENT_SERIES_REFRESH));
        let mut is_open = true;
        while is_open || !self.writing.is_empty() || !self.waiting.is_empty() {
            let lanes = self.lanes(events.len());
            self.begin_due(lanes);
            let has_room = self.writing.len() < lanes;
            let due = self.waiting.first_key_value().map_or_else(Instant::now, |((at, _), _)| *at);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(Ok((write, result))) = self.writing.join_next() => self.written(write, result),
                _ = ends.tick() => {
                    let ending = self.series.ending(Instant::now());
                    self.add(ending, Purpose::End);
                }
                _ = refreshes.tick() => self.add(self.series.running(), Purpose::Refresh),
                () = sleep(limits::EVENT_LOOK), if lanes == 0 => {}
                () = sleep_until(due), if has_room && !self.waiting.is_empty() => {}
                event = events.recv(), if has_room && is_open => match event {
                    Some(recorded) => {
                        let event = recorded.event(self.ambient.random.next_u64());
                        let written = self.series.record(event, Instant::now());
                        self.add(written, Purpose::New { attempts: 0 });
                    }
                    None => is_open = false,
                },
            }
        }
    }

    /// Has events written as soon as there is room.
    fn add(&mut self, events: Vec<Event>, purpose: Purpose) {
        for event in events {
            self.wait(Write { event, purpose }, Instant::now());
        }
    }

    fn wait(&mut self, write: Write, until: Instant) {
        if self.waiting.len() >= limits::EVENT_BACKLOG {
            debug!(reason = write.event.reason, "dropped an event: too many wait for the API server");
            return;
        }
        self.waiting.insert((until, self.next), write);
        self.next += 1;
    }

    /// Returns the number of events that may be written at one time while so many are queued: none while the component is
    /// busy, so that its other requests have the API server to themselves; one once it has been so for long, and all if
    /// events would be dropped soon.
    fn lanes(&mut self, queued: usize) -> usize {
        if queued >= limits::EVENT_SERIES_QUEUE / 2 || !(self.is_busy)() {
            self.busy_since = None;
            return limits::EVENT_WRITES;
        }
        let since = self.busy_since.get_or_insert_with(Instant::now);
        usize::from(since.elapsed() >= limits::EVENT_PATIENCE)
    }

    /// Begins writes that are due, as far as there is room.
    fn begin_due(&mut self, lanes: usize) {
        let now = Instant::now();
        while self.writing.len() < lanes
            && let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now)
        {
            let (write, client) = (first.remove(), self.client.clone());
            self.writing.spawn(async move {
                let result = put(client, &write.event).await;
                (write, result)
            });
        }
    }

    fn written(&mut self, write: Write, result: kube::Result<()>) {
        let may_pass = result.as_ref().is_err_and(|error| may_pass(error, &write.event));
        if let Err(error) = &result {
            let controller = write.event.reporting_controller.as_deref().unwrap_or_default();
            self.refusals.log(controller, error);
        }
        match write.purpose {
            Purpose::New { attempts } if may_pass && attempts + 1 < limits::EVENT_ATTEMPTS => {
                let write = Write { purpose: Purpose::New { attempts: attempts + 1 }, ..write };
                self.wait(write, Instant::now() + self.pause());
            }
            // A series that is not written stays, until the next look for its end.
            Purpose::End if !may_pass => self.series.ended(&write.event),
            Purpose::New { .. } | Purpose::Refresh | Purpose::End => {}
        }
    }

    /// Returns a pause of random length, so that not all clients come back at the same time.
    fn pause(&self) -> Duration {
        let part = u32::try_from(self.ambient.random.next_u64() % 1024).unwrap_or_default();
        limits::EVENT_PAUSE + limits::EVENT_PAUSE * part / 4096
    }
}

/// Creates an event, or writes its series if it has one. The object of a series may have been deleted for its age, and is
/// created again then.
async fn put(client: Client, event: &Event) -> kube::Result<()> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client, namespace);
    if let Some(series) = &event.series {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Strategic(json!({"series": series}));
        match events.patch(name, &PatchParams::default(), &patch).await {
            Err(Error::Api(status)) if status.code == 404 => {}
            other => return other.map(drop),
        }
    }
    events.create(&PostParams::default(), event).await.map(drop)
}

/// Returns `true` if an event may still be written after this error: there was no answer, or its object came about between
/// the two requests of a series.
fn may_pass(error: &Error, event: &Event) -> bool {
    match error {
        Error::Api(status) => event.series.is_some() && status.reason == "AlreadyExists",
        Error::BuildRequest(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
