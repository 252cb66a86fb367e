//! Which frontend an address belongs to.

use core::ptr::addr_of;

use ebpf_common::frontend::{Frontend, FrontendKey4, FrontendKey6};
use ebpf_common::{limits, metric};

use super::maps::{self, FRONTENDS4, FRONTENDS6, LOCAL_ADDRS4, LOCAL_ADDRS6};

/// Reads one frontend whole, see [`Frontend`]. After a bounded number of tries the last reading
/// is taken, whose switch is one word and therefore never half of one.
macro_rules! read_whole {
    ($map:ident, $key:expr) => {{
        let key = $key;
        let folded = key.fold();
        let mut found = None;
        for _ in 0..limits::FRONTEND_TRIES {
            let Some(value) = $map.get_ptr(key) else {
                found = None;
                break;
            };
            // SAFETY: the pointer leads to a value of the map; words are read whole, and what
            // they say together is checked below.
            let frontend = unsafe {
                Frontend {
                    switch: addr_of!((*value).switch).read_volatile(),
                    service: addr_of!((*value).service).read_volatile(),
                    generation: addr_of!((*value).generation).read_volatile(),
                    reserved: 0,
                    affinity: addr_of!((*value).affinity).read_volatile(),
                    check: addr_of!((*value).check).read_volatile(),
                }
            };
            found = Some(frontend);
            if frontend.checksum(folded) == frontend.check {
                break;
            }
            maps::count(metric::FRONTEND_REREAD);
        }
        found
    }};
}

/// Finds the frontend of a v4 address. `loopback` tells whether 127.0.0.0/8 answers wildcards.
#[inline(always)]
pub fn frontend4(key: &mut FrontendKey4, loopback: impl FnOnce(u64) -> bool) -> Option<Frontend> {
    let found = read_whole!(FRONTENDS4, &*key);
    if found.is_some() {
        return found;
    }
    let config = maps::config()?;
    let port = u16::from_be(key.port);
    if port < config.wildcard_port_min || port > config.wildcard_port_max {
        return None;
    }
    let is_loopback = key.address & 0xff == 127 && loopback(config.netns_cookie);
    if !is_loopback && LOCAL_ADDRS4.get_ptr(&key.address).is_none() {
        return None;
    }
    key.address = 0;
    read_whole!(FRONTENDS4, &*key)
}

/// Finds the frontend of a v6 address.
#[inline(always)]
pub fn frontend6(key: &mut FrontendKey6, loopback: impl FnOnce(u64) -> bool) -> Option<Frontend> {
    let found = read_whole!(FRONTENDS6, &*key);
    if found.is_some() {
        return found;
    }
    let config = maps::config()?;
    let port = u16::from_be(key.port);
    if port < config.wildcard_port_min || port > config.wildcard_port_max {
        return None;
    }
    let is_loopback = key.address == [0, 0, 0, 1u32.to_be()] && loopback(config.netns_cookie);
    if !is_loopback && LOCAL_ADDRS6.get_ptr(&key.address).is_none() {
        return None;
    }
    key.address = [0; 4];
    read_whole!(FRONTENDS6, &*key)
}
