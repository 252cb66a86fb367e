//! Keeps processes of the node from binding a node port: packets to it would go to the service, and the
//! process would wait in vain. Outgoing connections from the port are not restricted.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use ebpf_common::event::kind;
use ebpf_common::{config_flag, metric, scope};

use super::super::family::{Address as _, Family, FrontendKey as _, V4, V6};
use super::super::{lookup, maps};
use super::context::{self, Form, Ip4, Ip6, Mapped, PROCEED};

const EADDRINUSE: i32 = 98;

#[cgroup_sock_addr(bind4)]
pub fn bind4(ctx: SockAddrContext) -> i32 {
    if !is_guarded(&ctx) {
        return PROCEED;
    }
    check::<V4>(&ctx, Ip4::address(&ctx))
}

#[cgroup_sock_addr(bind6)]
pub fn bind6(ctx: SockAddrContext) -> i32 {
    if !is_guarded(&ctx) {
        return PROCEED;
    }
    if context::is_mapped(&ctx) {
        return check::<V4>(&ctx, Mapped::address(&ctx));
    }
    let address = Ip6::address(&ctx);
    // The unspecified address is that of both families, unless the socket is restricted to IPv6, which is not
    // visible here.
    if address.same(&<V6 as Family>::Address::ZERO) && check::<V4>(&ctx, 0) != PROCEED {
        return context::refuse(EADDRINUSE);
    }
    check::<V6>(&ctx, address)
}

/// Returns `true` if the port may be a node port, and the socket is the node's own.
#[inline(always)]
fn is_guarded(ctx: &SockAddrContext) -> bool {
    maps::config().is_some_and(|config| {
        config.flags & config_flag::GUARD_NODE_PORTS != 0
            && lookup::may_be_wildcard(config, context::port(ctx))
            && context::netns_cookie(ctx) == config.netns_cookie
    })
}

#[inline(always)]
fn check<F: Family>(ctx: &SockAddrContext, address: F::Address) -> i32 {
    let closed = maps::config().is_some_and(|config| config.flags & config_flag::LOOPBACK_CLOSED != 0);
    let loopback = F::is_loopback(&address) && !closed;
    let here = address.same(&F::Address::ZERO) || loopback || F::is_local(&address);
    if !here {
        return PROCEED;
    }
    let (port, protocol) = (context::port(ctx), context::protocol_of(ctx));
    let key = F::FrontendKey::new(F::Address::ZERO, port, protocol, scope::INTERNAL);
    let Some(frontend) = lookup::read::<F>(&key) else {
        return PROCEED;
    };
    maps::count(metric::BIND_REFUSED);
    super::emit_event::<F>(kind::BIND_REFUSED, frontend.service, address, port, protocol);
    context::refuse(EADDRINUSE)
}
