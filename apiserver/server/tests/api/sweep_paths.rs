//! The paths that the sweep asks for, and which of them lead nowhere.

use std::collections::BTreeSet;

use apiserver_registry::Resource;

use super::FREE;

/// Names behind a collection, or none, in every spelling.
const NAMES: [&str; 10] =
    ["", "/", "/one", "/%6fne", "/right", "/one/", "//one", "/..%2Fright%2Fone", "/right%2Fone", "/."];
const SELECTORS: [&str; 5] = [
    "metadata.name%3Done",
    "metadata.name%3D%3Done",
    "metadata.name!%3Done",
    "metadata.name%3Done%2Cmetadata.name%3Dright",
    "metadata.namespace%3Dright",
];

/// Kind, verb (empty for all) and subresource of the requests that are not carried out here, and the reason.
pub const UNREACHED: [(&str, &str, &str, &str); 9] = [
    ("componentstatuses", "get", "", "none is called `one`"),
    ("flowschemas", "update", "", "refused: its rules are not complete"),
    ("flowschemas", "update", "status", "refused: its rules are not complete"),
    ("localsubjectaccessreviews", "create", "", "its sample is for another namespace"),
    ("pods", "", "attach", "needs a connection that can be upgraded: streams.rs"),
    ("pods", "", "exec", "needs a connection that can be upgraded: streams.rs"),
    ("pods", "", "portforward", "needs a connection that can be upgraded: streams.rs"),
    ("serviceaccounts", "create", "token", "needs a signing key: tls.rs"),
    ("tokenreviews", "create", "", "needs an authenticator: tls.rs"),
];
/// Kinds whose names have a fixed form, so that no object of them can be called `one`.
pub const NAMED: [&str; 5] =
    ["apiservices", "clustertrustbundles", "customresourcedefinitions", "ipaddresses", "storageversions"];

/// Paths of the kind, in its right place and in wrong ones.
pub fn paths(kind: &Resource) -> Vec<String> {
    let (root, plural) = (root(kind), &kind.plural);
    let own = kind.subresources.iter().map(|subresource| subresource.name);
    let subresources: BTreeSet<&str> = own.chain(["status", "proxy"]).collect();
    let mut paths = Vec::new();
    for scope in ["", "/namespaces/left"] {
        let place = format!("{root}{scope}/{plural}");
        paths.extend(NAMES.map(|name| format!("{place}{name}")));
        paths.extend(SELECTORS.map(|selector| format!("{place}?fieldSelector={selector}")));
        paths.push(format!("{place}?watch=1"));
        for subresource in &subresources {
            paths.push(format!("{place}/one/{subresource}"));
            paths.push(format!("{place}/one/{subresource}/more"));
        }
        let watch = format!("{root}/watch{scope}/{plural}");
        paths.extend(["", "/one", "/right"].map(|name| format!("{watch}{name}")));
        paths.push(format!("{watch}?fieldSelector=metadata.name%3Done"));
        paths.extend(subresources.iter().map(|subresource| format!("{watch}/one/{subresource}")));
    }
    if matches!(kind.plural.as_str(), "pods" | "services") {
        let place = format!("{root}/namespaces/left/{plural}");
        let names =
            ["one:80", "http:one:", "https:one:443", "one%3A80", "right%2Fone:80", ":one", "a:b:one:80"];
        for name in names {
            paths.extend(["", "/", "/more/../../x"].map(|rest| format!("{place}/{name}/proxy{rest}")));
        }
    }
    for scope in ["le%66t", "left%2F..%2Fright", "left/namespaces/right", "", "left/status"] {
        let place = format!("{root}/namespaces/{scope}/{plural}");
        paths.extend(["", "/one", "/one/status"].map(|name| format!("{place}{name}")));
    }
    if kind.kind == "Pod" {
        let place = format!("{root}/namespaces/left/{plural}/{FREE}");
        paths.extend(["binding", "eviction", "status"].map(|below| format!("{place}/{below}")));
    }
    paths
}

/// The path of the kind's group and version.
pub fn root(kind: &Resource) -> String {
    let prefix = if kind.group.is_empty() { "/api" } else { "/apis" };
    format!("{prefix}/{}", kind.api_version())
}
