//! The checksum of SCTP: CRC32c over the whole packet, without addresses.
//!
//! It is linear: the effect of a changed word follows from the change and its distance from the end alone. So
//! no byte of the packet is read, however long it is.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::bpf_skb_store_bytes;

use super::{packet, read};

/// Castagnoli's polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1, bits reversed.
const ONE: u32 = 1 << 31;
/// Offset of the checksum.
pub const CHECK: u32 = 8;
/// Bits of a distance: a packet has less than 2^16 bytes.
const BITS: usize = 16;

/// x^(8 * 2^n) modulo the polynomial, for each n: the factor of a distance of 2^n bytes.
const SHIFTS: [u32; BITS] = {
    let mut shifts = [0; BITS];
    // x^8
    let mut value = ONE >> 8;
    let mut n = 0;
    while n < BITS {
        shifts[n] = value;
        value = product(value, value);
        n += 1;
    }
    shifts
};

/// Returns the product of two polynomials, modulo the polynomial.
const fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut b, mut bit) = (0, b, 0);
    while bit < 32 {
        sum ^= b & (a << bit >> 31).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
        bit += 1;
    }
    sum
}

/// [`product`], verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn multiply(a: u32, b: u32) -> u32 {
    product(a, b)
}

/// Returns the change of the checksum by the exclusive-or of `change` into the word that ends `distance`
/// bytes before the end. The word is as loaded from the packet.
#[inline(always)]
fn effect(change: u32, distance: u32) -> u32 {
    // The checksum of four bytes is their remainder four bytes further on.
    let mut value = multiply(change, SHIFTS[2]);
    macro_rules! shift {
        ($($n:literal)*) => {
            $(if distance >> $n & 1 == 1 {
                value = multiply(value, SHIFTS[$n]);
            })*
        };
    }
    shift!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    value
}

/// Changes the ports and the checksum of a packet, or of the first fragment of one, which has `length` bytes
/// as a whole. A checksum of zero is one that a device has yet to fill in; returns `false` if it cannot be
/// computed.
#[inline(always)]
pub fn change_ports(skb: *mut __sk_buff, l4: u32, length: u32, old: u32, new: u32) -> bool {
    let mut header = MaybeUninit::<[u32; 3]>::uninit();
    // SAFETY: words may be zero.
    let header = unsafe { packet::cleared(&mut header) };
    if read::load(skb, l4, header, 12).is_none() {
        return false;
    }
    let check = header[2];
    // SAFETY: the context is the one that the kernel gave; the values live on the stack, the
    // helpers check offsets.
    unsafe {
        if check != 0 {
            let check = check ^ effect(old ^ new, length.wrapping_sub(4));
            let from = (&raw const check).cast();
            if bpf_skb_store_bytes(skb, l4 + CHECK, from, 4, BPF_F_RECOMPUTE_CSUM as u64) != 0 {
                return false;
            }
        }
        bpf_skb_store_bytes(skb, l4, (&raw const new).cast(), 4, BPF_F_RECOMPUTE_CSUM as u64) == 0
    }
}

/// Returns the checksum of a short packet of `N` words.
#[inline(always)]
pub fn checksum<const N: usize>(words: &[u32; N]) -> u32 {
    let mut value = u32::MAX;
    for word in words {
        value = multiply(value ^ *word, SHIFTS[2]);
    }
    !value
}
