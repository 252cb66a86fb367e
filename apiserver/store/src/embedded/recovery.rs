//! From the files of a directory back to the state in memory.
//!
//! A loss of power may tear the group that was being written, which is the last one of the last
//! segment; nothing of it was acknowledged. Anything else that is damaged was acknowledged, and
//! then the store refuses to start rather than to forget.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::log::{self, Log, SEGMENT_HEADER, Segment};
use super::record::{self, Body, Decoded, Record};
use super::{Options, checkpoint};
use crate::disk::Disk;
use crate::{Revision, StoreError};

/// Name of the file that says which version of the layout the directory has.
const FORMAT: &str = "FORMAT";
/// What is in it.
const FORMAT_LINE: &str = "hawser-store 1\n";

/// What a directory held.
pub(super) struct Recovered {
    pub(super) index: Index,
    pub(super) log: Log,
    /// Revision of the newest checkpoint; 0 for none.
    pub(super) checkpoint: Revision,
    /// Its size in bytes.
    pub(super) checkpoint_bytes: u64,
}

/// Reads everything and makes the directory ready for writing.
pub(super) fn recover(disk: &Arc<dyn Disk>, options: &Options) -> Result<Recovered, StoreError> {
    let place = disk.describe();
    let failed = |what: &'static str| {
        let place = place.clone();
        move |cause: io::Error| broken(&place, what, Some(cause))
    };
    check_format(disk.as_ref(), &place)?;
    let names = disk.list().map_err(failed("cannot list the files"))?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        disk.remove(name).map_err(failed("cannot remove an unfinished file"))?;
    }
    let (index, checkpoint_bytes) = read_checkpoint(disk.as_ref(), &names, &place)?;
    let checkpoint = index.compacted;
    let mut replay =
        Replay { place: &place, index, checkpoint, started: false, group: 0, left: 0, group_start: 0 };
    let sequences: Vec<u64> = names.iter().filter_map(|name| log::sequence_of(name)).collect();
    let complete = replay_segments(disk.as_ref(), &sequences, &mut replay)?;
    // A last segment without a record is made anew under its own name.
    let used = complete.back().map_or(0, |segment| segment.sequence);
    let sequence = (used + 1).max(sequences.last().copied().unwrap_or(1));
    let (group, index) = (replay.group + 1, replay.index);
    let log =
        Log::begin(Arc::clone(disk), options.segment_bytes, complete, (sequence, group), index.revision)
            .map_err(failed("cannot begin a segment of the log"))?;
    Ok(Recovered { index, log, checkpoint, checkpoint_bytes })
}

fn broken(place: &str, why: impl Into<String>, cause: Option<io::Error>) -> StoreError {
    StoreError::Broken { attempted: format!("open the store in {place}"), why: why.into(), cause }
}

fn check_format(disk: &dyn Disk, place: &str) -> Result<(), StoreError> {
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
            if let Some(name) = names.iter().find(|name| !name.ends_with(".tmp")) {
                return Err(broken(
                    place,
                    format!("it holds {name} but no file {FORMAT}: not a store"),
                    None,
                ));
            }
            write_format(disk).map_err(|error| broken(place, "cannot write the format file", Some(error)))
        }
        Err(error) => Err(broken(place, "cannot read the format file", Some(error))),
    }
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

/// The newest checkpoint; older ones, which a crash has left over, go.
fn read_checkpoint(disk: &dyn Disk, names: &[String], place: &str) -> Result<(Index, u64), StoreError> {
    let mut revisions: Vec<Revision> =
        names.iter().filter_map(|name| checkpoint::revision_of(name)).collect();
    revisions.sort_unstable();
    let Some(newest) = revisions.pop() else { return Ok((Index::new(), 0)) };
    let name = checkpoint::name(newest);
    let bytes =
        disk.read(&name).map_err(|error| broken(place, format!("cannot read {name}"), Some(error)))?;
    let index = checkpoint::read(&bytes)
        .map_err(|offset| broken(place, format!("{name} is damaged at byte {offset}"), None))?;
    for old in revisions {
        let name = checkpoint::name(old);
        disk.remove(&name).map_err(|error| broken(place, format!("cannot remove {name}"), Some(error)))?;
    }
    Ok((index, bytes.len() as u64))
}

fn replay_segments(
    disk: &dyn Disk,
    sequences: &[u64],
    replay: &mut Replay<'_>,
) -> Result<VecDeque<Segment>, StoreError> {
    let mut complete = VecDeque::new();
    let mut expected = 1;
    for (position, &sequence) in sequences.iter().enumerate() {
        let name = log::name(sequence);
        let last = position + 1 == sequences.len();
        if sequence != expected && (replay.index.revision > replay.checkpoint || replay.checkpoint == 0) {
            return Err(replay.damaged(&log::name(expected), "is missing"));
        }
        expected = sequence + 1;
        let bytes = disk
            .read(&name)
            .map_err(|error| broken(replay.place, format!("cannot read {name}"), Some(error)))?;
        let Some(end) = replay.segment(&name, sequence, &bytes, last)? else { break };
        if last {
            settle(disk, &name, &bytes[replay.group_start.min(end)..end], end).map_err(|error| {
                broken(replay.place, format!("cannot settle the end of {name}"), Some(error))
            })?;
        }
        if end > SEGMENT_HEADER {
            let last_revision = replay.index.revision;
            complete.push_back(Segment { sequence, last_revision, bytes: end as u64 });
        }
    }
    Ok(complete)
}

/// Makes the end of the log durable and clean. Its last group may be in the cache only, and if a
/// sync of it failed, the cache believes it clean; so it is written once more.
fn settle(disk: &dyn Disk, name: &str, group: &[u8], end: usize) -> io::Result<()> {
    let mut file = disk.open(name)?;
    file.truncate(end as u64)?;
    if !group.is_empty() {
        file.write_at((end - group.len()) as u64, group)?;
    }
    file.sync()
}

/// The state of a replay.
struct Replay<'a> {
    place: &'a str,
    index: Index,
    /// Revision of the checkpoint that the replay began with.
    checkpoint: Revision,
    /// Whether a segment has been read.
    started: bool,
    /// Group of the last record.
    group: u64,
    /// Records that its group should still have.
    left: u32,
    /// Where the group begins in the segment.
    group_start: usize,
}

impl Replay<'_> {
    fn damaged(&self, name: &str, why: impl std::fmt::Display) -> StoreError {
        broken(
            self.place,
            format!("{name} {why}; restore a backup or remove the directory to start anew"),
            None,
        )
    }

    /// Replays one segment and answers where its records end; `None` for a last segment whose
    /// making was cut short.
    fn segment(
        &mut self,
        name: &str,
        sequence: u64,
        bytes: &[u8],
        last: bool,
    ) -> Result<Option<usize>, StoreError> {
        let first_group = match log::read_segment_header(bytes) {
            Some((own, group)) if own == sequence => group,
            _ if last && record::behind(bytes, 0, sequence).next().is_none() => return Ok(None),
            _ => return Err(self.damaged(name, "has a damaged header")),
        };
        let behind_checkpoint = self.index.revision == self.checkpoint;
        if self.started && first_group != self.group + 1 && !behind_checkpoint {
            return Err(
                self.damaged(name, format!("begins with group {first_group} after group {}", self.group))
            );
        }
        // A group that a crash tore ends with its segment.
        (self.started, self.group, self.left) = (true, first_group - 1, 0);
        self.group_start = SEGMENT_HEADER;
        let mut at = SEGMENT_HEADER;
        loop {
            match record::decode(bytes, at, sequence) {
                Decoded::Record(record, taken) => {
                    self.record(name, at, &record)?;
                    at += taken;
                }
                Decoded::Nothing | Decoded::Damaged if last => {
                    self.check_torn(name, sequence, bytes, at)?;
                    return Ok(Some(at));
                }
                Decoded::Nothing if record::behind(bytes, at, sequence).next().is_none() => {
                    return Ok(Some(at));
                }
                Decoded::Nothing | Decoded::Damaged => {
                    return Err(self.damaged(name, format!("is damaged at byte {at}")));
                }
            }
        }
    }

    fn record(&mut self, name: &str, at: usize, record: &Record<'_>) -> Result<(), StoreError> {
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

    /// What follows the last whole record may only be the rest of the group that was being
    /// written. A record of a later group proves that what is damaged had been synced.
    fn check_torn(&self, name: &str, sequence: u64, bytes: &[u8], end: usize) -> Result<(), StoreError> {
        let torn = if self.left > 0 { self.group } else { self.group + 1 };
        if record::behind(bytes, end, sequence).any(|record| record.group > torn) {
            return Err(
                self.damaged(name, format!("is damaged at byte {end}, with acknowledged writes behind it"))
            );
        }
        Ok(())
    }
}
