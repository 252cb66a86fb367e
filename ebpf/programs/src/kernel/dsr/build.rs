//! The data that is put into packets and taken out of them, as words in the order of the packet: the same for
//! buffers and for XDP.

use ebpf_common::flow::FlowKey;

use super::{
    HOPS, IPIP, IPV6, OPTION4, OPTION4_LENGTH, OPTION6, OPTION6_DATA, OPTION6_LENGTH, WORDS, option_length,
};
use crate::kernel::family::{Address as _, Family};
use crate::kernel::packet::{self, IP, IP_CHECK};

/// Builds the option that names the frontend, to which the client sent the packet; `next` is the following
/// protocol, which only the option of IPv6 contains.
#[inline(always)]
pub fn option<F: Family>(key: &FlowKey<F::Address>, next: u8, words: &mut [u32; WORDS]) {
    let port = key.destination_port as u32;
    let address = key.destination.words();
    if F::VERSION == 4 {
        words[0] = OPTION4 as u32 | (OPTION4_LENGTH as u32) << 8 | port << 16;
        words[1] = address[0];
    } else {
        words[0] = next as u32 | first6();
        // The port and the address, which therefore begins in the middle of a word.
        words[1] = port | address[0] << 16;
        words[2] = address[0] >> 16 | address[1] << 16;
        words[3] = address[1] >> 16 | address[2] << 16;
        words[4] = address[2] >> 16 | address[3] << 16;
        words[5] = address[3] >> 16;
    }
}

/// Returns the first word of the option of IPv6, without the following protocol.
const fn first6() -> u32 {
    ((OPTION6_LENGTH as u32 / 8 - 1) << 8) | (OPTION6 as u32) << 16 | OPTION6_DATA << 24
}

/// Returns the port and the address in an option; `None` if the words are something else.
#[inline(always)]
pub fn named<F: Family>(words: &[u32; 6]) -> Option<(u16, F::Address)> {
    let (present, port, address) = if F::VERSION == 4 {
        let present = words[0] as u16 == OPTION4 as u16 | (OPTION4_LENGTH as u16) << 8;
        (present, (words[0] >> 16) as u16, [words[1], 0, 0, 0])
    } else {
        let join = |at: usize| words[at] >> 16 | words[at + 1] << 16;
        (words[0] & !0xff == first6(), words[1] as u16, [join(1), join(2), join(3), join(4)])
    };
    present.then(|| (port, F::Address::from_words(&address)))
}

/// Returns the second word of a header of IPv6 after an option has been added (`next` is then
/// [`super::DESTINATION_OPTIONS`]) or removed.
#[inline(always)]
pub fn second6(word: u32, next: u8, more: i16) -> u32 {
    let payload = u16::from_be(word as u16).wrapping_add_signed(more).to_be();
    payload as u32 | (next as u32) << 16 | word & 0xff00_0000
}

/// Makes a header of IPv4 longer (`more` is 1) or shorter (-1) by an option of two words, which has been
/// added or removed.
///
/// # Safety
/// The program must have compared `data + IP + 20` with the end of the packet.
#[inline(always)]
pub unsafe fn resize4(data: usize, more: i8, option: u32, address: u32) {
    // SAFETY: by the contract of this function.
    unsafe {
        let first: u32 = packet::load(data, IP);
        let total =
            u16::from_be((first >> 16) as u16).wrapping_add_signed(more as i16 * OPTION4_LENGTH as i16);
        let length = (first as u8).wrapping_add_signed(more * 2);
        let new = first & 0xff00 | length as u32 | (total.to_be() as u32) << 16;
        let change = if more > 0 { option as u64 + address as u64 } else { !option as u64 + !address as u64 };
        let check = packet::load(data, IP_CHECK);
        packet::store(data, IP_CHECK, packet::adjusted(check, change + !first as u64 + new as u64));
        packet::store(data, IP, new);
    }
}

/// Builds the header around a packet; `inner` is the beginning of the packet's own.
#[inline(always)]
pub fn outer<F: Family>(
    inner: &[u32; 3],
    source: &F::Address,
    backend: &F::Address,
    words: &mut [u32; WORDS],
) {
    let (from, at) = (source.words(), backend.words());
    if F::VERSION == 4 {
        let total = u16::from_be((inner[0] >> 16) as u16).wrapping_add(F::HEADER as u16);
        words[0] = 0x45 | inner[0] & 0xff00 | (total.to_be() as u32) << 16;
        // No identification, and "don't fragment".
        words[1] = 0x40 << 16;
        words[2] = HOPS | (IPIP as u32) << 8;
        words[3] = from[0];
        words[4] = at[0];
        let sum = words[0] as u64 + words[1] as u64 + words[2] as u64 + words[3] as u64 + words[4] as u64;
        words[2] |= (!packet::fold(sum) as u32) << 16;
    } else {
        let length = u16::from_be(inner[1] as u16).wrapping_add(F::HEADER as u16);
        words[0] = inner[0];
        words[1] = length.to_be() as u32 | (IPV6 as u32) << 16 | HOPS << 24;
        [words[2], words[3], words[4], words[5]] = from;
        [words[6], words[7], words[8], words[9]] = at;
    }
}

/// Returns the index of the word with the remaining hops, and that word with one hop less.
#[inline(always)]
pub fn one_hop<F: Family>(header: &[u32; 3]) -> (usize, u32) {
    if F::VERSION == 6 {
        return (1, header[1] - (1 << 24));
    }
    // Time to live is the lowest byte, the checksum the upper half.
    let word = header[2] - 1;
    let change = (!header[2] & 0xffff) as u64 + (word & 0xffff) as u64;
    let check = packet::adjusted((header[2] >> 16) as u16, change);
    (2, word & 0xffff | (check as u32) << 16)
}

/// Returns the number of bytes that are added to a packet of a direct flow.
#[inline(always)]
pub fn room<F: Family>(outer: bool, option: bool) -> usize {
    if outer {
        F::HEADER
    } else if option {
        option_length::<F>()
    } else {
        0
    }
}
