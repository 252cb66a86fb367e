//! Verifies a directory without changing it: all checksums, the order of revisions and groups, the
//! consistency of checkpoint and log where they overlap, and the consistency of the resulting state. While
//! recovery stops at the first damage, this continues.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::backup::{self, Snapshot};
use super::index::Index;
use super::log::{self, SEGMENT_HEADER};
use super::record::{self, Body, Decoded, Record};
use super::{broken, checkpoint, recovery};
use crate::disk::{Disk, RealDisk};
use crate::limits::READ_TRIES;
use crate::{Revision, StoreError};

/// Delay before the directory of a running store is read again.
const PAUSE: Duration = Duration::from_millis(200);

const RESTORE: &str = "stop the server and restore a snapshot with `hawser store restore`; to look at the \
                       state before the damage, do so in a copy of the directory";

/// Advice about a damaged snapshot.
const ANOTHER: &str = "it cannot be restored: take another one with `hawser store snapshot`";

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file in the directory.
    pub file: String,
    /// Offset in the file.
    pub offset: Option<u64>,
    pub what: String,
    /// Advice on how to resolve it.
    pub advice: String,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Newest revision; 0 if the state cannot be read.
    pub revision: Revision,
    /// Compaction point.
    pub compacted: Revision,
    /// Number of existing keys.
    pub keys: u64,
    /// Revision of the newest checkpoint; 0 if there is none.
    pub checkpoint: Revision,
    /// Number of log segments.
    pub segments: u64,
    /// Number of valid records in the segments.
    pub records: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Harmless findings.
    pub notes: Vec<String>,
    pub problems: Vec<Problem>,
}

impl Report {
    fn problem(&mut self, file: &str, offset: Option<usize>, what: impl Into<String>) {
        let offset = offset.map(|offset| offset as u64);
        let (file, what) = (file.to_owned(), what.into());
        self.problems.push(Problem { file, offset, what, advice: RESTORE.to_owned() });
    }
}

/// Verifies a directory, which may be open in a running store. Fails if it could not be checked: it does not
/// exist, cannot be read, or is not a store.
pub async fn verify_directory(directory: &Path) -> Result<Report, StoreError> {
    let disk = backup::open_existing(directory)?;
    let mut tries = 1;
    loop {
        let own = disk.clone();
        let inspected = tokio::task::spawn_blocking(move || inspect(&own)).await.map_err(|error| {
            broken(&disk.describe(), "verification was interrupted", Some(std::io::Error::other(error)))
        })?;
        let done = inspected.as_ref().is_ok_and(|report| report.problems.is_empty());
        if done || tries == READ_TRIES {
            return inspected;
        }
        // A record that a running store is writing is complete a moment later; damage stays.
        tries += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Verifies a snapshot. Fails if the file could not be read.
pub fn verify_snapshot(path: &Path) -> Result<Report, StoreError> {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let snapshot = match Snapshot::inspect(path)? {
        Ok(snapshot) => snapshot,
        Err(offset) => {
            let what = if offset == 0 {
                "it is not a snapshot, or its header is damaged"
            } else {
                "a checksum is wrong, it is cut short, or something follows its end"
            };
            let (file, what) = (path.display().to_string(), what.to_owned());
            let problem = Problem { file, offset: Some(offset as u64), what, advice: ANOTHER.to_owned() };
            return Ok(Report { bytes, problems: vec![problem], ..Report::default() });
        }
    };
    let (revision, keys) = (snapshot.revision(), snapshot.keys());
    let mut report =
        Report { revision, compacted: revision, keys, checkpoint: revision, bytes, ..Report::default() };
    let name = path.display().to_string();
    for what in snapshot.into_index().contradictions() {
        report.problem(&name, None, what);
    }
    Ok(report)
}

/// Returns the newest revision in any file of a directory, regardless of damage.
pub(super) fn newest_revision_seen(disk: &dyn Disk, names: &[String]) -> Revision {
    let mut newest = 0;
    for name in names {
        newest = newest.max(checkpoint::revision_of(name).unwrap_or(0));
        let Some(sequence) = log::sequence_of(name) else { continue };
        let Ok(bytes) = disk.read(name) else { continue };
        for (_, record) in record::behind(&bytes, 0, sequence) {
            newest = newest.max(revision_of(&record.body));
        }
    }
    newest
}

fn revision_of(body: &Body<'_>) -> Revision {
    match *body {
        Body::Put { revision, .. } | Body::Delete { revision, .. } | Body::Compact { revision } => revision,
    }
}

fn inspect(disk: &RealDisk) -> Result<Report, StoreError> {
    let place = disk.describe();
    recovery::check_format(disk, &place)?;
    let names = disk.list().map_err(|error| broken(&place, "cannot list the files", Some(error)))?;
    let mut report = Report::default();
    let state = inspect_checkpoints(disk, &names, &mut report);
    let covered = state.as_ref().map_or(0, |state| state.revision);
    let logged = inspect_log(disk, &names, covered, &mut report);
    if report.problems.is_empty()
        && let Some(state) = &state
        && logged.newest >= state.revision
    {
        compare(state, &logged, &mut report);
    }
    match recovery::read(disk) {
        Ok(found) => {
            (report.revision, report.compacted) = (found.index.revision, found.index.compacted);
            report.keys = found.index.live;
            for what in found.index.contradictions() {
                report.problem("the state", None, what);
            }
        }
        // The problem is already listed, unless it concerns missing files.
        Err(StoreError::Broken { why, .. }) if report.problems.is_empty() => {
            let name = why.split(' ').next().unwrap_or_default().to_owned();
            report.problem(&name, None, why);
        }
        Err(_) => {}
    }
    Ok(report)
}

/// Returns the state of the newest checkpoint, if there is one and it is valid.
fn inspect_checkpoints(disk: &RealDisk, names: &[String], report: &mut Report) -> Option<Index> {
    let newest = names.iter().filter_map(|name| checkpoint::revision_of(name)).max();
    let mut state = None;
    for name in names {
        let Some(revision) = checkpoint::revision_of(name) else {
            if name.ends_with(".tmp") {
                report.notes.push(format!("{name} is unfinished; the next start removes it"));
            } else if log::sequence_of(name).is_none() && name != recovery::FORMAT {
                report.notes.push(format!("{name} is not a file of a store"));
            }
            continue;
        };
        if Some(revision) != newest {
            report.notes.push(format!("{name} is older than the newest one; the next start removes it"));
            continue;
        }
        report.checkpoint = revision;
        match disk.read(name).map(|bytes| (bytes.len(), checkpoint::read(bytes))) {
            Ok((bytes, Ok(index))) => {
                report.bytes += bytes as u64;
                if index.revision != revision {
                    report.problem(name, Some(8), format!("it is of revision {}", index.revision));
                }
                state = Some(index);
            }
            Ok((_, Err(offset))) => {
                report.problem(name, Some(offset), "a checksum is wrong, or it is cut short")
            }
            Err(error) => report.problem(name, None, format!("it cannot be read: {error}")),
        }
    }
    state
}

/// Newest change of each key in the log up to some revision, with checksum and length of the value, or `None`
/// for a deletion.
#[derive(Default)]
struct Logged {
    newest: Revision,
    /// Newest change of each key at or before the checkpoint.
    before: BTreeMap<String, (Revision, Option<(u32, usize)>)>,
}

fn inspect_log(disk: &RealDisk, names: &[String], covered: Revision, report: &mut Report) -> Logged {
    let sequences: Vec<u64> = names.iter().filter_map(|name| log::sequence_of(name)).collect();
    let mut logged = Logged::default();
    for (position, &sequence) in sequences.iter().enumerate() {
        let name = log::name(sequence);
        report.segments += 1;
        match disk.read(&name) {
            Ok(bytes) => {
                report.bytes += bytes.len() as u64;
                let next = sequences.get(position + 1).copied();
                let last = next.is_none_or(|next| {
                    // A last segment that was not completely created does not count.
                    let unmade = |bytes: Vec<u8>| !recovery::is_made(&bytes, next);
                    position + 2 == sequences.len() && disk.read(&log::name(next)).is_ok_and(unmade)
                });
                let logged = &mut logged;
                let mut scan = Scan { name: &name, sequence, bytes: &bytes, last, covered, report, logged };
                scan.run();
            }
            Err(error) => report.problem(&name, None, format!("it cannot be read: {error}")),
        }
    }
    logged
}

/// State of the scan of one segment.
struct Scan<'a> {
    name: &'a str,
    sequence: u64,
    bytes: &'a [u8],
    last: bool,
    /// Revision of the checkpoint if it is valid, else 0: changes up to it need not be in the log.
    covered: Revision,
    report: &'a mut Report,
    logged: &'a mut Logged,
}

impl<'a> Scan<'a> {
    fn run(&mut self) {
        let bytes = self.bytes;
        if log::read_segment_header(bytes).is_none_or(|(own, _)| own != self.sequence) {
            if self.last && !recovery::is_made(bytes, self.sequence) {
                let note =
                    format!("the creation of {} was interrupted; the next start creates it again", self.name);
                self.report.notes.push(note);
                return;
            }
            self.report.problem(self.name, Some(0), "its header is damaged");
        }
        let (mut at, mut group, mut torn) = (SEGMENT_HEADER, Vec::new(), None);
        while at < bytes.len() {
            match record::decode(bytes, at, self.sequence) {
                Decoded::Record(record, taken) => {
                    self.report.records += 1;
                    group.push(record);
                    at += taken;
                    torn = if record.left == 0 { None } else { Some(record.group) };
                    if torn.is_none() {
                        group.drain(..).for_each(|record| self.note(&record));
                    }
                }
                _ => match self.behind(at, torn.or(group.last().map(|r: &Record<'_>| r.group))) {
                    Some(next) => {
                        group.clear();
                        at = next;
                    }
                    None => break,
                },
            }
        }
    }

    /// Reports bytes that are not a valid record; returns where to continue, if possible.
    fn behind(&mut self, at: usize, torn: Option<u64>) -> Option<usize> {
        let mut whole = record::behind(self.bytes, at, self.sequence);
        let blank = self.bytes[at..].iter().all(|byte| *byte == 0);
        let Some((next, first)) = whole.next() else {
            if !blank && self.last {
                let note = format!(
                    "{} ends at byte {at} with a group that a crash tore, or that is being written; nothing of it \
                     was acknowledged",
                    self.name
                );
                self.report.notes.push(note);
            } else if !blank {
                self.report.problem(self.name, Some(at), "it is damaged up to its end");
            }
            return None;
        };
        // Records of the group that was being written may be valid after one that is not.
        if self.last
            && whole.all(|(_, record)| record.group == first.group)
            && torn.is_none_or(|g| g == first.group)
        {
            let note =
                format!("{} ends at byte {at} with a torn group; nothing of it was acknowledged", self.name);
            self.report.notes.push(note);
            return None;
        }
        let what = format!("{} bytes are damaged; {}", next - at, self.loss(at));
        self.report.problem(self.name, Some(at), what);
        Some(next)
    }

    /// Returns what was lost in the damaged bytes from `at` on, before the next valid records.
    fn loss(&self, at: usize) -> String {
        let mut changes = record::behind(self.bytes, at, self.sequence).filter_map(|(_, record)| {
            let change = matches!(record.body, Body::Put { .. } | Body::Delete { .. });
            change.then(|| revision_of(&record.body))
        });
        match changes.next() {
            Some(next) if next <= self.covered.saturating_add(1) => format!(
                "nothing is lost of the state: the checkpoint of revision {} has what the writes before revision \
                 {next} that were in them led to",
                self.covered
            ),
            Some(next) => format!("the writes before revision {next} that were in them are lost"),
            None => "the writes that were in them are lost".to_owned(),
        }
    }

    fn note(&mut self, record: &Record<'_>) {
        let (key, revision, value) = match record.body {
            Body::Put { revision, key, value, .. } => {
                (key, revision, Some((crc32fast::hash(value), value.len())))
            }
            Body::Delete { revision, key } => (key, revision, None),
            Body::Compact { .. } => return,
        };
        self.logged.newest = self.logged.newest.max(revision);
        if revision <= self.report.checkpoint {
            self.logged.before.insert(key.to_owned(), (revision, value));
        }
    }
}

/// Compares checkpoint and log where the log still has the changes.
fn compare(state: &Index, logged: &Logged, report: &mut Report) {
    let name = checkpoint::name(state.revision);
    for (key, (revision, value)) in &logged.before {
        let revisions_kept = state.current(key);
        let found = revisions_kept.map(|change| {
            let value = change.value.as_deref().unwrap_or_default();
            (change.revision, (crc32fast::hash(value), value.len()))
        });
        let expected = value.map(|value| (*revision, value));
        if found != expected {
            let at =
                found.map_or_else(|| "nothing".to_owned(), |(revision, _)| format!("revision {revision}"));
            report.problem(&name, None, format!("it has revision {at} of {key}, the log has {revision}"));
        }
    }
}
