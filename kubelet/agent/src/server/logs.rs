//! Serves the logs of containers from their files.
//!
//! Following ends when that run of the container has ended and its log has been sent, when the pod is gone, at
//! `limitBytes`, when the client leaves, or when the file cannot be read. A rotation of the log does not end it, and it
//! does not continue with the next run of the container. The API server ends it too, for a client that reads nothing for
//! ten minutes (`STALL_OF_LOGS` in `apiserver/server/src/limits.rs`). It also ends when the kubelet or the API server
//! shuts down.

use std::{io, os::unix::fs::MetadataExt, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::{Frame, Incoming};
use jiff::{SignedDuration, Timestamp};
use kubelet_cri::ContainerState;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
    sync::mpsc,
    time::Instant,
};

use super::{Body, StreamLength, StreamPermit, pieces, query::Query, text, typed};
use crate::{
    agent::Agent,
    cri_log::{Renderer, Selection},
    limits,
    machine::{Machine, PodPlace},
    pod,
    tracked::TrackedPod,
};

/// Bytes that are read at once.
const CHUNK: usize = 32 * 1024;
/// Chunks of an answer that are queued for a slow reader.
const QUEUE: usize = 8;

mod tail;

/// Returns the length of the answer to a request: it ends on its own, or is open-ended.
pub(super) fn length(request: &Request<Incoming>) -> StreamLength {
    if Query::parse(request.uri().query()).is_set("follow") {
        StreamLength::Open
    } else {
        StreamLength::Bounded
    }
}

pub(super) async fn serve(
    agent: &Arc<Agent>,
    request: &Request<Incoming>,
    tracked: Arc<TrackedPod>,
    container: &str,
    permit: StreamPermit,
) -> Response<Body> {
    let query = Query::parse(request.uri().query());
    let selection = match selection(&query, agent.ambient.now()) {
        Ok(selection) => selection,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let tail = match query.get("tailLines").map(str::parse::<usize>) {
        Some(Err(_)) => {
            return text(StatusCode::BAD_REQUEST, "tailLines must be a number that is not negative");
        }
        Some(Ok(lines)) => Some(lines),
        None => None,
    };
    let (attempt, id) = match attempt(&tracked, container, query.is_set("previous")) {
        Ok(found) => found,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let reader = Reader {
        log: Log {
            machine: Arc::clone(&agent.machine),
            place: tracked.place.clone(),
            container: container.to_owned(),
            attempt,
        },
        renderer: Renderer::new(selection),
        follow: query.is_set("follow").then(|| (Arc::clone(&tracked), id)),
        sender,
    };
    tokio::spawn(async move {
        reader.run(tail).await;
        drop(permit);
    });
    let mut response = typed(StatusCode::OK, "text/plain; charset=utf-8", String::new());
    *response.body_mut() = pieces(receiver);
    response
}

fn selection(query: &Query, now: Timestamp) -> Result<Selection, String> {
    let number = |name: &str| {
        query.get(name).map(|text| text.parse::<i64>().map_err(|_| format!("{name} must be a number")))
    };
    let since = match (number("sinceSeconds").transpose()?, query.get("sinceTime")) {
        (Some(seconds), _) => now.checked_sub(SignedDuration::from_secs(seconds)).ok(),
        (None, Some(time)) => {
            Some(time.parse().map_err(|_| "sinceTime must be a time as in RFC 3339".to_owned())?)
        }
        (None, None) => None,
    };
    let limit = number("limitBytes").transpose()?.map(|bytes| u64::try_from(bytes).unwrap_or_default());
    Ok(Selection { since, timestamps: query.is_set("timestamps"), limit })
}

/// Returns the attempt number and the id of the requested container; the error is a message for the client.
fn attempt(tracked: &TrackedPod, container: &str, previous: bool) -> Result<(u32, String), String> {
    let state = tracked.state();
    let pod = &tracked.place.name;
    let exists = pod::container(&state.pod, container).is_some()
        || pod::ephemeral_containers(&state.pod).any(|ephemeral| ephemeral.name == container);
    if !exists {
        return Err(format!("container {container} is not valid for pod {pod}"));
    }
    let lists = [
        &state.status.container_statuses,
        &state.status.init_container_statuses,
        &state.status.ephemeral_container_statuses,
    ];
    let shown = lists.into_iter().flatten().flatten().find(|status| status.name == container);
    let waiting = shown.and_then(|status| status.state.as_ref()?.waiting.as_ref());
    let mut attempts = state.runtime.attempts(container).filter(|c| c.state != ContainerState::Created);
    let newest = attempts.next();
    // A container in back-off has already ended, so its newest attempt is the previous one.
    let chosen = if previous && waiting.is_none() { attempts.next() } else { newest };
    match (chosen, previous) {
        (Some(status), _) => Ok((status.attempt, status.id.clone())),
        (None, true) => {
            Err(format!("previous terminated container \"{container}\" in pod \"{pod}\" not found"))
        }
        (None, false) => {
            let reason = waiting.and_then(|waiting| waiting.reason.clone());
            let reason = reason.unwrap_or_else(|| "ContainerCreating".to_owned());
            Err(format!("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}"))
        }
    }
}

/// Log of one attempt of a container.
struct Log {
    machine: Arc<dyn Machine>,
    place: PodPlace,
    container: String,
    attempt: u32,
}

impl Log {
    /// Opens the file that the runtime currently writes.
    async fn open(&self) -> io::Result<File> {
        Ok(File::from_std(self.machine.open_log(&self.place, &self.container, self.attempt).await?))
    }

    /// Opens the file that has replaced a rotated one.
    async fn replaced(&self, file: &File) -> Option<File> {
        let next = self.open().await.ok()?;
        let (here, there) = (file.metadata().await.ok()?, next.metadata().await.ok()?);
        ((here.dev(), here.ino()) != (there.dev(), there.ino())).then_some(next)
    }
}

/// The file that a reader is currently reading.
struct Source {
    /// `None` once the file has been closed early.
    file: Option<File>,
    /// Time since when the file is known to be removed.
    removed: Option<Instant>,
    /// Time of the last check.
    looked: Instant,
    /// Bytes that are left to read; `None` to read whatever is written.
    left: Option<u64>,
}

impl Source {
    fn new(file: File, left: Option<u64>) -> Self {
        Self { file: Some(file), removed: None, looked: Instant::now(), left }
    }

    /// Reads the next piece; returns its length, or 0 at the end.
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(file) = &mut self.file else { return Ok(0) };
        let most = self.left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let length = buffer.len().min(most);
        let length = file.read(&mut buffer[..length]).await?;
        if let Some(left) = &mut self.left {
            *left -= length as u64;
        }
        Ok(length)
    }

    /// Closes the file if it was removed and the reader has had time to reach its end, since its disk space
    /// stays in use while it is open. Checks no more often than logs are polled.
    async fn give_up_removed(&mut self) {
        let Some(file) = &self.file else { return };
        if self.looked.elapsed() < limits::LOG_POLL {
            return;
        }
        self.looked = Instant::now();
        match self.removed {
            Some(since) if since.elapsed() >= limits::LOG_HOLD => self.file = None,
            Some(_) => {}
            None if file.metadata().await.is_ok_and(|metadata| metadata.nlink() == 0) => {
                self.removed = Some(Instant::now());
            }
            None => {}
        }
    }
}

/// Reads one log for one client.
struct Reader {
    log: Log,
    renderer: Renderer,
    /// The pod and the id of its container, if the log is followed for as long as that runs.
    follow: Option<(Arc<TrackedPod>, String)>,
    sender: mpsc::Sender<io::Result<Frame<Bytes>>>,
}

impl Reader {
    async fn run(mut self, tail: Option<usize>) {
        if let Err(error) = self.read(tail).await
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            let _ = self.sender.send(Err(error)).await;
        }
    }

    async fn read(&mut self, tail: Option<usize>) -> io::Result<()> {
        let mut file = match self.log.open().await {
            // The container has written nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.follow.is_none() => return Ok(()),
            file => file?,
        };
        if let Some(lines) = tail {
            tail::seek(&mut file, lines).await?;
        }
        // A reader that does not follow gets what is there: it would never catch up with a container that writes faster.
        let left = match self.follow {
            Some(_) => None,
            None => Some(file.metadata().await?.len().saturating_sub(file.stream_position().await?)),
        };
        let mut source = Source::new(file, left);
        let mut line = Vec::new();
        loop {
            // Checked before reading, so that the last output is not missed.
            let goes_on = self.goes_on();
            self.drain(&mut source, &mut line).await?;
            if self.renderer.is_full() {
                return Ok(());
            }
            if self.follow.is_none() {
                let removed = || io::Error::other("the log was removed while it was read");
                return source.file.map(drop).ok_or_else(removed);
            }
            if let Some(next) = self.next(&mut source, &mut line).await? {
                source = Source::new(next, None);
                continue;
            }
            if !goes_on {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.sender.closed() => return Ok(()),
                () = tokio::time::sleep(limits::LOG_POLL) => {}
            }
        }
    }

    /// Returns the file that replaced the current one, once all of that has been sent. A client that was too slow
    /// for a file continues with the current one.
    async fn next(&mut self, source: &mut Source, line: &mut Vec<u8>) -> io::Result<Option<File>> {
        if let Some(file) = &source.file {
            let next = self.log.replaced(file).await;
            if next.is_some() {
                self.drain(source, line).await?;
            }
            return Ok(next);
        }
        line.clear();
        Ok(self.log.open().await.ok())
    }

    fn goes_on(&self) -> bool {
        self.follow.as_ref().is_some_and(|(tracked, id)| {
            tracked.state().runtime.by_id(id).is_some_and(|status| status.state == ContainerState::Running)
        })
    }

    /// Sends everything up to the end of the file, unless it is closed early; keeps the beginning of an
    /// unfinished line.
    async fn drain(&mut self, source: &mut Source, line: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            source.give_up_removed().await;
            let length = source.read(&mut buffer).await?;
            if length == 0 || self.renderer.is_full() {
                return Ok(());
            }
            let mut output = Vec::new();
            for piece in buffer[..length].split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(piece);
                if piece.ends_with(b"\n") || line.len() > limits::LOG_LINE {
                    self.renderer.render(line, &mut output);
                    line.clear();
                }
            }
            if !output.is_empty() {
                self.send(Bytes::from(output), source).await?;
            }
        }
    }

    /// Waits until the client accepts a chunk, but closes a removed file in the meantime.
    async fn send(&self, piece: Bytes, source: &mut Source) -> io::Result<()> {
        let place = loop {
            tokio::select! {
                biased;
                place = self.sender.reserve() => {
                    break place.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
                }
                () = tokio::time::sleep(limits::LOG_POLL) => source.give_up_removed().await,
            }
        };
        place.send(Ok(Frame::data(piece)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
