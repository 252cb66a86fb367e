//! Traces of real connections, and the state after a trace ends, by itself or by a signal that cannot be
//! caught.
#![allow(clippy::print_stdout, reason = "the process that is killed says when it is ready")]

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use super::super::upgrade::tests::support::namespace::{
    Cluster, FAR_POD, NODE, POD_A, POD_A6, POD_B, POD_B6, exchange_tcp, exchange_udp, interfaces, serve_tcp,
    serve_udp,
};
use super::super::upgrade::tests::support::{Inside, Node, backend, chain, frontend, key};
use super::*;
use crate::data_plane::DataPlane as _;
use crate::kernel::{ClassifierHook, Config, Kernel, XdpMode};
use crate::tables::{NodeTables, Protocol, Scope, ServiceTables};

const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const VIP6: &str = "fd00:96::10";
const PORT: u16 = 8_080;
/// The variable that names the directory of pins to the process that is to be killed.
const ROOT: &str = "HAWSER_TEST_TRACE_ROOT";

/// Returns a node that balances a service with one backend, a local pod. In the node's namespace.
fn open(config: Config, hook: ClassifierHook) -> Kernel {
    let mut kernel = Kernel::open_with(config, hook).unwrap_or_else(|error| panic!("{}", chain(&error)));
    let addresses = vec![NODE.into()];
    kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
    kernel.set_interfaces(&interfaces()).unwrap();
    let mut frontends = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for (vip, pod) in [("10.96.0.10", IpAddr::from(POD_B)), (VIP6, IpAddr::from(POD_B6))] {
            let places = [backend(pod, PORT, true)];
            frontends.push(frontend(key(vip, 80, protocol, Scope::Internal), &places));
        }
    }
    frontends.sort_by_key(|frontend| frontend.key);
    let tables = ServiceTables { frontends, ..ServiceTables::default() };
    kernel.apply_service("test/echo", Some(&tables)).unwrap();
    kernel
}

fn start(hook: ClassifierHook) -> (Cluster, Arc<Node>, Arc<Mutex<Kernel>>) {
    let (cluster, node) = (Cluster::new(), Arc::new(Node::new()));
    cluster.pod_b.run(|| {
        serve_tcp(POD_B, PORT);
        serve_udp(POD_B, PORT);
        serve_tcp(POD_B6, PORT);
    });
    let config = node.config();
    let kernel = cluster.node.run(move || Arc::new(Mutex::new(open(config, hook))));
    (cluster, node, kernel)
}

/// Starts a trace by a process of the node.
fn trace(cluster: &Cluster, node: &Arc<Node>, flow: &str) -> Arc<Mutex<Trace>> {
    let (node, flow) = (Arc::clone(node), TraceFlow::parse(&[flow]).unwrap());
    cluster.node.run(move || {
        let begun = Trace::begin(&node.bpf_root(), &flow);
        Arc::new(Mutex::new(begun.unwrap_or_else(|error| panic!("{}", chain(&error)))))
    })
}

/// Returns what has been logged, without what differs from run to run: the processor, a socket's number, a
/// port.
fn lines(cluster: &Cluster, trace: &Arc<Mutex<Trace>>) -> Vec<String> {
    let trace = Arc::clone(trace);
    cluster.node.run(move || trace.lock().unwrap().lines())
}

/// Returns the programs that hooks run, by name.
fn programs(cluster: &Cluster, node: &Arc<Node>) -> Vec<(String, u32)> {
    let node = Arc::clone(node);
    cluster.node.run(move || {
        let hooks = Hooks::new(&node.bpf_root()).attached().unwrap();
        let mut all: Vec<_> = hooks.into_iter().map(|hook| (hook.name, hook.id)).collect();
        all.sort();
        all
    })
}

/// Asserts that a check of the data path finds nothing.
fn check(cluster: &Cluster, kernel: &Arc<Mutex<Kernel>>) {
    let kernel = Arc::clone(kernel);
    let faults = cluster.node.run(move || kernel.lock().unwrap().check().unwrap().faults);
    assert!(faults.is_empty(), "{faults:?}");
}

/// Asserts that a pod reaches the service, and the server sees the pod.
fn pod_reaches_the_service(cluster: &Cluster) {
    for (vip, seen) in [(IpAddr::from(VIP), IpAddr::from(POD_A)), (VIP6.parse().unwrap(), POD_A6.into())] {
        let to = SocketAddr::new(vip, 80);
        let found = cluster.pod_a.run(move || exchange_tcp(to, 100_000).unwrap());
        assert_eq!(found.ip(), seen, "{to}");
    }
}

#[track_caller]
fn contains(lines: &[String], parts: &[&str]) {
    let found = lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no line has all of {parts:?}:\n{}", lines.join("\n"));
}

fn packets_are_traced(hook: ClassifierHook) {
    let (cluster, node, kernel) = start(hook);
    pod_reaches_the_service(&cluster);
    let before = programs(&cluster, &node);
    let trace_on = trace(&cluster, &node, "tcp 10.1.0.5 10.96.0.10:80");
    let during = programs(&cluster, &node);
    assert!(before.iter().zip(&during).all(|(a, b)| a.0 == b.0 && a.1 != b.1), "{before:?} {during:?}");
    pod_reaches_the_service(&cluster);
    // Another protocol, and another source: not the flow.
    let to = SocketAddr::from((VIP, 80));
    cluster.pod_a.run(move || exchange_udp(to).unwrap());
    let found = lines(&cluster, &trace_on);
    contains(&found, &["pod interface poda: tcp [SYN]"]);
    contains(&found, &["packet: 10.1.0.5:", " > 10.96.0.10:80"]);
    contains(&found, &["flow: none; frontend: service test/echo"]);
    contains(&found, &["backend: 10.1.0.6:8080"]);
    contains(&found, &["becomes: 10.1.0.5:", " > 10.1.0.6:8080"]);
    contains(&found, &["decision: rewritten and sent out of interface podb"]);
    // The reply, and the packets after the first one.
    contains(&found, &["pod interface podb: tcp [SYN ACK]"]);
    contains(&found, &["packet: 10.1.0.6:8080 > 10.1.0.5:"]);
    contains(&found, &["becomes: 10.96.0.10:80 > 10.1.0.5:"]);
    contains(&found, &["flow: found, with these ends"]);
    assert!(!found.iter().any(|line| line.contains("udp") || line.contains("fd00")), "{found:?}");
    // A check of the proxy finds no fault, and a new proxy does not end the trace.
    check(&cluster, &kernel);
    assert_eq!(programs(&cluster, &node), during);
    let config = node.config();
    let again = cluster.node.run(move || Arc::new(Mutex::new(open(config, hook))));
    let (attached, flow) = (Arc::clone(&trace_on), TraceFlow::parse(&["10.96.0.10:80"]).unwrap());
    cluster.node.run(move || attached.lock().unwrap().attach().unwrap());
    assert_eq!(programs(&cluster, &node), during);
    let second = Arc::clone(&node);
    let refused = cluster.node.run(move || Trace::begin(&second.bpf_root(), &flow).err().unwrap());
    assert!(matches!(refused, TraceError::Busy), "{refused}");
    // It ends, and the new process's programs are back.
    cluster.node.run(move || drop(trace_on));
    let after = programs(&cluster, &node);
    assert!(after.iter().zip(&during).all(|(a, b)| a.0 == b.0 && a.1 != b.1), "{after:?} {during:?}");
    assert!(!node.bpf_root().join(format!("v{LAYOUT_VERSION}")).join(DIRECTORY).exists());
    check(&cluster, &again);
    assert_eq!(programs(&cluster, &node), after);
    pod_reaches_the_service(&cluster);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_of_packets_prints_each_step_and_traffic_goes_on() {
    packets_are_traced(ClassifierHook::Auto);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_of_packets_through_filters_prints_each_step_and_traffic_goes_on() {
    packets_are_traced(ClassifierHook::Filter);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_of_ipv6_prints_each_step() {
    let (cluster, node, _kernel) = start(ClassifierHook::Auto);
    let trace_on = trace(&cluster, &node, "tcp fd00:1::5 [fd00:96::10]:80");
    pod_reaches_the_service(&cluster);
    let found = lines(&cluster, &trace_on);
    contains(&found, &["packet: [fd00:1::5]:", " > [fd00:96::10]:80"]);
    contains(&found, &["backend: [fd00:1::6]:8080"]);
    contains(&found, &["becomes: [fd00:96::10]:80 > [fd00:1::5]:"]);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_of_sockets_prints_each_step_and_calls_go_on() {
    let (cluster, node, _kernel) = start(ClassifierHook::Auto);
    let connect = |port| cluster.node.run(move || exchange_tcp(SocketAddr::from((VIP, port)), 1_000));
    let inside = Inside::enter(&node);
    connect(80).unwrap();
    let trace_on = trace(&cluster, &node, "tcp * 10.96.0.10:80");
    connect(80).unwrap();
    let found = lines(&cluster, &trace_on);
    contains(&found, &["socket ", "connect: tcp to 10.96.0.10:80"]);
    contains(&found, &["frontend: service test/echo, backends: 1"]);
    contains(&found, &["decision: the call goes to 10.1.0.6:8080"]);
    // A refusal, once the service has lost its backend.
    let stopped = Arc::clone(&_kernel);
    cluster.node.run(move || {
        let tables = ServiceTables {
            frontends: vec![frontend(key("10.96.0.10", 80, Protocol::Tcp, Scope::Internal), &[])],
            ..ServiceTables::default()
        };
        stopped.lock().unwrap().apply_service("test/echo", Some(&tables)).unwrap();
    });
    connect(80).unwrap_err();
    let found = lines(&cluster, &trace_on);
    contains(&found, &["decision: the call fails with Connection refused"]);
    drop(inside);
    cluster.node.run(move || drop(trace_on));
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_of_packets_through_xdp_prints_each_step() {
    let (cluster, node) = (Cluster::new(), Arc::new(Node::new()));
    for outside in [&cluster.client, &cluster.far] {
        outside.run(|| super::super::upgrade::tests::support::offloads_off("eth0"));
    }
    cluster.far.run(|| serve_tcp(FAR_POD, PORT));
    let config = Config { xdp: XdpMode::Generic, xdp_redirect: true, ..node.config() };
    let _kernel = cluster.node.run(move || {
        let mut kernel = open(config, ClassifierHook::Auto);
        let key = key("0.0.0.0", 30_080, Protocol::Tcp, Scope::External);
        let frontends = vec![frontend(key, &[backend(FAR_POD.into(), PORT, false)])];
        let tables = ServiceTables { frontends, ..ServiceTables::default() };
        kernel.apply_service("test/far", Some(&tables)).unwrap();
        kernel
    });
    let trace_on = trace(&cluster, &node, "tcp 192.0.2.100 192.0.2.1:30080");
    let to = SocketAddr::from((NODE, 30_080));
    cluster.client.run(move || exchange_tcp(to, 10_000).unwrap());
    let found = lines(&cluster, &trace_on);
    contains(&found, &["xdp interface up0: tcp [SYN]"]);
    contains(&found, &["packet: 192.0.2.100:", " > 192.0.2.1:30080"]);
    contains(&found, &["flow: none; frontend: service test/far"]);
    contains(&found, &["backend: 10.2.0.7:8080"]);
    // The neighbour was not resolved yet.
    contains(&found, &["decision: passed on as it is"]);
    contains(&found, &["uplink interface up0: tcp [SYN]"]);
    contains(&found, &["becomes: 192.0.2.1:", " > 10.2.0.7:8080"]);
    contains(&found, &["xdp interface up1: tcp [SYN ACK]"]);
    contains(&found, &["decision: rewritten and sent out"]);
}

/// Not a test, but the process that [`trace_whose_process_is_killed_is_ended_by_the_proxy`] starts and kills.
#[test]
#[ignore = "only another test starts it"]
fn process_that_traces() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let flow = TraceFlow::parse(&["10.96.0.10:80"]).unwrap();
    let _trace = Trace::begin(Path::new(&root), &flow).unwrap_or_else(|error| panic!("{}", chain(&error)));
    println!("\nready");
    // The pipe closes when the test ends, however it ends.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Starts a process that traces, and kills it without giving it a chance to clean up.
fn killed(node: &Node) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kernel::trace::tests::process_that_traces", "--ignored", "--nocapture"])
        .env(ROOT, node.bpf_root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(text.any(|line| line.unwrap() == "ready"), "it traces");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_whose_process_is_killed_is_ended_by_the_proxy() {
    let (cluster, node, kernel) = start(ClassifierHook::Auto);
    let before = programs(&cluster, &node);
    let tracer = Arc::clone(&node);
    cluster.node.run(move || killed(&tracer));
    assert_ne!(programs(&cluster, &node), before, "the copy is left");
    pod_reaches_the_service(&cluster);
    // The proxy checks every few seconds.
    check(&cluster, &kernel);
    assert_eq!(programs(&cluster, &node), before);
    assert!(!node.bpf_root().join(format!("v{LAYOUT_VERSION}")).join(DIRECTORY).exists());
    pod_reaches_the_service(&cluster);
    // Without a proxy the next trace ends it, and is the only one then.
    let tracer = Arc::clone(&node);
    cluster.node.run(move || killed(&tracer));
    drop(kernel);
    let trace_on = trace(&cluster, &node, "10.96.0.10:80");
    pod_reaches_the_service(&cluster);
    cluster.node.run(move || drop(trace_on));
    assert_eq!(programs(&cluster, &node), before);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn log_statements_are_no_part_of_the_programs_that_carry_traffic() {
    let (cluster, node, kernel) = start(ClassifierHook::Auto);
    let trace_on = trace(&cluster, &node, "10.96.0.10:80");
    let (kernel, trace_on) = (kernel.lock().unwrap(), trace_on.lock().unwrap());
    for program in Program::ALL {
        let (own, copy) = (kernel.program(program), trace_on.copy[&program].as_fd());
        let name = program.name();
        assert_eq!(sys::program_tag(own).unwrap(), sys::program_tag(copy).unwrap(), "{name}");
        let (lean, full) = (sys::translated_bytes(own).unwrap(), sys::translated_bytes(copy).unwrap());
        println!("{name}: {} instructions, {} in the copy that logs", lean / 8, full / 8);
        let logs = !matches!(
            program,
            Program::Recvmsg4
                | Program::Recvmsg6
                | Program::Getpeername4
                | Program::Getpeername6
                | Program::Release
        );
        assert!(if logs { lean < full } else { lean == full }, "{name}: {lean} and {full}");
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn trace_finds_nothing_to_trace_where_nothing_is_attached() {
    let node = Node::new();
    let flow = TraceFlow::parse(&["10.96.0.10:80"]).unwrap();
    let refused = Trace::begin(&node.bpf_root(), &flow).err().unwrap();
    assert!(matches!(refused, TraceError::Tables(InspectError::Absent { .. })), "{refused}");
}
