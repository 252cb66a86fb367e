//! Kernel programs for measurements, assembled instruction by instruction. Each has a few dozen instructions
//! with its parameters as constants in the code, so neither a compiler for the kernel nor a loader is needed.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::bpf;

/// Size of every frame in bytes: 64 on the wire, which adds a checksum.
pub const FRAME: usize = 60;
const ETHERNET: usize = 14;
const IP_CHECK: i16 = 24;
const IP_SOURCE: i16 = 26;
const IP_DESTINATION: i16 = 30;
const L4_SOURCE: i16 = 34;
const L4_DESTINATION: i16 = 36;
const TCP_FLAGS: usize = 47;

pub const SYN: u8 = 2;
pub const ACK: u8 = 16;
pub const XDP_DROP: i32 = 1;
pub const XDP_PASS: i32 = 2;
pub const XDP_TX: i32 = 3;
/// Flows that share a source address: their ports are 1024 and up.
const FLOWS_PER_SOURCE_BITS: i32 = 14;

/// Type of a program, which decides where it finds its packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Xdp,
    Tcx,
}

impl Kind {
    pub fn of(self) -> bpf::Type {
        match self {
            Self::Xdp => bpf::XDP,
            Self::Tcx => bpf::TCX,
        }
    }

    /// Returns the offsets of `data` and `data_end` in the context.
    fn bounds(self) -> (i16, i16) {
        match self {
            Self::Xdp => (0, 4),
            Self::Tcx => (76, 80),
        }
    }
}

/// Frames of many flows. Flow `i` has a source of its own and goes to service `i % services`.
#[derive(Clone)]
pub struct Traffic {
    pub frame: [u8; FRAME],
    pub flows: u32,
    pub services: u32,
    pub first_source: Ipv4Addr,
    pub first_vip: Ipv4Addr,
}

impl Traffic {
    /// Describes TCP segments with these flags, or, without flags, UDP datagrams without a checksum.
    pub fn new(
        tcp_flags: Option<u8>,
        port: u16,
        (destination, source): ([u8; 6], [u8; 6]),
        (flows, services): (u32, u32),
        first_vip: Ipv4Addr,
    ) -> Self {
        assert!(flows > 0 && services > 0, "{flows} flows to {services} services");
        let mut frame = [0; FRAME];
        frame[..6].copy_from_slice(&destination);
        frame[6..12].copy_from_slice(&source);
        frame[12] = 8;
        let length = (FRAME - ETHERNET) as u8;
        frame[14..24].copy_from_slice(&[0x45, 0, 0, length, 0, 7, 0x40, 0, 64, 17]);
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        match tcp_flags {
            Some(flags) => {
                frame[23] = 6;
                frame[46] = 0x50;
                frame[TCP_FLAGS] = flags;
            }
            None => frame[39] = length - 20,
        }
        Self { frame, flows, services, first_source: Ipv4Addr::new(198, 18, 0, 1), first_vip }
    }

    /// Returns the sum of the IP header's words, without the addresses.
    fn header_sum(&self) -> i32 {
        self.frame[14..24].chunks(2).map(|pair| i32::from(pair[0]) << 8 | i32::from(pair[1])).sum()
    }
}

/// Action of a program after it has written its frame.
pub enum Then<'a> {
    Return(i32),
    /// Tail-call the program in this map.
    TailCall(BorrowedFd<'a>),
}

/// Returns a program that overwrites the packet with the next frame of the traffic. The counter selects the
/// flow; a program that runs alone need not share it.
pub fn fill(kind: Kind, traffic: &Traffic, counter: BorrowedFd<'_>, then: &Then<'_>) -> Vec<u64> {
    let mut code = checked(kind, FRAME as i32);
    code.extend(map_value(1, counter));
    code.extend([
        load(DOUBLE, 8, 1, 0),
        move_register(2, 8),
        immediate(ADD, 2, 1),
        // Less than the number of flows: skip the instruction that starts over.
        instruction(0xa5, 2, 0, 1, traffic.flows as i32),
        immediate(MOVE, 2, 0),
        store(DOUBLE, 1, 2, 0),
    ]);
    for (i, word) in traffic.frame.chunks(4).enumerate() {
        let word = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        code.push(instruction(0x62, 7, 0, 4 * i as i16, word));
    }
    // Register 9 accumulates the sum over the IP header.
    code.push(immediate(MOVE, 9, traffic.header_sum()));
    code.extend([move_register(2, 8), immediate(SHIFT_RIGHT, 2, FLOWS_PER_SOURCE_BITS)]);
    code.extend(address(traffic.first_source, IP_SOURCE));
    code.extend([move_register(2, 8), immediate(MODULO, 2, traffic.services as i32)]);
    code.extend(address(traffic.first_vip, IP_DESTINATION));
    code.extend([
        move_register(2, 8),
        immediate(AND, 2, (1 << FLOWS_PER_SOURCE_BITS) - 1),
        immediate(ADD, 2, 1024),
        big_endian(2, 16),
        store(HALF, 7, 2, L4_SOURCE),
    ]);
    for _ in 0..2 {
        code.extend([
            move_register(2, 9),
            immediate(SHIFT_RIGHT, 2, 16),
            immediate(AND, 9, 0xffff),
            register(ADD, 9, 2),
        ]);
    }
    code.extend([immediate(XOR, 9, 0xffff), big_endian(9, 16), store(HALF, 7, 9, IP_CHECK)]);
    match then {
        Then::Return(verdict) => code.extend(leave(*verdict)),
        Then::TailCall(programs) => {
            code.push(move_register(1, 6));
            code.extend(map(2, *programs));
            code.extend([immediate(MOVE, 3, 0), call(12)]);
            // Reached only if there is no program in the map.
            code.extend(leave(XDP_DROP));
        }
    }
    code
}

/// Returns a program that counts and drops frames to this port and, if given, from this address; all others
/// are passed on.
pub fn sink(port: u16, source: Option<Ipv4Addr>, counter: BorrowedFd<'_>) -> Vec<u64> {
    let mut code = checked(Kind::Xdp, FRAME as i32);
    code.extend([
        load(HALF, 2, 7, L4_DESTINATION),
        // Equal: skip the two instructions that leave.
        instruction(0x15, 2, 0, 2, i32::from(port.to_be())),
    ]);
    code.extend(leave(XDP_PASS));
    if let Some(source) = source {
        // Compared as 32 bits, without sign extension.
        let source = u32::from(source).to_be() as i32;
        code.extend([load(WORD, 2, 7, IP_SOURCE), instruction(0x16, 2, 0, 2, source)]);
        code.extend(leave(XDP_PASS));
    }
    code.extend(map_value(1, counter));
    code.extend([immediate(MOVE, 2, 1), instruction(0xdb, 1, 2, 0, 0)]);
    code.extend(leave(XDP_DROP));
    code
}

/// Returns a program that sends every frame back to its source.
pub fn reflect() -> Vec<u64> {
    let mut code = checked(Kind::Xdp, FRAME as i32);
    code.extend([load(WORD, 2, 7, 0), load(HALF, 3, 7, 4), load(WORD, 4, 7, 6), load(HALF, 5, 7, 10)]);
    code.extend([store(WORD, 7, 4, 0), store(HALF, 7, 5, 4), store(WORD, 7, 2, 6), store(HALF, 7, 3, 10)]);
    code.extend(leave(XDP_TX));
    code
}

/// Returns a program that only returns this verdict.
pub fn constant(verdict: i32) -> Vec<u64> {
    leave(verdict).to_vec()
}

/// Loads the context into register 6 and the packet into 7; a shorter packet is passed on.
fn checked(kind: Kind, length: i32) -> Vec<u64> {
    let (data, end) = kind.bounds();
    let mut code = vec![
        move_register(6, 1),
        load(WORD, 7, 6, data),
        load(WORD, 2, 6, end),
        move_register(3, 7),
        immediate(ADD, 3, length),
        // Long enough: skip the two instructions that leave.
        instruction(0xbd, 3, 2, 2, 0),
    ];
    code.extend(leave(if kind == Kind::Xdp { XDP_PASS } else { -1 }));
    code
}

/// Adds `first` to register 2, writes the address into the packet and adds it to the sum.
fn address(first: Ipv4Addr, offset: i16) -> [u64; 9] {
    [
        // A 32-bit operation, without sign extension.
        instruction(0x04, 2, 0, 0, u32::from(first) as i32),
        move_register(3, 2),
        immediate(SHIFT_RIGHT, 3, 16),
        register(ADD, 9, 3),
        move_register(3, 2),
        immediate(AND, 3, 0xffff),
        register(ADD, 9, 3),
        big_endian(2, 32),
        store(WORD, 7, 2, offset),
    ]
}

const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const SHIFT_RIGHT: u8 = 0x70;
const MODULO: u8 = 0x90;
const XOR: u8 = 0xa0;
const MOVE: u8 = 0xb0;
const WORD: u8 = 0x00;
const HALF: u8 = 0x08;
const DOUBLE: u8 = 0x18;

/// Encodes `struct bpf_insn`.
fn instruction(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> u64 {
    u64::from(code)
        | u64::from(from << 4 | to) << 8
        | u64::from(offset as u16) << 16
        | u64::from(constant as u32) << 32
}

fn immediate(operation: u8, to: u8, constant: i32) -> u64 {
    instruction(operation | 0x07, to, 0, 0, constant)
}

fn register(operation: u8, to: u8, from: u8) -> u64 {
    instruction(operation | 0x0f, to, from, 0, 0)
}

fn move_register(to: u8, from: u8) -> u64 {
    register(MOVE, to, from)
}

fn load(size: u8, to: u8, base: u8, offset: i16) -> u64 {
    instruction(size | 0x61, to, base, offset, 0)
}

fn store(size: u8, base: u8, from: u8, offset: i16) -> u64 {
    instruction(size | 0x63, base, from, offset, 0)
}

fn big_endian(to: u8, bits: i32) -> u64 {
    instruction(0xdc, to, 0, 0, bits)
}

fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

fn leave(verdict: i32) -> [u64; 2] {
    [immediate(MOVE, 0, verdict), instruction(0x95, 0, 0, 0, 0)]
}

fn map(to: u8, map: BorrowedFd<'_>) -> [u64; 2] {
    [instruction(0x18, to, 1, 0, map.as_raw_fd()), 0]
}

/// Loads the address of the only element of an array.
fn map_value(to: u8, map: BorrowedFd<'_>) -> [u64; 2] {
    [instruction(0x18, to, 2, 0, map.as_raw_fd()), 0]
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const LINKS: ([u8; 6], [u8; 6]) = ([2; 6], [4; 6]);

    fn traffic(flows: u32, services: u32) -> Traffic {
        Traffic::new(None, 80, LINKS, (flows, services), Ipv4Addr::new(10, 96, 0, 1))
    }

    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        // r0 = -1; exit
        assert_eq!(constant(-1), [0xffff_ffff_0000_00b7, 0x95]);
        // *(u16 *)(r7 + 24) = r9
        assert_eq!(store(HALF, 7, 9, IP_CHECK), 0x0018_976b);
    }

    #[test]
    fn a_frame_states_its_length() {
        let frame = traffic(1, 1).frame;
        assert_eq!((frame[17], frame[23], frame[36..40].to_vec()), (46, 17, vec![0, 80, 0, 26]));
        let segment = Traffic::new(Some(SYN), 443, LINKS, (1, 1), Ipv4Addr::LOCALHOST).frame;
        assert_eq!(
            (segment[23], segment[36..38].to_vec(), segment[46..48].to_vec()),
            (6, vec![1, 187], vec![0x50, 2])
        );
    }

    /// Returns the internet checksum over a header that includes its own: zero if it is correct.
    fn checksum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    #[ignore = "needs root and eBPF: cargo xtask test"]
    fn frames_go_through_all_flows_and_services_with_valid_checksums() {
        let counter = bpf::counter().unwrap();
        let traffic = traffic(1 << 15, 7);
        for kind in [Kind::Xdp, Kind::Tcx] {
            let code = fill(kind, &traffic, counter.as_fd(), &Then::Return(XDP_TX));
            let program = bpf::load(kind.of(), &code).unwrap();
            for flow in [0_u32, 1, 16_384, 32_766, 32_767] {
                bpf::set_counter(counter.as_fd(), u64::from(flow)).unwrap();
                let run = bpf::run(program.as_fd(), &[0xff; FRAME], &[], 1).unwrap();
                let next = bpf::read_counter(counter.as_fd()).unwrap();
                assert_eq!(next, u64::from((flow + 1) % traffic.flows));
                assert_eq!((run.verdict, checksum(&run.packet[14..34])), (XDP_TX as u32, 0));
                let source = u32::from(traffic.first_source) + (flow >> 14);
                let vip = u32::from(traffic.first_vip) + flow % 7;
                assert_eq!(run.packet[26..30], source.to_be_bytes());
                assert_eq!(run.packet[30..34], vip.to_be_bytes());
                assert_eq!(run.packet[34..36], (1024 + (flow & 0x3fff) as u16).to_be_bytes());
            }
        }
    }

    #[test]
    #[ignore = "needs root and eBPF: cargo xtask test"]
    fn the_sink_counts_what_goes_to_its_port() {
        let counter = bpf::counter().unwrap();
        let source = Ipv4Addr::new(192, 0, 2, 1);
        let program = bpf::load(bpf::XDP, &sink(80, Some(source), counter.as_fd())).unwrap();
        let mut frame = traffic(1, 1).frame;
        assert_eq!(bpf::run(program.as_fd(), &frame, &[], 1).unwrap().verdict, XDP_PASS as u32);
        frame[26..30].copy_from_slice(&source.octets());
        assert_eq!(bpf::run(program.as_fd(), &frame, &[], 3).unwrap().verdict, XDP_DROP as u32);
        frame[37] = 81;
        assert_eq!(bpf::run(program.as_fd(), &frame, &[], 1).unwrap().verdict, XDP_PASS as u32);
        assert_eq!(bpf::read_counter(counter.as_fd()).unwrap(), 3);
        let back = bpf::load(bpf::XDP, &reflect()).unwrap();
        let run = bpf::run(back.as_fd(), &frame, &[], 1).unwrap();
        assert_eq!((run.verdict, &run.packet[..12]), (XDP_TX as u32, [[4; 6], [2; 6]].concat().as_slice()));
    }
}
