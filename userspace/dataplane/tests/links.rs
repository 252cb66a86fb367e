//! The attachments: kept without a process, found again, and removed without a trace. Links of tcx and
//! filters of traffic control behave the same.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::topology::Topology;
use support::{Node, chain, in_namespace, index_of, ip, run};
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{Interface, Role};
use userspace_dataplane::{
    ClassifierHook, Config, Kernel, Missing, Program, XdpMode, XdpState, preflight, remove,
};

/// The hook that the kernel prefers, and the one that every kernel has.
const HOOKS: [ClassifierHook; 2] = [ClassifierHook::Auto, ClassifierHook::Filter];

fn open(config: Config, hook: ClassifierHook) -> Kernel {
    Kernel::open_with(config, hook).unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// Returns the output of `tc` about the namespace of this thread.
fn tc(arguments: &str) -> String {
    let output = Command::new("tc").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn uplink(name: &str) -> Interface {
    Interface { name: name.to_owned(), index: index_of(name), role: Role::Uplink }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn interfaces_come_and_go() {
    for hook in HOOKS {
        in_namespace(|| {
            let topology = Topology::new();
            let node = Node::new();
            let mut kernel = open(node.config(), hook);
            let all: Vec<Interface> = topology.interfaces().into_iter().take(2).collect();
            let [up, pod] = [topology.uplink, topology.pod];
            let uplinks = BTreeSet::from([(up, Program::UplinkIngress), (up, Program::Egress)]);
            let mut expected = uplinks.clone();
            expected.extend([(pod, Program::PodIngress), (pod, Program::Egress)]);
            kernel.set_interfaces(&all).unwrap();
            assert_eq!(kernel.attached().unwrap(), expected);
            // A new process takes over, and asks for the same.
            drop(kernel);
            let mut kernel = open(node.config(), hook);
            assert_eq!(kernel.attached().unwrap(), expected);
            kernel.set_interfaces(&all).unwrap();
            assert_eq!(kernel.attached().unwrap(), expected);
            // The interface vanishes, whether or not the caller has noticed.
            ip("link del pod0");
            kernel.set_interfaces(&all).unwrap();
            assert_eq!(kernel.attached().unwrap(), uplinks);
            kernel.set_interfaces(&[]).unwrap();
            assert_eq!(kernel.attached().unwrap(), BTreeSet::new());
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn an_interface_changes_its_role() {
    for hook in HOOKS {
        in_namespace(|| {
            ip("link add up0 type veth peer name up1");
            let index = index_of("up0");
            let node = Node::new();
            let mut kernel = open(node.config(), hook);
            for (role, program) in [(Role::Pod, Program::PodIngress), (Role::Uplink, Program::UplinkIngress)]
            {
                kernel.set_interfaces(&[Interface { name: "up0".into(), index, role }]).unwrap();
                let expected = BTreeSet::from([(index, program), (index, Program::Egress)]);
                assert_eq!(kernel.attached().unwrap(), expected);
            }
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_new_process_uses_the_hook_that_it_was_told_to() {
    in_namespace(|| {
        ip("link add up0 type veth peer name up1");
        let node = Node::new();
        let interfaces = [uplink("up0")];
        for (hook, filters) in
            [(ClassifierHook::Filter, 2), (ClassifierHook::Auto, 0), (ClassifierHook::Filter, 2)]
        {
            let mut kernel = open(node.config(), hook);
            kernel.set_interfaces(&interfaces).unwrap();
            assert_eq!(kernel.attached().unwrap().len(), 2, "{hook:?}");
            let listed = tc("filter show dev up0 ingress") + &tc("filter show dev up0 egress");
            let expected = if kernel.has_tcx() { filters } else { 2 };
            assert_eq!(listed.matches("hawser ").count(), expected, "{listed}");
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn filters_of_others_are_left_alone() {
    in_namespace(|| {
        ip("link add up0 type veth peer name up1");
        ip("link add up2 type veth peer name up3");
        run("tc", "qdisc add dev up0 clsact");
        // One in classic BPF, which takes no compiler: it matches nothing.
        let theirs = "filter add dev up0 ingress protocol all prio 1 bpf bytecode";
        let output = Command::new("tc").args(theirs.split(' ')).arg("1,6 0 0 0,").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let node = Node::new();
        let mut kernel = open(node.config(), ClassifierHook::Filter);
        kernel.set_interfaces(&[uplink("up0"), uplink("up2")]).unwrap();
        let listed = tc("filter show dev up0 ingress");
        assert!(listed.contains("bytecode") && listed.contains("uplink_ingress"), "{listed}");
        kernel.set_interfaces(&[]).unwrap();
        let listed = tc("filter show dev up0 ingress");
        assert!(listed.contains("bytecode") && !listed.contains("uplink_ingress"), "{listed}");
        assert!(tc("qdisc show dev up0").contains("clsact"));
        assert!(!tc("qdisc show dev up2").contains("clsact"));
        // A queueing discipline in the place of clsact without egress is not mistaken for it.
        run("tc", "qdisc add dev up2 ingress");
        let error = kernel.set_interfaces(&[uplink("up2")]).unwrap_err();
        assert!(chain(&error).contains("for ingress alone"), "{}", chain(&error));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn xdp_is_attached_in_the_mode_asked_for() {
    in_namespace(|| {
        ip("link add up0 type veth peer name up1");
        let interfaces = [uplink("up0")];
        let node = Node::new();
        // Each process finds the attachments of the previous one.
        for (xdp, state) in [
            (XdpMode::Off, "off"),
            (XdpMode::Auto, "off"),
            (XdpMode::Generic, "generic"),
            (XdpMode::ForceNative, "native"),
            (XdpMode::ForceNative, "native"),
            // The other end of a veth would have to take part.
            (XdpMode::Native, "generic"),
            (XdpMode::ForceNative, "native"),
            (XdpMode::Generic, "generic"),
            (XdpMode::Off, "off"),
        ] {
            let config = Config { xdp, xdp_redirect: true, ..node.config() };
            let mut kernel = Kernel::open(config).unwrap();
            for _ in 0..2 {
                kernel.set_interfaces(&interfaces).unwrap();
                assert_eq!(kernel.xdp_states()["up0"].name(), state, "{xdp:?}");
                let attached = kernel.attached().unwrap();
                assert_eq!(attached.len(), if state == "off" { 2 } else { 3 }, "{xdp:?}");
            }
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn an_interface_that_refuses_xdp_goes_without_and_says_why() {
    in_namespace(|| {
        ip("link add big0 mtu 9000 type veth peer name big1 mtu 9000");
        ip("link add up0 type veth peer name up1");
        ip("link add bridge0 type bridge");
        let interfaces = ["big0", "up0", "bridge0"].map(uplink);
        let node = Node::new();
        let config = Config { xdp: XdpMode::ForceNative, ..node.config() };
        let mut kernel = Kernel::open(config).unwrap();
        kernel.set_interfaces(&interfaces).unwrap();
        let states = kernel.xdp_states().clone();
        assert_eq!(states["up0"], XdpState::Native);
        let XdpState::Off(reason) = &states["big0"] else { panic!("{states:?}") };
        assert!(reason.contains("MTU"), "{reason}");
        let XdpState::Off(reason) = &states["bridge0"] else { panic!("{states:?}") };
        assert!(reason.contains("not supported"), "{reason}");
        // All three are served all the same.
        assert_eq!(kernel.attached().unwrap().len(), 7);
        // The obstacle goes away.
        for name in ["big0", "big1"] {
            ip(&format!("link set {name} mtu 1500"));
        }
        kernel.set_interfaces(&interfaces).unwrap();
        assert_eq!(kernel.xdp_states()["big0"], XdpState::Native);
        // Another program is attached first.
        let second = Node::new();
        let mut other = Kernel::open(Config { xdp: XdpMode::ForceNative, ..second.config() }).unwrap();
        other.set_interfaces(&[uplink("up0")]).unwrap();
        let XdpState::Off(reason) = &other.xdp_states()["up0"] else { panic!("two programs") };
        assert!(!reason.is_empty());
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn removal_leaves_nothing() {
    for hook in HOOKS {
        in_namespace(|| {
            let topology = Topology::new();
            let node = Node::new();
            let mut kernel = open(node.config(), hook);
            kernel.set_interfaces(&topology.interfaces()).unwrap();
            let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap();
            let root = node.bpf_root();
            assert!(mounted().contains(root.to_str().unwrap()));
            // Even while the process that opened it still holds descriptors.
            remove(&root).unwrap();
            assert!(!mounted().contains(root.to_str().unwrap()));
            assert!(!root.exists());
            remove(&root).unwrap();
            assert!(!tc("qdisc show").contains("clsact"));
            let output = Command::new("bpftool").args(["net", "show"]).output();
            if let Ok(output) = output {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(!text.contains("ingress"), "{text}");
            }
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn preflight_says_what_is_missing() {
    let node = Node::new();
    assert_eq!(preflight(&node.config()), Ok(()));
    let elsewhere = Config { cgroup: "/tmp".into(), ..node.config() };
    let refused = preflight(&elsewhere);
    assert!(
        matches!(&refused, Err(Missing::Cgroup { path, .. }) if path == Path::new("/tmp")),
        "{refused:?}"
    );
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
        // Mounted before the start, it stays mounted.
        fs::remove_dir("/sys/fs/bpf/others").unwrap();
        drop(Kernel::open(config.clone()).unwrap());
        remove(&config.bpf_root).unwrap();
        assert_eq!(mounts(), 1);
    });
}
