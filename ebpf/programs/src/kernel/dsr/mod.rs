//! Direct server return: the backend's node answers the client itself, under the frontend's address.
//!
//! ```text
//!   client ──▶ this node ──▶ backend's node ──▶ backend
//!      ▲                                          │
//!      └──────────────────────────────────────────┘
//! ```
//!
//! The backend's node has to learn which frontend the client used. There are two ways.
//!
//! - **In an option** of the IP header ([`OPTION4`]), or of IPv6 ([`OPTION6`]), which only packets
//!   that may begin a flow contain: 8 or 24 bytes more. The packet is already addressed to the backend.
//! - **In an outer IP header** around the packet as the client made it (RFC 2003, RFC 2473): 20 or
//!   40 bytes more on each packet, and no router has to accept options.
//!
//! Either is accepted only if the same frontend, in this node's tables, has the same backend and the same
//! forwarding mode. A packet that does not fit the path any more is answered with "packet too big".

mod build;
mod error;
mod lift;
mod receive;
mod send;

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_check_mtu;
use ebpf_common::flow::flow_flag;
use ebpf_common::frontend::frontend_flag;
use ebpf_common::protocol;

pub use self::error::returned;
pub use self::lift::lift;
pub use self::receive::{ABSENT, may_be_direct, receive};
pub use self::send::send;

use super::family::Family;
use super::packet::Packet;

/// Option of IPv4: copied into fragments, and for experiments (RFC 4727). Its length is 8 bytes: type,
/// length, the frontend's port, its address.
const OPTION4: u8 = 0x9e;
const OPTION4_LENGTH: usize = 8;
/// Destination option of IPv6: for experiments (RFC 4727), and skipped by nodes that do not know it. The
/// header has 24 bytes: next header, its length, type and length of the option, the frontend's port and
/// address, and two bytes of padding that belong to the option.
const OPTION6: u8 = 0x1e;
const OPTION6_LENGTH: usize = 24;
const OPTION6_DATA: u32 = 20;
/// Protocol numbers of the content of an outer header, and of destination options.
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const DESTINATION_OPTIONS: u8 = 60;
const HOPS: u32 = 64;
/// Number of words of the longest addition.
const WORDS: usize = 10;

/// Returns the number of bytes of the option.
const fn option_length<F: Family>() -> usize {
    if F::VERSION == 4 { OPTION4_LENGTH } else { OPTION6_LENGTH }
}

/// The direct forwarding modes of a flow.
const DIRECT: u32 = (flow_flag::DSR_OPTION | flow_flag::DSR_IPIP) as u32;

/// Returns `true` if the flow's backend answers the client itself.
#[inline(always)]
pub fn is_direct(flags: u32) -> bool {
    flags & DIRECT != 0
}

/// Returns `true` if data has to be added to the packet.
#[inline(always)]
pub fn needs_room<A>(packet: &Packet<A>, flags: u32) -> bool {
    flags & flow_flag::DSR_IPIP as u32 != 0
        || flags & flow_flag::DSR_OPTION as u32 != 0 && (packet.opens() || packet.protocol() != protocol::TCP)
}

/// Returns the forwarding mode of flows of a frontend, as bits of [`flow_flag`]; 0 if replies come back.
#[inline(always)]
pub fn manner(frontend_flags: u32) -> u32 {
    if frontend_flags & frontend_flag::DSR_OPTION as u32 != 0 {
        flow_flag::DSR_OPTION as u32
    } else if frontend_flags & frontend_flag::DSR_IPIP as u32 != 0 {
        flow_flag::DSR_IPIP as u32
    } else {
        0
    }
}

/// Returns 0 if the packet fits the interface with this many bytes more; else the size that would fit. `ctx`
/// is the context from the kernel, of a buffer or of XDP.
#[inline(always)]
fn fitting_mtu(ctx: *mut c_void, ifindex: u32, more: usize) -> u32 {
    let mut mtu = 0_u32;
    // SAFETY: by the callers; the number lives on the stack.
    let answer = unsafe { bpf_check_mtu(ctx, ifindex, &mut mtu, more as i32, 0) };
    // Negative if the interface cannot be asked: then the packet is sent anyway.
    if answer > 0 { mtu.saturating_sub(more as u32) } else { 0 }
}
