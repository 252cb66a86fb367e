//! The context that the kernel passes to a hook. The verifier accepts only whole words at constant offsets of
//! it, hence the volatile accesses, which the compiler neither splits nor narrows.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_set_retval};
use aya_ebpf::programs::SockAddrContext;

use super::super::family::{Family, V4, V6};
use super::peers::Peers;

/// The result of a hook that lets the system call go on.
pub const PROCEED: i32 = 1;
/// The result of a hook that fails the system call with the error set.
const REFUSE: i32 = 0;

/// ::ffff:0:0/96, the third word.
const MAPPED: u32 = 0xffff_u32.to_be();

/// The form of an address in a system call.
pub trait Form {
    type Family: Peers;

    fn address(ctx: &SockAddrContext) -> <Self::Family as Family>::Address;
    fn set_address(ctx: &SockAddrContext, address: <Self::Family as Family>::Address);
}

/// IPv4.
pub struct Ip4;
/// IPv4-mapped addresses of IPv6 sockets: the connection is one of IPv4.
pub struct Mapped;
/// IPv6.
pub struct Ip6;

impl Form for Ip4 {
    type Family = V4;

    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> u32 {
        // SAFETY: the context is the one that the kernel gave.
        unsafe { (&raw const (*context(ctx)).user_ip4).read_volatile() }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: u32) {
        // SAFETY: as above.
        unsafe { (&raw mut (*context(ctx)).user_ip4).write_volatile(address) }
    }
}

impl Form for Mapped {
    type Family = V4;

    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> u32 {
        // SAFETY: the context is the one that the kernel gave.
        unsafe { (&raw const (*context(ctx)).user_ip6[3]).read_volatile() }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: u32) {
        // SAFETY: as above.
        unsafe { (&raw mut (*context(ctx)).user_ip6[3]).write_volatile(address) }
    }
}

impl Form for Ip6 {
    type Family = V6;

    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> [u32; 4] {
        let ctx = context(ctx);
        // SAFETY: the context is the one that the kernel gave.
        unsafe {
            [
                (&raw const (*ctx).user_ip6[0]).read_volatile(),
                (&raw const (*ctx).user_ip6[1]).read_volatile(),
                (&raw const (*ctx).user_ip6[2]).read_volatile(),
                (&raw const (*ctx).user_ip6[3]).read_volatile(),
            ]
        }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: [u32; 4]) {
        let ctx = context(ctx);
        // SAFETY: as above.
        unsafe {
            (&raw mut (*ctx).user_ip6[0]).write_volatile(address[0]);
            (&raw mut (*ctx).user_ip6[1]).write_volatile(address[1]);
            (&raw mut (*ctx).user_ip6[2]).write_volatile(address[2]);
            (&raw mut (*ctx).user_ip6[3]).write_volatile(address[3]);
        }
    }
}

/// Returns `true` if the address of a system call on IPv6 is IPv4-mapped.
#[inline(always)]
pub fn is_mapped(ctx: &SockAddrContext) -> bool {
    let ctx = context(ctx);
    // SAFETY: the context is the one that the kernel gave.
    let words = unsafe {
        [
            (&raw const (*ctx).user_ip6[0]).read_volatile(),
            (&raw const (*ctx).user_ip6[1]).read_volatile(),
            (&raw const (*ctx).user_ip6[2]).read_volatile(),
        ]
    };
    words[0] | words[1] == 0 && words[2] == MAPPED
}

#[inline(always)]
fn context(ctx: &SockAddrContext) -> *mut bpf_sock_addr {
    ctx.sock_addr
}

/// Returns the IP protocol number of the socket.
#[inline(always)]
pub fn protocol_of(ctx: &SockAddrContext) -> u8 {
    // SAFETY: the context is the one that the kernel gave.
    unsafe { (&raw const (*context(ctx)).protocol).read_volatile() as u8 }
}

#[inline(always)]
pub fn port(ctx: &SockAddrContext) -> u16 {
    // SAFETY: as above.
    unsafe { (&raw const (*context(ctx)).user_port).read_volatile() as u16 }
}

#[inline(always)]
pub fn set_port(ctx: &SockAddrContext, port: u16) {
    // SAFETY: as above.
    unsafe { (&raw mut (*context(ctx)).user_port).write_volatile(port as u32) }
}

#[inline(always)]
pub fn socket_cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: as above.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}

/// Returns the cookie of the socket's network namespace.
#[inline(always)]
pub fn netns_cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: as above.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

/// Fails the system call with an error.
#[inline(always)]
pub fn refuse(error: i32) -> i32 {
    // SAFETY: takes a number; a hook that may not set it fails with EPERM instead.
    unsafe { bpf_set_retval(-error) };
    REFUSE
}
