//! Fixtures of tests against the kernel: a data plane of their own, a cgroup, a network namespace, packets.
//! Everything is removed when it is dropped, also after a failure.
#![allow(dead_code, unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "only tests use it")]

pub mod elements;
pub mod model;
pub mod namespace;
pub mod packet;
pub mod shared;
pub mod topology;
pub mod wire;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use userspace_dataplane::tables::{Backend, Frontend, FrontendKey, Protocol, Scope, ServiceTables};
use userspace_dataplane::{Config, Kernel, Limits, XdpMode};

/// A directory for pins and a cgroup for one test.
pub struct Node {
    directory: tempfile::TempDir,
    cgroup: PathBuf,
}

impl Node {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("hawser-test-").tempdir().unwrap();
        let hierarchy = userspace_dataplane::find_cgroup2().expect("a cgroup2 hierarchy is mounted");
        let cgroup = hierarchy.join(directory.path().file_name().unwrap());
        fs::create_dir(&cgroup).unwrap();
        Self { directory, cgroup }
    }

    pub fn bpf_root(&self) -> PathBuf {
        self.directory.path().join("bpf")
    }

    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    pub fn config(&self) -> Config {
        let limits = Limits {
            frontends: 1_024,
            backends: 4_096,
            services: 1_024,
            luts: 4_096,
            flows4: 8_192,
            flows6: 8_192,
            sockets: 4_096,
            affinity: 1_024,
            source_ranges: 1_024,
            fragments: 1_024,
            exempt: 64,
        };
        Config {
            bpf_root: self.bpf_root(),
            cgroup: self.cgroup.clone(),
            limits,
            xdp: XdpMode::Off,
            xdp_redirect: false,
        }
    }

    pub fn open(&self) -> Kernel {
        match Kernel::open(self.config()) {
            Ok(kernel) => kernel,
            Err(error) => panic!("{}", chain(&error)),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = userspace_dataplane::remove(&self.bpf_root()) {
            eprintln!("{}", chain(&error));
        }
        if let Err(error) = fs::remove_dir(&self.cgroup) {
            eprintln!("{}: {error}", self.cgroup.display());
        }
    }
}

/// Returns the time to wait for an asynchronous event: this long, times `HAWSER_TEST_TIME_FACTOR`, which is set
/// on slow machines.
pub fn scaled(time: Duration) -> Duration {
    time * setting("HAWSER_TEST_TIME_FACTOR").unwrap_or(1)
}

/// Returns the amount of something to do: all, or as many thousandths as `HAWSER_TEST_SHARE` says; at least
/// 1.
pub fn share(all: u32) -> u32 {
    match setting("HAWSER_TEST_SHARE") {
        Some(thousandths) => ((u64::from(all) * u64::from(thousandths) / 1_000) as u32).max(1),
        None => all,
    }
}

fn setting(name: &str) -> Option<u32> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Formats the error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

static PROCESS: Mutex<()> = Mutex::new(());

/// Keeps the whole test process in the node's cgroup while it lives, and no other test's.
pub struct Inside {
    home: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Inside {
    pub fn enter(node: &Node) -> Self {
        let alone = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let home = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("the unified hierarchy");
        let home = userspace_dataplane::find_cgroup2().unwrap().join(home);
        fs::write(node.cgroup().join("cgroup.procs"), std::process::id().to_string()).unwrap();
        Self { home, _alone: alone }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.home.join("cgroup.procs"), std::process::id().to_string()) {
            eprintln!("leaving the test's cgroup: {error}");
        }
    }
}

/// Runs on a thread with a network namespace of its own, which ends with it.
pub fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes a number; concerns this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "a network namespace");
            ip("link set lo up");
            test()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Runs on a thread with a mount namespace of its own, which ends with it.
pub fn in_mount_namespace(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes a number; concerns this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "a mount namespace");
            run("mount", "--make-rprivate /");
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs a command with these arguments in the namespaces of this thread.
pub fn run(command: &str, arguments: &str) {
    let output = Command::new(command).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{command} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `ip` with these arguments in the network namespace of this thread.
pub fn ip(arguments: &str) {
    run("ip", arguments);
}

pub fn sysctl(name: &str, value: &str) {
    fs::write(Path::new("/proc/sys").join(name), value).unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Returns the index of an interface in the namespace of this thread.
pub fn index_of(interface: &str) -> u32 {
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: the name outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "interface {interface}");
    index
}

pub fn key(address: &str, port: u16, protocol: Protocol, scope: Scope) -> FrontendKey {
    FrontendKey { address: address.parse().unwrap(), port, protocol, scope }
}

/// Makes an interface compute checksums and segment packets itself, as for packets on a wire: XDP cannot
/// recognise a checksum that is still to be filled in.
pub fn offloads_off(interface: &str) {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let mut value = [ETHTOOL_STXCSUM, 0];
    // SAFETY: all fields are integers or pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: request and value outlive the call.
    let result =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), SIOCETHTOOL, &raw mut request) };
    assert_eq!(result, 0, "{interface}: {}", std::io::Error::last_os_error());
}

/// Deletes an element of a pinned map, as eviction would.
pub fn delete_element(map: &Path, key: &[u8]) {
    const MAP_DELETE_ELEM: i32 = 3;
    const OBJ_GET: i32 = 7;
    let path = std::ffi::CString::new(map.to_str().unwrap()).unwrap();
    let mut attr = [path.as_ptr() as u64, 0, 0];
    let size = size_of_val(&attr);
    // SAFETY: path and key outlive the calls; the attribute is as long as stated.
    let result = unsafe {
        let fd = libc::syscall(libc::SYS_bpf, OBJ_GET, attr.as_mut_ptr(), size);
        assert!(fd >= 0, "{}: {}", map.display(), std::io::Error::last_os_error());
        attr = [fd as u64, key.as_ptr() as u64, 0];
        let result = libc::syscall(libc::SYS_bpf, MAP_DELETE_ELEM, attr.as_mut_ptr(), size);
        libc::close(fd as i32);
        result
    };
    assert_eq!(result, 0, "no such element in {}", map.display());
}

pub fn backend(address: IpAddr, port: u16, local: bool) -> Backend {
    Backend::new(address, port, local)
}

pub fn frontend(key: FrontendKey, backends: &[Backend]) -> Frontend {
    Frontend::new(key, backends.to_vec())
}

pub fn service(key: FrontendKey, backends: &[Backend]) -> ServiceTables {
    ServiceTables { frontends: vec![frontend(key, backends)], ..ServiceTables::default() }
}

/// Ends a connection by a reset, so that its port is free at once.
pub fn reset(stream: &std::net::TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the value outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(stream),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "SO_LINGER");
}
