//! The compiled programs inside this binary, and their loading.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use aya::programs::{Program as Loaded, ProgramError};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use aya_log::{EbpfLogger, Level};
use ebpf_common::flow::WAYS;
use ebpf_common::trace::Traced;
use ebpf_common::{ServiceMetrics, limits};
use log::Log;

use super::Limits;
use crate::limits::LOAD_ATTEMPTS;
use crate::program::Program;

/// Aligned as the loader requires.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/hawser-ebpf.o")));

/// Returns the object; empty if the programs were not built when this crate was.
pub fn bytes() -> &'static [u8] {
    &OBJECT.0
}

/// Returns every map, and the limit that sizes it; `None` for those of fixed size.
pub fn maps(limits: &Limits) -> [(&'static str, Option<u32>); 43] {
    [
        ("CONFIG", None),
        ("FRONTENDS4", Some(limits.frontends)),
        ("FRONTENDS6", Some(limits.frontends)),
        ("BACKENDS4", Some(limits.backends)),
        ("BACKENDS6", Some(limits.backends)),
        ("LOSSES", Some(limits.services)),
        ("LUTS", Some(limits.luts)),
        ("SOURCE_RANGES4", Some(limits.source_ranges)),
        ("SOURCE_RANGES6", Some(limits.source_ranges)),
        ("LOCAL_ADDRS4", None),
        ("LOCAL_ADDRS6", None),
        ("FLOWS4", Some(limits.flows4)),
        ("FLOW_TAGS4", Some(limits.flows4 / WAYS)),
        ("FLOW_HINTS4", Some(limits.flows4 / WAYS)),
        ("FLOWS6", Some(limits.flows6)),
        ("FLOW_TAGS6", Some(limits.flows6 / WAYS)),
        ("FLOW_HINTS6", Some(limits.flows6 / WAYS)),
        ("FRAGMENTS", Some(limits.fragments)),
        ("EXEMPT", Some(limits.exempt)),
        ("TRACKED4", None),
        ("TRACKED6", None),
        ("EVENTS", None),
        ("EVENT_BUDGET", None),
        ("SOCKETS4", Some(limits.sockets)),
        ("SOCKETS6", Some(limits.sockets)),
        ("CONNECTED", None),
        ("CONNECTED_TAGS", None),
        ("AFFINITY", Some(limits.affinity)),
        ("METRICS", None),
        ("SERVICE_METRICS", Some(ServiceMetrics::elements(limits.services))),
        ("SERVICE_NAMES", Some(limits.services)),
        ("DEVICES", None),
        ("MASQUERADE", None),
        ("NON_MASQUERADE4", None),
        ("NON_MASQUERADE6", None),
        ("POLICY_ENDPOINTS", None),
        ("POLICY_PEERS4", None),
        ("POLICY_PEERS6", None),
        ("POLICY_RULES", None),
        ("POLICY_FLOWS", None),
        ("POLICY_NAMES", None),
        ("BANDWIDTH", None),
        ("BANDWIDTH_FILTER", None),
    ]
}

/// An error of loading the programs.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("built without the eBPF programs: run `cargo xtask build-ebpf` and build again")]
    Stub,
    #[error("the object was refused")]
    Object(#[source] aya::EbpfError),
    #[error("the object has no program {0}")]
    NoProgram(&'static str),
    #[error("program {name} was refused")]
    Program {
        name: &'static str,
        #[source]
        cause: Box<aya::programs::ProgramError>,
    },
    #[error("opening the log of the programs")]
    Log(#[source] aya_log::Error),
    #[error("descriptor of program {name}")]
    Descriptor {
        name: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// Loaded programs.
pub type Programs = BTreeMap<Program, OwnedFd>;

/// Loads every program over the maps pinned in `directory`, creating those that are missing.
pub fn load(directory: &Path, limits: &Limits) -> Result<Programs, LoadError> {
    load_with(directory, limits, &Constants::SILENT).map(|(programs, _)| programs)
}

/// Loads the copy of the programs that logs one flow, over the maps of those that carry traffic, and returns
/// it with the reader of its log.
pub fn load_tracing<T: Log>(
    directory: &Path,
    flow: &Traced,
    log: T,
) -> Result<(Programs, EbpfLogger<T>), LoadError> {
    // The maps exist, with their sizes.
    let (programs, mut object) = load_with(directory, &Limits::default(), &Constants::tracing(flow))?;
    let logger = EbpfLogger::init_with_logger(&mut object, log).map_err(LoadError::Log)?;
    Ok((programs, logger))
}

/// The constants of the programs, which the kernel knows when it verifies them.
struct Constants {
    /// Highest level of log statements that remain: 0 for none.
    level: u8,
    /// Size of the log in bytes; the kernel creates it whether or not anything is logged.
    log_bytes: u32,
    traced: [u32; Traced::WORDS],
}

impl Constants {
    const SILENT: Self = Self { level: 0, log_bytes: 4_096, traced: [0; Traced::WORDS] };

    fn tracing(flow: &Traced) -> Self {
        Self { level: Level::Info as u8, log_bytes: limits::TRACE_BYTES, traced: flow.words() }
    }
}

fn load_with(
    directory: &Path,
    limits: &Limits,
    constants: &Constants,
) -> Result<(Programs, Ebpf), LoadError> {
    if bytes().is_empty() {
        return Err(LoadError::Stub);
    }
    // The verifier's log is long and slow to write: it is requested after a refusal only.
    load_at(directory, limits, constants, VerifierLogLevel::DISABLE).or_else(|error| match error {
        LoadError::Program { .. } => load_at(directory, limits, constants, VerifierLogLevel::default()),
        other => Err(other),
    })
}

fn load_at(
    directory: &Path,
    limits: &Limits,
    constants: &Constants,
    level: VerifierLogLevel,
) -> Result<(Programs, Ebpf), LoadError> {
    let mut loader = EbpfLoader::new();
    loader
        .override_global(aya_log::LEVEL, &constants.level, true)
        .override_global("TRACED", &constants.traced, true)
        .map_max_entries("AYA_LOGS", constants.log_bytes);
    // Nothing in the object is relocated by the kernel's own types: their description, which takes tens of
    // megabytes to read, is not loaded.
    loader.verifier_log_level(level).btf(None);
    for (name, limit) in maps(limits) {
        loader.map_pin_path(name, directory.join(name));
        if let Some(limit) = limit {
            loader.map_max_entries(name, limit);
        }
    }
    let mut object = loader.load(bytes()).map_err(LoadError::Object)?;
    let mut found: BTreeMap<&str, &mut Loaded> = object.programs_mut().collect();
    let mut waiting = Vec::new();
    for program in Program::ALL {
        let loaded = found.remove(program.name()).ok_or(LoadError::NoProgram(program.name()))?;
        waiting.push((program, loaded));
    }
    let programs = load_all(waiting)?;
    Ok((programs, object))
}

/// Loads programs on as many threads as there are processors for: the kernel verifies each on the calling
/// processor, and the large ones take a good part of a second.
fn load_all(waiting: Vec<(Program, &mut Loaded)>) -> Result<BTreeMap<Program, OwnedFd>, LoadError> {
    // The large ones are last in the list and are taken first.
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let waiting = Mutex::new(waiting);
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((program, loaded)) = next else {
                return Ok(done);
            };
            done.push((program, load_one(program.name(), loaded)?));
        }
    };
    let mut programs = BTreeMap::new();
    std::thread::scope(|scope| {
        #[expect(
            clippy::disallowed_methods,
            reason = "joined at once: the kernel checks programs side by side"
        )]
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(done) => programs.extend(done?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(programs)
    })
}

fn load_one(name: &'static str, loaded: &mut Loaded) -> Result<OwnedFd, LoadError> {
    let refused = |cause| LoadError::Program { name, cause: Box::new(cause) };
    let mut attempts = LOAD_ATTEMPTS;
    loop {
        let outcome = match loaded {
            Loaded::CgroupSockAddr(hook) => hook.load(),
            Loaded::CgroupSock(hook) => hook.load(),
            Loaded::SchedClassifier(hook) => hook.load(),
            Loaded::Xdp(hook) => hook.load(),
            _ => return Err(LoadError::NoProgram(name)),
        };
        attempts -= 1;
        match outcome {
            Ok(()) => break,
            Err(error) if attempts > 0 && interrupted(&error) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    let fd = loaded.fd().map_err(refused)?.as_fd().try_clone_to_owned();
    fd.map_err(|cause| LoadError::Descriptor { name, cause })
}

/// Returns `true` if the kernel gave up verifying a program because a signal was pending for the thread.
fn interrupted(error: &ProgramError) -> bool {
    matches!(error, ProgramError::LoadError { io_error, .. } if io_error.raw_os_error() == Some(libc::EAGAIN))
}
