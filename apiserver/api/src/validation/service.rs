//! Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Errors, container, items, metadata, names, text};
use crate::error::FieldError;

/// One day.
const AFFINITY_LIMIT: i64 = 86_400;
const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// Errors of a Service.
pub fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors(metadata::validate(object, names::dns_1035_label));
    let spec = &object["spec"];
    errors.one_of("spec.type", spec.get("type"), &TYPES);
    let ty = text(spec, "type");
    let cluster_ip = text(spec, "clusterIP");
    let headless = cluster_ip == "None";
    if items(spec, "ports").is_empty() && !headless && ty != "ExternalName" {
        errors.required("spec.ports", "");
    }
    addresses(spec, &mut errors);
    ports(spec, ty, &mut errors);
    affinity(spec, ty, &mut errors);
    traffic(spec, ty, &mut errors);
    let mut found = Vec::new();
    metadata::labels(spec.get("selector"), "spec.selector", &mut found);
    errors.extend(found);
    match ty {
        "ExternalName" => {
            let name = text(spec, "externalName").trim_end_matches('.');
            if name.is_empty() {
                errors.required("spec.externalName", "");
            } else {
                errors.faults("spec.externalName", name, names::dns_subdomain(name));
            }
            if !cluster_ip.is_empty() {
                errors.forbidden("spec.clusterIPs[0]", "may not be set when `type` is 'ExternalName'");
            }
        }
        "LoadBalancer" | "NodePort" if headless => {
            errors.invalid(
                "spec.clusterIPs[0]",
                &json!("None"),
                &format!("may not be set to 'None' for {ty} services"),
            );
        }
        _ => {}
    }
    errors.list()
}

fn addresses(spec: &Value, errors: &mut Errors) {
    let first = text(spec, "clusterIP");
    let all = items(spec, "clusterIPs");
    if !first.is_empty() && first != "None" && first.parse::<IpAddr>().is_err() {
        errors.invalid("spec.clusterIP", &json!(first), IP);
    }
    if all.len() > 2 {
        let detail = "may only hold up to 2 values";
        errors.invalid("spec.clusterIPs", &json!(all), detail);
    }
    if !all.is_empty() && all[0].as_str() != Some(first) {
        errors.invalid("spec.clusterIPs", &json!(all), "first value must match `clusterIP`");
    }
    for (index, ip) in all.iter().enumerate() {
        let text = ip.as_str().unwrap_or_default();
        if text == "None" {
            if index > 0 {
                errors.invalid(
                    format!("spec.clusterIPs[{index}]"),
                    ip,
                    "must be empty when `clusterIPs[0]` is 'None'",
                );
            }
        } else if text.parse::<IpAddr>().is_err() {
            errors.invalid(format!("spec.clusterIPs[{index}]"), ip, IP);
        }
    }
    for (index, ip) in items(spec, "externalIPs").iter().enumerate() {
        let path = format!("spec.externalIPs[{index}]");
        match ip.as_str().unwrap_or_default().parse::<IpAddr>() {
            Err(_) => errors.invalid(path, ip, IP),
            Ok(parsed) if parsed.is_loopback() => {
                errors.invalid(path, ip, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
            }
            Ok(parsed) if parsed.is_unspecified() => {
                errors.invalid(path, ip, "may not be unspecified (0.0.0.0 or ::)");
            }
            Ok(_) => {}
        }
    }
    for (index, range) in items(spec, "loadBalancerSourceRanges").iter().enumerate() {
        let text = range.as_str().unwrap_or_default().trim();
        if !text.contains('/') || text.parse::<ipnetwork::IpNetwork>().is_err() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.invalid(format!("spec.loadBalancerSourceRanges[{index}]"), range, detail);
        }
    }
    for (index, family) in items(spec, "ipFamilies").iter().enumerate() {
        errors.one_of(&format!("spec.ipFamilies[{index}]"), Some(family), &["IPv4", "IPv6"]);
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    errors.one_of_if_set("spec.ipFamilyPolicy", spec.get("ipFamilyPolicy"), &policies);
}

fn ports(spec: &Value, ty: &str, errors: &mut Errors) {
    let list = items(spec, "ports");
    let (mut names_seen, mut seen, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, port) in list.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() {
            if list.len() > 1 {
                errors.required(format!("{path}.name"), "");
            }
        } else {
            errors.faults(&format!("{path}.name"), name, names::dns_label(name));
            if !names_seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
        }
        let number = port["port"].as_i64().unwrap_or(0);
        for fault in names::port_number(number) {
            errors.invalid(format!("{path}.port"), &json!(number), &fault);
        }
        errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        if let Some(target) = port.get("targetPort") {
            container::port_reference(target, &format!("{path}.targetPort"), errors);
        }
        let protocol = text(port, "protocol");
        if !seen.insert((protocol, number)) {
            errors.duplicate(path.as_str(), &json!({"port": number, "protocol": protocol}));
        }
        let node_port = port["nodePort"].as_i64().unwrap_or(0);
        if node_port != 0 {
            let path = format!("{path}.nodePort");
            if ty == "ClusterIP" || ty == "ExternalName" {
                errors.forbidden(path, &format!("may not be used when `type` is '{ty}'"));
            } else {
                for fault in names::port_number(node_port) {
                    errors.invalid(path.as_str(), &json!(node_port), &fault);
                }
                if !node_ports.insert((protocol, node_port)) {
                    errors.duplicate(path, &json!(node_port));
                }
            }
        }
    }
}

fn affinity(spec: &Value, ty: &str, errors: &mut Errors) {
    errors.one_of("spec.sessionAffinity", spec.get("sessionAffinity"), &["ClientIP", "None"]);
    let config = spec.get("sessionAffinityConfig").filter(|c| !c.is_null());
    if text(spec, "sessionAffinity") == "ClientIP" {
        if ty == "ExternalName" {
            errors.invalid(
                "spec.sessionAffinity",
                &json!("ClientIP"),
                "may only be set to 'None' for ExternalName services",
            );
        }
        let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        match config.and_then(|c| c.pointer("/clientIP/timeoutSeconds")) {
            None => errors.required(path, ""),
            Some(seconds) if seconds.as_i64().is_some_and(|s| (1..=AFFINITY_LIMIT).contains(&s)) => {}
            Some(seconds) => {
                let detail = format!("must be greater than 0 and less than {AFFINITY_LIMIT}");
                errors.invalid(path, seconds, &detail);
            }
        }
    } else if config.is_some() {
        errors.forbidden("spec.sessionAffinityConfig", "must not be set when session affinity is None");
    }
}

fn traffic(spec: &Value, ty: &str, errors: &mut Errors) {
    let external = matches!(ty, "NodePort" | "LoadBalancer")
        || (ty == "ClusterIP" && !items(spec, "externalIPs").is_empty());
    let policy = spec.get("externalTrafficPolicy");
    if external {
        errors.one_of("spec.externalTrafficPolicy", policy, &["Cluster", "Local"]);
    } else if policy.is_some_and(|p| p.as_str() != Some("")) {
        let shown = policy.cloned().unwrap_or_default();
        errors.invalid(
            "spec.externalTrafficPolicy",
            &shown,
            "may only be set for externally-accessible services",
        );
    }
    if ty != "ExternalName" {
        errors.one_of("spec.internalTrafficPolicy", spec.get("internalTrafficPolicy"), &["Cluster", "Local"]);
    }
    errors.one_of_if_set(
        "spec.trafficDistribution",
        spec.get("trafficDistribution"),
        &["PreferClose", "PreferSameNode", "PreferSameZone"],
    );
    if ty != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if spec.get(field).is_some_and(|v| !v.is_null()) {
                errors.forbidden(format!("spec.{field}"), "may only be used when `type` is 'LoadBalancer'");
            }
        }
        if !items(spec, "loadBalancerSourceRanges").is_empty() {
            errors
                .forbidden("spec.LoadBalancerSourceRanges", "may only be used when `type` is 'LoadBalancer'");
        }
    }
}

/// A Service keeps its address while it has one. Arguments: new, old.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    let (now, was) = (text(spec, "clusterIP"), text(before, "clusterIP"));
    let both_have_one = text(spec, "type") != "ExternalName" && text(before, "type") != "ExternalName";
    if both_have_one && !was.is_empty() && now != was {
        errors.invalid("spec.clusterIPs[0]", &json!(now), "may not change once set");
    }
    let class = "spec.loadBalancerClass";
    let both_balance = text(spec, "type") == "LoadBalancer" && text(before, "type") == "LoadBalancer";
    if both_balance && !super::same(spec.get("loadBalancerClass"), before.get("loadBalancerClass")) {
        errors.invalid(
            class,
            spec.get("loadBalancerClass").unwrap_or(&Value::Null),
            "may not change once set",
        );
    }
    errors.list()
}
