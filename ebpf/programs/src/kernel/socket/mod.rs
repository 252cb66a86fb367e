//! Sockets: the connection is translated when it is made, and costs nothing afterwards.
//!
//! SCTP has no such hooks: its packets take the packet path.

mod bind;
mod connected;
mod context;
mod peers;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_get_socket_cookie};
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SockAddrContext, SockContext};
use ebpf_common::event::{hook, kind};
use ebpf_common::flow::FlowKey;
use ebpf_common::frontend::{AffinityKey, Frontend, frontend_flag};
use ebpf_common::socket::direction;
use ebpf_common::{Config, config_flag, metric, protocol, scope};

use self::connected::Connection;
use self::context::{Hook, PROCEED, netns_cookie, port, protocol_of, refuse, set_port, socket_cookie};
use self::peers::{Peer, PeerKey};
use super::family::{Address as _, Backend as _, Family, FrontendKey as _, V4, V6};
use super::maps::{self, EXEMPT};
use super::{event, lookup, pick};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

const ECONNREFUSED: i32 = 111;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;

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
    let (family, number, port) = unsafe {
        (
            (&raw const (*sock).family).read_volatile(),
            (&raw const (*sock).protocol).read_volatile() as u8,
            (&raw const (*sock).dst_port).read_volatile(),
        )
    };
    let inet = family == AF_INET || family == AF_INET6;
    // A stream without a peer never had one; a datagram socket may have let go of it.
    if inet && (number == protocol::TCP && port != 0 || number == protocol::UDP) {
        // SAFETY: as above.
        connected::forget(unsafe { bpf_get_socket_cookie(ctx.as_ptr()) });
    }
    PROCEED
}

/// What becomes of a system call.
enum Answer<A> {
    Leave,
    Refuse(i32),
    Go(A, u16),
}

#[inline(always)]
fn translate4(ctx: &SockAddrContext, call: Call) -> i32 {
    match decide::<V4>(ctx, V4::address(ctx), call) {
        Answer::Leave => PROCEED,
        Answer::Refuse(error) => refuse(error),
        Answer::Go(address, port) => {
            V4::set_address(ctx, address);
            set_port(ctx, port);
            PROCEED
        }
    }
}

#[inline(always)]
fn translate6(ctx: &SockAddrContext, call: Call) -> i32 {
    if let Some(address) = context::mapped(ctx) {
        return match decide::<V4>(ctx, address, call) {
            Answer::Leave => PROCEED,
            Answer::Refuse(error) => refuse(error),
            Answer::Go(address, port) => {
                context::set_mapped(ctx, address);
                set_port(ctx, port);
                PROCEED
            }
        };
    }
    match decide::<V6>(ctx, V6::address(ctx), call) {
        Answer::Leave => PROCEED,
        Answer::Refuse(error) => refuse(error),
        Answer::Go(address, port) => {
            V6::set_address(ctx, address);
            set_port(ctx, port);
            PROCEED
        }
    }
}

#[inline(always)]
fn decide<F: Hook>(ctx: &SockAddrContext, address: F::Address, call: Call) -> Answer<F::Address> {
    let (port, number) = (port(ctx), protocol_of(ctx));
    if number != protocol::TCP && number != protocol::UDP {
        return Answer::Leave;
    }
    let Some(config) = maps::config() else {
        return Answer::Leave;
    };
    // Before the frontend is: see `maps::epoch`.
    let epoch = maps::epoch(config);
    let mut key = F::FrontendKey::new(address, port, number, scope::INTERNAL);
    let Some(mut frontend) = lookup::frontend::<F>(&mut key, |cookie| netns_cookie(ctx) == cookie) else {
        return unknown::<F>(ctx, config, address, port, number, call);
    };
    let limited = frontend.flags() & frontend_flag::SOURCE_RANGES != 0;
    // The packet path knows the source, which a socket does not have yet. The node's own may come
    // in always.
    if limited && netns_cookie(ctx) != config.netns_cookie || is_exempt(ctx, config) {
        return Answer::Leave;
    }
    if frontend.count() == 0 {
        return Answer::Refuse(no_backend::<F>(&frontend, address, port, number));
    }
    // The hash of a socket is random, so that nothing would be consistent.
    frontend.switch &= !((frontend_flag::CONSISTENT as u64) << 48);
    match call {
        Call::Connect => connect::<F>(ctx, &frontend, address, port, number),
        Call::Send => send::<F>(ctx, &frontend, address, port, number, epoch),
    }
}

#[inline(always)]
fn connect<F: Hook>(
    ctx: &SockAddrContext,
    frontend: &Frontend,
    address: F::Address,
    port: u16,
    number: u8,
) -> Answer<F::Address> {
    let Some(backend) = pick::backend::<F>(frontend, random(frontend), || client::<F>(ctx, frontend)) else {
        return Answer::Refuse(no_backend::<F>(frontend, address, port, number));
    };
    let connection = Connection {
        cookie: socket_cookie(ctx),
        // Streams keep their backend; only datagram sockets are looked for when it goes.
        netns: if number == protocol::UDP { netns_cookie(ctx) } else { 0 },
        service: frontend.service,
        protocol: number,
        frontend: (address, port),
        backend: (backend.address(), backend.port()),
    };
    if !connected::remember::<F>(&connection) {
        let key = PeerKey {
            cookie: connection.cookie,
            address: backend.address(),
            port: backend.port(),
            protocol: number,
            direction: direction::REVERSE,
        };
        F::remember(&key, &Peer { address, port, epoch: 0, service: frontend.service });
    }
    maps::count(metric::SOCKET_TRANSLATED);
    maps::count_service(frontend.service, false);
    Answer::Go(backend.address(), backend.port())
}

#[inline(always)]
fn send<F: Hook>(
    ctx: &SockAddrContext,
    frontend: &Frontend,
    address: F::Address,
    port: u16,
    number: u8,
    epoch: u32,
) -> Answer<F::Address> {
    let cookie = socket_cookie(ctx);
    let forward = PeerKey { cookie, address, port, protocol: number, direction: direction::FORWARD };
    let known = F::peer(&forward).filter(|known| known.service == frontend.service);
    if let Some(known) = known {
        if maps::loss(known.service).wrapping_sub(known.epoch) as i32 <= 0 {
            return Answer::Go(known.address, known.port);
        }
        if pick::find::<F>(frontend, &known.address, known.port).is_some() {
            F::remember(&forward, &Peer { epoch, ..known });
            return Answer::Go(known.address, known.port);
        }
        maps::count(metric::FLOW_MOVED);
    }
    let Some(backend) = pick::backend::<F>(frontend, random(frontend), || client::<F>(ctx, frontend)) else {
        return Answer::Refuse(no_backend::<F>(frontend, address, port, number));
    };
    let service = frontend.service;
    F::remember(&forward, &Peer { address: backend.address(), port: backend.port(), epoch, service });
    let reverse = PeerKey {
        cookie,
        address: backend.address(),
        port: backend.port(),
        protocol: number,
        direction: direction::REVERSE,
    };
    F::remember(&reverse, &Peer { address, port, epoch, service });
    maps::count(metric::SOCKET_TRANSLATED);
    maps::count_service(service, false);
    Answer::Go(backend.address(), backend.port())
}

/// No frontend has the address and port. What is in the service ranges must not leave the node
/// untranslated.
#[inline(always)]
fn unknown<F: Hook>(
    ctx: &SockAddrContext,
    config: &Config,
    address: F::Address,
    port: u16,
    number: u8,
    call: Call,
) -> Answer<F::Address> {
    let asks = call == Call::Connect && number == protocol::UDP;
    if asks {
        // Connected to a service before, now to something else.
        connected::forget(socket_cookie(ctx));
    }
    if !F::is_in_ranges(config, &address) || is_exempt(ctx, config) {
        return Answer::Leave;
    }
    // Programs connect a datagram socket to learn their own address, and send nothing. If they do
    // send, the packet path of the pod answers; the node's own sockets have none.
    if asks && netns_cookie(ctx) != config.netns_cookie {
        return Answer::Leave;
    }
    if lookup::is_marked::<F>(address) {
        maps::count(metric::UNKNOWN_PORT_REFUSED);
        tell::<F>(kind::UNKNOWN_PORT, 0, address, port, number);
        Answer::Refuse(ECONNREFUSED)
    } else {
        maps::count(metric::UNALLOCATED_DROPPED);
        tell::<F>(kind::UNALLOCATED, 0, address, port, number);
        Answer::Refuse(EHOSTUNREACH)
    }
}

/// Sockets of the namespace are left alone: their packets take the packet path.
#[inline(always)]
fn is_exempt(ctx: &SockAddrContext, config: &Config) -> bool {
    config.flags & config_flag::EXEMPTIONS != 0 && EXEMPT.get_ptr(netns_cookie(ctx)).is_some()
}

#[inline(always)]
fn restore4(ctx: &SockAddrContext) -> i32 {
    if let Some((address, port)) = known::<V4>(ctx, V4::address(ctx)) {
        V4::set_address(ctx, address);
        set_port(ctx, port);
    }
    PROCEED
}

#[inline(always)]
fn restore6(ctx: &SockAddrContext) -> i32 {
    if let Some(address) = context::mapped(ctx) {
        if let Some((address, port)) = known::<V4>(ctx, address) {
            context::set_mapped(ctx, address);
            set_port(ctx, port);
        }
    } else if let Some((address, port)) = known::<V6>(ctx, V6::address(ctx)) {
        V6::set_address(ctx, address);
        set_port(ctx, port);
    }
    PROCEED
}

/// The peer that the application knows, in place of the backend. Those of an exempt namespace too:
/// they may have been connected before it was.
#[inline(always)]
fn known<F: Hook>(ctx: &SockAddrContext, address: F::Address) -> Option<(F::Address, u16)> {
    let (cookie, port, protocol) = (socket_cookie(ctx), port(ctx), protocol_of(ctx));
    if let Some(frontend) = connected::recall::<F>(cookie, &address, port) {
        return Some(frontend);
    }
    let key = PeerKey { cookie, address, port, protocol, direction: direction::REVERSE };
    F::peer(&key).map(|peer| (peer.address, peer.port))
}

/// Counts, and says which error the system call gives: a drop looks like a timeout.
#[inline(always)]
fn no_backend<F: Family>(frontend: &Frontend, address: F::Address, port: u16, number: u8) -> i32 {
    maps::count(metric::SOCKET_REFUSED);
    maps::count_service(frontend.service, true);
    let drop = frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0;
    let (kind, error) =
        if drop { (kind::DROPPED_EMPTY, ETIMEDOUT) } else { (kind::REFUSED, ECONNREFUSED) };
    tell::<F>(kind, frontend.service, address, port, number);
    error
}

#[inline(always)]
fn tell<F: Family>(kind: u8, service: u32, address: F::Address, port: u16, number: u8) {
    let key = FlowKey {
        source: F::Address::ZERO,
        destination: address,
        source_port: 0,
        destination_port: port,
        protocol: number as u32,
    };
    event::emit::<F>(kind, hook::SOCKET, service, 0, &key);
}

/// The affinity of a socket is that of its network namespace: it has no address yet.
#[inline(always)]
fn client<F: Family>(ctx: &SockAddrContext, frontend: &Frontend) -> AffinityKey {
    AffinityKey {
        client: netns_cookie(ctx) | AffinityKey::SOCKET,
        service: frontend.service,
        family: F::VERSION as u16,
        scope: scope::INTERNAL as u16,
    }
}

/// A hash for a socket, which has no port yet.
#[inline(always)]
fn random(frontend: &Frontend) -> u32 {
    if frontend.count() == 1 {
        return 0;
    }
    // SAFETY: takes nothing, returns a number.
    unsafe { bpf_get_prandom_u32() }
}
