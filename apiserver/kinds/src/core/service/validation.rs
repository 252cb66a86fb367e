//! Validation of Services.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, is_new, items, metadata, names, same, text};
use serde_json::{Value, json};

use crate::core::pod;
use crate::core::service::addresses;
use crate::shared::ip;

/// One day.
const AFFINITY_LIMIT: i64 = 86_400;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

const ONLY_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";

/// Both spellings of the annotation that spreads traffic over zones.
pub(crate) const HINTS: &str = "service.kubernetes.io/topology-aware-hints";

pub(crate) const MODE: &str = "service.kubernetes.io/topology-mode";

/// Errors of a Service.
pub(crate) fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::of_builtin(object, names::dns_label));
    if let (Some(mode), Some(hints)) = (meta::annotation(object, MODE), meta::annotation(object, HINTS))
        && mode != hints
    {
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        errors.invalid(format!("metadata.annotations[{MODE}]"), &json!(mode), &detail);
    }
    let spec = &object["spec"];
    let ty = text(spec, "type");
    if items(spec, "ports").is_empty() && !addresses::is_headless(spec) && ty != "ExternalName" {
        errors.required("spec.ports", "");
    }
    by_type(spec, ty, &mut errors);
    ports(spec, &mut errors);
    metadata::labels(spec.get("selector"), "spec.selector", &mut errors);
    affinity(spec, &mut errors);
    let strict = is_new(object);
    addresses::related(spec, strict, &mut errors);
    for (index, address) in items(spec, "externalIPs").iter().filter_map(Value::as_str).enumerate() {
        let path = format!("spec.externalIPs[{index}]");
        if let Some(parsed) = ip::address(address, strict, &path, &mut errors) {
            ip::not_special(parsed, address, &path, &mut errors);
        }
    }
    errors.one_of("spec.type", spec.get("type"), &TYPES);
    duplicate_ports(spec, ty, &mut errors);
    balancer(object, spec, ty, &mut errors);
    traffic(spec, ty, &mut errors);
    errors.list()
}

fn by_type(spec: &Value, ty: &str, errors: &mut Errors) {
    match ty {
        "LoadBalancer" | "NodePort" if addresses::is_headless(spec) => {
            let detail = format!("may not be set to 'None' for {ty} services");
            errors.invalid("spec.clusterIPs[0]", &json!("None"), &detail);
        }
        "ExternalName" => {
            let refused = "may not be set for ExternalName services";
            if !addresses::cluster_ips(spec).is_empty() {
                errors.forbidden("spec.clusterIPs", refused);
            }
            if !items(spec, "ipFamilies").is_empty() {
                errors.forbidden("spec.ipFamilies", refused);
            }
            if given(spec, "ipFamilyPolicy").is_some() {
                errors.forbidden("spec.ipFamilyPolicy", refused);
            }
            let name = text(spec, "externalName");
            let name = name.strip_suffix('.').unwrap_or(name);
            errors.name("spec.externalName", name, names::dns_subdomain);
        }
        _ => {}
    }
}

fn ports(spec: &Value, errors: &mut Errors) {
    let list = items(spec, "ports");
    let mut seen = BTreeSet::new();
    for (index, port) in list.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() {
            if list.len() > 1 {
                errors.required(format!("{path}.name"), "");
            }
        } else {
            errors.faults(&format!("{path}.name"), name, names::dns_label(name));
            if !seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
        }
        let number = port["port"].as_i64().unwrap_or(0);
        pod::handlers::port_reference(&json!(number), &format!("{path}.port"), errors);
        errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        pod::handlers::port_reference(&port["targetPort"], &format!("{path}.targetPort"), errors);
        if let Some(protocol) = given(port, "appProtocol").and_then(Value::as_str) {
            errors.faults(&format!("{path}.appProtocol"), protocol, names::qualified_name(protocol));
        }
    }
}

fn duplicate_ports(spec: &Value, ty: &str, errors: &mut Errors) {
    let list = items(spec, "ports");
    let node_port = |port: &Value| port["nodePort"].as_i64().filter(|n| *n != 0);
    for (index, port) in list.iter().enumerate() {
        if ty == "ClusterIP" && node_port(port).is_some() {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.forbidden(format!("spec.ports[{index}].nodePort"), detail);
        }
    }
    let mut seen = BTreeSet::new();
    for (index, port) in list.iter().enumerate() {
        if let Some(number) = node_port(port)
            && !seen.insert((text(port, "protocol"), number))
        {
            errors.duplicate(format!("spec.ports[{index}].nodePort"), &json!(number));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, port) in list.iter().enumerate() {
        let (protocol, number) = (text(port, "protocol"), port["port"].as_i64().unwrap_or(0));
        if !seen.insert((protocol, number)) {
            errors.duplicate(format!("spec.ports[{index}]"), &json!({"port": number, "protocol": protocol}));
        }
    }
}

fn affinity(spec: &Value, errors: &mut Errors) {
    errors.one_of("spec.sessionAffinity", spec.get("sessionAffinity"), &["ClientIP", "None"]);
    let config = given(spec, "sessionAffinityConfig");
    let path = "spec.sessionAffinityConfig";
    match (text(spec, "sessionAffinity"), config) {
        ("ClientIP", config) => {
            let detail = "when session affinity type is ClientIP";
            let Some(config) = config else { return errors.required(path, detail) };
            let Some(client) = given(config, "clientIP") else {
                return errors.required(format!("{path}.clientIP"), detail);
            };
            let path = format!("{path}.clientIP.timeoutSeconds");
            match given(client, "timeoutSeconds") {
                None => errors.required(path, detail),
                Some(seconds) if seconds.as_i64().is_some_and(|s| (1..=AFFINITY_LIMIT).contains(&s)) => {}
                Some(seconds) => {
                    let detail = format!("must be greater than 0 and less than {AFFINITY_LIMIT}");
                    errors.invalid(path, seconds, &detail);
                }
            }
        }
        ("None", Some(_)) => errors.forbidden(path, "must not be set when session affinity is None"),
        _ => {}
    }
}

fn balancer(object: &Value, spec: &Value, ty: &str, errors: &mut Errors) {
    let balances = ty == "LoadBalancer";
    let ranges = items(spec, "loadBalancerSourceRanges");
    let strict = is_new(object);
    if !ranges.is_empty() {
        // The capital letter is Kubernetes' own.
        let path = "spec.LoadBalancerSourceRanges";
        if !balances {
            errors.forbidden(path, ONLY_BALANCERS);
        }
        for (index, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            ip::range(range.trim(), strict, &format!("{path}[{index}]"), errors);
        }
    } else if let Some(ranges) = meta::annotation(object, SOURCE_RANGES) {
        let path = format!("metadata.annotations[{SOURCE_RANGES}]");
        if !balances {
            errors.forbidden(path.as_str(), ONLY_BALANCERS);
        }
        for range in ranges.split(',').map(str::trim).filter(|_| !ranges.trim().is_empty()) {
            ip::range(range, strict, &path, errors);
        }
    }
    if given(spec, "allocateLoadBalancerNodePorts").is_some() && !balances {
        errors.forbidden("spec.allocateLoadBalancerNodePorts", ONLY_BALANCERS);
    }
    balancer_class(spec, errors);
}

fn balancer_class(spec: &Value, errors: &mut Errors) {
    let Some(class) = given(spec, "loadBalancerClass").and_then(Value::as_str) else { return };
    if text(spec, "type") == "LoadBalancer" {
        errors.faults("spec.loadBalancerClass", class, names::qualified_name(class));
    } else {
        errors.forbidden("spec.loadBalancerClass", ONLY_BALANCERS);
    }
}

/// Errors of the addresses of a new Service and of what belongs to them, which are validated before any is allocated.
pub fn addresses_of_new(service: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    addresses::related(&service["spec"], true, &mut errors);
    errors.list()
}

/// Returns `true` if load balancers check each node for an endpoint.
fn needs_health_check(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

fn traffic(spec: &Value, ty: &str, errors: &mut Errors) {
    let external = matches!(ty, "NodePort" | "LoadBalancer")
        || (ty == "ClusterIP" && !items(spec, "externalIPs").is_empty());
    let policy = text(spec, "externalTrafficPolicy");
    let path = "spec.externalTrafficPolicy";
    if external {
        errors.one_of(path, spec.get("externalTrafficPolicy"), &["Cluster", "Local"]);
    } else if !policy.is_empty() {
        errors.invalid(path, &json!(policy), "may only be set for externally-accessible services");
    }
    let port = spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    let path = "spec.healthCheckNodePort";
    if !needs_health_check(spec) {
        if port != 0 {
            let detail =
                "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(path, &json!(port), detail);
        }
    } else if port != 0 {
        pod::handlers::port_reference(&json!(port), path, errors);
    }
    let internal = given(spec, "internalTrafficPolicy");
    let supported = ["Cluster", "Local"];
    if matches!(ty, "ClusterIP" | "NodePort" | "LoadBalancer") || internal.is_some() {
        errors.one_of_given("spec.internalTrafficPolicy", internal, &supported);
    }
    errors.one_of_if_given(
        "spec.trafficDistribution",
        spec.get("trafficDistribution"),
        &["PreferClose", "PreferSameNode", "PreferSameZone"],
    );
}

/// A Service keeps its addresses, families and class of balancer while it has them. Arguments: new, old.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    addresses::update(spec, before, &mut errors);
    let balance = |spec: &Value| text(spec, "type") == "LoadBalancer";
    let (now, was) = (given(spec, "loadBalancerClass"), given(before, "loadBalancerClass"));
    if balance(spec) && balance(before) && now != was {
        errors.invalid("spec.loadBalancerClass", now.unwrap_or(&Value::Null), "may not change once set");
    }
    // The rules of a change validate it, and so do those of any Service.
    balancer_class(spec, &mut errors);
    if needs_health_check(spec)
        && needs_health_check(before)
        && !same(spec.get("healthCheckNodePort"), before.get("healthCheckNodePort"))
    {
        errors.forbidden("spec.healthCheckNodePort", IMMUTABLE);
    }
    errors.list()
}

/// Errors of a write of a Service's status. Arguments: new, old.
pub(crate) fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let path = "status.loadBalancer.ingress";
    let ingress = new["status"].get("loadBalancer").map_or(&[][..], |b| items(b, "ingress"));
    if text(&new["spec"], "type") != "LoadBalancer" && !ingress.is_empty() {
        errors.forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'");
        return errors.list();
    }
    balancer_status(ingress, path, true, &mut errors);
    errors.list()
}

/// Addresses of a balancer, of a Service (with a mode) or an Ingress.
pub(crate) fn balancer_status(ingress: &[Value], path: &str, modes: bool, errors: &mut Errors) {
    for (index, entry) in ingress.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (address, mode, host) = (text(entry, "ip"), given(entry, "ipMode"), text(entry, "hostname"));
        if !address.is_empty() {
            ip::address(address, false, &format!("{path}.ip"), errors);
        }
        let at = format!("{path}.ipMode");
        match mode {
            None if modes && !address.is_empty() => errors.required(at, "must be specified when `ip` is set"),
            None => {}
            Some(_) if address.is_empty() => {
                errors.forbidden(at, "may not be specified when `ip` is not set");
            }
            Some(mode) if mode != "VIP" && mode != "Proxy" => {
                errors.not_supported(at, mode, &["Proxy", "VIP"]);
            }
            Some(_) => {}
        }
        if !host.is_empty() {
            let path = format!("{path}.hostname");
            errors.faults(&path, host, names::dns_subdomain(host));
            if ip::parse(host).is_some() {
                errors.invalid(path, &json!(host), "must be a DNS name, not an IP address");
            }
        }
    }
}
