//! The choice of the backend that gets a connection.

use aya_ebpf::bindings::BPF_ANY;
use ebpf_common::frontend::{Affinity, AffinityKey, Frontend, Lut, frontend_flag};
use ebpf_common::{choice, limits};

use super::family::{Address as _, Backend as _, Family};
use super::maps::{self, AFFINITY, LUTS};

/// Returns the backend for `hash`; the client's last one if the frontend has affinity. `client` returns the
/// client's affinity key, and is called only when it is needed. The frontend has backends.
#[inline(always)]
pub fn backend<F: Family>(
    frontend: &Frontend,
    hash: u32,
    client: impl FnOnce() -> AffinityKey,
) -> Option<F::Backend> {
    if frontend.affinity == 0 {
        return choose::<F>(frontend, hash);
    }
    let key = client();
    let now = maps::tick();
    if let Some(last) = AFFINITY.get_ptr_mut(&key) {
        // SAFETY: the pointer leads to a value of the map; a torn reading names a backend that is not found.
        let (address, seen) = unsafe { ((*last).address, (*last).seen) };
        if now.wrapping_sub(seen) <= frontend.affinity
            && let Some(backend) = at_address::<F>(frontend, &F::Address::from_words(&address))
        {
            if seen != now {
                // SAFETY: as above; a word is written whole.
                unsafe { (&raw mut (*last).seen).write_volatile(now) };
            }
            return Some(backend);
        }
    }
    let backend = choose::<F>(frontend, hash)?;
    let value = Affinity { address: backend.address().words(), seen: now, reserved: 0 };
    // A full map evicts its oldest element; a refusal costs the client its affinity, no more.
    let _ = AFFINITY.insert(&key, &value, BPF_ANY as u64);
    Some(backend)
}

/// Finds a backend in the block of a frontend.
#[inline(always)]
pub fn find<F: Family>(frontend: &Frontend, address: &F::Address, port: u16) -> Option<F::Backend> {
    last_up_to::<F>(frontend, F::Backend::order(address, port))
        .filter(|backend| backend.address().same(address) && backend.port() == port)
}

/// Finds a backend with any port.
#[inline(always)]
pub fn at_address<F: Family>(frontend: &Frontend, address: &F::Address) -> Option<F::Backend> {
    last_up_to::<F>(frontend, F::Backend::order(address, u16::MAX))
        .filter(|backend| backend.address().same(address))
}

/// Returns the last backend of a block whose sort key is not above `wanted`, or the first one. Without
/// branches except for the end of the map: the verifier would follow each of them.
#[inline(always)]
fn last_up_to<F: Family>(frontend: &Frontend, wanted: u64) -> Option<F::Backend> {
    let (mut start, mut length) = (frontend.block(), frontend.count() as u32);
    if length == 0 {
        return None;
    }
    for _ in 0..limits::HALVINGS {
        let half = length >> 1;
        let probe = F::backend(start + half)?;
        // SAFETY: as in `load`.
        let place = unsafe { F::Backend::order(&(*probe).address(), (*probe).port()) };
        start += step(half, place, wanted);
        length -= half;
    }
    load::<F>(start)
}

/// Returns `half` if the wanted element is not before the element in the middle, else 0.
#[inline(always)]
fn step(half: u32, probe: u64, wanted: u64) -> u32 {
    let before = (wanted.wrapping_sub(probe) >> 63) as u32;
    half & before.wrapping_sub(1)
}

/// Chooses a backend by weight, by the consistent rule, or any.
#[inline(always)]
fn choose<F: Family>(frontend: &Frontend, hash: u32) -> Option<F::Backend> {
    let count = frontend.count() as u32;
    let any = choice::uniform(count, hash);
    let index = if let Some(lut) = Lut::unpack(frontend.lut) {
        let index = entry(lut, hash);
        // A frontend that was read half replaced may name the table of another list.
        if index < count { index } else { any }
    } else if frontend.flags() & frontend_flag::CONSISTENT != 0 && count <= limits::RENDEZVOUS {
        highest::<F>(frontend, count, hash)?
    } else {
        any
    };
    load::<F>(frontend.block() + index)
}

/// Returns the entry of a look-up table for a hash.
#[inline(always)]
fn entry(lut: Lut, hash: u32) -> u32 {
    let (element, place) = lut.place(hash);
    // SAFETY: a table does not change while a frontend that a program may have read names it.
    let entries = LUTS.get_ptr(element).map_or(u64::MAX, |entries| unsafe { entries.read() });
    (entries >> (place * 16)) as u16 as u32
}

/// Returns the index of the backend whose hash together with the flow's is highest (rendezvous hashing): a
/// backend that comes or goes moves only its own flows.
#[inline(always)]
fn highest<F: Family>(frontend: &Frontend, count: u32, hash: u32) -> Option<u32> {
    // Score and index in one word, so that one comparison without a branch decides.
    let mut best = 0_u64;
    for index in 0..limits::RENDEZVOUS {
        if index >= count {
            break;
        }
        let backend = F::backend(frontend.block() + index)?;
        // SAFETY: as in `load`.
        let (address, port) = unsafe { ((*backend).address(), (*backend).port()) };
        best = best.max(choice::score(address.fold(), port, hash, index));
    }
    Some(best as u32 & 0xff)
}

#[inline(always)]
fn load<F: Family>(index: u32) -> Option<F::Backend> {
    // SAFETY: a block does not change while a frontend that a program may have read names it.
    F::backend(index).map(|backend| unsafe { backend.read() })
}
