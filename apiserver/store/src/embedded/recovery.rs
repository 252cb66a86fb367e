//! Restores the state in memory from the files of a directory.
//!
//! A group of records is valid as a whole or not at all. A power failure may tear the group that was being
//! written, which is the last one of the last segment and was not acknowledged. Any other damage affects
//! acknowledged writes, so the store refuses to start rather than lose them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::log::{self, Log, SEGMENT_HEADER, Segment};
use super::prefetch::prefetch;
use super::record::{self, Body, Decoded, Record};
use super::{Options, checkpoint};
use crate::disk::Disk;
use crate::{Revision, StoreError};

/// Name of the file that contains the version of the directory's layout.
pub(super) const FORMAT: &str = "FORMAT";
/// Content of that file.
pub(super) const FORMAT_LINE: &str = "hawser-store 1\n";

/// Content of a directory that is ready for writing.
pub(super) struct Recovered {
    pub(super) index: Index,
    pub(super) log: Log,
    /// Revision of the newest checkpoint; 0 if there is none.
    pub(super) checkpoint: Revision,
    /// Size of the newest checkpoint in bytes.
    pub(super) checkpoint_bytes: u64,
}

/// Content of a directory, as far as it can be determined by reading alone.
pub(super) struct Found {
    pub(super) index: Index,
    /// Revision of the newest checkpoint; 0 if there is none.
    pub(super) checkpoint: Revision,
    /// Size of the newest checkpoint in bytes.
    pub(super) checkpoint_bytes: u64,
    /// Names of older checkpoints that a crash has left behind.
    stale: Vec<String>,
    /// Segments with at least one record.
    complete: VecDeque<Segment>,
    /// Number of the last complete group.
    group: u64,
    /// Sequence number for the next segment.
    sequence: u64,
    /// End of the last segment, if its header is valid.
    pub(super) tail: Option<Tail>,
}

/// The end of the log.
pub(super) struct Tail {
    pub(super) name: String,
    /// Offset at which the complete groups end.
    pub(super) end: usize,
    /// Bytes of the last complete group.
    group: Vec<u8>,
}

/// Reads everything and prepares the directory for writing.
pub(super) fn recover(disk: &Arc<dyn Disk>, options: &Options) -> Result<Recovered, StoreError> {
    let place = disk.describe();
    let failed = |what: &'static str| {
        let place = place.clone();
        move |cause: io::Error| broken(&place, what, Some(cause))
    };
    make_format(disk.as_ref(), &place)?;
    let names = disk.list().map_err(failed("cannot list the files"))?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        disk.remove(name).map_err(failed("cannot remove an unfinished file"))?;
    }
    let found = read(disk.as_ref())?;
    for name in &found.stale {
        disk.remove(name).map_err(failed("cannot remove an old checkpoint"))?;
    }
    if let Some(tail) = &found.tail {
        rewrite_tail(disk.as_ref(), tail).map_err(|error| {
            broken(&place, format!("cannot rewrite the end of {}", tail.name), Some(error))
        })?;
    }
    let Found { mut index, checkpoint, checkpoint_bytes, complete, group, sequence, .. } = found;
    index.pack();
    let position = (sequence, group + 1);
    let log = Log::begin(Arc::clone(disk), options.segment_bytes, complete, position, index.revision)
        .map_err(failed("cannot create a segment of the log"))?;
    Ok(Recovered { index, log, checkpoint, checkpoint_bytes })
}

/// Reads everything without changing the directory.
pub(super) fn read(disk: &dyn Disk) -> Result<Found, StoreError> {
    let place = disk.describe();
    check_format(disk, &place)?;
    let names = disk.list().map_err(|error| broken(&place, "cannot list the files", Some(error)))?;
    let (index, checkpoint_bytes, stale) = read_checkpoint(disk, &names, &place)?;
    let checkpoint = index.compacted;
    let mut replay = Replay {
        place: &place,
        index,
        checkpoint,
        started: false,
        group: 0,
        left: 0,
        group_start: 0,
        whole: 0..0,
    };
    let sequences: Vec<u64> = names.iter().filter_map(|name| log::sequence_of(name)).collect();
    let (complete, tail) = replay_segments(disk, &sequences, &mut replay)?;
    // A last segment without records is created again under its own name.
    let used = complete.back().map_or(0, |segment| segment.sequence);
    let sequence = (used + 1).max(sequences.last().copied().unwrap_or(1));
    let (group, index) = (replay.group, replay.index);
    Ok(Found { index, checkpoint, checkpoint_bytes, stale, complete, group, sequence, tail })
}

fn broken(place: &str, why: impl Into<String>, cause: Option<io::Error>) -> StoreError {
    StoreError::Broken { attempted: format!("open the store in {place}"), why: why.into(), cause }
}

/// Refuses a directory that is not a store or has another format.
pub(super) fn check_format(disk: &dyn Disk, place: &str) -> Result<(), StoreError> {
    match disk.read(FORMAT) {
        Ok(found) if found == FORMAT_LINE.as_bytes() => Ok(()),
        Ok(found) => {
            let found = String::from_utf8_lossy(&found);
            let why =
                format!("it has the format {:?}, this program needs {:?}", found.trim(), FORMAT_LINE.trim());
            Err(broken(place, why, None))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let names = disk.list().map_err(|error| broken(place, "cannot list the files", Some(error)))?;
            let why = match names.iter().find(|name| !name.ends_with(".tmp")) {
                Some(name) => format!("it holds {name} but no file {FORMAT}: not a store"),
                None => format!("it has no file {FORMAT}: not a store"),
            };
            Err(broken(place, why, None))
        }
        Err(error) => Err(broken(place, "cannot read the format file", Some(error))),
    }
}

/// Like `check_format`, but initializes an empty directory.
pub(super) fn make_format(disk: &dyn Disk, place: &str) -> Result<(), StoreError> {
    let names = disk.list().map_err(|error| broken(place, "cannot list the files", Some(error)))?;
    if names.iter().all(|name| name.ends_with(".tmp")) {
        return write_format(disk)
            .map_err(|error| broken(place, "cannot write the format file", Some(error)));
    }
    check_format(disk, place)
}

fn write_format(disk: &dyn Disk) -> io::Result<()> {
    let temporary = "FORMAT.tmp";
    let mut file = disk.open(temporary)?;
    file.truncate(0)?;
    file.write_at(0, FORMAT_LINE.as_bytes())?;
    file.sync()?;
    disk.rename(temporary, FORMAT)?;
    disk.sync_directory()
}

/// Returns the newest checkpoint, its size, and the names of older ones.
fn read_checkpoint(
    disk: &dyn Disk,
    names: &[String],
    place: &str,
) -> Result<(Index, u64, Vec<String>), StoreError> {
    let mut revisions: Vec<Revision> =
        names.iter().filter_map(|name| checkpoint::revision_of(name)).collect();
    revisions.sort_unstable();
    let Some(newest) = revisions.pop() else { return Ok((Index::new(), 0, Vec::new())) };
    let name = checkpoint::name(newest);
    let unread = |error| broken(place, format!("cannot read {name}"), Some(error));
    let damaged = |offset| broken(place, format!("{name} is damaged at byte {offset}"), None);
    let (index, bytes) = std::thread::scope(|scope| {
        let mut reader = checkpoint::Reader::default();
        for part in prefetch(scope, disk.blocks(), checkpoint::parts(disk, &name)).map_err(unread)? {
            reader.add(part.map_err(unread)?).map_err(damaged)?;
        }
        reader.finish().map_err(damaged)
    })?;
    let stale = revisions.into_iter().map(checkpoint::name).collect();
    Ok((index, bytes, stale))
}

fn replay_segments(
    disk: &dyn Disk,
    sequences: &[u64],
    replay: &mut Replay<'_>,
) -> Result<(VecDeque<Segment>, Option<Tail>), StoreError> {
    let failed = |error| broken(replay.place, "cannot start a thread that reads the log", Some(error));
    let contents = sequences.iter().map(|sequence| disk.read(&log::name(*sequence)));
    std::thread::scope(|scope| {
        let contents = prefetch(scope, disk.blocks(), contents).map_err(failed)?;
        replay_contents(contents, sequences, replay)
    })
}

fn replay_contents(
    mut contents: impl Iterator<Item = io::Result<Vec<u8>>>,
    sequences: &[u64],
    replay: &mut Replay<'_>,
) -> Result<(VecDeque<Segment>, Option<Tail>), StoreError> {
    let place = replay.place;
    let mut read = |sequence: u64| {
        let content = contents.next().unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()));
        let name = log::name(sequence);
        content.map_err(|error| broken(place, format!("cannot read {name}"), Some(error)))
    };
    let (mut complete, mut tail) = (VecDeque::new(), None);
    let mut expected = 1;
    let mut next_bytes = sequences.first().map(|first| read(*first)).transpose()?;
    for (position, &sequence) in sequences.iter().enumerate() {
        let name = log::name(sequence);
        if sequence != expected && (replay.index.revision > replay.checkpoint || replay.checkpoint == 0) {
            return Err(replay.damaged(&log::name(expected), "is missing"));
        }
        expected = sequence + 1;
        let Some(bytes) = next_bytes.take() else { break };
        // The header of the next segment tells whether a torn group at the end was discarded.
        if let Some(&next) = sequences.get(position + 1) {
            let bytes = read(next)?;
            // If the disk was full when the very last segment was created, this one was continued.
            let counts = position + 2 < sequences.len() || is_made(&bytes, next);
            next_bytes = counts.then_some(bytes);
        }
        let after = match &next_bytes {
            None => After::Nothing,
            Some(next) => After::Group(log::read_segment_header(next).map(|(_, group)| group)),
        };
        let Some(end) = replay.segment(&name, sequence, &bytes, after)? else { break };
        if after == After::Nothing {
            tail = Some(Tail { name, end, group: bytes[replay.whole.clone()].to_vec() });
        }
        if end > SEGMENT_HEADER {
            let last_revision = replay.index.revision;
            complete.push_back(Segment { sequence, last_revision, bytes: end as u64 });
        }
    }
    Ok((complete, tail))
}

/// Returns `true` if the creation of a segment was completed, so that it may contain records.
pub(super) fn is_made(bytes: &[u8], sequence: u64) -> bool {
    log::read_segment_header(bytes).is_some_and(|(own, _)| own == sequence)
        || record::behind(bytes, 0, sequence).next().is_some()
}

/// Makes the end of the log durable. Its last group may only be in the cache, which after a failed sync
/// considers it clean, so the group is written once more.
fn rewrite_tail(disk: &dyn Disk, tail: &Tail) -> io::Result<()> {
    let mut file = disk.open(&tail.name)?;
    file.truncate(tail.end as u64)?;
    if !tail.group.is_empty() {
        file.write_at((tail.end - tail.group.len()) as u64, &tail.group)?;
    }
    file.sync()
}

/// Successor of a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Nothing,
    /// Another segment, with the number of its first group if its header is valid.
    Group(Option<u64>),
}

/// State of a replay.
struct Replay<'a> {
    place: &'a str,
    index: Index,
    /// Revision of the checkpoint at which the replay began.
    checkpoint: Revision,
    /// True once a segment has been read.
    started: bool,
    /// Group of the last record.
    group: u64,
    /// Number of records that are still missing in this group.
    left: u32,
    /// Offset at which the group begins in the segment.
    group_start: usize,
    /// Range of the last complete group in the segment.
    whole: std::ops::Range<usize>,
}

impl Replay<'_> {
    fn damaged(&self, name: &str, why: impl std::fmt::Display) -> StoreError {
        broken(
            self.place,
            format!("{name} {why}; restore a backup or remove the directory to start anew"),
            None,
        )
    }

    /// Replays one segment and returns where its groups end; `None` for a last segment that was not
    /// completely created.
    fn segment(
        &mut self,
        name: &str,
        sequence: u64,
        bytes: &[u8],
        after: After,
    ) -> Result<Option<usize>, StoreError> {
        let last = after == After::Nothing;
        let first_group = match log::read_segment_header(bytes) {
            Some((own, group)) if own == sequence => group,
            _ if last && !is_made(bytes, sequence) => return Ok(None),
            _ => return Err(self.damaged(name, "has a damaged header")),
        };
        let behind_checkpoint = self.index.revision == self.checkpoint;
        if self.started && first_group != self.group + 1 && !behind_checkpoint {
            return Err(
                self.damaged(name, format!("begins with group {first_group} after group {}", self.group))
            );
        }
        (self.started, self.group, self.left) = (true, first_group - 1, 0);
        (self.group_start, self.whole) = (SEGMENT_HEADER, SEGMENT_HEADER..SEGMENT_HEADER);
        let mut group = Vec::new();
        let mut at = SEGMENT_HEADER;
        loop {
            match record::decode(bytes, at, sequence) {
                Decoded::Record(record, taken) => {
                    self.in_order(name, at, &record)?;
                    group.push((at, record));
                    at += taken;
                    if self.left == 0 {
                        self.apply(name, group.drain(..))?;
                        self.whole = self.group_start..at;
                    }
                }
                Decoded::Nothing | Decoded::Damaged if last => {
                    self.check_torn(name, sequence, bytes, at)?;
                    break;
                }
                Decoded::Nothing if record::behind(bytes, at, sequence).next().is_none() => break,
                Decoded::Nothing | Decoded::Damaged => {
                    return Err(self.damaged(name, format!("is damaged at byte {at}")));
                }
            }
        }
        if self.left == 0 {
            return Ok(Some(at));
        }
        // An incomplete group was discarded: it was not acknowledged. Early versions kept its valid records
        // and counted it.
        self.left = 0;
        if after == After::Group(Some(self.group + 1)) {
            self.apply(name, group.drain(..))?;
            self.whole = self.group_start..at;
            return Ok(Some(at));
        }
        self.group -= 1;
        Ok(Some(self.group_start))
    }

    /// Checks the position of a record in its group.
    fn in_order(&mut self, name: &str, at: usize, record: &Record<'_>) -> Result<(), StoreError> {
        let in_order = if self.left > 0 {
            record.group == self.group && record.left == self.left - 1
        } else {
            record.group == self.group + 1
        };
        if !in_order {
            return Err(self.damaged(name, format!("has a record out of order at byte {at}")));
        }
        if self.left == 0 {
            self.group_start = at;
        }
        (self.group, self.left) = (record.group, record.left);
        Ok(())
    }

    fn apply<'r>(
        &mut self,
        name: &str,
        group: impl Iterator<Item = (usize, Record<'r>)>,
    ) -> Result<(), StoreError> {
        for (at, record) in group {
            self.record(name, at, &record)?;
        }
        Ok(())
    }

    fn record(&mut self, name: &str, at: usize, record: &Record<'_>) -> Result<(), StoreError> {
        match record.body {
            Body::Compact { revision } => {
                if revision > self.index.compacted && revision <= self.index.revision {
                    self.index.compact(revision);
                    self.index.scrub(usize::MAX);
                }
                Ok(())
            }
            Body::Put { revision, .. } | Body::Delete { revision, .. } if revision <= self.checkpoint => {
                Ok(())
            }
            Body::Put { revision, .. } | Body::Delete { revision, .. }
                if revision != self.index.revision + 1 =>
            {
                let why = format!("has revision {revision} after {} at byte {at}", self.index.revision);
                Err(self.damaged(name, why))
            }
            Body::Put { key, value, ttl_seconds, .. } => {
                self.index.put(key, Bytes::copy_from_slice(value), ttl_seconds);
                Ok(())
            }
            Body::Delete { key, .. } => match self.index.delete(key) {
                Some(_) => Ok(()),
                None => Err(self.damaged(name, format!("deletes a key that is not there, at byte {at}"))),
            },
        }
    }

    /// Checks that only the group that was being written follows the last valid record. A record of a later
    /// group proves that the damaged bytes had been synced.
    fn check_torn(&self, name: &str, sequence: u64, bytes: &[u8], end: usize) -> Result<(), StoreError> {
        let torn = if self.left > 0 { self.group } else { self.group + 1 };
        if record::behind(bytes, end, sequence).any(|(_, record)| record.group > torn) {
            return Err(
                self.damaged(name, format!("is damaged at byte {end}, with acknowledged writes behind it"))
            );
        }
        Ok(())
    }
}
