//! Services and EndpointSlices in the numbers that a benchmark needs.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

use crate::peers;

/// Returns a service, optionally with a fixed cluster address.
pub fn service(i: usize, with_address: bool) -> Result<v1::Service> {
    let mut spec = json!({
        "type": "ClusterIP",
        "ports": [{ "port": 80, "targetPort": 8080, "protocol": "TCP" }],
    });
    if with_address {
        let address = Ipv4Addr::from(u32::from(peers::FIRST_VIP) + i as u32);
        spec["clusterIP"] = json!(address);
        spec["clusterIPs"] = json!([address]);
    }
    let metadata = json!({ "name": format!("service-{i}"), "namespace": "default" });
    let object = json!({ "metadata": metadata, "spec": spec });
    serde_json::from_value(object).context("not a Service")
}

/// Returns the EndpointSlice of [`service`].
pub fn slice(i: usize, endpoints: usize) -> Result<EndpointSlice> {
    let name = format!("service-{i}");
    let endpoint = |j: usize| {
        let address = Ipv4Addr::from(0x0a80_0001 + (i * endpoints + j) as u32);
        json!({
            "addresses": [address],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": format!("node-{}", i % 100),
        })
    };
    let object = json!({
        "metadata": {
            "name": format!("{name}-slice"),
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4",
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
        "ports": [{ "port": 8080, "protocol": "TCP" }],
    });
    serde_json::from_value(object).context("not an EndpointSlice")
}
