//! Watches on etcd: one stream of the server for each, opened again after the last revision that
//! was delivered when the connection breaks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{EventType, WatchClient, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::{mpsc, watch as channel};
use tokio_stream::wrappers::ReceiverStream;

use super::{CONNECT_TIMEOUT, key_of, within};
use crate::limits::ETCD_WATCH_BATCHES;
use crate::{Event, Notice, Revision, StoreError, Watch};

/// Tries to open a broken watch again, and the pause after the first; it doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

/// Wakes all open watches so that each asks for its progress.
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

/// Whether a server of this version sends a progress notice that was asked for only after the
/// events before it. Older ones send it past the queue of events.
pub(super) fn progress_is_sound(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) > (3, 5),
    }
}

/// One open watch.
struct Watching {
    client: WatchClient,
    stream: WatchStream,
    prefix: String,
    /// Everything before this revision has been delivered.
    next: Revision,
    sender: mpsc::Sender<Result<Notice, StoreError>>,
}

/// Opens a watch; it is open on the server when this returns.
pub(super) async fn open(
    client: WatchClient,
    progress: ProgressRequests,
    prefix: String,
    from: Revision,
) -> Result<Watch, StoreError> {
    let (stream, next) = open_stream(&client, &prefix, from).await?;
    let (sender, receiver) = mpsc::channel(ETCD_WATCH_BATCHES);
    let watching = Watching { client, stream, prefix, next, sender };
    tokio::spawn(watching.run(progress.wanted.subscribe()));
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

async fn open_stream(
    client: &WatchClient,
    prefix: &str,
    from: Revision,
) -> Result<(WatchStream, Revision), StoreError> {
    let attempted = format!("watch {prefix}");
    let options =
        WatchOptions::new().with_prefix().with_start_revision(from).with_prev_key().with_progress_notify();
    let mut client = client.clone();
    let mut stream = within(CONNECT_TIMEOUT, &attempted, client.watch(prefix, Some(options))).await?;
    let first = within(CONNECT_TIMEOUT, &attempted, stream.message()).await?;
    let Some(first) = first else { return Err(StoreError::Unavailable { attempted, cause: None }) };
    refused(&first, &attempted, from)?;
    let revision = first.header().map_or(0, |header| header.revision());
    Ok((stream, if from == 0 { revision + 1 } else { from }))
}

/// An error if the server has ended the watch.
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

/// What to do next.
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
                Step::AskForProgress => {
                    // A broken stream shows at the next message.
                    let _ = self.stream.request_progress().await;
                    Ok(())
                }
                Step::Reopen => self.reopen().await,
                Step::Response(response) => match self.notice(&response) {
                    Ok(Some(notice)) => {
                        if self.sender.send(Ok(notice)).await.is_err() {
                            return;
                        }
                        Ok(())
                    }
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = done {
                // The reader may be gone, and then nobody wants to know.
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

    async fn reopen(&mut self) -> Result<(), StoreError> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match open_stream(&self.client, &self.prefix, self.next).await {
                Ok((stream, _)) => {
                    self.stream = stream;
                    return Ok(());
                }
                Err(StoreError::Unavailable { .. }) => tokio::time::sleep(pause).await,
                Err(error) => return Err(error),
            }
            pause *= 2;
        }
        let (stream, _) = open_stream(&self.client, &self.prefix, self.next).await?;
        self.stream = stream;
        Ok(())
    }

    /// What a message of the server means to the reader.
    fn notice(&mut self, response: &WatchResponse) -> Result<Option<Notice>, StoreError> {
        refused(response, &format!("watch {}", self.prefix), self.next)?;
        let revision = response.header().map_or(0, |header| header.revision());
        if response.created() {
            return Ok(None);
        }
        if response.events().is_empty() {
            // A watch from a future revision has not begun yet.
            let begun = revision + 1 >= self.next;
            self.next = self.next.max(revision + 1);
            return Ok(begun.then_some(Notice::Progress(revision)));
        }
        let events = response.events().iter().map(event).collect::<Result<Vec<_>, _>>()?;
        if let Some(last) = events.last() {
            self.next = last.revision + 1;
        }
        Ok(Some(Notice::Events(events)))
    }
}

fn event(event: &etcd_client::Event) -> Result<Event, StoreError> {
    let Some(kv) = event.kv() else {
        return Err(StoreError::Broken {
            attempted: "read a watch event from etcd".to_owned(),
            why: "it has no key".to_owned(),
            cause: None,
        });
    };
    let previous = event.prev_kv();
    let deleted = event.event_type() == EventType::Delete;
    // The server sends a bare key with a deletion; what it was created at is in the value before.
    let create_revision = if deleted {
        previous.map_or(0, etcd_client::KeyValue::create_revision)
    } else {
        kv.create_revision()
    };
    Ok(Event {
        revision: kv.mod_revision(),
        key: key_of(kv)?,
        value: (!deleted).then(|| Bytes::copy_from_slice(kv.value())),
        previous: previous.map(|kv| Bytes::copy_from_slice(kv.value())),
        create_revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_whose_progress_can_be_believed() {
        for sound in ["3.4.31", "3.5.13", "3.5.30", "3.6.0", "3.6.0-rc.1", "4.0.0"] {
            assert!(progress_is_sound(sound), "{sound}");
        }
        for unsound in ["3.4.23", "3.4.30", "3.5.12", "3.3.99", "", "what"] {
            assert!(!progress_is_sound(unsound), "{unsound}");
        }
    }
}
