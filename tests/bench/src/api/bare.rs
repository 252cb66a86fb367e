//! Lower bounds without a network: durable writes, and copies of memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apiserver_store::{Op, Store, Write, Written};
use bytes::{BufMut, Bytes, BytesMut};
use tokio::task::JoinSet;

use super::client::Turn;

/// Size of the log, which like the store's is overwritten from its beginning.
const LOG: u64 = 64 << 20;
/// Size of a chunk of a list in bytes.
const PIECE: usize = 64 * 1024;

/// Measures groups of as many writes of `bytes` bytes as there are clients, each followed by fdatasync(2): no
/// server that waits for the disk can exceed this.
pub fn durable_writes(directory: &Path, clients: usize, bytes: usize, length: Duration) -> Result<Turn> {
    let path = directory.join("bare-log");
    let file = File::options().create(true).write(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("cannot make {}", path.display()))?;
    if file.metadata().context("cannot look at the log")?.len() < LOG {
        // Written once, so that later writes do not grow the file.
        for at in (0..LOG).step_by(1 << 20) {
            file.write_all_at(&vec![0; 1 << 20], at).context("cannot fill the log")?;
        }
        file.sync_all().context("cannot sync the log")?;
    }
    let group = vec![b'x'; clients * bytes];
    let (start, mut at, mut times) = (Instant::now(), 0, Vec::new());
    while start.elapsed() < length {
        let began = Instant::now();
        if at + group.len() as u64 > LOG {
            at = 0;
        }
        file.write_all_at(&group, at).context("cannot write")?;
        file.sync_data().context("cannot sync")?;
        at += group.len() as u64;
        times.resize(times.len() + clients, began.elapsed().as_secs_f64());
    }
    Ok(Turn::of(&times, start.elapsed()))
}

/// Measures the creation of keys in a store without a server, by several clients.
pub async fn puts(
    store: &Arc<dyn Store>,
    clients: usize,
    bytes: usize,
    length: Duration,
    next: &Arc<AtomicU64>,
) -> Result<Turn> {
    let value = Bytes::from(vec![b'x'; bytes]);
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..clients {
        let (store, next, value) = (Arc::clone(store), Arc::clone(next), value.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < length {
                let key = format!("/bare/configmaps/bare/cm-{:08}", next.fetch_add(1, Ordering::Relaxed));
                let (began, op) = (Instant::now(), Op::Put { value: value.clone(), ttl_seconds: 0 });
                let written = store.write(Write { key, expected: 0, op }).await.context("cannot write")?;
                anyhow::ensure!(matches!(written, Written::Done { .. }), "a key was there already");
                times.push(began.elapsed().as_secs_f64());
            }
            Ok(times)
        });
    }
    joined(tasks, start).await
}

/// Measures reads of one key from a store without a server.
pub async fn gets(store: &Arc<dyn Store>, clients: usize, key: &str, length: Duration) -> Result<Turn> {
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..clients {
        let (store, key) = (Arc::clone(store), key.to_owned());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < length {
                let began = Instant::now();
                store.get(&key).await.context("cannot read")?.kv.context("the key is not there")?;
                times.push(began.elapsed().as_secs_f64());
            }
            Ok(times)
        });
    }
    joined(tasks, start).await
}

async fn joined(mut tasks: JoinSet<Result<Vec<f64>>>, start: Instant) -> Result<Turn> {
    let mut times = Vec::new();
    while let Some(of_client) = tasks.join_next().await {
        times.extend(of_client.context("a client panicked")??);
    }
    Ok(Turn::of(&times, start.elapsed()))
}

/// Copies all objects into chunks, as a list must, and drops each chunk; returns the number of bytes.
pub fn copies(objects: &[Bytes]) -> usize {
    let (mut all, mut piece) = (0, BytesMut::with_capacity(PIECE));
    for object in objects {
        if piece.len() + object.len() > PIECE {
            all += std::hint::black_box(piece.freeze()).len();
            piece = BytesMut::with_capacity(PIECE);
        }
        piece.put_slice(object);
    }
    all + std::hint::black_box(piece).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_reads_copy_everything_and_writes_are_counted() {
        let objects = vec![Bytes::from(vec![1; 40_000]); 5];
        assert_eq!(copies(&objects), 200_000);
        assert_eq!(copies(&[]), 0);
        let directory = tempfile::tempdir().unwrap();
        let turn = durable_writes(directory.path(), 4, 100, Duration::from_millis(20)).unwrap();
        assert!(turn.count.is_multiple_of(4) && turn.count > 0 && turn.per_second > 0.0);
    }
}
