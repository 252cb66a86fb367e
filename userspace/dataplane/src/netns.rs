//! Cookies of network namespaces: the kernel's lasting numbers for them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::sys;

/// Returns the cookie of this thread's network namespace; greater than 0.
///
/// # Errors
/// Fails if the kernel has no such cookies (before Linux 5.14), or refuses a socket.
pub fn own_netns_cookie() -> io::Result<u64> {
    sys::netns_cookie()
}

/// Returns the cookie of the network namespace that a file such as `/proc/PID/ns/net` leads to. A new thread
/// enters it and ends there. Blocks for less than a millisecond.
///
/// # Errors
/// Fails if there is no such file, or if it may not be entered.
pub fn netns_cookie(namespace: &Path) -> io::Result<u64> {
    let file = File::open(namespace)?;
    #[expect(clippy::disallowed_methods, reason = "it enters a namespace, and is joined at once")]
    let thread = std::thread::Builder::new().name("netns-cookie".to_owned()).spawn(move || {
        // SAFETY: the call takes numbers only; it changes this thread alone.
        if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        sys::netns_cookie()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_namespace_is_an_error() {
        assert!(netns_cookie(Path::new("/proc/self/status")).is_err());
        assert!(netns_cookie(Path::new("/proc/0/ns/net")).is_err());
    }

    #[test]
    #[ignore = "enters namespaces: needs root"]
    fn the_own_namespace_has_the_same_cookie_by_both_ways() {
        let own = own_netns_cookie().unwrap();
        assert!(own > 0);
        assert_eq!(netns_cookie(Path::new("/proc/self/ns/net")).unwrap(), own);
    }
}
