//! The lock of the directory of pins, held for as long as a process works on it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;
use tracing::info;
use userspace_dataplane::{LockError, RootLock};

use crate::limits;

/// Takes the lock, waiting for its holder to release it.
pub async fn take(bpf_root: &Path, timeout: Duration) -> Result<RootLock> {
    let deadline = Instant::now() + timeout;
    let mut said = false;
    loop {
        match RootLock::take(bpf_root) {
            Ok(lock) => return Ok(lock),
            Err(LockError::Held { holder, .. }) if Instant::now() < deadline => {
                if !std::mem::replace(&mut said, true) {
                    info!(
                        "{holder} works on {}: waiting for its end, {} s at most",
                        bpf_root.display(),
                        timeout.as_secs()
                    );
                }
                tokio::time::sleep(limits::LOCK_PAUSE).await;
            }
            Err(error) => return Err(error).context("only one proxy can use a directory of pins"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A BPF file system for one test.
    struct Mounted(tempfile::TempDir);

    impl Mounted {
        fn new() -> Self {
            let directory = tempfile::Builder::new().prefix("hawser-lock-").tempdir().unwrap();
            let mount = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(directory.path()).status();
            assert!(mount.unwrap().success());
            Self(directory)
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            // An error here shows again when the directory is removed.
            let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
        }
    }

    #[tokio::test(start_paused = true)]
    #[ignore = "needs root and eBPF: cargo xtask test"]
    async fn the_next_one_waits_a_while_and_then_says_what_to_do() {
        let mounted = Mounted::new();
        let root = mounted.0.path();
        let first = take(root, Duration::ZERO).await.unwrap();
        let start = Instant::now();
        let error = format!("{:#}", take(root, limits::LOCK_WAIT).await.unwrap_err());
        assert!(error.contains(&root.display().to_string()) && error.contains("stop it first"), "{error}");
        assert!(start.elapsed() >= limits::LOCK_WAIT, "{:?}", start.elapsed());
        let (second, ()) = tokio::join!(take(root, limits::LOCK_WAIT), async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(first);
        });
        second.unwrap();
    }
}
