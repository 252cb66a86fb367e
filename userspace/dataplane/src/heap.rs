//! Memory of this process.

/// Gives what has been freed back to the kernel. The allocator keeps it otherwise, and the first
/// lists of a large cluster leave much behind. Takes milliseconds; does nothing where the C library
/// has no call for it.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number only, and locks the allocator's arenas itself.
    unsafe {
        libc::malloc_trim(0);
    }
}
