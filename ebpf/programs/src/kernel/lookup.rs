//! Finds the frontend of an address.

use ebpf_common::frontend::Frontend;
use ebpf_common::{Config, config_flag, limits, metric, scope};

use super::family::{Address as _, Family, FrontendKey as _};
use super::maps;

/// Finds the frontend of an address. If a wildcard serves it, the key becomes the wildcard's. `loopback`
/// tells whether the node's own loopback addresses are meant, given the cookie of the node's network
/// namespace.
#[inline(always)]
pub fn frontend<F: Family>(key: &mut F::FrontendKey, loopback: impl FnOnce(u64) -> bool) -> Option<Frontend> {
    let config = maps::config()?;
    if is_leaving(config) {
        return None;
    }
    // The unspecified address means wildcards in the table, and loopback in a system call.
    let unspecified = key.address().same(&F::Address::ZERO);
    if !unspecified {
        let found = read::<F>(key);
        if found.is_some() {
            return found;
        }
    }
    if !may_be_wildcard(config, key.port()) {
        return None;
    }
    // A pod's loopback is the pod's own, whatever the node's addresses are.
    let here = if unspecified || F::is_loopback(key.address()) {
        config.flags & config_flag::LOOPBACK_CLOSED == 0 && loopback(config.netns_cookie)
    } else {
        F::is_local(key.address())
    };
    if !here {
        return None;
    }
    key.set_address(F::Address::ZERO);
    read::<F>(key)
}

/// Returns `true` if other programs, behind these, begin new connections: see [`config_flag::LEAVING`].
#[inline(always)]
pub fn is_leaving(config: &Config) -> bool {
    config.flags & config_flag::LEAVING != 0
}

/// Returns `true` if the address is a service's, on any port.
#[inline(always)]
pub fn is_marked<F: Family>(address: F::Address) -> bool {
    F::frontend(&F::FrontendKey::new(address, 0, 0, scope::INTERNAL)).is_some()
}

/// Returns `true` if a frontend with the unspecified address may have the port.
#[inline(always)]
pub fn may_be_wildcard(config: &Config, port: u16) -> bool {
    let port = u16::from_be(port);
    port >= config.wildcard_port_min && port <= config.wildcard_port_max
}

/// Reads one frontend consistently, see [`Frontend`]. After a bounded number of tries the last reading is
/// used, whose switch is one word and therefore never torn.
#[inline(always)]
pub fn read<F: Family>(key: &F::FrontendKey) -> Option<Frontend> {
    let folded = key.fold_key();
    let mut found = None;
    for _ in 0..limits::FRONTEND_TRIES {
        let value = F::frontend(key)?;
        // SAFETY: the pointer leads to a value of the map; words are read whole, and their consistency is
        // checked below.
        let frontend = unsafe {
            Frontend {
                switch: (&raw const (*value).switch).read_volatile(),
                service: (&raw const (*value).service).read_volatile(),
                lut: (&raw const (*value).lut).read_volatile(),
                affinity: (&raw const (*value).affinity).read_volatile(),
                reserved: 0,
                check: (&raw const (*value).check).read_volatile(),
            }
        };
        found = Some(frontend);
        if frontend.checksum(folded) == frontend.check {
            break;
        }
        maps::count(metric::FRONTEND_REREAD);
    }
    found
}
