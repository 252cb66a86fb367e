//! Elements of pinned arrays, read and written by index, unlike in any program.

use std::ffi::CString;
use std::path::Path;

const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const OBJ_GET: i32 = 7;

/// A pinned array.
pub struct Elements {
    fd: i32,
    size: usize,
}

impl Elements {
    /// Opens an array whose elements have `size` bytes.
    pub fn open(path: &Path, size: usize) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mut attr = [name.as_ptr() as u64, 0, 0, 0];
        let fd = call(OBJ_GET, &mut attr);
        assert!(fd >= 0, "{}: {}", path.display(), std::io::Error::last_os_error());
        Self { fd, size }
    }

    /// Returns the element, or none after the last one.
    pub fn read(&self, index: u32) -> Option<Vec<u8>> {
        let mut value = vec![0_u8; self.size];
        let mut attr = [self.fd as u64, (&raw const index) as u64, value.as_mut_ptr() as u64, 0];
        (call(LOOKUP, &mut attr) == 0).then_some(value)
    }

    pub fn write(&self, index: u32, value: &[u8]) {
        assert_eq!(value.len(), self.size);
        let mut attr = [self.fd as u64, (&raw const index) as u64, value.as_ptr() as u64, 0];
        assert_eq!(call(UPDATE, &mut attr), 0, "{}", std::io::Error::last_os_error());
    }

    /// Returns all elements with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Vec<u8>)> {
        (0..).map_while(|index| Some((index, self.read(index)?)))
    }
}

impl Drop for Elements {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.fd) };
    }
}

fn call(command: i32, attr: &mut [u64; 4]) -> i32 {
    // SAFETY: what the attribute points to outlives the call, and has the sizes of the map.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of_val(attr)) as i32 }
}

/// Runs a tcx program once on a frame from an interface; returns the verdict and the resulting frame. Unlike
/// the data plane's own, it may be called by several threads at once.
pub fn run_tcx(program: std::os::fd::BorrowedFd<'_>, frame: &[u8], interface: u32) -> (u32, Vec<u8>) {
    const PROG_TEST_RUN: i32 = 10;
    let mut context = [0_u8; 192];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    context[40..44].copy_from_slice(&interface.to_ne_bytes());
    let mut out = vec![0_u8; frame.len() + 256];
    let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
    // Program and verdict, sizes in and out, both buffers, repeat and duration, sizes of the context
    // in and out, and the context.
    let mut attr = [
        pair(fd as usize, 0),
        pair(frame.len(), out.len()),
        frame.as_ptr() as u64,
        out.as_mut_ptr() as u64,
        pair(1, 0),
        pair(context.len(), 0),
        context.as_ptr() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: what the attribute points to outlives the call, and has the sizes given.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, attr.as_mut_ptr(), size_of_val(&attr)) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    out.truncate((attr[1] >> 32) as usize);
    ((attr[0] >> 32) as u32, out)
}
