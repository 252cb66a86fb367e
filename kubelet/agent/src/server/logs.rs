//! Logs of containers, from their files.

use std::{io, os::unix::fs::MetadataExt, sync::Arc};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::{SignedDuration, Timestamp};
use kubelet_cri::ContainerState;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
    sync::mpsc,
};

use super::{Body, Length, StreamPermit, query::Query, text, typed};
use crate::{
    agent::Agent,
    cell::PodCell,
    cri_log::{Renderer, Selection, tail_offset},
    limits,
    machine::{Machine, PodPlace},
    pod,
};

/// Bytes that are read at once.
const CHUNK: usize = 32 * 1024;
/// Pieces of an answer that wait for a slow reader.
const QUEUE: usize = 8;

/// Whether the answer to a request has an end of its own.
pub(super) fn length(request: &Request<Incoming>) -> Length {
    if Query::parse(request.uri().query()).is_set("follow") { Length::Open } else { Length::Bounded }
}

pub(super) async fn serve(
    agent: &Arc<Agent>,
    request: &Request<Incoming>,
    namespace: &str,
    pod: &str,
    container: &str,
    permit: StreamPermit,
) -> Response<Body> {
    let query = Query::parse(request.uri().query());
    let Some(cell) = agent.cell_by_name(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {namespace}/{pod} is not on this node"));
    };
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
    let (attempt, id) = match attempt(&cell, container, query.is_set("previous")) {
        Ok(found) => found,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let reader = Reader {
        log: Log {
            machine: Arc::clone(&agent.machine),
            place: cell.place.clone(),
            container: container.to_owned(),
            attempt,
        },
        renderer: Renderer::new(selection),
        follow: query.is_set("follow").then(|| (Arc::clone(&cell), id)),
        sender,
    };
    tokio::spawn(async move {
        reader.run(tail).await;
        drop(permit);
    });
    let pieces = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let mut response = typed(StatusCode::OK, "text/plain; charset=utf-8", String::new());
    *response.body_mut() = StreamBody::new(Box::pin(pieces)).boxed_unsync();
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

/// Which attempt of a container is meant, and its id; a sentence if there is none.
fn attempt(cell: &PodCell, container: &str, previous: bool) -> Result<(u32, String), String> {
    let state = cell.state();
    let pod = &cell.place.name;
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
    // A container that waits for its restart has ended already: that end is the previous one.
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

/// The log of one attempt of a container.
struct Log {
    machine: Arc<dyn Machine>,
    place: PodPlace,
    container: String,
    attempt: u32,
}

impl Log {
    /// Opens what the runtime writes now.
    async fn open(&self) -> io::Result<File> {
        Ok(File::from_std(self.machine.open_log(&self.place, &self.container, self.attempt).await?))
    }

    /// The file that has taken the place of one that was moved away.
    async fn replaced(&self, file: &File) -> Option<File> {
        let next = self.open().await.ok()?;
        let (here, there) = (file.metadata().await.ok()?, next.metadata().await.ok()?);
        ((here.dev(), here.ino()) != (there.dev(), there.ino())).then_some(next)
    }
}

/// Reads one log for one client.
struct Reader {
    log: Log,
    renderer: Renderer,
    /// The pod and the id of its container, for as long as that runs.
    follow: Option<(Arc<PodCell>, String)>,
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
            // It has written nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.follow.is_none() => return Ok(()),
            file => file?,
        };
        if let Some(lines) = tail {
            seek_tail(&mut file, lines).await?;
        }
        let mut line = Vec::new();
        loop {
            // Asked before the read, so that what is written last is not missed.
            let goes_on = self.goes_on();
            self.drain(&mut file, &mut line).await?;
            if self.renderer.is_full() {
                return Ok(());
            }
            let replaced = self.log.replaced(&file).await;
            if let Some(next) = replaced {
                self.drain(&mut file, &mut line).await?;
                file = next;
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

    fn goes_on(&self) -> bool {
        self.follow.as_ref().is_some_and(|(cell, id)| {
            cell.state().runtime.by_id(id).is_some_and(|status| status.state == ContainerState::Running)
        })
    }

    /// Sends everything up to the end of the file; keeps the beginning of an unfinished line.
    async fn drain(&mut self, file: &mut File, line: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let length = file.read(&mut buffer).await?;
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
                let frame = Ok(Frame::data(Bytes::from(output)));
                self.sender.send(frame).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            }
        }
    }
}

/// Goes to where the last lines begin, reading no more than needed from the end.
async fn seek_tail(file: &mut File, lines: usize) -> io::Result<()> {
    let length = file.metadata().await?.len();
    let mut window = CHUNK as u64;
    loop {
        let start = length.saturating_sub(window);
        file.seek(io::SeekFrom::Start(start)).await?;
        let mut content = Vec::new();
        (&mut *file).take(length - start).read_to_end(&mut content).await?;
        // The first line of the window may be the rest of a longer one.
        let first = if start == 0 {
            0
        } else {
            content.iter().position(|byte| *byte == b'\n').map_or(content.len(), |index| index + 1)
        };
        let offset = tail_offset(&content[first..], lines);
        if start == 0 || offset > 0 {
            file.seek(io::SeekFrom::Start(start + (first + offset) as u64)).await?;
            return Ok(());
        }
        window *= 4;
    }
}
