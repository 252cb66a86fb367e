//! Connects of processes on the node and in a pod, through the hooks of a cgroup.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getpeername, socket,
};
use nix::sys::stat::fstat;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

use super::machine::Machine;
use super::support::namespace::Namespace;
use super::support::{Inside, Node, in_namespace, ip, sysctl};
use crate::seeded;
use crate::semantics::cases;
use crate::semantics::model::{Attempt, From, Verdict, World, judge, judge_known};
use crate::semantics::plan::{WorldPlan, attempt, world};
use crate::semantics::tables::{is_limited, without_ranges};

/// Random clusters, and connects in each: some 3,000.
const CLUSTERS: u32 = 96;
const ATTEMPTS: usize = 48;
/// Number of connects after which each of a handful of backends has been chosen.
const CONNECTS: usize = 96;

/// The outcome of a connect.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    TimedOut,
    /// The address to which the kernel sends the packets; the application still sees the one that it asked
    /// for.
    Peer(SocketAddr),
    /// The stack has answered already: the destination is an address of the same namespace.
    Answered,
    NoWay(Errno),
}

/// Connects without blocking, and asks the kernel for the destination.
fn try_connect(protocol: &str, source: IpAddr, to: SocketAddr) -> Outcome {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = if protocol == "TCP" { SockType::Stream } else { SockType::Datagram };
    let socket = socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None).unwrap();
    // A socket bound to loopback could not connect to anything else.
    if !source.is_loopback() {
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).unwrap();
    }
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(Errno::ECONNREFUSED) => return Outcome::Refused,
        Err(Errno::ETIMEDOUT) => return Outcome::TimedOut,
        Err(errno) => return Outcome::NoWay(errno),
    }
    let shown: io::Result<SockaddrStorage> = getpeername(socket.as_raw_fd()).map_err(io::Error::from);
    if let Ok(shown) = shown {
        assert_eq!(shown, SockaddrStorage::from(to), "the peer is whom the application asked for");
    }
    remote(&socket, protocol, to.is_ipv4()).map_or(Outcome::Answered, Outcome::Peer)
}

/// Returns the remote end of a socket of this thread's network namespace, as the kernel lists it. Closed
/// sockets are not listed.
fn remote(socket: &OwnedFd, protocol: &str, ipv4: bool) -> Option<SocketAddr> {
    let inode = fstat(socket).unwrap().st_ino.to_string();
    let table = format!("/proc/thread-self/net/{}{}", protocol.to_lowercase(), if ipv4 { "" } else { "6" });
    let text = fs::read_to_string(&table).unwrap();
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.get(9) == Some(&inode.as_str()))?;
    let (address, port) = line[2].split_once(':').unwrap();
    // Words of four bytes, each in native byte order.
    let bytes: Vec<u8> = (0..address.len() / 8)
        .flat_map(|word| u32::from_str_radix(&address[8 * word..8 * word + 8], 16).unwrap().to_ne_bytes())
        .collect();
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).unwrap()))
}

/// The endpoint that Services with affinity gave last: by Service, client and family. The client is the
/// network namespace, as a socket may have no address yet.
type Known = BTreeMap<(String, From, bool), IpAddr>;

/// Returns what the oracle allows a socket.
fn expected(world: &World, attempt: &Attempt, known: &Known) -> Verdict {
    if is_limited(world, attempt) && attempt.from == From::Host {
        // The node's own processes are admitted whatever the ranges say.
        return expected(&without_ranges(world), attempt, known);
    }
    let Some((service, Verdict::To(mut candidates))) = judge_known(world, attempt) else {
        return judge(world, attempt);
    };
    if let Some(last) = known.get(&(service, attempt.from, attempt.to.is_ipv4()))
        && candidates.keys().any(|to| to.ip() == *last)
    {
        candidates.retain(|to, _| to.ip() == *last);
    }
    // A Service of that name may have known the client in an earlier cluster.
    Verdict::To(candidates)
}

/// Makes one connect and compares it with what the oracle allows; returns the backend that it reached.
fn attempt_it(
    machine: &mut Machine,
    pod: &Namespace,
    attempt: &Attempt,
    known: &mut Known,
) -> Result<Option<SocketAddr>, String> {
    let outcome = run(pod, attempt);
    let by_socket = outcome != Outcome::Peer(attempt.to);
    let reached = compare(machine, attempt, outcome, known)?;
    let service = judge_known(machine.world(), attempt).filter(|_| by_socket);
    if let (Some(backend), Some((service, _))) = (reached, service) {
        known.insert((service, attempt.from, attempt.to.is_ipv4()), backend.ip());
    }
    Ok(reached)
}

fn compare(
    machine: &mut Machine,
    attempt: &Attempt,
    outcome: Outcome,
    known: &Known,
) -> Result<Option<SocketAddr>, String> {
    let world = machine.world();
    let (expected, limited) = (expected(world, attempt, known), is_limited(world, attempt));
    let in_ranges = world.service_ranges.iter().any(|range| range.contains(attempt.to.ip()));
    // A socket of a pod that is left alone, because its source decides or because it may only ask for its own
    // address: the pod's interface sees its packets.
    let asks = attempt.protocol == "UDP" && in_ranges && expected_of_nobody(&expected);
    if attempt.from == From::Pod && (limited || asks) && outcome == Outcome::Peer(attempt.to) {
        let port = machine.fresh_port();
        let sent = machine.send(attempt, port, false);
        let known_by_packets = judge_known(machine.world(), attempt).map(|(_, verdict)| verdict);
        let expected = known_by_packets.unwrap_or(expected);
        return Ok(machine.compare(attempt, port, sent, &expected)?.map(|seen| seen.destination));
    }
    match (&outcome, &expected) {
        (Outcome::Refused, Verdict::Rejected) | (Outcome::TimedOut, Verdict::Dropped) => Ok(None),
        (Outcome::NoWay(Errno::EHOSTUNREACH), Verdict::Dropped) if in_ranges => Ok(None),
        (Outcome::Peer(peer), Verdict::Untouched) if *peer == attempt.to => Ok(None),
        // There is no listener: the answer is the stack's, not a hook's.
        (Outcome::Refused | Outcome::Answered, Verdict::Untouched) => Ok(None),
        (Outcome::Refused | Outcome::Answered, Verdict::To(allowed)) => {
            let own = allowed.keys().find(|to| to.ip() == attempt.source);
            own.copied().map(Some).ok_or_else(|| format!("{outcome:?}, where {expected:?}"))
        }
        (Outcome::Peer(peer), Verdict::To(allowed)) if allowed.contains_key(peer) => Ok(Some(*peer)),
        _ => Err(format!("{outcome:?}, where {expected:?}")),
    }
}

fn expected_of_nobody(expected: &Verdict) -> bool {
    matches!(expected, Verdict::Rejected | Verdict::Dropped)
}

/// Returns the pod's network namespace, with a route to everywhere.
fn pod_namespace() -> Namespace {
    let pod = Namespace::new();
    pod.run(|| {
        ip("link add eth0 type veth peer name eth1");
        ip("link set eth1 up");
        sysctl("net/ipv6/conf/eth0/accept_dad", "0");
        ip("link set eth0 up");
        // The interface always has an address; without one it would lose its routes.
        ip("addr add 169.254.0.1/32 dev eth0");
        ip("-4 route add default dev eth0");
        ip("-6 route add default dev eth0");
        from_any_address();
    });
    pod
}

/// Lets sockets of this namespace bind any source address.
fn from_any_address() {
    sysctl("net/ipv4/ip_nonlocal_bind", "1");
    sysctl("net/ipv6/ip_nonlocal_bind", "1");
}

/// Returns `true` if a socket can make the attempt: the kernel may lack SCTP.
fn on_a_socket(attempt: &Attempt) -> bool {
    attempt.from != From::Outside && attempt.protocol != "SCTP"
}

/// Makes the attempt. The whole test process is in the cgroup; pods' sockets are made in their own namespace.
/// The source is an address of the interface for as long as the attempt takes.
fn run(pod: &Namespace, attempt: &Attempt) -> Outcome {
    let Attempt { from, source, protocol, to } = *attempt;
    let lent = |device: &'static str| {
        move || {
            let address = format!("{source}/{}", if source.is_ipv4() { 32 } else { 128 });
            // An address that the interface has anyway stays.
            let lends = try_ip(&format!("addr add {address} dev {device}"));
            let outcome = try_connect(protocol, source, to);
            if lends {
                ip(&format!("addr del {address} dev {device}"));
            }
            outcome
        }
    };
    match from {
        From::Pod => pod.run(lent("eth0")),
        _ if source.is_loopback() => try_connect(protocol, source, to),
        _ => lent("up0")(),
    }
}

fn try_ip(arguments: &str) -> bool {
    std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap().status.success()
}

/// Runs a test on a machine with a pod, with the process in its cgroup.
fn inside(test: impl FnOnce(Machine, &Namespace) + Send) {
    in_namespace(|| {
        from_any_address();
        let node = Node::new();
        let machine = Machine::new(&node);
        let pod = pod_namespace();
        let _inside = Inside::enter(&node);
        test(machine, &pod);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connects_of_random_clusters_do_what_services_mean() {
    inside(|machine, pod| {
        let machine = RefCell::new(machine);
        let config = seeded::config(CLUSTERS);
        let strategy = (world().prop_map(WorldPlan::translated), prop::collection::vec(attempt(), ATTEMPTS));
        let made = RefCell::new(0_u32);
        let result = TestRunner::new(config).run(&strategy, |(plan, attempts)| {
            let world = plan.world();
            machine.borrow_mut().become_(&world);
            let mut known = Known::new();
            for attempt in attempts.iter().map(|attempt| attempt.attempt(&plan)).filter(on_a_socket) {
                attempt_it(&mut machine.borrow_mut(), pod, &attempt, &mut known)
                    .map_err(|error| TestCaseError::fail(format!("{attempt:?}: {error}")))?;
                *made.borrow_mut() += 1;
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        assert!(*made.borrow() > 1_500, "{made:?} connects");
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connects_of_kube_proxys_cases_do_what_kube_proxy_does() {
    inside(|mut machine, pod| {
        let mut wrong = Vec::new();
        for case in cases::all() {
            machine.become_(&case.world);
            for flow in case.flows.iter().filter(|flow| on_a_socket(&flow.attempt)) {
                let mut reached = BTreeSet::new();
                for _ in 0..CONNECTS {
                    match attempt_it(&mut machine, pod, &flow.attempt, &mut Known::new()) {
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
                if matches!(&flow.expected, Verdict::To(all) if all.len() > reached.len()) {
                    wrong.push(format!("{}: {}: only {reached:?}", case.name, flow.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
