//! The control socket, on which other processes of the same machine send requests to a running store.
//! It is a Unix socket in the store's directory, which only its owner can enter. A request is one line
//! of words, and so is its answer.
//!
//! ```text
//! restore PATH\n   ─▶   ok REVISION SET REMOVED\n   or   error TEXT\n
//! ```

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use apiserver_meta::error_chain;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::AbortHandle;

use super::backup::{Restored, Snapshot};
use super::{Embedded, broken};
use crate::StoreError;
use crate::limits::{CONTROL_LINE_BYTES, CONTROL_LINE_WAIT};

/// Name of the socket.
const SOCKET: &str = "control.sock";

/// An open control socket, which is removed when dropped.
pub struct Control {
    path: PathBuf,
    task: AbortHandle,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        // A stale socket does no harm: the next start replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Embedded {
    /// Listens in the store's directory, which this store must have open.
    pub fn listen(&self, directory: &Path) -> io::Result<Control> {
        let path = directory.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let open = std::fs::File::open(directory)?;
        let listener = UnixListener::bind(through(&open))?;
        let store = self.clone();
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => answer(&store, stream).await,
                    // Possibly out of file descriptors; retry later.
                    Err(error) => {
                        tracing::warn!(%error, "the store's control socket fails");
                        tokio::time::sleep(CONTROL_LINE_WAIT).await;
                    }
                }
            }
        });
        Ok(Control { path, task: task.abort_handle() })
    }
}

/// Returns a short path to the socket through the open directory, since socket addresses are limited in
/// length.
fn through(directory: &std::fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}

async fn answer(store: &Embedded, mut stream: UnixStream) {
    let reply = match ask(&mut stream).await {
        Ok(line) => carry_out(store, &line).await,
        Err(error) => Err(format!("the request cannot be read: {error}")),
    };
    let line = match reply {
        Ok(Restored { revision, set, removed }) => format!("ok {revision} {set} {removed}\n"),
        Err(text) => format!("error {}\n", text.replace('\n', " ")),
    };
    if let Err(error) = stream.write_all(line.as_bytes()).await {
        tracing::warn!(%error, "client of the store's control socket disconnected");
    }
}

async fn ask(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = String::new();
    let mut lines = BufReader::new(stream.take(CONTROL_LINE_BYTES));
    // Other clients wait for their turn.
    tokio::time::timeout(CONTROL_LINE_WAIT, lines.read_line(&mut line)).await??;
    line.pop().filter(|end| *end == '\n').map(|_| line).ok_or_else(|| ErrorKind::InvalidData.into())
}

async fn carry_out(store: &Embedded, line: &str) -> Result<Restored, String> {
    let Some(path) = line.strip_prefix("restore ") else {
        return Err(format!("unknown request {line:?}"));
    };
    let path = PathBuf::from(path);
    tracing::warn!(path = %path.display(), "the store is restored from a snapshot");
    let read = tokio::task::spawn_blocking(move || Snapshot::read(&path));
    let snapshot = read.await.map_err(|error| error.to_string())?.map_err(|error| error_chain(&error))?;
    store.restore(snapshot).await.map_err(|error| error_chain(&error))
}

/// Connects to the store that has `directory` open in any process; `None` if none is listening.
async fn connect(directory: &Path) -> Result<Option<UnixStream>, StoreError> {
    let name = directory.display().to_string();
    let open = match std::fs::File::open(directory) {
        Ok(open) => open,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(&name, "cannot be opened", Some(error))),
    };
    match UnixStream::connect(through(&open)).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(broken(&name, "has a control socket that cannot be connected to", Some(error))),
    }
}

/// Returns `true` if a store has `directory` open in any process and is listening.
pub async fn is_served(directory: &Path) -> Result<bool, StoreError> {
    Ok(connect(directory).await?.is_some())
}

/// Asks the store that has `directory` open in any process to restore the snapshot in file `from`; `None` if
/// none is listening.
pub async fn restore_running(directory: &Path, from: &Path) -> Result<Option<Restored>, StoreError> {
    let cannot = |why: String, cause| StoreError::Broken {
        attempted: format!("restore {} into the running store", from.display()),
        why,
        cause,
    };
    let Some(mut stream) = connect(directory).await? else { return Ok(None) };
    let from_text = from
        .to_str()
        .filter(|text| !text.contains('\n') && text.len() < CONTROL_LINE_BYTES as usize - 16)
        .ok_or_else(|| cannot("the file's name cannot be passed on".to_owned(), None))?;
    let lost = |error| cannot("the store did not answer".to_owned(), Some(error));
    stream.write_all(format!("restore {from_text}\n").as_bytes()).await.map_err(lost)?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.map_err(lost)?;
    let reply = reply.trim_end();
    match reply.strip_prefix("ok ").and_then(restored) {
        Some(restored) => Ok(Some(restored)),
        None => match reply.strip_prefix("error ") {
            Some(text) => Err(cannot(text.to_owned(), None)),
            None => Err(cannot("the store ended before it answered".to_owned(), None)),
        },
    }
}

fn restored(numbers: &str) -> Option<Restored> {
    let mut numbers = numbers.split(' ').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(Restored { revision: next()?.try_into().ok()?, set: next()?, removed: next()? })
}
