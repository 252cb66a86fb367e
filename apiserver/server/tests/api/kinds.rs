//! Tests of behaviour that is particular to some kinds.

use apiserver_meta::identity::Identity;
use base64::Engine as _;
use serde_json::{Value, json};

use crate::api::harness::Api;
use crate::api::resources::object;

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

#[tokio::test(start_paused = true)]
async fn some_kinds_are_created_by_an_update() {
    let api = Api::start().await;
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "h"}});
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    api.put(path, lease.clone()).await.expect(201);
    api.put(path, lease).await.expect(422);
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/r";
    let role = json!({"metadata": {"name": "r"}, "rules": []});
    // A right to update does not include creation.
    let rules = json!([{"verbs": ["update"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]}]);
    let granted = json!({"metadata": {"name": "updater"}, "rules": rules});
    api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", granted).await.expect(201);
    let binding = json!({"metadata": {"name": "updater"}, "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "updater"}});
    api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let user = api.as_user(Identity::authenticated("u", &[]));
    user.put(path, role.clone()).await.expect(403);
    api.put(path, role).await.expect(201);
    let map = json!({"metadata": {"name": "m"}});
    api.put("/api/v1/namespaces/default/configmaps/m", map).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn approval_and_signing_are_apart() {
    let api = Api::start().await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let object = object("certificates.k8s.io/v1", "certificatesigningrequests");
    let mut request = api.post(requests, object).await.expect(201).body;
    let path = format!("{requests}/test");
    assert_eq!(request["spec"]["username"], "admin");
    request["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
    let refused = api.put(&format!("{path}/status"), request.clone()).await.expect(422);
    assert!(
        refused.message().contains("updates may not add a condition of type \"Approved\""),
        "{}",
        refused.text
    );
    let approved = api.put(&format!("{path}/approval"), request).await.expect(200).body;
    assert!(approved["status"]["conditions"][0]["lastUpdateTime"].is_string());
    let pem = include_str!("../../../kinds/src/certificates/testdata/leaf.pem");
    let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
    let certificate = json!({"status": {"certificate": encoded}});
    let signed = api.patch("merge", &format!("{path}/status"), certificate).await.expect(200).body;
    assert_eq!(signed["status"]["conditions"], approved["status"]["conditions"]);
    let table = api.get_as(&path, TABLE).await.expect(200).body;
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert!(cells.contains(&json!("Approved,Issued")), "{cells:?}");
}

#[tokio::test(start_paused = true)]
async fn each_version_is_selected_by_its_own_fields() {
    let api = Api::start().await;
    for name in ["p", "q"] {
        let event = json!({"metadata": {"name": format!("e-{name}")}, "reason": "R", "type": "Normal",
            "involvedObject": {"kind": "Pod", "name": name, "namespace": "default"}, "source": {"component": "c"}});
        api.post("/api/v1/namespaces/default/events", event).await.expect(201);
    }
    for (root, selector, wanted) in [
        ("/api/v1", "involvedObject.name%3Dp", 200),
        ("/apis/events.k8s.io/v1", "regarding.name%3Dp,reportingController%3Dc", 200),
        ("/apis/events.k8s.io/v1", "involvedObject.name%3Dp", 400),
        ("/api/v1", "regarding.name%3Dp", 400),
    ] {
        let reply = api.get(&format!("{root}/events?fieldSelector={selector}")).await.expect(wanted);
        if wanted == 200 {
            assert_eq!(reply.names(), ["e-p"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_notes_when_its_phase_changes() {
    let api = Api::start().await;
    let path = "/api/v1/persistentvolumes";
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"}});
    let made = api.post(path, json!({"metadata": {"name": "v"}, "spec": spec})).await.expect(201).body;
    assert_eq!(made["status"]["lastPhaseTransitionTime"], made["metadata"]["creationTimestamp"]);
    let status = async |status: Value| {
        let patched = api.patch("merge", &format!("{path}/v/status"), json!({"status": status})).await;
        patched.expect(200).body["status"].clone()
    };
    let long_ago = "2020-01-01T00:00:00Z";
    let told = status(json!({"phase": "Available", "lastPhaseTransitionTime": long_ago})).await;
    assert_eq!(told["lastPhaseTransitionTime"], long_ago);
    assert_eq!(status(json!({"message": "m"})).await["lastPhaseTransitionTime"], long_ago);
    assert_ne!(status(json!({"phase": "Bound"})).await["lastPhaseTransitionTime"], long_ago);
}

/// The generation counts the annotations of a Deployment and the labels of an EndpointSlice, and of no
/// other kind.
#[tokio::test(start_paused = true)]
async fn two_kinds_count_more_than_their_spec() {
    let api = Api::start().await;
    let (apps, slices) = ("/apis/apps/v1/namespaces/default", "/apis/discovery.k8s.io/v1/namespaces/default");
    let deployment = format!("{apps}/deployments");
    let object = crate::api::harness::deployment("d");
    api.post(&deployment, object.clone()).await.expect(201);
    let mut set = object;
    (set["kind"], set["metadata"]["name"]) = (json!("ReplicaSet"), json!("s"));
    let replicas = format!("{apps}/replicasets");
    api.post(&replicas, set).await.expect(201);
    let slice = format!("{slices}/endpointslices");
    let endpoint = json!({"addresses": ["10.0.0.1"], "deprecatedTopology": {"zone": "z"}, "zone": "z"});
    let object = json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [endpoint]});
    let made = api.post(&slice, object).await.expect(201).body;
    assert_eq!(made["endpoints"][0].get("deprecatedTopology"), None);
    let change = async |path: &str, field: &str, value: &str| {
        let patch = json!({"metadata": {field: {"k": value}}});
        api.patch("merge", path, patch).await.expect(200).body["metadata"]["generation"].as_i64().unwrap()
    };
    for (path, field, generation) in [
        (format!("{deployment}/d"), "annotations", 2),
        (format!("{deployment}/d"), "labels", 2),
        (format!("{replicas}/s"), "annotations", 1),
        (format!("{slice}/e"), "labels", 2),
        (format!("{slice}/e"), "annotations", 2),
    ] {
        assert_eq!(change(&path, field, "v").await, generation, "{path} {field}");
        assert_eq!(change(&path, field, "v").await, generation, "{path} {field} again");
    }
    // A write of the status does not count, whatever else it contains.
    let status = json!({"metadata": {"annotations": {"k": "w"}}, "status": {"replicas": 1}});
    let written = api.patch("merge", &format!("{deployment}/d/status"), status).await.expect(200).body;
    assert_eq!(written["metadata"]["generation"], 2);
}

#[tokio::test(start_paused = true)]
async fn service_accounts_keep_the_names_of_their_secrets() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let secret = |name: &str| json!({"name": name, "namespace": "other", "kind": "Secret", "uid": "u"});
    let account = json!({"metadata": {"name": "a"}, "secrets": [secret("x")]});
    assert_eq!(api.post(path, account).await.expect(201).body["secrets"], json!([{"name": "x"}]));
    let patched = api.patch("merge", &format!("{path}/a"), json!({"secrets": [secret("y")]})).await;
    assert_eq!(patched.expect(200).body["secrets"], json!([{"name": "y"}]));
}

#[tokio::test(start_paused = true)]
async fn taints_of_devices_say_when_they_were_added() {
    let api = Api::start().await;
    let rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules";
    let taint = json!({"key": "k", "effect": "NoSchedule"});
    let rule = json!({"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": "d.example.com"}, "taint": taint}});
    let added = |object: &Value| object["spec"]["taint"]["timeAdded"].clone();
    let made = api.post(rules, rule).await.expect(201).body;
    assert_eq!(added(&made), made["metadata"]["creationTimestamp"]);
    let one = format!("{rules}/r");
    let long_ago = "2020-01-01T00:00:00Z";
    let patch = async |taint: Value| {
        api.patch("merge", &one, json!({"spec": {"taint": taint}})).await.expect(200).body
    };
    assert_eq!(added(&patch(json!({"timeAdded": long_ago})).await), long_ago);
    assert_eq!(added(&patch(json!({"value": "v"})).await), long_ago, "it is the same effect");
    assert_ne!(added(&patch(json!({"effect": "NoExecute"})).await), long_ago);
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "taints": [taint]}]}});
    let made = api.post("/apis/resource.k8s.io/v1/resourceslices", slice).await.expect(201).body;
    let taint = &made["spec"]["devices"][0]["taints"][0];
    assert_eq!(taint["timeAdded"], made["metadata"]["creationTimestamp"]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_range_without_a_name_gets_one() {
    let api = Api::start().await;
    let made = api.post("/api/v1/namespaces/default/limitranges", json!({"spec": {"limits": []}})).await;
    let name = made.expect(201).body["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(name.len(), 36, "{name}");
    api.post("/api/v1/namespaces/default/configmaps", json!({})).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn fields_of_features_that_are_off_are_not_kept() {
    let api = Api::start().await;
    let mut set = crate::api::harness::deployment("s");
    (set["kind"], set["spec"]["serviceName"]) = (json!("StatefulSet"), json!("s"));
    set["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    let path = "/apis/apps/v1/namespaces/default/statefulsets";
    let kept = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    let made = api.post(path, set).await.expect(201).body;
    assert_eq!(made["spec"]["updateStrategy"], kept);
    let strategy = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 3}}}});
    let patched = api.patch("merge", &format!("{path}/s"), strategy).await.expect(200).body;
    assert_eq!(patched["spec"]["updateStrategy"], kept);
    assert_eq!(patched["metadata"]["generation"], 1, "nothing has changed");
}
