//! Watches on etcd: one server stream for each, which is reopened after the last delivered revision when the
//! connection breaks.
//!
//! Progress: newer servers send a notice on request. In older ones such a notice overtakes events, so there
//! the watch receives every key of the server and filters; then every revision passes by in order, and
//! progress is the last one that did.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{EventType, WatchClient, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::{mpsc, watch as channel};
use tokio_stream::wrappers::ReceiverStream;

use super::prefix::Prefix;
use super::{CONNECT_TIMEOUT, key_of, within};
use crate::limits::ETCD_WATCH_BATCHES;
use crate::{Event, Notice, Revision, StoreError, Watch};

/// Number of attempts to reopen a broken watch, with a delay before the first that doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

/// Wakes all open watches, so that each requests its progress.
#[derive(Clone)]
pub(super) struct ProgressRequests {
    wanted: Arc<channel::Sender<()>>,
}

impl Default for ProgressRequests {
    fn default() -> Self {
        Self { wanted: Arc::new(channel::Sender::new(())) }
    }
}

impl ProgressRequests {
    pub(super) fn send(&self) {
        self.wanted.send_replace(());
    }
}

/// Returns `true` if a server of this version sends a requested progress notice only after earlier events.
/// Older ones send it past the queue of events.
pub(super) fn progress_is_sound(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) > (3, 5),
    }
}

/// Number of attempts of the first opening.
const OPEN_TRIES: u32 = 4;

/// Parameters with which a watch is opened and reopened.
struct Opening {
    client: WatchClient,
    /// Prefix of the store's keys.
    prefix: String,
    /// Prefix of the keys in etcd.
    outward: String,
    translation: Prefix,
    /// True if the watch receives every key and filters by prefix itself.
    every_key: bool,
}

/// An open watch.
struct Watching {
    opening: Opening,
    stream: WatchStream,
    /// First revision that is wanted.
    from: Revision,
    /// Revision up to which everything has been delivered.
    seen: Revision,
    sender: mpsc::Sender<Result<Notice, StoreError>>,
}

/// Opens a watch; it is open on the server when this returns.
pub(super) async fn open(
    client: WatchClient,
    progress: &ProgressRequests,
    progress_is_sound: bool,
    translation: &Prefix,
    prefix: &str,
    from: Revision,
) -> Result<Watch, StoreError> {
    let opening = Opening {
        client,
        prefix: prefix.to_owned(),
        outward: translation.outward(prefix),
        translation: translation.clone(),
        every_key: !progress_is_sound,
    };
    let (stream, revision) = opening.open_somewhere(from).await?;
    let from = if from == 0 { revision + 1 } else { from };
    let (sender, receiver) = mpsc::channel(ETCD_WATCH_BATCHES);
    let watching = Watching { opening, stream, from, seen: revision.min(from - 1), sender };
    tokio::spawn(watching.run(progress.wanted.subscribe()));
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

impl Opening {
    /// Like [`Self::open`], retrying in case one of several servers is down.
    async fn open_somewhere(&self, from: Revision) -> Result<(WatchStream, Revision), StoreError> {
        for _ in 1..OPEN_TRIES {
            match self.open(from).await {
                Err(StoreError::Unavailable { .. } | StoreError::Refused { .. }) => {
                    tokio::time::sleep(PAUSE / 4).await
                }
                result => return result,
            }
        }
        self.open(from).await
    }

    /// Returns the open stream and the server's revision at that moment.
    async fn open(&self, from: Revision) -> Result<(WatchStream, Revision), StoreError> {
        let attempted = format!("watch {}", self.prefix);
        let options = WatchOptions::new().with_start_revision(from).with_prev_key().with_progress_notify();
        let options = if self.every_key { options.with_all_keys() } else { options.with_prefix() };
        let mut client = self.client.clone();
        let opening = client.watch(self.outward.as_str(), Some(options));
        let mut stream = within(CONNECT_TIMEOUT, &attempted, opening).await?;
        let first = within(CONNECT_TIMEOUT, &attempted, stream.message()).await?;
        let Some(first) = first else { return Err(StoreError::Unavailable { attempted, cause: None }) };
        refused(&first, &attempted, from)?;
        Ok((stream, first.header().map_or(0, |header| header.revision())))
    }
}

/// Returns an error if the server has ended the watch.
fn refused(response: &WatchResponse, attempted: &str, next: Revision) -> Result<(), StoreError> {
    if response.compact_revision() != 0 {
        return Err(StoreError::Compacted { asked: next, oldest: response.compact_revision() });
    }
    if response.canceled() {
        let cause = Some(response.cancel_reason().to_owned().into());
        return Err(StoreError::Unavailable { attempted: attempted.to_owned(), cause });
    }
    Ok(())
}

/// Next step of a watch.
enum Step {
    Response(WatchResponse),
    AskForProgress,
    Reopen,
    Stop,
}

impl Watching {
    async fn run(mut self, mut progress: channel::Receiver<()>) {
        loop {
            let done = match self.step(&mut progress).await {
                Step::Stop => return,
                Step::AskForProgress => self.ask_for_progress().await,
                Step::Reopen => self.reopen().await,
                Step::Response(response) => self.pass_on(&response).await,
            };
            if let Err(error) = done {
                // Sending fails if the reader is gone.
                let _ = self.sender.send(Err(error)).await;
                return;
            }
        }
    }

    async fn step(&mut self, progress: &mut channel::Receiver<()>) -> Step {
        tokio::select! {
            biased;
            () = self.sender.closed() => Step::Stop,
            changed = progress.changed() => if changed.is_ok() { Step::AskForProgress } else { Step::Stop },
            message = self.stream.message() => match message {
                Ok(Some(response)) => Step::Response(response),
                Ok(None) | Err(_) => Step::Reopen,
            },
        }
    }

    async fn ask_for_progress(&mut self) -> Result<(), StoreError> {
        if self.opening.every_key {
            return self.report_progress().await;
        }
        // A broken stream is detected at the next message.
        let _ = self.stream.request_progress().await;
        Ok(())
    }

    async fn reopen(&mut self) -> Result<(), StoreError> {
        let next = self.from.max(self.seen + 1);
        let mut pause = PAUSE;
        let mut result = Ok(());
        for _ in 0..TRIES {
            tokio::time::sleep(pause).await;
            pause *= 2;
            match self.opening.open(next).await {
                Ok((stream, _)) => {
                    self.stream = stream;
                    return Ok(());
                }
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Refused { .. })) => {
                    result = Err(error)
                }
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Forwards a server message to the reader.
    async fn pass_on(&mut self, response: &WatchResponse) -> Result<(), StoreError> {
        refused(response, &format!("watch {}", self.opening.prefix), self.seen + 1)?;
        if response.created() {
            return Ok(());
        }
        let Some(newest) = response.events().last().and_then(|event| event.kv()) else {
            let revision = response.header().map_or(0, |header| header.revision());
            self.seen = self.seen.max(revision);
            return self.report_progress().await;
        };
        let newest = newest.mod_revision();
        let prefix = self.opening.outward.as_bytes();
        let wanted = |event: &&etcd_client::Event| event.kv().is_some_and(|kv| kv.key().starts_with(prefix));
        let events = response
            .events()
            .iter()
            .filter(wanted)
            .map(|own| event(own, &self.opening.translation))
            .collect::<Result<Vec<_>, _>>()?;
        self.seen = self.seen.max(newest);
        let last = events.last().map(|event| event.revision);
        if last.is_some() {
            self.send(Notice::Events(events)).await;
        }
        // The events were filtered out, but they count as progress.
        if last == Some(newest) { Ok(()) } else { self.report_progress().await }
    }

    async fn report_progress(&mut self) -> Result<(), StoreError> {
        // A watch from a future revision has not begun yet.
        if self.seen + 1 >= self.from {
            self.send(Notice::Progress(self.seen)).await;
        }
        Ok(())
    }

    /// Sends a notice. If the reader is gone, the next step detects it.
    async fn send(&self, notice: Notice) {
        let _ = self.sender.send(Ok(notice)).await;
    }
}

fn event(event: &etcd_client::Event, translation: &Prefix) -> Result<Event, StoreError> {
    let Some(kv) = event.kv() else {
        return Err(StoreError::Broken {
            attempted: "read a watch event from etcd".to_owned(),
            why: "it has no key".to_owned(),
            cause: None,
        });
    };
    let previous = event.prev_kv();
    let deleted = event.event_type() == EventType::Delete;
    // For a deletion the server sends a bare key; the create revision is in the previous value.
    let create_revision = if deleted {
        previous.map_or(0, etcd_client::KeyValue::create_revision)
    } else {
        kv.create_revision()
    };
    Ok(Event {
        revision: kv.mod_revision(),
        key: translation.inward(key_of(kv)?),
        value: (!deleted).then(|| Bytes::copy_from_slice(kv.value())),
        previous: previous.map(|kv| Bytes::copy_from_slice(kv.value())),
        create_revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reliable_from_certain_versions() {
        for sound in ["3.4.31", "3.5.13", "3.5.30", "3.6.0", "3.6.0-rc.1", "4.0.0"] {
            assert!(progress_is_sound(sound), "{sound}");
        }
        for unsound in ["3.4.23", "3.4.30", "3.5.12", "3.3.99", "", "what"] {
            assert!(!progress_is_sound(unsound), "{unsound}");
        }
    }
}
