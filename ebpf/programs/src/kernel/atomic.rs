//! Operations that the compiler cannot be made to emit: it assumes a target with a single processor, and
//! knows nothing of the kernel's verifier.

use core::arch::asm;

/// Stores `new` if there is `old`; returns the previous value. A full barrier if it stores.
///
/// # Safety
/// `place` must lead to an aligned word of a map.
#[inline(always)]
pub unsafe fn exchange_if(place: *mut u32, old: u32, new: u32) -> u32 {
    let found;
    // SAFETY: by the contract of this function. The compiler would use a load and a store.
    unsafe {
        asm!("w0 = cmpxchg32_32({place} + 0, w0, {new})", place = in(reg) place, new = in(wreg) new,
            inout("w0") old => found);
    }
    found
}

/// Does the same as [`exchange_if`] for a word of 64 bits.
///
/// # Safety
/// The caller keeps to the contract of [`exchange_if`].
#[inline(always)]
pub unsafe fn exchange_long_if(place: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: as in `exchange_if`.
    unsafe {
        asm!("r0 = cmpxchg_64({place} + 0, r0, {new})", place = in(reg) place, new = in(reg) new,
            inout("r0") old => found);
    }
    found
}

/// Adds one; returns the previous value.
///
/// # Safety
/// The caller keeps to the contract of [`exchange_if`].
#[inline(always)]
pub unsafe fn count_up(place: *mut u32) -> u32 {
    let value;
    // SAFETY: as in `exchange_if`.
    unsafe {
        asm!("{value} = atomic_fetch_add((u32 *)({place} + 0), {value})", place = in(reg) place,
            value = inout(wreg) 1 => value);
    }
    value
}

/// Stores `new`; returns the previous value. A full barrier.
///
/// # Safety
/// The caller keeps to the contract of [`exchange_if`].
#[inline(always)]
pub unsafe fn exchange(place: *mut u32, new: u32) -> u32 {
    let found;
    // SAFETY: as in `exchange_if`.
    unsafe {
        asm!("{value} = xchg32_32({place} + 0, {value})", place = in(reg) place, value = inout(wreg) new => found);
    }
    found
}

/// Adds to a word.
///
/// # Safety
/// `place` must lead to an aligned word of a map.
#[inline(always)]
pub unsafe fn add(place: *mut u64, value: u64) {
    // SAFETY: by the contract of this function. The compiler would use a load and a store.
    unsafe {
        asm!("lock *(u64 *)({place} + 0) += {value}", place = in(reg) place, value = in(reg) value);
    }
}

/// Returns the value, as a number of which the kernel's verifier knows nothing: it would follow each value of
/// a loop separately. `any` is a number that it does not know.
#[inline(always)]
pub fn unknown(value: u32, any: u32) -> u32 {
    let result;
    // SAFETY: adds a number and subtracts it again.
    unsafe {
        asm!("{value} += {any}", "{value} -= {any}", value = inout(wreg) value => result, any = in(wreg) any,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// Returns a number that is known to be from 1 to `MOST`, which Linux 6.1 does not see for itself: there, a
/// comparison says nothing about copies of its register, nor does one with zero say anything at all.
#[inline(always)]
pub fn within<const MOST: usize>(number: u32) -> u32 {
    let mut number = u64::from(number);
    // SAFETY: computes with one register.
    unsafe {
        asm!("if {number} <= {most} goto +1", "{number} = {most}", "if {number} > 0 goto +1", "{number} = 1",
            number = inout(reg) number, most = const MOST, options(nomem, nostack));
    }
    number as u32
}
