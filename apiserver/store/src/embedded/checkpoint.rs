//! Checkpoints: a file with the whole state at the compaction point, which makes the log before it obsolete.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::record::{push_length, read_revision, read_u32, read_u64};
use crate::disk::{Disk, DiskFile};
use crate::limits::CHECKPOINT_REVISION;
use crate::{KeyValue, Revision};

const MAGIC: &[u8; 8] = b"HAWSERCP";
/// Size of the header: magic, revision, checksum, padding.
const HEADER: usize = 24;
/// Size of a chunk's header: length and checksum.
const CHUNK_HEADER: usize = 8;
/// Size at which a chunk is written.
const CHUNK: usize = 1 << 20;
/// Size of an entry's header: create and mod revision, time to live, lengths of key and value.
const ENTRY_HEADER: usize = 28;

/// Facts about a checkpoint that was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointInfo {
    pub(super) revision: Revision,
    pub(super) bytes: u64,
    /// Number of entries.
    pub(super) keys: u64,
}

/// Returns the name of the checkpoint at a revision.
pub(super) fn name(revision: Revision) -> String {
    format!("checkpoint-{revision:016x}")
}

/// Returns the revision in the name of a checkpoint file.
pub(super) fn revision_of(name: &str) -> Option<Revision> {
    Revision::from_str_radix(name.strip_prefix("checkpoint-")?, 16).ok()
}

/// Writes the state at the compaction point; `ttl` returns the remaining seconds of a key.
pub(super) fn write(
    disk: &dyn Disk,
    index: &Index,
    ttl: &dyn Fn(&KeyValue, u32) -> u32,
) -> io::Result<CheckpointInfo> {
    let left = |(kv, seconds): (KeyValue, u32)| {
        let seconds = if seconds == 0 { 0 } else { ttl(&kv, seconds) };
        (kv, seconds)
    };
    let entries = &mut index.at_compaction().map(left);
    write_state(disk, &name(index.compacted), index.compacted, entries)
}

/// Writes a state, ordered by key, to the file with this name: completely or not at all.
pub(super) fn write_state(
    disk: &dyn Disk,
    name: &str,
    revision: Revision,
    entries: &mut dyn Iterator<Item = (KeyValue, u32)>,
) -> io::Result<CheckpointInfo> {
    let temporary = format!("{name}.tmp");
    let (bytes, keys) = match write_file(disk, &temporary, revision, entries) {
        Ok(written) => written,
        Err(error) => {
            // If this fails, the next start removes the file.
            let _ = disk.remove(&temporary);
            return Err(error);
        }
    };
    disk.rename(&temporary, name)?;
    disk.sync_directory()?;
    Ok(CheckpointInfo { revision, bytes, keys })
}

/// Writes the file; returns its size and number of entries.
fn write_file(
    disk: &dyn Disk,
    temporary: &str,
    revision: Revision,
    entries: &mut dyn Iterator<Item = (KeyValue, u32)>,
) -> io::Result<(u64, u64)> {
    let mut file = disk.open(temporary)?;
    file.truncate(0)?;
    file.write_at(0, &header(revision))?;
    let mut writer = Chunks { file, offset: HEADER as u64, chunk: Vec::with_capacity(CHUNK + CHUNK / 2) };
    let mut count = 0u64;
    for (kv, ttl_seconds) in entries {
        writer.push(&kv, ttl_seconds)?;
        count += 1;
    }
    Ok((writer.finish(count)?, count))
}

fn header(revision: Revision) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&revision.to_le_bytes());
    let checksum = crc32fast::hash(&header[..16]);
    header[16..20].copy_from_slice(&checksum.to_le_bytes());
    header
}

struct Chunks {
    file: Box<dyn DiskFile>,
    offset: u64,
    chunk: Vec<u8>,
}

impl Chunks {
    fn push(&mut self, kv: &KeyValue, ttl_seconds: u32) -> io::Result<()> {
        if self.chunk.is_empty() {
            self.chunk.resize(CHUNK_HEADER, 0);
        }
        self.chunk.extend_from_slice(&kv.create_revision.to_le_bytes());
        self.chunk.extend_from_slice(&kv.mod_revision.to_le_bytes());
        self.chunk.extend_from_slice(&ttl_seconds.to_le_bytes());
        push_length(&mut self.chunk, kv.key.len());
        push_length(&mut self.chunk, kv.value.len());
        self.chunk.extend_from_slice(kv.key.as_bytes());
        self.chunk.extend_from_slice(&kv.value);
        if self.chunk.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let mut length = Vec::with_capacity(4);
        push_length(&mut length, self.chunk.len() - CHUNK_HEADER);
        self.chunk[..4].copy_from_slice(&length);
        let checksum = crc32fast::hash(&self.chunk[CHUNK_HEADER..]);
        self.chunk[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.file.write_at(self.offset, &self.chunk)?;
        self.offset += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the last chunk, which holds only the number of entries.
    fn finish(mut self, count: u64) -> io::Result<u64> {
        self.flush()?;
        self.chunk.resize(CHUNK_HEADER, 0);
        self.chunk.extend_from_slice(&count.to_le_bytes());
        self.flush()?;
        self.file.sync()?;
        Ok(self.offset)
    }
}

/// Size of the parts in which a checkpoint is read.
const PART: usize = 4 << 20;

/// Returns the parts of a checkpoint; the last one is not full.
pub(super) fn parts(disk: &dyn Disk, name: &str) -> impl Iterator<Item = io::Result<Vec<u8>>> + Send {
    let mut offset = Some(0);
    std::iter::from_fn(move || {
        let part = disk.read_part(name, offset?, PART);
        let full = part.as_ref().is_ok_and(|part| part.len() == PART);
        offset = offset.filter(|_| full).map(|at| at + PART as u64);
        Some(part)
    })
}

/// Reads the state from the bytes of a checkpoint; the error is the offset at which they are damaged.
pub(super) fn read(bytes: Vec<u8>) -> Result<Index, usize> {
    let mut reader = Reader::default();
    reader.add(bytes)?;
    reader.finish().map(|(index, _)| index)
}

/// Reads a checkpoint in parts. Errors are the offset at which it is damaged.
#[derive(Default)]
pub(super) struct Reader {
    index: Option<Index>,
    /// Number of entries so far.
    count: u64,
    /// True once the final chunk has been read.
    ended: bool,
    /// Bytes from `at` on that do not form a complete chunk yet.
    rest: Vec<u8>,
    /// Offset of `rest` in the file.
    at: usize,
    /// Last key so far.
    key: Option<Arc<str>>,
}

impl Reader {
    /// Processes the next bytes.
    pub(super) fn add(&mut self, part: Vec<u8>) -> Result<(), usize> {
        if self.rest.is_empty() {
            self.rest = part;
        } else {
            self.rest.extend_from_slice(&part);
        }
        let bytes = std::mem::take(&mut self.rest);
        let mut done = 0;
        if self.index.is_none() && bytes.len() >= HEADER {
            self.index = Some(Index::at_checkpoint(read_header(&bytes).ok_or(0usize)?));
            done = HEADER;
        }
        while let Some(index) = &mut self.index
            && let Some(length) = whole_chunk(&bytes[done..])
        {
            let place = self.at + done;
            let payload = read_chunk(&bytes, done).filter(|_| !self.ended).ok_or(place)?;
            if payload.len() == 8 {
                self.ended = read_u64(payload, 0) == Some(self.count);
                if !self.ended {
                    return Err(place);
                }
            } else {
                self.count += read_entries(index, payload, &mut self.key).ok_or(place)?;
            }
            done += length;
        }
        self.at += done;
        self.rest = bytes;
        self.rest.drain(..done);
        Ok(())
    }

    /// Returns the state after the last bytes, and the size of the file.
    pub(super) fn finish(self) -> Result<(Index, u64), usize> {
        let index = self.index.ok_or(0usize)?;
        if self.ended && self.rest.is_empty() { Ok((index, self.at as u64)) } else { Err(self.at) }
    }
}

/// Returns the size of the chunk at the beginning of `bytes`, if it is complete.
fn whole_chunk(bytes: &[u8]) -> Option<usize> {
    let length = (read_u32(bytes, 0)? as usize).checked_add(CHUNK_HEADER)?;
    (bytes.len() >= length).then_some(length)
}

fn read_header(bytes: &[u8]) -> Option<Revision> {
    let header = bytes.get(..HEADER)?;
    let intact = &header[..8] == MAGIC && crc32fast::hash(&header[..16]) == read_u32(header, 16)?;
    if !intact {
        return None;
    }
    read_revision(header, 8).filter(|revision| *revision <= CHECKPOINT_REVISION)
}

fn read_chunk(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let length = read_u32(bytes, at)? as usize;
    let start = at + CHUNK_HEADER;
    let payload = bytes.get(start..start.checked_add(length)?)?;
    (crc32fast::hash(payload) == read_u32(bytes, at + 4)?).then_some(payload)
}

/// Adds the entries of a chunk to the index; returns how many there are. A chunk with a correct checksum is
/// still damaged if its content is impossible: keys out of order or invalid revisions.
fn read_entries(index: &mut Index, payload: &[u8], last: &mut Option<Arc<str>>) -> Option<u64> {
    let (mut at, mut count) = (0, 0);
    while at < payload.len() {
        let versions = (read_revision(payload, at)?, read_revision(payload, at + 8)?);
        let ttl_seconds = read_u32(payload, at + 16)?;
        let (key_length, value_length) =
            (read_u32(payload, at + 20)? as usize, read_u32(payload, at + 24)? as usize);
        let key_start = at + ENTRY_HEADER;
        let value_start = key_start.checked_add(key_length)?;
        let end = value_start.checked_add(value_length)?;
        let key = std::str::from_utf8(payload.get(key_start..value_start)?).ok()?;
        let value = payload.get(value_start..end)?;
        let (created, changed) = versions;
        let in_order = last.as_deref().is_none_or(|last| last < key);
        if !in_order || created < 1 || changed < created || index.revision < changed {
            return None;
        }
        let key = Arc::from(key);
        *last = Some(Arc::clone(&key));
        index.restore(key, Bytes::copy_from_slice(value), versions, ttl_seconds);
        at = end;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn in_parts(bytes: &[u8], size: usize) -> Result<(Index, u64), usize> {
        let mut reader = Reader::default();
        for part in bytes.chunks(size) {
            reader.add(part.to_vec())?;
        }
        reader.finish()
    }

    /// Returns a checkpoint at revision 7 with valid checksums and with these keys, create and mod revisions.
    fn checkpoint(revision: Revision, entries: &[(&str, Revision, Revision)]) -> Vec<u8> {
        let disk = SimDisk::new(1);
        let entries = entries.iter().map(|(key, create_revision, mod_revision)| {
            let (create_revision, mod_revision) = (*create_revision, *mod_revision);
            let value = Bytes::from_static(b"v");
            (KeyValue { key: (*key).into(), value, create_revision, mod_revision }, 0)
        });
        write_state(&disk, "c", revision, &mut entries.into_iter()).unwrap();
        disk.read("c").unwrap()
    }

    #[test]
    fn impossible_content_with_valid_checksums_is_damage() {
        let live = |revision, entries: &[_]| read(checkpoint(revision, entries)).map(|index| index.live);
        assert_eq!(live(7, &[("a", 3, 5), ("b", 4, 4), ("c", 1, 7)]), Ok(3));
        for (what, entries) in [
            ("a key twice", [("a", 3, 5), ("a", 3, 6)]),
            ("keys out of order", [("b", 3, 5), ("a", 3, 6)]),
            ("changed before it was created", [("a", 3, 5), ("b", 5, 3)]),
            ("changed after the checkpoint", [("a", 3, 5), ("b", 3, 8)]),
            ("created at no revision", [("a", 0, 5), ("b", 3, 6)]),
        ] {
            assert_eq!(live(7, &entries), Err(HEADER), "{what}");
        }
        assert_eq!(live(CHECKPOINT_REVISION, &[]), Ok(0));
        assert_eq!(live(CHECKPOINT_REVISION + 1, &[]), Err(0), "no revision is left for writes");
    }

    #[test]
    fn part_size_affects_neither_content_nor_damage_offset() {
        let mut index = Index::new();
        for i in 0..40_usize {
            index.put(&format!("/k/{i:02}"), vec![b'v'; 60_000 + i].into(), 0);
        }
        let disk = SimDisk::new(1);
        let taken = write_state(&disk, "c", index.revision, &mut index.at_present()).unwrap();
        let whole: Vec<u8> = parts(&disk, "c").flat_map(Result::unwrap).collect();
        assert_eq!(whole.len() as u64, taken.bytes);
        // Several chunks, and a part that ends in the middle of a header.
        for size in [1_000, 1 << 20, CHUNK + 40_003, PART] {
            let (read, bytes) = in_parts(&whole, size).unwrap();
            assert_eq!((read.live, read.revision, bytes), (40, index.revision, taken.bytes), "{size}");
            assert!(read.at_present().eq(index.at_present()), "{size}");
        }
        let mut flipped = whole.clone();
        flipped[CHUNK + CHUNK / 2] ^= 1;
        let damage = read(flipped.clone()).err();
        assert!(damage.is_some_and(|at| at > CHUNK));
        assert_eq!(in_parts(&flipped, 1_000).err(), damage);
        for end in [0, 5, HEADER, HEADER + 5, whole.len() - 1] {
            assert!(in_parts(&whole[..end], 1_000).is_err(), "{end}");
        }
        // Bytes after the end cannot belong to the checkpoint.
        let followed = [&whole[..], b"xx"].concat();
        assert_eq!(read(followed).err(), Some(whole.len()));
    }
}
