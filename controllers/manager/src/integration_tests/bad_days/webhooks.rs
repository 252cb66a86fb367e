//! Webhooks that refuse what a controller writes for one object, for a minute and for ever.

use std::ops::Range;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{Cluster, Failure, Fault, Line, begin, delete, labelled, names, object, pauses, post, selector};
use crate::testing::ambient;
use crate::testing::api::FakeApi;

/// A request of a user: path and body.
type Request = (Method, String, Value);

/// A write of a controller that is refused for an object of the name `bad`.
struct Row {
    controllers: &'static [&'static str],
    verb: &'static str,
    resource: &'static str,
    /// Second of the first attempt.
    first: u64,
    /// Requests that make an object of a name.
    make: fn(&str) -> Vec<Request>,
    /// True once the controller has done its work for the object.
    done: fn(&FakeApi, &str) -> bool,
    /// Reason, source, and beginning and end of the message around that of the webhook.
    event: Option<(&'static str, &'static str, &'static str)>,
}

const DENIED: &str = "admission webhook \"x\" denied the request: no";

fn create(path: &str, object: Value) -> Request {
    (Method::POST, path.to_owned(), object)
}

fn named(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Returns a workload with one replica.
fn workload(path: &str, name: &str) -> Vec<Request> {
    let spec = json!({"replicas": 1, "serviceName": name, "progressDeadlineSeconds": 600,
        "selector": selector(name), "template": labelled(name, "image:1")});
    vec![create(path, named(name, spec))]
}

fn job_spec(name: &str) -> Value {
    let mut template = labelled(name, "image:1");
    template["spec"]["restartPolicy"] = json!("Never");
    json!({"completions": 1, "parallelism": 1, "backoffLimit": 6, "selector": selector(name), "template": template})
}

fn has(api: &FakeApi, plural: &str, prefix: &str) -> bool {
    !names(api, plural, prefix).is_empty()
}

const APPS: &str = "/apis/apps/v1/namespaces/ns";

/// Controllers of workloads, which create objects and report it if they cannot.
fn workloads() -> Vec<Row> {
    vec![
        Row {
            controllers: &["deployment-controller"],
            verb: "create",
            resource: "replicasets",
            first: 6,
            make: |name| workload(&format!("{APPS}/deployments"), name),
            done: |api, name| has(api, "replicasets", name),
            event: Some((
                "ReplicaSetCreateError",
                "deployment-controller",
                "Failed to create new replica set \"bad-",
            )),
        },
        Row {
            controllers: &["replicaset-controller"],
            verb: "create",
            resource: "pods",
            first: 6,
            make: |name| workload(&format!("{APPS}/replicasets"), name),
            done: |api, name| has(api, "pods", name),
            event: Some(("FailedCreate", "replicaset-controller", "Error creating: admission")),
        },
        Row {
            controllers: &["statefulset-controller"],
            verb: "create",
            resource: "pods",
            first: 6,
            make: |name| workload(&format!("{APPS}/statefulsets"), name),
            done: |api, name| has(api, "pods", name),
            event: Some((
                "FailedCreate",
                "statefulset-controller",
                "Create Pod bad-0 in StatefulSet bad failed error: admission",
            )),
        },
        Row {
            controllers: &["daemonset-controller"],
            verb: "create",
            resource: "pods",
            first: 6,
            make: |name| workload(&format!("{APPS}/daemonsets"), name),
            done: |api, name| has(api, "pods", name),
            event: Some(("FailedCreate", "daemonset-controller", "Error creating: admission")),
        },
    ]
}

/// Other controllers that create objects and report it if they cannot.
fn other_creators() -> Vec<Row> {
    vec![
        Row {
            controllers: &["job-controller"],
            verb: "create",
            resource: "pods",
            first: 6,
            make: |name| vec![create("/apis/batch/v1/namespaces/ns/jobs", named(name, job_spec(name)))],
            done: |api, name| has(api, "pods", name),
            event: Some(("FailedCreate", "job-controller", "Error creating: admission")),
        },
        Row {
            controllers: &["cronjob-controller"],
            verb: "create",
            resource: "jobs",
            first: 1800,
            make: |name| {
                let spec = json!({"schedule": "*/30 * * * *", "jobTemplate": {"spec": job_spec(name)}});
                vec![create("/apis/batch/v1/namespaces/ns/cronjobs", named(name, spec))]
            },
            done: |api, name| has(api, "jobs", name),
            event: Some(("FailedCreate", "cronjob-controller", "Error creating job: admission")),
        },
        Row {
            controllers: &["endpointslice-controller"],
            verb: "create",
            resource: "endpointslices",
            first: 6,
            make: |name| {
                let spec = json!({"selector": {"app": name}, "ports": [{"port": 80}]});
                vec![create("/api/v1/namespaces/ns/services", named(name, spec))]
            },
            done: |api, name| has(api, "endpointslices", name),
            event: Some((
                "FailedToUpdateEndpointSlices",
                "endpoint-slice-controller",
                "Error updating Endpoint Slices for Service ns/bad: \
                 failed to create EndpointSlice for Service ns/bad: admission",
            )),
        },
        Row {
            controllers: &["endpoints-controller"],
            verb: "create",
            resource: "endpoints",
            first: 6,
            make: |name| {
                let spec = json!({"selector": {"app": name}, "ports": [{"port": 80}]});
                vec![create("/api/v1/namespaces/ns/services", named(name, spec))]
            },
            done: |api, name| has(api, "endpoints", name),
            event: Some((
                "FailedToCreateEndpoint",
                "endpoint-controller",
                "Failed to create endpoint for service ns/bad: admission",
            )),
        },
    ]
}

/// Controllers that change objects, of which Kubernetes reports nothing either if they cannot.
fn changers() -> Vec<Row> {
    vec![
        Row {
            controllers: &["disruption-controller"],
            verb: "patch",
            resource: "poddisruptionbudgets/status",
            first: 6,
            make: |name| {
                let spec = json!({"minAvailable": 1, "selector": selector(name)});
                vec![create("/apis/policy/v1/namespaces/ns/poddisruptionbudgets", named(name, spec))]
            },
            done: |api, name| !object(api, "poddisruptionbudgets", name).unwrap()["status"].is_null(),
            event: None,
        },
        Row {
            controllers: &["resourcequota-controller"],
            verb: "patch",
            resource: "resourcequotas/status",
            first: 6,
            make: |name| {
                vec![create(
                    "/api/v1/namespaces/ns/resourcequotas",
                    named(name, json!({"hard": {"pods": "9"}})),
                )]
            },
            done: |api, name| object(api, "resourcequotas", name).unwrap()["status"]["used"]["pods"] == "0",
            event: None,
        },
        Row {
            controllers: &["persistentvolume-binder-controller"],
            verb: "patch",
            resource: "persistentvolumes",
            first: 6,
            make: |name| {
                let access = json!(["ReadWriteOnce"]);
                let reserved = json!({"kind": "PersistentVolumeClaim", "namespace": "ns", "name": name});
                let volume = json!({"accessModes": access, "capacity": {"storage": "1Gi"},
                    "hostPath": {"path": "/x"}, "persistentVolumeReclaimPolicy": "Retain", "claimRef": reserved});
                let claim = json!({"accessModes": access, "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}}});
                vec![
                    create("/api/v1/persistentvolumes", named(name, volume)),
                    create("/api/v1/namespaces/ns/persistentvolumeclaims", named(name, claim)),
                ]
            },
            done: |api, name| {
                object(api, "persistentvolumeclaims", name).unwrap()["status"]["phase"] == "Bound"
            },
            event: None,
        },
    ]
}

/// Controllers that delete objects; Kubernetes reports nothing either if they cannot.
fn deleters() -> Vec<Row> {
    vec![
        Row {
            controllers: &["garbage-collector-controller"],
            verb: "delete",
            resource: "configmaps",
            first: 6,
            make: |name| {
                let gone = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
                let map = json!({"metadata": {"name": name, "ownerReferences": gone}});
                vec![create("/api/v1/namespaces/ns/configmaps", map)]
            },
            done: |api, name| !has(api, "configmaps", name),
            event: None,
        },
        Row {
            controllers: &["namespace-controller"],
            verb: "deletecollection",
            resource: "configmaps",
            first: 6,
            make: |name| {
                let map = json!({"metadata": {"name": "m"}});
                vec![
                    create("/api/v1/namespaces", json!({"metadata": {"name": name}})),
                    create(&format!("/api/v1/namespaces/{name}/configmaps"), map),
                    (Method::DELETE, format!("/api/v1/namespaces/{name}"), Value::Null),
                ]
            },
            done: |api, name| !has(api, "namespaces", name),
            event: None,
        },
    ]
}

async fn make(cluster: &Cluster, row: &Row, name: &str) {
    for (method, path, object) in (row.make)(name) {
        if method == Method::DELETE {
            delete(&cluster.client, &path).await;
        } else {
            post(&cluster.client, &path, &object).await;
        }
    }
}

/// Refuses what a row says for a minute; checks the attempts, the event, and the other objects of the controller.
async fn check(row: &Row, (code, reason): (u16, &'static str)) {
    let what = format!("{:?} {} {} {code}", row.controllers, row.verb, row.resource);
    let refused: Range<u64> = 5..row.first + 60;
    let (verbs, resources) = (&*Box::leak(Box::new([row.verb])), &*Box::leak(Box::new([row.resource])));
    let fault = Fault {
        verbs,
        resources,
        names: "bad",
        ..Fault::of(Failure::Refused(code, reason, DENIED), refused.clone())
    };
    let api = FakeApi::new();
    let line = Line::new(&api, vec![fault]);
    let cluster = begin(&api, line.client(), ambient(), row.controllers).await;
    let ready = json!([{"type": "Ready", "status": "True"}]);
    post(
        &cluster.client,
        "/api/v1/nodes",
        &json!({"metadata": {"name": "n1"}, "status": {"conditions": ready}}),
    )
    .await;
    line.until(6).await;
    make(&cluster, row, "bad").await;
    line.until(row.first.max(30)).await;
    make(&cluster, row, "good").await;
    line.until(row.first.max(30) + 2).await;
    assert!((row.done)(&api, "good"), "{what}: another object waits");
    assert!(!(row.done)(&api, "bad"), "{what}");
    line.until(refused.end).await;
    let mut tried = line.asked(refused.clone());
    tried.retain(|one| one.verb == row.verb && one.resource == row.resource && one.name.starts_with("bad"));
    assert!((8..=32).contains(&tried.len()), "{what}: {} attempts", tried.len());
    let mut pauses = pauses(&tried);
    // A budget whose status is refused is marked as one that cannot be judged, which is refused as well.
    pauses.retain(|pause| *pause > Duration::from_millis(6));
    let half = pauses.len() / 2;
    assert!(
        pauses[half..].is_sorted() && pauses.last() > Some(&Duration::from_secs(4)),
        "{what}: {pauses:?}"
    );
    if let Some((reason, source, message)) = row.event {
        let sources = cluster.event_sources();
        assert!(sources.contains(&(reason.to_owned(), source.to_owned())), "{what}: {sources:?}");
        let messages = cluster.messages(reason);
        let told = |text: &String| text.starts_with(message) && text.ends_with(DENIED);
        assert!(messages.iter().any(told), "{what}: {messages:?}");
    }
    line.until(refused.end + 100).await;
    assert!((row.done)(&api, "bad"), "{what}: it does not go on");
    let after = line.asked(refused.end + 40..refused.end + 100);
    assert!(after.len() < 200, "{what}: {} requests at rest", after.len());
}

const FORBIDDEN: (u16, &str) = (403, "Forbidden");
const INVALID: (u16, &str) = (422, "Invalid");

#[tokio::test(start_paused = true)]
async fn a_webhook_that_refuses_what_is_created_is_reported_and_asked_rarely_until_it_relents() {
    for row in workloads().into_iter().chain(other_creators()) {
        for refusal in [FORBIDDEN, INVALID] {
            check(&row, refusal).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_refuses_changes_and_deletions_is_asked_rarely_until_it_relents() {
    for row in changers().into_iter().chain(deleters()) {
        for refusal in [FORBIDDEN, INVALID] {
            check(&row, refusal).await;
        }
    }
}
