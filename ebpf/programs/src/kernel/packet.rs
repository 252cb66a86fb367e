//! Reads and rewrites packets with Ethernet headers. A packet is given by the addresses of its first byte and
//! of the byte after its last, as from the kernel.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::bpf_fib_lookup;
use ebpf_common::flow::FlowKey;
use ebpf_common::protocol;

use super::family::{Address, Family};

pub const ETHERNET: usize = 14;
/// Offset of the field with the network protocol.
pub const ETHERTYPE: usize = 12;
pub const IP: usize = ETHERNET;
/// The v4 fields without a v6 equivalent.
pub const IP_CHECK: usize = IP + 10;
/// The "more fragments" bit and the fragment offset.
const FRAGMENT: u16 = 0x3fff_u16.to_be();

/// Offsets from the start of the transport header.
pub const TCP_CHECK: usize = 16;
pub const UDP_CHECK: usize = 6;
/// Headers of the transport protocols.
pub const TCP_HEADER: usize = 20;
pub const UDP_HEADER: usize = 8;

/// Flags of a segment, or of the first chunk of SCTP, about the state of its connection.
pub mod tcp_flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;
}

/// The part of a datagram that a packet contains.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    Whole = 0,
    /// The first fragment: the others take its ports.
    First = 1,
    /// A further fragment, which has no transport header.
    Later = 2,
}

/// The properties of a packet that the decision needs.
#[repr(C)]
pub struct Packet<A> {
    pub key: FlowKey<A>,
    /// Offset of the transport header.
    pub l4: u32,
    /// Identification of the datagram, if this is a fragment.
    pub identification: u32,
    /// Bits of [`tcp_flag`]; for SCTP, their equivalents.
    pub flags: u8,
    /// Number of remaining hops.
    pub hops: u8,
    pub part: Part,
    /// Padding to a whole word: functions that the kernel verifies separately read all of it.
    pub reserved: u8,
}

impl<A> Packet<A> {
    /// Returns `true` if the packet opens a connection.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        self.flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN
    }

    /// Returns `true` for protocols without connections.
    #[inline(always)]
    pub fn is_datagram(&self) -> bool {
        self.protocol() != protocol::TCP && self.protocol() != protocol::SCTP
    }

    /// Returns `true` for an echo request or reply, which has an identifier in place of ports.
    #[inline(always)]
    pub fn is_echo(&self) -> bool {
        self.protocol() == protocol::ICMP || self.protocol() == protocol::ICMP6
    }

    /// Returns the IP protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.key.protocol as u8
    }

    /// Returns the offset of the transport checksum from the start of the packet; SCTP's is not an internet
    /// checksum.
    #[inline(always)]
    pub fn check_offset(&self) -> u32 {
        self.l4 + if self.protocol() == protocol::TCP { TCP_CHECK } else { UDP_CHECK } as u32
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
/// The caller keeps to the contract of [`load`].
#[inline(always)]
pub unsafe fn store<T: Copy>(data: usize, offset: usize, value: T) {
    // SAFETY: by the contract of this function.
    unsafe { ((data + offset) as *mut T).write_volatile(value) }
}

/// Returns `true` for a header without options or extensions, of a packet that is not a fragment.
///
/// # Safety
/// The program must have compared `data + offset + F::HEADER` with the end of the packet.
#[inline(always)]
pub unsafe fn is_plain<F: Family>(data: usize, offset: usize) -> bool {
    // SAFETY: by the contract of this function.
    unsafe {
        let first: u8 = load(data, offset);
        if F::VERSION == 4 {
            first == 0x45 && load::<u16>(data, offset + 6) & FRAGMENT == 0
        } else {
            first >> 4 == 6
        }
    }
}

/// Returns the protocol number in a header.
///
/// # Safety
/// The caller keeps to the contract of [`is_plain`].
#[inline(always)]
pub unsafe fn next_protocol<F: Family>(data: usize, offset: usize) -> u8 {
    // SAFETY: by the contract of this function.
    unsafe { load(data, offset + if F::VERSION == 4 { 9 } else { 6 }) }
}

/// Reads the headers of a plain packet of TCP or UDP; returns `false` if it is anything else, or truncated.
/// The caller has checked the Ethernet type.
#[inline(always)]
pub fn parse_plain<F: Family>(data: usize, end: usize, packet: &mut Packet<F::Address>) -> bool {
    let l4 = IP + F::HEADER;
    if data + l4 + UDP_HEADER > end {
        return false;
    }
    // SAFETY: compared with the end above; TCP's further fields are compared below.
    unsafe {
        if !is_plain::<F>(data, IP) {
            return false;
        }
        let number = next_protocol::<F>(data, IP);
        let mut flags = 0;
        if number == protocol::TCP {
            if data + l4 + TCP_HEADER > end {
                return false;
            }
            flags = load::<u8>(data, l4 + 13);
        } else if number != protocol::UDP {
            return false;
        }
        copy((data + IP + F::SOURCE) as *const _, &mut packet.key.source);
        copy((data + IP + F::DESTINATION) as *const _, &mut packet.key.destination);
        set_ports(&raw mut packet.key.source_port, load(data, l4));
        packet.key.protocol = number as u32;
        packet.l4 = l4 as u32;
        packet.identification = 0;
        packet.flags = flags;
        packet.hops = load(data, IP + F::HOPS);
        packet.part = Part::Whole;
        packet.reserved = 0;
        true
    }
}

/// The rewritten ends of a packet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct To<A> {
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    /// Bits of [`ebpf_common::flow::flow_flag`].
    pub flags: u32,
    /// Index of the flow's slot.
    pub slot: u32,
}

/// The change of the sums over the packet by a rewrite, in one's complement.
pub struct Delta {
    /// Change by the two addresses: v4 header and pseudo header.
    pub addresses: u64,
    /// Change by the two ports.
    pub ports: u64,
}

impl Delta {
    #[inline(always)]
    pub fn new<A: Address>(old: &FlowKey<A>, new: &To<A>) -> Self {
        let addresses = old.source.sum_of_complement()
            + new.source.sum()
            + old.destination.sum_of_complement()
            + new.destination.sum();
        let ports = (!ports(old.source_port, old.destination_port)) as u64
            + ports(new.source_port, new.destination_port) as u64;
        Self { addresses, ports }
    }
}

/// Returns both ports as one word, in the form of packets.
#[inline(always)]
pub fn ports(source: u16, destination: u16) -> u32 {
    source as u32 | (destination as u32) << 16
}

/// Writes both ports by one store; they are later read as one word. A word that was written by halves is
/// forwarded to a load only when these have reached the cache, after all earlier stores: the processor would
/// not begin with the next packet while it waits for the memory that this one needs.
///
/// # Safety
/// `source` must lead to the first port of two in a row, at an aligned word.
#[inline(always)]
pub unsafe fn set_ports(source: *mut u16, ports: u32) {
    // SAFETY: by the contract of this function.
    unsafe { source.cast::<u32>().write_volatile(ports) }
}

/// Folds a sum to 32 bits.
#[inline(always)]
pub fn fold32(sum: u64) -> u64 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Folds a sum to 16 bits.
#[inline(always)]
pub fn fold(sum: u64) -> u16 {
    let sum = fold32(sum);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// Returns the checksum after the covered words have changed by `delta`.
#[inline(always)]
pub fn adjusted(check: u16, delta: u64) -> u16 {
    !fold((!check) as u64 + delta)
}

/// Writes the new addresses to the header, and counts one hop if `hop`. `addresses` is the value in
/// [`Delta`].
///
/// # Safety
/// The program must have compared `data + IP + F::HEADER` with the end of the packet.
#[inline(always)]
pub unsafe fn rewrite_ip<F: Family>(data: usize, to: &To<F::Address>, addresses: u64, hop: bool) {
    // SAFETY: by the contract of this function.
    unsafe {
        if F::VERSION == 4 {
            let change = addresses + if hop { count_hop4(data) } else { 0 };
            store(data, IP_CHECK, adjusted(load(data, IP_CHECK), change));
        } else if hop {
            let hops: u8 = load(data, IP + F::HOPS);
            store(data, IP + F::HOPS, hops - 1);
        }
        copy(&to.source, (data + IP + F::SOURCE) as *mut _);
        copy(&to.destination, (data + IP + F::DESTINATION) as *mut _);
    }
}

/// Counts one hop in a v4 header, whose checksum the caller corrects by the result.
///
/// # Safety
/// The program must have compared `data + IP + 20` with the end of the packet.
#[inline(always)]
pub unsafe fn count_hop4(data: usize) -> u64 {
    // The word holds the time to live and the protocol; its first byte is the lower one.
    const TIME_TO_LIVE: usize = IP + 8;
    // SAFETY: by the contract of this function.
    unsafe {
        let word: u16 = load(data, TIME_TO_LIVE);
        store(data, TIME_TO_LIVE, word - 1);
        (!word) as u64 + (word - 1) as u64
    }
}

/// Writes zero to every word of a value. The compiler would call a function that clears single bytes, even
/// where a cleared value is moved to its place.
///
/// # Safety
/// All zero must be a value of the type.
#[inline(always)]
pub unsafe fn cleared<T>(value: &mut MaybeUninit<T>) -> &mut T {
    const { assert!(size_of::<T>() % size_of::<u32>() == 0 && align_of::<T>() >= align_of::<u32>()) };
    for word in 0..size_of::<T>() / size_of::<u32>() {
        // SAFETY: within the value, whose alignment is at least that of its words.
        unsafe { value.as_mut_ptr().cast::<u32>().add(word).write_volatile(0) };
    }
    // SAFETY: every byte has been written, and by the contract that is a value.
    unsafe { value.assume_init_mut() }
}

/// Copies a value word by word: the compiler would call a function that copies single bytes.
///
/// # Safety
/// Both must lead to values; others may write the first one at the same time.
#[inline(always)]
pub unsafe fn copy<T: Copy>(from: *const T, to: *mut T) {
    const { assert!(size_of::<T>() % size_of::<u32>() == 0 && align_of::<T>() >= align_of::<u32>()) };
    for word in 0..size_of::<T>() / size_of::<u32>() {
        // SAFETY: by the contract of this function; within the values.
        unsafe {
            let value = from.cast::<u32>().add(word).read_volatile();
            to.cast::<u32>().add(word).write_volatile(value);
        }
    }
}

/// Returns the query for the route of a packet to `to`; of the unions, the members of the family are set.
#[inline(always)]
pub fn fib_query<'a, F: Family>(
    query: &'a mut MaybeUninit<bpf_fib_lookup>,
    number: u8,
    to: &To<F::Address>,
    ifindex: u32,
) -> &'a mut bpf_fib_lookup {
    // SAFETY: all fields are integers.
    let query = unsafe { cleared(query) };
    query.family = F::AF;
    query.l4_protocol = number;
    query.sport = to.source_port;
    query.dport = to.destination_port;
    query.ifindex = ifindex;
    query.__bindgen_anon_3.ipv6_src = to.source.words();
    query.__bindgen_anon_4.ipv6_dst = to.destination.words();
    query
}
