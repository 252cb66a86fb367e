//! HorizontalPodAutoscalers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Cluster, template};
use crate::testing::api::Beside;

/// Returns a template whose container requests a CPU.
fn requesting() -> Value {
    let mut template = template("image:1");
    template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    template
}

async fn deploy(cluster: &Cluster, replicas: i32) {
    let spec = json!({"replicas": replicas, "progressDeadlineSeconds": 600,
        "selector": {"matchLabels": {"app": "web"}}, "template": requesting()});
    cluster.create::<Deployment>("ns", json!({"metadata": {"name": "web"}, "spec": spec})).await;
}

fn cpu(percent: i32) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

async fn autoscale(cluster: &Cluster, name: &str, target: Value, metrics: Value) {
    let spec = json!({"minReplicas": 1, "maxReplicas": 8, "scaleTargetRef": target, "metrics": metrics});
    let hpa = json!({"metadata": {"name": name}, "spec": spec});
    cluster.create::<HorizontalPodAutoscaler>("ns", hpa).await;
}

fn target(version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "name": name})
}

fn status(cluster: &Cluster, name: &str) -> Value {
    let all = cluster.api.all("horizontalpodautoscalers");
    all.iter().find(|hpa| hpa["metadata"]["name"] == name).unwrap()["status"].clone()
}

fn reasons(status: &Value) -> Vec<String> {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().map(|condition| condition["reason"].as_str().unwrap().to_owned()).collect()
}

/// Lets a metrics server answer that each pod uses this much of the CPU, in thousandths.
fn serve_cpu(cluster: &Cluster, usage: &Arc<AtomicUsize>) {
    let (usage, api) = (Arc::clone(usage), cluster.api.clone());
    cluster.api.serve(move |path| {
        let asked = path.strip_prefix("/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=")?;
        assert_eq!(asked, "app%3Dweb");
        let usage = usage.load(Ordering::Relaxed);
        let items = api.all("pods").into_iter().map(|pod| {
            json!({"metadata": {"name": pod["metadata"]["name"]}, "timestamp": "2030-01-01T00:00:00Z", "window": "30s",
                "containers": [{"name": "main", "usage": {"cpu": format!("{usage}m")}}]})
        });
        Some(Beside::Value(json!({"kind": "PodMetricsList", "items": items.collect::<Vec<_>>()})))
    });
}

#[tokio::test(start_paused = true)]
async fn a_deployment_follows_the_use_of_the_cpu_up_at_once_and_down_after_five_minutes() {
    let cluster = Cluster::start().await;
    let usage = Arc::new(AtomicUsize::new(900));
    serve_cpu(&cluster, &usage);
    deploy(&cluster, 2).await;
    cluster.pass(2).await;
    start_pods(&cluster).await;
    autoscale(&cluster, "web", target("apps/v1", "Deployment", "web"), json!([cpu(50)])).await;
    cluster.pass(14).await;
    assert_eq!(status(&cluster, "web"), Value::Null, "it is judged after a period");
    cluster.pass(4).await;
    let found = status(&cluster, "web");
    assert_eq!(reasons(&found), ["SucceededRescale", "ValidMetricFound", "DesiredWithinRange"], "{found}");
    assert_eq!((&found["currentReplicas"], &found["desiredReplicas"]), (&json!(2), &json!(4)));
    let current = json!({"averageUtilization": 90, "averageValue": "900m"});
    assert_eq!(
        found["currentMetrics"],
        json!([{"type": "Resource", "resource": {"name": "cpu", "current": current}}])
    );
    assert_eq!(cluster.names("pods").len(), 4, "the Deployment has followed");

    usage.store(100, Ordering::Relaxed);
    start_pods(&cluster).await;
    cluster.pass(240).await;
    let found = status(&cluster, "web");
    assert_eq!(
        (&found["desiredReplicas"], reasons(&found)[0].as_str()),
        (&json!(4), "ScaleDownStabilized"),
        "{found}"
    );
    cluster.pass(90).await;
    assert_eq!(status(&cluster, "web")["desiredReplicas"], 1);
    cluster.pass(15).await;
    assert_eq!(cluster.names("pods").len(), 1);
    let rescaled = ("SuccessfulRescale".to_owned(), "horizontal-pod-autoscaler".to_owned());
    assert!(cluster.event_sources().contains(&rescaled));
}

/// Does what kubelets would: all pods have been ready for long. They are on no node, so that no node has to live.
async fn start_pods(cluster: &Cluster) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    for name in cluster.names("pods") {
        let ready =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let body =
            json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": ready}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_api_of_metrics_nothing_is_scaled_and_the_status_says_so() {
    let cluster = Cluster::start().await;
    deploy(&cluster, 2).await;
    let web = || target("apps/v1", "Deployment", "web");
    let metric = |name: &str| json!({"name": name});
    let average = json!({"type": "AverageValue", "averageValue": "1"});
    autoscale(&cluster, "resource", web(), json!([cpu(50)])).await;
    cluster.pass(20).await;
    let found = status(&cluster, "resource");
    assert_eq!(reasons(&found), ["SucceededGetScale", "FailedGetResourceMetric"], "{found}");
    assert_eq!((&found["currentReplicas"], &found["desiredReplicas"]), (&json!(2), &json!(0)));
    assert_eq!(
        found["conditions"][1]["message"],
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for \
         resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested \
         resource (get pods.metrics.k8s.io)"
    );
    let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(cluster.client.clone(), "ns");
    hpas.delete("resource", &DeleteParams::default()).await.unwrap();
    for (name, source, reason, words) in [
        (
            "pods",
            json!({"type": "Pods", "pods": {"metric": metric("qps"), "target": average}}),
            "FailedGetPodsMetric",
            "unable to get metric qps: unable to fetch metrics from custom metrics API: no custom metrics API \
             (custom.metrics.k8s.io) registered",
        ),
        (
            "external",
            json!({"type": "External", "external": {"metric": metric("qps"), "target": average}}),
            "FailedGetExternalMetric",
            "unable to get external metric ns/qps/nil: unable to fetch metrics from external metrics API: the server \
             could not find the requested resource (get qps.external.metrics.k8s.io)",
        ),
    ] {
        autoscale(&cluster, name, web(), json!([source])).await;
        cluster.pass(20).await;
        let found = status(&cluster, name);
        assert_eq!(reasons(&found)[1], reason, "{found}");
        let message = format!("the HPA was unable to compute the replica count: {words}");
        assert_eq!(found["conditions"][1]["message"], message);
        hpas.delete(name, &DeleteParams::default()).await.unwrap();
    }
    assert_eq!(cluster.names("pods").len(), 2);
}

/// Lets servers answer for one external metric and three custom ones.
fn serve_external_and_custom(cluster: &Cluster) {
    cluster.api.serve(|path| {
        let value = match path {
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue?labelSelector=q%3D1" => "9",
            "/apis/custom.metrics.k8s.io/v1beta2" => {
                let none = json!({"kind": "APIResourceList", "groupVersion": "custom.metrics.k8s.io/v1beta2",
                    "resources": []});
                return Some(Beside::Value(none));
            }
            path if path.starts_with("/apis/custom.metrics.k8s.io/") => {
                let of = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/";
                assert!(
                    path == format!("{of}pods/*/qps?labelSelector=app%3Dweb")
                        || path == format!("{of}metrics/load")
                        || path == format!("{of}deployments.apps/web/hits?metricLabelSelector=a"),
                    "{path}"
                );
                "4"
            }
            "/apis" => {
                let version = json!({"groupVersion": "custom.metrics.k8s.io/v1beta2", "version": "v1beta2"});
                let group = json!({"name": "custom.metrics.k8s.io", "versions": [version]});
                let known = |name: &str, version: &str| {
                    let version = json!({"groupVersion": format!("{name}/{version}"), "version": version});
                    json!({"name": name, "versions": [version], "preferredVersion": version})
                };
                let groups = [group, known("apps", "v1"), known("batch", "v1"), known("autoscaling", "v2")];
                return Some(Beside::Value(json!({"kind": "APIGroupList", "groups": groups})));
            }
            _ => return None,
        };
        Some(Beside::Value(json!({"items": [{"describedObject": {"name": "web"}, "value": value}]})))
    });
}

#[tokio::test(start_paused = true)]
async fn any_kind_with_a_scale_is_scaled_and_others_are_reported() {
    let cluster = Cluster::start().await;
    // An autoscaler that is there from the start is judged some time within the first period.
    cluster.pass(1).await;
    serve_external_and_custom(&cluster);
    let spec = json!({"replicas": 2, "selector": {"app": "web"}, "template": template("image:1")});
    cluster.create::<ReplicationController>("ns", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let average = json!({"type": "AverageValue", "averageValue": "2"});
    let selector = json!({"matchLabels": {"q": "1"}});
    let queue = json!({"type": "External", "external": {"metric": {"name": "queue", "selector": selector},
        "target": average}});
    autoscale(&cluster, "web", target("v1", "ReplicationController", "web"), json!([queue])).await;
    autoscale(&cluster, "none", target("apps/v1", "Deployment", "none"), json!([cpu(50)])).await;
    autoscale(&cluster, "odd", target("example.com/v1", "Odd", "odd"), json!([cpu(50)])).await;
    cluster.pass(20).await;
    assert_eq!(cluster.api.all("replicationcontrollers")[0]["spec"]["replicas"], 4, "9 is less than twice 5");
    assert_eq!(reasons(&status(&cluster, "web")), ["SucceededRescale", "ValidMetricFound", "ScaleUpLimit"]);
    for (name, words) in [
        ("none", "GET apis/apps/v1/namespaces/ns/deployments/none/scale"),
        ("odd", "no matches for kind \"Odd\" in group \"example.com\""),
    ] {
        let found = status(&cluster, name);
        assert_eq!(reasons(&found), ["FailedGetScale"], "{found}");
        let message = format!("the HPA controller was unable to get the target's current scale: {words}");
        assert_eq!(found["conditions"][0]["message"], message);
    }

    // Metrics of pods, of an object and of the namespace; the highest counts.
    let custom = json!([
        {"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": "100"}}},
        {"type": "Object", "object": {"metric": {"name": "hits", "selector": {"matchExpressions": [
            {"key": "a", "operator": "Exists"}]}}, "describedObject": target("apps/v1", "Deployment", "web"),
            "target": {"type": "AverageValue", "averageValue": "1"}}},
        {"type": "Object", "object": {"metric": {"name": "load"}, "describedObject": target("v1", "Namespace", "other"),
            "target": {"type": "AverageValue", "averageValue": "2"}}}]);
    let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(cluster.client.clone(), "ns");
    let change = Patch::Merge(json!({"spec": {"metrics": custom}}));
    start_pods(&cluster).await;
    hpas.patch("web", &PatchParams::default(), &change).await.unwrap();
    cluster.pass(20).await;
    let found = status(&cluster, "web");
    assert_eq!(found["desiredReplicas"], 5, "the queue has asked for as many just now: {found}");
    let values: Vec<_> =
        found["currentMetrics"].as_array().unwrap().iter().map(|metric| metric["type"].clone()).collect();
    assert_eq!(values, ["Pods", "Object", "Object"], "{found}");
    assert_eq!(found["currentMetrics"][1]["object"]["current"], json!({"averageValue": "1"}), "{found}");
    assert_eq!(found["currentMetrics"][2]["object"]["current"], json!({"averageValue": "1"}), "{found}");
}

#[tokio::test(start_paused = true)]
async fn two_autoscalers_of_the_same_pods_scale_nothing_until_one_goes() {
    let cluster = Cluster::start().await;
    let usage = Arc::new(AtomicUsize::new(900));
    serve_cpu(&cluster, &usage);
    deploy(&cluster, 2).await;
    cluster.pass(2).await;
    start_pods(&cluster).await;
    autoscale(&cluster, "a", target("apps/v1", "Deployment", "none"), json!([cpu(95)])).await;
    autoscale(&cluster, "b", target("apps/v1", "Deployment", "web"), json!([cpu(95)])).await;
    cluster.pass(17).await;
    let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(cluster.client.clone(), "ns");
    let same = Patch::Merge(json!({"spec": {"scaleTargetRef": target("apps/v1", "Deployment", "web")}}));
    hpas.patch("a", &PatchParams::default(), &same).await.unwrap();
    usage.store(9000, Ordering::Relaxed);
    cluster.pass(31).await;
    let message = "pods by selector app=web are controlled by multiple HPAs: [ns/a ns/b]";
    for name in ["a", "b"] {
        let found = status(&cluster, name);
        assert_eq!(found["conditions"][1]["message"], message, "{found}");
    }
    let deployments = || cluster.api.all("deployments")[0]["spec"]["replicas"].clone();
    let before = deployments();
    cluster.pass(60).await;
    assert_eq!(deployments(), before);
    hpas.delete("b", &DeleteParams::default()).await.unwrap();
    cluster.pass(31).await;
    assert_eq!(deployments(), 8, "{}", status(&cluster, "a"));
}

#[tokio::test(start_paused = true)]
async fn a_server_of_metrics_that_hangs_holds_up_no_others_and_names_lead_nowhere_else() {
    let cluster = Cluster::start().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    cluster.api.serve(move |path| {
        if path.starts_with("/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/hangs") {
            return Some(Beside::Silence);
        }
        log.lock().unwrap().push(path.to_owned());
        path.starts_with("/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/fast")
            .then(|| Beside::Value(json!({"items": [{"value": "6"}]})))
    });
    let external = |name: &str| {
        let target = json!({"type": "AverageValue", "averageValue": "1"});
        json!([{"type": "External", "external": {"metric": {"name": name}, "target": target}}])
    };
    for number in 0..40 {
        let name = format!("hangs-{number}");
        replicate(&cluster, &name).await;
        autoscale(&cluster, &name, target("v1", "ReplicationController", &name), external("hangs")).await;
    }
    for name in ["fast", "worse"] {
        replicate(&cluster, name).await;
    }
    autoscale(&cluster, "fast", target("v1", "ReplicationController", "fast"), external("fast")).await;
    autoscale(&cluster, "evil", target("v1", "ReplicationController", "../secrets/x?"), external("fast"))
        .await;
    let worse = external("../../../../../api/v1/secrets");
    autoscale(&cluster, "worse", target("v1", "ReplicationController", "worse"), worse).await;
    cluster.pass(45).await;
    assert_eq!(status(&cluster, "fast")["desiredReplicas"], 4, "{}", status(&cluster, "fast"));
    let hangs = status(&cluster, "hangs-0");
    let message = "unable to fetch metrics from external metrics API: the server did not answer in time";
    assert!(hangs["conditions"][1]["message"].as_str().unwrap().ends_with(message), "{hangs}");
    let evil = status(&cluster, "evil");
    let message = "invalid name of the scale target: \"../secrets/x?\"";
    assert!(evil["conditions"][0]["message"].as_str().unwrap().ends_with(message), "{evil}");
    assert_eq!(reasons(&status(&cluster, "worse"))[1], "FailedGetExternalMetric");
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|path| path.ends_with("/scale")));
    assert!(asked.iter().all(|path| !path.contains("..") && !path.contains("secrets/")), "{asked:?}");
}

/// Creates a ReplicationController with two pods of its own.
async fn replicate(cluster: &Cluster, name: &str) {
    let mut template = template("image:1");
    template["metadata"]["labels"] = json!({"app": name});
    let spec = json!({"replicas": 2, "selector": {"app": name}, "template": template});
    cluster.create::<ReplicationController>("ns", json!({"metadata": {"name": name}, "spec": spec})).await;
}

#[tokio::test(start_paused = true)]
async fn each_autoscaler_is_judged_once_a_period_however_often_it_changes() {
    let cluster = Cluster::start().await;
    let judged = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&judged);
    cluster.api.serve(move |path| {
        count.fetch_add(usize::from(path.ends_with("/scale")), Ordering::Relaxed);
        None
    });
    deploy(&cluster, 2).await;
    for number in 0..20 {
        let name = format!("hpa-{number}");
        autoscale(&cluster, &name, target("apps/v1", "Deployment", "web"), json!([cpu(50)])).await;
    }
    let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(cluster.client.clone(), "ns");
    for second in 0..60 {
        for number in 0..20 {
            let change = Patch::Merge(json!({"metadata": {"annotations": {"second": second.to_string()}}}));
            hpas.patch(&format!("hpa-{number}"), &PatchParams::default(), &change).await.unwrap();
        }
        cluster.pass(1).await;
    }
    let judged = judged.load(Ordering::Relaxed);
    assert!((20 * 3..=20 * 4).contains(&judged), "{judged} judgements of 20 in four periods");
}

#[tokio::test(start_paused = true)]
async fn a_scale_that_others_write_is_written_again_unless_they_set_another_number() {
    let cluster = Cluster::start().await;
    // An autoscaler that is there from the start is judged some time within the first period.
    cluster.pass(1).await;
    let (asked, api) = (Arc::new(AtomicUsize::new(0)), cluster.api.clone());
    let count = Arc::clone(&asked);
    cluster.api.serve(move |path| {
        path.starts_with("/apis/external.metrics.k8s.io/").then(|| {
            // The scale has been read, and is not yet written.
            let number = count.fetch_add(1, Ordering::Relaxed);
            api.change("replicationcontrollers", "web", |object| match number {
                0 => object["metadata"]["annotations"] = json!({"touched": "yes"}),
                1 => object["spec"]["replicas"] = json!(7),
                _ => {}
            });
            Beside::Value(json!({"items": [{"value": if number == 0 { "4" } else { "2" }}]}))
        })
    });
    replicate(&cluster, "web").await;
    let average = json!({"type": "AverageValue", "averageValue": "1"});
    let metric = json!({"type": "External", "external": {"metric": {"name": "qps"}, "target": average}});
    let hpa = json!({"metadata": {"name": "web"}, "spec": {"minReplicas": 1, "maxReplicas": 8, "metrics": [metric],
        "scaleTargetRef": target("v1", "ReplicationController", "web"),
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}});
    cluster.create::<HorizontalPodAutoscaler>("ns", hpa).await;
    let replicas = || cluster.api.all("replicationcontrollers")[0]["spec"]["replicas"].clone();
    cluster.pass(20).await;
    assert_eq!((reasons(&status(&cluster, "web"))[0].as_str(), replicas()), ("SucceededRescale", json!(4)));
    cluster.pass(15).await;
    let found = status(&cluster, "web");
    assert_eq!((reasons(&found)[0].as_str(), replicas()), ("FailedUpdateScale", json!(7)), "{found}");
    assert_eq!(found["desiredReplicas"], 4, "{found}");
    let failed = ("FailedRescale".to_owned(), "horizontal-pod-autoscaler".to_owned());
    assert!(cluster.event_sources().contains(&failed));
    cluster.pass(15).await;
    assert_eq!((reasons(&status(&cluster, "web"))[0].as_str(), replicas()), ("SucceededRescale", json!(2)));
    let history = cluster.api.history("horizontalpodautoscalers").into_iter();
    let desired: Vec<_> = history.map(|(_, hpa)| hpa["status"]["desiredReplicas"].clone()).collect();
    assert!(
        desired.windows(2).any(|pair| pair == [json!(7), json!(2)]),
        "7 was noted before it was changed: {desired:?}"
    );
}
