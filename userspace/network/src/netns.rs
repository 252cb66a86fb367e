//! Work in another network namespace. A namespace is a property of a thread, so a new thread enters it and
//! ends there.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

/// The other namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("cannot open the network namespace {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot enter the network namespace")]
    Enter(#[source] io::Error),
    #[error("cannot start a runtime in the network namespace")]
    Runtime(#[source] io::Error),
    #[error("the thread in the network namespace panicked")]
    Panicked,
}

/// Opens a namespace by its path (`/proc/PID/ns/net`, `/run/netns/NAME`).
pub fn open(path: &Path) -> Result<File, NetnsError> {
    File::open(path).map_err(|cause| NetnsError::Open { path: path.to_path_buf(), cause })
}

/// Runs `work` on a thread in the namespace and waits for it.
pub fn within<T, F>(namespace: impl AsFd + Send, work: F) -> Result<T, NetnsError>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    std::thread::scope(|scope| {
        #[expect(clippy::disallowed_methods, reason = "it enters a namespace, and is joined at once")]
        let thread = scope.spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| NetnsError::Enter(errno.into()))?;
            Ok(work())
        });
        thread.join().map_err(|_| NetnsError::Panicked)?
    })
}

/// Runs a future to its end on a small runtime of this thread, in its namespace.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, NetnsError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(NetnsError::Runtime)?;
    Ok(runtime.block_on(future))
}
