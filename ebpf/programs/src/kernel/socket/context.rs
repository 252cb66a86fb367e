//! What the kernel hands to a hook. The verifier accepts only whole words at constant offsets of
//! it, hence the volatile accesses, which the compiler neither splits nor narrows.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_set_retval};
use aya_ebpf::programs::SockAddrContext;

use super::super::family::{Family, V4, V6};
use super::peers::Peers;

/// Let the system call go on.
pub const PROCEED: i32 = 1;
/// Fail the system call with the error set.
const REFUSE: i32 = 0;

/// ::ffff:0:0/96, the third word.
const MAPPED: u32 = 0xffff_u32.to_be();

/// A family as the hooks see it.
pub trait Hook: Family + Peers {
    /// The address that the system call is about.
    fn address(ctx: &SockAddrContext) -> Self::Address;
    fn set_address(ctx: &SockAddrContext, address: Self::Address);
}

/// IPv4 addresses inside IPv6 ones, as sockets of IPv6 use them; everything else is that of
/// [`V4`].
#[inline(always)]
pub fn mapped(ctx: &SockAddrContext) -> Option<u32> {
    let address = V6::address(ctx);
    (address[0] == 0 && address[1] == 0 && address[2] == MAPPED).then_some(address[3])
}

/// Replaces the IPv4 address inside an IPv6 one.
#[inline(always)]
pub fn set_mapped(ctx: &SockAddrContext, address: u32) {
    // SAFETY: the context is the one that the kernel gave.
    unsafe { (&raw mut (*context(ctx)).user_ip6[3]).write_volatile(address) }
}

impl Hook for V4 {
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

impl Hook for V6 {
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

#[inline(always)]
fn context(ctx: &SockAddrContext) -> *mut bpf_sock_addr {
    ctx.sock_addr
}

/// IP protocol number of the socket.
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

/// Cookie of the socket's network namespace.
#[inline(always)]
pub fn netns_cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: as above.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

/// Fails the system call.
#[inline(always)]
pub fn refuse(error: i32) -> i32 {
    // SAFETY: takes a number; a hook that may not set it fails with EPERM instead.
    unsafe { bpf_set_retval(-error) };
    REFUSE
}
