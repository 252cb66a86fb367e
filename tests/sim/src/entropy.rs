//! The process' own randomness, derived from the seed.
//!
//! The product takes random bits from `Ambient`, but the libraries below it ask the operating system: for the
//! keys of every `HashMap`, and thus for the order in which `tokio` polls the branches of a `select!` and
//! wakes the receivers of a watch channel. This module answers instead, so that these are repeatable as well.
//! It affects only threads that asked for it.
// A named exception: the symbol of the C library cannot be overridden in safe code.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

thread_local! {
    /// State of the sequence; `None` if the operating system answers.
    static SERIES: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns the next random number of a sequence (SplitMix64).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Runs `work` on a thread whose random bits are all derived from `seed`.
///
/// # Panics
///
/// Panics if `work` does.
pub fn on_seeded_thread<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().name("simulation".to_owned()).stack_size(16 << 20);
    let running = thread
        .spawn(move || {
            SERIES.set(Some(seed ^ 0x5eed_5eed_5eed_5eed));
            work()
        })
        .expect("the system has room for one more thread");
    match running.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Replaces the C library's function of this name in the whole program: the standard library resolves the
/// name to this definition.
///
/// # Safety
///
/// `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    let Some(mut state) = SERIES.try_with(Cell::get).unwrap_or(None) else {
        // SAFETY: the caller's buffer and length are passed on as they are.
        let answer = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return isize::try_from(answer).unwrap_or(-1);
    };
    // SAFETY: the caller says that the buffer is valid for that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next(&mut state).to_le_bytes()[..chunk.len()]);
    }
    SERIES.set(Some(state));
    isize::try_from(length).unwrap_or(isize::MAX)
}
