//! Turns the published definitions and the tables of resources and messages into what the crate embeds: a compact
//! type graph as static arrays, and the OpenAPI documents, compressed. Nothing of it is computed at run time.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

mod connect;
mod definitions;
mod documents;
mod graph;
mod paths;
mod single;

#[path = "../src/deleted.rs"]
mod deleted;
#[path = "../src/openapi/message.rs"]
mod message;
#[path = "../src/openapi/parameters.rs"]
mod parameters;
#[path = "../src/openapi/reduce.rs"]
mod reduce;
#[path = "../src/openapi/shared.rs"]
mod shared;

use std::path::{Path, PathBuf};

use definitions::Definitions;
use serde_json::Value;

/// The key under which a definition names the kinds that it describes.
const KINDS: &str = "x-kubernetes-group-version-kind";

/// One entry of `data/resources.json`.
pub struct Served {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<(String, Vec<String>)>,
}

fn main() {
    println!("cargo::rerun-if-changed=build");
    for data in ["definitions", "parameters.txt", "resources.json"] {
        println!("cargo::rerun-if-changed=data/{data}");
    }
    println!("cargo::rerun-if-changed=src/deleted.rs");
    for file in ["message", "message_v2", "message_v3", "parameters", "reduce", "shared"] {
        println!("cargo::rerun-if-changed=src/openapi/{file}.rs");
    }
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let served = served(&read(&root.join("data/resources.json")));
    let definitions = Definitions::read(&root.join("data/definitions"));
    std::fs::write(out.join("graph.rs"), graph::source(&definitions)).expect("OUT_DIR is writable");
    documents::write(&out, &definitions, &served);
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The resources, in the order of discovery.
fn served(table: &Value) -> Vec<Served> {
    let text = |v: &Value| v.as_str().expect("a string").to_owned();
    let list = |v: &Value| v.as_array().expect("a list").iter().map(text).collect::<Vec<_>>();
    table
        .as_array()
        .expect("resources.json is a list")
        .iter()
        .map(|r| Served {
            group: text(&r["group"]),
            version: text(&r["version"]),
            plural: text(&r["plural"]),
            kind: text(&r["kind"]),
            namespaced: r["namespaced"] == true,
            verbs: list(&r["verbs"]),
            subresources: r["subresources"]
                .as_object()
                .expect("a map")
                .iter()
                .map(|(name, verbs)| (name.clone(), list(verbs)))
                .collect(),
        })
        .collect()
}
