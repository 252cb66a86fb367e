//! Tests of the fields that the server adds to pods, and of the objects that it maintains itself.

use std::time::Duration;

use apiserver_auth::authorizer::Mode;
use apiserver_meta::identity::Identity;
use apiserver_server::ServerConfig;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::harness::{Api, every_api, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(start_paused = true)]
async fn pods_get_an_account_a_token_tolerations_and_a_priority() {
    let api = Api::start().await;
    let made = api.post(PODS, pod("p")).await.expect(201).body;
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    let volume = &made["spec"]["volumes"][0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["path"], "token");
    let mount = &made["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(made["spec"]["priority"], 0);
    assert_eq!(made["status"]["phase"], "Pending");
    let mut critical = pod("q");
    critical["spec"]["priorityClassName"] = "system-node-critical".into();
    assert_eq!(api.post(PODS, critical).await.expect(201).body["spec"]["priority"], 2_000_001_000);
    let mut unknown = pod("r");
    unknown["spec"]["priorityClassName"] = "none".into();
    api.post(PODS, unknown).await.expect(403);
    let mut stranger = pod("s");
    stranger["spec"]["serviceAccountName"] = "none".into();
    let refused = api.post(PODS, stranger).await.expect(403);
    assert!(refused.message().contains("serviceaccount \"none\" not found"), "{}", refused.text);
    let mut plain = pod("t");
    plain["spec"]["automountServiceAccountToken"] = false.into();
    assert_eq!(api.post(PODS, plain).await.expect(201).body["spec"].get("volumes"), None);
}

/// A controller makes the account, some time after the namespace.
#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_the_default_account_of_its_new_namespace() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "fresh"}})).await.expect(201);
    let made = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let account = json!({"metadata": {"name": "default"}, "imagePullSecrets": [{"name": "s"}]});
        api.post("/api/v1/namespaces/fresh/serviceaccounts", account).await.expect(201);
    };
    let (pod, ()) = futures::join!(api.post("/api/v1/namespaces/fresh/pods", pod("p")), made);
    let pod = pod.expect(201).body;
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "s"}]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_refused_when_its_account_does_not_come() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "fresh"}})).await.expect(201);
    let began = Instant::now();
    let refused = api.post("/api/v1/namespaces/fresh/pods", pod("p")).await.expect(403);
    let why = "error looking up service account fresh/default: serviceaccount \"default\" not found";
    assert!(refused.message().ends_with(why), "{}", refused.text);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // No controller makes others.
    let mut stranger = pod("q");
    stranger["spec"]["serviceAccountName"] = "other".into();
    let began = Instant::now();
    api.post("/api/v1/namespaces/fresh/pods", stranger).await.expect(403);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// However many pods wait in namespaces that never get an account, others write.
#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_their_account_hold_no_places() {
    let config = ServerConfig {
        authorization: vec![Mode::AlwaysAllow],
        writes_in_flight: 40,
        ..ServerConfig::default()
    };
    let api = Api::with(config).await;
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "fresh"}})).await.expect(201);
    let waiting: Vec<_> = (0..40)
        .map(|number| {
            let user = api.as_user(Identity::authenticated(&format!("tenant-{}", number % 8), &[]));
            let pod = pod(&format!("p{number}"));
            tokio::spawn(async move { user.post("/api/v1/namespaces/fresh/pods", pod).await.code })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(waiting.iter().all(|request| !request.is_finished()), "they still wait");
    let began = Instant::now();
    let map = json!({"metadata": {"name": "m"}});
    for user in ["bob", "tenant-1"] {
        let user = api.as_user(Identity::authenticated(user, &[]));
        user.post("/api/v1/namespaces/fresh/configmaps?dryRun=All", map.clone()).await.expect(201);
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "without waiting");
    for request in waiting {
        assert_eq!(request.await.unwrap(), 403);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_the_overhead_and_scheduling_of_its_runtime_class() {
    let api = Api::start().await;
    let sandbox = json!({"metadata": {"name": "sandbox"}, "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
        "scheduling": {"nodeSelector": {"runtime": "kata"},
            "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}]}});
    api.post("/apis/node.k8s.io/v1/runtimeclasses", sandbox).await.expect(201);
    let of_class = |name: &str, class: &str, spec: Value| {
        let mut pod = pod(name);
        pod["spec"]["runtimeClassName"] = class.into();
        json_patch::merge(&mut pod["spec"], &spec);
        pod
    };
    let made = api.post(PODS, of_class("a", "sandbox", json!({"nodeSelector": {"disk": "ssd"}}))).await;
    let spec = made.expect(201).body["spec"].clone();
    assert_eq!(spec["overhead"], json!({"cpu": "250m", "memory": "120Mi"}));
    assert_eq!(spec["nodeSelector"], json!({"disk": "ssd", "runtime": "kata"}));
    let keys: Vec<_> = spec["tolerations"].as_array().unwrap().iter().map(|t| t["key"].clone()).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "kata"]);
    let same = json!({"overhead": {"cpu": "0.25", "memory": "120Mi"}});
    api.post(PODS, of_class("b", "sandbox", same)).await.expect(201);
    for (class, spec, why) in [
        ("none", json!({}), "pod rejected: RuntimeClass \"none\" not found"),
        (
            "sandbox",
            json!({"overhead": {"cpu": "1"}}),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            "sandbox",
            json!({"nodeSelector": {"runtime": "gvisor"}}),
            "conflict: runtimeClass.scheduling.nodeSelector[runtime] = kata; pod.spec.nodeSelector[runtime] = gvisor",
        ),
    ] {
        let refused = api.post(PODS, of_class("c", class, spec)).await.expect(403);
        assert_eq!(refused.message(), format!("pods \"c\" is forbidden: {why}"));
    }
    let mut plain = pod("d");
    plain["spec"]["overhead"] = json!({"cpu": "1"});
    let refused = api.post(PODS, plain).await.expect(403);
    let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
    assert!(refused.message().ends_with(why), "{}", refused.text);
}

#[tokio::test(start_paused = true)]
async fn a_pod_put_again_as_it_was_written_keeps_its_priority() {
    let api = Api::start().await;
    let mut written = pod("p");
    written["spec"]["serviceAccountName"] = "default".into();
    written["spec"]["automountServiceAccountToken"] = false.into();
    let made = api.post(PODS, written.clone()).await.expect(201).body;
    written["metadata"]["labels"]["turn"] = "2".into();
    let put = api.put(&format!("{PODS}/p"), written.clone()).await.expect(200).body;
    assert_eq!(put["metadata"]["labels"]["turn"], "2");
    assert_eq!(put["spec"], made["spec"]);
    // Another one than it has is still refused.
    written["spec"]["priority"] = 7.into();
    api.put(&format!("{PODS}/p"), written).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_not_scheduled_to_until_it_is_ready() {
    let api = Api::start().await;
    let not_ready = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let made = api.post("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.expect(201).body;
    assert_eq!(made["spec"]["taints"], json!([not_ready]));
    // The node controller takes it away, and it does not come back.
    let ready = api.patch("merge", "/api/v1/nodes/n", json!({"spec": {"taints": null}})).await.expect(200);
    assert_eq!(ready.body["spec"].get("taints"), None);
    // Taints that a kubelet registers with stay, and one that is there already is not repeated.
    let own = json!({"key": "own", "effect": "NoExecute"});
    let known = json!({"key": "node.kubernetes.io/not-ready", "value": "v", "effect": "NoSchedule"});
    let evicting = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"});
    for (name, taints, expected) in [
        ("a", json!([own]), json!([own, not_ready])),
        ("b", json!([own, known]), json!([own, known])),
        ("c", json!([evicting]), json!([evicting, not_ready])),
    ] {
        let node = json!({"metadata": {"name": name}, "spec": {"taints": taints}});
        assert_eq!(api.post("/api/v1/nodes", node).await.expect(201).body["spec"]["taints"], expected);
    }
    let apply = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d"}});
    let applied = api.apply("/api/v1/nodes/d?fieldManager=m", apply).await.expect(201).body;
    assert_eq!(applied["spec"]["taints"], json!([not_ready]));
}

#[tokio::test(start_paused = true)]
async fn the_cluster_has_its_namespaces_roles_and_own_service() {
    let config =
        ServerConfig { advertise: Some("192.0.2.7:6443".parse().unwrap()), ..ServerConfig::default() };
    let api = Api::with(config).await;
    let namespaces = api.get("/api/v1/namespaces").await.expect(200);
    assert_eq!(namespaces.names(), ["default", "kube-node-lease", "kube-public", "kube-system"]);
    let roles = api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles").await.expect(200);
    assert!(roles.names().contains(&"cluster-admin"));
    let service = api.get("/api/v1/namespaces/default/services/kubernetes").await.expect(200).body;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 6443);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = api.get(slices).await.expect(200).body;
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));
    let endpoints = api.get("/api/v1/namespaces/default/endpoints/kubernetes").await.expect(200).body;
    assert_eq!(endpoints["subsets"][0]["ports"][0]["port"], 6443);
    // Deleted by mistake, it comes back.
    api.delete("/api/v1/namespaces/default/services/kubernetes", serde_json::Value::Null).await.expect(200);
    tokio::time::sleep(std::time::Duration::from_secs(31)).await;
    let service = api.get("/api/v1/namespaces/default/services/kubernetes").await.expect(200).body;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
}

#[tokio::test(start_paused = true)]
async fn a_second_server_over_the_same_store_changes_nothing() {
    let api = Api::start().await;
    let before = api.store.revision().await.unwrap();
    api.server.stop();
    let again = Api::over(every_api(), api.store.clone()).await;
    assert_eq!(again.store.revision().await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn history_is_compacted() {
    let api = Api::start().await;
    let old = api.config_map("a", json!({})).await;
    tokio::time::sleep(std::time::Duration::from_secs(301)).await;
    api.patch("merge", "/api/v1/namespaces/default/configmaps/a", json!({"data": {"x": "y"}}))
        .await
        .expect(200);
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    let range = apiserver_store::Range {
        prefix: "/registry/configmaps/".to_owned(),
        revision: old.parse().unwrap(),
        ..apiserver_store::Range::default()
    };
    assert!(matches!(api.store.list(range).await, Err(apiserver_store::StoreError::Compacted { .. })));
}

/// The role lets DNS servers write any slice of `kube-system`: with another Service's, they would get its traffic.
#[tokio::test(start_paused = true)]
async fn dns_servers_write_no_slices_of_other_services() {
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
    let api = Api::start().await;
    let dns = api.as_user(Identity::authenticated("system:kube-dns", &[]));
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.244.0.0/24"}});
    api.post("/api/v1/nodes", node).await.expect(201);
    let slice = |name: &str, service: &str| {
        json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "dns.hawser.dev"}},
            "addressType": "IPv4", "ports": [],
            "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "n1"}],
        })
    };
    dns.post(SLICES, slice("kube-dns-n1", "kube-dns")).await.expect(201);
    let refused = dns.post(SLICES, slice("kube-dns-n2", "metrics-server")).await.expect(403);
    assert!(refused.message().contains("kubernetes.io/service-name=kube-dns"), "{}", refused.text);
    dns.post(SLICES, slice("metrics-n1", "kube-dns")).await.expect(403);
    // Nor does it turn its own into another's, or another's into its own, or delete it.
    let turned = slice("kube-dns-n1", "metrics-server");
    dns.put(&format!("{SLICES}/kube-dns-n1"), turned).await.expect(403);
    api.post(SLICES, slice("metrics-server-x", "metrics-server")).await.expect(201);
    dns.put(&format!("{SLICES}/metrics-server-x"), slice("metrics-server-x", "kube-dns")).await.expect(403);
    dns.delete(&format!("{SLICES}/metrics-server-x"), Value::Null).await.expect(403);
    dns.delete(&format!("{SLICES}/kube-dns-n1"), Value::Null).await.expect(200);
}

/// Somebody with the credentials of a DNS server names other addresses, which all pods' queries would go to.
#[tokio::test(start_paused = true)]
async fn dns_servers_name_no_address_but_their_nodes() {
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
    let api = Api::start().await;
    let add_node = async |name: &str, range: &str, ip: &str| {
        let node = json!({"metadata": {"name": name}, "spec": {"podCIDR": range}});
        api.post("/api/v1/nodes", node).await.expect(201);
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": ip}]}});
        api.patch("merge", &format!("/api/v1/nodes/{name}/status"), status).await.expect(200);
    };
    add_node("n1", "10.244.1.0/24", "192.0.2.1").await;
    add_node("n2", "10.244.2.0/24", "192.0.2.2").await;
    let rbac = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "dns-of-n1"}, "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "hawser:dns"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:node:n1"}],
    });
    api.post(&format!("/apis/{rbac}/v1/namespaces/kube-system/rolebindings"), binding).await.expect(201);
    let node_1 = Identity::authenticated("system:node:n1", &["system:nodes"]);
    let users = [Identity::authenticated("system:kube-dns", &[]), node_1];
    let slice = |node: &str, address: &str| {
        json!({
            "metadata": {"name": format!("kube-dns-{node}"), "labels": {"kubernetes.io/service-name": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "dns.hawser.dev"}},
            "addressType": "IPv4", "ports": [],
            "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": true}}],
        })
    };
    let own = format!("{SLICES}/kube-dns-n1");
    for user in users {
        let user = api.as_user(user);
        for foreign in ["10.244.2.1", "192.0.2.2", "10.96.0.1", "203.0.113.9"] {
            let refused = user.post(SLICES, slice("n1", foreign)).await.expect(403);
            assert!(refused.message().contains(&format!("{foreign} is neither")), "{}", refused.text);
        }
        user.post(SLICES, slice("n3", "10.244.3.1")).await.expect(403);
        for (address, code) in
            [("10.244.1.1", 200), ("10.244.2.1", 403), ("192.0.2.1", 200), ("192.0.2.2", 403)]
        {
            if api.get(&own).await.code == 404 {
                user.post(SLICES, slice("n1", address)).await.expect(201);
            }
            user.put(&own, slice("n1", address)).await.expect(code);
        }
        // The node loses its addresses; its server may still say that it ends.
        api.delete("/api/v1/nodes/n1", Value::Null).await.expect(200);
        user.put(&own, slice("n1", "192.0.2.1")).await.expect(403);
        let mut ended = slice("n1", "192.0.2.1");
        ended["endpoints"][0]["conditions"] = json!({"ready": false, "serving": false});
        user.put(&own, ended).await.expect(200);
        user.delete(&own, Value::Null).await.expect(200);
        add_node("n1", "10.244.1.0/24", "192.0.2.1").await;
    }
}

/// `kubectl apply` sends the tolerations of the manifest, without those that were added.
#[tokio::test(start_paused = true)]
async fn tolerations_that_were_added_come_back_and_empty_maps_go() {
    let api = Api::start().await;
    let mut object = pod("a");
    object["spec"]["tolerations"] = json!([{"key": "x", "operator": "Exists"}]);
    object["metadata"]["annotations"] = json!({});
    let mut made = api.post(PODS, object.clone()).await.expect(201).body;
    assert!(made["metadata"].get("annotations").is_none());
    let added = made["spec"]["tolerations"].clone();
    made["spec"]["tolerations"] = object["spec"]["tolerations"].clone();
    made["metadata"]["labels"] = json!({});
    let path = format!("{PODS}/a");
    let updated = api.put(&path, made).await.expect(200);
    assert_eq!(updated.body["spec"]["tolerations"], added);
    assert!(updated.body["metadata"].get("labels").is_none());
}

#[tokio::test(start_paused = true)]
async fn signing_requests_name_who_sent_them() {
    let api = Api::start().await;
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = include_str!("../../../../tests/clients/tests/kubectl/joe.csr.base64").trim();
    let request = json!({"metadata": {"name": "r"}, "spec": {
        "request": request, "signerName": "example.com/x", "usages": ["client auth"],
        "username": "system:admin", "groups": ["forged"], "uid": "forged", "extra": {"forged": ["x"]}}});
    let mut made = api.post(path, request.clone()).await.expect(201).body;
    let spec = made["spec"].clone();
    assert!(!["", "system:admin"].contains(&spec["username"].as_str().unwrap()));
    assert!(!spec.to_string().contains("forged"), "{spec}");
    // An update keeps the whole of it.
    made["spec"] = request["spec"].clone();
    assert_eq!(api.put(&format!("{path}/r"), made).await.expect(200).body["spec"], spec);
}

#[tokio::test(start_paused = true)]
async fn one_priority_class_is_the_default() {
    let api = Api::start().await;
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = |name: &str| json!({"metadata": {"name": name}, "value": 5, "globalDefault": true});
    let first = api.post(path, class("first")).await.expect(201).body;
    let refused = api.post(path, class("second")).await.expect(403);
    let why = "PriorityClass first is already marked as default. Only one default can exist";
    assert!(refused.message().contains(why), "{}", refused.text);
    api.put(&format!("{path}/first"), first).await.expect(200);
    api.delete(&format!("{path}/first"), json!(null)).await.expect(200);
    api.post(path, class("second")).await.expect(201);
}

/// Controllers remove the finalizers when nothing uses the objects; the test does it here.
#[tokio::test(start_paused = true)]
async fn storage_objects_do_not_go_while_they_may_be_in_use() {
    let api = Api::start().await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": "a", "finalizers": ["example.com/mine"]}, "spec": spec});
    let volume = json!({"metadata": {"name": "a", "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    let class = json!({"metadata": {"name": "a"}, "driverName": "d", "parameters": {"iops": "1"}});
    for (path, object, finalizers) in [
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            claim,
            vec!["example.com/mine", "kubernetes.io/pvc-protection"],
        ),
        ("/api/v1/persistentvolumes", volume, vec!["kubernetes.io/pv-protection"]),
        ("/apis/storage.k8s.io/v1/volumeattributesclasses", class, vec!["kubernetes.io/vac-protection"]),
    ] {
        let dry = api.post(&format!("{path}?dryRun=All"), object.clone()).await.expect(201).body;
        let made = api.post(path, object).await.expect(201).body;
        assert_eq!(made["metadata"]["finalizers"], json!(finalizers), "{path}");
        assert_eq!(dry["metadata"]["finalizers"], json!(finalizers), "{path}");
        let one = format!("{path}/a");
        let going = api.delete(&one, Value::Null).await.expect(200).body;
        assert!(going["metadata"]["deletionTimestamp"].is_string(), "{path}: {going}");
        api.get(&one).await.expect(200);
        api.patch("merge", &one, json!({"metadata": {"finalizers": null}})).await.expect(200);
        api.get(&one).await.expect(404);
    }
}

#[tokio::test(start_paused = true)]
async fn annotations_of_apparmor_become_fields_and_say_so() {
    let api = Api::start().await;
    let warnings = |reply: &crate::api::harness::Reply| {
        let texts = reply.headers.get_all("warning").iter();
        texts.map(|text| text.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut annotated = pod("p");
    let container = annotated["spec"]["containers"][0]["name"].as_str().unwrap().to_owned();
    let key = format!("container.apparmor.security.beta.kubernetes.io/{container}");
    annotated["metadata"]["annotations"] = json!({&key: "localhost/a"});
    let reply = api.post(PODS, annotated.clone()).await.expect(201);
    let profile = &reply.body["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
    assert_eq!(*profile, json!({"type": "Localhost", "localhostProfile": "a"}));
    let told = "deprecated since v1.30; use the \\\"appArmorProfile\\\" field instead";
    assert_eq!(warnings(&reply), [format!("299 - \"metadata.annotations[{key}]: {told}\"")]);
    // It is said although the pod is refused.
    annotated["spec"]["containers"][0]["image"] = "".into();
    annotated["metadata"]["name"] = "q".into();
    assert_eq!(warnings(&api.post(PODS, annotated).await.expect(422)).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_class_gets_the_default_one() {
    let api = Api::start().await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |name: &str, class: Value| {
        json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let made = api.post(claims, claim("early", Value::Null)).await.expect(201).body;
    assert_eq!(made["spec"].get("storageClassName"), None, "there is no class");
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    for (name, default) in [("plain", "false"), ("usual", "true")] {
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": default});
        let class =
            json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "example.com/p"});
        api.post(classes, class).await.expect(201);
    }
    for (name, asked, given) in
        [("none", Value::Null, "usual"), ("empty", json!(""), ""), ("other", json!("plain"), "plain")]
    {
        let made = api.post(claims, claim(name, asked)).await.expect(201).body;
        assert_eq!(made["spec"]["storageClassName"], given, "{name}");
    }
    // The class may come later, and the binder gives it then.
    let late = json!({"spec": {"storageClassName": "usual"}});
    api.patch("merge", &format!("{claims}/early"), late).await.expect(200);
}
