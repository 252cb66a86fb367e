//! Packets of pods and from outside, through the programs by BPF_PROG_TEST_RUN.

use std::cell::RefCell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::machine::{Machine, Outcome};
use super::support::{Node, in_namespace};
use crate::cases;
use crate::model::{Attempt, From, Verdict, judge};
use crate::plan::{attempt, world};

/// Random clusters, and attempts in each: some 5,000 packets, half of them through XDP first.
const CLUSTERS: u32 = 160;
const ATTEMPTS: usize = 48;
/// Connections after which each of a handful of backends has had one.
const CONNECTIONS: usize = 96;

/// One connection: its first packet, and the answer if there is a backend.
fn connect(
    machine: &mut Machine,
    attempt: &Attempt,
    expected: &Verdict,
    xdp: bool,
) -> Result<Option<std::net::SocketAddr>, String> {
    let port = machine.fresh_port();
    let outcome = machine.send(attempt, port, xdp);
    let Some(seen) = machine.compare(attempt, port, outcome, expected)? else { return Ok(None) };
    match machine.answer(&seen, xdp) {
        Outcome::Became(back)
            if (back.source, back.destination)
                == (attempt.to, std::net::SocketAddr::new(attempt.source, port)) => {}
        other => return Err(format!("the reply to {seen:?} was {other:?}")),
    }
    // The next packet of the connection goes the same way.
    match machine.send(attempt, port, xdp) {
        Outcome::Became(again) if again == seen => Ok(Some(seen.destination)),
        other => Err(format!("after {seen:?} there was {other:?}")),
    }
}

/// Whether packets show it: those of the node's own sockets pass no program, and loopback
/// addresses are on no wire.
fn on_the_wire(attempt: &Attempt) -> bool {
    attempt.from != From::Host && !attempt.to.ip().is_loopback()
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_of_random_clusters_do_what_services_mean() {
    in_namespace(|| {
        let node = Node::new();
        let machine = RefCell::new(Machine::new(&node));
        let config = Config { cases: CLUSTERS, failure_persistence: None, ..Config::default() };
        let strategy = (world(), prop::collection::vec(attempt(), ATTEMPTS), any::<bool>());
        let sent = RefCell::new(0_u32);
        let result = TestRunner::new(config).run(&strategy, |(plan, attempts, xdp)| {
            let mut machine = machine.borrow_mut();
            let world = plan.world();
            machine.become_(&world);
            for attempt in attempts.iter().map(|attempt| attempt.attempt(&plan)).filter(on_the_wire) {
                let expected = judge(&world, &attempt);
                connect(&mut machine, &attempt, &expected, xdp)
                    .map_err(|error| TestCaseError::fail(format!("{attempt:?}: {error}")))?;
                *sent.borrow_mut() += 1;
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        assert!(*sent.borrow() > 4_000, "{sent:?} packets");
    });
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
                    match connect(&mut machine, &flow.attempt, &flow.expected, number % 2 == 0) {
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
