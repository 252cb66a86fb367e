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

use self::connected::{Connection, Recalled};
use self::context::{Form, Ip4, Ip6, Mapped, PROCEED};
use self::context::{netns_cookie, port, protocol_of, refuse, set_port, socket_cookie};
use self::peers::{Peer, PeerKey, Peers as _};
use super::family::{Address as _, Backend as _, Family, FrontendKey as _};
use super::maps::{self, EXEMPT};
use super::trace::Call as TracedCall;
use super::{event, flow, lookup, pick};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

const ECONNREFUSED: i32 = 111;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;

type Address<N> = <<N as Form>::Family as Family>::Address;
type Key<N> = <<N as Form>::Family as Family>::FrontendKey;
type Backend<N> = <<N as Form>::Family as Family>::Backend;

/// The system call of the hook.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A connection, or a datagram socket that gets its peer.
    Connect = ebpf_common::trace::call::CONNECT as isize,
    /// One datagram of a socket without a peer: its peers are stored one by one.
    Send = ebpf_common::trace::call::SENDMSG as isize,
}

#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    translate::<Ip4>(&ctx, Call::Connect)
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    translate::<Ip4>(&ctx, Call::Send)
}

#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    restore::<Ip4>(&ctx)
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    restore::<Ip4>(&ctx)
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

/// Handles the closing of a socket: its backend need not be stored any more. The entries of an unconnected
/// socket are evicted in time.
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
    // A stream without a peer never had one; a datagram socket may have dropped it.
    if inet && (number == protocol::TCP && port != 0 || number == protocol::UDP) {
        // SAFETY: as above.
        connected::forget(unsafe { bpf_get_socket_cookie(ctx.as_ptr()) });
    }
    PROCEED
}

#[inline(always)]
fn translate6(ctx: &SockAddrContext, call: Call) -> i32 {
    if context::is_mapped(ctx) { translate::<Mapped>(ctx, call) } else { translate::<Ip6>(ctx, call) }
}

#[inline(always)]
fn translate<N: Form>(ctx: &SockAddrContext, call: Call) -> i32 {
    let (address, port, number) = (N::address(ctx), port(ctx), protocol_of(ctx));
    if number != protocol::TCP && number != protocol::UDP {
        return PROCEED;
    }
    let Some(config) = maps::config() else {
        return PROCEED;
    };
    let traced = TracedCall::begin::<N::Family>(call as u32, || socket_cookie(ctx), &address, port, number);
    // Read before the frontend: see `maps::epoch`.
    let epoch = maps::epoch(config);
    let mut key = Key::<N>::new(address, port, number, scope::INTERNAL);
    let Some(mut frontend) = lookup::frontend::<N::Family>(&mut key, |cookie| netns_cookie(ctx) == cookie)
    else {
        return unknown::<N>(ctx, config, call, traced);
    };
    traced.frontend(&frontend);
    let limited = frontend.flags() & frontend_flag::SOURCE_RANGES != 0;
    // The packet path knows the source, which a socket does not have yet. The node's own sockets are always
    // admitted.
    if limited && netns_cookie(ctx) != config.netns_cookie || is_exempt(ctx, config) {
        leave(ctx, call);
        traced.passed();
        return PROCEED;
    }
    if frontend.count() == 0 {
        return no_backend::<N>(ctx, &frontend, traced);
    }
    // The hash of a socket is random, so that nothing would be consistent.
    frontend.switch &= !((frontend_flag::CONSISTENT as u64) << 48);
    match call {
        Call::Connect => connect::<N>(ctx, &frontend, traced),
        Call::Send => send::<N>(ctx, &frontend, epoch, traced),
    }
}

#[inline(always)]
fn connect<N: Form>(ctx: &SockAddrContext, frontend: &Frontend, traced: TracedCall) -> i32 {
    let Some(backend) = choose::<N>(ctx, frontend) else {
        return no_backend::<N>(ctx, frontend, traced);
    };
    let (address, port, number) = (N::address(ctx), port(ctx), protocol_of(ctx));
    let connection = Connection {
        cookie: socket_cookie(ctx),
        // Streams keep their backend; only datagram sockets are searched for when it goes.
        netns: if number == protocol::UDP { netns_cookie(ctx) } else { 0 },
        service: frontend.service,
        protocol: number,
        frontend: (address, port),
        backend: (backend.address(), backend.port()),
    };
    if !connected::remember::<N::Family>(&connection) {
        let key =
            peer_key::<N>(ctx, connection.cookie, backend.address(), backend.port(), direction::REVERSE);
        N::Family::remember(&key, &Peer { address, port, epoch: 0, service: frontend.service });
    }
    go::<N>(ctx, frontend, &backend, traced)
}

#[inline(always)]
fn send<N: Form>(ctx: &SockAddrContext, frontend: &Frontend, epoch: u32, traced: TracedCall) -> i32 {
    let (address, port, service) = (N::address(ctx), port(ctx), frontend.service);
    let cookie = socket_cookie(ctx);
    let forward = peer_key::<N>(ctx, cookie, address, port, direction::FORWARD);
    if let Some(known) = N::Family::peer(&forward).filter(|known| known.service == service) {
        let lost_since = maps::loss(service).wrapping_sub(known.epoch) as i32 > 0;
        if !lost_since || pick::find::<N::Family>(frontend, &known.address, known.port).is_some() {
            if lost_since {
                N::Family::remember(&forward, &Peer { epoch, ..known });
            }
            traced.backend::<N::Family>(&known.address, known.port);
            N::set_address(ctx, known.address);
            set_port(ctx, known.port);
            return PROCEED;
        }
        maps::count(metric::FLOW_MOVED);
    }
    let Some(backend) = choose::<N>(ctx, frontend) else {
        return no_backend::<N>(ctx, frontend, traced);
    };
    let to = Peer { address: backend.address(), port: backend.port(), epoch, service };
    N::Family::remember(&forward, &to);
    let reverse = peer_key::<N>(ctx, cookie, backend.address(), backend.port(), direction::REVERSE);
    N::Family::remember(&reverse, &Peer { address, port, epoch, service });
    go::<N>(ctx, frontend, &backend, traced)
}

/// Redirects the system call to the backend.
#[inline(always)]
fn go<N: Form>(ctx: &SockAddrContext, frontend: &Frontend, backend: &Backend<N>, traced: TracedCall) -> i32 {
    traced.backend::<N::Family>(&backend.address(), backend.port());
    maps::count(metric::SOCKET_TRANSLATED);
    maps::count_service(frontend.service, false);
    N::set_address(ctx, backend.address());
    set_port(ctx, backend.port());
    PROCEED
}

#[inline(always)]
fn peer_key<N: Form>(
    ctx: &SockAddrContext,
    cookie: u64,
    address: Address<N>,
    port: u16,
    direction: u8,
) -> PeerKey<Address<N>> {
    PeerKey { cookie, address, port, protocol: protocol_of(ctx), direction }
}

/// Handles a destination without a frontend. A packet to the service ranges must not leave the node
/// untranslated.
#[inline(always)]
fn unknown<N: Form>(ctx: &SockAddrContext, config: &Config, call: Call, traced: TracedCall) -> i32 {
    let address = N::address(ctx);
    let asks = leave(ctx, call);
    if !N::Family::is_in_ranges(config, &address) || is_exempt(ctx, config) {
        traced.passed();
        return PROCEED;
    }
    // Programs connect a datagram socket to learn their own address, and send nothing. If they do send, the
    // packet path of the pod answers; the node's own sockets have none.
    if asks && netns_cookie(ctx) != config.netns_cookie {
        traced.passed();
        return PROCEED;
    }
    let (metric, kind, error) = if lookup::is_marked::<N::Family>(address) {
        (metric::UNKNOWN_PORT_REFUSED, kind::UNKNOWN_PORT, ECONNREFUSED)
    } else {
        (metric::UNALLOCATED_DROPPED, kind::UNALLOCATED, EHOSTUNREACH)
    };
    maps::count(metric);
    emit_event::<N::Family>(kind, 0, address, port(ctx), protocol_of(ctx));
    traced.failed(error);
    refuse(error)
}

/// Handles a datagram socket that connects to a destination that no hook translates. If a service was its
/// peer until now, it must not count as a client of that when a backend goes. Returns `true` for such a call.
#[inline(always)]
fn leave(ctx: &SockAddrContext, call: Call) -> bool {
    let connects = call == Call::Connect && protocol_of(ctx) == protocol::UDP;
    if connects {
        connected::forget(socket_cookie(ctx));
    }
    connects
}

/// Returns `true` if sockets of the namespace are left alone: their packets take the packet path.
#[inline(always)]
fn is_exempt(ctx: &SockAddrContext, config: &Config) -> bool {
    config.flags & config_flag::EXEMPTIONS != 0 && EXEMPT.get_ptr(netns_cookie(ctx)).is_some()
}

#[inline(always)]
fn restore6(ctx: &SockAddrContext) -> i32 {
    if context::is_mapped(ctx) { restore::<Mapped>(ctx) } else { restore::<Ip6>(ctx) }
}

/// Restores the peer that the application knows, in place of the backend. In exempt namespaces too: sockets
/// may have been connected before.
#[inline(always)]
fn restore<N: Form>(ctx: &SockAddrContext) -> i32 {
    let (cookie, address) = (socket_cookie(ctx), N::address(ctx));
    match connected::recall::<N::Family>(cookie, &address, port(ctx)) {
        Recalled::Frontend(address, port) => {
            N::set_address(ctx, address);
            set_port(ctx, port);
            return PROCEED;
        }
        // accept(2) calls this too, for each incoming connection. If a slot has become free since the socket
        // connected, only the service's address is lost.
        Recalled::Nothing if protocol_of(ctx) == protocol::TCP => return PROCEED,
        _ => {}
    }
    let key = peer_key::<N>(ctx, cookie, address, port(ctx), direction::REVERSE);
    if let Some(peer) = N::Family::peer(&key) {
        N::set_address(ctx, peer.address);
        set_port(ctx, peer.port);
    }
    PROCEED
}

/// Counts and fails the system call: a drop looks like a timeout.
#[inline(always)]
fn no_backend<N: Form>(ctx: &SockAddrContext, frontend: &Frontend, traced: TracedCall) -> i32 {
    maps::count(metric::SOCKET_REFUSED);
    maps::count_service(frontend.service, true);
    let drop = frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0;
    let kind = if drop { kind::DROPPED_EMPTY } else { kind::REFUSED };
    emit_event::<N::Family>(kind, frontend.service, N::address(ctx), port(ctx), protocol_of(ctx));
    let error = if drop { ETIMEDOUT } else { ECONNREFUSED };
    traced.failed(error);
    refuse(error)
}

#[inline(always)]
fn emit_event<F: Family>(kind: u8, service: u32, address: F::Address, port: u16, number: u8) {
    let key = FlowKey {
        source: F::Address::ZERO,
        destination: address,
        source_port: 0,
        destination_port: port,
        protocol: number as u32,
    };
    event::emit::<F>(kind, flow::place(hook::SOCKET, 0), service, &key);
}

/// Chooses a backend. The affinity of a socket is that of its network namespace: it has no address yet.
#[inline(always)]
fn choose<N: Form>(ctx: &SockAddrContext, frontend: &Frontend) -> Option<Backend<N>> {
    pick::backend::<N::Family>(frontend, random(frontend), || AffinityKey {
        client: netns_cookie(ctx) | AffinityKey::SOCKET,
        service: frontend.service,
        family: N::Family::VERSION as u16,
        scope: scope::INTERNAL as u16,
    })
}

/// Returns a hash for a socket, which has no port yet.
#[inline(always)]
fn random(frontend: &Frontend) -> u32 {
    if frontend.count() == 1 {
        return 0;
    }
    // SAFETY: takes nothing, returns a number.
    unsafe { bpf_get_prandom_u32() }
}
