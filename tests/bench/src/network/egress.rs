//! Packets of pods that leave the cluster and take the node's address.
//!
//! ```text
//!   pod's namespace         node's namespace            another host
//!     generator ─ eth0 ═ pod0 ── source replaced ── uplink ═ eth0 ─ sink
//! ```
//!
//! `limit` routes packets without a translation. The peers' rules are those of ip-masq-agent for one range of
//! pods. All of it runs on one processor.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use tests_e2e::{Lab, output};
use userspace_dataplane::DataPlane;
use userspace_dataplane::XdpMode;
use userspace_dataplane::tables::{Interface, Masquerade, NodeTables, NonMasquerade, Role};

use crate::asm::{self, Traffic};
use crate::north_south::{NODE_ADDRESS, prepare};
use crate::place::{self, Place, in_namespace, pod};
use crate::row::Report;
use crate::subject::{Plan, Subject};
use crate::wire::{NEW_FLOWS, Wire, measure};
use crate::{bpf, node, peers};

/// The first pod; others of the same interface have the following addresses.
const POD: &str = "10.244.0.10";
const GATEWAY: &str = "10.244.0.1";
const PODS: &str = "10.244.0.0/16";
/// The first address outside, and the number of them: ports of the node's address are counted by destination.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
const DESTINATIONS: u32 = 256;
const PORT: u16 = 80;
const NODE_END: [u8; 6] = [2, 0, 0, 0, 2, 1];
const POD_END: [u8; 6] = [2, 0, 0, 0, 2, 2];

/// Measures packets of known flows, and first packets.
pub fn run(report: &Report, plan: &Plan) {
    let cases = [
        ("egress_packets/flows=1", 1),
        ("egress_packets/flows=100000", 100_000),
        ("egress_new_flows", NEW_FLOWS),
    ];
    let wanted: Vec<_> = cases.into_iter().filter(|(case, _)| plan.has(case)).collect();
    if wanted.is_empty() {
        return;
    }
    report.attempt("egress", || {
        let subjects = plan.subjects(1).into_iter().filter(|subject| *subject != Subject::Ipvs);
        let nodes: Result<Vec<Egress>> = subjects.map(Egress::new).collect();
        let nodes = nodes?;
        let wires: Vec<&Wire> = nodes.iter().map(|node| &node.wire).collect();
        wanted.iter().try_for_each(|(case, flows)| {
            let destinations = (*flows).min(DESTINATIONS);
            let mut traffic = Traffic::new(None, PORT, (NODE_END, POD_END), (*flows, destinations), OUTSIDE);
            traffic.first_source = POD.parse().context("not an address")?;
            measure(report, plan, &wires, ("network", case), &traffic)
        })
    });
}

/// A node with a pod, and another host outside.
struct Egress {
    wire: Wire,
    pod: String,
}

impl Egress {
    fn new(subject: Subject) -> Result<Self> {
        let lab = Lab::new()?;
        prepare(&lab)?;
        let name = format!("{}p", lab.id);
        let namespace = Path::new("/run/netns").join(&name);
        let source = (subject != Subject::Limit).then_some(NODE_ADDRESS);
        let wire = Wire::new(subject, lab, namespace, PORT, source)?;
        let mut egress = Self { wire, pod: name };
        egress.build()?;
        Ok(egress)
    }

    fn build(&mut self) -> Result<()> {
        let node = Place::node(&self.wire.lab);
        node.run(&format!("ip addr add {GATEWAY}/32 dev lo"))?;
        pod(&node, &self.pod, "pod0", &[POD], GATEWAY)?;
        let link = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
        node.run(&format!("ip link set pod0 address {}", link(NODE_END)))?;
        let line = format!("-n {} link set eth0 address {}", self.pod, link(POD_END));
        output(Command::new("ip").args(line.split_whitespace()))?;
        let namespace = place::node_namespace(&self.wire.lab);
        // Frames that did not come from a stack need a program at the other end of the pair.
        let pass = bpf::load(bpf::XDP, &asm::constant(asm::XDP_PASS))?;
        self.wire.attach(&namespace, "pod0", &pass)?;
        match self.wire.subject {
            Subject::Hawser => in_namespace(&namespace, || hawser(&self.wire.lab)),
            Subject::Iptables => {
                let rules = format!("*nat\n-A POSTROUTING -s {PODS} -o uplink -j MASQUERADE\nCOMMIT\n");
                peers::load(&mut node.command(peers::iptables_restore()), &rules)
            }
            Subject::Nftables => {
                let rules = format!(
                    "table ip egress {{\n  chain postrouting {{\n    type nat hook postrouting priority srcnat;\n    \
                     ip saddr {PODS} oifname \"uplink\" masquerade\n  }}\n}}\n"
                );
                peers::load(node.command("nft").args(["-f", "-"]), &rules)
            }
            Subject::Limit | Subject::Ipvs | Subject::Etcd => Ok(()),
        }
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        // Fails if it was never created.
        let _ = Command::new("ip").args(["netns", "del", &self.pod]).output();
    }
}

/// Attaches Hawser's programs to the pod and the uplink, as on a node of `hawser up`.
fn hawser(lab: &Lab) -> Result<()> {
    let mut kernel = node::open(lab, node::limits(1), XdpMode::Off)?;
    let pods = || PODS.parse().context("not a range");
    let tables = NodeTables {
        addresses: vec![IpAddr::from(NODE_ADDRESS)],
        service_ranges: vec!["10.96.0.0/12".parse().context("not a range")?],
        masquerade: Some(Masquerade {
            pods: vec![pods()?],
            exempt: BTreeMap::from([(pods()?, NonMasquerade::Cluster)]),
        }),
        ..NodeTables::default()
    };
    kernel.set_node(&tables).context("cannot set the node's address")?;
    let interfaces: Result<Vec<Interface>> = [("uplink", Role::Uplink), ("pod0", Role::Pod)]
        .into_iter()
        .map(|(name, role)| Ok(Interface { name: name.to_owned(), index: place::interface(name)?, role }))
        .collect();
    kernel.set_interfaces(&interfaces?).context("cannot attach to the interfaces")
}
