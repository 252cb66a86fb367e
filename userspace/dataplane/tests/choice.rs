//! The distribution of packets to backends: the same on all nodes, by weight, and hardly changed when one
//! leaves.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use support::packet::{Address, Packet};
use support::shared::with_config;
use support::topology::{LOCAL_POD, LOCAL_POD6, Topology, VIP, VIP6, tcx};
use support::{backend, in_namespace, service};
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{Algorithm, Backend, FrontendKey, Protocol, Scope};
use userspace_dataplane::{Config, Kernel, Limits, Program};

/// A family: a client, a service, and pods on another node.
struct Side<A> {
    client: A,
    vip: (A, u16),
    pod: fn(u8) -> A,
}

const SIDE4: Side<Ipv4Addr> =
    Side { client: LOCAL_POD.0, vip: VIP, pod: |number| Ipv4Addr::new(10, 2, 0, number) };
const SIDE6: Side<Ipv6Addr> = Side {
    client: LOCAL_POD6.0,
    vip: VIP6,
    pod: |number| Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, number as u16),
};

/// The pod that each flow, by source port, is given to.
type Choices = BTreeMap<u16, IpAddr>;

impl<A: Address + Send + Sync> Side<A> {
    /// Returns pods with these numbers, and their weights.
    fn backends(&self, pods: impl IntoIterator<Item = (u8, u16)>) -> Vec<Backend> {
        let of = |(number, weight)| Backend { weight, ..backend((self.pod)(number).into(), 8_080, false) };
        pods.into_iter().map(of).collect()
    }

    /// Returns the choices of a node that has seen none of the flows.
    fn choices(&self, algorithm: Algorithm, backends: &[Backend], flows: u16) -> Choices {
        in_namespace(|| {
            let topology = Topology::new();
            let luts = |config: Config| Config { limits: Limits { luts: 16_384, ..config.limits }, ..config };
            with_config(luts, |kernel, _| self.choose(kernel, &topology, algorithm, backends, flows))
        })
    }

    fn choose(
        &self,
        kernel: &mut Kernel,
        topology: &Topology,
        algorithm: Algorithm,
        backends: &[Backend],
        flows: u16,
    ) -> Choices {
        let (address, port) = (self.vip.0.into(), self.vip.1);
        let key = FrontendKey { address, port, protocol: Protocol::Udp, scope: Scope::Internal };
        let mut tables = service(key, backends);
        tables.frontends[0].algorithm = algorithm;
        kernel.apply_service("test/choice", Some(&tables)).unwrap();
        (0..flows)
            .map(|flow| {
                let source = 20_000 + flow;
                let packet = Packet::udp((self.client, source), self.vip, b"x");
                let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
                let to: Packet<A> = Packet::parse(&run.packet);
                assert_eq!(to.destination.1, 8_080);
                (source, to.destination.0.into())
            })
            .collect()
    }
}

fn shares(choices: &Choices) -> BTreeMap<IpAddr, usize> {
    let mut shares = BTreeMap::new();
    choices.values().for_each(|pod| *shares.entry(*pod).or_default() += 1);
    shares
}

/// Returns the number of flows whose backend stays but that go to another, and the number of all whose
/// backend stays.
fn moved(before: &Choices, after: &Choices, gone: IpAddr) -> (usize, usize) {
    let stay: Vec<_> = before.iter().filter(|(_, pod)| **pod != gone).collect();
    (stay.iter().filter(|(flow, pod)| after[flow] != **pod).count(), stay.len())
}

fn few_backends<A: Address + Send + Sync>(side: &Side<A>) {
    // So few that no look-up table is needed.
    let all = side.backends((1..=8).map(|number| (number, 1)));
    let before = side.choices(Algorithm::Consistent, &all, 1_600);
    let shares = shares(&before);
    // Mean 200, standard deviation 13.2; six of them.
    assert!(shares.len() == 8 && shares.values().all(|share| (121..=279).contains(share)), "{shares:?}");
    // Another node, and another order of the list.
    let reversed: Vec<Backend> = all.iter().rev().copied().collect();
    assert_eq!(side.choices(Algorithm::Consistent, &reversed, 1_600), before);
    let without: Vec<Backend> = all.iter().copied().filter(|backend| *backend != all[3]).collect();
    let after = side.choices(Algorithm::Consistent, &without, 1_600);
    assert_eq!(moved(&before, &after, all[3].address).0, 0);
}

fn many_backends<A: Address + Send + Sync>(side: &Side<A>) {
    let all = side.backends((1..=100).map(|number| (number, 1)));
    let before = side.choices(Algorithm::Consistent, &all, 3_000);
    assert_eq!(shares(&before).len(), 100);
    let without: Vec<Backend> = all.iter().copied().filter(|backend| *backend != all[57]).collect();
    let after = side.choices(Algorithm::Consistent, &without, 3_000);
    let (moved, stay) = moved(&before, &after, all[57].address);
    assert!(moved * 100 <= stay, "{moved} of {stay} flows have moved");
}

fn weights<A: Address + Send + Sync>(side: &Side<A>) {
    let weighted = side.backends([(1, 1), (2, 2), (3, 5), (4, 0)]);
    for algorithm in [Algorithm::Random, Algorithm::Consistent] {
        let shares = shares(&side.choices(algorithm, &weighted, 1_600));
        assert_eq!(shares.len(), 3, "{shares:?}");
        for (backend, expected) in weighted.iter().zip([200_i64, 400, 1_000]) {
            // Standard deviations below 20; six of them, and the rounding of the table.
            let share = shares[&backend.address] as i64;
            assert!((share - expected).abs() <= 130, "{algorithm:?} {shares:?}");
        }
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn few_backends_are_chosen_alike_everywhere_and_one_that_leaves_moves_its_flows_only() {
    few_backends(&SIDE4);
    few_backends(&SIDE6);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn one_of_a_hundred_backends_that_leaves_moves_hardly_any_flow_of_others() {
    many_backends(&SIDE4);
    many_backends(&SIDE6);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn flows_are_given_out_by_weight() {
    weights(&SIDE4);
    weights(&SIDE6);
}
