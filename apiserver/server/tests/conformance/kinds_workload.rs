//! Kinds of workloads. Nothing acts on them here: their controllers have tests of their own.

use serde_json::{Value, json};

use crate::api::harness::Api;
use crate::conformance::operations::{Kind, condition, operations, template};

fn workload(extra: &Value) -> Value {
    let mut object =
        json!({"spec": {"selector": {"matchLabels": {"app": "e2e"}}, "template": template("e2e")}});
    for (key, value) in extra.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

#[tokio::test]
async fn deployments() {
    let kind = Kind::new("apps", "v1", "deployments", &workload(&json!({"replicas": 1})));
    operations(kind.with_status(json!({"replicas": 1, "conditions": [condition("StatusUpdate")]}))).await;
}

#[tokio::test]
async fn replica_sets() {
    let kind = Kind::new("apps", "v1", "replicasets", &workload(&json!({"replicas": 1})));
    operations(kind.with_status(json!({"replicas": 1, "conditions": [condition("StatusUpdate")]}))).await;
}

#[tokio::test]
async fn stateful_sets() {
    let kind =
        Kind::new("apps", "v1", "statefulsets", &workload(&json!({"serviceName": "s", "replicas": 1})));
    operations(kind.with_status(json!({"replicas": 1, "conditions": [condition("StatusUpdate")]}))).await;
}

#[tokio::test]
async fn daemon_sets() {
    let kind = Kind::new("apps", "v1", "daemonsets", &workload(&json!({})));
    operations(
        kind.with_status(json!({"currentNumberScheduled": 1, "conditions": [condition("StatusUpdate")]})),
    )
    .await;
}

#[tokio::test]
async fn replication_controllers() {
    let object = json!({"spec": {"replicas": 1, "selector": {"app": "e2e"}, "template": template("e2e")}});
    let kind = Kind::new("", "v1", "replicationcontrollers", &object);
    operations(kind.with_status(json!({"replicas": 1}))).await;
}

#[tokio::test]
async fn controller_revisions() {
    let object = json!({"data": {"spec": {"template": {}}}, "revision": 1});
    operations(Kind::new("apps", "v1", "controllerrevisions", &object)).await;
}

fn job_spec() -> Value {
    json!({"suspend": true, "parallelism": 2, "completions": 4, "backoffLimit": 6,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}})
}

#[tokio::test]
async fn jobs() {
    let kind = Kind::new("batch", "v1", "jobs", &json!({"spec": job_spec()}));
    operations(kind.with_status(json!({"conditions": [condition("CustomConditionType")]}))).await;
}

#[tokio::test]
async fn cron_jobs() {
    let object = json!({"spec": {"schedule": "*/1 * * * *", "jobTemplate": {"spec": job_spec()}}});
    let kind = Kind::new("batch", "v1", "cronjobs", &object);
    operations(kind.with_status(json!({"lastScheduleTime": "2026-01-01T00:00:00Z"}))).await;
}

#[tokio::test]
async fn pod_disruption_budgets() {
    let object = json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "e2e"}}}});
    let kind = Kind::new("policy", "v1", "poddisruptionbudgets", &object);
    operations(kind.with_status(
        json!({"currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0, "expectedPods": 1}),
    ))
    .await;
}

#[tokio::test]
async fn pod_templates() {
    operations(Kind::new("", "v1", "podtemplates", &json!({"template": template("e2e")}))).await;
}

#[tokio::test]
async fn pods() {
    let object = json!({"spec": template("e2e")["spec"]});
    let kind = Kind::new("", "v1", "pods", &object);
    operations(kind.with_status(json!({"phase": "Running", "conditions": [condition("StatusUpdate")]})))
        .await;
}

#[tokio::test]
async fn scales_are_read_replaced_and_patched() {
    let api = Api::start().await;
    let core = json!({"spec": {"replicas": 1, "selector": {"app": "e2e"}, "template": template("e2e")}});
    let apps = workload(&json!({"replicas": 1}));
    let mut set = apps.clone();
    set["spec"]["serviceName"] = "s".into();
    for (root, plural, object) in [
        ("/apis/apps/v1", "deployments", &apps),
        ("/apis/apps/v1", "replicasets", &apps),
        ("/apis/apps/v1", "statefulsets", &set),
        ("/api/v1", "replicationcontrollers", &core),
    ] {
        let path = format!("{root}/namespaces/default/{plural}");
        let mut object = object.clone();
        object["metadata"]["name"] = "scaled".into();
        api.post(&path, object).await.expect(201);
        let one = format!("{path}/scaled");
        let mut scale = api.get(&format!("{one}/scale")).await.expect(200).body;
        assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(1)), "{plural}");
        assert_eq!(scale["status"]["selector"], "app=e2e");
        scale["spec"]["replicas"] = 2.into();
        assert_eq!(api.put(&format!("{one}/scale"), scale).await.expect(200).body["spec"]["replicas"], 2);
        let patch = json!({"spec": {"replicas": 4}});
        api.patch("merge", &format!("{one}/scale"), patch).await.expect(200);
        assert_eq!(api.get(&one).await.body["spec"]["replicas"], 4, "{plural}");
    }
}
