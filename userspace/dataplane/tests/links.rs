//! What is attached where: pinned, found again, and gone without a trace.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::fs;
use std::path::Path;

use support::topology::Topology;
use support::{Node, chain, in_namespace, index_of, ip};
use userspace_dataplane::tables::{DataPlane, Interface, Role};
use userspace_dataplane::{Config, Kernel, Missing, XdpMode, preflight, remove};

fn links(node: &Node) -> Vec<String> {
    let directory = fs::read_dir(node.bpf_root().join("v1/links")).unwrap();
    let mut names: Vec<String> =
        directory.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("if"));
    names.sort();
    names
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn interfaces_come_and_go() {
    in_namespace(|| {
        let topology = Topology::new();
        let node = Node::new();
        let mut kernel = node.open();
        let uplink = topology.uplink;
        let pod = topology.pod;
        let all: Vec<Interface> = topology.interfaces().into_iter().take(2).collect();
        let expected = |with_pod: bool| {
            let mut names = vec![format!("if{uplink}-egress"), format!("if{uplink}-uplink_ingress")];
            if with_pod {
                names.extend([format!("if{pod}-egress"), format!("if{pod}-pod_ingress")]);
            }
            names.sort();
            names
        };
        kernel.set_interfaces(&all).unwrap();
        assert_eq!(links(&node), expected(true));
        // A new process takes over, and asks for the same.
        drop(kernel);
        let mut kernel = node.open();
        assert_eq!(links(&node), expected(true));
        kernel.set_interfaces(&all).unwrap();
        assert_eq!(links(&node), expected(true));
        // The interface vanishes, whether or not the caller has noticed.
        ip("link del pod0");
        kernel.set_interfaces(&all).unwrap();
        assert_eq!(links(&node), expected(false));
        kernel.set_interfaces(&[]).unwrap();
        assert_eq!(links(&node), Vec::<String>::new());
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn an_interface_changes_its_role() {
    in_namespace(|| {
        ip("link add up0 type veth peer name up1");
        let index = index_of("up0");
        let node = Node::new();
        let mut kernel = node.open();
        for (role, name) in [(Role::Pod, "pod_ingress"), (Role::Uplink, "uplink_ingress")] {
            kernel.set_interfaces(&[Interface { name: "up0".into(), index, role }]).unwrap();
            assert_eq!(links(&node), [format!("if{index}-egress"), format!("if{index}-{name}")]);
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn xdp_is_attached_in_the_mode_asked_for() {
    in_namespace(|| {
        ip("link add up0 type veth peer name up1");
        let interfaces = [Interface { name: "up0".into(), index: index_of("up0"), role: Role::Uplink }];
        for (xdp, count) in
            [(XdpMode::Off, 2), (XdpMode::Auto, 2), (XdpMode::Generic, 3), (XdpMode::Native, 3)]
        {
            let node = Node::new();
            let config = Config { xdp, xdp_redirect: true, ..node.config() };
            let mut kernel = Kernel::open(config).unwrap();
            kernel.set_interfaces(&interfaces).unwrap();
            assert_eq!(links(&node).len(), count, "{xdp:?}");
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn removal_leaves_nothing() {
    in_namespace(|| {
        let topology = Topology::new();
        let node = Node::new();
        let mut kernel = node.open();
        kernel.set_interfaces(&topology.interfaces()).unwrap();
        let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = node.bpf_root();
        assert!(mounted().contains(root.to_str().unwrap()));
        // Also while the process that opened it still holds descriptors.
        remove(&root).unwrap();
        assert!(!mounted().contains(root.to_str().unwrap()));
        assert!(!root.exists());
        remove(&root).unwrap();
        let output = std::process::Command::new("bpftool").args(["net", "show"]).output();
        if let Ok(output) = output {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!text.contains("ingress"), "{text}");
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn preflight_says_what_is_missing() {
    let node = Node::new();
    assert_eq!(preflight(&node.config()), Ok(()));
    let elsewhere = Config { cgroup: "/tmp".into(), ..node.config() };
    assert_eq!(preflight(&elsewhere), Err(Missing::Cgroup { path: "/tmp".into() }));
    let error = Kernel::open(Config { cgroup: Path::new("/tmp").into(), ..node.config() });
    let Err(error) = error else { panic!("/tmp is no cgroup") };
    assert!(chain(&error).starts_with("attaching "), "{}", chain(&error));
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn the_usual_place_is_mounted_if_need_be_and_left_as_it_was() {
    let node = Node::new();
    let config = Config { bpf_root: "/sys/fs/bpf/hawser-test/node".into(), ..node.config() };
    support::in_mount_namespace(|| {
        // Lines of the mount table about the place, in this thread's namespace.
        let mounts = || {
            let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            table.lines().filter(|line| line.contains(" /sys/fs/bpf ")).count()
        };
        while mounts() > 0 {
            support::run("umount", "/sys/fs/bpf");
        }
        for others in [false, true] {
            drop(Kernel::open(config.clone()).unwrap());
            assert_eq!(mounts(), 1);
            if others {
                fs::create_dir("/sys/fs/bpf/others").unwrap();
            }
            remove(&config.bpf_root).unwrap();
            assert_eq!(mounts(), usize::from(others), "what others use stays");
        }
        // Already mounted when we came: so it is when we go.
        fs::remove_dir("/sys/fs/bpf/others").unwrap();
        drop(Kernel::open(config.clone()).unwrap());
        remove(&config.bpf_root).unwrap();
        assert_eq!(mounts(), 1);
    });
}
