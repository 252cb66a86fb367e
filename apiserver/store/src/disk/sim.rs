//! An in-memory disk that loses what a real one may lose, repeatably from a seed.
//!
//! The model: a write goes to the cache; `sync` moves the file's dirty sectors to the medium. When the power
//! fails, each dirty sector has reached the medium or not, at random, one of them perhaps only in part, and
//! the same applies to every name change that has not been made durable by `sync_directory`. So writes may be
//! torn and reordered. After a failed sync the cache considers its sectors clean, as Linux does, so a later
//! successful sync says nothing about them. A write that fails, or finds the disk full, has written a part of
//! its bytes.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{DirectoryLock, Disk, DiskFile, LockError};

/// Size of an atomic write in bytes.
const SECTOR: usize = 512;

/// Faults to inject. Operations are counted from 1 over the life of the disk: writes, syncs, allocations,
/// truncations, renames, removals and creations.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Operation during which the power fails. All later ones fail until `restart`.
    pub crash_at: Option<u64>,
    /// Operation that fails, once, with an I/O error; a write is carried out in part.
    pub fail_at: Option<u64>,
    /// Sync (counted separately, from 1) that fails, as on a dying disk.
    pub fail_sync: Option<u64>,
    /// Capacity of the disk in bytes.
    pub capacity: Option<u64>,
    /// Name of a file that cannot be read.
    pub unreadable: Option<String>,
}

/// Outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FaultOutcome {
    Done,
    /// The operation affects the cache, and the power fails.
    PowerFails,
    /// The operation fails, or is carried out in part.
    Fails,
}

/// The simulated disk. Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    sync_time: Duration,
}

struct State {
    /// Names as processes see them.
    names: BTreeMap<String, u64>,
    /// Names on the medium.
    durable_names: BTreeMap<String, u64>,
    /// Changes of names since the directory was last synced.
    pending_names: Vec<NameChange>,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    /// Incremented at each restart; handles of earlier lives fail.
    life: u64,
    crashed: bool,
    /// Number of the current lock; 0 if there is none.
    lock: u64,
    next_lock: u64,
    operations: u64,
    syncs: u64,
    faults: Faults,
    random: u64,
    /// Additional duration of the next sync, in virtual time.
    pause: Duration,
}

#[derive(Clone)]
enum NameChange {
    Made { name: String, file: u64 },
    Moved { from: String, to: String, file: u64 },
    Gone { name: String },
}

#[derive(Default)]
struct Content {
    /// Content that processes read, without trailing zeros up to `size`.
    now: Vec<u8>,
    size: u64,
    /// Content of the medium.
    durable: Vec<u8>,
    durable_size: u64,
    /// Sectors of `now` that have not been synced.
    dirty: BTreeSet<usize>,
}

impl Content {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
        self.size = self.size.max(end as u64);
        self.dirty.extend(offset / SECTOR..end.div_ceil(SECTOR));
    }

    fn truncate(&mut self, size: u64) {
        let kept = usize::try_from(size).unwrap_or(usize::MAX);
        if kept < self.now.len() {
            let end = self.now.len();
            self.now.truncate(kept);
            self.dirty.extend(kept / SECTOR..end.div_ceil(SECTOR));
        }
        self.size = size;
    }

    /// Moves the first `bytes` bytes of a sector to the medium.
    fn flush_sector(&mut self, sector: usize, bytes: usize) {
        let start = sector * SECTOR;
        for at in start..start + bytes {
            let byte = self.now.get(at).copied().unwrap_or(0);
            match self.durable.get_mut(at) {
                Some(old) => *old = byte,
                None if byte == 0 => {}
                None => {
                    self.durable.resize(at, 0);
                    self.durable.push(byte);
                }
            }
        }
    }

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.flush_sector(sector, SECTOR);
        }
        self.durable_size = self.size;
        self.durable.truncate(usize::try_from(self.size).unwrap_or(usize::MAX));
    }

    fn power_loss(&mut self, random: &mut u64) {
        // Sometimes all or nothing is written, mostly a part.
        let manner = next(random) % 4;
        for sector in std::mem::take(&mut self.dirty) {
            let arrives = match manner {
                0 => false,
                1 => true,
                _ => next(random).is_multiple_of(2),
            };
            if arrives {
                self.flush_sector(sector, SECTOR);
            } else if manner == 3 && next(random).is_multiple_of(4) {
                self.flush_sector(sector, (next(random) % SECTOR as u64) as usize);
            }
        }
        if self.size != self.durable_size && next(random).is_multiple_of(2) {
            self.durable_size = self.size;
        }
        self.durable.truncate(usize::try_from(self.durable_size).unwrap_or(usize::MAX));
        self.now.clone_from(&self.durable);
        self.size = self.durable_size;
    }
}

/// Returns the next random number of a sequence (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl SimDisk {
    /// Creates an empty disk; the seed decides what survives a power failure.
    pub fn new(seed: u64) -> Self {
        let state = State {
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            files: BTreeMap::new(),
            next_file: 1,
            life: 1,
            crashed: false,
            lock: 0,
            next_lock: 1,
            operations: 0,
            syncs: 0,
            faults: Faults::default(),
            random: seed,
            pause: Duration::ZERO,
        };
        Self { state: Arc::new(Mutex::new(state)), sync_time: Duration::ZERO }
    }

    /// Sets the duration of a sync, in virtual time.
    #[must_use]
    pub fn with_sync_time(mut self, sync_time: Duration) -> Self {
        self.sync_time = sync_time;
        self
    }

    /// Sets the faults to inject from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Returns the number of operations so far, as counted by `Faults::crash_at`.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Returns the number of file syncs so far, as counted by `Faults::fail_sync`.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Delays the next sync in virtual time, like a disk that hangs for a while.
    pub fn pause(&self, time: Duration) {
        self.state().pause = time;
    }

    /// Cuts the power: every operation fails until `restart`.
    pub fn crash(&self) {
        self.state().crashed = true;
    }

    /// Returns `true` if the power is off.
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Restores power after a failure: what was not synced is lost, wholly or in part. Earlier handles and
    /// locks are invalid.
    pub fn restart(&self) {
        let mut state = self.state();
        let state = &mut *state;
        for change in std::mem::take(&mut state.pending_names) {
            if next(&mut state.random).is_multiple_of(2) {
                change.apply(&mut state.durable_names);
            }
        }
        for content in state.files.values_mut() {
            content.power_loss(&mut state.random);
        }
        state.names.clone_from(&state.durable_names);
        state.begin_life();
    }

    /// Simulates that the process was killed while the machine keeps running: nothing is lost, but earlier
    /// handles and locks are invalid.
    pub fn kill_process(&self) {
        self.state().begin_life();
    }

    /// Flips one bit of a file on the medium and in the cache.
    pub fn corrupt(&self, name: &str, offset: usize) {
        let mut state = self.state();
        let Some(&file) = state.names.get(name) else { return };
        if let Some(content) = state.files.get_mut(&file) {
            for bytes in [&mut content.now, &mut content.durable] {
                if let Some(byte) = bytes.get_mut(offset) {
                    *byte ^= 1;
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No method panics in the middle of a change, so a poisoned state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Made { name, file } => {
                names.insert(name, file);
            }
            Self::Moved { from, to, file } => {
                names.remove(&from);
                names.insert(to, file);
            }
            Self::Gone { name } => {
                names.remove(&name);
            }
        }
    }
}

impl State {
    fn begin_life(&mut self) {
        self.life += 1;
        self.crashed = false;
        self.lock = 0;
        self.faults.crash_at = None;
        self.faults.fail_at = None;
        self.faults.fail_sync = None;
        self.pause = Duration::ZERO;
        let (names, durable) = (&self.names, &self.durable_names);
        self.files.retain(|file, _| names.values().chain(durable.values()).any(|named| named == file));
    }

    /// Counts an operation and returns its outcome.
    fn step(&mut self) -> io::Result<FaultOutcome> {
        self.alive()?;
        self.operations += 1;
        if self.faults.crash_at.is_some_and(|at| self.operations >= at) {
            self.crashed = true;
            return Ok(FaultOutcome::PowerFails);
        }
        Ok(if self.faults.fail_at == Some(self.operations) {
            FaultOutcome::Fails
        } else {
            FaultOutcome::Done
        })
    }

    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(power_lost()) } else { Ok(()) }
    }

    fn used(&self) -> u64 {
        self.names.values().filter_map(|file| self.files.get(file)).map(|content| content.size).sum()
    }

    /// Returns the size, at most `size`, to which a file may grow.
    fn room(&self, file: u64, size: u64) -> u64 {
        let Some(capacity) = self.faults.capacity else { return size };
        let old = self.files.get(&file).map_or(0, |content| content.size);
        if size <= old { size } else { size.min(old + capacity.saturating_sub(self.used())) }
    }

    fn file(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn change_names(&mut self, change: NameChange) -> io::Result<()> {
        let outcome = self.step()?;
        if outcome == FaultOutcome::Fails {
            return Err(failed());
        }
        change.clone().apply(&mut self.names);
        self.pending_names.push(change);
        outcome.result()
    }
}

impl FaultOutcome {
    fn result(self) -> io::Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::PowerFails => Err(power_lost()),
            Self::Fails => Err(failed()),
        }
    }
}

fn failed() -> io::Error {
    io::Error::other("the simulated disk failed")
}

fn power_lost() -> io::Error {
    io::Error::other("the simulated power is off")
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.alive()?;
        let file = match state.names.get(name) {
            Some(&file) => file,
            None => {
                let file = state.next_file;
                state.next_file += 1;
                state.files.insert(file, Content::default());
                state.change_names(NameChange::Made { name: name.to_owned(), file })?;
                file
            }
        };
        Ok(Box::new(SimFile { state: Arc::clone(&self.state), file, life: state.life }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        state.alive()?;
        if state.faults.unreadable.as_deref() == Some(name) {
            return Err(failed());
        }
        let content = &state.files[&state.file(name)?];
        let mut bytes = content.now.clone();
        bytes.resize(usize::try_from(content.size).map_err(|_| ErrorKind::FileTooLarge)?, 0);
        Ok(bytes)
    }

    fn read_part(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.read(name)?;
        let start = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?.min(bytes.len());
        bytes.drain(..start);
        bytes.truncate(length);
        Ok(bytes)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        state.alive()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        let file = state.file(from)?;
        state.change_names(NameChange::Moved { from: from.to_owned(), to: to.to_owned(), file })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.file(name)?;
        state.change_names(NameChange::Gone { name: name.to_owned() })
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        state.step()?.result()?;
        let state = &mut *state;
        for change in state.pending_names.drain(..) {
            change.apply(&mut state.durable_names);
        }
        Ok(())
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        let file = state.file(name)?;
        state.step()?.result()?;
        content(&mut state, file)?.sync();
        Ok(())
    }

    fn lock(&self) -> Result<DirectoryLock, LockError> {
        let mut state = self.state();
        state.alive().map_err(LockError::Io)?;
        if state.lock != 0 {
            return Err(LockError::InUse { holder: None });
        }
        state.lock = state.next_lock;
        state.next_lock += 1;
        Ok(Box::new(SimLock { state: Arc::clone(&self.state), number: state.lock })
            as Box<dyn Any + Send + Sync>)
    }

    fn blocks(&self) -> bool {
        false
    }

    fn sync_time(&self) -> Duration {
        self.sync_time + std::mem::take(&mut self.state().pause)
    }

    fn describe(&self) -> String {
        "the simulated disk".to_owned()
    }
}

struct SimLock {
    state: Arc<Mutex<State>>,
    number: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lock == self.number {
            state.lock = 0;
        }
    }
}

struct SimFile {
    state: Arc<Mutex<State>>,
    file: u64,
    life: u64,
}

impl SimFile {
    /// Runs an operation on the content, unless it must fail without effect. `act` is called with the file's
    /// number and the outcome.
    fn step(&self, act: impl FnOnce(&mut State, u64, FaultOutcome) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.life != self.life {
            return Err(power_lost());
        }
        let outcome = state.step()?;
        act(&mut state, self.file, outcome)?;
        outcome.result()
    }
}

/// Returns the content of an open file; fails if it has been removed.
fn content(state: &mut State, file: u64) -> io::Result<&mut Content> {
    state.files.get_mut(&file).ok_or_else(|| ErrorKind::NotFound.into())
}

impl DiskFile for SimFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(|state, file, outcome| {
            let end = offset + bytes.len() as u64;
            let fits = state.room(file, end).max(offset) - offset;
            let mut taken = usize::try_from(fits).map_err(|_| ErrorKind::FileTooLarge)?;
            if outcome == FaultOutcome::Fails {
                taken = taken.min((next(&mut state.random) % (bytes.len() as u64 + 1)) as usize);
            }
            let offset = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
            if taken > 0 {
                content(state, file)?.write(offset, &bytes[..taken]);
            }
            if outcome != FaultOutcome::Fails && taken < bytes.len() {
                return Err(ErrorKind::StorageFull.into());
            }
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.step(|state, file, outcome| {
            state.syncs += 1;
            let fails = outcome == FaultOutcome::Fails || state.faults.fail_sync == Some(state.syncs);
            let content = content(state, file)?;
            if fails {
                content.dirty.clear();
                return Err(failed());
            }
            if outcome == FaultOutcome::Done {
                content.sync();
            }
            Ok(())
        })
    }

    fn allocate(&mut self, size: u64) -> io::Result<()> {
        self.step(|state, file, outcome| {
            if outcome == FaultOutcome::Fails {
                return Ok(());
            }
            if state.room(file, size) < size {
                return Err(ErrorKind::StorageFull.into());
            }
            let content = content(state, file)?;
            content.size = content.size.max(size);
            Ok(())
        })
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.step(|state, file, outcome| {
            if outcome != FaultOutcome::Fails {
                content(state, file)?.truncate(size);
            }
            Ok(())
        })
    }
}
