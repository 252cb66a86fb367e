//! The write-ahead log: segments of records. A group of records is written and synced at once; the next group
//! begins only after that, which recovery relies on.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::record::{self, read_u32, read_u64};
use crate::Revision;
use crate::disk::{Disk, DiskFile};

const MAGIC: &[u8; 8] = b"HAWSERLG";

/// Size of the segment header: magic, sequence, first group, checksum, padding.
pub(super) const SEGMENT_HEADER: usize = 32;

/// Reason for which a group could not be appended.
#[derive(Debug)]
pub(super) enum AppendError {
    /// The disk is full. The log is unchanged, so a retry may succeed.
    Full(io::Error),
    /// The state of the disk is unknown.
    Fatal(io::Error),
}

/// A complete segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) sequence: u64,
    /// Newest revision in it or before it.
    pub(super) last_revision: Revision,
    pub(super) bytes: u64,
}

/// Returns the name of a segment.
pub(super) fn name(sequence: u64) -> String {
    format!("log-{sequence:016x}")
}

/// Returns the sequence number in the name of a segment file.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("log-")?, 16).ok()
}

/// Returns sequence number and first group from a segment's header, if it is valid.
pub(super) fn read_segment_header(bytes: &[u8]) -> Option<(u64, u64)> {
    let header = bytes.get(..SEGMENT_HEADER)?;
    let intact = &header[..8] == MAGIC && crc32fast::hash(&header[..24]) == read_u32(header, 24)?;
    if intact { Some((read_u64(header, 8)?, read_u64(header, 16)?)) } else { None }
}

fn segment_header(sequence: u64, group: u64) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..24].copy_from_slice(&group.to_le_bytes());
    let checksum = crc32fast::hash(&header[..24]);
    header[24..28].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The end of the log, open for writing.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    /// Size of new segments in bytes.
    segment_bytes: u64,
    /// Complete segments that are still needed, oldest first.
    complete: VecDeque<Segment>,
    sequence: u64,
    /// The open segment; `None` if the disk was full at the start, so that the first group creates it.
    file: Option<Box<dyn DiskFile>>,
    /// Offset of the next group.
    offset: u64,
    /// Allocated size of the open segment.
    allocated: u64,
    /// Number of the next group.
    group: u64,
    last_revision: Revision,
}

impl Log {
    /// Continues with a new segment after the complete ones; `place` is its sequence number and the number of
    /// its first group. On a full disk it is created later, since the data can be read nevertheless.
    pub(super) fn begin(
        disk: Arc<dyn Disk>,
        segment_bytes: u64,
        complete: VecDeque<Segment>,
        place: (u64, u64),
        last_revision: Revision,
    ) -> io::Result<Self> {
        let (sequence, group) = place;
        let file = match try_segment(disk.as_ref(), sequence, group, segment_bytes) {
            Ok(file) => Some(file),
            Err(AppendError::Full(error)) => {
                let place = disk.describe();
                tracing::error!(%error, place, "the disk is full, only reads are possible");
                None
            }
            Err(AppendError::Fatal(error)) => return Err(error),
        };
        let offset = SEGMENT_HEADER as u64;
        Ok(Self {
            disk,
            segment_bytes,
            complete,
            sequence,
            file,
            offset,
            allocated: segment_bytes,
            group,
            last_revision,
        })
    }

    /// Returns the number of the next group.
    pub(super) fn group(&self) -> u64 {
        self.group
    }

    /// Returns the size of all segments in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.complete.iter().map(|segment| segment.bytes).sum::<u64>() + self.offset
    }

    /// Returns the number of segments, including the open one.
    pub(super) fn segments(&self) -> usize {
        self.complete.len() + 1
    }

    /// Writes a group of records, which begin at offsets `starts`, and waits until it is durable.
    pub(super) fn append(
        &mut self,
        records: &mut [u8],
        starts: &[usize],
        last_revision: Revision,
    ) -> Result<(), AppendError> {
        let end = self.offset + records.len() as u64;
        if self.file.is_none() {
            let size = self.segment_bytes.max(end);
            self.file = Some(try_segment(self.disk.as_ref(), self.sequence, self.group, size)?);
            self.allocated = size;
        } else if end > self.allocated {
            self.rotate(records.len() as u64)?;
        }
        for (start, left) in starts.iter().rev().zip(0..) {
            record::seal(records, *start, left, self.sequence, self.offset + *start as u64);
        }
        let Some(file) = &mut self.file else {
            return Err(AppendError::Fatal(io::Error::other("no segment is open")));
        };
        if let Err(error) = file.write_at(self.offset, records) {
            return Err(self.undo_write(error));
        }
        file.sync().map_err(AppendError::Fatal)?;
        self.offset += records.len() as u64;
        self.group += 1;
        self.last_revision = last_revision;
        Ok(())
    }

    /// Removes the part of a group that was written before the disk was full. It must not remain after the
    /// end, even after a power failure, because another segment may follow.
    fn undo_write(&mut self, error: io::Error) -> AppendError {
        if !is_full(&error) {
            return AppendError::Fatal(error);
        }
        let Some(file) = &mut self.file else { return AppendError::Fatal(error) };
        match file.truncate(self.offset).and_then(|()| file.sync()) {
            Ok(()) => {
                self.allocated = self.offset;
                AppendError::Full(error)
            }
            Err(error) => AppendError::Fatal(error),
        }
    }

    fn rotate(&mut self, needed: u64) -> Result<(), AppendError> {
        let size = self.segment_bytes.max(SEGMENT_HEADER as u64 + needed);
        let sequence = self.sequence + 1;
        let file = try_segment(self.disk.as_ref(), sequence, self.group, size)?;
        // Only releases space: recovery accepts zeros at the end.
        let old = self.file.replace(file);
        if let Some(Err(error)) = old.map(|mut old| old.truncate(self.offset)) {
            tracing::warn!(%error, segment = name(self.sequence), "cannot release the unused space of a segment");
        }
        self.complete.push_back(Segment {
            sequence: self.sequence,
            last_revision: self.last_revision,
            bytes: self.offset,
        });
        self.sequence = sequence;
        self.offset = SEGMENT_HEADER as u64;
        self.allocated = size;
        Ok(())
    }

    /// Removes segments that contain nothing newer than a durable checkpoint.
    pub(super) fn forget(&mut self, revision: Revision) -> io::Result<()> {
        let mut removed = false;
        while let Some(segment) = self.complete.front().copied() {
            if segment.last_revision > revision {
                break;
            }
            self.disk.remove(&name(segment.sequence))?;
            self.complete.pop_front();
            removed = true;
        }
        if removed { self.disk.sync_directory() } else { Ok(()) }
    }

    /// Releases space that was reserved but not used.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.truncate(self.offset)?;
        file.sync()
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Creates a segment, or leaves nothing of it on a full disk.
fn try_segment(
    disk: &dyn Disk,
    sequence: u64,
    group: u64,
    size: u64,
) -> Result<Box<dyn DiskFile>, AppendError> {
    new_segment(disk, sequence, group, size).map_err(|error| {
        if is_full(&error) {
            // A remainder contains no records, so recovery ignores it.
            let _ = disk.remove(&name(sequence));
            AppendError::Full(error)
        } else {
            AppendError::Fatal(error)
        }
    })
}

/// Creates a segment and waits until it and its name are durable.
fn new_segment(disk: &dyn Disk, sequence: u64, group: u64, size: u64) -> io::Result<Box<dyn DiskFile>> {
    let mut file = disk.open(&name(sequence))?;
    file.truncate(0)?;
    file.allocate(size)?;
    file.write_at(0, &segment_header(sequence, group))?;
    file.sync()?;
    disk.sync_directory()?;
    Ok(file)
}
