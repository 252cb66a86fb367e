//! Support for the end-to-end tests: a node and another host as network namespaces, a cluster on the node,
//! kubectl, constant load, and snapshots of the machine before and after.
#![allow(clippy::print_stdout, reason = "a test tells what it counted")]

pub mod bed;
pub mod cluster;
pub mod control_nodes;
pub mod etcd;
pub mod image;
pub mod lab;
pub mod load;
pub mod nodes;
pub mod process;
pub mod snapshot;

pub use bed::Bed;
pub use cluster::Cluster;
pub use lab::Lab;
pub use load::{Counts, Load};
pub use nodes::Nodes;
pub use process::Process;
pub use snapshot::Snapshot;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap_or_default()
}

/// Returns the directory where cargo put this test and `hawser`.
pub fn build_dir() -> Result<PathBuf> {
    let test = std::env::current_exe().context("cannot find the test's own program")?;
    // TARGET/debug/deps/TEST
    let dir = test.parent().and_then(|deps| deps.parent()).context("the test is not in a build directory")?;
    Ok(dir.to_path_buf())
}

/// Returns the product under test: the program in `HAWSER`, else the one built beside the test.
pub fn hawser() -> Result<PathBuf> {
    match std::env::var_os("HAWSER") {
        Some(path) => existing(path.into()),
        None => existing(build_dir()?.join("hawser")),
    }
}

/// Returns the static test workload, which is run on the host as a client.
pub fn echo() -> Result<PathBuf> {
    existing(target_dir()?.join("x86_64-unknown-linux-gnu/release/echo"))
}

/// Returns the workload's image archive: the one in `HAWSER_ECHO_IMAGE`, else the one built last.
pub fn echo_image() -> Result<PathBuf> {
    match std::env::var_os("HAWSER_ECHO_IMAGE") {
        Some(path) => existing(path.into()),
        None => existing(target_dir()?.join("images/echo.tar")),
    }
}

fn target_dir() -> Result<PathBuf> {
    Ok(build_dir()?.parent().context("no target directory")?.to_path_buf())
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    if !path.exists() {
        bail!("{} is missing: run the test through `cargo xtask test`", path.display());
    }
    Ok(path)
}

/// Runs a command and returns its standard output; an exit code other than 0 is an error that contains its
/// standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let text = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {text}"))?;
    if !output.status.success() {
        bail!(
            "{text} ended with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Attempts at a command of kubectl that lost what the server sent.
const LOST_STREAMS: usize = 5;

/// Runs a command of kubectl like [`output`]. `kubectl exec` drops what arrives before it has made its streams, which happens
/// on a busy machine if the program in the container is quick; then it is run again.
pub fn kubectl(command: &mut Command) -> Result<String> {
    let mut result = output(command);
    for _ in 1..LOST_STREAMS {
        match &result {
            Err(error) if error.to_string().contains("Unknown stream id") => result = output(command),
            _ => break,
        }
    }
    result
}

/// Polls until the answer is `Some`. The limit only ends a test that hangs; tests do not judge how long
/// something takes.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let mut last = None;
    while start.elapsed() < Duration::from_secs(120) {
        match ask() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => last = None,
            Err(error) => last = Some(error),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("gave up waiting: {what}")),
        None => bail!("gave up waiting: {what}"),
    }
}
