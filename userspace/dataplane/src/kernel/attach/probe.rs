//! The capabilities of the kernel, tested by using them.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use crate::filters::{Direction, Filters};
use crate::sys;

const SCHED_CLS: u32 = 3;
const CGROUP_SOCK_ADDR: u32 = 18;
const CGROUP_INET4_CONNECT: u32 = 10;
/// `r0 = 0; exit`
const NOTHING: [u64; 2] = [0xb7, 0x95];
/// `r1 = 0; call bpf_set_retval; r0 = 1; exit`
const SET_RETVAL: [u64; 4] = [0x01b7, 187 << 32 | 0x85, 1 << 32 | 0xb7, 0x95];

/// Returns the first requirement of the programs and their hooks that this kernel lacks, among the newest
/// ones; `None` if it has all. Changes nothing that others could see.
pub fn lacks() -> Option<&'static str> {
    if sys::load_program(CGROUP_SOCK_ADDR, CGROUP_INET4_CONNECT, &SET_RETVAL).is_err() {
        return Some("bpf_set_retval in connect hooks");
    }
    if sys::netns_cookie().is_err() {
        return Some("cookies of network namespaces");
    }
    let Ok(classifier) = sys::load_program(SCHED_CLS, 0, &NOTHING) else {
        return Some("classifiers in eBPF");
    };
    if !sys::has_tcx(classifier.as_fd()) && !has_filters(classifier.as_fd()) {
        return Some("hooks for packets: neither tcx nor clsact with eBPF filters");
    }
    None
}

/// Returns `true` if filters can be attached: tried on the loopback interface of a new network namespace. If
/// none can be created, the answer is `true`, and attaching will show.
fn has_filters(classifier: BorrowedFd<'_>) -> bool {
    std::thread::scope(|scope| {
        #[expect(clippy::disallowed_methods, reason = "it enters a namespace, and is joined at once")]
        let attempt = scope.spawn(|| {
            // SAFETY: takes a number; concerns this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return true;
            }
            const LOOPBACK: u32 = 1;
            Filters::new(Path::new("probe")).put(LOOPBACK, Direction::Egress, "nothing", classifier).is_ok()
        });
        attempt.join().unwrap_or(false)
    })
}
