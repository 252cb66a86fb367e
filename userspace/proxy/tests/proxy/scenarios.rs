//! Objects in, tables out: each file in `scenarios/` has a story in `#` lines, objects in YAML,
//! and below a line `=== tables` what they compile to. `HAWSER_BLESS=1` writes that part anew.
//!
//! The Node named in the first document is the one compiled for. `# externalIPs: on` in the story
//! switches those on.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;
use serde_json::Value;
use userspace_dataplane::tables::{Frontend, Tables};
use userspace_proxy::{Context, NodeView, compile};

const MARK: &str = "=== tables\n";

fn decode<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
}

fn tables(input: &str) -> Tables {
    let objects: Vec<Value> = serde_saphyr::from_multiple(input).unwrap();
    let known = |kind: &str| matches!(kind, "Node" | "Service" | "EndpointSlice");
    assert!(objects.iter().all(|object| object["kind"].as_str().is_some_and(known)), "{objects:?}");
    let nodes: Vec<Node> = decode(&objects, "Node");
    let (services, slices): (Vec<Service>, Vec<EndpointSlice>) =
        (decode(&objects, "Service"), decode(&objects, "EndpointSlice"));
    let context =
        Context { node: NodeView::of(&nodes[0]), external_ips: input.contains("# externalIPs: on") };
    let tables = compile(&services, &slices, &context);
    // The order of objects means nothing.
    assert_eq!(tables, compile(services.iter().rev(), slices.iter().rev(), &context));
    tables
}

fn text(tables: &Tables) -> String {
    let mut text = String::new();
    for (name, tables) in tables {
        writeln!(text, "{name}").unwrap();
        for frontend in &tables.frontends {
            line(&mut text, frontend);
        }
    }
    if text.is_empty() {
        text.push_str("(nothing)\n");
    }
    text
}

fn line(text: &mut String, frontend: &Frontend) {
    let Frontend { key, backends, affinity_seconds, drop_when_empty } = frontend;
    let place = std::net::SocketAddr::new(key.address, key.port);
    write!(text, "  {:?} {:?} {place}", key.scope, key.protocol).unwrap();
    if *affinity_seconds != 0 {
        write!(text, " affinity {affinity_seconds} s").unwrap();
    }
    if backends.is_empty() {
        text.push_str(if *drop_when_empty { " dropped" } else { " refused" });
    }
    text.push('\n');
    for backend in backends {
        let local = if backend.local { " local" } else { "" };
        writeln!(text, "    -> {}{local}", std::net::SocketAddr::new(backend.address, backend.port)).unwrap();
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
        let found = text(&tables(input));
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
