//! Targets for the files of a data directory: the log of the embedded store, and snapshots.

use std::sync::Arc;

use apiserver_store::disk::{Disk, SimDisk};
use apiserver_store::embedded::{Embedded, Options, Snapshot, restore_directory};
use apiserver_store::limits::RESTORED_REVISION;
use apiserver_store::{Op, Range, Store, Write, Written};

use crate::choice;

/// Sizes of the headers of a log segment and of a record.
const SEGMENT: usize = 32;
const HEADER: usize = 28;

/// Input: records of a log, which get valid checksums as if an attacker had written them: for each a kind,
/// the number of records that follow in its group, a length, and that many bytes. A log that is accepted can
/// be read.
pub fn log(bytes: &[u8]) {
    let disk = Arc::new(SimDisk::new(1));
    let (segment, name) = (segment(bytes), "log-0000000000000001");
    let mut file = disk.open(name).expect("a new disk");
    file.write_at(0, &segment).expect("a new disk");
    drop(file);
    runtime().block_on(async {
        let Ok(store) = Embedded::open(disk, Options::default()).await else { return };
        let _ = store.list(Range::default()).await;
        let _ = store.get("/registry/a").await;
        let _ = store.close().await;
    });
}

fn segment(mut input: &[u8]) -> Vec<u8> {
    let sequence = 1_u64;
    let mut out = Vec::new();
    out.extend_from_slice(b"HAWSERLG");
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&1_u64.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&out[..24]).to_le_bytes());
    out.resize(SEGMENT, 0);
    let mut group = 1_u64;
    while let [kind, left, length, rest @ ..] = input {
        let payload = &rest[..rest.len().min(usize::from(*length))];
        input = &rest[payload.len()..];
        let at = out.len();
        out.extend_from_slice(&0x4c57_4148_u32.to_le_bytes());
        out.extend_from_slice(&u32::try_from(payload.len()).expect("a byte").to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&group.to_le_bytes());
        out.extend_from_slice(&u32::from(*left).to_le_bytes());
        out.extend_from_slice(&[kind % 8, 0, 0, 0]);
        out.extend_from_slice(payload);
        // Some records keep an invalid checksum.
        if *kind < 240 {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&sequence.to_le_bytes());
            hasher.update(&(at as u64).to_le_bytes());
            hasher.update(&out[at..at + 8]);
            hasher.update(&out[at + 12..at + HEADER + payload.len()]);
            let sum = hasher.finalize().to_le_bytes();
            out[at + 8..at + 12].copy_from_slice(&sum);
        }
        out.resize(out.len().next_multiple_of(4), 0);
        group += u64::from(*left == 0);
    }
    out
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Input: a byte that chooses the form, and a snapshot, either as it is or in parts that get valid checksums.
/// A snapshot that is accepted has the stated content, can be restored to a directory, and can be written to
/// there.
pub fn snapshot(bytes: &[u8]) {
    let (choice, rest) = choice(bytes);
    let file = if choice % 2 == 0 { rest.to_vec() } else { checkpoint(rest) };
    let Ok(snapshot) = Snapshot::from_bytes(file) else { return };
    let (revision, keys) = (snapshot.revision(), snapshot.keys());
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let restored = match restore_directory(&disk, snapshot, Some(1)) {
        Ok(restored) => restored,
        Err(error) => return assert!(revision >= RESTORED_REVISION, "an empty disk takes it: {error}"),
    };
    assert!(restored.revision > revision, "revisions never go back");
    assert_eq!(restored.set, keys);
    runtime().block_on(async {
        let store =
            Embedded::open(disk, Options::default()).await.expect("a store opens what it has written");
        let page = store.list(Range::default()).await.expect("it is open");
        // Keys that had expired when the store was opened may be gone.
        assert!(page.kvs.len() as u64 <= keys, "{} of {keys}", page.kvs.len());
        for kv in &page.kvs {
            assert!(0 < kv.create_revision && kv.create_revision <= kv.mod_revision, "{kv:?}");
            assert!(kv.mod_revision <= page.revision, "{kv:?}");
            let got = store.get(&kv.key).await.expect("it is open");
            assert_eq!(got.kv.as_ref(), Some(kv), "found in the list and not alone");
        }
        let put = Op::Put { value: b"x".as_slice().into(), ttl_seconds: 0 };
        let written = store.write(Write { key: "/new".to_owned(), expected: 0, op: put }).await;
        match written.expect("there is room") {
            Written::Done { revision } => assert!(revision > page.revision),
            Written::Conflict { current, .. } => assert!(current.is_some(), "there was no such key"),
        }
        let _ = store.close().await;
    });
}

/// Builds a snapshot of a revision (8 bytes) and chunks, each with its length (1 byte).
fn checkpoint(input: &[u8]) -> Vec<u8> {
    let (revision, mut input) = input.split_at(input.len().min(8));
    let mut out = b"HAWSERCP".to_vec();
    out.extend_from_slice(revision);
    out.resize(16, 0);
    out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
    out.resize(24, 0);
    while let [length, rest @ ..] = input {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        out.extend_from_slice(&u32::try_from(payload.len()).expect("a byte").to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
        out.extend_from_slice(payload);
    }
    out
}
