//! Services.

pub(crate) mod addresses;
#[cfg(test)]
mod tests;
pub mod validation;

use std::collections::BTreeSet;

use apiserver_schema::meta;
use apiserver_schema::validation::{items, text};
use serde_json::{Value, json};

use crate::core::service::validation::{HINTS, MODE};
use crate::kind::Kind;
use crate::shared::cells::NONE;
use crate::shared::columns::{AGE, Columns, NAME, SELECTOR};
use crate::shared::defaults::{
    Object, each_object, fill, fill_absent, has_text, is_empty, object_or_insert, with_spec,
};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "services",
    short_names: &["svc"],
    category: Some("all"),
    prefix: "services/specs",
    selectable: &["spec.clusterIP", "spec.type"],
    create_on_update: true,
    default,
    prepare_create,
    prepare_update,
    validate: validation::validate,
    validate_update: validation::validate_update,
    validate_status: Some(validation::validate_status),
    warnings: Some(warnings),
    columns: COLUMNS,
    allocates_addresses: true,
    ..Kind::DEFAULT
};

/// The default number of seconds for which a client sticks to a backend.
const AFFINITY_SECONDS: i64 = 10_800;

/// Defaults of a Service, except addresses, IP families and node ports, which are allocated.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "sessionAffinity", "None");
        fill(spec, "type", "ClusterIP");
        if has_text(spec, "sessionAffinity", "None") {
            spec.remove("sessionAffinityConfig");
        } else if has_text(spec, "sessionAffinity", "ClientIP")
            && let Some(client) =
                object_or_insert(spec, "sessionAffinityConfig").and_then(|c| object_or_insert(c, "clientIP"))
        {
            fill(client, "timeoutSeconds", AFFINITY_SECONDS);
        }
        each_object(spec, "ports", port);
        if is_external(spec) {
            fill(spec, "externalTrafficPolicy", "Cluster");
        }
        if !has_text(spec, "type", "ExternalName") {
            fill_absent(spec, "internalTrafficPolicy", "Cluster");
        }
        if has_text(spec, "type", "LoadBalancer") {
            fill(spec, "allocateLoadBalancerNodePorts", true);
        }
    });
    if value.pointer("/spec/type") == Some(&json!("LoadBalancer"))
        && let Some(Value::Object(balancer)) = value.pointer_mut("/status/loadBalancer")
    {
        each_object(balancer, "ingress", |ingress| {
            if !is_empty(ingress, "ip") {
                fill_absent(ingress, "ipMode", "VIP");
            }
        });
    }
}

fn port(port: &mut Object) {
    fill(port, "protocol", "TCP");
    let unset = port.get("targetPort").is_none_or(|t| t.as_i64() == Some(0) || t.as_str() == Some(""));
    if unset && let Some(number) = port.get("port").cloned() {
        port.insert("targetPort".into(), number);
    }
}

/// Status of a new Service.
fn prepare_create(value: &mut Value) {
    if let Value::Object(map) = value {
        map.insert("status".into(), json!({"loadBalancer": {}}));
    }
}

/// Returns `true` if traffic from outside reaches the Service, so that its policy matters.
fn is_external(spec: &Object) -> bool {
    has_text(spec, "type", "NodePort")
        || has_text(spec, "type", "LoadBalancer")
        || (has_text(spec, "type", "ClusterIP") && !is_empty(spec, "externalIPs"))
}

/// Returns `true` if the Service is allocated node ports.
fn has_node_ports(spec: &Object) -> bool {
    has_text(spec, "type", "NodePort") || has_text(spec, "type", "LoadBalancer")
}

/// Returns `true` if load balancers check each node for an endpoint, on a port allocated to the Service.
fn has_health_check(spec: &Object) -> bool {
    has_text(spec, "type", "LoadBalancer") && has_text(spec, "externalTrafficPolicy", "Local")
}

/// The numbers on every node that a Service names.
fn node_ports(spec: &Object) -> BTreeSet<i64> {
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| port["nodePort"].as_i64()).filter(|number| *number != 0).collect()
}

/// Fields that no longer mean anything go when the type or the policy changes, unless the client changed
/// them too. Arguments: new, old.
pub fn prepare_update(new: &mut Value, old: &Value) {
    let Some(Value::Object(before)) = old.get("spec") else { return };
    with_spec(new, |spec| {
        let drop_unchanged = |spec: &mut Object, keys: &[&str]| {
            for key in keys {
                if spec.contains_key(*key) && spec.get(*key) == before.get(*key) {
                    spec.remove(*key);
                }
            }
        };
        let was = |ty: &str| has_text(before, "type", ty);
        if has_node_ports(before)
            && !has_node_ports(spec)
            && node_ports(before).is_superset(&node_ports(spec))
        {
            each_object(spec, "ports", |port| {
                port.remove("nodePort");
            });
        }
        if is_external(before) && !is_external(spec) {
            drop_unchanged(spec, &["externalTrafficPolicy"]);
        }
        if was("LoadBalancer") && !has_text(spec, "type", "LoadBalancer") {
            drop_unchanged(spec, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
        }
        if has_health_check(before) && !has_health_check(spec) {
            drop_unchanged(spec, &["healthCheckNodePort"]);
        }
        // Other fields stay: they were not allocated to the Service.
        if has_text(spec, "type", "ExternalName") && !was("ExternalName") {
            drop_unchanged(spec, &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
        }
    });
    // The status that a load balancer set is removed at once, even if the balancer takes long to go.
    if new.pointer("/spec/type") != Some(&json!("LoadBalancer"))
        && let Some(balancer) = new.pointer_mut("/status/loadBalancer")
    {
        *balancer = json!({});
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
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
            cells::name(object),
            cells::text_or(object, "/spec/type", ""),
            json!(cluster_ip(object)),
            json!(external_ip(object)),
            json!(ports(object)),
            cells::age(object, now),
            cells::pairs(object, "/spec/selector"),
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

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let spec = &new["spec"];
    let mut warnings = Vec::new();
    if meta::annotation(new, HINTS).is_some() {
        warnings.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    let ty = text(spec, "type");
    let headless = ty == "ClusterIP" && text(spec, "clusterIP") == "None";
    let external = items(spec, "externalIPs");
    let cluster = items(spec, "clusterIPs").iter().filter_map(Value::as_str).filter(|ip| *ip != "None");
    for (index, address) in cluster.enumerate() {
        warnings.extend(ip::address_warning(address, &format!("spec.clusterIPs[{index}]")));
    }
    if headless {
        let mut ignored = |field: &str, set: bool| {
            if set {
                warnings.push(format!("spec.{field} is ignored for headless services"));
            }
        };
        ignored("loadBalancerIP", !text(spec, "loadBalancerIP").is_empty());
        ignored("externalIPs", !external.is_empty());
        ignored("SessionAffinity", text(spec, "sessionAffinity") != "None");
    }
    for (index, address) in external.iter().filter_map(Value::as_str).enumerate() {
        warnings.extend(ip::address_warning(address, &format!("spec.externalIPs[{index}]")));
    }
    if !external.is_empty() && !headless && ty != "ExternalName" {
        warnings.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned(),
        );
    }
    warnings.extend(ip::address_warning(text(spec, "loadBalancerIP"), "spec.loadBalancerIP"));
    let ranges = items(spec, "loadBalancerSourceRanges").iter().filter_map(Value::as_str);
    for (index, range) in ranges.enumerate() {
        warnings.extend(ip::range_warnings(range.trim(), &format!("spec.loadBalancerSourceRanges[{index}]")));
    }
    if ty == "ExternalName" && !external.is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if ty != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        warnings.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned(),
        );
    }
    warnings
}
