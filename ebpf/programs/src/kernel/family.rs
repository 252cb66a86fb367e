//! The differences between IPv4 and IPv6, so that everything else is written once.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_map_lookup_elem;
use ebpf_common::flow::{Flow, FlowHints, FlowKey, FlowTags};
use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6, SourceRangeKey};
use ebpf_common::{Config, Range, protocol};

pub use super::address::Address;
use super::evict;
use super::flow::{self, Place};
use super::maps::{
    BACKENDS4, BACKENDS6, FLOW_HINTS4, FLOW_HINTS6, FLOW_TAGS4, FLOW_TAGS6, FLOWS4, FLOWS6, FRONTENDS4,
    FRONTENDS6, LOCAL_ADDRS4, LOCAL_ADDRS6, SCRATCH4, SCRATCH6, SOURCE_RANGES4, SOURCE_RANGES6, TRACKED4,
    TRACKED6,
};
use super::new_flow;
use super::packet::{Packet, To};
use super::table::{self, New, Scratch};
use super::{forward, insert, lookup, reject, remove, tcx};

/// Key of a frontend.
pub trait FrontendKey {
    type Address: Address;
    fn new(address: Self::Address, port: u16, protocol: u8, scope: u8) -> Self;
    fn address(&self) -> &Self::Address;
    fn set_address(&mut self, address: Self::Address);
    fn port(&self) -> u16;
    /// Returns the key as one word, see [`Frontend::checksum`].
    fn fold_key(&self) -> u64;
}

/// One backend.
pub trait Backend: Copy {
    type Address: Address;
    fn address(&self) -> Self::Address;
    fn port(&self) -> u16;
    /// Returns bits of [`ebpf_common::frontend::backend_flag`].
    fn flags(&self) -> u16;
    /// Returns the sort key, see [`Backend4::order`].
    fn order(address: &Self::Address, port: u16) -> u64;
}

/// IPv4 or IPv6.
pub trait Family {
    type Address: Address;
    type FrontendKey: FrontendKey<Address = Self::Address>;
    type Backend: Backend<Address = Self::Address>;

    /// 4 or 6.
    const VERSION: u8;
    /// `AF_INET` or `AF_INET6`.
    const AF: u8;
    /// The Ethernet type in the form of packets.
    const ETHERTYPE: u16;
    /// Length of the header without options.
    const HEADER: usize;
    /// Offsets in the header.
    const SOURCE: usize;
    const DESTINATION: usize;
    /// Offset of the remaining hops.
    const HOPS: usize;
    /// Protocol number of its control messages.
    const ICMP: u8;

    /// Returns the number of slots of the flow table, less one.
    fn flow_mask(config: &Config) -> u32;
    fn slot(index: u32) -> Option<*mut Flow<Self::Address>>;
    fn tags(set: u32) -> Option<*mut FlowTags>;
    fn hints(set: u32) -> Option<*mut FlowHints>;
    /// Returns this processor's room for data that does not fit on the stack.
    fn scratch() -> Option<*mut Scratch<Self::Address>>;

    /// Returns bits of [`ebpf_common::tracked`] of a connection of others; zero if there is none.
    fn tracked(key: &FlowKey<Self::Address>) -> u32;

    /// Returns the value under a key, which may change while it is read: see [`Frontend`].
    fn frontend(key: &Self::FrontendKey) -> Option<*const Frontend>;
    /// Returns an element of the arena.
    fn backend(index: u32) -> Option<*const Self::Backend>;
    /// Returns `true` if the address serves node ports.
    fn is_local(address: &Self::Address) -> bool;
    /// Returns `true` for 127.0.0.0/8 or ::1.
    fn is_loopback(address: &Self::Address) -> bool;
    /// Returns `true` if the service admits the source.
    fn is_allowed(service: u32, source: Self::Address) -> bool;
    /// Returns the node's address as a source; zero if the node has none.
    fn snat_address(config: &Config) -> &Self::Address;
    /// Returns `true` if the address is in one of the ranges of services' addresses.
    fn is_in_ranges(config: &Config, address: &Self::Address) -> bool;

    /// Inserts a flow into the table, with [`table::insert`].
    fn insert_flow(new: &New<Self::Address>, hash: u64, place: Place) -> u32;
    /// Removes a flow from the table, with [`table::remove`].
    fn remove_flow(key: &FlowKey<Self::Address>);
    /// Returns the slot with this key in a set or the neighbouring one: `elsewhere` in [`table`].
    fn elsewhere(key: &FlowKey<Self::Address>, hash: u64, set: u32) -> u32;
    /// Returns `true` if no other slot has the key of a pending flow: `scan` in [`insert`].
    fn is_alone(set: u32, new: &New<Self::Address>, hash: u64, own: u32) -> bool;
    /// Takes an empty way of a set: `empty_way` in [`evict`].
    fn empty_way(set: u32, last: bool) -> u32;
    /// Returns the way of a set whose flow is evicted: `victim` in [`evict`].
    fn victim(set: u32, start: u32, now: u32) -> u32;
    /// Prefetches the slot of the flow that will be evicted: `foresee` in [`evict`].
    fn foresee(hash: u64, now: u32, reply: bool);
    /// Does the work for few packets of a flow, with `attend` in [`flow`]; 0 if the flow is gone.
    fn attend(packet: &Packet<Self::Address>, slot: u32, now: u32, place: Place) -> u32;
    /// Inserts both elements of a flow, with `create` in [`new_flow`]; gives a [`flow::verdict`].
    fn create(packet: &Packet<Self::Address>, hash: u64, place: Place, to: &mut To<Self::Address>) -> u32;
    /// Chooses a backend, with `choose` in [`new_flow`]; gives a [`flow::verdict`].
    fn choose(packet: &Packet<Self::Address>, hash: u64, place: Place) -> u32;
    /// Returns the state of a reply's key: `look_at` in [`new_flow`].
    fn look_at(reply: &New<Self::Address>) -> u32;
    /// Rewrites a packet and sends it on its way: `carry` in [`tcx`].
    fn carry(
        skb: *mut __sk_buff,
        packet: &Packet<Self::Address>,
        to: &To<Self::Address>,
        place: Place,
    ) -> i32;
    /// Rewrites a packet to the flow's other side: `rewrite` in [`tcx`].
    fn rewrite(
        skb: *mut __sk_buff,
        packet: &Packet<Self::Address>,
        to: &To<Self::Address>,
        hop: bool,
    ) -> bool;
    /// Sends a packet that nothing translates on its way: `send` in [`forward`].
    fn forward(skb: *mut __sk_buff, packet: &Packet<Self::Address>, place: Place) -> i32;
    /// Asks the routing table for the way to an end of a packet: `ask` in [`forward`].
    fn ask_way(
        skb: *mut __sk_buff,
        packet: &Packet<Self::Address>,
        from: u32,
        end: u32,
        hop: *mut forward::Hop,
    );
    /// Turns a packet into its refusal and sends it back: `refuse` in [`reject`].
    fn refuse(skb: *mut __sk_buff, packet: &Packet<Self::Address>) -> i32;
}

macro_rules! checked_once {
    ($address:ty, $insert:ident, $remove:ident, $elsewhere:ident, $scan:ident, $empty:ident, $victim:ident, $foresee:ident, $attend:ident, $create:ident, $choose:ident, $look:ident, $carry:ident, $rewrite:ident, $forward:ident, $ask:ident, $refuse:ident) => {
        #[inline(always)]
        fn insert_flow(new: &New<$address>, hash: u64, place: Place) -> u32 {
            insert::$insert(new, hash, place)
        }

        #[inline(always)]
        fn remove_flow(key: &FlowKey<$address>) {
            remove::$remove(key);
        }

        #[inline(always)]
        fn elsewhere(key: &FlowKey<$address>, hash: u64, set: u32) -> u32 {
            table::$elsewhere(key, hash, set)
        }

        #[inline(always)]
        fn is_alone(set: u32, new: &New<$address>, hash: u64, own: u32) -> bool {
            insert::$scan(set, new, hash, own) != 0
        }

        #[inline(always)]
        fn empty_way(set: u32, last: bool) -> u32 {
            evict::$empty(set, last as u32)
        }

        #[inline(always)]
        fn victim(set: u32, start: u32, now: u32) -> u32 {
            evict::$victim(set, start, now)
        }

        #[inline(always)]
        fn foresee(hash: u64, now: u32, reply: bool) {
            evict::$foresee(hash, now, reply as u32);
        }

        #[inline(always)]
        fn attend(packet: &Packet<$address>, slot: u32, now: u32, place: Place) -> u32 {
            flow::$attend(packet, slot, now, place)
        }

        #[inline(always)]
        fn create(packet: &Packet<$address>, hash: u64, place: Place, to: &mut To<$address>) -> u32 {
            new_flow::$create(packet, hash, place, to)
        }

        #[inline(always)]
        fn choose(packet: &Packet<$address>, hash: u64, place: Place) -> u32 {
            new_flow::$choose(packet, hash, place)
        }

        #[inline(always)]
        fn look_at(reply: &New<$address>) -> u32 {
            new_flow::$look(reply)
        }

        #[inline(always)]
        fn carry(skb: *mut __sk_buff, packet: &Packet<$address>, to: &To<$address>, place: Place) -> i32 {
            tcx::$carry(skb, packet, to, place)
        }

        #[inline(always)]
        fn rewrite(skb: *mut __sk_buff, packet: &Packet<$address>, to: &To<$address>, hop: bool) -> bool {
            tcx::$rewrite(skb, packet, to, hop as u32) != 0
        }

        #[inline(always)]
        fn forward(skb: *mut __sk_buff, packet: &Packet<$address>, place: Place) -> i32 {
            forward::$forward(skb, packet, place)
        }

        #[inline(always)]
        fn ask_way(
            skb: *mut __sk_buff,
            packet: &Packet<$address>,
            from: u32,
            end: u32,
            hop: *mut forward::Hop,
        ) {
            forward::$ask(skb, packet, from, end, hop);
        }

        #[inline(always)]
        fn refuse(skb: *mut __sk_buff, packet: &Packet<$address>) -> i32 {
            reject::$refuse(skb, packet)
        }
    };
}

/// IPv4.
pub struct V4;
/// IPv6.
pub struct V6;

macro_rules! frontend_key {
    ($key:ty, $address:ty) => {
        impl FrontendKey for $key {
            type Address = $address;

            #[inline(always)]
            fn new(address: $address, port: u16, protocol: u8, scope: u8) -> Self {
                Self { address, port, protocol, scope }
            }

            #[inline(always)]
            fn address(&self) -> &$address {
                &self.address
            }

            #[inline(always)]
            fn set_address(&mut self, address: $address) {
                self.address = address;
            }

            #[inline(always)]
            fn port(&self) -> u16 {
                self.port
            }

            #[inline(always)]
            fn fold_key(&self) -> u64 {
                self.fold()
            }
        }
    };
}

frontend_key!(FrontendKey4, u32);
frontend_key!(FrontendKey6, [u32; 4]);

impl Backend for Backend4 {
    type Address = u32;

    #[inline(always)]
    fn address(&self) -> u32 {
        self.address
    }

    #[inline(always)]
    fn port(&self) -> u16 {
        self.port
    }

    #[inline(always)]
    fn flags(&self) -> u16 {
        self.flags
    }

    #[inline(always)]
    fn order(address: &u32, port: u16) -> u64 {
        Backend4::order(*address, port)
    }
}

impl Backend for Backend6 {
    type Address = [u32; 4];

    #[inline(always)]
    fn address(&self) -> [u32; 4] {
        self.address
    }

    #[inline(always)]
    fn port(&self) -> u16 {
        self.port
    }

    #[inline(always)]
    fn flags(&self) -> u16 {
        self.flags
    }

    #[inline(always)]
    fn order(address: &[u32; 4], port: u16) -> u64 {
        Backend6::order(address, port)
    }
}

impl Family for V4 {
    checked_once!(
        u32, insert4, remove4, elsewhere4, scan4, empty_way4, victim4, foresee4, attend4, create4, choose4,
        look_at4, carry4, rewrite4, forward4, ask_way4, refuse4
    );

    type Address = u32;
    type FrontendKey = FrontendKey4;
    type Backend = Backend4;

    const VERSION: u8 = 4;
    const AF: u8 = 2;
    const ETHERTYPE: u16 = 0x0800_u16.to_be();
    const HEADER: usize = 20;
    const SOURCE: usize = 12;
    const DESTINATION: usize = 16;
    const HOPS: usize = 8;
    const ICMP: u8 = protocol::ICMP;

    #[inline(always)]
    fn flow_mask(config: &Config) -> u32 {
        config.flow_mask4
    }

    #[inline(always)]
    fn slot(index: u32) -> Option<*mut Flow<u32>> {
        FLOWS4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn tags(set: u32) -> Option<*mut FlowTags> {
        FLOW_TAGS4.get_ptr_mut(set)
    }

    #[inline(always)]
    fn hints(set: u32) -> Option<*mut FlowHints> {
        FLOW_HINTS4.get_ptr_mut(set)
    }

    #[inline(always)]
    fn scratch() -> Option<*mut Scratch<Self::Address>> {
        SCRATCH4.get_ptr_mut(0)
    }

    #[inline(always)]
    fn tracked(key: &FlowKey<u32>) -> u32 {
        // SAFETY: the pointer leads to a value of the map; a word is read whole.
        TRACKED4.get_ptr(key).map_or(0, |value| unsafe { value.read_volatile() })
    }

    #[inline(always)]
    fn frontend(key: &FrontendKey4) -> Option<*const Frontend> {
        FRONTENDS4.get_ptr(key)
    }

    #[inline(always)]
    fn backend(index: u32) -> Option<*const Backend4> {
        BACKENDS4.get_ptr(index)
    }

    #[inline(always)]
    fn is_local(address: &u32) -> bool {
        LOCAL_ADDRS4.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn is_loopback(address: &u32) -> bool {
        address.to_ne_bytes()[0] == 127
    }

    #[inline(always)]
    fn is_allowed(service: u32, source: u32) -> bool {
        let key = SourceRangeKey { bits: 64, service, address: source };
        found((&raw const SOURCE_RANGES4).cast(), (&raw const key).cast())
    }

    #[inline(always)]
    fn snat_address(config: &Config) -> &u32 {
        &config.snat_address4
    }

    #[inline(always)]
    fn is_in_ranges(config: &Config, address: &u32) -> bool {
        if lookup::is_leaving(config) {
            return false;
        }
        let within = |range: &Range<u32>| range.mask != 0 && address & range.mask == range.network;
        within(&config.ranges4[0]) || within(&config.ranges4[1])
    }
}

impl Family for V6 {
    checked_once!(
        [u32; 4], insert6, remove6, elsewhere6, scan6, empty_way6, victim6, foresee6, attend6, create6,
        choose6, look_at6, carry6, rewrite6, forward6, ask_way6, refuse6
    );

    type Address = [u32; 4];
    type FrontendKey = FrontendKey6;
    type Backend = Backend6;

    const VERSION: u8 = 6;
    const AF: u8 = 10;
    const ETHERTYPE: u16 = 0x86dd_u16.to_be();
    const HEADER: usize = 40;
    const SOURCE: usize = 8;
    const DESTINATION: usize = 24;
    const HOPS: usize = 7;
    const ICMP: u8 = protocol::ICMP6;

    #[inline(always)]
    fn flow_mask(config: &Config) -> u32 {
        config.flow_mask6
    }

    #[inline(always)]
    fn slot(index: u32) -> Option<*mut Flow<[u32; 4]>> {
        // SAFETY: an offset within the element.
        FLOWS6.get_ptr_mut(index).map(|slot| unsafe { &raw mut (*slot).flow })
    }

    #[inline(always)]
    fn tags(set: u32) -> Option<*mut FlowTags> {
        FLOW_TAGS6.get_ptr_mut(set)
    }

    #[inline(always)]
    fn hints(set: u32) -> Option<*mut FlowHints> {
        FLOW_HINTS6.get_ptr_mut(set)
    }

    #[inline(always)]
    fn scratch() -> Option<*mut Scratch<Self::Address>> {
        SCRATCH6.get_ptr_mut(0)
    }

    #[inline(always)]
    fn tracked(key: &FlowKey<[u32; 4]>) -> u32 {
        // SAFETY: the pointer leads to a value of the map; a word is read whole.
        TRACKED6.get_ptr(key).map_or(0, |value| unsafe { value.read_volatile() })
    }

    #[inline(always)]
    fn frontend(key: &FrontendKey6) -> Option<*const Frontend> {
        FRONTENDS6.get_ptr(key)
    }

    #[inline(always)]
    fn backend(index: u32) -> Option<*const Backend6> {
        BACKENDS6.get_ptr(index)
    }

    #[inline(always)]
    fn is_local(address: &[u32; 4]) -> bool {
        LOCAL_ADDRS6.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn is_loopback(address: &[u32; 4]) -> bool {
        address.same(&[0, 0, 0, 1_u32.to_be()])
    }

    #[inline(always)]
    fn is_allowed(service: u32, source: [u32; 4]) -> bool {
        let key = SourceRangeKey { bits: 160, service, address: source };
        found((&raw const SOURCE_RANGES6).cast(), (&raw const key).cast())
    }

    #[inline(always)]
    fn snat_address(config: &Config) -> &[u32; 4] {
        &config.snat_address6
    }

    #[inline(always)]
    fn is_in_ranges(config: &Config, address: &[u32; 4]) -> bool {
        if lookup::is_leaving(config) {
            return false;
        }
        let within = |range: &Range<[u32; 4]>| {
            let (network, mask) = (&range.network, &range.mask);
            let high = address[0] & mask[0] ^ network[0] | address[1] & mask[1] ^ network[1];
            let low = address[2] & mask[2] ^ network[2] | address[3] & mask[3] ^ network[3];
            mask[0] != 0 && high | low == 0
        };
        within(&config.ranges6[0]) || within(&config.ranges6[1])
    }
}

/// Returns `true` if the map has an element under the key.
#[inline(always)]
fn found(map: *const c_void, key: *const c_void) -> bool {
    // SAFETY: the callers give a map and a key of its type.
    unsafe { !bpf_map_lookup_elem(map.cast_mut(), key).is_null() }
}
