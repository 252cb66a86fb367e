//! bpf(2) and related system calls that aya does not cover: links adopted from pins, batches, mapped arrays,
//! test runs.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands of bpf(2).
mod command {
    pub const MAP_CREATE: i32 = 0;
    pub const MAP_LOOKUP_ELEM: i32 = 1;
    pub const MAP_UPDATE_ELEM: i32 = 2;
    pub const MAP_DELETE_ELEM: i32 = 3;
    pub const MAP_GET_NEXT_KEY: i32 = 4;
    pub const PROG_LOAD: i32 = 5;
    pub const OBJ_PIN: i32 = 6;
    pub const OBJ_GET: i32 = 7;
    pub const PROG_TEST_RUN: i32 = 10;
    pub const PROG_GET_FD_BY_ID: i32 = 13;
    pub const OBJ_GET_INFO_BY_FD: i32 = 15;
    pub const MAP_LOOKUP_BATCH: i32 = 24;
    pub const MAP_UPDATE_BATCH: i32 = 26;
    pub const LINK_CREATE: i32 = 28;
    pub const LINK_UPDATE: i32 = 29;
    pub const LINK_DETACH: i32 = 34;
}

/// `union bpf_attr`, large enough for every command used here; the kernel wants the rest zero.
#[derive(Default)]
struct Attr([u64; 20]);

impl Attr {
    /// Sets the 32 bits at a byte offset.
    fn u32(&mut self, offset: usize, value: u32) -> &mut Self {
        let word = &mut self.0[offset / 8];
        let shift = (offset % 8) * 8;
        *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
        self
    }

    /// Sets the 64 bits at a byte offset that is a multiple of 8.
    fn u64(&mut self, offset: usize, value: u64) -> &mut Self {
        self.0[offset / 8] = value;
        self
    }

    fn get_u32(&self, offset: usize) -> u32 {
        (self.0[offset / 8] >> ((offset % 8) * 8)) as u32
    }

    /// # Safety
    /// Every address in the attribute must be valid for what the command does with it.
    unsafe fn call(&mut self, command: i32) -> io::Result<i64> {
        // SAFETY: the attribute is as long as stated; the rest is the caller's promise.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size_of_val(&self.0)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }
}

// The attribute is written in words; the offsets of halves hold on little-endian machines only.
const _: () = assert!(cfg!(target_endian = "little"));

fn fd_u32(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

fn address<T>(value: *const T) -> u64 {
    value as usize as u64
}

fn path_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Opens the object pinned at a path.
pub fn object_get(path: &Path) -> io::Result<OwnedFd> {
    let name = path_string(path)?;
    let mut attr = Attr::default();
    attr.u64(0, address(name.as_ptr()));
    // SAFETY: the path is a string that outlives the call.
    let fd = unsafe { attr.call(command::OBJ_GET) }?;
    // SAFETY: the kernel gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Pins a descriptor at a path.
pub fn object_pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let name = path_string(path)?;
    let mut attr = Attr::default();
    attr.u64(0, address(name.as_ptr())).u32(8, fd_u32(fd));
    // SAFETY: the path is a string that outlives the call.
    unsafe { attr.call(command::OBJ_PIN) }?;
    Ok(())
}

/// The condition of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Update {
    Any = 0,
    /// The key must not exist.
    New = 1,
}

/// Copies the element under `key`; returns `false` if there is none.
///
/// # Safety
/// The map's keys and values must be as long as `K` and `V`, and any bytes must be a `V`.
pub unsafe fn map_lookup<K, V>(map: BorrowedFd<'_>, key: &K, value: *mut V) -> io::Result<bool> {
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(map)).u64(8, address(key)).u64(16, address(value.cast_const()));
    // SAFETY: by the contract of this function.
    match unsafe { attr.call(command::MAP_LOOKUP_ELEM) } {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// # Safety
/// The map's keys and values must be as long as `K` and `V`.
pub unsafe fn map_update<K, V>(map: BorrowedFd<'_>, key: &K, value: &V, flags: Update) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(map)).u64(8, address(key)).u64(16, address(value)).u64(24, flags as u64);
    // SAFETY: by the contract of this function.
    unsafe { attr.call(command::MAP_UPDATE_ELEM) }?;
    Ok(())
}

/// Deletes the element under `key`; returns `false` if there was none.
///
/// # Safety
/// The map's keys must be as long as `K`.
pub unsafe fn map_delete<K>(map: BorrowedFd<'_>, key: &K) -> io::Result<bool> {
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(map)).u64(8, address(key));
    // SAFETY: by the contract of this function.
    match unsafe { attr.call(command::MAP_DELETE_ELEM) } {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the key after `previous`, or the first; `None` at the end.
///
/// # Safety
/// The map's keys must be as long as `K`, and any bytes must be one.
pub unsafe fn map_next_key<K: Default>(map: BorrowedFd<'_>, previous: Option<&K>) -> io::Result<Option<K>> {
    let mut next = K::default();
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(map)).u64(8, previous.map_or(0, |key| address(key))).u64(16, address(&raw mut next));
    // SAFETY: by the contract of this function; the kernel writes one key.
    match unsafe { attr.call(command::MAP_GET_NEXT_KEY) } {
        Ok(_) => Ok(Some(next)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Updates many elements. On failure, returns the number of elements before the one that failed.
///
/// # Safety
/// The map's keys and values must be as long as `K` and `V`.
pub unsafe fn map_update_batch<K, V>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> Result<(), (usize, io::Error)> {
    assert_eq!(keys.len(), values.len(), "one value a key");
    if keys.is_empty() {
        return Ok(());
    }
    let mut attr = Attr::default();
    attr.u64(16, address(keys.as_ptr()))
        .u64(24, address(values.as_ptr()))
        .u32(32, keys.len() as u32)
        .u32(36, fd_u32(map));
    // SAFETY: by the contract of this function; the kernel reads as many elements as stated.
    match unsafe { attr.call(command::MAP_UPDATE_BATCH) } {
        Ok(_) => Ok(()),
        Err(error) => Err((attr.get_u32(32) as usize, error)),
    }
}

/// Passes every element of a hash map to `visit`, batch by batch.
///
/// # Safety
/// The map's keys and values must be as long as `K` and `V`, and any bytes must be one.
pub unsafe fn map_visit<K: Copy + Default, V: Copy + Default>(
    map: BorrowedFd<'_>,
    entries: usize,
    mut visit: impl FnMut(&[K], &[V]),
) -> io::Result<()> {
    // A batch holds whole buckets; one of this size holds any possible bucket.
    let mut room = entries.clamp(1, 4096);
    let mut keys = vec![K::default(); room];
    let mut values = vec![V::default(); room];
    let mut cursor = [0_u64; 8];
    let mut next = [0_u64; 8];
    let mut started = false;
    loop {
        let mut attr = Attr::default();
        attr.u64(0, if started { address(cursor.as_ptr()) } else { 0 })
            .u64(8, address(next.as_mut_ptr()))
            .u64(16, address(keys.as_mut_ptr()))
            .u64(24, address(values.as_mut_ptr()))
            .u32(32, room as u32)
            .u32(36, fd_u32(map));
        // SAFETY: by the contract of this function; the buffers hold as many elements as stated,
        // and the cursors are longer than any that the kernel writes.
        let result = unsafe { attr.call(command::MAP_LOOKUP_BATCH) };
        let read = attr.get_u32(32) as usize;
        let last = match result {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                room *= 2;
                keys.resize(room, K::default());
                values.resize(room, V::default());
                continue;
            }
            Err(error) => return Err(error),
        };
        visit(&keys[..read], &values[..read]);
        if last {
            return Ok(());
        }
        (cursor, started) = (next, true);
    }
}

/// Creates an empty map.
#[cfg(test)]
pub fn map_create(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.u32(0, kind).u32(4, key).u32(8, value).u32(12, entries).u32(16, flags);
    // SAFETY: the command takes numbers only.
    let fd = unsafe { attr.call(command::MAP_CREATE) }?;
    // SAFETY: the kernel gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Creates and drops a small hash map, which shows that bpf(2) exists and is allowed.
pub fn probe() -> io::Result<()> {
    const BPF_MAP_TYPE_HASH: u32 = 1;
    let mut attr = Attr::default();
    attr.u32(0, BPF_MAP_TYPE_HASH).u32(4, 4).u32(8, 4).u32(12, 1);
    // SAFETY: the command takes numbers only.
    let fd = unsafe { attr.call(command::MAP_CREATE) }?;
    // SAFETY: the kernel gave this descriptor to us alone.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// The kernel's description of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapInfo {
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
}

/// Asks the kernel about an object; `info` is filled as far as the kernel knows it.
fn object_info(fd: BorrowedFd<'_>, info: &mut [u64]) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(fd)).u32(4, size_of_val(info) as u32).u64(8, address(info.as_mut_ptr()));
    // SAFETY: the buffer is as long as stated.
    unsafe { attr.call(command::OBJ_GET_INFO_BY_FD) }?;
    Ok(())
}

fn half(words: &[u64], offset: usize) -> u32 {
    (words[offset / 8] >> ((offset % 8) * 8)) as u32
}

/// Asks about a map.
pub fn map_info(map: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let mut info = [0_u64; 16];
    object_info(map, &mut info)?;
    Ok(MapInfo { key_size: half(&info, 8), value_size: half(&info, 12), max_entries: half(&info, 16) })
}

/// The kernel's description of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    pub id: u32,
    pub program_id: u32,
    /// For a link to a cgroup: the cgroup's id.
    pub cgroup: u64,
    /// For a link to an interface: its index, 0 if it is gone.
    pub ifindex: u32,
}

/// Asks about a link.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = [0_u64; 16];
    object_info(link, &mut info)?;
    Ok(LinkInfo { id: half(&info, 4), program_id: half(&info, 8), cgroup: info[2], ifindex: half(&info, 16) })
}

/// The target of an attachment.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    Cgroup(BorrowedFd<'a>),
    Interface(u32),
}

/// Attaches a program.
pub fn link_create(
    program: BorrowedFd<'_>,
    target: Target<'_>,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let target = match target {
        Target::Cgroup(fd) => fd_u32(fd),
        Target::Interface(index) => index,
    };
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(program)).u32(4, target).u32(8, attach_type).u32(12, flags);
    // SAFETY: the command takes numbers only.
    let fd = unsafe { attr.call(command::LINK_CREATE) }?;
    // SAFETY: the kernel gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Returns `true` if classifiers can be attached through links of tcx: tested with an interface that cannot
/// exist, about which only a kernel with tcx complains.
pub fn has_tcx(classifier: BorrowedFd<'_>) -> bool {
    const BPF_TCX_INGRESS: u32 = 46;
    let nowhere = Target::Interface(i32::MAX as u32);
    let outcome = link_create(classifier, nowhere, BPF_TCX_INGRESS, 0);
    outcome.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

/// Returns the kernel's id of a program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u64; 16];
    object_info(program, &mut info)?;
    Ok(half(&info, 4))
}

/// Returns the tag of a program: a hash of its instructions as they were loaded, without the constants that
/// they read.
pub fn program_tag(program: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0_u64; 16];
    object_info(program, &mut info)?;
    Ok(info[1])
}

/// Returns the size of a program's instructions in bytes, after the kernel has removed unreachable ones.
#[cfg(test)]
pub fn translated_bytes(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u64; 16];
    object_info(program, &mut info)?;
    Ok(half(&info, 20))
}

/// Opens a loaded program.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.u32(0, id);
    // SAFETY: the command takes numbers only.
    let fd = unsafe { attr.call(command::PROG_GET_FD_BY_ID) }?;
    // SAFETY: the kernel gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Returns the number of instructions that the kernel processed to verify a program, counting each visit.
#[cfg(test)]
pub fn verified_instructions(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u64; 28];
    object_info(program, &mut info)?;
    Ok(half(&info, 216))
}

/// Loads a program given as instructions, to test whether the kernel accepts it. `attach_type` is 0 for kinds
/// without one.
pub fn load_program(kind: u32, attach_type: u32, instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut attr = Attr::default();
    attr.u32(0, kind)
        .u32(4, instructions.len() as u32)
        .u64(8, address(instructions.as_ptr()))
        .u64(16, address(license.as_ptr()))
        .u32(68, attach_type);
    // SAFETY: instructions and license outlive the call.
    let fd = unsafe { attr.call(command::PROG_LOAD) }?;
    // SAFETY: the kernel gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Replaces the program of a link without a gap.
pub fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(link)).u32(4, fd_u32(program));
    // SAFETY: the command takes numbers only.
    unsafe { attr.call(command::LINK_UPDATE) }?;
    Ok(())
}

/// Detaches a link at once, whoever else holds it.
pub fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(link));
    // SAFETY: the command takes numbers only.
    unsafe { attr.call(command::LINK_DETACH) }?;
    Ok(())
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value.
    pub verdict: u32,
    /// The packet as the program left it.
    pub packet: Vec<u8>,
    /// Mean time of one run, in nanoseconds.
    pub nanoseconds: u32,
}

/// Runs a program on a packet, `repeat` times; the packet is not restored in between.
pub fn test_run(program: BorrowedFd<'_>, packet: &[u8], context: &[u8], repeat: u32) -> io::Result<TestRun> {
    let mut out = vec![0_u8; packet.len() + 256];
    let mut attr = Attr::default();
    attr.u32(0, fd_u32(program))
        .u32(8, packet.len() as u32)
        .u32(12, out.len() as u32)
        .u64(16, address(packet.as_ptr()))
        .u64(24, address(out.as_mut_ptr()))
        .u32(32, repeat)
        .u32(40, context.len() as u32)
        .u64(48, if context.is_empty() { 0 } else { address(context.as_ptr()) });
    // SAFETY: the buffers are as long as stated and outlive the call.
    unsafe { attr.call(command::PROG_TEST_RUN) }?;
    out.truncate(attr.get_u32(12) as usize);
    Ok(TestRun { verdict: attr.get_u32(4), packet: out, nanoseconds: attr.get_u32(36) })
}

/// Waits for a grace period, until every program that was running has ended.
pub fn grace_period() {
    const MEMBARRIER_CMD_GLOBAL: i32 = 1;
    // SAFETY: the call takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 {
        // A kernel with isolated processors refuses; programs run for microseconds.
        #[expect(
            clippy::disallowed_methods,
            reason = "called where blocking is expected, outside of the runtime"
        )]
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Returns the cookie of this thread's network namespace.
pub fn netns_cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave this descriptor to us alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: value and length live on the stack for the length of the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Returns a number that nobody outside can guess.
#[expect(clippy::disallowed_methods, reason = "a key of a hash that nobody outside may guess")]
pub fn random() -> u32 {
    let mut bytes = [0_u8; 4];
    // SAFETY: the buffer is as long as stated.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(read, 4, "so few bytes are given at once");
    u32::from_ne_bytes(bytes)
}

/// Returns the number of processors for which a per-processor map has values.
pub fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    text.trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|last| last.parse::<usize>().ok())
        .map(|last| last + 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("possible processors: {text:?}")))
}
