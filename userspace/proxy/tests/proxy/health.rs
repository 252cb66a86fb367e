//! Health check node ports, over real HTTP on loopback addresses.

use std::net::SocketAddr;
use std::time::Duration;

use crate::proxy::support::{Plane, Proxy, object, page, run_tasks};
use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::net::{TcpListener, TcpStream};
use userspace_proxy::kube_proxy::KubeProxyConfiguration;
use userspace_proxy::{Config, Listeners, Own};

/// Starts a proxy whose node ports are served on loopback addresses alone.
fn start() -> Proxy {
    let kube_proxy = KubeProxyConfiguration {
        hostname_override: "here".to_owned(),
        node_port_addresses: vec!["127.0.0.0/8".to_owned(), "::1/128".to_owned()],
        ..KubeProxyConfiguration::default()
    };
    let own = Own { route_of_last_resort: false, ..Own::default() };
    let config = Config::new(&kube_proxy, &own).unwrap();
    let listeners = Listeners { health_checks: true, ..Listeners::default() };
    let proxy = Proxy::start(config, Plane::default(), listeners);
    let loopback = userspace_proxy::links::LinkAddress { address: [127, 0, 0, 1].into(), global: false };
    let link = userspace_proxy::Link {
        name: "lo".to_owned(),
        index: 1,
        up: true,
        loopback: true,
        addresses: vec![loopback],
        ..Default::default()
    };
    proxy.links.send(vec![link]).unwrap();
    proxy
}

/// Returns a port that is free at the moment.
async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn balanced(name: &str, ip: &str, port: u16) -> Service {
    object(&format!(
        "metadata: {{namespace: default, name: {name}, creationTimestamp: '2026-01-01T00:00:00Z'}}\n\
         spec: {{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: {port}, clusterIP: {ip}, \
         clusterIPs: [{ip}], ports: [{{port: 80, nodePort: 30080}}]}}"
    ))
}

/// Returns a slice with endpoints on nodes, by name.
fn slice(service: &str, endpoints: &[(&str, &str)]) -> EndpointSlice {
    let all: Vec<_> =
        endpoints.iter().map(|(ip, node)| format!("{{addresses: [{ip}], nodeName: {node}}}")).collect();
    object(&format!(
        "metadata: {{namespace: default, name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{}]",
        all.join(", ")
    ))
}

/// Waits until the port has a listener, or has none.
async fn wait(port: u16, listens: bool) {
    for _ in 0..500 {
        if TcpStream::connect(at(port)).await.is_ok() == listens {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("port {port}: listening is not {listens} after 5 s");
}

#[tokio::test]
async fn load_balancers_learn_how_many_endpoints_the_node_has() {
    let (mut proxy, port) = (start(), free_port().await);
    proxy.caches.services.apply(balanced("web", "10.0.0.1", port));
    proxy
        .caches
        .slices
        .apply(slice("web", &[("10.1.0.1", "here"), ("10.1.0.2", "here"), ("10.1.0.3", "there")]));
    proxy.sync().await;
    wait(port, true).await;
    let (code, head, body) = page(at(port), "/").await;
    assert_eq!(code, 200, "{body}");
    assert!(
        head.contains("content-type: application/json") && head.contains("x-content-type-options: nosniff")
    );
    assert!(head.contains("x-load-balancing-endpoint-weight: 2"), "{head}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": 2,
        "serviceProxyHealthy": true,
    });
    assert_eq!(body, expected);
    // The last local endpoint goes: the traffic is for another node now.
    proxy.caches.slices.apply(slice("web", &[("10.1.0.3", "there")]));
    run_tasks().await;
    let (code, head, _) = page(at(port), "/any/path").await;
    assert_eq!(code, 503);
    assert!(head.contains("x-load-balancing-endpoint-weight: 0"), "{head}");
    proxy.stop().await;
}

#[tokio::test]
async fn a_node_that_drains_still_answers_for_its_endpoints() {
    let (mut proxy, port) = (start(), free_port().await);
    proxy.caches.services.apply(balanced("web", "10.0.0.1", port));
    proxy.caches.slices.apply(slice("web", &[("10.1.0.1", "here")]));
    proxy.caches.nodes.apply(object(
        "metadata: {name: here}\nspec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}",
    ));
    proxy.sync().await;
    wait(port, true).await;
    // Connections of policy Local cannot move to another node: only `/healthz` reports that this one drains.
    assert_eq!(page(at(port), "/").await.0, 200);
    proxy.stop().await;
}

#[tokio::test]
async fn ports_come_and_go_with_their_services() {
    let (mut proxy, one, two) = (start(), free_port().await, free_port().await);
    proxy.caches.services.apply(balanced("web", "10.0.0.1", one));
    proxy.sync().await;
    wait(one, true).await;
    proxy.caches.services.apply(balanced("web", "10.0.0.1", two));
    wait(two, true).await;
    wait(one, false).await;
    proxy.caches.services.delete(&ObjectKey::new("default", "web"));
    wait(two, false).await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_tried_again_and_keeps_nobody_else_waiting() {
    let mut proxy = start();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, two) = (taken.local_addr().unwrap().port(), free_port().await);
    proxy.caches.services.apply(balanced("a", "10.0.0.1", one));
    proxy.caches.services.apply(balanced("b", "10.0.0.2", two));
    proxy.caches.slices.apply(slice("a", &[("10.1.0.1", "here")]));
    proxy.sync().await;
    wait(two, true).await;
    assert_eq!(page(at(two), "/").await.0, 503);
    drop(taken);
    wait(one, true).await;
    assert_eq!(page(at(one), "/").await.0, 200);
    proxy.stop().await;
}
