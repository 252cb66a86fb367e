//! Services and node ports. Reasons and grace as in Kubernetes'
//! `pkg/registry/core/service/portallocator/controller/repair.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use apiserver_schema::error::ApiError;
use serde_json::Value;

use super::{Finding, services};
use crate::allocate::{plan, ports};
use crate::errors;
use crate::objects::Objects;

/// Runs that a port without a Service is kept: one may be on its way.
const RUNS: u32 = 3;
/// Attempts against servers that write at the same time.
const ATTEMPTS: usize = 8;

/// Checks the ports of `range` once; returns the findings about Services.
pub async fn run(
    objects: &Objects,
    range: &RangeInclusive<u16>,
    leaks: &mut BTreeMap<u16, u32>,
) -> Result<Vec<Finding>, ApiError> {
    for _ in 0..ATTEMPTS {
        // Ports first: an allocation made since then fails the write below.
        let known = ports::read(objects.store(), range).await.map_err(errors::store_error)?;
        objects.fresh().await?;
        let mut next = leaks.clone();
        let (taken, findings) = compare(&services(objects)?, &known.set.taken, range, &mut next);
        let freed = known.set.taken.difference(&taken).count();
        let mut set = known.set.clone();
        set.taken = taken;
        if set == known.set && known.revision > 0 {
            *leaks = next;
            return Ok(findings);
        }
        // The first of all servers writes the key, so that others find which range is in use.
        let empty = known.revision == 0;
        if ports::write(objects.store(), set, known.revision).await.map_err(errors::store_error)?.is_ok() {
            *leaks = next;
            (0..freed).for_each(|_| objects.metrics().repaired("port", "leak"));
            // A store of a version that kept no ports: nothing has gone wrong.
            return Ok(if empty { Vec::new() } else { findings });
        }
    }
    Ok(Vec::new())
}

/// Returns the ports that should be taken, and the findings: pure.
fn compare(
    services: &[Value],
    stored: &BTreeSet<u16>,
    range: &RangeInclusive<u16>,
    leaks: &mut BTreeMap<u16, u32>,
) -> (BTreeSet<u16>, Vec<Finding>) {
    let mut taken = BTreeSet::new();
    let mut findings = Vec::new();
    for service in services {
        let owner = plan::owner(service);
        for item in plan::held(service) {
            let plan::Item::Port(port) = item else { continue };
            let (reason, note) = if !range.contains(&port) {
                let (first, last) = (range.start(), range.end());
                let range = format!("{first}-{last}");
                let note =
                    format!("Port {port} is not within the port range {range}; please recreate service");
                ("PortOutOfRange", note)
            } else if !taken.insert(port) {
                let note = format!("Port {port} was assigned to multiple services; please recreate service");
                ("PortAlreadyAllocated", note)
            } else {
                leaks.remove(&port);
                if stored.contains(&port) {
                    continue;
                }
                ("PortNotAllocated", format!("Port {port} is not allocated; repairing"))
            };
            findings.push(Finding { about: owner.clone(), reason, note });
        }
    }
    for port in stored.iter().filter(|port| !taken.contains(port)).copied().collect::<Vec<_>>() {
        let left = leaks.get(&port).copied().unwrap_or(RUNS);
        if left > 0 {
            tracing::info!(port, "a node port may have leaked");
            leaks.insert(port, left - 1);
            taken.insert(port);
        } else {
            tracing::warn!(port, "a node port has leaked and is freed");
            leaks.remove(&port);
        }
    }
    leaks.retain(|port, _| taken.contains(port));
    (taken, findings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, port: u16) -> Value {
        json!({"metadata": {"namespace": "ns", "name": name},
            "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}})
    }

    fn run(
        services: &[Value],
        stored: &[u16],
        leaks: &mut BTreeMap<u16, u32>,
    ) -> (Vec<u16>, Vec<&'static str>) {
        let stored = stored.iter().copied().collect();
        let (taken, findings) = compare(services, &stored, &(30000..=30100), leaks);
        (taken.into_iter().collect(), findings.iter().map(|f| f.reason).collect())
    }

    #[test]
    fn services_decide_what_is_taken() {
        let mut leaks = BTreeMap::new();
        assert_eq!(run(&[service("a", 30001)], &[30001], &mut leaks), (vec![30001], vec![]));
        assert_eq!(run(&[service("a", 30001)], &[], &mut leaks), (vec![30001], vec!["PortNotAllocated"]));
        assert_eq!(run(&[service("a", 80)], &[], &mut leaks), (vec![], vec!["PortOutOfRange"]));
        let both = [service("a", 30001), service("b", 30001)];
        assert_eq!(run(&both, &[30001], &mut leaks), (vec![30001], vec!["PortAlreadyAllocated"]));
    }

    #[test]
    fn a_port_without_a_service_is_freed_after_some_runs() {
        let mut leaks = BTreeMap::new();
        for _ in 0..RUNS {
            assert_eq!(run(&[], &[30001], &mut leaks).0, [30001]);
        }
        assert!(run(&[], &[30001], &mut leaks).0.is_empty());
        assert!(leaks.is_empty());
        // Used again in between, it starts anew.
        assert_eq!(run(&[], &[30002], &mut leaks).0, [30002]);
        assert_eq!(run(&[service("a", 30002)], &[30002], &mut leaks).0, [30002]);
        assert!(leaks.is_empty());
    }
}
