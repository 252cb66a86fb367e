//! Objects in, tables out: each file in `scenarios/` has a story in `#` lines, objects in YAML, and the
//! expected tables below a line `=== tables`. `HAWSER_BLESS=1` writes that part anew.
//!
//! The Node of the first document is the one compiled for. `# externalIPs: on` and `# masqueradeAll: on` in
//! the story are the settings of those names. A cluster address has a line `belongs`: its ports without a
//! listener are refused. Scopes with the same answer share a line; weights of 1 and default settings are left
//! out.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;
use serde_json::Value;
use userspace_dataplane::tables::{Algorithm, Forwarding, Frontend, FrontendKey, Protocol, Scope, Tables};
use userspace_proxy::compile::{health_check, service_of, warnings};
use userspace_proxy::{Context, NodeView, compile};

const MARK: &str = "=== tables\n";

fn decode<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
}

/// Formats the compiled objects as in the golden.
fn found(input: &str) -> String {
    let objects: Vec<Value> = serde_saphyr::from_multiple(input).unwrap();
    let known = |kind: &str| matches!(kind, "Node" | "Service" | "EndpointSlice");
    assert!(objects.iter().all(|object| object["kind"].as_str().is_some_and(known)), "{objects:?}");
    let nodes: Vec<Node> = decode(&objects, "Node");
    let (services, slices): (Vec<Service>, Vec<EndpointSlice>) =
        (decode(&objects, "Service"), decode(&objects, "EndpointSlice"));
    let context = Context {
        node: NodeView::of(&nodes[0]),
        external_ips: input.contains("# externalIPs: on"),
        masquerade_all: input.contains("# masqueradeAll: on"),
        ..Context::default()
    };
    let tables = compile(&services, &slices, &context);
    // The order of objects has no effect.
    assert_eq!(tables, compile(services.iter().rev(), slices.iter().rev(), &context));
    let mut text = text(&tables);
    for service in &services {
        let own = slices.iter().filter(|slice| service_of(slice) == Some(ObjectKey::of(service)));
        if let Some(check) = health_check(service, own, &context) {
            let (port, local) = (check.port, check.local_endpoints);
            writeln!(text, "{} answers on {port}: {local} local endpoints", check.service).unwrap();
        }
        for warning in warnings(service) {
            writeln!(text, "{}: {warning}", ObjectKey::of(service)).unwrap();
        }
    }
    text
}

fn text(tables: &Tables) -> String {
    let mut text = String::new();
    for (name, tables) in tables {
        writeln!(text, "{name}").unwrap();
        let marks = tables.frontends.iter().filter(|one| one.key.protocol == Protocol::Any);
        let marks: BTreeSet<IpAddr> = marks.map(|mark| mark.key.address).collect();
        let mut frontends = tables.frontends.iter().peekable();
        while let Some(frontend) = frontends.next() {
            let twin = frontends.next_if(|next| likewise(frontend, next, &marks));
            line(&mut text, frontend, twin.is_some(), &marks);
        }
        if !tables.source_ranges.is_empty() {
            let ranges: Vec<_> = tables.source_ranges.iter().map(ToString::to_string).collect();
            writeln!(text, "  limited to {}", ranges.join(", ")).unwrap();
        }
    }
    if text.is_empty() {
        text.push_str("(nothing)\n");
    }
    text
}

/// Returns the default algorithm of a frontend. `marks` are the cluster addresses.
fn usual(key: &FrontendKey, marks: &BTreeSet<IpAddr>) -> Algorithm {
    if key.scope == Scope::External && !marks.contains(&key.address) {
        Algorithm::Consistent
    } else {
        Algorithm::Random
    }
}

/// Returns `true` if `next` is the other scope of the same place with the same answer.
fn likewise(frontend: &Frontend, next: &Frontend, marks: &BTreeSet<IpAddr>) -> bool {
    let expected = Frontend { key: next.key, algorithm: next.algorithm, ..frontend.clone() };
    let algorithms = [frontend, next]
        .map(|one| if one.algorithm == usual(&one.key, marks) { None } else { Some(one.algorithm) });
    let same_place = (frontend.key.address, frontend.key.port, frontend.key.protocol)
        == (next.key.address, next.key.port, next.key.protocol);
    same_place && expected == *next && algorithms[0] == algorithms[1]
}

fn line(text: &mut String, frontend: &Frontend, both: bool, marks: &BTreeSet<IpAddr>) {
    let Frontend {
        key,
        backends,
        affinity_seconds,
        drop_when_empty,
        algorithm,
        forwarding,
        masquerade,
        limited,
    } = frontend;
    if *frontend == Frontend::mark(key.address) {
        return writeln!(text, "  {} belongs", key.address).unwrap();
    }
    assert_ne!(key.protocol, Protocol::Any);
    let place = std::net::SocketAddr::new(key.address, key.port);
    let scope = if both { "Both".to_owned() } else { format!("{:?}", key.scope) };
    write!(text, "  {scope} {:?} {place}", key.protocol).unwrap();
    if *affinity_seconds != 0 {
        write!(text, " affinity {affinity_seconds} s").unwrap();
    }
    if *algorithm != usual(key, marks) {
        write!(text, " {algorithm:?}").unwrap();
    }
    if *forwarding != Forwarding::Nat {
        write!(text, " {forwarding:?}").unwrap();
    }
    for (flag, word) in [(*masquerade, " masqueraded"), (*limited, " limited")] {
        text.push_str(if flag { word } else { "" });
    }
    if backends.is_empty() {
        text.push_str(if *drop_when_empty { " dropped" } else { " refused" });
    }
    text.push('\n');
    for backend in backends {
        write!(text, "    -> {}", std::net::SocketAddr::new(backend.address, backend.port)).unwrap();
        if backend.weight != 1 {
            write!(text, " weight {}", backend.weight).unwrap();
        }
        text.push_str(if backend.local { " local\n" } else { "\n" });
    }
}

#[test]
fn scenarios_compile_to_their_tables() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let bless = std::env::var_os("HAWSER_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in paths {
        let file = fs::read_to_string(&path).unwrap();
        let (input, golden) = file.split_once(MARK).unwrap_or((&file, ""));
        let found = found(input);
        if found == golden {
            continue;
        }
        if bless {
            fs::write(&path, format!("{input}{MARK}{found}")).unwrap();
        } else {
            wrong.push(format!("{}\nexpected:\n{golden}\nfound:\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nHAWSER_BLESS=1 takes what was found", wrong.join("\n"));
}
