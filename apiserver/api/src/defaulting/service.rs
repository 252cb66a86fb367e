//! Service, Endpoints, EndpointSlice.

use serde_json::{Value, json};

use super::{Object, each, fill, is, is_empty, made, with_spec};

/// Seconds for which a client sticks to a backend where nothing else is said.
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
        let (node_port, balancer) = (is(spec, "type", "NodePort"), is(spec, "type", "LoadBalancer"));
        if node_port || balancer || (is(spec, "type", "ClusterIP") && !is_empty(spec, "externalIPs")) {
            fill(spec, "externalTrafficPolicy", "Cluster");
        }
        if node_port || balancer || is(spec, "type", "ClusterIP") {
            fill(spec, "internalTrafficPolicy", "Cluster");
        }
        if balancer {
            fill(spec, "allocateLoadBalancerNodePorts", true);
        }
    });
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

/// Fields that belong to another type of Service go when the type changes. Arguments: new, old.
pub fn prepare_update_service(new: &mut Value, old: &Value) {
    let before = old.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default().to_owned();
    with_spec(new, |spec| {
        let external = |ty: &str| ty == "NodePort" || ty == "LoadBalancer";
        let now = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        if before == now {
            return;
        }
        let same = |spec: &Object, key: &str| {
            spec.get(key).is_some() && spec.get(key) == old.get("spec").and_then(|s| s.get(key))
        };
        if external(&before) && !external(&now) {
            each(spec, "ports", |port| {
                port.remove("nodePort");
            });
            if is_empty(spec, "externalIPs") && same(spec, "externalTrafficPolicy") {
                spec.remove("externalTrafficPolicy");
            }
        }
        if before == "LoadBalancer" {
            for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort"] {
                if same(spec, key) {
                    spec.remove(key);
                }
            }
        }
        if now == "ExternalName" {
            let allocated = [
                "clusterIP",
                "clusterIPs",
                "ipFamilies",
                "ipFamilyPolicy",
                "internalTrafficPolicy",
                "sessionAffinityConfig",
            ];
            for key in allocated {
                if same(spec, key) {
                    spec.remove(key);
                }
            }
        } else if before == "ExternalName" && same(spec, "externalName") {
            spec.remove("externalName");
        }
    });
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
            fill(port, "protocol", "TCP");
            if !port.contains_key("name") {
                port.insert("name".into(), "".into());
            }
        });
    }
}
