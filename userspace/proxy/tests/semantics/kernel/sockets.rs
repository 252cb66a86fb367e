//! Connects of processes on the node and in a pod, through the hooks of a cgroup.

use std::cell::RefCell;
use std::collections::BTreeSet;
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
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::machine::Machine;
use super::support::namespace::Namespace;
use super::support::{Inside, Node, in_namespace, ip, sysctl};
use crate::cases;
use crate::model::{Attempt, From, Verdict, judge};
use crate::plan::{attempt, world};

/// Random clusters, and connects in each: some 3,000.
const CLUSTERS: u32 = 96;
const ATTEMPTS: usize = 48;
/// Connects after which each of a handful of backends has been chosen.
const CONNECTS: usize = 96;

/// What a connect came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    TimedOut,
    /// Where the kernel sends the packets; the application goes on seeing whom it asked for.
    Peer(SocketAddr),
    NoWay(Errno),
}

/// Connects without waiting for anybody, and asks the kernel where it went.
fn try_connect(protocol: &str, source: IpAddr, to: SocketAddr) -> Outcome {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = if protocol == "TCP" { SockType::Stream } else { SockType::Datagram };
    let socket = socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).unwrap();
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
    Outcome::Peer(remote(&socket, protocol, to.is_ipv4()))
}

/// The remote end of a socket of this thread's network namespace, as the kernel lists it.
fn remote(socket: &OwnedFd, protocol: &str, ipv4: bool) -> SocketAddr {
    let inode = fstat(socket).unwrap().st_ino.to_string();
    let table = format!("/proc/thread-self/net/{}{}", protocol.to_lowercase(), if ipv4 { "" } else { "6" });
    let text = fs::read_to_string(&table).unwrap();
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.get(9) == Some(&inode.as_str()));
    let line = line.unwrap_or_else(|| panic!("{table} has no inode {inode}:\n{text}"));
    let (address, port) = line[2].split_once(':').unwrap();
    // Words of four bytes, each in the machine's order.
    let bytes: Vec<u8> = (0..address.len() / 8)
        .flat_map(|word| u32::from_str_radix(&address[8 * word..8 * word + 8], 16).unwrap().to_ne_bytes())
        .collect();
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    };
    SocketAddr::new(address, u16::from_str_radix(port, 16).unwrap())
}

fn compare(attempt: &Attempt, outcome: Outcome, expected: &Verdict) -> Result<Option<SocketAddr>, String> {
    match (&outcome, expected) {
        (Outcome::Refused, Verdict::Rejected) | (Outcome::TimedOut, Verdict::Dropped) => Ok(None),
        (Outcome::Peer(peer), Verdict::Untouched) if *peer == attempt.to => Ok(None),
        // Nobody listens on the node or on loopback: that is the answer of a stack, not a hook.
        (Outcome::Refused, Verdict::Untouched) => Ok(None),
        (Outcome::Peer(peer), Verdict::To(allowed)) if allowed.contains_key(peer) => Ok(Some(*peer)),
        _ => Err(format!("{outcome:?}, where {expected:?}")),
    }
}

/// The pod's network namespace, with a way to everywhere.
fn pod_namespace() -> Namespace {
    let pod = Namespace::new();
    pod.run(|| {
        ip("link add eth0 type dummy");
        sysctl("net/ipv6/conf/eth0/accept_dad", "0");
        ip("link set eth0 up");
        ip("-4 route add default dev eth0");
        ip("-6 route add default dev eth0");
        from_any_address();
    });
    pod
}

/// Sockets of this namespace may have the source that an attempt says, whosever it is.
fn from_any_address() {
    sysctl("net/ipv4/ip_nonlocal_bind", "1");
    sysctl("net/ipv6/ip_nonlocal_bind", "1");
}

/// The kernel may have no SCTP sockets.
fn on_a_socket(attempt: &Attempt) -> bool {
    attempt.from != From::Outside && attempt.protocol != "SCTP"
}

/// The whole test process is in the cgroup; pods' sockets are made in their own namespace.
fn run(pod: &Namespace, attempt: &Attempt) -> Outcome {
    let Attempt { from, source, protocol, to } = *attempt;
    match from {
        From::Pod => pod.run(move || try_connect(protocol, source, to)),
        _ => try_connect(protocol, source, to),
    }
}

/// A machine with a pod, and the process in its cgroup.
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
        let config = Config { cases: CLUSTERS, failure_persistence: None, ..Config::default() };
        let strategy = (world(), prop::collection::vec(attempt(), ATTEMPTS));
        let made = RefCell::new(0_u32);
        let result = TestRunner::new(config).run(&strategy, |(plan, attempts)| {
            let world = plan.world();
            machine.borrow_mut().become_(&world);
            for attempt in attempts.iter().map(|attempt| attempt.attempt(&plan)).filter(on_a_socket) {
                compare(&attempt, run(pod, &attempt), &judge(&world, &attempt))
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
                    match compare(&flow.attempt, run(pod, &flow.attempt), &flow.expected) {
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
