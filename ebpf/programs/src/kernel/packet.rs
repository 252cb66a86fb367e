//! Reading and rewriting IPv4 packets with Ethernet headers. A packet is given by the addresses
//! of its first byte and of the byte after its last, as the kernel hands them out.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::bpf_fib_lookup;
use ebpf_common::flow::{Flow4, FlowKey4};
use ebpf_common::protocol;

pub const ETHERNET: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800_u16.to_be();
/// Version 4, header of 20 bytes. A header with options is left to the stack.
const VERSION_AND_LENGTH: u8 = 0x45;
/// The "more fragments" bit and the fragment offset.
const FRAGMENT: u16 = 0x3fff_u16.to_be();

pub const IP: usize = ETHERNET;
pub const IP_TTL: usize = IP + 8;
pub const IP_CHECK: usize = IP + 10;
pub const IP_SOURCE: usize = IP + 12;
pub const IP_DESTINATION: usize = IP + 16;
pub const L4: usize = IP + 20;
pub const TCP_CHECK: usize = L4 + 16;
pub const UDP_CHECK: usize = L4 + 6;

/// Shortest packets that are looked at.
pub const UDP_HEADERS: usize = L4 + 8;
pub const TCP_HEADERS: usize = L4 + 20;

pub mod tcp_flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;
}

/// What the decision needs to know of a packet.
pub struct Packet {
    pub key: FlowKey4,
    /// Flags of a TCP segment; 0 otherwise.
    pub tcp_flags: u8,
    pub ttl: u8,
}

impl Packet {
    /// The segment asks for a new connection.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        self.tcp_flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN
    }

    /// IP protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.key.protocol as u8
    }

    /// Offset of the transport checksum from the start of the packet.
    #[inline(always)]
    pub fn check_offset(&self) -> usize {
        if self.protocol() == protocol::TCP { TCP_CHECK } else { UDP_CHECK }
    }
}

/// Loads a value at an offset. Multi-byte values are loaded by one instruction.
///
/// # Safety
/// `data + offset + size_of::<T>()` must not exceed the end of the packet, and the program must
/// have compared them. Alignment does not matter: the kernel loads these programs only on
/// machines with efficient unaligned access, or refuses them.
#[inline(always)]
pub unsafe fn load<T: Copy>(data: usize, offset: usize) -> T {
    // SAFETY: by the contract of this function.
    unsafe { ((data + offset) as *const T).read_volatile() }
}

/// Stores a value at an offset.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub unsafe fn store<T: Copy>(data: usize, offset: usize, value: T) {
    // SAFETY: by the contract of this function.
    unsafe { ((data + offset) as *mut T).write_volatile(value) }
}

/// An IPv4 header without options, of a packet that is no fragment.
///
/// # Safety
/// The program must have compared `data + offset + 20`, and `data + ETHERNET`, with the end of the
/// packet.
#[inline(always)]
pub unsafe fn is_plain(data: usize, offset: usize) -> bool {
    // SAFETY: by the contract of this function.
    unsafe {
        load::<u16>(data, 12) == ETHERTYPE_IPV4
            && load::<u8>(data, offset) == VERSION_AND_LENGTH
            && load::<u16>(data, offset + 6) & FRAGMENT == 0
    }
}

/// Reads the headers; none if the packet is not for these programs: another network or transport
/// protocol, a fragment, a header with options, or cut short.
#[inline(always)]
pub fn parse(data: usize, end: usize) -> Option<Packet> {
    if data + UDP_HEADERS > end {
        return None;
    }
    // SAFETY: compared with the end above; TCP's further fields are compared below.
    unsafe {
        if !is_plain(data, IP) {
            return None;
        }
        let number = load::<u8>(data, IP + 9);
        if number != protocol::TCP && number != protocol::UDP {
            return None;
        }
        let mut tcp_flags = 0;
        if number == protocol::TCP {
            if data + TCP_HEADERS > end {
                return None;
            }
            tcp_flags = load::<u8>(data, L4 + 13);
        }
        Some(Packet {
            key: FlowKey4 {
                source: load(data, IP_SOURCE),
                destination: load(data, IP_DESTINATION),
                source_port: load(data, L4),
                destination_port: load(data, L4 + 2),
                protocol: number as u32,
            },
            tcp_flags,
            ttl: load(data, IP_TTL),
        })
    }
}

/// What a rewrite adds to the sums over the packet, in one's complement.
pub struct Delta {
    /// Of the two addresses: IP header and pseudo header.
    pub addresses: u64,
    /// Of the two ports.
    pub ports: u64,
}

impl Delta {
    #[inline(always)]
    pub fn new(old: &FlowKey4, new: &Flow4) -> Self {
        let addresses =
            (!old.source) as u64 + new.source as u64 + (!old.destination) as u64 + new.destination as u64;
        let ports = (!ports(old.source_port, old.destination_port)) as u64
            + ports(new.source_port, new.destination_port) as u64;
        Self { addresses, ports }
    }
}

/// Both ports as one word, as the packet has them.
#[inline(always)]
pub fn ports(source: u16, destination: u16) -> u32 {
    source as u32 | (destination as u32) << 16
}

/// Folds a sum to 16 bits.
#[inline(always)]
pub fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// The checksum after the covered words have changed by `delta`.
#[inline(always)]
pub fn adjusted(check: u16, delta: u64) -> u16 {
    !fold((!check) as u64 + delta)
}

/// Puts the new addresses into the IP header, one hop further on when `hop`.
///
/// # Safety
/// The program must have compared `data + L4` with the end of the packet.
#[inline(always)]
pub unsafe fn rewrite_ip(data: usize, flow: &Flow4, delta: &Delta, hop: bool) {
    // SAFETY: by the contract of this function.
    unsafe {
        let mut change = delta.addresses;
        if hop {
            // The word holds the time to live and the protocol; its first byte is the lower one.
            let word: u16 = load(data, IP_TTL);
            change += (!word) as u64 + (word - 1) as u64;
            store(data, IP_TTL, word - 1);
        }
        store(data, IP_CHECK, adjusted(load(data, IP_CHECK), change));
        store(data, IP_SOURCE, flow.source);
        store(data, IP_DESTINATION, flow.destination);
    }
}

/// Parameters for bpf_fib_lookup, all zero. Cleared word by word: the linker would call a function
/// that clears single bytes.
#[inline(always)]
pub fn fib_query() -> bpf_fib_lookup {
    let mut query = MaybeUninit::<bpf_fib_lookup>::uninit();
    const WORDS: usize = size_of::<bpf_fib_lookup>() / size_of::<u32>();
    const _: () = assert!(size_of::<bpf_fib_lookup>() == 64 && align_of::<bpf_fib_lookup>() == 4);
    for word in 0..WORDS {
        // SAFETY: within the value, whose alignment is that of its words.
        unsafe { query.as_mut_ptr().cast::<u32>().add(word).write_volatile(0) };
    }
    // SAFETY: every word has been written; all fields are integers.
    unsafe { query.assume_init() }
}
