//! Metrics of single controllers, from what they do.

use std::collections::BTreeMap;

use controllers_runtime::metrics::Value;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::{Cluster, send_heartbeat};

/// Returns the values of a metric by its labels; of a histogram, the number of its observations.
fn measured(cluster: &Cluster, name: &str) -> BTreeMap<String, f64> {
    let series = cluster.metrics.series();
    let values =
        series.into_iter().filter(|series| series.measure.name == name).flat_map(|series| series.values);
    let number = |value| match value {
        Value::Number(number) => number,
        Value::Histogram { counts, .. } => counts.iter().sum::<u64>() as f64,
    };
    values.map(|(labels, value)| (labels.join(" "), number(value))).collect()
}

fn rows<const N: usize>(rows: [(&str, f64); N]) -> BTreeMap<String, f64> {
    rows.map(|(labels, number)| (labels.to_owned(), number)).into()
}

#[tokio::test(start_paused = true)]
async fn slices_and_what_changes_them_are_counted() {
    let cluster = Cluster::start().await;
    assert!(
        measured(&cluster, "endpoint_slice_controller_syncs").is_empty(),
        "nothing is shown that has not been"
    );
    let service = json!({"metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                 "ipFamilies": ["IPv4"], "ports": [{"port": 80, "protocol": "TCP"}]}});
    cluster.create::<Service>("ns", service).await;
    cluster.pass(2).await;
    assert_eq!(measured(&cluster, "endpoint_slice_controller_changes"), rows([("create", 1.0)]));
    assert_eq!(measured(&cluster, "endpoint_slice_controller_num_endpoint_slices"), rows([("", 1.0)]));
    cluster
        .create::<Pod>("ns", json!({"metadata": {"name": "a", "labels": {"app": "web"}}, "spec": {}}))
        .await;
    cluster.run_pods("n").await;
    cluster.pass(2).await;
    let changes = measured(&cluster, "endpoint_slice_controller_changes");
    assert!(changes["update"] >= 1.0, "{changes:?}");
    let syncs = measured(&cluster, "endpoint_slice_controller_syncs");
    assert!(syncs["success"] >= 2.0 && !syncs.contains_key("error"), "{syncs:?}");
}

#[tokio::test(start_paused = true)]
async fn jobs_and_their_pods_are_counted_as_they_end() {
    let cluster = Cluster::start().await;
    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 6, "ttlSecondsAfterFinished": 5,
        "selector": {"matchLabels": {"job": "c"}}, "template": {"metadata": {"labels": {"job": "c"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}});
    let cron = json!({"metadata": {"name": "c"},
        "spec": {"schedule": "* * * * *", "suspend": false, "jobTemplate": {"spec": spec}}});
    cluster.create::<CronJob>("ns", cron).await;
    cluster.pass(65).await;
    assert_eq!(
        measured(&cluster, "cronjob_controller_job_creation_skew_duration_seconds"),
        rows([("", 1.0)])
    );
    let syncs = measured(&cluster, "job_controller_job_syncs_total");
    assert!(syncs["NonIndexed succeeded pods_created"] >= 1.0, "{syncs:?}");
    assert_eq!(measured(&cluster, "job_controller_job_pods_creation_total"), rows([("new succeeded", 1.0)]));
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    for name in cluster.names("pods") {
        pods.patch_status(&name, &PatchParams::default(), &ended).await.unwrap();
    }
    cluster.pass(3).await;
    assert_eq!(
        measured(&cluster, "job_controller_job_pods_finished_total"),
        rows([("NonIndexed succeeded", 1.0)])
    );
    let finished = measured(&cluster, "job_controller_jobs_finished_total");
    assert_eq!(finished, rows([("NonIndexed succeeded CompletionsReached", 1.0)]));
    cluster.pass(10).await;
    assert_eq!(
        measured(&cluster, "ttl_after_finished_controller_job_deletion_duration_seconds"),
        rows([("", 1.0)])
    );
    let durations = measured(&cluster, "job_controller_job_sync_duration_seconds");
    assert_eq!(durations, measured(&cluster, "job_controller_job_syncs_total"));
}

#[tokio::test(start_paused = true)]
async fn nodes_are_counted_by_zone_and_their_pods_as_they_are_driven_away() {
    let cluster = Cluster::start().await;
    for (name, zone) in [("a", "z1"), ("b", "z1"), ("c", "z2")] {
        let labels = json!({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": zone});
        cluster.create::<Node>("", json!({"metadata": {"name": name, "labels": labels}})).await;
        send_heartbeat(&cluster, name, 0).await;
    }
    cluster
        .create::<Pod>("ns", json!({"metadata": {"name": "p"}, "spec": {"nodeName": "a", "containers": []}}))
        .await;
    cluster.pass(2).await;
    assert_eq!(measured(&cluster, "node_collector_zone_size"), rows([("r:\0:z1", 2.0), ("r:\0:z2", 1.0)]));
    assert_eq!(
        measured(&cluster, "node_collector_zone_health"),
        rows([("r:\0:z1", 100.0), ("r:\0:z2", 100.0)])
    );
    assert!(measured(&cluster, "node_collector_evictions_total").is_empty());
    for second in 1..10 {
        cluster.pass(10).await;
        for name in ["b", "c"] {
            send_heartbeat(&cluster, name, second).await;
        }
    }
    cluster.pass(1).await;
    assert_eq!(measured(&cluster, "node_collector_evictions_total"), rows([("r:\0:z1", 1.0)]));
    assert_eq!(
        measured(&cluster, "node_collector_zone_health"),
        rows([("r:\0:z1", 50.0), ("r:\0:z2", 100.0)])
    );
    assert_eq!(
        measured(&cluster, "node_collector_unhealthy_nodes_in_zone"),
        rows([("r:\0:z1", 1.0), ("r:\0:z2", 0.0)])
    );
    assert_eq!(measured(&cluster, "taint_eviction_controller_pod_deletions_total"), rows([("", 1.0)]));
    let delays = measured(&cluster, "taint_eviction_controller_pod_deletion_duration_seconds");
    assert_eq!(delays, rows([("", 1.0)]));
}

#[tokio::test(start_paused = true)]
async fn volumes_certificates_and_collected_pods_are_counted() {
    let cluster = Cluster::start().await;
    let volume = json!({"metadata": {"name": "v"},
        "spec": {"storageClassName": "slow", "hostPath": {"path": "/a"}, "capacity": {"storage": "1Gi"},
                 "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain"}});
    cluster.create::<PersistentVolume>("", volume).await;
    cluster.create::<Node>("", json!({"metadata": {"name": "gone"}})).await;
    send_heartbeat(&cluster, "gone", 0).await;
    let spec = json!({"nodeName": "gone", "containers": [],
        "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "none",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}]});
    cluster.create::<Pod>("ns", json!({"metadata": {"name": "p"}, "spec": spec})).await;
    cluster.pass(2).await;
    assert_eq!(measured(&cluster, "pv_collector_unbound_pv_count"), rows([("slow", 1.0)]));
    assert_eq!(
        measured(&cluster, "pv_collector_total_pv_count"),
        rows([("kubernetes.io/host-path Filesystem", 1.0)])
    );
    assert_eq!(measured(&cluster, "pv_collector_unbound_pvc_count"), rows([("ns none ", 1.0)]));
    assert_eq!(measured(&cluster, "ephemeral_volume_controller_create_total"), rows([("", 1.0)]));
    assert!(measured(&cluster, "ephemeral_volume_controller_create_failures_total").is_empty());
    let published = measured(&cluster, "root_ca_cert_publisher_sync_total");
    assert!(published["200"] >= 1.0, "{published:?}");
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.delete("gone", &DeleteParams::default()).await.unwrap();
    cluster.pass(90).await;
    assert_eq!(measured(&cluster, "pod_gc_collector_force_delete_pods_total"), rows([("ns orphaned", 1.0)]));
}
