//! `/metrics`: names, types and labels, and an exposition that a scraper can read.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::api::harness::{Api, pod};

/// The contents of a page of metrics, checked as promtool does.
#[derive(Default)]
struct Exposition {
    types: BTreeMap<String, String>,
    help: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Exposition {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let (mut current, mut closed) = (String::new(), BTreeSet::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help text");
                assert!(closed.insert(name.to_owned()), "{name} comes twice");
                current = name.to_owned();
                page.help.insert(name.to_owned(), help.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert_eq!(name, current, "type and help belong together");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                let older = matches!(name, "authentication_attempts" | "authenticated_user_requests");
                assert_eq!(kind == "counter", name.ends_with("_total") || older, "{line}");
                page.types.insert(name.to_owned(), kind.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let name = series.split('{').next().unwrap();
                let kind = &page.types[&current];
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let family = if kind == "histogram" { base.expect("a part of a histogram") } else { name };
                assert_eq!(family, current, "{line}");
                assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
                let labels = labels(series);
                let unique: BTreeSet<&String> = labels.iter().map(|(key, _)| key).collect();
                assert_eq!(unique.len(), labels.len(), "a label comes twice: {line}");
                let value = if value == "+Inf" { f64::INFINITY } else { value.parse().expect("a number") };
                assert!(page.samples.insert(series.to_owned(), value).is_none(), "{series} comes twice");
            }
        }
        page.check_histograms();
        page
    }

    /// Buckets rise to the count.
    fn check_histograms(&self) {
        for (series, count) in
            self.samples.iter().filter(|(s, _)| s.split('{').next().unwrap().ends_with("_count"))
        {
            let infinite = series.replacen("_count", "_bucket", 1);
            let infinite = match infinite.strip_suffix('}') {
                Some(open) => format!("{open},le=\"+Inf\"}}"),
                None => format!("{infinite}{{le=\"+Inf\"}}"),
            };
            assert_eq!(self.samples.get(&infinite), Some(count), "{infinite}");
            let start = infinite.split("le=\"").next().unwrap().to_owned();
            let mut buckets: Vec<(f64, f64)> = self
                .samples
                .iter()
                .filter_map(|(s, count)| {
                    let bound = s.strip_prefix(&start)?.strip_prefix("le=\"")?.strip_suffix("\"}")?;
                    Some((bound.replace("+Inf", "inf").parse().unwrap(), *count))
                })
                .collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{series}: {buckets:?}");
        }
    }

    /// The sum of all series of a family that have all these labels.
    fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        let has = |series: &str| {
            let labels = labels(series);
            series.split('{').next() == Some(name)
                && wanted.iter().all(|(k, v)| labels.iter().any(|(a, b)| a == k && b == v))
        };
        self.samples.iter().filter(|(series, _)| has(series)).map(|(_, value)| value).sum()
    }
}

fn labels(series: &str) -> Vec<(String, String)> {
    let Some((_, rest)) = series.split_once('{') else { return Vec::new() };
    let rest = rest.strip_suffix('}').expect("closed labels");
    rest.split("\",")
        .map(|pair| {
            let (key, value) = pair.split_once("=\"").expect("a quoted value");
            (key.to_owned(), value.trim_end_matches('"').to_owned())
        })
        .collect()
}

/// Names and types that must be there.
const FAMILIES: &[(&str, &str)] = &[
    ("apiserver_request_total", "counter"),
    ("apiserver_request_duration_seconds", "histogram"),
    ("apiserver_request_sli_duration_seconds", "histogram"),
    ("apiserver_current_inflight_requests", "gauge"),
    ("apiserver_longrunning_requests", "gauge"),
    ("apiserver_response_sizes", "histogram"),
    ("apiserver_requested_deprecated_apis", "gauge"),
    ("apiserver_registered_watchers", "gauge"),
    ("apiserver_watch_events_total", "counter"),
    ("apiserver_watch_events_sizes", "histogram"),
    ("apiserver_watch_cache_events_received_total", "counter"),
    ("apiserver_watch_cache_events_dispatched_total", "counter"),
    ("apiserver_watch_cache_initializations_total", "counter"),
    ("apiserver_watch_cache_resource_version", "gauge"),
    ("apiserver_cache_list_total", "counter"),
    ("apiserver_cache_list_fetched_objects_total", "counter"),
    ("apiserver_cache_list_returned_objects_total", "counter"),
    ("apiserver_storage_objects", "gauge"),
    ("apiserver_resource_objects", "gauge"),
    ("apiserver_init_events_total", "counter"),
    ("apiserver_tls_handshake_errors_total", "counter"),
    ("apiserver_admission_step_admission_duration_seconds", "histogram"),
    ("apiserver_admission_controller_admission_duration_seconds", "histogram"),
    ("apiserver_storage_size_bytes", "gauge"),
    ("etcd_request_duration_seconds", "histogram"),
    ("etcd_requests_total", "counter"),
    ("process_cpu_seconds_total", "counter"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_max_fds", "gauge"),
    ("process_virtual_memory_max_bytes", "gauge"),
    ("kubernetes_build_info", "gauge"),
    ("kubernetes_feature_enabled", "gauge"),
    ("authentication_attempts", "counter"),
    ("authentication_duration_seconds", "histogram"),
    ("authenticated_user_requests", "counter"),
    ("authorization_attempts_total", "counter"),
    ("authorization_duration_seconds", "histogram"),
    ("apiserver_request_aborts_total", "counter"),
    ("apiserver_request_body_size_bytes", "histogram"),
    ("field_validation_request_duration_seconds", "histogram"),
    ("apiserver_terminated_watchers_total", "counter"),
    ("apiserver_watch_list_duration_seconds", "histogram"),
    ("apiserver_watch_cache_read_wait_seconds", "histogram"),
    ("apiserver_watch_cache_consistent_read_total", "counter"),
    ("apiserver_watch_cache_capacity", "gauge"),
    ("apiserver_storage_list_total", "counter"),
    ("apiserver_storage_list_fetched_objects_total", "counter"),
    ("apiserver_storage_list_evaluated_objects_total", "counter"),
    ("apiserver_storage_list_returned_objects_total", "counter"),
    ("apiserver_storage_events_received_total", "counter"),
    ("kube_apiserver_clusterip_allocator_allocated_ips", "gauge"),
    ("kube_apiserver_clusterip_allocator_available_ips", "gauge"),
    ("kube_apiserver_clusterip_allocator_allocation_total", "counter"),
    ("kube_apiserver_clusterip_allocator_allocation_errors_total", "counter"),
    ("kube_apiserver_clusterip_allocator_allocation_duration_seconds", "histogram"),
    ("kube_apiserver_nodeport_allocator_allocated_ports", "gauge"),
    ("kube_apiserver_nodeport_allocator_available_ports", "gauge"),
    ("kube_apiserver_nodeport_allocator_allocation_total", "counter"),
    ("kube_apiserver_nodeport_allocator_allocation_errors_total", "counter"),
    ("workqueue_depth", "gauge"),
    ("workqueue_adds_total", "counter"),
    ("workqueue_retries_total", "counter"),
    ("workqueue_queue_duration_seconds", "histogram"),
    ("workqueue_work_duration_seconds", "histogram"),
    ("workqueue_unfinished_work_seconds", "gauge"),
    ("workqueue_longest_running_processor_seconds", "gauge"),
];

/// Causes everything that is counted besides requests.
async fn live(api: &Api) {
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: serde_json::Value| json!({"metadata": {"name": name}, "spec": spec});
    let any = json!({"type": "NodePort", "ports": [{"port": 80}]});
    api.post(services, service("any", any)).await.expect(201);
    let asked =
        json!({"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30009}]});
    api.post(services, service("asked", asked.clone())).await.expect(201);
    api.post(services, service("taken", asked)).await.expect(422);
    let ports = json!({"spec": {"ports": [{"port": 80, "nodePort": 30009}]}});
    api.patch("merge", &format!("{services}/any"), ports).await.expect(422);
    let pods = "/api/v1/namespaces/default/pods";
    let options = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut watch = api.watch(&format!("{pods}?{options}")).await;
    while !watch.brief().await.starts_with("BOOKMARK") {}
    // A client that does not wait for the answer.
    tokio::select! {
        biased;
        _ = api.config_map("dropped", json!({})) => panic!("a write takes more than one step"),
        () = std::future::ready(()) => {}
    }
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": names,
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let nobody = api.as_user(apiserver_meta::identity::Identity::anonymous());
    nobody.get(pods).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn the_page_has_the_names_types_and_labels_of_kubernetes() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("a")).await.expect(201);
    api.post(pods, pod("a")).await.expect(409);
    api.post(&format!("{pods}?dryRun=All"), pod("b")).await.expect(201);
    api.get(pods).await.expect(200);
    api.get(&format!("{pods}/a")).await.expect(200);
    let applied = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{pods}/a?fieldManager=x&force=true");
    api.call("PATCH", &path, &applied, pod("a").to_string()).await.expect(200);
    let endpoints = api.get("/api/v1/endpoints").await.expect(200);
    assert_eq!(
        endpoints.headers["warning"],
        "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\""
    );
    api.get("/apis/nonsense.example.com/v1/things").await.expect(404);
    api.get("/livez").await.expect(200);
    let mut watch = api.watch(&format!("{pods}?watch=1")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    live(&api).await;
    let reply = api.get("/metrics").await.expect(200);
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let page = Exposition::parse(&reply.text);
    for (name, kind) in FAMILIES {
        assert_eq!(page.types.get(*name).map(String::as_str), Some(*kind), "{name}");
    }
    assert!(page.help["apiserver_request_total"].starts_with("[STABLE] Counter of apiserver requests"));
    counted(&page);
    drop(watch);
    let page = Exposition::parse(&api.get("/metrics").await.text);
    assert_eq!(page.sum("apiserver_longrunning_requests", &[("verb", "WATCH"), ("resource", "pods")]), 0.0);
    assert_eq!(page.sum("apiserver_registered_watchers", &[("resource", "pods")]), 0.0);
    // The request for this page is itself one.
    assert_eq!(page.sum("apiserver_current_inflight_requests", &[]), 1.0);
}

/// Checks the metrics left by the requests of the test above.
fn counted(page: &Exposition) {
    let pod_requests = |verb: &str, code: &str, scope: &str| {
        let labels = [
            ("verb", verb),
            ("code", code),
            ("resource", "pods"),
            ("scope", scope),
            ("group", ""),
            ("version", "v1"),
            ("component", "apiserver"),
            ("subresource", ""),
            ("dry_run", ""),
        ];
        page.sum("apiserver_request_total", &labels)
    };
    assert_eq!(pod_requests("POST", "201", "namespace"), 1.0);
    assert_eq!(pod_requests("POST", "409", "namespace"), 1.0);
    assert_eq!(pod_requests("LIST", "200", "namespace"), 1.0);
    assert_eq!(pod_requests("GET", "200", "resource"), 1.0);
    assert_eq!(pod_requests("APPLY", "200", "resource"), 1.0);
    assert_eq!(page.sum("apiserver_request_total", &[("dry_run", "All"), ("code", "201")]), 1.0);
    assert_eq!(page.sum("apiserver_request_total", &[("code", "404"), ("resource", ""), ("group", "")]), 1.0);
    assert_eq!(page.sum("apiserver_request_total", &[("subresource", "/livez")]), 1.0);
    assert_eq!(page.sum("apiserver_longrunning_requests", &[("verb", "WATCH"), ("resource", "pods")]), 1.0);
    assert_eq!(page.sum("apiserver_registered_watchers", &[("resource", "pods")]), 1.0);
    assert_eq!(page.sum("apiserver_watch_events_total", &[("resource", "pods")]), 2.0);
    assert_eq!(page.sum("apiserver_requested_deprecated_apis", &[("resource", "endpoints")]), 1.0);
    assert_eq!(page.sum("apiserver_storage_objects", &[("resource", "pods")]), 1.0);
    assert!(
        page.sum("apiserver_storage_objects", &[("resource", "clusterroles.rbac.authorization.k8s.io")])
            > 20.0
    );
    assert_eq!(page.sum("etcd_requests_total", &[("operation", "create"), ("resource", "pods")]), 2.0);
    assert_eq!(page.sum("kubernetes_build_info", &[("major", "1"), ("minor", "36")]), 1.0);
    assert_eq!(page.sum("apiserver_cache_list_returned_objects_total", &[("resource", "pods")]), 1.0);
    lived(page);
}

/// Checks the metrics left by `live`.
fn lived(page: &Exposition) {
    let range = ("cidr", "10.96.0.0/16");
    let addresses = "kube_apiserver_clusterip_allocator";
    for (name, labels, value) in [
        ("allocation_total", &[range, ("scope", "dynamic")][..], 1.0),
        ("allocation_total", &[range, ("scope", "static")], 1.0),
        ("allocation_errors_total", &[range, ("scope", "static")], 1.0),
        ("allocation_duration_seconds_count", &[range], 2.0),
        ("allocated_ips", &[range], 2.0),
        ("available_ips", &[range], 65532.0),
    ] {
        assert_eq!(page.sum(&format!("{addresses}_{name}"), labels), value, "{name}");
    }
    let ports = "kube_apiserver_nodeport_allocator";
    assert_eq!(page.sum(&format!("{ports}_allocated_ports"), &[]), 2.0);
    assert_eq!(page.sum(&format!("{ports}_available_ports"), &[]), 2766.0);
    assert_eq!(page.sum(&format!("{ports}_allocation_total"), &[("scope", "dynamic")]), 1.0);
    assert_eq!(page.sum(&format!("{ports}_allocation_errors_total"), &[("scope", "static")]), 1.0);
    let aborted = [("verb", "POST"), ("resource", "configmaps"), ("scope", "namespace")];
    assert_eq!(page.sum("apiserver_request_aborts_total", &aborted), 1.0);
    let listed = [("resource", "pods"), ("scope", "namespace"), ("version", "v1")];
    assert_eq!(page.sum("apiserver_watch_list_duration_seconds_count", &listed), 1.0);
    assert!(page.sum("authentication_attempts", &[("result", "success")]) > 10.0);
    assert!(page.sum("authenticated_user_requests", &[("username", "admin")]) > 10.0);
    assert_eq!(page.sum("authenticated_user_requests", &[("username", "other")]), 1.0);
    assert_eq!(page.sum("authorization_attempts_total", &[("result", "no-opinion")]), 1.0);
    assert_eq!(
        page.sum("apiserver_request_body_size_bytes_count", &[("resource", "services"), ("verb", "create")]),
        3.0
    );
    assert!(page.sum("field_validation_request_duration_seconds_count", &[("field_validation", "")]) > 5.0);
    assert!(page.sum("apiserver_watch_cache_read_wait_seconds_count", &[("resource", "pods")]) > 0.0);
    let queue = [("name", "customresourcedefinitions")];
    assert!(page.sum("workqueue_adds_total", &queue) >= 1.0);
    assert_eq!(page.sum("workqueue_depth", &queue), 0.0);
    let (waited, worked) =
        ("workqueue_queue_duration_seconds_count", "workqueue_work_duration_seconds_count");
    assert_eq!(page.sum(waited, &queue), page.sum(worked, &queue));
    assert_eq!(page.sum("kubernetes_feature_enabled", &[("name", "WatchList"), ("stage", "BETA")]), 1.0);
    assert!(page.sum("apiserver_watch_cache_capacity", &[("resource", "pods")]) > 0.0);
}

#[tokio::test(start_paused = true)]
async fn open_metrics_are_served_to_those_who_ask() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    let reply = api.get_as("/metrics", accept).await.expect(200);
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    assert!(reply.text.contains("# TYPE apiserver_request counter\napiserver_request_total{"));
    assert!(reply.text.ends_with("# EOF\n"));
    let plain = api.get_as("/metrics", "text/plain").await.expect(200);
    assert!(plain.text.contains("# TYPE apiserver_request_total counter\n"));
}

#[tokio::test(start_paused = true)]
async fn labels_that_clients_make_up_are_not_kept() {
    let api = Api::start().await;
    for number in 0..50 {
        api.get(&format!("/apis/g{number}.example.com/v1/things{number}")).await.expect(404);
        api.get(&format!("/nonsense/{number}")).await.expect(404);
        api.call("BREW", &format!("/api/v1/pods/{number}"), &[], "").await;
    }
    let text = api.get("/metrics").await.expect(200).text;
    assert!(!text.contains("things") && !text.contains("nonsense") && !text.contains("BREW"));
}
