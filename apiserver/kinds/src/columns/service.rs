//! Services, Endpoints and EndpointSlices.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AGE, Layout, NAME, NONE, SELECTOR, UNSET, age, name, pairs, text_or};
use apiserver_schema::meta;

/// So many addresses and ports are shown; the rest is counted.
const SHOWN: usize = 3;

pub(super) const SERVICES: Layout = Layout {
    head: &[
        NAME,
        ("Type", "string", 0, "How the service is exposed"),
        ("Cluster-IP", "string", 0, "Address inside the cluster"),
        ("External-IP", "string", 0, "Addresses outside the cluster"),
        ("Port(s)", "string", 0, "Ports and node ports"),
        AGE,
        SELECTOR,
    ],
    cells: |object, now| {
        vec![
            name(object),
            text_or(object, "/spec/type", ""),
            json!(cluster_ip(object)),
            json!(external_ip(object)),
            json!(ports(object)),
            age(object, now),
            pairs(object, "/spec/selector"),
        ]
    },
};

fn cluster_ip(object: &Value) -> &str {
    let first = meta::list(object, "/spec/clusterIPs").first().and_then(Value::as_str);
    let ip = first.unwrap_or_else(|| meta::text(object, "/spec/clusterIP"));
    if ip.is_empty() { NONE } else { ip }
}

fn external_ip(object: &Value) -> String {
    let external: Vec<&str> =
        meta::list(object, "/spec/externalIPs").iter().filter_map(Value::as_str).collect();
    match meta::text(object, "/spec/type") {
        "ExternalName" => meta::text(object, "/spec/externalName").to_owned(),
        "LoadBalancer" => {
            let ingress = meta::list(object, "/status/loadBalancer/ingress").iter().map(|i| {
                let ip = meta::text(i, "/ip");
                if ip.is_empty() { meta::text(i, "/hostname") } else { ip }
            });
            let balancer: BTreeSet<&str> = ingress.filter(|i| !i.is_empty()).collect();
            let all: Vec<&str> = balancer.into_iter().chain(external).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ if external.is_empty() => NONE.to_owned(),
        _ => external.join(","),
    }
}

fn ports(object: &Value) -> String {
    let list: Vec<String> = meta::list(object, "/spec/ports")
        .iter()
        .map(|port| {
            let (number, protocol) = (port["port"].as_i64().unwrap_or(0), meta::text(port, "/protocol"));
            match port["nodePort"].as_i64().unwrap_or(0) {
                0 => format!("{number}/{protocol}"),
                node_port => format!("{number}:{node_port}/{protocol}"),
            }
        })
        .collect();
    if list.is_empty() { NONE.to_owned() } else { list.join(",") }
}

pub(super) const ENDPOINTS: Layout = Layout {
    head: &[NAME, ("Endpoints", "string", 0, "Addresses and ports that are ready"), AGE],
    cells: |object, now| {
        let subsets = meta::list(object, "/subsets");
        let mut list = Vec::new();
        for subset in subsets {
            let (addresses, ports) = (meta::list(subset, "/addresses"), meta::list(subset, "/ports"));
            let ips = || addresses.iter().map(|address| meta::text(address, "/ip"));
            if ports.is_empty() {
                list.extend(ips().map(str::to_owned));
            }
            for port in ports {
                list.extend(ips().map(|ip| host_port(ip, port["port"].as_i64().unwrap_or(0))));
            }
        }
        // If nothing is ready nothing is shown; only an object without subsets shows that it has none.
        let nothing = if subsets.is_empty() { NONE } else { "" };
        vec![name(object), json!(shortened(&list, nothing)), age(object, now)]
    },
};

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

pub(super) const SLICES: Layout = Layout {
    head: &[
        NAME,
        ("AddressType", "string", 0, "IPv4, IPv6 or FQDN"),
        ("Ports", "string", 0, "Ports of all endpoints"),
        ("Endpoints", "string", 0, "Addresses"),
        AGE,
    ],
    cells: |object, now| {
        let port = |port: &Value| match port["port"].as_i64() {
            Some(number) => number.to_string(),
            None if port.get("name").is_none_or(Value::is_null) => "*".to_owned(),
            None => meta::text(port, "/name").to_owned(),
        };
        let ports: Vec<String> = meta::list(object, "/ports").iter().map(port).collect();
        let addresses: Vec<String> = meta::list(object, "/endpoints")
            .iter()
            .flat_map(|e| meta::list(e, "/addresses"))
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect();
        vec![
            name(object),
            text_or(object, "/addressType", ""),
            json!(shortened(&ports, UNSET)),
            json!(shortened(&addresses, UNSET)),
            age(object, now),
        ]
    },
};

fn shortened(list: &[String], empty: &str) -> String {
    match list.len() {
        0 => empty.to_owned(),
        n if n > SHOWN => format!("{} + {} more...", list[..SHOWN].join(","), n - SHOWN),
        _ => list.join(","),
    }
}
