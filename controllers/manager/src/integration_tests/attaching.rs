//! Attachments of volumes to nodes, and volumes that are to grow.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;

const UNIQUE: &str = "kubernetes.io/csi/d.example.com^h";

impl Cluster {
    async fn create_node(&self, name: &str, annotations: Value) {
        let ready =
            json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": crate::testing::time(0)}]);
        let node =
            json!({"metadata": {"name": name, "annotations": annotations}, "status": {"conditions": ready}});
        self.create::<Node>("", node).await;
    }

    /// Creates a bound claim with its volume of this source.
    async fn create_volume(&self, name: &str, source: Value) {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "storageClassName": "s", "persistentVolumeReclaimPolicy": "Retain"});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let claim = json!({"metadata": {"name": name}, "spec": {"volumeName": name, "storageClassName": "s",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        self.create::<PersistentVolume>("", json!({"metadata": {"name": name}, "spec": spec})).await;
        self.create::<PersistentVolumeClaim>("ns", claim).await;
        self.pass(2).await;
    }

    async fn create_pod(&self, name: &str, node: &str) {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pod = json!({"metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [], "volumes": volumes}});
        self.create::<Pod>("ns", pod).await;
        self.pass(2).await;
    }

    /// Says what an external attacher says of all attachments.
    async fn answer_attachments(&self, status: Value) {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        for name in self.names("volumeattachments") {
            let patch = Patch::Merge(json!({"status": status}));
            attachments.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
        }
        self.pass(2).await;
    }

    async fn set_node(&self, name: &str, status: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"status": status}));
        nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        self.pass(2).await;
    }

    async fn delete_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "ns");
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        self.pass(2).await;
    }

    /// Returns the nodes of the attachments.
    fn attached_to(&self) -> Vec<String> {
        let all = self.api.all("volumeattachments");
        let mut nodes: Vec<String> =
            all.iter().map(|one| one["spec"]["nodeName"].as_str().unwrap().to_owned()).collect();
        nodes.sort();
        nodes
    }

    fn volumes_attached(&self, node: &str) -> Value {
        let nodes = self.api.all("nodes");
        nodes.iter().find(|one| one["metadata"]["name"] == node).unwrap()["status"]["volumesAttached"].clone()
    }
}

fn managed() -> Value {
    json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"})
}

fn csi() -> Value {
    json!({"csi": {"driver": "d.example.com", "volumeHandle": "h"}})
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_pod_to_another_node_when_it_is_not_in_use() {
    let cluster = Cluster::start().await;
    for name in ["n1", "n2"] {
        cluster.create_node(name, managed()).await;
    }
    cluster.create_volume("c", csi()).await;
    cluster.create_pod("p1", "n1").await;
    let attachment = cluster.api.all("volumeattachments").remove(0);
    let spec =
        json!({"attacher": "d.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "c"}});
    assert_eq!(attachment["spec"], spec);
    assert!(cluster.volumes_attached("n1").is_null());
    cluster.answer_attachments(json!({"attached": false, "attachError": {"message": "no room"}})).await;
    let failed = |text: &str| {
        let text = text.to_owned();
        assert!(cluster.messages("FailedAttachVolume").contains(&text), "{text}");
    };
    failed("AttachVolume.Attach failed for volume \"c\" : no room");
    cluster.answer_attachments(json!({"attached": true, "attachError": null})).await;
    assert_eq!(cluster.volumes_attached("n1"), json!([{"name": UNIQUE, "devicePath": ""}]));
    let told = cluster.messages("SuccessfulAttachVolume");
    assert_eq!(told, ["AttachVolume.Attach succeeded for volume \"c\" ".to_owned()].into());
    cluster.set_node("n1", json!({"volumesInUse": [UNIQUE]})).await;

    cluster.create_pod("p2", "n2").await;
    failed("Multi-Attach error for volume \"c\" Volume is already used by pod(s) p1");
    cluster.delete_pod("p1").await;
    cluster.delete_pod("p2").await;
    cluster.create_pod("p3", "n2").await;
    failed(
        "Multi-Attach error for volume \"c\" Volume is already exclusively attached to one node and can't be attached to another",
    );
    assert_eq!(cluster.attached_to(), ["n1"], "it is in use");
    assert_eq!(cluster.volumes_attached("n1")[0]["name"], UNIQUE);

    cluster.set_node("n1", json!({"volumesInUse": null})).await;
    assert_eq!(cluster.attached_to(), ["n2"]);
    assert!(cluster.volumes_attached("n1").is_null());
    let source = ("SuccessfulAttachVolume".to_owned(), "attachdetach-controller".to_owned());
    assert!(cluster.event_sources().contains(&source));
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_use_is_taken_from_an_unready_node_after_six_minutes_and_at_once_from_one_out_of_service()
{
    for is_out_of_service in [false, true] {
        let cluster = Cluster::start().await;
        cluster.create_node("n1", managed()).await;
        cluster.create_volume("c", csi()).await;
        cluster.create_pod("p1", "n1").await;
        cluster.answer_attachments(json!({"attached": true})).await;
        let unready =
            json!([{"type": "Ready", "status": "Unknown", "lastHeartbeatTime": crate::testing::time(0)}]);
        cluster.set_node("n1", json!({"volumesInUse": [UNIQUE], "conditions": unready})).await;
        cluster.delete_pod("p1").await;
        assert_eq!(cluster.attached_to(), ["n1"]);
        if is_out_of_service {
            let nodes: Api<Node> = Api::all(cluster.client.clone());
            let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
            let patch = Patch::Merge(json!({"spec": {"taints": [taint]}}));
            nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
        } else {
            cluster.pass(350).await;
            assert_eq!(cluster.attached_to(), ["n1"]);
            cluster.pass(10).await;
        }
        cluster.pass(2).await;
        assert!(cluster.attached_to().is_empty(), "{is_out_of_service}");
        assert!(cluster.volumes_attached("n1").is_null());
    }
}

/// A node may write its status, and so what it says of volumes that are none of its business.
#[tokio::test(start_paused = true)]
async fn a_node_cannot_keep_a_volume_from_others_by_what_it_says() {
    let cluster = Cluster::start().await;
    cluster.create_node("n1", managed()).await;
    cluster.create_node("hostile", managed()).await;
    cluster.create_volume("c", csi()).await;
    let more = (0..100).map(|number| format!("kubernetes.io/csi/d.example.com^{number}"));
    let names = std::iter::once(UNIQUE.to_owned()).chain(more);
    let attached: Vec<_> = names.map(|name| json!({"name": name, "devicePath": ""})).collect();
    let says = json!({"volumesAttached": attached, "volumesInUse": [UNIQUE]});
    cluster.set_node("hostile", says.clone()).await;
    cluster.create_pod("p1", "n1").await;
    assert_eq!(cluster.attached_to(), ["n1"]);
    cluster.answer_attachments(json!({"attached": true})).await;
    assert_eq!(cluster.volumes_attached("n1")[0]["name"], UNIQUE);
    cluster.set_node("hostile", says).await;
    assert!(cluster.volumes_attached("hostile").is_null(), "it is not attached there");
    let history = cluster.api.history("nodes");
    let writes = history.iter().filter(|(_, node)| node["metadata"]["name"] == "hostile").count();
    assert!(writes < 40, "{writes} writes for what a node says twice");
    cluster.delete_pod("p1").await;
    assert!(cluster.attached_to().is_empty(), "only the node where it is may say that it is in use");
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_is_never_seen_still_keeps_the_volume_from_other_nodes() {
    let cluster = Cluster::start().await;
    for name in ["n1", "n2"] {
        cluster.create_node(name, managed()).await;
    }
    cluster.create_volume("c", csi()).await;
    cluster.api.set_lag("volumeattachments", Duration::from_secs(300));
    cluster.create_pod("p1", "n1").await;
    // Longer than the ledger of own writes waits.
    cluster.pass(20).await;
    cluster.delete_pod("p1").await;
    cluster.create_pod("p2", "n2").await;
    cluster.pass(20).await;
    assert_eq!(cluster.attached_to(), ["n1"]);
    cluster.api.set_lag("volumeattachments", Duration::ZERO);
    cluster.pass(300).await;
    assert_eq!(cluster.attached_to(), ["n2"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_come_back_unseen_keeps_a_volume_in_use() {
    let cluster = Cluster::start().await;
    cluster.create_node("n1", managed()).await;
    cluster.create_volume("c", csi()).await;
    cluster.create_pod("p1", "n1").await;
    cluster.answer_attachments(json!({"attached": true})).await;
    cluster.set_node("n1", json!({"volumesInUse": [UNIQUE]})).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]);
    for taints in [taint, Value::Null] {
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
        cluster.pass(2).await;
        cluster.api.set_lag("nodes", Duration::from_secs(30));
        cluster.pass(2).await;
    }
    cluster.delete_pod("p1").await;
    cluster.pass(5).await;
    assert_eq!(cluster.attached_to(), ["n1"], "the taint is gone, which the cache does not show");
    cluster.pass(60).await;
    assert_eq!(cluster.attached_to(), ["n1"]);
}

/// Nodes whose kubelets attach by themselves, drivers that need no attachment, and attachments of others.
#[tokio::test(start_paused = true)]
async fn nothing_is_attached_that_is_not_for_the_control_plane_to_attach() {
    let cluster = Cluster::start().await;
    cluster.create_node("own", json!({})).await;
    cluster.create_node("n1", managed()).await;
    cluster.create_volume("c", csi()).await;
    let foreign = json!({"metadata": {"name": "foreign"}, "spec": {"attacher": "d.example.com", "nodeName": "n1",
        "source": {"persistentVolumeName": "c"}}});
    cluster.create::<VolumeAttachment>("", foreign).await;
    let unknown = json!({"metadata": {"name": "unknown"}, "spec": {"attacher": "x.example.com", "nodeName": "n1",
        "source": {"persistentVolumeName": "none"}}});
    cluster.create::<VolumeAttachment>("", unknown).await;
    let driver = json!({"metadata": {"name": "d.example.com"}, "spec": {"attachRequired": false}});
    cluster.create::<CSIDriver>("", driver).await;
    cluster.create_pod("p1", "own").await;
    cluster.create_pod("p2", "n1").await;
    assert_eq!(cluster.names("volumeattachments"), ["foreign", "unknown"]);
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    drivers.delete("d.example.com", &DeleteParams::default()).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(cluster.names("volumeattachments").len(), 3, "the driver may need one now");
    assert_eq!(cluster.attached_to(), ["n1", "n1", "n1"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_grows_is_handed_over_to_an_external_resizer() {
    let cluster = Cluster::start().await;
    cluster.create_volume("c", csi()).await;
    cluster.create_volume("e", json!({"awsElasticBlockStore": {"volumeID": "x"}})).await;
    assert!(cluster.messages("ExternalExpanding").is_empty(), "nothing has grown");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "ns");
    for name in ["c", "e"] {
        let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
        claims.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    cluster.pass(2).await;
    let words = [
        "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc",
        "waiting for an external controller to expand this PVC",
    ];
    assert_eq!(cluster.messages("ExternalExpanding"), words.map(str::to_owned).into());
    let resizer = |name: &str| {
        let all = cluster.api.all("persistentvolumeclaims");
        let claim = all.iter().find(|claim| claim["metadata"]["name"] == name).unwrap();
        claim["metadata"]["annotations"]["volume.kubernetes.io/storage-resizer"].clone()
    };
    assert_eq!((resizer("c"), resizer("e")), (Value::Null, json!("ebs.csi.aws.com")));
    let source = ("ExternalExpanding".to_owned(), "volume_expand".to_owned());
    assert!(cluster.event_sources().contains(&source));
}
