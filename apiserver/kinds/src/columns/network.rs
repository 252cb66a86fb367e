//! Ingresses, network policies, addresses and ranges of Services.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AGE, Layout, NAME, NONE, age, name, selector, text_or};
use apiserver_schema::meta;

pub(super) const INGRESSES: Layout = Layout {
    head: &[
        NAME,
        ("Class", "string", 0, "Which controller implements it"),
        ("Hosts", "string", 0, "Hosts that it answers for"),
        ("Address", "string", 0, "Where it is reached"),
        ("Ports", "string", 0, "Ports on which it listens"),
        AGE,
    ],
    cells: |object, now| {
        let addresses: BTreeSet<&str> = meta::list(object, "/status/loadBalancer/ingress")
            .iter()
            .map(|i| {
                if meta::text(i, "/ip").is_empty() {
                    meta::text(i, "/hostname")
                } else {
                    meta::text(i, "/ip")
                }
            })
            .filter(|a| !a.is_empty())
            .collect();
        let tls = !meta::list(object, "/spec/tls").is_empty();
        vec![
            name(object),
            text_or(object, "/spec/ingressClassName", NONE),
            json!(hosts(object)),
            json!(addresses.into_iter().collect::<Vec<_>>().join(",")),
            json!(if tls { "80, 443" } else { "80" }),
            age(object, now),
        ]
    },
};

/// So many hosts are shown; of what comes behind them the rules are counted, whether they name a host
/// or not.
const HOSTS: usize = 3;

fn hosts(object: &Value) -> String {
    let rules = meta::list(object, "/spec/rules");
    let (mut shown, mut more) = (Vec::new(), false);
    for rule in rules {
        more |= shown.len() == HOSTS;
        let host = meta::text(rule, "/host");
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        none if none.is_empty() => "*".to_owned(),
        some if more => format!("{some} + {} more...", rules.len() - HOSTS),
        all => all,
    }
}

pub(super) const INGRESS_CLASSES: Layout = Layout {
    head: &[
        NAME,
        ("Controller", "string", 0, "Controller that implements the class"),
        ("Parameters", "string", 0, "Object with further settings"),
        AGE,
    ],
    cells: |object, now| {
        let parameters = object.pointer("/spec/parameters").map_or(NONE.to_owned(), |p| {
            let (group, kind, name) =
                (meta::text(p, "/apiGroup"), meta::text(p, "/kind"), meta::text(p, "/name"));
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{name}")
        });
        vec![name(object), text_or(object, "/spec/controller", ""), json!(parameters), age(object, now)]
    },
};

pub(super) const POLICIES: Layout = Layout {
    head: &[NAME, ("Pod-Selector", "string", 0, "Pods that it applies to"), AGE],
    cells: |object, now| vec![name(object), selector(object, "/spec/podSelector"), age(object, now)],
};

pub(super) const ADDRESSES: Layout = Layout {
    head: &[NAME, ("ParentRef", "string", 0, "Object that has the address"), AGE],
    cells: |object, now| {
        let parent = object.pointer("/spec/parentRef").map_or(NONE.to_owned(), |p| {
            let dot = if meta::text(p, "/group").is_empty() { "" } else { "." };
            let kind =
                format!("{}{dot}{}", meta::text(p, "/resource"), meta::text(p, "/group")).to_lowercase();
            let parts = [kind.as_str(), meta::text(p, "/namespace"), meta::text(p, "/name")];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
        });
        vec![name(object), json!(parent), age(object, now)]
    },
};

pub(super) const RANGES: Layout = Layout {
    head: &[NAME, ("CIDRs", "string", 0, "Ranges from which addresses are taken"), AGE],
    cells: |object, now| {
        let ranges: Vec<&str> = meta::list(object, "/spec/cidrs").iter().filter_map(Value::as_str).collect();
        vec![name(object), json!(ranges.join(",")), age(object, now)]
    },
};
