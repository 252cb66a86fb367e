//! The process that holds a pod's namespaces open. As process 1 of a shared PID namespace it also reaps
//! orphans. It ends on SIGTERM and SIGINT and uses no library, not even libc.

#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};

const SIGINT: u64 = 2;
const SIGTERM: u64 = 15;
const SIGCHLD: u64 = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const EXIT_GROUP: usize = 231;
    pub const RT_SIGTIMEDWAIT: usize = 128;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const WAIT4: usize = 260;
    pub const EXIT_GROUP: usize = 94;
    pub const RT_SIGTIMEDWAIT: usize = 137;
}

/// Makes a system call with up to four arguments.
///
/// # Safety
///
/// The arguments must be valid for the call; pointers must stay valid while it runs.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result;
    // SAFETY: the kernel clobbers rcx and r11 only; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
             in("rdx") c, in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call with up to four arguments.
///
/// # Safety
///
/// The arguments must be valid for the call; pointers must stay valid while it runs.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result;
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b,
             in("x2") c, in("x3") d, options(nostack));
    }
    result
}

/// Entry point of the program: aligns the stack as the ABI requires, then calls `main`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {main}", main = sym main);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("bl {main}", main = sym main);
}

/// Waits for signals synchronously. No handler runs, so nothing can be interrupted.
extern "C" fn main() -> ! {
    let set: u64 = (1 << (SIGINT - 1)) | (1 << (SIGTERM - 1)) | (1 << (SIGCHLD - 1));
    let pointer = &raw const set as usize;
    // SAFETY: `set` outlives the calls and is the eight bytes that the kernel's signal set has.
    unsafe { syscall(number::RT_SIGPROCMASK, SIG_BLOCK, pointer, 0, 8) };
    loop {
        // SAFETY: as above; without an info buffer and without a timeout.
        let signal = unsafe { syscall(number::RT_SIGTIMEDWAIT, pointer, 0, 0, 8) };
        if signal == SIGINT as isize || signal == SIGTERM as isize {
            // SAFETY: takes a number and does not return.
            unsafe { syscall(number::EXIT_GROUP, 0, 0, 0, 0) };
        }
        // SAFETY: no status and no usage is asked for.
        while unsafe { syscall(number::WAIT4, usize::MAX, 0, WNOHANG, 0) } > 0 {}
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
