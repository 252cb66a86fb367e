//! Packets of pods that leave the cluster, see [`ebpf_common::masquerade`].
//!
//! The decision is made once, where a flow begins at a pod's interface; packets of the flow, and the replies
//! to it, are then translated as those of services are. Packets that the stack has to see (to answer that
//! there is no route, that their hops are used up, or that they are too big; or because packet filters of
//! others see all of them) reach it unchanged, and are translated where they leave.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_map_lookup_elem;
use ebpf_common::event::hook;
use ebpf_common::flow::flow_flag;
use ebpf_common::masquerade::{Masquerade, Prefix};
use ebpf_common::{Config, Range, config_flag, metric};

use super::family::{Address, Family};
use super::flow::Place;
use super::maps::{self, MASQUERADE, NON_MASQUERADE4, NON_MASQUERADE6};
use super::packet::{Packet, To, copy, tcp_flag};

/// The looks at the ranges, by family.
pub trait Outside: Copy {
    /// Returns `true` if pods of the cluster have such addresses.
    fn is_in_cluster(&self, settings: &Masquerade) -> bool;
    /// Returns `true` if pods of this node have such addresses.
    fn is_of_node(&self, settings: &Masquerade) -> bool;
    /// Returns `true` if packets to this prefix keep their source.
    fn is_exempt(prefix: &Prefix<Self>) -> bool;
    /// Number of bits of an address.
    const BITS: u32;
}

/// Returns `true` if a program at this place translates packets that leave the cluster.
#[inline(always)]
pub fn is_on(config: &Config, place: Place) -> bool {
    const BITS: u32 = config_flag::MASQUERADE | config_flag::LEAVING;
    config.flags & BITS == config_flag::MASQUERADE && place as u8 == hook::POD
}

/// Returns `true` if echo requests and replies are packets with an identifier in place of a port.
#[inline(always)]
pub fn has_echoes(config: &Config) -> bool {
    config.flags & (config_flag::MASQUERADE | config_flag::POLICY) != 0
}

/// Returns `true` if a packet to this destination leaves the cluster, and takes the node's address. A separate
/// function, so that the stack of its callers does not have to hold what it needs.
#[inline(never)]
pub fn applies<F: Family>(packet: &Packet<F::Address>, destination: &F::Address) -> bool {
    let (Some(config), Some(settings)) = (maps::config(), MASQUERADE.get(0)) else {
        return false;
    };
    // Before everything else: most packets are for pods.
    if destination.is_in_cluster(settings) {
        return false;
    }
    // The reply to a request from outside, which has no flow: it keeps its source as the request did.
    if packet.protocol() == F::ICMP && packet.flags & tcp_flag::ACK != 0 {
        return false;
    }
    if F::snat_address(config).same(&F::Address::ZERO) {
        return false;
    }
    let Some(scratch) = F::scratch() else {
        return false;
    };
    // SAFETY: the room is this processor's own; both addresses are values.
    let exempt = unsafe {
        let prefix = &mut (*scratch).prefix;
        prefix.bits = F::Address::BITS;
        copy(destination, &mut prefix.address);
        F::Address::is_exempt(prefix)
    };
    if exempt {
        return false;
    }
    if !packet.key.source.is_of_node(settings) {
        maps::count(metric::MASQUERADE_SOURCE);
        return false;
    }
    true
}

/// Returns `true` for a datagram from outside of the cluster to the own address of one of this node's pods. It
/// has a flow, by which replies are known to be no requests of the pod.
#[inline(never)]
pub fn enters<F: Family>(config: &Config, packet: &Packet<F::Address>, place: Place) -> bool {
    const BITS: u32 = config_flag::MASQUERADE | config_flag::LEAVING;
    if config.flags & BITS != config_flag::MASQUERADE || place as u8 != hook::UPLINK {
        return false;
    }
    MASQUERADE.get(0).is_some_and(|settings| {
        packet.key.destination.is_of_node(settings) && !packet.key.source.is_in_cluster(settings)
    })
}

/// Returns `true` if a flow only replaces the source of packets that leave the cluster.
#[inline(always)]
pub fn is_plain<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>) -> bool {
    const BITS: u32 = (flow_flag::MASQUERADE | flow_flag::REVERSE) as u32;
    to.flags & BITS == flow_flag::MASQUERADE as u32 && to.destination.same(&packet.key.destination)
}

/// Returns `true` if a datagram, or a packet that opens a connection, still belongs to a flow that only
/// replaces the source: neither has the destination become a service's, or one that keeps the source, nor has
/// the node another address by now.
#[inline(always)]
pub fn still_applies<F: Family>(packet: &Packet<F::Address>, source: &F::Address) -> bool {
    let Some(config) = maps::config() else {
        return true;
    };
    config.flags & config_flag::MASQUERADE != 0
        && F::snat_address(config).same(source)
        && applies::<F>(packet, &packet.key.destination)
}

macro_rules! outside {
    ($address:ty, $bits:literal, $cluster:ident, $pods:ident, $trie:ident) => {
        impl Outside for $address {
            const BITS: u32 = $bits;

            #[inline(always)]
            fn is_in_cluster(&self, settings: &Masquerade) -> bool {
                within(self, &settings.$cluster[0]) || within(self, &settings.$cluster[1])
            }

            #[inline(always)]
            fn is_of_node(&self, settings: &Masquerade) -> bool {
                within(self, &settings.$pods[0]) || within(self, &settings.$pods[1])
            }

            #[inline(always)]
            fn is_exempt(prefix: &Prefix<Self>) -> bool {
                let (map, key) = ((&raw const $trie).cast::<c_void>(), (&raw const *prefix).cast());
                // SAFETY: the map's keys are of this type.
                unsafe { !bpf_map_lookup_elem(map.cast_mut(), key).is_null() }
            }
        }
    };
}

outside!(u32, 32, cluster4, pods4, NON_MASQUERADE4);
outside!([u32; 4], 128, cluster6, pods6, NON_MASQUERADE6);

/// Returns `true` if the address is in the range.
#[inline(always)]
fn within<A: Address>(address: &A, range: &Range<A>) -> bool {
    let (address, network, mask) = (address.words(), range.network.words(), range.mask.words());
    let mut differ = 0;
    for word in 0..4 {
        differ |= address[word] & mask[word] ^ network[word];
    }
    mask[0] != 0 && differ == 0
}
