//! The server behind a Service for connections of the API server's own, such as those to webhooks: pure functions on
//! objects.

use std::net::IpAddr;

use apiserver_schema::meta;
use serde_json::Value;

use super::target::{Peer, Transport};

/// The label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Returns the name of the port of a Service with this number, as its EndpointSlices have it; it may be empty. `None` if
/// there is no such port.
pub fn port_of(service: &Value, number: u16) -> Option<&str> {
    let port = meta::list(service, "/spec/ports").iter().find(|port| port["port"] == number)?;
    Some(meta::text(port, "/name"))
}

/// Chooses a server of a Service among its EndpointSlices, by the port of that name: one that is ready, or else one that
/// still serves while it ends. `seed` decides which. `None` if there is none with an address in the Service's first
/// family.
pub fn choose(service: &Value, slices: &[Value], port_name: &str, seed: u64) -> Option<Peer> {
    let family = meta::text(service, "/spec/ipFamilies/0");
    let of_family = |slice: &&Value| family.is_empty() || slice["addressType"] == family;
    let servers: Vec<Server> =
        slices.iter().filter(of_family).flat_map(|slice| servers(slice, port_name)).collect();
    let any = |wanted: &dyn Fn(&Server) -> bool| {
        let found: Vec<&Server> = servers.iter().filter(|server| wanted(server)).collect();
        let place = usize::try_from(seed % found.len().max(1) as u64).unwrap_or_default();
        found.get(place).map(|server| server.peer.clone())
    };
    any(&|server| server.ready).or_else(|| any(&|server| server.serving))
}

struct Server {
    peer: Peer,
    ready: bool,
    serving: bool,
}

fn servers<'a>(slice: &'a Value, port_name: &str) -> impl Iterator<Item = Server> + use<'a> {
    let port = meta::list(slice, "/ports").iter().find(|port| meta::text(port, "/name") == port_name);
    let port = port.and_then(|port| port["port"].as_u64()).and_then(|port| u16::try_from(port).ok());
    let servers = meta::list(slice, "/endpoints").iter();
    servers.filter_map(move |endpoint| {
        // The first address stands for all of them. Host names are for others to resolve.
        let ip: IpAddr = meta::text(endpoint, "/addresses/0").parse().ok()?;
        let node = meta::text(endpoint, "/nodeName").to_owned();
        let peer = Peer { node, host: ip.to_string(), port: port?, transport: Transport::Http };
        let condition = |name: &str| endpoint["conditions"][name].as_bool();
        let ready = condition("ready").unwrap_or(true);
        Some(Server { peer, ready, serving: condition("serving").unwrap_or(ready) })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Value {
        json!({"spec": {"ipFamilies": ["IPv4"], "ports": [{"port": 443, "name": "https"}, {"port": 80}]}})
    }

    fn slice(kind: &str, port: &Value, endpoints: Value) -> Value {
        json!({"addressType": kind, "ports": [port], "endpoints": endpoints})
    }

    fn chosen(slices: &[Value], seed: u64) -> Option<String> {
        let peer = choose(&service(), slices, "https", seed)?;
        assert_eq!(peer.transport, Transport::Http);
        Some(format!("{} on {}", peer.authority(), peer.node))
    }

    #[test]
    fn port_of_a_service_is_found_by_its_number() {
        assert_eq!(port_of(&service(), 443), Some("https"));
        assert_eq!(port_of(&service(), 80), Some(""));
        assert_eq!(port_of(&service(), 8443), None);
    }

    #[test]
    fn ready_endpoint_is_chosen_before_one_that_ends_and_others_never() {
        let port = json!({"name": "https", "port": 8443});
        let starting = json!({"addresses": ["10.244.1.1"], "conditions": {"ready": false, "serving": false}});
        let ending = json!({"addresses": ["10.244.1.2"], "nodeName": "b",
            "conditions": {"ready": false, "serving": true, "terminating": true}});
        let ready = json!({"addresses": ["10.244.1.3"], "nodeName": "c", "conditions": {"ready": true}});
        let unsaid = json!({"addresses": ["10.244.1.4"]});
        let of = |endpoints: Value| [slice("IPv4", &port, endpoints)];
        for seed in 0..4 {
            assert_eq!(chosen(&of(json!([starting])), seed), None);
            let found = chosen(&of(json!([starting, ending])), seed);
            assert_eq!(found.as_deref(), Some("10.244.1.2:8443 on b"));
            let found = chosen(&of(json!([starting, ending, ready])), seed);
            assert_eq!(found.as_deref(), Some("10.244.1.3:8443 on c"));
        }
        let both = of(json!([ready, unsaid]));
        assert_eq!(chosen(&both, 0).as_deref(), Some("10.244.1.3:8443 on c"));
        assert_eq!(
            chosen(&both, 1).as_deref(),
            Some("10.244.1.4:8443 on "),
            "without conditions it is ready"
        );
    }

    #[test]
    fn slice_of_another_port_family_or_with_names_is_not_used() {
        let endpoints = |address: &str| json!([{"addresses": [address], "nodeName": "n"}]);
        let (https, other) =
            (json!({"name": "https", "port": 8443}), json!({"name": "metrics", "port": 8080}));
        for slices in [
            vec![],
            vec![slice("IPv4", &other, endpoints("10.244.1.1"))],
            vec![slice("IPv4", &json!({"name": "https"}), endpoints("10.244.1.1"))],
            vec![slice("IPv6", &https, endpoints("fd00::1"))],
            vec![slice("FQDN", &https, endpoints("hooks.example"))],
            vec![json!({"addressType": "IPv4", "ports": null, "endpoints": null})],
        ] {
            assert_eq!(chosen(&slices, 7), None, "{slices:?}");
        }
        let mixed =
            [slice("IPv6", &https, endpoints("fd00::1")), slice("IPv4", &https, endpoints("10.244.1.1"))];
        assert_eq!(chosen(&mixed, 1).as_deref(), Some("10.244.1.1:8443 on n"));
    }
}
