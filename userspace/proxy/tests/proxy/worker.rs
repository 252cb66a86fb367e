//! The loop around `compile`: the times of its applies, and the state that it reports.

use std::time::Duration;

use crate::proxy::support::{Plane, Proxy, object, pass, run_tasks, service, slice};
use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use userspace_dataplane::Resolution;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Protocol, Reconciled, Role, Scope};
use userspace_proxy::links::LinkAddress;
use userspace_proxy::masquerade::{Agent, AgentRules, Rules};
use userspace_proxy::{Config, Exemptions, Link, Listeners, LocalServer};

fn config() -> Config {
    Config::for_node("here").unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

/// Returns the destination of a connection from this node.
fn goes(proxy: &Proxy, address: &str) -> String {
    let state = proxy.plane.0.lock().unwrap();
    let address = address.parse().unwrap();
    match state.fake.resolve(address, 80, Protocol::Tcp, Scope::Internal, 0) {
        Resolution::Backend(backend) => backend.address.to_string(),
        other => format!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_before_the_lists_and_everything_at_once_after_them() {
    let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
    proxy.caches.services.apply(service("a", "10.0.0.1"));
    proxy.caches.services.apply(service("b", "10.0.0.2"));
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    run_tasks().await;
    assert_eq!(proxy.calls(), Vec::<String>::new());
    proxy.sync().await;
    assert_eq!(proxy.calls(), ["full"]);
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    assert_eq!(goes(&proxy, "10.0.0.2"), "Refused");
    assert_eq!(goes(&proxy, "10.0.0.3"), "NotAService");
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_applied_by_itself_and_without_any_delay() {
    let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
    proxy.caches.services.apply(service("a", "10.0.0.1"));
    proxy.caches.services.apply(service("b", "10.0.0.2"));
    proxy.sync().await;
    proxy.calls();
    let start = Instant::now();
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    proxy.caches.slices.apply(slice("a", &["10.1.0.2"]));
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.2");
    proxy.caches.slices.delete(&key("a-1"));
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "Refused");
    proxy.caches.services.delete(&key("a"));
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "NotAService");
    assert_eq!(proxy.calls(), ["default/a"; 4]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_address_moves_from_a_deleted_service_to_a_new_one_without_a_gap() {
    for (old, new) in [("a", "b"), ("b", "a")] {
        let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
        proxy.caches.services.apply(service(old, "10.0.0.1"));
        proxy.caches.slices.apply(slice(old, &["10.1.0.1"]));
        proxy.caches.slices.apply(slice(new, &["10.1.0.2"]));
        proxy.sync().await;
        assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
        proxy.plane.0.lock().unwrap().watched = Some("10.0.0.1".parse().unwrap());
        proxy.caches.services.delete(&key(old));
        proxy.caches.services.apply(service(new, "10.0.0.1"));
        run_tasks().await;
        assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.2");
        assert_eq!(proxy.plane.0.lock().unwrap().was_served, [true, true]);
        proxy.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_service_is_retried_without_delaying_others() {
    let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
    proxy.plane.0.lock().unwrap().broken.insert("full".to_owned());
    proxy.caches.services.apply(service("a", "10.0.0.1"));
    proxy.sync().await;
    assert_eq!(proxy.calls(), ["full"]);
    pass(Duration::from_millis(200)).await;
    assert!(proxy.calls().len() >= 2);
    proxy.plane.0.lock().unwrap().broken = [String::from("default/a")].into();
    pass(Duration::from_secs(1)).await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "Refused");
    proxy.calls();
    // One Service fails, its neighbour does not.
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    proxy.caches.services.apply(service("b", "10.0.0.2"));
    run_tasks().await;
    assert_eq!(proxy.calls(), ["default/a", "default/b"]);
    assert_eq!(goes(&proxy, "10.0.0.1"), "Refused");
    proxy.plane.0.lock().unwrap().broken.clear();
    pass(Duration::from_millis(100)).await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    assert_eq!(proxy.calls(), ["default/a"]);
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn everything_is_compared_again_now_and_then() {
    let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
    proxy.sync().await;
    proxy.calls();
    pass(config().full_sync + Duration::from_secs(1)).await;
    assert_eq!(proxy.calls(), ["full"]);
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_nodes_addresses_and_interfaces_reach_the_data_plane() {
    let node = |zone: &str| -> Node {
        object(&format!(
            "metadata: {{name: here, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n\
             status: {{addresses: [{{type: InternalIP, address: 192.0.2.1}}, {{type: Hostname, address: here}}]}}"
        ))
    };
    let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
    let address = LinkAddress { address: "198.51.100.1".parse().unwrap(), global: true };
    let uplink =
        Link { name: "eth0".to_owned(), index: 2, up: true, addresses: vec![address], ..Link::default() };
    let pod = Link { name: "hwp1".to_owned(), index: 3, up: true, ..Link::default() };
    proxy.links.send(vec![uplink.clone(), pod]).unwrap();
    run_tasks().await;
    // Interfaces do not depend on the apiserver.
    let roles = |proxy: &Proxy| -> Vec<(u32, Role)> {
        let state = proxy.plane.0.lock().unwrap();
        state.fake.interfaces().iter().map(|one| (one.index, one.role)).collect()
    };
    assert_eq!(roles(&proxy), [(2, Role::Uplink), (3, Role::Pod)]);
    proxy.caches.nodes.apply(node("x"));
    proxy.sync().await;
    let addresses = |proxy: &Proxy| -> Vec<String> {
        let state = proxy.plane.0.lock().unwrap();
        state.fake.node().addresses.iter().map(ToString::to_string).collect()
    };
    assert_eq!(addresses(&proxy), ["192.0.2.1", "198.51.100.1"]);
    proxy.links.send(vec![uplink]).unwrap();
    run_tasks().await;
    assert_eq!(roles(&proxy), [(2, Role::Uplink)]);
    // Another zone may select other endpoints for every Service.
    proxy.calls();
    proxy.caches.nodes.apply(node("y"));
    run_tasks().await;
    assert_eq!(proxy.calls(), ["full"]);
    proxy.stop().await;
}

async fn page(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let (code, _, body) = crate::proxy::support::page(address, path).await;
    (code, body)
}

#[tokio::test]
async fn the_pages_tell_the_truth() {
    let healthz = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (health_at, metrics_at) = (healthz.local_addr().unwrap(), metrics.local_addr().unwrap());
    let listeners = Listeners { healthz: Some(healthz), metrics: Some(metrics), ..Listeners::default() };
    let mut proxy = Proxy::start(config(), Plane::default(), listeners);
    // There is nothing yet to serve traffic from outside, and a restart would not help.
    assert_eq!(page(health_at, "/healthz").await.0, 503);
    assert_eq!(page(health_at, "/livez").await.0, 200);
    proxy.caches.services.apply(service("a", "10.0.0.1"));
    proxy.caches.nodes.apply(object("metadata: {name: here}"));
    proxy.sync().await;
    let (code, body) = page(health_at, "/healthz").await;
    assert_eq!(code, 200, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["nodeEligible"], &body["programmed"]), (&true.into(), &true.into()));
    // A node that is going away gets no traffic from outside, but the proxy is alive.
    proxy.caches.nodes.apply(object(
        "metadata: {name: here}\nspec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}",
    ));
    let mut changed = slice("a", &["10.1.0.1"]);
    let trigger = ("endpoints.kubernetes.io/last-change-trigger-time", "2026-01-01T00:00:00Z");
    changed.metadata.annotations = Some([(trigger.0.to_owned(), trigger.1.to_owned())].into());
    proxy.caches.slices.apply(changed);
    run_tasks().await;
    assert_eq!(page(health_at, "/healthz").await.0, 503);
    assert_eq!(page(health_at, "/livez").await.0, 200);
    let (code, text) = page(metrics_at, "/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_proxy_rules_service_changes_total 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert_eq!(page(metrics_at, "/proxyMode").await, (200, "ebpf".to_owned()));
    assert_eq!(page(health_at, "/metrics").await.0, 404);
    proxy.stop().await;
}

/// Returns a slice of a Service with an endpoint on this node and one on another, each for its own node.
fn on_both_nodes(service: &str) -> EndpointSlice {
    let endpoint = |ip: &str, node: &str| {
        format!("{{addresses: [{ip}], nodeName: {node}, hints: {{forNodes: [{{name: {node}}}]}}}}")
    };
    object(&format!(
        "metadata: {{namespace: default, name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{}, {}]",
        endpoint("10.1.0.1", "here"),
        endpoint("10.1.0.2", "there")
    ))
}

#[tokio::test(start_paused = true)]
async fn a_service_of_this_process_leads_here_only_while_its_server_serves() {
    let (tell, serves) = watch::channel(false);
    let local_server = Some(LocalServer { service: key("a"), serves });
    let mut proxy =
        Proxy::start(config(), Plane::default(), Listeners { local_server, ..Listeners::default() });
    for name in ["a", "b"] {
        proxy.caches.services.apply(service(name, if name == "a" { "10.0.0.1" } else { "10.0.0.2" }));
        proxy.caches.slices.apply(on_both_nodes(name));
    }
    proxy.sync().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.2", "the server has not begun to serve");
    assert_eq!(goes(&proxy, "10.0.0.2"), "10.1.0.1", "another Service's endpoint counts as before");
    tell.send_replace(true);
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    tell.send_replace(false);
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.2");
    // With no other server, this node's is better than none.
    let alone = "metadata: {namespace: default, name: a-1, labels: {kubernetes.io/service-name: a}}\n\
                 addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.1.0.1], nodeName: here}]";
    proxy.caches.slices.apply(object::<EndpointSlice>(alone));
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    // At the end of the process, its tables lead elsewhere, and stay so.
    proxy.caches.slices.apply(on_both_nodes("a"));
    tell.send_replace(true);
    run_tasks().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    let plane = proxy.plane.clone();
    proxy.stop().await;
    let state = plane.0.lock().unwrap();
    let found = state.fake.resolve("10.0.0.1".parse().unwrap(), 80, Protocol::Tcp, Scope::Internal, 0);
    assert!(matches!(found, Resolution::Backend(backend) if backend.address.to_string() == "10.1.0.2"));
}

/// Returns listeners of pages on loopback, and their addresses.
async fn pages() -> (Listeners, std::net::SocketAddr, std::net::SocketAddr) {
    let healthz = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let places = (healthz.local_addr().unwrap(), metrics.local_addr().unwrap());
    let listeners = Listeners { healthz: Some(healthz), metrics: Some(metrics), ..Listeners::default() };
    (listeners, places.0, places.1)
}

#[tokio::test(start_paused = true)]
async fn without_an_apiserver_the_last_tables_stay() {
    let mut proxy = Proxy::start(config(), Plane::default(), Listeners::default());
    proxy.caches.services.apply(service("a", "10.0.0.1"));
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    proxy.sync().await;
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    let plane = proxy.plane.clone();
    proxy.stop().await;
    // The next process finds the tables, and no apiserver: its lists never arrive.
    let (listeners, health_at, _) = pages().await;
    let proxy = Proxy::start(config(), plane, listeners);
    proxy.calls();
    let uplink = Link { name: "eth0".to_owned(), index: 2, up: true, ..Link::default() };
    proxy.links.send(vec![uplink]).unwrap();
    pass(2 * config().full_sync).await;
    assert_eq!(proxy.calls(), Vec::<String>::new());
    assert_eq!(goes(&proxy, "10.0.0.1"), "10.1.0.1");
    for path in ["/livez", "/healthz"] {
        let (code, body) = page(health_at, path).await;
        assert_eq!(code, 200, "the kept tables serve, but {path}: {body}");
        assert!(body.contains("\"programmed\":false,\"serving\":true"), "{body}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_node_that_was_deleted_gets_no_traffic_from_outside() {
    let (listeners, health_at, _) = pages().await;
    let mut proxy = Proxy::start(config(), Plane::default(), listeners);
    // Until it has been seen, the node is assumed to stay: its kubelet is about to register it.
    proxy.sync().await;
    assert_eq!(page(health_at, "/healthz").await.0, 200);
    proxy.caches.nodes.apply(object("metadata: {name: here}"));
    run_tasks().await;
    assert_eq!(page(health_at, "/healthz").await.0, 200);
    proxy.caches.nodes.delete(&ObjectKey::new("", "here"));
    run_tasks().await;
    let (code, body) = page(health_at, "/healthz").await;
    assert_eq!(code, 503, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["reason"], "the node is about to go, or gone");
    assert_eq!(page(health_at, "/livez").await.0, 200);
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_data_path_that_others_changed_makes_the_proxy_unhealthy_until_it_is_mended() {
    // The kernel's tables are checked; these maps do not exist.
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(
        directory.path().join(format!("v{}/maps", userspace_dataplane::inspect::LAYOUT_VERSION)),
    )
    .unwrap();
    let plane = Plane::default();
    plane.0.lock().unwrap().observer = Some(Inspector::open(directory.path()).unwrap());
    let (listeners, health_at, metrics_at) = pages().await;
    let mut proxy = Proxy::start(config(), plane, listeners);
    // The XDP mode of an uplink is shown as soon as it is attached to, even before the first lists.
    let uplink = Link { name: "eth0".to_owned(), index: 2, up: true, ..Link::default() };
    proxy.links.send(vec![uplink]).unwrap();
    run_tasks().await;
    let (_, text) = page(metrics_at, "/metrics").await;
    let line = "hawser_dataplane_xdp_mode{interface=\"eth0\",mode=\"native\"} 1";
    assert!(text.lines().any(|found| found == line), "{text}");
    proxy.sync().await;
    pass(Duration::from_secs(6)).await;
    assert_eq!(page(health_at, "/livez").await.0, 200);
    proxy.plane.0.lock().unwrap().faults = vec!["link cgroup-connect4 is gone".to_owned()];
    pass(Duration::from_secs(6)).await;
    let (code, body) = page(health_at, "/livez").await;
    assert_eq!(code, 503);
    assert!(body.contains("link cgroup-connect4 is gone"), "{body}");
    proxy.plane.0.lock().unwrap().faults.clear();
    pass(Duration::from_secs(2)).await;
    assert_eq!(page(health_at, "/livez").await.0, 200);
    let (_, text) = page(metrics_at, "/metrics").await;
    let faults = text.lines().find(|line| line.starts_with("hawser_proxy_data_path_faults_total ")).unwrap();
    assert!(!faults.ends_with(" 0"), "{faults}");
    // Actions on sockets whose backend went have kube-proxy's names.
    let line = |line: &str| assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    line("kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 0");
    line("kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"} 0");
    let looks = vec![Duration::from_millis(2), Duration::from_millis(3)];
    proxy.plane.0.lock().unwrap().reconciled =
        Reconciled { destroyed4: 2, destroyed6: 1, removed4: 1, removed6: 0, looks };
    pass(Duration::from_secs(12)).await;
    let (_, text) = page(metrics_at, "/metrics").await;
    for line in [
        "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 3",
        "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"} 1",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"} 2",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family=\"IPv4\"} 0.005",
        "hawser_proxy_sockets_destroyed_total 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_named_uplink_that_is_not_there_keeps_traffic_from_outside_away() {
    let (listeners, health_at, _) = pages().await;
    let config = Config { uplinks: vec!["ehto0".to_owned()], ..config() };
    let mut proxy = Proxy::start(config, Plane::default(), listeners);
    proxy.sync().await;
    assert_eq!(page(health_at, "/healthz").await.0, 200, "nothing is known of interfaces");
    let uplink = |name: &str| vec![Link { name: name.to_owned(), index: 2, up: true, ..Link::default() }];
    proxy.links.send(uplink("eth0")).unwrap();
    run_tasks().await;
    let (code, body) = page(health_at, "/healthz").await;
    assert_eq!(code, 503);
    assert!(body.contains("there is no interface ehto0"), "{body}");
    // A new process would find the same interfaces.
    let (code, body) = page(health_at, "/livez").await;
    assert_eq!(code, 200);
    assert!(body.contains("\"dataPathFaults\":[\"there is no interface ehto0"), "{body}");
    proxy.links.send(uplink("ehto0")).unwrap();
    run_tasks().await;
    assert_eq!(page(health_at, "/healthz").await.0, 200);
    proxy.stop().await;
}

#[tokio::test]
async fn unsupported_service_setting_is_counted_once() {
    let (listeners, _, metrics_at) = pages().await;
    let mut proxy = Proxy::start(config(), Plane::default(), listeners);
    let mut odd = service("a", "10.0.0.1");
    odd.metadata.annotations = Some([("hawser.dev/algorithm".to_owned(), "best".to_owned())].into());
    proxy.caches.services.apply(odd);
    proxy.sync().await;
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    run_tasks().await;
    let (_, text) = page(metrics_at, "/metrics").await;
    assert!(text.lines().any(|line| line == "hawser_proxy_warnings_total 1"), "{text}");
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_without_socket_hooks_reach_the_data_plane() {
    let proxy = {
        let mut proxy = Proxy::start_with(config(), Plane::default(), Listeners::default(), |caches| {
            caches.exempt = Exemptions::fixed([7, 9].into());
        });
        proxy.sync().await;
        proxy
    };
    assert_eq!(proxy.plane.0.lock().unwrap().fake.node().exempt, [7, 9].into());
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_masqueraded_once_the_config_map_is_known_and_as_long_as_the_node_was() {
    let (rules, agent) = tokio::sync::watch::channel(Agent::Unknown);
    let config = Config { masquerade: vec!["10.1.0.0/16".parse().unwrap()], ..config() };
    let follow = |caches: &mut userspace_proxy::Caches| caches.agent = Rules::following(agent);
    let mut proxy = Proxy::start_with(config, Plane::default(), Listeners::default(), follow);
    let node: Node = object("metadata: {name: here}\nspec: {podCIDR: 10.1.5.0/24}");
    proxy.caches.nodes.apply(node);
    proxy.links.send(Vec::new()).unwrap();
    proxy.sync().await;
    let tables = |proxy: &Proxy| proxy.plane.0.lock().unwrap().fake.node().masquerade.clone();
    assert_eq!(tables(&proxy), None, "the settings of an earlier process stay");
    rules.send(Agent::Absent).unwrap();
    run_tasks().await;
    let found = tables(&proxy).unwrap();
    assert_eq!(found.pods, ["10.1.5.0/24".parse().unwrap()]);
    let outside: ipnetwork::IpNetwork = "198.51.100.0/24".parse().unwrap();
    assert!(!found.exempt.contains_key(&outside));
    rules.send(Agent::Present(AgentRules { ranges: vec![outside], ..AgentRules::default() })).unwrap();
    run_tasks().await;
    assert!(tables(&proxy).unwrap().exempt.contains_key(&outside));
    // Pods outlive the Node object for a while.
    proxy.caches.nodes.delete(&ObjectKey::new("", "here"));
    run_tasks().await;
    assert!(tables(&proxy).is_some());
    proxy.stop().await;
}
