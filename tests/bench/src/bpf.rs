//! bpf(2) for the programs of [`crate::asm`].
//!
//! A named exception to the rule that unsafe code is only in the data plane: code that measures the data
//! plane should not be part of it.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const OBJ_GET: i32 = 7;
const PROG_TEST_RUN: i32 = 10;
const LINK_CREATE: i32 = 28;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_PROG_ARRAY: u32 = 3;
const XDP_FLAGS_DRV_MODE: u32 = 4;
/// Frames are really sent as the verdict says.
const LIVE_FRAMES: u32 = 2;

/// Program type and attach type, `BPF_PROG_TYPE_*` and `BPF_*`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Type {
    program: u32,
    attach: u32,
}

pub const XDP: Type = Type { program: 6, attach: 37 };
pub const TCX: Type = Type { program: 3, attach: 0 };
pub const CONNECT4: Type = Type { program: 18, attach: 10 };

/// `union bpf_attr` as 32-bit words; unused ones are zero.
#[repr(align(8))]
struct Attr([u32; 40]);

impl Attr {
    fn new(fields: &[(usize, u32)], addresses: &[(usize, u64)]) -> Self {
        let mut attr = Self([0; 40]);
        for (offset, value) in fields {
            attr.0[offset / 4] = *value;
        }
        for (offset, value) in addresses {
            attr.0[offset / 4] = *value as u32;
            attr.0[offset / 4 + 1] = (*value >> 32) as u32;
        }
        attr
    }

    /// # Safety
    /// Every address in the attribute must be valid for what the command does with it.
    unsafe fn call(&mut self, command: i32) -> io::Result<i32> {
        // SAFETY: the attribute is as long as stated; the rest is the caller's promise.
        let result = unsafe {
            nix::libc::syscall(nix::libc::SYS_bpf, command, self.0.as_mut_ptr(), size_of_val(&self.0))
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
    }
}

// Addresses are written lower half first.
const _: () = assert!(cfg!(target_endian = "little"));

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

fn map(kind: u32, value_size: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::new(&[(0, kind), (4, 4), (8, value_size), (12, 1)], &[]);
    // SAFETY: the command takes numbers only; the kernel gives the descriptor to us alone.
    unsafe { attr.call(MAP_CREATE).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Creates an array with one 64-bit number.
pub fn counter() -> io::Result<OwnedFd> {
    map(MAP_TYPE_ARRAY, 8)
}

/// Creates a program array with one slot, for tail calls.
pub fn program_array() -> io::Result<OwnedFd> {
    map(MAP_TYPE_PROG_ARRAY, 4)
}

/// Reads a [`counter`].
pub fn read_counter(counter: BorrowedFd<'_>) -> io::Result<u64> {
    let (key, mut value) = (0_u32, 0_u64);
    let addresses = [(8, (&raw const key) as u64), (16, (&raw mut value) as u64)];
    let mut attr = Attr::new(&[(0, number(counter))], &addresses);
    // SAFETY: key and value are as long as the map's and outlive the call.
    unsafe { attr.call(MAP_LOOKUP_ELEM) }?;
    Ok(value)
}

/// Sets a [`counter`].
#[cfg(test)]
pub fn set_counter(counter: BorrowedFd<'_>, value: u64) -> io::Result<()> {
    let key = 0_u32;
    let addresses = [(8, (&raw const key) as u64), (16, (&raw const value) as u64)];
    let mut attr = Attr::new(&[(0, number(counter))], &addresses);
    // SAFETY: key and value are as long as the map's and outlive the call.
    unsafe { attr.call(MAP_UPDATE_ELEM) }?;
    Ok(())
}

/// Sets the program of a [`program_array`].
pub fn set_program(array: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = (0_u32, number(program));
    let addresses = [(8, (&raw const key) as u64), (16, (&raw const value) as u64)];
    let mut attr = Attr::new(&[(0, number(array))], &addresses);
    // SAFETY: key and value are as long as the map's and outlive the call.
    unsafe { attr.call(MAP_UPDATE_ELEM) }?;
    Ok(())
}

/// Loads a program. An error contains the verifier's log.
pub fn load(of: Type, code: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut log = vec![0_u8; 1 << 18];
    let fields = [(0, of.program), (4, code.len() as u32), (24, 1), (28, log.len() as u32), (68, of.attach)];
    let addresses = [(8, code.as_ptr() as u64), (16, license.as_ptr() as u64), (32, log.as_mut_ptr() as u64)];
    let mut attr = Attr::new(&fields, &addresses);
    // SAFETY: code, license and log are as long as stated and outlive the call; the kernel gives
    // the descriptor to us alone.
    let loaded = unsafe { attr.call(PROG_LOAD).map(|fd| OwnedFd::from_raw_fd(fd)) };
    loaded.map_err(|error| {
        let said = String::from_utf8_lossy(&log);
        io::Error::new(error.kind(), format!("{error}: {}", said.trim_end_matches('\0')))
    })
}

/// Attaches an XDP program, in driver mode, to an interface of this thread's network namespace for as long as
/// the descriptor is open.
pub fn attach_xdp(program: BorrowedFd<'_>, interface: u32) -> io::Result<OwnedFd> {
    let fields = [(0, number(program)), (4, interface), (8, XDP.attach), (12, XDP_FLAGS_DRV_MODE)];
    let mut attr = Attr::new(&fields, &[]);
    // SAFETY: the command takes numbers only; the kernel gives the descriptor to us alone.
    unsafe { attr.call(LINK_CREATE).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Attaches a program to a cgroup for as long as the descriptor is open.
pub fn attach_cgroup(program: BorrowedFd<'_>, of: Type, cgroup: &Path) -> io::Result<OwnedFd> {
    let directory = std::fs::File::open(cgroup)?;
    let fields = [(0, number(program)), (4, number(directory.as_fd())), (8, of.attach)];
    let mut attr = Attr::new(&fields, &[]);
    // SAFETY: the command takes numbers only; the kernel gives the descriptor to us alone.
    unsafe { attr.call(LINK_CREATE).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Opens an object that is pinned at a path.
pub fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Attr::new(&[], &[(0, name.as_ptr() as u64)]);
    // SAFETY: the path is a string that outlives the call; the kernel gives the descriptor to us
    // alone.
    unsafe { attr.call(OBJ_GET).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Results of a test run.
pub struct Run {
    pub verdict: u32,
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests look into packets"))]
    pub packet: Vec<u8>,
    /// Mean duration of one run.
    pub nanoseconds: u32,
}

/// Runs a program `repeat` times on the same buffer.
pub fn run(program: BorrowedFd<'_>, packet: &[u8], context: &[u8], repeat: u32) -> io::Result<Run> {
    let mut out = vec![0_u8; packet.len() + 256];
    let mut attr = test_run(program, packet, context, repeat);
    attr.0[3] = out.len() as u32;
    let address = out.as_mut_ptr() as u64;
    (attr.0[6], attr.0[7]) = (address as u32, (address >> 32) as u32);
    // SAFETY: packet, context and output are as long as stated and outlive the call.
    unsafe { attr.call(PROG_TEST_RUN) }?;
    out.truncate(attr.0[3] as usize);
    Ok(Run { verdict: attr.0[1], packet: out, nanoseconds: attr.0[9] })
}

/// Runs an XDP program `repeat` times on frames that are then sent according to its verdict.
pub fn run_live(program: BorrowedFd<'_>, packet: &[u8], context: &[u8], repeat: u32) -> io::Result<()> {
    let mut attr = test_run(program, packet, context, repeat);
    attr.0[16] = LIVE_FRAMES;
    // SAFETY: packet and context are as long as stated and outlive the call.
    unsafe { attr.call(PROG_TEST_RUN) }?;
    Ok(())
}

fn test_run(program: BorrowedFd<'_>, packet: &[u8], context: &[u8], repeat: u32) -> Attr {
    let fields = [(0, number(program)), (8, packet.len() as u32), (32, repeat), (40, context.len() as u32)];
    let context = if context.is_empty() { 0 } else { context.as_ptr() as u64 };
    Attr::new(&fields, &[(16, packet.as_ptr() as u64), (48, context)])
}

/// Returns the `struct xdp_md` of a packet that arrived on an interface.
pub fn xdp_context(length: usize, interface: u32) -> Vec<u8> {
    let mut context = vec![0; 24];
    context[4..8].copy_from_slice(&(length as u32).to_ne_bytes());
    context[12..16].copy_from_slice(&interface.to_ne_bytes());
    context
}

/// Returns the `struct __sk_buff` of a packet that arrived on an interface.
pub fn skb_context(interface: u32) -> Vec<u8> {
    let mut context = vec![0; 192];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    context[40..44].copy_from_slice(&interface.to_ne_bytes());
    context
}
