//! LimitRanges: defaults and bounds for containers, pods and claims.

use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, pod};

const CORE: &str = "/api/v1/namespaces/default";

async fn range(api: &Api, name: &str, limits: Value) {
    let object = json!({"metadata": {"name": name}, "spec": {"limits": limits}});
    api.post(&format!("{CORE}/limitranges"), object).await.expect(201);
}

async fn make_pod(api: &Api, name: &str, resources: Value) -> Reply {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = resources;
    api.post(&format!("{CORE}/pods"), pod).await
}

#[tokio::test(start_paused = true)]
async fn pods_get_the_defaults_of_their_namespace_and_stay_within_its_bounds() {
    let api = Api::start().await;
    let limits = json!([{"type": "Container", "min": {"cpu": "50m"}, "max": {"cpu": "500m"}, "default": {"cpu": "200m"},
        "defaultRequest": {"cpu": "100m"}, "maxLimitRequestRatio": {"cpu": "4"}}]);
    range(&api, "r", limits).await;
    let made = make_pod(&api, "a", json!({})).await.expect(201).body;
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "200m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    let refused =
        make_pod(&api, "b", json!({"limits": {"cpu": "1"}, "requests": {"cpu": "10m"}})).await.expect(403);
    assert_eq!(
        refused.message(),
        "pods \"b\" is forbidden: [minimum cpu usage per Container is 50m, but request is 10m, \
         maximum cpu usage per Container is 500m, but limit is 1, \
         cpu max limit to request ratio per Container is 4, but provided ratio is 100.000000]"
    );
    // Neither does a resize leave the bounds; an ordinary update is not looked at.
    let size = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": "500m"}});
        json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
    };
    let path = format!("{CORE}/pods/a");
    let refused = api.patch("strategic-merge", &format!("{path}/resize"), size("20m")).await.expect(403);
    assert!(refused.message().contains("minimum cpu usage per Container is 50m, but request is 20m"));
    api.patch("strategic-merge", &format!("{path}/resize"), size("300m")).await.expect(200);
    range(&api, "s", json!([{"type": "Container", "min": {"cpu": "450m"}}])).await;
    api.patch("merge", &path, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    // Another namespace has no bounds.
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.expect(201);
    api.post("/api/v1/namespaces/other/serviceaccounts", json!({"metadata": {"name": "default"}}))
        .await
        .expect(201);
    api.post("/api/v1/namespaces/other/pods", pod("p")).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn defaults_satisfy_quotas_and_claims_are_bounded() {
    let api = Api::start().await;
    let limits = json!([{"type": "Container", "default": {"cpu": "1"}},
        {"type": "Pod", "max": {"cpu": "1"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]);
    range(&api, "r", limits).await;
    let hard = json!({"requests.cpu": "1"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    api.post(&format!("{CORE}/resourcequotas"), quota).await.expect(201);
    let status = json!({"status": {"hard": hard, "used": {"requests.cpu": "0"}}});
    api.patch("merge", &format!("{CORE}/resourcequotas/q/status"), status).await.expect(200);
    make_pod(&api, "a", json!({})).await.expect(201);
    let quota = api.get(&format!("{CORE}/resourcequotas/q")).await.expect(200).body;
    assert_eq!(quota["status"]["used"]["requests.cpu"], "1");
    let refused = make_pod(&api, "b", json!({"limits": {"cpu": "2"}})).await.expect(403);
    assert_eq!(refused.message(), "pods \"b\" is forbidden: maximum cpu usage per Pod is 1, but limit is 2");
    let claim = |storage: &str| {
        json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage}}}})
    };
    let refused = api.post(&format!("{CORE}/persistentvolumeclaims"), claim("2Gi")).await.expect(403);
    assert_eq!(
        refused.message(),
        "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, \
         but request is 2Gi"
    );
    api.post(&format!("{CORE}/persistentvolumeclaims"), claim("1Gi")).await.expect(201);
}
