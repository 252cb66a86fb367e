//! The maps. Sizes here are defaults; user space sets them when it creates the maps.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_ktime_get_coarse_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, DevMapHash, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf};
use ebpf_common::bandwidth::{self, Bandwidth};
use ebpf_common::event::EventBudget;
use ebpf_common::flow::{Flow4, Flow6, FlowHints, FlowKey, FlowTags, Fragment, FragmentKey, Held, WAYS};
use ebpf_common::frontend::{
    Affinity, AffinityKey, Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6,
};
use ebpf_common::limits;
use ebpf_common::masquerade::Masquerade;
use ebpf_common::policy::{Endpoint, State, StateKey};
use ebpf_common::socket::{Connected, Socket4, Socket6, SocketKey4, SocketKey6};
use ebpf_common::{Config, ServiceMetrics, TICK_SHIFT, metric};

use super::atomic;
use super::forward::Hop;
use super::policy::Query;
use super::table::Scratch;

#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub static FRONTENDS4: HashMap<FrontendKey4, Frontend> =
    HashMap::with_max_entries(limits::FRONTENDS, BPF_F_NO_PREALLOC);
#[map]
pub static FRONTENDS6: HashMap<FrontendKey6, Frontend> =
    HashMap::with_max_entries(limits::FRONTENDS, BPF_F_NO_PREALLOC);
#[map]
pub static BACKENDS4: Array<Backend4> = Array::with_max_entries(limits::BACKENDS, BPF_F_MMAPABLE);
#[map]
pub static BACKENDS6: Array<Backend6> = Array::with_max_entries(limits::BACKENDS, BPF_F_MMAPABLE);
#[map]
pub static LUTS: Array<u64> = Array::with_max_entries(limits::LUTS, BPF_F_MMAPABLE);
/// By service, the value of [`Config::epoch`] when it last lost a backend.
#[map]
pub static LOSSES: Array<u64> = Array::with_max_entries(limits::SERVICES, BPF_F_MMAPABLE);
#[map]
pub static LOCAL_ADDRS4: HashMap<u32, u32> = HashMap::with_max_entries(limits::LOCAL_ADDRESSES, 0);
#[map]
pub static LOCAL_ADDRS6: HashMap<[u32; 4], u32> = HashMap::with_max_entries(limits::LOCAL_ADDRESSES, 0);
#[map]
pub static FLOWS4: Array<Flow4> = Array::with_max_entries(limits::FLOWS4, BPF_F_MMAPABLE);
#[map]
pub static FLOW_TAGS4: Array<FlowTags> = Array::with_max_entries(limits::FLOWS4 / WAYS, BPF_F_MMAPABLE);
#[map]
pub static FLOW_HINTS4: Array<FlowHints> = Array::with_max_entries(limits::FLOWS4 / WAYS, BPF_F_MMAPABLE);
#[map]
pub static FLOWS6: Array<Flow6> = Array::with_max_entries(limits::FLOWS6, BPF_F_MMAPABLE);
#[map]
pub static FLOW_TAGS6: Array<FlowTags> = Array::with_max_entries(limits::FLOWS6 / WAYS, BPF_F_MMAPABLE);
#[map]
pub static FLOW_HINTS6: Array<FlowHints> = Array::with_max_entries(limits::FLOWS6 / WAYS, BPF_F_MMAPABLE);
#[map]
pub static FRAGMENTS: LruHashMap<FragmentKey, Fragment> = LruHashMap::with_max_entries(limits::FRAGMENTS, 0);
#[map]
pub static CONNECTED: Array<Connected> = Array::with_max_entries(limits::CONNECTED, BPF_F_MMAPABLE);
#[map]
pub static CONNECTED_TAGS: Array<FlowTags> = Array::with_max_entries(Connected::SETS, BPF_F_MMAPABLE);
#[map]
pub static SOCKETS4: LruHashMap<SocketKey4, Socket4> = LruHashMap::with_max_entries(limits::SOCKETS, 0);
#[map]
pub static SOCKETS6: LruHashMap<SocketKey6, Socket6> = LruHashMap::with_max_entries(limits::SOCKETS, 0);
#[map]
pub static AFFINITY: LruHashMap<AffinityKey, Affinity> = LruHashMap::with_max_entries(limits::AFFINITY, 0);
/// Keys are of the form of [`ebpf_common::frontend::SourceRangeKey`].
#[map]
pub static SOURCE_RANGES4: LpmTrie<[u32; 2], u32> = LpmTrie::with_max_entries(limits::SOURCE_RANGES, 0);
#[map]
pub static SOURCE_RANGES6: LpmTrie<[u32; 5], u32> = LpmTrie::with_max_entries(limits::SOURCE_RANGES, 0);
#[map]
pub static MASQUERADE: Array<Masquerade> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Keys are of the form of [`ebpf_common::masquerade::Prefix`], values of
/// [`ebpf_common::masquerade::reason`].
#[map]
pub static NON_MASQUERADE4: LpmTrie<u32, u32> = LpmTrie::with_max_entries(limits::NON_MASQUERADE, 0);
#[map]
pub static NON_MASQUERADE6: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(limits::NON_MASQUERADE, 0);
/// Cookies of network namespaces whose sockets are left alone.
#[map]
pub static EXEMPT: HashMap<u64, u64> = HashMap::with_max_entries(limits::EXEMPT, BPF_F_NO_PREALLOC);
/// Connections that the kernel's own connection tracking translates, by rules of others: [`ebpf_common::tracked`].
#[map]
pub static TRACKED4: HashMap<FlowKey<u32>, u32> =
    HashMap::with_max_entries(limits::TRACKED, BPF_F_NO_PREALLOC);
#[map]
pub static TRACKED6: HashMap<FlowKey<[u32; 4]>, u32> =
    HashMap::with_max_entries(limits::TRACKED, BPF_F_NO_PREALLOC);
/// By the index of the host's end of a pod's interface.
#[map]
pub static POLICY_ENDPOINTS: HashMap<u32, Endpoint> =
    HashMap::with_max_entries(limits::POLICY_ENDPOINTS, BPF_F_NO_PREALLOC);
/// Keys are of the form of [`ebpf_common::masquerade::Prefix`], values classes.
#[map]
pub static POLICY_PEERS4: LpmTrie<u32, u32> = LpmTrie::with_max_entries(limits::POLICY_PEERS, 0);
#[map]
pub static POLICY_PEERS6: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(limits::POLICY_PEERS, 0);
/// Keys are of the form of [`ebpf_common::policy::RuleKey`], values indexes into `POLICY_NAMES`.
#[map]
pub static POLICY_RULES: LpmTrie<[u32; 3], u32> = LpmTrie::with_max_entries(limits::POLICY_RULES, 0);
#[map]
pub static POLICY_FLOWS: LruHashMap<StateKey, State> = LruHashMap::with_max_entries(limits::POLICY_FLOWS, 0);
/// For events and people; no program reads it.
#[map]
pub static POLICY_NAMES: HashMap<u32, [u8; limits::SERVICE_NAME]> =
    HashMap::with_max_entries(limits::POLICY_NAMES, BPF_F_NO_PREALLOC);
/// By the index of the host's end of a pod's interface.
#[map]
pub static BANDWIDTH: HashMap<u32, Bandwidth> =
    HashMap::with_max_entries(limits::BANDWIDTH, BPF_F_NO_PREALLOC);
/// One bit for each interface that may have a limit, in the word of [`ebpf_common::bandwidth::filter`].
#[map]
pub static BANDWIDTH_FILTER: Array<u64> = Array::with_max_entries(bandwidth::FILTER_WORDS, BPF_F_MMAPABLE);
/// Not pinned: it holds nothing between packets.
#[map]
pub static POLICY_SCRATCH: PerCpuArray<Query> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(limits::EVENT_BYTES, 0);
#[map]
pub static EVENT_BUDGET: PerCpuArray<EventBudget> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub static METRICS: PerCpuArray<u64> = PerCpuArray::with_max_entries(metric::COUNT, 0);
#[map]
pub static SERVICE_METRICS: Array<ServiceMetrics> =
    Array::with_max_entries(ServiceMetrics::elements(limits::SERVICES), BPF_F_MMAPABLE);
/// For people who inspect the maps; no program reads it.
#[map]
pub static SERVICE_NAMES: HashMap<u32, [u8; limits::SERVICE_NAME]> =
    HashMap::with_max_entries(limits::SERVICES, BPF_F_NO_PREALLOC);
/// Room for data that does not fit on the stack, see [`super::table::Scratch`]. Not pinned: it holds nothing
/// between packets.
#[map]
pub static SCRATCH4: PerCpuArray<Scratch<u32>> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub static SCRATCH6: PerCpuArray<Scratch<[u32; 4]>> = PerCpuArray::with_max_entries(1, 0);
/// Fragments that wait for their first one. Not pinned: a program that replaces another drops those that
/// wait.
#[map]
pub static HELD: Array<Held> = Array::with_max_entries(limits::HELD, 0);
/// Number of places of each group that have been taken, see [`ebpf_common::waiting`].
#[map]
pub static HELD_NEXT: Array<u32> = Array::with_max_entries(limits::HELD_GROUPS, 0);
/// Ways of packets between pods, by a hash of address and interface. Not pinned: each is valid for a second.
#[map]
pub static NEXT_HOPS: PerCpuArray<Hop> = PerCpuArray::with_max_entries(limits::NEXT_HOPS, 0);
#[map]
pub static DEVICES: DevMapHash = DevMapHash::with_max_entries(limits::DEVICES, 0);

/// Counts one event of [`metric`].
#[inline(always)]
pub fn count(metric: u32) {
    if let Some(counter) = METRICS.get_ptr_mut(metric) {
        // SAFETY: the element is this CPU's own, and programs do not migrate.
        unsafe { *counter += 1 };
    }
}

/// Counts a connection of a service, or a refused one.
#[inline(always)]
pub fn count_service(service: u32, refused: bool) {
    // SAFETY: takes nothing, returns a number.
    let processor = unsafe { bpf_get_smp_processor_id() };
    if let Some(counters) = SERVICE_METRICS.get_ptr_mut(ServiceMetrics::place(service, processor)) {
        // SAFETY: the pointer leads to an element of the map.
        unsafe {
            let place = if refused { &raw mut (*counters).refused } else { &raw mut (*counters).connections };
            atomic::add(place, 1);
        }
    }
}

/// Prefetches the counters of a service, which [`count_service`] will change.
#[inline(always)]
pub fn touch_service(service: u32) {
    // SAFETY: takes nothing, returns a number.
    let processor = unsafe { bpf_get_smp_processor_id() };
    if let Some(counters) = SERVICE_METRICS.get_ptr(ServiceMetrics::place(service, processor)) {
        // SAFETY: the pointer leads to an element of the map.
        unsafe { (&raw const (*counters).connections).read_volatile() };
    }
}

/// Returns the epoch in which a service last lost a backend.
#[inline(always)]
pub fn loss(service: u32) -> u32 {
    // SAFETY: an element of an array stays where it is; a word is read whole.
    LOSSES.get_ptr(service).map_or(0, |value| unsafe { value.read_volatile() } as u32)
}

/// Returns the node's settings.
#[inline(always)]
pub fn config() -> Option<&'static Config> {
    CONFIG.get(0)
}

/// Returns the epoch of backends that are chosen from now on. Read it before the frontend: a loss in between
/// is then noticed by the next packet.
#[inline(always)]
pub fn epoch(config: &Config) -> u32 {
    // SAFETY: a reference to a word is valid for reading it; user space may change it at any time.
    unsafe { (&raw const config.epoch).read_volatile() }
}

/// Returns the time in ticks, see [`TICK_SHIFT`].
#[inline(always)]
pub fn tick() -> u32 {
    // SAFETY: takes nothing, returns a number.
    (unsafe { bpf_ktime_get_coarse_ns() } >> TICK_SHIFT) as u32
}
