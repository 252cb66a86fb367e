//! Which backend of a frontend gets a connection.

use aya_ebpf::bindings::BPF_ANY;
use ebpf_common::frontend::{Affinity, AffinityKey, Backend4, Backend6, Frontend};
use ebpf_common::limits;

use super::maps::{self, AFFINITY, BACKENDS4, BACKENDS6};

/// Index into the block, uniform if `hash` is.
#[inline(always)]
fn index(frontend: &Frontend, hash: u32) -> u32 {
    frontend.block() + ((hash as u64 * frontend.count() as u64) >> 32) as u32
}

/// The v4 backend for `hash`; the client's last one where the frontend asks for it. `client`
/// gives the client's part of the affinity key, and is called only when it is needed.
#[inline(always)]
pub fn backend4(frontend: &Frontend, hash: u32, client: impl FnOnce() -> AffinityKey) -> Option<Backend4> {
    if frontend.affinity == 0 {
        return load4(index(frontend, hash));
    }
    let key = client();
    let now = maps::tick();
    if let Some(last) = AFFINITY.get_ptr_mut(&key) {
        // SAFETY: the pointer leads to a value of the map; a torn reading names a backend that
        // `find4` does not find.
        unsafe {
            let stays = now.wrapping_sub((*last).seen) <= frontend.affinity;
            let (address, port) = ((*last).address[0], (*last).port);
            if stays && let Some(backend) = find4(frontend, address, port) {
                (*last).seen = now;
                return Some(backend);
            }
        }
    }
    let backend = load4(index(frontend, hash))?;
    let value = Affinity { address: [backend.address, 0, 0, 0], port: backend.port, reserved: 0, seen: now };
    // A full map evicts its oldest element; a refusal costs the client its place, no more.
    let _ = AFFINITY.insert(&key, &value, BPF_ANY as u64);
    Some(backend)
}

/// Looks for a backend in the block of a frontend. Without branches but for the end of the map:
/// the verifier would follow each of them.
#[inline(always)]
pub fn find4(frontend: &Frontend, address: u32, port: u16) -> Option<Backend4> {
    let wanted = Backend4::order(address, port);
    let (mut start, mut length) = (frontend.block(), frontend.count() as u32);
    if length == 0 {
        return None;
    }
    for _ in 0..limits::HALVINGS {
        let half = length >> 1;
        let probe = load4(start + half)?;
        start += step(half, Backend4::order(probe.address, probe.port), wanted);
        length -= half;
    }
    load4(start).filter(|backend| backend.address == address && backend.port == port)
}

/// `half` if what is sought is not before the element in the middle, else 0.
#[inline(always)]
fn step(half: u32, probe: u64, wanted: u64) -> u32 {
    let before = (wanted.wrapping_sub(probe) >> 63) as u32;
    half & before.wrapping_sub(1)
}

#[inline(always)]
fn load4(index: u32) -> Option<Backend4> {
    // SAFETY: a block does not change while a frontend that a program may have read names it.
    BACKENDS4.get_ptr(index).map(|backend| unsafe { backend.read() })
}

/// As [`backend4`], for v6.
#[inline(always)]
pub fn backend6(frontend: &Frontend, hash: u32, client: impl FnOnce() -> AffinityKey) -> Option<Backend6> {
    if frontend.affinity == 0 {
        return load6(index(frontend, hash));
    }
    let key = client();
    let now = maps::tick();
    if let Some(last) = AFFINITY.get_ptr_mut(&key) {
        // SAFETY: as in `backend4`.
        unsafe {
            let stays = now.wrapping_sub((*last).seen) <= frontend.affinity;
            let (address, port) = ((*last).address, (*last).port);
            if stays && let Some(backend) = find6(frontend, &address, port) {
                (*last).seen = now;
                return Some(backend);
            }
        }
    }
    let backend = load6(index(frontend, hash))?;
    let value = Affinity { address: backend.address, port: backend.port, reserved: 0, seen: now };
    let _ = AFFINITY.insert(&key, &value, BPF_ANY as u64);
    Some(backend)
}

#[inline(always)]
fn find6(frontend: &Frontend, address: &[u32; 4], port: u16) -> Option<Backend6> {
    let wanted = Backend6::order(address, port);
    let (mut start, mut length) = (frontend.block(), frontend.count() as u32);
    if length == 0 {
        return None;
    }
    for _ in 0..limits::HALVINGS {
        let half = length >> 1;
        let probe = load6(start + half)?;
        start += step(half, Backend6::order(&probe.address, probe.port), wanted);
        length -= half;
    }
    load6(start).filter(|backend| backend.address == *address && backend.port == port)
}

#[inline(always)]
fn load6(index: u32) -> Option<Backend6> {
    // SAFETY: as in `load4`.
    BACKENDS6.get_ptr(index).map(|backend| unsafe { backend.read() })
}
