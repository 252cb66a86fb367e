//! Keeps the limits of the data plane equal to what the annotations of this node's pods say.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{Bandwidths, DataPlaneError, Interface};

use super::annotation::Limited;
use crate::links::Link;
use crate::policy::{LocalPod, local_pods};

/// A pod of this node: the UID of its object, and what its annotations say.
pub(crate) type Known<'a> = (&'a str, Option<&'a Limited>);

/// Returns the limits of this node's interfaces.
fn plan(pods: &[Known<'_>], local: &[LocalPod]) -> Bandwidths {
    let (mut by_sandbox, mut by_address) = (BTreeMap::new(), BTreeMap::<IpAddr, &Limited>::new());
    let limited = || pods.iter().filter_map(|(_, limited)| *limited);
    // The claim of a pod does not replace what is known: a UID is that of one pod.
    by_sandbox.extend(limited().filter_map(|pod| Some((pod.mirrored.as_deref()?, Some(pod)))));
    by_sandbox.extend(pods.iter().copied());
    by_address.extend(limited().flat_map(|pod| pod.addresses.iter().map(move |address| (*address, pod))));
    let limits = |local: &LocalPod| {
        let pod = match &local.uid {
            Some(uid) => by_sandbox.get(uid.as_str()).copied().flatten(),
            None => local.addresses.iter().find_map(|address| by_address.get(address).copied()),
        };
        let limits = pod?.limits;
        (limits.egress.is_some() || limits.ingress.is_some()).then_some((local.interface, limits))
    };
    local.iter().filter_map(limits).collect()
}

/// The plan's inputs and what was last applied.
#[derive(Default)]
pub(crate) struct Limiter {
    /// A pod has changed since the last plan.
    changed: bool,
    /// The interfaces at the last plan; `None` before the first one.
    local: Option<Vec<LocalPod>>,
    applied: Option<Bandwidths>,
    /// The time of the next plan, if only pods have changed.
    next: Option<Instant>,
}

impl Limiter {
    /// Records that pods have changed.
    pub fn note(&mut self) {
        self.changed = true;
    }

    /// Returns the time at which a change that is waiting is due.
    pub fn due(&self) -> Option<Instant> {
        self.next.filter(|_| self.changed && self.local.is_some())
    }

    /// Returns `true` if something has changed. Pods whose annotations change all the time take a fifth of the
    /// worker's time at most; new interfaces wait for nothing.
    pub fn is_due(&self, links: &[Link], interfaces: &[Interface]) -> bool {
        let early = || self.next.is_some_and(|next| Instant::now() < next);
        self.local.as_ref() != Some(&local_pods(links, interfaces)) || self.changed && !early()
    }

    /// Plans and applies.
    pub fn apply(
        &mut self,
        plane: &mut dyn DataPlane,
        links: &[Link],
        interfaces: &[Interface],
        pods: &[Known<'_>],
    ) -> Result<(), DataPlaneError> {
        let start = Instant::now();
        let local = local_pods(links, interfaces);
        let limits = plan(pods, &local);
        if self.applied.as_ref() != Some(&limits) {
            // After an error the next attempt must not take it for done.
            (self.applied, self.local) = (None, None);
            plane.set_bandwidths(&limits)?;
            debug!(pods = limits.len(), took = ?start.elapsed(), "applied limits of bandwidth");
            self.applied = Some(limits);
        }
        self.local = Some(local);
        self.changed = false;
        self.next = Some(Instant::now() + start.elapsed().saturating_mul(4).min(Duration::from_secs(2)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use userspace_dataplane::Fake;
    use userspace_dataplane::tables::{PodBandwidth, Role};

    use super::*;

    fn pod(addresses: &[&str], egress: u64) -> Limited {
        Limited {
            mirrored: None,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            limits: PodBandwidth { egress: Some(egress), ingress: None },
            faults: Vec::new(),
        }
    }

    fn local(interface: u32, uid: Option<&str>, address: &str) -> LocalPod {
        let addresses = vec![address.parse().unwrap()];
        LocalPod { interface, name: format!("hwp{interface}"), uid: uid.map(str::to_owned), addresses }
    }

    fn rates(limits: &Bandwidths) -> Vec<(u32, Option<u64>)> {
        limits.iter().map(|(index, limits)| (*index, limits.egress)).collect()
    }

    #[test]
    fn interfaces_are_found_by_the_sandbox_or_by_an_address() {
        let [a, b, c] = [pod(&[], 1_000), pod(&["10.1.0.6"], 2_000), pod(&["10.1.0.7"], 3_000)];
        let interfaces =
            [local(5, Some("a"), "10.1.0.5"), local(6, None, "10.1.0.6"), local(8, None, "10.1.0.8")];
        let pods = [("a", Some(&a)), ("b", Some(&b)), ("c", Some(&c))];
        assert_eq!(rates(&plan(&pods, &interfaces)), [(5, Some(1_000)), (6, Some(2_000))]);
        let mirror = Limited { mirrored: Some("a".into()), ..pod(&[], 4_000) };
        assert_eq!(rates(&plan(&[("m", Some(&mirror))], &interfaces)), [(5, Some(4_000))]);
        assert_eq!(rates(&plan(&[], &interfaces)), []);
    }

    #[test]
    fn a_tenant_limits_no_pod_but_its_own() {
        let interfaces = [local(5, Some("a"), "10.1.0.5"), local(6, Some("b"), "10.1.0.6")];
        let a = pod(&[], 1_000);
        let claims =
            |uid: &str| Limited { mirrored: Some(uid.into()), ..pod(&["10.1.0.5", "10.1.0.6"], 9_000) };
        let (of_a, of_b) = (claims("a"), claims("b"));
        // In any order, and whether or not the other pod has a limit.
        for tenant in ["0", "z"] {
            let mut pods = [("a", Some(&a)), ("b", None), (tenant, Some(&of_a)), ("y", Some(&of_b))];
            assert_eq!(rates(&plan(&pods, &interfaces)), [(5, Some(1_000))]);
            pods.reverse();
            assert_eq!(rates(&plan(&pods, &interfaces)), [(5, Some(1_000))]);
        }
    }

    #[test]
    fn faults_alone_limit_nothing() {
        let odd = Limited { limits: PodBandwidth::default(), ..pod(&[], 1_000) };
        assert_eq!(plan(&[("a", Some(&odd))], &[local(5, Some("a"), "10.1.0.5")]), Bandwidths::new());
    }

    #[tokio::test(start_paused = true)]
    async fn limits_follow_pods_and_interfaces() {
        let mut plane = Fake::default();
        let mut limiter = Limiter::default();
        let link = |index: u32| Link {
            name: format!("hwp{index}"),
            index,
            pod: Some("a".to_owned()),
            ..Link::default()
        };
        let interface = |index: u32| Interface { name: format!("hwp{index}"), index, role: Role::Pod };
        let (slow, fast) = (pod(&[], 1_000), pod(&[], 2_000));
        assert!(limiter.is_due(&[link(5)], &[interface(5)]));
        limiter.apply(&mut plane, &[link(5)], &[interface(5)], &[("a", Some(&slow))]).unwrap();
        assert_eq!(rates(plane.bandwidths()), [(5, Some(1_000))]);
        assert!(!limiter.is_due(&[link(5)], &[interface(5)]), "nothing has changed");
        limiter.note();
        assert!(limiter.is_due(&[link(5)], &[interface(5)]));
        limiter.apply(&mut plane, &[link(5)], &[interface(5)], &[("a", Some(&fast))]).unwrap();
        assert_eq!(rates(plane.bandwidths()), [(5, Some(2_000))]);
        // The sandbox is made again, and the pod is gone at last.
        limiter.apply(&mut plane, &[link(9)], &[interface(9)], &[("a", Some(&fast))]).unwrap();
        assert_eq!(rates(plane.bandwidths()), [(9, Some(2_000))]);
        limiter.note();
        limiter.apply(&mut plane, &[], &[], &[]).unwrap();
        assert_eq!(rates(plane.bandwidths()), []);
    }
}
