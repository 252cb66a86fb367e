//! The maps. Sizes here are defaults; user space sets them when it creates the maps.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::helpers::bpf_ktime_get_coarse_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, DevMapHash, HashMap, LruHashMap, PerCpuArray};
use ebpf_common::flow::{Flow4, FlowKey4};
use ebpf_common::frontend::{
    Affinity, AffinityKey, Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6,
};
use ebpf_common::limits;
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6};
use ebpf_common::{Config, ServiceMetrics, TICK_SHIFT, metric};

#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub static FRONTENDS4: HashMap<FrontendKey4, Frontend> = HashMap::with_max_entries(limits::FRONTENDS, 0);
#[map]
pub static FRONTENDS6: HashMap<FrontendKey6, Frontend> = HashMap::with_max_entries(limits::FRONTENDS, 0);
#[map]
pub static BACKENDS4: Array<Backend4> = Array::with_max_entries(limits::BACKENDS, BPF_F_MMAPABLE);
#[map]
pub static BACKENDS6: Array<Backend6> = Array::with_max_entries(limits::BACKENDS, BPF_F_MMAPABLE);
/// By service: grows when one of its backends goes.
#[map]
pub static GENERATIONS: Array<u64> = Array::with_max_entries(limits::SERVICES, BPF_F_MMAPABLE);
#[map]
pub static LOCAL_ADDRS4: HashMap<u32, u32> = HashMap::with_max_entries(limits::LOCAL_ADDRESSES, 0);
#[map]
pub static LOCAL_ADDRS6: HashMap<[u32; 4], u32> = HashMap::with_max_entries(limits::LOCAL_ADDRESSES, 0);
#[map]
pub static FLOWS4: LruHashMap<FlowKey4, Flow4> = LruHashMap::with_max_entries(limits::FLOWS, 0);
#[map]
pub static SOCKETS4: LruHashMap<SocketKey4, Socket4> = LruHashMap::with_max_entries(limits::SOCKETS, 0);
#[map]
pub static SOCKETS6: LruHashMap<SocketKey6, Socket6> = LruHashMap::with_max_entries(limits::SOCKETS, 0);
#[map]
pub static AFFINITY: LruHashMap<AffinityKey, Affinity> = LruHashMap::with_max_entries(limits::AFFINITY, 0);
#[map]
pub static METRICS: PerCpuArray<u64> = PerCpuArray::with_max_entries(metric::COUNT, 0);
#[map]
pub static SERVICE_METRICS: PerCpuArray<ServiceMetrics> = PerCpuArray::with_max_entries(limits::SERVICES, 0);
/// For people who look at the maps; no program reads it.
#[map]
pub static SERVICE_NAMES: HashMap<u32, [u8; limits::SERVICE_NAME]> =
    HashMap::with_max_entries(limits::SERVICES, BPF_F_NO_PREALLOC);
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

/// Counts a connection of a service, or one that was refused.
#[inline(always)]
pub fn count_service(service: u32, refused: bool) {
    if let Some(counters) = SERVICE_METRICS.get_ptr_mut(service) {
        // SAFETY: the element is this CPU's own, and programs do not migrate.
        unsafe {
            if refused {
                (*counters).refused += 1;
            } else {
                (*counters).connections += 1;
            }
        }
    }
}

/// The generation of a service's backends.
#[inline(always)]
pub fn generation(service: u32) -> u32 {
    // SAFETY: an element of an array stays where it is; a word is read whole.
    GENERATIONS.get_ptr(service).map_or(0, |value| unsafe { value.read_volatile() } as u32)
}

/// The node's settings.
#[inline(always)]
pub fn config() -> Option<&'static Config> {
    CONFIG.get(0)
}

/// Time in ticks, see [`TICK_SHIFT`].
#[inline(always)]
pub fn tick() -> u32 {
    // SAFETY: takes nothing, returns a number.
    (unsafe { bpf_ktime_get_coarse_ns() } >> TICK_SHIFT) as u32
}
