//! Tests of bodies with thousands of items: the work grows with their length, not with its square, and so do
//! the answers. Each of these took seconds or gigabytes once; none uses a clock.

use apiserver_meta::identity::Identity;
use apiserver_server::ServerConfig;
use serde_json::{Value, json};

use crate::api::bad_rules::{CRDS, definition};
use crate::api::harness::{Api, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";

fn many(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

fn owner(n: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": format!("u{n}")})
}

#[tokio::test]
async fn owners_that_are_there_twice_are_found_in_one_pass() {
    let api = Api::start().await;
    let owners = many(16_000, |n| owner(n % 4_000));
    let map = json!({"metadata": {"name": "m", "ownerReferences": owners}});
    let reply = api.post(MAPS, map).await.expect(201);
    assert_eq!(reply.body["metadata"]["ownerReferences"], many(4_000, owner));
    // Only one may be the controller, and the error of each surplus one shows all.
    let controllers = many(4_000, |n| {
        let mut owner = owner(n);
        owner["controller"] = true.into();
        owner
    });
    let map = json!({"metadata": {"name": "c", "ownerReferences": controllers}});
    let reply = api.post(MAPS, map).await.expect(422);
    assert!(reply.text.len() < 4 << 20, "{}", reply.text.len());
}

#[tokio::test]
async fn no_more_warnings_are_made_than_are_sent() {
    let api = Api::start().await;
    let mut pod = pod("p");
    let container = &mut pod["spec"]["containers"][0];
    container["env"] = many(6_000, |n| json!({"name": format!("E{n}"), "value": "x"}));
    container["ports"] = many(6_000, |_| json!({"containerPort": 80, "protocol": "TCP"}));
    pod["spec"]["hostAliases"] = many(6_000, |n| json!({"ip": format!("10.0.{}.{}", n / 250, n % 250)}));
    pod["spec"]["imagePullSecrets"] = many(6_000, |n| json!({"name": format!("s{n}")}));
    let reply = api.post(&format!("{PODS}?dryRun=All"), pod).await.expect(201);
    let warnings: Vec<_> = reply.headers.get_all("warning").iter().collect();
    assert_eq!(warnings.len(), 32);
    let first = "ports[1]: duplicate port definition with spec.containers[0].ports[0]";
    assert!(warnings[0].to_str().unwrap().contains(first), "{warnings:?}");
}

/// Regression: most clients and proxies refuse a header of a megabyte, so the object would be written, and
/// its author would get an error.
#[tokio::test]
async fn a_warning_as_long_as_its_body_is_cut() {
    let api = Api::start().await;
    let mut map = json!({"metadata": {"name": "m"}});
    map["x".repeat(1 << 20)] = json!(1);
    let reply = api.post("/api/v1/namespaces/default/configmaps", map).await.expect(201);
    let warnings: Vec<_> = reply.headers.get_all("warning").iter().collect();
    assert_eq!(warnings.len(), 1);
    let told = warnings[0].to_str().unwrap();
    assert!(told.starts_with("299 - \"unknown field \\\"xxx"), "{told}");
    assert_eq!(told.chars().filter(|&c| c == 'x').count(), 256 - "unknown field \"".len());
}

#[tokio::test]
async fn ports_that_share_a_number_clash_as_before() {
    let api = Api::start().await;
    let mut pod = pod("p");
    pod["spec"]["containers"][0]["ports"] = json!([
        {"containerPort": 80, "hostPort": 1, "hostIP": "10.0.0.1"},
        {"containerPort": 80, "hostPort": 1, "hostIP": "10.0.0.2"},
        {"containerPort": 80, "hostPort": 1},
        {"containerPort": 80, "hostPort": 2},
        {"containerPort": 80},
        {"containerPort": 80, "hostPort": 1, "hostIP": "10.0.0.3"},
    ]);
    let reply = api.post(&format!("{PODS}?dryRun=All"), pod).await.expect(201);
    let told: Vec<(char, &str, char)> = reply
        .headers
        .get_all("warning")
        .iter()
        .filter_map(|warning| {
            let (port, rest) = warning.to_str().unwrap().split_once("ports[")?.1.split_once("]: ")?;
            let (what, other) = rest.split_once(" port definition with spec.containers[0].ports[")?;
            Some((port.chars().next()?, what, other.chars().next()?))
        })
        .collect();
    let (ambiguous, overlapping) = ("dangerously ambiguous", "overlapping");
    let wanted = [
        ('2', ambiguous, '0'),
        ('2', ambiguous, '1'),
        ('4', overlapping, '0'),
        ('4', overlapping, '1'),
        ('4', overlapping, '2'),
        ('4', overlapping, '3'),
        ('5', ambiguous, '2'),
        ('5', overlapping, '4'),
    ];
    assert_eq!(told, wanted);
}

#[tokio::test]
async fn causes_of_a_422_are_capped_at_1000() {
    let api = Api::start().await;
    let labels: serde_json::Map<String, Value> = (0..40_000).map(|n| (format!("-{n}"), "x".into())).collect();
    let reply = api.post(MAPS, json!({"metadata": {"name": "m", "labels": labels}})).await.expect(422);
    assert_eq!(reply.body["details"]["causes"].as_array().unwrap().len(), 1_000);
    assert!(
        reply.message().ends_with(", and 39000 more]"),
        "{}",
        &reply.message()[reply.message().len() - 99..]
    );
    assert!(reply.text.len() < 1 << 20);
    // A fault that shows all of a list, for each of its items.
    let hard = json!({"cpu": "1", "memory": "1", "secrets": "1", "services": "1", "configmaps": "1"});
    for spec in [
        json!({"hard": hard, "scopes": many(4_000, |_| json!("BestEffort"))}),
        json!({"hard": hard, "scopes": many(4_000, |n| json!(format!("S{n}")))}),
        json!({"hard": hard, "scopeSelector": {"matchExpressions": many(4_000, |_| {
            json!({"scopeName": "BestEffort", "operator": "Exists"})
        })}}),
    ] {
        let reply = api.post(QUOTAS, json!({"metadata": {"name": "q"}, "spec": spec})).await.expect(422);
        assert!(reply.text.len() < 8 << 20, "{}", reply.text.len());
    }
}

/// An empty container gets hundreds of bytes of defaults, and has two faults of its own and the name of the
/// one before it.
#[tokio::test]
async fn an_object_is_weighed_with_its_defaults_before_anything_else_is_done_with_it() {
    const TOO_LARGE: &str = "etcdserver: request is too large";
    let api = Api::start().await;
    let with = |count| {
        let mut pod = pod("p");
        pod["spec"]["containers"] = many(count, |_| json!({}));
        pod
    };
    api.post(PODS, pod("p")).await.expect(201);
    assert_eq!(api.post(PODS, with(40_000)).await.expect(500).message(), TOO_LARGE);
    let path = format!("{PODS}/p");
    assert_eq!(api.put(&path, with(40_000)).await.expect(500).message(), TOO_LARGE);
    let template = json!({"metadata": {"name": "d"}, "spec": {"template": with(40_000)}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(api.post(deployments, template).await.expect(500).message(), TOO_LARGE);
    // The store would accept it, so its faults are reported.
    let reply = api.post(PODS, with(10_000)).await.expect(422);
    assert_eq!(reply.body["details"]["causes"].as_array().unwrap().len(), 1_000);
    assert!(
        reply.message().ends_with(", and 28999 more]"),
        "{}",
        &reply.message()[reply.message().len() - 99..]
    );
    assert!(reply.text.len() < 1 << 20);
}

/// Sends as many items as a body can have: no kind has a list that may be so long.
#[tokio::test]
async fn a_body_has_so_many_objects_and_no_more_whatever_its_kind() {
    let api = Api::start().await;
    let many = || many(900_000, |_| json!({}));
    let pod = |field: &str| json!({"metadata": {"name": "p"}, "spec": {field: many()}});
    let container =
        |field: &str| json!({"metadata": {"name": "p"}, "spec": {"containers": [{field: many()}]}});
    let webhooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    for (path, body) in [
        (PODS, pod("containers")),
        (PODS, pod("initContainers")),
        (PODS, pod("volumes")),
        (PODS, container("env")),
        (PODS, container("ports")),
        (ROLES, json!({"metadata": {"name": "r"}, "rules": many()})),
        ("/api/v1/namespaces/default/endpoints", json!({"metadata": {"name": "e"}, "subsets": many()})),
        ("/api/v1/namespaces/default/services", pod("ports")),
        ("/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", pod("ingress")),
        (webhooks, json!({"metadata": {"name": "w"}, "webhooks": many()})),
        (MAPS, json!({"metadata": {"name": "m", "ownerReferences": many()}})),
    ] {
        let reply = api.post(path, body).await.expect(413);
        assert_eq!(reply.message(), "Request entity too large: limit is 200000 JSON objects", "{path}");
    }
}

#[tokio::test]
async fn lists_that_are_merged_and_ordered_are_not_searched() {
    let api = Api::start().await;
    let name = |n: usize| json!(format!("example.com/f{n}"));
    let all = 5_000;
    let map = json!({"metadata": {"name": "m", "finalizers": many(all, name)}});
    api.post(MAPS, map).await.expect(201);
    let backwards = many(all + 1, |n| name(all - n));
    let patch = json!({"metadata": {
        "$setElementOrder/finalizers": backwards, "finalizers": [name(all)],
    }});
    let path = format!("{MAPS}/m");
    let reply = api.patch("strategic-merge", &path, patch).await.expect(200);
    assert_eq!(reply.body["metadata"]["finalizers"], backwards);
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": many(all, name)}});
    let reply = api.patch("strategic-merge", &path, patch).await.expect(200);
    assert_eq!(reply.body["metadata"]["finalizers"], json!([name(all)]));
    // A keyed list: items are found, taken out, put in and ordered.
    api.post(PODS, pod("p")).await.expect(201);
    let condition = |n: usize| json!({"type": format!("C{n}"), "status": "True"});
    let patch = json!({"status": {"conditions": many(all, condition)}});
    let path = format!("{PODS}/p/status");
    api.patch("strategic-merge", &path, patch).await.expect(200);
    let change = many(all, |n| match n % 2 {
        0 => json!({"type": format!("C{n}"), "$patch": "delete"}),
        _ => json!({"type": format!("C{n}"), "status": "False"}),
    });
    let patch = json!({"status": {"conditions": change}});
    let reply = api.patch("strategic-merge", &path, patch).await.expect(200);
    let conditions = reply.body["status"]["conditions"].as_array().unwrap();
    let of = |condition: &&Value| condition["type"].as_str().is_some_and(|kind| kind.starts_with('C'));
    assert_eq!(conditions.iter().filter(of).filter(|c| c["status"] == "False").count(), all / 2);
    assert_eq!(conditions.iter().filter(of).filter(|c| c["status"] == "True").count(), 0);
}

#[tokio::test]
async fn a_patch_moves_so_many_items_and_no_more() {
    let api = Api::start().await;
    let finalizers = many(8_000, |n| json!(format!("example.com/f{n}")));
    api.post(MAPS, json!({"metadata": {"name": "m", "finalizers": finalizers}})).await.expect(201);
    let front = "/metadata/finalizers/0";
    let moves = |count: usize| {
        many(count, |n| match n % 2 {
            0 => json!({"op": "add", "path": front, "value": "example.com/front"}),
            _ => json!({"op": "remove", "path": front}),
        })
    };
    let path = format!("{MAPS}/m");
    api.patch("json", &path, moves(8_000)).await.expect(200);
    api.patch("json", &path, moves(10_000)).await.expect(422);
}

#[tokio::test]
async fn definitions_are_read_in_one_pass_and_their_patterns_have_a_bound() {
    let api = Api::start().await;
    let mut many_versions = definition(json!({"type": "object"}));
    many_versions["spec"]["versions"] = many(3_000, |n| {
        json!({
            "name": format!("v{}", n + 1), "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}},
        })
    });
    let reply = api.post(CRDS, many_versions).await.expect(422);
    assert!(reply.message().contains("must have exactly one version marked as storage version"));

    let patterns = |pattern: &dyn Fn(usize) -> String| {
        let properties: serde_json::Map<String, Value> =
            (0..5_000).map(|n| (format!("p{n}"), json!({"type": "string", "pattern": pattern(n)}))).collect();
        definition(json!({"type": "object", "properties": properties}))
    };
    let reply = api.post(CRDS, patterns(&|n| format!(r"(\pL{{1,100}}){{1,4}}x{n}"))).await.expect(422);
    assert!(reply.message().contains("the expressions of the definition need more than 33554432 bytes"));
    let rules = many(1_000, |n| json!({"rule": format!(r"self.matches('(\\pL{{1,100}}){{1,4}}x{n}')")}));
    let text = json!({"type": "string", "maxLength": 10, "x-kubernetes-validations": rules});
    api.post(CRDS, definition(json!({"type": "object", "properties": {"a": text}}))).await.expect(422);
    let mut wide = definition(json!({"type": "object"}));
    wide["spec"]["versions"][0]["additionalPrinterColumns"] =
        many(129, |n| json!({"name": format!("c{n}"), "type": "string", "jsonPath": ".spec"}));
    let reply = api.post(CRDS, wide).await.expect(422);
    assert!(reply.message().contains("additionalPrinterColumns: Too many: 129: must have at most 128 items"));
    // Thousands of fields share one expression.
    api.post(CRDS, patterns(&|_| "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$".to_owned())).await.expect(201);
}

#[tokio::test]
async fn a_role_that_stands_for_a_million_pieces_is_refused_in_some_words() {
    let api = Api::with(ServerConfig::default()).await;
    let rules =
        json!([{"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]);
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let own = json!({"metadata": {"name": "makes-roles"}, "rules": rules});
    api.post(&format!("{base}/clusterroles"), own).await.expect(201);
    let binding = json!({
        "metadata": {"name": "makes-roles"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "makes-roles"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    api.post(&format!("{base}/clusterrolebindings"), binding).await.expect(201);
    let jane = api.as_user(Identity::authenticated("jane", &[]));
    let names = |what: &str, count: usize| many(count, |n| json!(format!("{what}{n}")));
    for (count, more) in [(100, "\nand 999950 more"), (5_000, "\nand 124999999950 more")] {
        let rule = json!({
            "verbs": names("v", count), "apiGroups": names("g", count), "resources": names("r", count),
        });
        let role = json!({"metadata": {"name": "r"}, "rules": [rule]});
        let reply = loop {
            // The bindings are seen a little later.
            let reply = jane.post(ROLES, role.clone()).await.expect(403);
            if reply.message().contains("attempting to grant") {
                break reply;
            }
            tokio::task::yield_now().await;
        };
        assert!(reply.message().ends_with(more), "{}", reply.message());
        assert!(reply.text.len() < 16 * 1024);
        assert!(reply.message().contains(r#"{APIGroups:["g0"], Resources:["r49"], Verbs:["v0"]}"#));
    }
}
