//! Packets of pods and from outside, through the programs by BPF_PROG_TEST_RUN.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

use super::machine::{Machine, Outcome};
use super::support::{Node, in_namespace};
use crate::seeded;
use crate::semantics::cases;
use crate::semantics::model::{Attempt, From, Verdict, judge, judge_known};
use crate::semantics::plan::{WorldPlan, attempt, world};
use crate::semantics::tables::{is_limited, without_ranges};

/// Random clusters, and attempts in each: some 8,000 packets, half of them through XDP first.
const CLUSTERS: u32 = 256;
const ATTEMPTS: usize = 48;
/// Number of connections after which each of a handful of backends has had one.
const CONNECTIONS: usize = 96;
/// Number of source ports of clients that reuse them.
const PORTS: usize = 4;

/// The endpoint that each client of a Service with affinity had last: by Service, client and whether it is
/// outside.
type Known = BTreeMap<(String, IpAddr, bool), IpAddr>;

/// One connection: its first packet, the answer if there is a backend, and another packet.
fn connect(
    machine: &mut Machine,
    attempt: &Attempt,
    known: &mut Known,
    xdp: bool,
) -> Result<Option<SocketAddr>, String> {
    let port = machine.fresh_port();
    let outcome = machine.send(attempt, port, xdp);
    let expected = expected(machine, attempt, known);
    let Some(seen) = machine.compare(attempt, port, outcome, &expected)? else { return Ok(None) };
    if let Some((service, _)) = judge_known(machine.world(), attempt) {
        let client = (service, attempt.source, attempt.from == From::Outside);
        known.insert(client, seen.destination.ip());
    }
    match machine.answer(&seen, xdp) {
        Outcome::Became(back)
            if (back.source, back.destination) == (attempt.to, SocketAddr::new(attempt.source, port)) => {}
        other => return Err(format!("the reply to {seen:?} was {other:?}")),
    }
    match machine.send(attempt, port, xdp) {
        Outcome::Became(again) if again == seen => Ok(Some(seen.destination)),
        other => Err(format!("after {seen:?} there was {other:?}")),
    }
}

/// Returns what the oracle allows, given the clients that the Services know.
fn expected(machine: &Machine, attempt: &Attempt, known: &Known) -> Verdict {
    let world = machine.world();
    let Some((service, Verdict::To(mut candidates))) = judge_known(world, attempt) else {
        return judge(world, attempt);
    };
    let client = (service, attempt.source, attempt.from == From::Outside);
    if let Some(last) = known.get(&client)
        && candidates.keys().any(|to| to.ip() == *last)
    {
        candidates.retain(|to, _| to.ip() == *last);
    }
    // A Service of that name may have known the client in an earlier cluster.
    Verdict::To(candidates)
}

/// Returns `true` if packets show the attempt: those of the node's own sockets pass no program, and loopback
/// addresses are not on any wire.
fn on_the_wire(attempt: &Attempt) -> bool {
    attempt.from != From::Host && !attempt.to.ip().is_loopback()
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_of_random_clusters_do_what_services_mean() {
    in_namespace(|| {
        let node = Node::new();
        let machine = RefCell::new(Machine::new(&node));
        let config = seeded::config(CLUSTERS);
        let strategy = (
            world().prop_map(WorldPlan::translated),
            prop::collection::vec(attempt(), ATTEMPTS),
            any::<bool>(),
        );
        let sent = RefCell::new(0_u32);
        let result = TestRunner::new(config).run(&strategy, |(plan, attempts, xdp)| {
            let mut machine = machine.borrow_mut();
            let world = plan.world();
            machine.become_(&world);
            let mut known = Known::new();
            for attempt in attempts.iter().map(|attempt| attempt.attempt(&plan)).filter(on_the_wire) {
                connect(&mut machine, &attempt, &mut known, xdp)
                    .map_err(|error| TestCaseError::fail(format!("{attempt:?}: {error}")))?;
                *sent.borrow_mut() += 1;
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        assert!(*sent.borrow() > 6_000, "{sent:?} packets");
    });
}

/// Clients reuse few ports while the cluster changes under them: whatever an earlier connection left in the
/// tables of flows, datagrams and packets that open a connection follow the newest tables.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn ports_used_again_obey_the_newest_tables() {
    in_namespace(|| {
        let node = Node::new();
        let machine = RefCell::new(Machine::new(&node));
        let config = seeded::config(CLUSTERS / 4);
        let worlds = prop::collection::vec(world().prop_map(WorldPlan::translated), 2..6);
        let strategy = (worlds, prop::collection::vec((attempt(), 0..PORTS), ATTEMPTS), any::<bool>());
        let result = TestRunner::new(config).run(&strategy, |(plans, attempts, xdp)| {
            let mut machine = machine.borrow_mut();
            // Ports of this case alone, so that failures can be shrunk.
            let ports: Vec<_> = (0..PORTS).map(|_| machine.fresh_port()).collect();
            for plan in &plans {
                machine.become_(&plan.world());
                for (attempt, port) in &attempts {
                    // Aimed at the places of the first cluster, whether or not the others have them.
                    let attempt = attempt.attempt(&plans[0]);
                    if on_the_wire(&attempt) {
                        again(&mut machine, &attempt, ports[*port], xdp)
                            .map_err(|error| TestCaseError::fail(format!("{attempt:?}: {error}")))?;
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}

/// Sends one packet from a port that may have been used before. The backend may see another port than the
/// client's, if the client's already talks to it through another address.
fn again(machine: &mut Machine, attempt: &Attempt, port: u16, xdp: bool) -> Result<(), String> {
    let outcome = machine.send(attempt, port, xdp);
    let mut expected = expected(machine, attempt, &Known::new());
    if matches!(outcome, Outcome::Became(_)) && is_limited(machine.world(), attempt) {
        // Ranges are checked when a connection begins; an existing one goes on.
        expected = judge(&without_ranges(machine.world()), attempt);
    }
    match (&outcome, &expected) {
        (Outcome::Became(seen), Verdict::To(allowed)) if allowed.contains_key(&seen.destination) => Ok(()),
        (Outcome::Became(_), Verdict::To(_)) => Err(format!("{outcome:?}, where {expected:?}")),
        _ => machine.compare(attempt, port, outcome, &expected).map(drop),
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_of_kube_proxys_cases_do_what_kube_proxy_does() {
    in_namespace(|| {
        let node = Node::new();
        let mut machine = Machine::new(&node);
        let mut wrong = Vec::new();
        for case in cases::all() {
            machine.become_(&case.world);
            for flow in case.flows.iter().filter(|flow| on_the_wire(&flow.attempt)) {
                let mut reached = BTreeSet::new();
                for number in 0..CONNECTIONS {
                    match connect(&mut machine, &flow.attempt, &mut Known::new(), number % 2 == 0) {
                        Ok(backend) => reached.extend(backend),
                        Err(error) => {
                            wrong.push(format!("{}: {}: {error}", case.name, flow.name));
                            break;
                        }
                    }
                    if !matches!(&flow.expected, Verdict::To(all) if all.len() > reached.len()) {
                        break;
                    }
                }
                if let Verdict::To(all) = &flow.expected
                    && reached.len() != all.len()
                {
                    wrong.push(format!("{}: {}: only {reached:?}", case.name, flow.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
