//! The packet flows of kube-proxy's own tests, in `cases/*.txt`. A file's story names the test; names of
//! cases and flows are that test's, so that each can be found again.
//!
//! ```text
//! # story
//! === objects          what all cases of the file have; or `=== case NAME`, its own objects
//! (a Node, Settings, Services, EndpointSlices as YAML documents)
//! === flows
//! name | pod, node or outside, and its address | protocol and destination | outcome | ours | peer's
//! === health
//! Service, port, local endpoints
//! ```
//!
//! An outcome is a list of backends, `REJECT`, `DROP` or `untouched`. Backends see the client (`kept`) or the
//! `node`; `by place` is the client if the backend is on this node, and the node otherwise. The last column
//! is the behaviour of kube-proxy. Ours may preserve more client addresses than that, if replies come back
//! all the same; it must not lose one that kube-proxy preserves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::Deserialize;
use serde_json::Value;
use userspace_proxy::compile::{health_check, service_of};
use userspace_proxy::{Config, KubeProxyConfiguration, NodeView, Own};

use crate::semantics::model::{Attempt, From, Source, Verdict, World, judge};
use crate::semantics::plan::PROTOCOLS;
use crate::semantics::tables::{compiled, context, node_tables, read};

/// One cluster, and the attempts in it.
pub struct Case {
    pub name: String,
    pub world: World,
    pub flows: Vec<Flow>,
    /// Service, port and local endpoints.
    health: Option<BTreeSet<(String, u16, usize)>>,
}

pub struct Flow {
    pub name: String,
    pub attempt: Attempt,
    pub expected: Verdict,
    peer_masquerades: Option<bool>,
}

/// The settings that are not objects of the API.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    service_ranges: Vec<String>,
    /// Addresses of the machine's interfaces.
    #[serde(default)]
    machine: Vec<IpAddr>,
    #[serde(default)]
    node_port_addresses: Vec<String>,
    #[serde(default, rename = "externalIPs")]
    external_ips: bool,
    #[serde(default)]
    masquerade_all: bool,
}

/// Returns all cases of all files.
pub fn all() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/semantics/cases");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| file(path)).collect()
}

fn file(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap();
    let stem = path.file_stem().unwrap().to_str().unwrap();
    let (mut shared, mut cases): (String, Vec<Case>) = (String::new(), Vec::new());
    for section in text.split("\n=== ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap_or((section, ""));
        match title.split_once(' ') {
            None if title == "objects" => {
                shared = body.to_owned();
                cases.push(case(stem, body));
            }
            None if title == "flows" => {
                let case = cases.last_mut().unwrap();
                let lines = body.lines().filter(|line| !line.is_empty());
                case.flows = lines.map(|line| flow(line, &case.world)).collect();
            }
            None if title == "health" => {
                let lines = body.lines().filter(|line| !line.is_empty());
                cases.last_mut().unwrap().health = Some(lines.map(health).collect());
            }
            Some(("case", name)) => cases.push(case(&format!("{stem}: {name}"), &format!("{shared}{body}"))),
            _ => panic!("{stem}: section {title}"),
        }
    }
    assert!(cases.iter().all(|case| !case.flows.is_empty() || case.health.is_some()), "{stem}");
    cases
}

fn case(name: &str, yaml: &str) -> Case {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{name}: {error}"));
    let of_kind =
        |kind: &str| objects.iter().filter(|object| object["kind"] == kind).cloned().collect::<Vec<_>>();
    let node: Node = serde_json::from_value(of_kind("Node").remove(0)).unwrap();
    let view = NodeView::of(&node);
    let settings: Settings = serde_json::from_value(of_kind("Settings").remove(0)).unwrap();
    let config = KubeProxyConfiguration {
        mode: "nftables".to_owned(),
        hostname_override: view.name.clone(),
        node_port_addresses: settings.node_port_addresses.clone(),
        ..KubeProxyConfiguration::default()
    };
    let node_ports = Config::new(&config, &Own::default()).unwrap().nodeport_addresses;
    let node_ports = node_ports.choose(&view.addresses, &view.addresses, &settings.machine);
    let services: Vec<Service> =
        of_kind("Service").into_iter().map(|object| serde_json::from_value(object).unwrap()).collect();
    let slices: Vec<EndpointSlice> =
        of_kind("EndpointSlice").into_iter().map(|object| serde_json::from_value(object).unwrap()).collect();
    assert_eq!(objects.len(), services.len() + slices.len() + 2, "{name}: one Node, one Settings");
    let world = World {
        services,
        slices,
        node_name: view.name,
        zone: view.zone,
        node_addresses: view.addresses,
        node_port_addresses: node_ports.into_iter().collect(),
        service_ranges: settings.service_ranges.iter().map(|range| range.parse().unwrap()).collect(),
        external_ips: settings.external_ips,
        masquerade_all: settings.masquerade_all,
    };
    Case { name: name.to_owned(), world, flows: Vec::new(), health: None }
}

fn flow(line: &str, world: &World) -> Flow {
    let columns: Vec<_> = line.split('|').map(str::trim).collect();
    let [name, who, what, outcome] = columns[..4] else { panic!("{line}") };
    let (from, source) = who.split_once(' ').unwrap();
    let (protocol, to) = what.split_once(' ').unwrap();
    let from = match from {
        "pod" => From::Pod,
        "node" => From::Host,
        "outside" => From::Outside,
        _ => panic!("{line}"),
    };
    let attempt = Attempt {
        from,
        source: source.parse().unwrap(),
        protocol: PROTOCOLS.into_iter().find(|known| *known == protocol).unwrap(),
        to: to.parse().unwrap(),
    };
    let expected = match outcome {
        "REJECT" => Verdict::Rejected,
        "DROP" => Verdict::Dropped,
        "untouched" => Verdict::Untouched,
        backends => {
            let backends = backends.split(", ").map(|to| to.parse::<SocketAddr>().unwrap());
            Verdict::To(backends.map(|to| (to, seen(columns[4], to.ip(), world))).collect())
        }
    };
    let peer_masquerades = columns.get(5).map(|peer| match *peer {
        "masq" => true,
        "kept" => false,
        _ => panic!("{line}"),
    });
    assert_eq!(peer_masquerades.is_some(), matches!(expected, Verdict::To(_)), "{line}");
    Flow { name: name.to_owned(), attempt, expected, peer_masquerades }
}

/// Returns the source address that a backend sees.
fn seen(column: &str, backend: IpAddr, world: &World) -> Source {
    let endpoints = || world.slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let local = || {
        endpoints().any(|endpoint| {
            endpoint.node_name.as_deref() == Some(world.node_name.as_str())
                && endpoint.addresses[0].parse() == Ok(backend)
        })
    };
    match column {
        "kept" => Source::Kept,
        "node" => Source::Node,
        "by place" => {
            if local() {
                Source::Kept
            } else {
                Source::Node
            }
        }
        _ => panic!("{column}"),
    }
}

fn health(line: &str) -> (String, u16, usize) {
    let words: Vec<_> = line.split(' ').collect();
    (words[0].to_owned(), words[1].parse().unwrap(), words[2].parse().unwrap())
}

fn health_checks(world: &World) -> BTreeSet<(String, u16, usize)> {
    let checks = world.services.iter().filter_map(|service| {
        let name = apiserver_client::ObjectKey::of(service);
        let own = world.slices.iter().filter(|slice| service_of(slice).as_ref() == Some(&name));
        health_check(service, own, &context(world))
    });
    checks.map(|check| (check.service.to_string(), check.port, check.local_endpoints)).collect()
}

#[test]
fn the_model_says_of_each_case_what_kube_proxy_says() {
    for case in all() {
        for flow in &case.flows {
            assert_eq!(judge(&case.world, &flow.attempt), flow.expected, "{}: {}", case.name, flow.name);
        }
    }
}

#[test]
fn compiled_cases_do_what_kube_proxy_does() {
    for case in all() {
        let (tables, node) = (compiled(&case.world), node_tables(&case.world));
        for flow in &case.flows {
            let found = read(&tables, &node, &flow.attempt);
            assert_eq!(found, flow.expected, "{}: {}", case.name, flow.name);
        }
        if let Some(expected) = &case.health {
            assert_eq!(&health_checks(&case.world), expected, "{}", case.name);
        }
    }
}

/// Clients are kept wherever kube-proxy keeps them, and otherwise only if replies come back.
#[test]
fn clients_that_kube_proxy_keeps_are_kept() {
    let mut kept_more = BTreeMap::<From, u32>::new();
    for case in all() {
        for flow in &case.flows {
            let Verdict::To(backends) = &flow.expected else { continue };
            let masquerades = flow.peer_masquerades.unwrap();
            for (backend, source) in backends {
                let what = format!("{}: {} at {backend}", case.name, flow.name);
                if !masquerades {
                    assert_eq!(*source, Source::Kept, "{what}");
                } else if *source == Source::Kept {
                    let local = seen("by place", backend.ip(), &case.world) == Source::Kept;
                    assert!(flow.attempt.from != From::Outside || local, "{what}");
                    *kept_more.entry(flow.attempt.from).or_default() += 1;
                }
            }
        }
    }
    assert_eq!(kept_more.len(), 3, "{kept_more:?}");
}
