//! ResourceQuotas: objects are charged before they are stored. The status is written by these tests as the controller
//! writes it, for there is none here.

use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::identity::Identity;
use apiserver_store::Store;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, every_api, pod};

const CORE: &str = "/api/v1/namespaces/default";

/// Makes a quota of these amounts, of which nothing is used.
async fn quota(api: &Api, name: &str, hard: Value, scopes: &[&str]) {
    let object = json!({"metadata": {"name": name}, "spec": {"hard": hard, "scopes": scopes}});
    api.post(&format!("{CORE}/resourcequotas"), object).await.expect(201);
    let none: serde_json::Map<String, Value> =
        hard.as_object().unwrap().keys().map(|name| (name.clone(), json!("0"))).collect();
    let status = json!({"status": {"hard": hard, "used": none}});
    api.patch("merge", &format!("{CORE}/resourcequotas/{name}/status"), status).await.expect(200);
}

async fn used(api: &Api, name: &str) -> Value {
    api.get(&format!("{CORE}/resourcequotas/{name}")).await.expect(200).body["status"]["used"].take()
}

async fn config_map(api: &Api, name: &str) -> Reply {
    api.post(&format!("{CORE}/configmaps"), json!({"metadata": {"name": name}})).await
}

/// A pod whose container requests these resources, and is limited to them.
fn sized(name: &str, resources: &Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": resources, "limits": resources});
    pod
}

async fn make_pod(api: &Api, pod: Value) -> Reply {
    api.post(&format!("{CORE}/pods"), pod).await
}

#[tokio::test(start_paused = true)]
async fn concurrent_creates_at_several_servers_never_exceed_a_quota() {
    let disk = Arc::new(SimDisk::new(3).with_sync_time(Duration::from_millis(1)));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, Options::default()).await.unwrap());
    let one = Api::over(every_api(), Arc::clone(&store)).await;
    let two = Api::over(every_api(), store).await;
    quota(&one, "few", json!({"count/configmaps": "40", "configmaps": "40"}), &[]).await;
    quota(&one, "many", json!({"count/configmaps": "50"}), &[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = one.store.revision().await.unwrap();
    let names: Vec<String> = (0..150).map(|number| format!("m{number}")).collect();
    let creates = names.iter().enumerate().map(|(number, name)| {
        let api = if number % 2 == 0 { &one } else { &two };
        config_map(api, name)
    });
    let replies = join_all(creates).await;
    let made = replies.iter().filter(|reply| reply.code == 201).count();
    assert_eq!(made, 40, "{:?}", replies.iter().map(|reply| reply.code).collect::<Vec<_>>());
    for refused in replies.iter().filter(|reply| reply.code != 201) {
        assert_eq!(refused.code, 403, "{}", refused.text);
        assert!(
            refused.message().contains(" is forbidden: exceeded quota: few, requested: "),
            "{}",
            refused.text
        );
    }
    // What "few" refused was not charged to "many".
    assert_eq!(used(&one, "few").await, json!({"count/configmaps": "40", "configmaps": "40"}));
    assert_eq!(used(&one, "many").await, json!({"count/configmaps": "40"}));
    let all = one.get(&format!("{CORE}/configmaps")).await.expect(200);
    assert_eq!(all.names().iter().filter(|name| name.starts_with('m')).count(), 40);
    // Requests that wait are charged together.
    let writes = one.store.revision().await.unwrap() - before;
    assert!(writes < 40 + 60, "{writes} writes for 40 objects");
}

#[tokio::test(start_paused = true)]
async fn refusals_name_what_is_exceeded_missing_or_unknown() {
    let api = Api::start().await;
    quota(&api, "q", json!({"requests.cpu": "1", "limits.memory": "1Gi", "pods": "2"}), &[]).await;
    let refused = make_pod(&api, pod("p")).await.expect(403);
    assert_eq!(
        refused.message(),
        "pods \"p\" is forbidden: failed quota: q: must specify limits.memory for: c; requests.cpu for: c"
    );
    assert_eq!(refused.body["details"], json!({"name": "p", "kind": "pods"}));
    make_pod(&api, sized("a", &json!({"cpu": "750m", "memory": "512Mi"}))).await.expect(201);
    let refused = make_pod(&api, sized("b", &json!({"cpu": "500m", "memory": "1Gi"}))).await.expect(403);
    assert_eq!(
        refused.message(),
        "pods \"b\" is forbidden: exceeded quota: q, requested: limits.memory=1Gi,requests.cpu=500m, \
         used: limits.memory=512Mi,requests.cpu=750m, limited: limits.memory=1Gi,requests.cpu=1"
    );
    assert_eq!(used(&api, "q").await, json!({"requests.cpu": "750m", "limits.memory": "512Mi", "pods": "1"}));
    // A quota that has no status yet limits nothing; one whose usage is unknown refuses.
    let new = json!({"metadata": {"name": "new"}, "spec": {"hard": {"secrets": "0"}}});
    api.post(&format!("{CORE}/resourcequotas"), new).await.expect(201);
    api.post(&format!("{CORE}/secrets"), json!({"metadata": {"name": "s"}})).await.expect(201);
    let status = json!({"status": {"hard": {"secrets": "5"}}});
    api.patch("merge", &format!("{CORE}/resourcequotas/new/status"), status).await.expect(200);
    let refused = api.post(&format!("{CORE}/secrets"), json!({"metadata": {"name": "t"}})).await.expect(403);
    assert!(
        refused.message().ends_with("status unknown for quota: new, resources: secrets"),
        "{}",
        refused.text
    );
}

#[tokio::test(start_paused = true)]
async fn create_that_stores_nothing_charges_nothing() {
    let api = Api::start().await;
    quota(&api, "q", json!({"count/configmaps": "5", "count/secrets": "5"}), &[]).await;
    let maps = format!("{CORE}/configmaps");
    api.post(&format!("{maps}?dryRun=All"), json!({"metadata": {"name": "m"}})).await.expect(201);
    api.post(&maps, json!({"metadata": {"name": "NOT"}})).await.expect(422);
    assert_eq!(used(&api, "q").await["count/configmaps"], "0");
    config_map(&api, "m").await.expect(201);
    config_map(&api, "m").await.expect(409);
    // Creates of one name at a time: the losers were charged, perhaps.
    let all = join_all((0..4).map(|_| config_map(&api, "n"))).await;
    assert_eq!(all.iter().filter(|reply| reply.code == 201).count(), 1);
    assert_eq!(used(&api, "q").await, json!({"count/configmaps": "2", "count/secrets": "0"}));
    // A dry run is refused like the real one.
    for name in ["o", "p", "r"] {
        config_map(&api, name).await.expect(201);
    }
    let refused =
        api.post(&format!("{maps}?dryRun=All"), json!({"metadata": {"name": "s"}})).await.expect(403);
    assert!(refused.message().contains("exceeded quota: q"), "{}", refused.text);
}

#[tokio::test(start_paused = true)]
async fn a_charge_is_given_back_where_the_store_refuses() {
    let disk = Arc::new(SimDisk::new(1));
    let options = Options { quota_bytes: 8 << 20, ..Options::default() };
    let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, options).await.unwrap());
    let api = Api::over(every_api(), store).await;
    quota(&api, "q", json!({"count/configmaps": "500"}), &[]).await;
    let tenant = api.as_user(Identity::authenticated("tenant", &["system:masters"]));
    let (mut made, mut code) = (0, 201);
    while code == 201 && made < 200 {
        let map = json!({"metadata": {"name": format!("m{made}")}, "data": {"a": "x".repeat(1 << 19)}});
        code = tenant.post(&format!("{CORE}/configmaps"), map).await.code;
        made += usize::from(code == 201);
    }
    assert_eq!(code, 500, "the store is full after {made}");
    assert_eq!(used(&api, "q").await["count/configmaps"], made.to_string());
}

#[tokio::test(start_paused = true)]
async fn updates_are_charged_what_they_add_by_every_way() {
    let api = Api::start().await;
    quota(&api, "q", json!({"services.loadbalancers": "1", "services.nodeports": "3", "services": "2"}), &[])
        .await;
    let services = format!("{CORE}/services");
    let plain = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    api.post(&services, plain.clone()).await.expect(201);
    let balanced = json!({"spec": {"type": "LoadBalancer"}});
    api.patch("merge", &format!("{services}/s"), balanced.clone()).await.expect(200);
    let after = json!({"services.loadbalancers": "1", "services.nodeports": "1", "services": "1"});
    assert_eq!(used(&api, "q").await, after);
    // Unchanged, it is not charged again; changed back, the controller will see it.
    api.patch("merge", &format!("{services}/s"), balanced.clone()).await.expect(200);
    api.patch("merge", &format!("{services}/s"), json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
    api.patch("merge", &format!("{services}/s"), json!({"spec": {"type": "ClusterIP"}})).await.expect(200);
    assert_eq!(used(&api, "q").await, after);
    let refused = api.patch("merge", &format!("{services}/s"), balanced).await.expect(403);
    assert!(
        refused.message().contains("requested: services.loadbalancers=1, used: services.loadbalancers=1")
    );
    // Applied to nothing, an object is created.
    let mut applied = plain;
    applied["metadata"]["name"] = "t".into();
    applied["apiVersion"] = "v1".into();
    applied["kind"] = "Service".into();
    api.apply(&format!("{services}/t?fieldManager=m"), applied.clone()).await.expect(201);
    applied["metadata"]["name"] = "u".into();
    let refused = api.apply(&format!("{services}/u?fieldManager=m"), applied).await.expect(403);
    assert!(refused.message().contains("exceeded quota: q, requested: services=1"), "{}", refused.text);
}

#[tokio::test(start_paused = true)]
async fn pods_cannot_grow_past_a_quota_by_subresources_or_scopes() {
    let api = Api::start().await;
    quota(&api, "q", json!({"requests.cpu": "1", "pods": "5"}), &["NotTerminating"]).await;
    quota(&api, "ending", json!({"pods": "0"}), &["Terminating"]).await;
    let mut small = sized("p", &json!({"cpu": "600m"}));
    small["spec"]["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]);
    make_pod(&api, small).await.expect(201);
    let size = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
    };
    let resize = format!("{CORE}/pods/p/resize");
    let refused = api.patch("strategic-merge", &resize, size("1100m")).await.expect(403);
    assert_eq!(
        refused.message(),
        "pods \"p\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, \
         limited: requests.cpu=1"
    );
    api.patch("strategic-merge", &resize, size("900m")).await.expect(200);
    assert_eq!(used(&api, "q").await, json!({"requests.cpu": "900m", "pods": "1"}));
    // A smaller one gives nothing back here.
    api.patch("strategic-merge", &resize, size("100m")).await.expect(200);
    assert_eq!(used(&api, "q").await, json!({"requests.cpu": "900m", "pods": "1"}));
    // A deadline moves the pod to the quota of those that have one.
    let deadline = json!({"spec": {"activeDeadlineSeconds": 60}});
    let refused = api.patch("merge", &format!("{CORE}/pods/p"), deadline).await.expect(403);
    assert!(refused.message().contains("exceeded quota: ending, requested: pods=1"), "{}", refused.text);
    // Evictions, bindings and statuses are no new pods.
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    api.post(&format!("{CORE}/pods/p/binding"), binding).await.expect(201);
    let status = json!({"status": {"phase": "Running"}});
    api.patch("merge", &format!("{CORE}/pods/p/status"), status).await.expect(200);
    assert_eq!(used(&api, "q").await, json!({"requests.cpu": "900m", "pods": "1"}));
}

#[tokio::test(start_paused = true)]
async fn objects_of_custom_kinds_are_counted() {
    let api = Api::start().await;
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com",
        "names": {"plural": "widgets", "kind": "Widget"}, "scope": "Namespaced",
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    tokio::time::sleep(Duration::from_secs(2)).await;
    quota(&api, "q", json!({"count/widgets.example.com": "1", "count/widgets": "0"}), &[]).await;
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget =
        |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
    api.post(widgets, widget("a")).await.expect(201);
    let refused = api.post(widgets, widget("b")).await.expect(403);
    assert_eq!(
        refused.message(),
        "widgets.example.com \"b\" is forbidden: exceeded quota: q, requested: count/widgets.example.com=1, \
         used: count/widgets.example.com=1, limited: count/widgets.example.com=1"
    );
    // Quotas count in their namespace alone.
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.expect(201);
    api.post(&widgets.replace("default", "other"), widget("b")).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_gains_nothing_by_odd_amounts_names_and_many_quotas() {
    let api = Api::start().await;
    for number in 0..60 {
        quota(&api, &format!("q{number:02}"), json!({"count/configmaps": "3", "cpu": "1"}), &[]).await;
    }
    let replies = join_all((0..8).map(|number| {
        let (api, name) = (&api, format!("m{number}"));
        async move { config_map(api, &name).await.code }
    }))
    .await;
    assert_eq!(replies.iter().filter(|code| **code == 201).count(), 3, "{replies:?}");
    for number in 0..60 {
        assert_eq!(used(&api, &format!("q{number:02}")).await["count/configmaps"], "3");
    }
    // Neither below zero nor beyond 64 bits.
    make_pod(&api, sized("a", &json!({"cpu": "-1"}))).await.expect(422);
    for cpu in ["9223372036854775807", "1e30", "8Ei"] {
        let refused = make_pod(&api, sized("a", &json!({"cpu": cpu}))).await.expect(403);
        assert!(refused.message().contains("exceeded quota: q00"), "{}", refused.text);
    }
    assert_eq!(used(&api, "q00").await["cpu"], "0");
    // The status of a quota is not the tenant's to write, by its own quota or another way.
    let bad =
        json!({"metadata": {"name": "r"}, "spec": {"hard": {"pods": "-1", "no such": "1", "count/": "1"}}});
    api.post(&format!("{CORE}/resourcequotas"), bad).await.expect(422);
    let made = json!({"metadata": {"name": "r"}, "spec": {"hard": {"pods": "1"}}, "status": {"used": {"pods": "1"}}});
    let made = api.post(&format!("{CORE}/resourcequotas"), made).await.expect(201);
    assert_eq!(made.body["status"], json!({}));
}

/// Requests that are cut off while they wait for others do not halt the namespace, and what was charged for them is no
/// more than they asked for.
#[tokio::test(start_paused = true)]
async fn requests_that_are_cut_off_halt_nobody() {
    let disk = Arc::new(SimDisk::new(5).with_sync_time(Duration::from_millis(50)));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, Options::default()).await.unwrap());
    let api = Api::over(every_api(), store).await;
    quota(&api, "q", json!({"count/configmaps": "100"}), &[]).await;
    for round in 0..10 {
        let names: Vec<String> = (0..4).map(|number| format!("r{round}-{number}")).collect();
        let all = join_all(names.iter().map(|name| config_map(&api, name)));
        let cut = tokio::time::timeout(Duration::from_millis(10 + 13 * round), all).await;
        assert!(cut.is_err() || round > 6, "round {round}");
    }
    config_map(&api, "last").await.expect(201);
    let stored = api.get(&format!("{CORE}/configmaps")).await.expect(200);
    let stored = stored.names().iter().filter(|name| name.starts_with('r') || **name == "last").count();
    let used: usize = used(&api, "q").await["count/configmaps"].as_str().unwrap().parse().unwrap();
    assert!(stored <= used && used <= 41, "{stored} {used}");
}
