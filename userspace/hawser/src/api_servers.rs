//! The API servers of a cluster, as the EndpointSlice of the Service `kubernetes` names them: each is there while it
//! renews its lease in the store.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};

pub const NAMESPACE: &str = "default";
pub const NAME: &str = "kubernetes";

/// Returns the URLs of the servers that live.
pub async fn living(client: &Client) -> kube::Result<Vec<String>> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    Ok(api.get_opt(NAME).await?.as_ref().map(urls).unwrap_or_default())
}

/// Returns the URLs of the servers of an EndpointSlice, in its order.
pub fn urls(slice: &EndpointSlice) -> Vec<String> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port = ports.iter().find_map(|port| u16::try_from(port.port?).ok());
    let Some(port) = port else { return Vec::new() };
    let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
    let parsed = addresses.filter_map(|text| text.parse::<IpAddr>().ok());
    parsed.map(|ip| format!("https://{}", SocketAddr::new(ip, port))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_of_a_slice_are_urls_of_its_addresses_and_port() {
        let slice = |body: serde_json::Value| serde_json::from_value::<EndpointSlice>(body).unwrap();
        let of = |kind: &str, addresses: &[&str]| {
            let endpoints: Vec<_> = addresses.iter().map(|ip| json!({"addresses": [ip]})).collect();
            slice(
                json!({"metadata": {}, "addressType": kind, "endpoints": endpoints, "ports": [{"port": 6443}]}),
            )
        };
        let two = of("IPv4", &["192.0.2.1", "192.0.2.2"]);
        assert_eq!(urls(&two), ["https://192.0.2.1:6443", "https://192.0.2.2:6443"]);
        assert_eq!(urls(&of("IPv6", &["2001:db8::1"])), ["https://[2001:db8::1]:6443"]);
        assert!(urls(&slice(json!({"metadata": {}, "addressType": "IPv4", "endpoints": []}))).is_empty());
    }
}
