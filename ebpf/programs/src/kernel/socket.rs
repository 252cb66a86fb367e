//! Sockets: the connection is translated when it is made, and costs nothing afterwards.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_ANY, bpf_sock_addr};
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_get_socket_cookie, bpf_set_retval};
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SockAddrContext, SockContext};
use core::ptr::{addr_of, addr_of_mut};
use ebpf_common::frontend::{AffinityKey, Frontend, FrontendKey4, FrontendKey6, frontend_flag};
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6, direction};
use ebpf_common::{metric, scope};

use super::maps::{self, SOCKETS4, SOCKETS6};
use super::{lookup, pick};

/// Let the system call go on.
const PROCEED: i32 = 1;
/// Fail the system call with the error set.
const REFUSE: i32 = 0;

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

const ECONNREFUSED: i32 = 111;
const ETIMEDOUT: i32 = 110;

/// ::ffff:0:0/96, the third word.
const MAPPED: u32 = 0xffff_u32.to_be();

/// What the hook is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A connection, or a datagram socket that gets its peer.
    Connect,
    /// One datagram of a socket that has no peer: its peers are remembered one by one.
    Send,
}

#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    translate4(&ctx, Call::Connect)
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    translate4(&ctx, Call::Send)
}

#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    restore4(&ctx)
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    restore4(&ctx)
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    translate6(&ctx, Call::Connect)
}

#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    translate6(&ctx, Call::Send)
}

#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    restore6(&ctx)
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    restore6(&ctx)
}

/// A socket is closed: its backend need not be remembered. What an unconnected socket leaves is
/// evicted in time.
#[cgroup_sock(sock_release)]
pub fn release(ctx: SockContext) -> i32 {
    let sock = ctx.sock;
    // SAFETY: the context is the one that the kernel gave; whole fields at constant offsets.
    let (family, protocol, port) = unsafe {
        (
            addr_of!((*sock).family).read_volatile(),
            addr_of!((*sock).protocol).read_volatile() as u8,
            addr_of!((*sock).dst_port).read_volatile(),
        )
    };
    if port == 0 || (family != AF_INET && family != AF_INET6) {
        return PROCEED;
    }
    // SAFETY: as above.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    if family == AF_INET {
        // SAFETY: as above.
        let address = unsafe { addr_of!((*sock).dst_ip4).read_volatile() };
        forget4(SocketKey4 { cookie, address, port, protocol, direction: direction::REVERSE });
        return PROCEED;
    }
    // SAFETY: as above.
    let address = unsafe {
        [
            addr_of!((*sock).dst_ip6[0]).read_volatile(),
            addr_of!((*sock).dst_ip6[1]).read_volatile(),
            addr_of!((*sock).dst_ip6[2]).read_volatile(),
            addr_of!((*sock).dst_ip6[3]).read_volatile(),
        ]
    };
    if address[0] == 0 && address[1] == 0 && address[2] == MAPPED {
        forget4(SocketKey4 { cookie, address: address[3], port, protocol, direction: direction::REVERSE });
        return PROCEED;
    }
    let key = SocketKey6 { cookie, address, port, protocol, direction: direction::REVERSE, reserved: 0 };
    if SOCKETS6.get_ptr(&key).is_some() {
        let _ = SOCKETS6.remove(&key);
    }
    PROCEED
}

/// Looks first: most sockets have no element, and to remove one takes a lock.
#[inline(always)]
fn forget4(key: SocketKey4) {
    if SOCKETS4.get_ptr(&key).is_some() {
        let _ = SOCKETS4.remove(&key);
    }
}

#[inline(always)]
fn translate4(ctx: &SockAddrContext, call: Call) -> i32 {
    let (address, port) = (ip4(ctx), port(ctx));
    match decide4(ctx, address, port, call) {
        Answer::Leave => PROCEED,
        Answer::Refuse(error) => refuse(error),
        Answer::Go { address, port } => {
            set_ip4(ctx, address);
            set_port(ctx, port);
            PROCEED
        }
    }
}

#[inline(always)]
fn translate6(ctx: &SockAddrContext, call: Call) -> i32 {
    let (address, port) = (ip6(ctx), port(ctx));
    if address[0] == 0 && address[1] == 0 && address[2] == MAPPED {
        return match decide4(ctx, address[3], port, call) {
            Answer::Leave => PROCEED,
            Answer::Refuse(error) => refuse(error),
            Answer::Go { address, port } => {
                set_ip6_word3(ctx, address);
                set_port(ctx, port);
                PROCEED
            }
        };
    }
    decide6(ctx, address, port, call)
}

/// What becomes of a system call.
enum Answer {
    Leave,
    Refuse(i32),
    Go { address: u32, port: u16 },
}

#[inline(always)]
fn decide4(ctx: &SockAddrContext, address: u32, port: u16, call: Call) -> Answer {
    let protocol = protocol_of(ctx);
    let mut key = FrontendKey4 { address, port, protocol, scope: scope::INTERNAL };
    let Some(frontend) = lookup::frontend4(&mut key, |cookie| netns_cookie(ctx) == cookie) else {
        return Answer::Leave;
    };
    if frontend.count() == 0 {
        return Answer::Refuse(no_backend(&frontend));
    }
    let cookie = socket_cookie(ctx);
    let forward = SocketKey4 { cookie, address, port, protocol, direction: direction::FORWARD };
    if call == Call::Send
        && let Some(element) = SOCKETS4.get_ptr_mut(&forward)
    {
        // SAFETY: the pointer leads to a value of the map, this socket's own.
        let known = unsafe { element.read() };
        let same = known.block == frontend.block();
        let holds = same || pick::find4(&frontend, known.address, known.port).is_some();
        if known.service == frontend.service && holds {
            if !same {
                // SAFETY: as above; the backend was found in the new block.
                unsafe { (*element).block = frontend.block() };
            }
            return Answer::Go { address: known.address, port: known.port };
        }
        maps::count(metric::FLOW_MOVED);
    }
    let Some(backend) = pick::backend4(&frontend, random(), || client(ctx, &frontend, port, protocol)) else {
        return Answer::Refuse(no_backend(&frontend));
    };
    let (block, service) = (frontend.block(), frontend.service);
    if call == Call::Send {
        let value = Socket4 { address: backend.address, port: backend.port, reserved: 0, block, service };
        let _ = SOCKETS4.insert(&forward, &value, BPF_ANY as u64);
    }
    let reverse = SocketKey4 {
        cookie,
        address: backend.address,
        port: backend.port,
        protocol,
        direction: direction::REVERSE,
    };
    let value = Socket4 { address, port, reserved: 0, block, service };
    // Without the element the application sees its backend as the peer; it works all the same.
    let _ = SOCKETS4.insert(&reverse, &value, BPF_ANY as u64);
    maps::count(metric::SOCKET_TRANSLATED);
    maps::count_service(service, false);
    Answer::Go { address: backend.address, port: backend.port }
}

#[inline(always)]
fn decide6(ctx: &SockAddrContext, address: [u32; 4], port: u16, call: Call) -> i32 {
    let protocol = protocol_of(ctx);
    let mut key = FrontendKey6 { address, port, protocol, scope: scope::INTERNAL };
    let Some(frontend) = lookup::frontend6(&mut key, |cookie| netns_cookie(ctx) == cookie) else {
        return PROCEED;
    };
    if frontend.count() == 0 {
        return refuse(no_backend(&frontend));
    }
    let cookie = socket_cookie(ctx);
    let forward = SocketKey6 { cookie, address, port, protocol, direction: direction::FORWARD, reserved: 0 };
    if call == Call::Send
        && let Some(known) = SOCKETS6.get_ptr(&forward)
    {
        // SAFETY: as in `decide4`.
        let known = unsafe { known.read() };
        if known.service == frontend.service && known.block == frontend.block() {
            set_ip6(ctx, known.address);
            set_port(ctx, known.port);
            return PROCEED;
        }
        maps::count(metric::FLOW_MOVED);
    }
    let Some(backend) = pick::backend6(&frontend, random(), || client(ctx, &frontend, port, protocol)) else {
        return refuse(no_backend(&frontend));
    };
    let (block, service) = (frontend.block(), frontend.service);
    if call == Call::Send {
        let value = Socket6 { address: backend.address, port: backend.port, reserved: 0, block, service };
        let _ = SOCKETS6.insert(&forward, &value, BPF_ANY as u64);
    }
    let reverse = SocketKey6 {
        cookie,
        address: backend.address,
        port: backend.port,
        protocol,
        direction: direction::REVERSE,
        reserved: 0,
    };
    let value = Socket6 { address, port, reserved: 0, block, service };
    let _ = SOCKETS6.insert(&reverse, &value, BPF_ANY as u64);
    maps::count(metric::SOCKET_TRANSLATED);
    maps::count_service(service, false);
    set_ip6(ctx, backend.address);
    set_port(ctx, backend.port);
    PROCEED
}

/// Names the peer that the application knows, in place of the backend.
#[inline(always)]
fn restore4(ctx: &SockAddrContext) -> i32 {
    if let Some(value) = known4(ctx, ip4(ctx)) {
        set_ip4(ctx, value.address);
        set_port(ctx, value.port);
    }
    PROCEED
}

#[inline(always)]
fn restore6(ctx: &SockAddrContext) -> i32 {
    let address = ip6(ctx);
    if address[0] == 0 && address[1] == 0 && address[2] == MAPPED {
        if let Some(value) = known4(ctx, address[3]) {
            set_ip6_word3(ctx, value.address);
            set_port(ctx, value.port);
        }
        return PROCEED;
    }
    let key = SocketKey6 {
        cookie: socket_cookie(ctx),
        address,
        port: port(ctx),
        protocol: protocol_of(ctx),
        direction: direction::REVERSE,
        reserved: 0,
    };
    if let Some(value) = SOCKETS6.get_ptr(&key) {
        // SAFETY: the pointer leads to a value of the map, this socket's own.
        let value = unsafe { value.read() };
        set_ip6(ctx, value.address);
        set_port(ctx, value.port);
    }
    PROCEED
}

#[inline(always)]
fn known4(ctx: &SockAddrContext, address: u32) -> Option<Socket4> {
    let key = SocketKey4 {
        cookie: socket_cookie(ctx),
        address,
        port: port(ctx),
        protocol: protocol_of(ctx),
        direction: direction::REVERSE,
    };
    // SAFETY: the pointer leads to a value of the map, this socket's own.
    SOCKETS4.get_ptr(&key).map(|value| unsafe { value.read() })
}

/// Counts, and says which error the system call gives: a drop looks like a timeout.
#[inline(always)]
fn no_backend(frontend: &Frontend) -> i32 {
    maps::count(metric::SOCKET_REFUSED);
    maps::count_service(frontend.service, true);
    if frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0 { ETIMEDOUT } else { ECONNREFUSED }
}

#[inline(always)]
fn refuse(error: i32) -> i32 {
    // SAFETY: takes a number; a hook that may not set it fails with EPERM instead.
    unsafe { bpf_set_retval(-error) };
    REFUSE
}

#[inline(always)]
fn client(ctx: &SockAddrContext, frontend: &Frontend, port: u16, protocol: u8) -> AffinityKey {
    AffinityKey {
        client: netns_cookie(ctx) | AffinityKey::SOCKET,
        service: frontend.service,
        port,
        protocol,
        scope: scope::INTERNAL,
    }
}

#[inline(always)]
fn random() -> u32 {
    // SAFETY: takes nothing, returns a number.
    unsafe { bpf_get_prandom_u32() }
}

#[inline(always)]
fn socket_cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: the context is the one that the kernel gave.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}

#[inline(always)]
fn netns_cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: the context is the one that the kernel gave.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

// The verifier accepts only whole words at constant offsets of the context, hence the volatile
// accesses below, which the compiler neither splits nor narrows.

#[inline(always)]
fn context(ctx: &SockAddrContext) -> *mut bpf_sock_addr {
    ctx.sock_addr
}

#[inline(always)]
fn protocol_of(ctx: &SockAddrContext) -> u8 {
    // SAFETY: the context is the one that the kernel gave.
    unsafe { addr_of!((*context(ctx)).protocol).read_volatile() as u8 }
}

#[inline(always)]
fn port(ctx: &SockAddrContext) -> u16 {
    // SAFETY: as above.
    unsafe { addr_of!((*context(ctx)).user_port).read_volatile() as u16 }
}

#[inline(always)]
fn set_port(ctx: &SockAddrContext, port: u16) {
    // SAFETY: as above.
    unsafe { addr_of_mut!((*context(ctx)).user_port).write_volatile(port as u32) }
}

#[inline(always)]
fn ip4(ctx: &SockAddrContext) -> u32 {
    // SAFETY: as above.
    unsafe { addr_of!((*context(ctx)).user_ip4).read_volatile() }
}

#[inline(always)]
fn set_ip4(ctx: &SockAddrContext, address: u32) {
    // SAFETY: as above.
    unsafe { addr_of_mut!((*context(ctx)).user_ip4).write_volatile(address) }
}

#[inline(always)]
fn ip6(ctx: &SockAddrContext) -> [u32; 4] {
    let ctx = context(ctx);
    // SAFETY: as above.
    unsafe {
        [
            addr_of!((*ctx).user_ip6[0]).read_volatile(),
            addr_of!((*ctx).user_ip6[1]).read_volatile(),
            addr_of!((*ctx).user_ip6[2]).read_volatile(),
            addr_of!((*ctx).user_ip6[3]).read_volatile(),
        ]
    }
}

#[inline(always)]
fn set_ip6(ctx: &SockAddrContext, address: [u32; 4]) {
    let at = context(ctx);
    // SAFETY: as above.
    unsafe {
        addr_of_mut!((*at).user_ip6[0]).write_volatile(address[0]);
        addr_of_mut!((*at).user_ip6[1]).write_volatile(address[1]);
        addr_of_mut!((*at).user_ip6[2]).write_volatile(address[2]);
    }
    set_ip6_word3(ctx, address[3]);
}

#[inline(always)]
fn set_ip6_word3(ctx: &SockAddrContext, word: u32) {
    // SAFETY: as above.
    unsafe { addr_of_mut!((*context(ctx)).user_ip6[3]).write_volatile(word) }
}
