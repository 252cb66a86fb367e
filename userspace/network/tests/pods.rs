//! Pods of the real plugin on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;

use apiserver_client::Cache;
use apiserver_meta::ambient::Ambient;
use rustix::net::{self, AddressFamily, SendFlags, SocketType};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;
use tokio_util::sync::CancellationToken;
use userspace_network::netns::block_on;
use userspace_network::{PLUGIN_NAME, cni, reconcile, retire, run_with, sweep};

use crate::machine::{HOST, Namespace, Node, Pod, RANGE, TIMEOUT, address, exchange, output, wait_for};

/// Returns addresses of the loopback interface except its own.
fn host_addresses(node: &Node) -> String {
    node.namespace.run(|| output("ip", &["-o", "addr", "show", "dev", "lo", "scope", "global"]))
}

/// Returns everything about a namespace that could be left behind.
fn snapshot() -> BTreeMap<String, String> {
    let mut all: BTreeMap<_, _> = [
        &["-o", "link"][..],
        &["-o", "addr"],
        &["route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["rule"],
        &["neigh"],
    ]
    .into_iter()
    .map(|arguments| (arguments.join(" "), output("ip", arguments)))
    .collect();
    for family in ["ipv4", "ipv6"] {
        walk(Path::new(&format!("/proc/sys/net/{family}")), &mut all);
    }
    all
}

fn walk(path: &Path, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(path).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), all);
        } else if let Ok(value) = fs::read_to_string(entry.path()) {
            all.insert(entry.path().display().to_string(), value);
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pods_reach_each_other_and_the_node_and_the_node_reaches_them() {
    let node = Node::new();
    node.prepare();
    // An administrator's setting for other interfaces.
    node.namespace.run(|| {
        fs::write("/proc/sys/net/ipv4/conf/default/forwarding", "0").unwrap();
        fs::write("/proc/sys/net/ipv4/conf/default/rp_filter", "1").unwrap();
    });
    let (a, b) = (node.add("a"), node.add("b"));
    assert_ne!(a.address, b.address);
    let host: IpAddr = HOST.parse().unwrap();
    assert_eq!(exchange(&a.namespace, a.address, &b.namespace), b.address);
    assert_eq!(exchange(&b.namespace, b.address, &a.namespace), a.address);
    assert_eq!(exchange(&node.namespace, host, &a.namespace), a.address);
    assert_eq!(exchange(&a.namespace, a.address, &node.namespace), host);
    // The pod's own address, and its loopback interface.
    assert_eq!(exchange(&a.namespace, a.address, &a.namespace), a.address);
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    assert_eq!(exchange(&a.namespace, loopback, &a.namespace), loopback);
    let mtu = a.namespace.run(|| output("ip", &["-o", "link", "show", "eth0"]));
    assert!(mtu.contains("mtu 1400"), "{mtu}");
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pods_have_both_families_if_the_node_has() {
    let node = Node::new();
    node.prepare_ranges(&[RANGE, "fd00:77:5::/64"]);
    let (a, b) = (node.add("a"), node.add("b"));
    let host: IpAddr = "fd00:77:5::1".parse().unwrap();
    let [first, second]: [IpAddr; 2] = ["fd00:77:5::2", "fd00:77:5::3"].map(|text| text.parse().unwrap());
    assert_eq!(exchange(&a.namespace, first, &b.namespace), second);
    assert_eq!(exchange(&node.namespace, host, &a.namespace), first);
    assert_eq!(exchange(&b.namespace, second, &node.namespace), host);
    assert_eq!(exchange(&a.namespace, a.address, &b.namespace), b.address);
    assert_eq!(node.call("CHECK", &a, &node.conf("1.0.0")), (0, Value::Null));
    node.restore();
}

/// Sends a router advertisement from a pod, once its interface has an address for that.
fn advertise(pod: &Pod) {
    // ICMPv6: a router for 30 minutes that announces 2001:db8:bad::/64 on the link (RFC 4861, 4.2 and 4.6.2).
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0]);
    message.extend("2001:db8:bad::".parse::<Ipv6Addr>().unwrap().octets());
    pod.namespace.run(|| {
        wait_for("a link-local address", || {
            let shown = ["-6", "-o", "addr", "show", "dev", "eth0", "scope", "link"];
            let addresses = output("ip", &shown);
            addresses.contains("fe80:") && !addresses.contains("tentative")
        });
        let index = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        let line = index.lines().find(|line| line.ends_with(" eth0")).unwrap();
        let index = u32::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap();
        let all_nodes = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, index);
        let socket = net::socket(AddressFamily::INET6, SocketType::RAW, Some(net::ipproto::ICMPV6)).unwrap();
        net::sockopt::set_ipv6_multicast_hops(&socket, 255).unwrap();
        net::sendto(&socket, &message, SendFlags::empty(), &all_nodes).unwrap();
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pod_does_not_become_the_nodes_router_by_advertising() {
    let node = Node::new();
    node.prepare();
    let pod = node.add("a");
    let interface = node.pod_interfaces().remove(0);
    let routes = || node.namespace.run(|| output("ip", &["-6", "route", "show", "dev", &interface]));
    let before = routes();
    advertise(&pod);
    // The advertisement was sent before the exchange and has been processed after it.
    exchange(&node.namespace, HOST.parse().unwrap(), &pod.namespace);
    assert_eq!(routes(), before);
    // The parameter shows that it would have been accepted otherwise.
    let parameter = format!("/proc/sys/net/ipv6/conf/{interface}/accept_ra");
    node.namespace.run(|| fs::write(&parameter, "2").unwrap());
    advertise(&pod);
    wait_for("the route", || routes().contains("default"));
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_network_is_set_up_when_the_node_has_its_range_and_not_before() {
    let node = Node::new();
    let object = |spec: Value| -> k8s_openapi::api::core::v1::Node {
        serde_json::from_value(json!({ "metadata": { "name": "node" }, "spec": spec })).unwrap()
    };
    let nodes = Cache::default();
    let conflist = node.config.conf_dir.join("05-hawser.conflist");
    node.namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let shutdown = CancellationToken::new();
            let config = node.config.clone();
            let (ambient, ranges) = (Ambient::system(), Sender::default());
            let (shown, stop) = (ranges.subscribe(), shutdown.clone());
            let task = tokio::spawn(run_with(config, nodes.clone(), ranges, ambient, stop));
            nodes.apply(object(json!({})));
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!node.config.state_dir.exists());
            // A range that cannot be used, then one that can.
            nodes.apply(object(json!({ "podCIDR": "10.77.5.0/32" })));
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!conflist.exists() && shown.borrow().is_empty());
            nodes.apply(object(json!({ "podCIDR": RANGE, "podCIDRs": [RANGE] })));
            let written = async {
                while !conflist.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(TIMEOUT, written).await.unwrap();
            let (mut shown, range) = (shown, RANGE.parse().unwrap());
            let known = shown.wait_for(|ranges| *ranges == [range]);
            tokio::time::timeout(TIMEOUT, known).await.unwrap().unwrap();
            shutdown.cancel();
            task.await.unwrap();
        });
    });
    assert!(host_addresses(&node).contains(HOST));
    let pod = node.add("a");
    assert_eq!(exchange(&pod.namespace, pod.address, &node.namespace), HOST.parse::<IpAddr>().unwrap());
    node.restore();
    assert_eq!(host_addresses(&node), "");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn untranslated_packet_is_refused_at_once() {
    let node = Node::new();
    node.prepare();
    let pod = node.add("a");
    let error = pod.namespace.run(|| {
        let service: SocketAddr = "10.96.0.10:80".parse().unwrap();
        TcpStream::connect_timeout(&service, TIMEOUT).unwrap_err()
    });
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH), "{error}");
    let error = node.namespace.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.send_to(b"x", "10.96.0.10:53").unwrap_err()
    });
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH), "{error}");
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn restore_leaves_links_routes_parameters_and_files_as_they_were() {
    let node = Node::new();
    // A machine with settings of its own: strict reverse path filters, an interface that forwards already.
    node.namespace.run(|| {
        output("ip", &["link", "set", "lo", "up"]);
        output("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
        output("ip", &["addr", "add", "192.0.2.9/24", "dev", "up0"]);
        output("ip", &["link", "set", "up0", "up"]);
        // A foreign route to the later range of Services.
        output("ip", &["route", "add", "10.96.0.0/16", "dev", "up0"]);
        fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();
        fs::write("/proc/sys/net/ipv4/conf/up0/forwarding", "1").unwrap();
    });
    // Duplicate address detection ends by itself; waits until the addresses no longer change.
    let steady = || {
        node.namespace.run(|| {
            for _ in 0..100 {
                if !output("ip", &["-o", "addr"]).contains("tentative") {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            snapshot()
        })
    };
    let before = steady();
    node.prepare();
    node.prepare();
    let during = steady();
    assert_eq!(during["/proc/sys/net/ipv4/ip_forward"].trim(), "1");
    assert_eq!(during["/proc/sys/net/ipv4/conf/up0/rp_filter"].trim(), "1");
    assert!(during["route show table all"].contains("unreachable 10.96.0.0/16"));
    let pods = [node.add("a"), node.add("b")];
    assert_eq!(node.pod_interfaces().len(), 2);
    node.restore();
    node.restore();
    let after = steady();
    for (what, value) in &before {
        assert_eq!(after.get(what), Some(value), "{what}");
    }
    assert_eq!(before.len(), after.len());
    assert_eq!(fs::read_dir(node.dir.path()).unwrap().count(), 0);
    drop(pods);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_plugin_speaks_its_versions_and_repeats_itself() {
    let node = Node::new();
    node.prepare();
    let pod = Pod { id: "p".to_owned(), namespace: Namespace::new(), address: HOST.parse().unwrap() };
    let (_, versions) = node.call("VERSION", &pod, &node.conf("1.0.0"));
    assert!(versions["supportedVersions"].as_array().unwrap().contains(&json!("0.4.0")));
    let (code, old) = node.call("ADD", &pod, &node.conf("0.4.0"));
    assert_eq!((code, &old["cniVersion"], &old["ips"][0]["version"]), (0, &json!("0.4.0"), &json!("4")));
    assert_eq!(old["interfaces"][1]["name"], "eth0");
    // A second ADD for the same container: the same address, and it works.
    let (code, new) = node.call("ADD", &pod, &node.conf("1.0.0"));
    assert_eq!((code, address(&new)), (0, address(&old)), "{new}");
    assert!(new["ips"][0].get("version").is_none());
    assert_eq!(exchange(&pod.namespace, address(&new), &node.namespace), HOST.parse::<IpAddr>().unwrap());
    assert_eq!(node.call("CHECK", &pod, &node.conf("1.0.0")), (0, Value::Null));
    pod.namespace.run(|| output("ip", &["route", "del", "default"]));
    let (code, error) = node.call("CHECK", &pod, &node.conf("1.0.0"));
    assert_eq!((code, &error["code"]), (1, &json!(101)), "{error}");
    for _ in 0..2 {
        assert_eq!(node.call("DEL", &pod, &node.conf("1.0.0")), (0, Value::Null));
    }
    assert_eq!(node.pod_interfaces(), Vec::<String>::new());
    let (code, error) = node.call("ADD", &pod, &node.conf("9.0.0"));
    assert_eq!((code, &error["code"]), (1, &json!(1)), "{error}");
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_failed_add_leaves_nothing_and_says_why() {
    let node = Node::new();
    node.prepare();
    let pod = Pod { id: "p".to_owned(), namespace: Namespace::new(), address: HOST.parse().unwrap() };
    pod.namespace.run(|| output("ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]));
    let (code, error) = node.call("ADD", &pod, &node.conf("1.0.0"));
    assert_eq!((code, &error["code"]), (1, &json!(100)), "{error}");
    assert!(error["details"].as_str().unwrap().contains("create the interfaces"), "{error}");
    assert_eq!(node.pod_interfaces(), Vec::<String>::new());
    pod.namespace.run(|| output("ip", &["link", "del", "eth0"]));
    let (code, result) = node.call("ADD", &pod, &node.conf("1.0.0"));
    assert_eq!(code, 0, "{result}");
    let missing = Pod {
        id: "q".to_owned(),
        namespace: Namespace { path: "/nowhere".into(), ..Namespace::new() },
        address: HOST.parse().unwrap(),
    };
    let (code, error) = node.call("ADD", &missing, &node.conf("1.0.0"));
    assert_eq!((code, &error["code"]), (1, &json!(3)), "{error}");
    // DEL does not need the namespace.
    assert_eq!(node.call("DEL", &missing, &node.conf("1.0.0")), (0, Value::Null));
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn leaked_addresses_come_back_by_gc_and_by_reconciling() {
    let node = Node::new();
    node.prepare();
    let pods = [node.add("kept"), node.add("lost"), node.add("leaked")];
    let mut conf = node.conf("1.1.0");
    let attachment = |id: &str| json!({ "containerID": id, "ifname": "eth0" });
    conf["cni.dev/valid-attachments"] = json!([attachment("kept"), attachment("leaked")]);
    assert_eq!(node.call("GC", &pods[0], &conf), (0, Value::Null));
    assert_eq!(node.pod_interfaces().len(), 2);
    let live = BTreeSet::from(["kept".to_owned()]);
    let now = Ambient::system().now().as_second();
    let state = &node.config.state_dir;
    let freed = |at| node.namespace.run(|| block_on(reconcile(state, &live, at)).unwrap().unwrap());
    assert_eq!(freed(now), Vec::<String>::new(), "a sandbox may be in the making");
    assert_eq!(freed(now + 3600), ["leaked"]);
    assert_eq!(node.pod_interfaces().len(), 1);
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn addresses_of_pods_that_vanished_are_swept_up() {
    let node = Node::new();
    node.prepare();
    let kept = node.add("kept");
    drop(node.add("vanished"));
    // The namespace ends a moment after its last thread.
    for _ in 0..1000 {
        if node.pod_interfaces().len() == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let now = Ambient::system().now().as_second();
    let state = &node.config.state_dir;
    let swept = |at| node.namespace.run(|| block_on(sweep(state, at)).unwrap().unwrap());
    assert_eq!(swept(now), Vec::<String>::new(), "it may be in the making");
    assert_eq!(swept(now + 3600), ["vanished"]);
    assert_eq!(swept(now + 3600), Vec::<String>::new());
    assert_eq!(exchange(&kept.namespace, kept.address, &node.namespace), HOST.parse::<IpAddr>().unwrap());
    node.restore();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_loopback_plugin_sets_lo_up() {
    let node = Node::new();
    node.prepare();
    let plugins: BTreeSet<_> = fs::read_dir(&node.config.bin_dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(plugins, BTreeSet::from([PLUGIN_NAME.to_owned(), "loopback".to_owned()]));
    let pod = Pod { id: "p".to_owned(), namespace: Namespace::new(), address: HOST.parse().unwrap() };
    let conf = json!({ "cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback" });
    let (code, result) = node.call("ADD", &pod, &conf);
    assert_eq!((code, &result["ips"][0]["address"]), (0, &json!("127.0.0.1/8")));
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    assert_eq!(exchange(&pod.namespace, loopback, &pod.namespace), loopback);
    assert_eq!(node.call("DEL", &pod, &conf), (0, Value::Null));
    node.restore();
}

#[test]
fn malformed_calls_are_answered_in_the_specifications_words() {
    let call = |variables: &[(&str, &str)], stdin: &str| -> Value {
        let environment = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let outcome = cni::main(&environment, stdin.as_bytes(), &Ambient::system());
        assert_eq!(outcome.exit_code, 1);
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let conf = r#"{"cniVersion":"1.0.0","name":"x","type":"hawser-cni","stateDir":"/nowhere/s","ranges":["10.0.0.0/24"]}"#;
    assert_eq!(call(&[], conf)["code"], 4);
    assert_eq!(call(&[("CNI_COMMAND", "ADD")], "{")["code"], 6);
    let mut full = vec![
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "../x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/n"),
    ];
    assert_eq!(call(&full, conf)["code"], 4);
    full[1].1 = "x";
    full[2].1 = "eth0/../x";
    assert_eq!(call(&full, conf)["code"], 4);
    full[2].1 = "eth0";
    let error = call(&full, &conf.replace("10.0.0.0/24", "10.0.0.0/99"));
    assert_eq!((&error["code"], &error["cniVersion"]), (&json!(7), &json!("1.0.0")));
    assert_eq!(call(&full, &conf.replace("/nowhere/s", "s"))["code"], 7);
    full[0].1 = "JUMP";
    assert_eq!(call(&full, conf)["code"], 4);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_nodes_address_of_an_earlier_range_goes_with_the_last_pod_of_that_range() {
    const NEXT: &str = "10.77.6.0/24";
    let node = Node::new();
    node.prepare();
    let old = node.add("old");
    node.prepare_ranges(&[NEXT]);
    let left =
        || node.namespace.run(|| block_on(retire(&node.config, &[NEXT.parse().unwrap()])).unwrap().unwrap());
    assert_eq!(left(), [HOST.parse::<IpAddr>().unwrap()]);
    assert_eq!(exchange(&old.namespace, old.address, &node.namespace).to_string(), HOST);
    let new = node.add("new");
    assert_eq!(node.call("DEL", &old, &node.conf("1.0.0")), (0, Value::Null));
    assert_eq!(left(), Vec::<IpAddr>::new());
    let addresses = host_addresses(&node);
    assert!(addresses.contains("10.77.6.1/32") && !addresses.contains(HOST), "{addresses}");
    assert_eq!(exchange(&new.namespace, new.address, &node.namespace).to_string(), "10.77.6.1");
    node.restore();
    assert_eq!(host_addresses(&node), "");
}
