//! A data plane that the tests of a process use one after the other: verifying the programs takes the kernel
//! a second, and an emulated one half a minute. Each test finds it as if it had just been opened.

use std::ffi::CString;
use std::fs;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{NodeTables, Tables};
use userspace_dataplane::{Config, Kernel};

use super::Node;

/// The state between two tests.
struct Opened {
    kernel: Kernel,
    node: Node,
    config: Config,
    /// The element of `CONFIG` after opening.
    settings: Vec<u8>,
}

static IDLE: Mutex<Option<Opened>> = Mutex::new(None);

/// Maps that follow from the tables; the data plane itself empties them. All the others are written by
/// programs.
const TABLES: [&str; 15] = [
    "CONFIG",
    "FRONTENDS4",
    "FRONTENDS6",
    "BACKENDS4",
    "BACKENDS6",
    "LOSSES",
    "LUTS",
    "SOURCE_RANGES4",
    "SOURCE_RANGES6",
    "LOCAL_ADDRS4",
    "LOCAL_ADDRS6",
    "EXEMPT",
    "SERVICE_NAMES",
    "DEVICES",
    "EVENTS",
];

/// Runs a test with a data plane that is opened with the limits of [`Node::config`], in the network namespace
/// of this thread, and is as good as new. After a panic the next test gets another.
pub fn with_kernel<T>(test: impl FnOnce(&mut Kernel, &Node) -> T) -> T {
    with_config(|config| config, test)
}

/// Runs a test as [`with_kernel`] does, with other limits.
pub fn with_config<T>(
    change: impl FnOnce(Config) -> Config,
    test: impl FnOnce(&mut Kernel, &Node) -> T,
) -> T {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: a function that takes nothing and does not unwind.
        assert_eq!(unsafe { libc::atexit(close) }, 0, "what is open is closed in the end");
    });
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut opened = match idle {
        Some(opened) => {
            let asked = change(opened.node.config());
            if asked == opened.config { opened } else { Opened::anew(opened.node, asked) }
        }
        None => {
            let node = Node::new();
            let config = change(node.config());
            Opened::anew(node, config)
        }
    };
    opened.enter();
    let value = test(&mut opened.kernel, &opened.node);
    opened.clean();
    *IDLE.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
    value
}

extern "C" fn close() {
    drop(IDLE.lock().unwrap_or_else(PoisonError::into_inner).take());
}

impl Opened {
    /// Opens a data plane on a node, in place of the previous one.
    fn anew(node: Node, config: Config) -> Self {
        userspace_dataplane::remove(&node.bpf_root()).unwrap();
        let kernel = match Kernel::open(config.clone()) {
            Ok(kernel) => kernel,
            Err(error) => panic!("{}", super::chain(&error)),
        };
        let settings = Map::open(&kernel.maps_directory().join("CONFIG")).read_first();
        Self { kernel, node, config, settings }
    }

    /// Makes loopback of this namespace that of the node.
    fn enter(&self) {
        let mut settings = self.settings.clone();
        let config = Map::open(&self.kernel.maps_directory().join("CONFIG"));
        let place = offset_of!(ebpf_common::Config, netns_cookie);
        let cookie = userspace_dataplane::own_netns_cookie().unwrap_or(0);
        settings[place..place + 8].copy_from_slice(&cookie.to_ne_bytes());
        // The state of losses goes on.
        let epoch = offset_of!(ebpf_common::Config, epoch);
        let epoch = epoch..epoch + size_of::<u32>();
        settings[epoch.clone()].copy_from_slice(&config.read_first()[epoch]);
        config.write(0, &settings);
    }

    /// Undoes all changes of a test, while its namespace exists.
    fn clean(&mut self) {
        self.kernel.set_interfaces(&[]).unwrap();
        self.kernel.apply_full(&Tables::new()).unwrap();
        self.kernel.set_node(&NodeTables::default()).unwrap();
        let directory = self.kernel.maps_directory();
        for entry in fs::read_dir(&directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !TABLES.contains(&name.as_str()) {
                Map::open(&directory.join(name)).clear();
            }
        }
        let mut events = self.kernel.inspector().unwrap().events().unwrap();
        while events.read().is_some() {}
    }
}

/// A pinned map of any kind.
struct Map {
    fd: OwnedFd,
    info: Info,
    path: PathBuf,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

const ARRAY: u32 = 2;
const PROCESSOR_ARRAY: u32 = 6;
/// Maximum number of elements written at once.
const BATCH: u32 = 4_096;

impl Map {
    fn open(path: &Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mut attr = [name.as_ptr() as u64, 0];
        let fd = bpf(7, &mut attr).unwrap_or_else(|error| panic!("{}: {error}", path.display())) as i32;
        // SAFETY: the call has just made it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut info = Info::default();
        let size = size_of::<Info>() as u64;
        let mut attr = [fd.as_raw_fd() as u64 | size << 32, (&raw mut info) as u64];
        bpf(15, &mut attr).unwrap();
        Self { fd, info, path: path.to_path_buf() }
    }

    fn number(&self) -> u64 {
        self.fd.as_raw_fd() as u64
    }

    fn read_first(&self) -> Vec<u8> {
        let (index, mut value) = (0_u32, vec![0_u8; self.info.value_size as usize]);
        let mut attr = [self.number(), (&raw const index) as u64, value.as_mut_ptr() as u64, 0];
        bpf(1, &mut attr).unwrap();
        value
    }

    fn write(&self, index: u32, value: &[u8]) {
        let mut attr = [self.number(), (&raw const index) as u64, value.as_ptr() as u64, 0];
        bpf(2, &mut attr).unwrap();
    }

    /// Sets all elements of an array to zero; of another map, deletes all.
    fn clear(&self) {
        match self.info.kind {
            ARRAY | PROCESSOR_ARRAY => self.zero(),
            _ => self.delete_all(),
        }
    }

    fn zero(&self) {
        let processors = if self.info.kind == ARRAY { 1 } else { processors() };
        let element = self.info.value_size.next_multiple_of(8) as usize * processors;
        let zeros = vec![0_u8; element * BATCH.min(self.info.max_entries) as usize];
        let keys: Vec<u32> = (0..self.info.max_entries).collect();
        for keys in keys.chunks(BATCH as usize) {
            // Batch in and out, keys, values, their number and the map, flags.
            let count = keys.len() as u64 | self.number() << 32;
            let mut attr = [0, 0, keys.as_ptr() as u64, zeros.as_ptr() as u64, count, 0, 0];
            bpf(26, &mut attr).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        }
    }

    fn delete_all(&self) {
        let mut key = vec![0_u8; self.info.key_size as usize];
        loop {
            let mut attr = [self.number(), 0, key.as_mut_ptr() as u64, 0];
            if bpf(4, &mut attr).is_err() {
                return;
            }
            let mut attr = [self.number(), key.as_ptr() as u64, 0, 0];
            bpf(3, &mut attr).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        }
    }
}

/// Returns the number of values of an element in a per-processor map.
fn processors() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let last = text.trim().rsplit(['-', ',']).next().unwrap();
    last.parse::<usize>().unwrap() + 1
}

fn bpf(command: i32, attr: &mut [u64]) -> std::io::Result<i64> {
    // SAFETY: what the attribute points to outlives the call, and has the sizes of the map.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of_val(attr)) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
