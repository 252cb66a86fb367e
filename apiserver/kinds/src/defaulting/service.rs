//! Service, Endpoints, EndpointSlice.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use apiserver_schema::validation::names::dns_subdomain;

use super::{Object, each, fill, fill_absent, is, is_empty, made, with_spec};

/// The default number of seconds for which a client sticks to a backend.
const AFFINITY_SECONDS: i64 = 10_800;

/// Defaults of a Service, except addresses, IP families and node ports, which are allocated.
pub fn service(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "sessionAffinity", "None");
        fill(spec, "type", "ClusterIP");
        if is(spec, "sessionAffinity", "None") {
            spec.remove("sessionAffinityConfig");
        } else if is(spec, "sessionAffinity", "ClientIP")
            && let Some(client) = made(spec, "sessionAffinityConfig").and_then(|c| made(c, "clientIP"))
        {
            fill(client, "timeoutSeconds", AFFINITY_SECONDS);
        }
        each(spec, "ports", port);
        if is_external(spec) {
            fill(spec, "externalTrafficPolicy", "Cluster");
        }
        if !is(spec, "type", "ExternalName") {
            fill_absent(spec, "internalTrafficPolicy", "Cluster");
        }
        if is(spec, "type", "LoadBalancer") {
            fill(spec, "allocateLoadBalancerNodePorts", true);
        }
    });
    if value.pointer("/spec/type") == Some(&json!("LoadBalancer"))
        && let Some(Value::Object(balancer)) = value.pointer_mut("/status/loadBalancer")
    {
        each(balancer, "ingress", |ingress| {
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
pub fn prepare_create_service(value: &mut Value) {
    if let Value::Object(map) = value {
        map.insert("status".into(), json!({"loadBalancer": {}}));
    }
}

/// Returns true if traffic from outside reaches the Service, so that its policy matters.
fn is_external(spec: &Object) -> bool {
    is(spec, "type", "NodePort")
        || is(spec, "type", "LoadBalancer")
        || (is(spec, "type", "ClusterIP") && !is_empty(spec, "externalIPs"))
}

/// Returns true if the Service is allocated node ports.
fn has_node_ports(spec: &Object) -> bool {
    is(spec, "type", "NodePort") || is(spec, "type", "LoadBalancer")
}

/// Returns true if load balancers check each node for an endpoint, on a port allocated to the Service.
fn has_health_check(spec: &Object) -> bool {
    is(spec, "type", "LoadBalancer") && is(spec, "externalTrafficPolicy", "Local")
}

/// The numbers on every node that a Service names.
fn node_ports(spec: &Object) -> BTreeSet<i64> {
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| port["nodePort"].as_i64()).filter(|number| *number != 0).collect()
}

/// Fields that no longer mean anything go when the type or the policy changes, unless the client changed
/// them too. Arguments: new, old.
pub fn prepare_update_service(new: &mut Value, old: &Value) {
    let Some(Value::Object(before)) = old.get("spec") else { return };
    with_spec(new, |spec| {
        let drop_unchanged = |spec: &mut Object, keys: &[&str]| {
            for key in keys {
                if spec.contains_key(*key) && spec.get(*key) == before.get(*key) {
                    spec.remove(*key);
                }
            }
        };
        let was = |ty: &str| is(before, "type", ty);
        if has_node_ports(before)
            && !has_node_ports(spec)
            && node_ports(before).is_superset(&node_ports(spec))
        {
            each(spec, "ports", |port| {
                port.remove("nodePort");
            });
        }
        if is_external(before) && !is_external(spec) {
            drop_unchanged(spec, &["externalTrafficPolicy"]);
        }
        if was("LoadBalancer") && !is(spec, "type", "LoadBalancer") {
            drop_unchanged(spec, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
        }
        if has_health_check(before) && !has_health_check(spec) {
            drop_unchanged(spec, &["healthCheckNodePort"]);
        }
        // Other fields stay: they were not allocated to the Service.
        if is(spec, "type", "ExternalName") && !was("ExternalName") {
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

/// Defaults of an Endpoints object.
pub fn endpoints(value: &mut Value) {
    if let Value::Object(map) = value {
        each(map, "subsets", |subset| each(subset, "ports", |port| fill(port, "protocol", "TCP")));
    }
}

/// Defaults of an EndpointSlice.
pub fn endpoint_slice(value: &mut Value) {
    if let Value::Object(map) = value {
        each(map, "ports", |port| {
            fill_absent(port, "protocol", "TCP");
            if !port.contains_key("name") {
                port.insert("name".into(), "".into());
            }
        });
    }
}

/// Endpoints that change lose their topology, of which the name of a node that the old ones had moves to its own
/// field.
pub fn prepare_update_slice(value: &mut Value, old: &Value) {
    const HOSTNAME: &str = "kubernetes.io/hostname";
    fn node(endpoint: &Value) -> Option<&str> {
        endpoint["deprecatedTopology"][HOSTNAME].as_str()
    }
    if value.get("endpoints") == old.get("endpoints") {
        return;
    }
    let before = old["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    for endpoint in value.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        let known =
            |name: &&str| before.iter().any(|old| node(old) == Some(name)) && dns_subdomain(name).is_empty();
        let kept = node(endpoint).filter(known).map(str::to_owned);
        let Value::Object(map) = endpoint else { continue };
        map.remove("deprecatedTopology");
        if let Some(name) = kept {
            fill_absent(map, "nodeName", name);
        }
    }
}

/// Endpoints of a new EndpointSlice have no topology but their zone and node: what went before is for
/// slices of before.
pub fn prepare_create_slice(value: &mut Value) {
    if let Value::Object(map) = value {
        each(map, "endpoints", |endpoint| {
            endpoint.remove("deprecatedTopology");
        });
    }
}
