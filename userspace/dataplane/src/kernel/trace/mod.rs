//! `hawser proxy trace`: during a trace every link runs a copy of the programs that logs one flow.
//!
//! ```text
//!   ROOT/vN/trace            locked by the process that traces; the kernel unlocks it with the process
//!   ROOT/vN/trace/copy-NAME  programs of the copy
//!   ROOT/vN/trace/was-LINK   what a link ran before
//! ```
//!
//! The copy is the object that carries traffic, loaded over the same maps with other constants, so its
//! decisions are the same: its programs have the same tag, which is checked first. Programs are exchanged as
//! in a restart, link by link and without a gap. When the process that traces dies, its copies go on with the
//! same decisions; nobody reads their log, and when it is full further records are dropped. The proxy finds
//! the directory unlocked at its next check, within seconds, and restores its own programs. If no proxy runs,
//! the next one does so, or the next trace.

mod flow;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aya_log::EbpfLogger;

pub use self::flow::{TraceFlow, TraceFlowError};

use self::text::Names;
use super::attach::links::{self, Links};
use super::object::{self, Programs};
use super::version_directory;
use crate::filters::{Direction, Filter, Filters};
use crate::inspect::{InspectError, Inspector, LAYOUT_VERSION};
use crate::program::Program;
use crate::sys;
use crate::tables::DataPlaneError;

/// The name below the directory of a layout.
pub const DIRECTORY: &str = "trace";

/// An error of tracing a flow.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(transparent)]
    Tables(#[from] InspectError),
    #[error("nothing is attached under {}: is the proxy running?", .0.display())]
    NothingAttached(PathBuf),
    #[error("another process is tracing on this node; only one can at a time")]
    Busy,
    #[error(
        "{link} runs a program of another build than this one: trace with the binary that the proxy runs, as \
         programs of another build may decide otherwise"
    )]
    OtherBuild { link: String },
    #[error("loading the copy of the programs that logs")]
    Load(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{attempted}")]
    Kernel {
        attempted: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<DataPlaneError> for TraceError {
    fn from(error: DataPlaneError) -> Self {
        match error {
            DataPlaneError::Kernel { attempted, cause } => Self::Kernel { attempted, cause },
            other => Self::Kernel { attempted: "tracing".to_owned(), cause: Box::new(other) },
        }
    }
}

fn failed(attempted: String, cause: impl std::error::Error + Send + Sync + 'static) -> TraceError {
    TraceError::Kernel { attempted, cause: Box::new(cause) }
}

/// Records that were read from the kernel and not yet returned.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<String>>>);

impl Records {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl log::Log for Records {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// An active trace. It ends when dropped.
pub struct Trace {
    /// The directory of the layout.
    directory: PathBuf,
    copy: Programs,
    /// Ids of the programs of the copy.
    ids: BTreeSet<u32>,
    hooks: Hooks,
    logger: EbpfLogger<Records>,
    records: Records,
    names: Names,
    /// Locked as long as it is open.
    _lock: File,
}

impl Trace {
    /// Loads the copy and puts it in the place of the programs of the data plane under `bpf_root`. The
    /// filters of kernels without tcx are those of this thread's network namespace.
    ///
    /// # Errors
    /// Fails if there is no data plane, if it is another build's, or if somebody else traces.
    pub fn begin(bpf_root: &Path, flow: &TraceFlow) -> Result<Self, TraceError> {
        let inspector = Inspector::open(bpf_root)?;
        let directory = version_directory(bpf_root, LAYOUT_VERSION);
        let hooks = Hooks::new(bpf_root);
        if hooks.attached()?.is_empty() {
            return Err(TraceError::NothingAttached(bpf_root.to_path_buf()));
        }
        let Some(lock) = lock(&directory, true)? else {
            return Err(TraceError::Busy);
        };
        // A process that was killed may have left its copies running.
        put_back(&directory, &hooks, |_| None)?;
        let records = Records::default();
        let maps = directory.join("maps");
        let (copy, logger) = object::load_tracing(&maps, &flow.traced(), records.clone())
            .map_err(|error| TraceError::Load(Box::new(error)))?;
        let mut ids = BTreeSet::new();
        for (program, fd) in &copy {
            let id = sys::program_id(fd.as_fd())
                .map_err(|error| failed(format!("asking about {}", program.name()), error))?;
            ids.insert(id);
        }
        let names = Names::new(&inspector)?;
        let mut this = Self { directory, copy, ids, hooks, logger, records, names, _lock: lock };
        this.pin_copies()?;
        this.attach()?;
        Ok(this)
    }

    /// Puts the copy in the place of every other program: on links that are new since, and on those of a
    /// proxy that has restarted.
    ///
    /// # Errors
    /// Fails if the kernel refuses, or if a program is another build's.
    pub fn attach(&mut self) -> Result<(), TraceError> {
        for hook in self.hooks.attached()? {
            if self.ids.contains(&hook.id) {
                continue;
            }
            let Some(copy) = self.copy.get(&hook.program) else { continue };
            let attempted = || format!("opening the program of {}", hook.name);
            let original = match sys::program_by_id(hook.id) {
                Ok(original) => original,
                // The link has just been replaced.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(attempted(), error)),
            };
            let tag = |fd: &OwnedFd| sys::program_tag(fd.as_fd()).map_err(|error| failed(attempted(), error));
            if tag(&original)? != tag(copy)? {
                return Err(TraceError::OtherBuild { link: hook.name });
            }
            let pin = self.directory.join(DIRECTORY).join(format!("was-{}", hook.name));
            pinned(&original, &pin)?;
            self.hooks.put(&hook, copy.as_fd())?;
        }
        Ok(())
    }

    /// Returns what has been logged since the last call, a step per line.
    pub fn lines(&mut self) -> Vec<String> {
        self.logger.flush();
        let records = self.records.take();
        records.iter().map(|record| self.names.resolve(record)).collect()
    }

    fn pin_copies(&self) -> Result<(), TraceError> {
        for (program, fd) in &self.copy {
            pinned(fd, &self.directory.join(DIRECTORY).join(format!("copy-{}", program.name())))?;
        }
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Err(error) = end(&self.directory, &self.hooks, |_| None) {
            let error = super::check::chain(&error);
            tracing::warn!(error, "cannot end the trace; the proxy restores its programs");
        }
    }
}

fn pinned(program: &OwnedFd, path: &Path) -> Result<(), TraceError> {
    let attempted = || format!("pinning {}", path.display());
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(attempted(), error)),
        _ => {}
    }
    sys::object_pin(program.as_fd(), path).map_err(|error| failed(attempted(), error))
}

/// Takes the lock of the directory of traces; `None` if another process has it, or if the directory does not
/// exist and `make` is false.
fn lock(layout: &Path, make: bool) -> Result<Option<File>, TraceError> {
    let path = layout.join(DIRECTORY);
    let attempted = |error| failed(format!("locking {}", path.display()), error);
    if make {
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(attempted(error)),
            _ => {}
        }
    }
    let directory = match File::open(&path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(attempted(error)),
    };
    match directory.try_lock() {
        Ok(()) => Ok(Some(directory)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(attempted(error)),
    }
}

/// Returns the ids of the programs of a copy that traces, or has traced, the layout in a directory.
pub fn copies(layout: &Path) -> BTreeSet<u32> {
    let id = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        path.file_name()?.to_str()?.strip_prefix("copy-")?;
        sys::program_id(sys::object_get(&path).ok()?.as_fd()).ok()
    };
    fs::read_dir(layout.join(DIRECTORY)).into_iter().flatten().filter_map(id).collect()
}

/// Ends the trace of a process that died: links that run its copy get the programs of `own`.
///
/// # Errors
/// Fails if the kernel refuses. The copy still runs, with the same decisions as the programs.
pub fn end_abandoned<'a>(
    bpf_root: &Path,
    layout: &Path,
    own: impl Fn(Program) -> BorrowedFd<'a>,
) -> Result<bool, TraceError> {
    let Some(_lock) = lock(layout, false)? else {
        return Ok(false);
    };
    end(layout, &Hooks::new(bpf_root), |program| Some(own(program)))?;
    Ok(true)
}

/// Restores the previous programs, or `own`, wherever a copy runs, and removes the directory. The caller
/// holds the lock.
fn end<'a>(
    layout: &Path,
    hooks: &Hooks,
    own: impl Fn(Program) -> Option<BorrowedFd<'a>>,
) -> Result<(), TraceError> {
    put_back(layout, hooks, own)?;
    let directory = layout.join(DIRECTORY);
    fs::remove_dir(&directory).map_err(|error| failed(format!("removing {}", directory.display()), error))
}

/// Restores as [`end`] does; the directory stays, without pins.
fn put_back<'a>(
    layout: &Path,
    hooks: &Hooks,
    own: impl Fn(Program) -> Option<BorrowedFd<'a>>,
) -> Result<(), TraceError> {
    let directory = layout.join(DIRECTORY);
    let copies = copies(layout);
    for hook in hooks.attached()? {
        if !copies.contains(&hook.id) {
            continue;
        }
        if let Some(program) = own(hook.program) {
            hooks.put(&hook, program)?;
            continue;
        }
        let attempted = |error| failed(format!("opening what {} ran before", hook.name), error);
        let original = sys::object_get(&directory.join(format!("was-{}", hook.name))).map_err(attempted)?;
        hooks.put(&hook, original.as_fd())?;
    }
    super::remove_pins_in(&directory)
        .map_err(|error| failed(format!("removing the pins in {}", directory.display()), error))
}

/// The hook of a program of the data plane.
struct Hook {
    /// Name of the link; made up for a filter.
    name: String,
    program: Program,
    /// The kernel's id of the program.
    id: u32,
    filter: Option<Filter>,
}

/// Links and filters of one data plane.
struct Hooks {
    links: Links,
    filters: Filters,
}

impl Hooks {
    fn new(bpf_root: &Path) -> Self {
        let links = version_directory(bpf_root, LAYOUT_VERSION).join("links");
        Self { links: Links::new(links), filters: Filters::new(bpf_root) }
    }

    /// Returns all that exist.
    fn attached(&self) -> Result<Vec<Hook>, TraceError> {
        let mut found = Vec::new();
        for name in self.links.names()? {
            let Some(program) = links::program_of(&name) else { continue };
            let Some((_, info)) = self.links.open(&name)? else { continue };
            if info.ifindex != 0 || info.cgroup != 0 {
                found.push(Hook { name, program, id: info.program_id, filter: None });
            }
        }
        let filters = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
        for filter in filters {
            let Some(program) = Program::named(&filter.program) else { continue };
            let way = match filter.direction {
                Direction::Ingress => "ingress",
                Direction::Egress => "egress",
            };
            let name = format!("filter{}-{way}", filter.interface);
            found.push(Hook { name, program, id: filter.id, filter: Some(filter) });
        }
        Ok(found)
    }

    /// Replaces the program of a hook, without a gap. A hook that has vanished meanwhile needs none.
    fn put(&self, hook: &Hook, program: BorrowedFd<'_>) -> Result<(), TraceError> {
        if let Some(filter) = &hook.filter {
            let outcome = self.filters.put(filter.interface, filter.direction, &filter.program, program);
            return outcome.map_err(|error| failed(format!("replacing the program of {}", hook.name), error));
        }
        let Some((link, info)) = self.links.open(&hook.name)? else {
            return Ok(());
        };
        if info.ifindex == 0 && info.cgroup == 0 {
            return Ok(());
        }
        Ok(self.links.update(&hook.name, &link, program)?)
    }
}
