//! Kinds of storage and devices, configuration, and what cannot be changed.

use serde_json::{Value, json};

use crate::api::harness::Api;
use crate::conformance::operations::{Kind, condition, operations};

const STORAGE: &str = "storage.k8s.io";

#[tokio::test]
async fn csi_drivers() {
    let object = json!({"spec": {"attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]}});
    operations(Kind::new(STORAGE, "v1", "csidrivers", &object).of_cluster()).await;
}

#[tokio::test]
async fn csi_nodes() {
    let object = json!({"spec": {"drivers": [{"name": "driver.example.com", "nodeID": "n", "topologyKeys": ["zone"]}]}});
    operations(Kind::new(STORAGE, "v1", "csinodes", &object).of_cluster()).await;
}

#[tokio::test]
async fn csi_storage_capacities() {
    let object = json!({"storageClassName": "class", "capacity": "1Gi", "nodeTopology": {"matchLabels": {"zone": "a"}}});
    operations(Kind::new(STORAGE, "v1", "csistoragecapacities", &object)).await;
}

#[tokio::test]
async fn storage_classes() {
    let object = json!({"provisioner": "e2e.example.com", "reclaimPolicy": "Retain"});
    operations(Kind::new(STORAGE, "v1", "storageclasses", &object).of_cluster()).await;
}

#[tokio::test]
async fn volume_attachments() {
    let object = json!({"spec": {"attacher": "e2e.example.com", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}});
    let kind = Kind::new(STORAGE, "v1", "volumeattachments", &object).of_cluster();
    operations(kind.with_status(json!({"attached": true}))).await;
}

#[tokio::test]
async fn volume_attributes_classes() {
    let object = json!({"driverName": "e2e.example.com", "parameters": {"iops": "100"}});
    operations(Kind::new(STORAGE, "v1", "volumeattributesclasses", &object).of_cluster().protected()).await;
}

#[tokio::test]
async fn persistent_volumes() {
    let object = json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "e2e.example.com", "volumeHandle": "v"}}});
    let kind = Kind::new("", "v1", "persistentvolumes", &object).of_cluster().protected();
    operations(kind.with_status(json!({"phase": "Failed", "message": "StatusPatched", "reason": "E2E"})))
        .await;
}

#[tokio::test]
async fn persistent_volume_claims() {
    let object =
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let kind = Kind::new("", "v1", "persistentvolumeclaims", &object).protected();
    operations(kind.with_status(json!({"conditions": [condition("StatusPatched")]}))).await;
}

#[tokio::test]
async fn config_maps() {
    operations(Kind::new("", "v1", "configmaps", &json!({"data": {"valueName": "value"}}))).await;
}

#[tokio::test]
async fn secrets() {
    operations(Kind::new("", "v1", "secrets", &json!({"type": "Opaque", "data": {"key": "dmFsdWU="}}))).await;
}

#[tokio::test]
async fn empty_keys_are_refused() {
    let api = Api::start().await;
    for (plural, value) in [("configmaps", "value-1"), ("secrets", "dmFsdWU=")] {
        let object = json!({"metadata": {"name": "empty"}, "data": {"": value}});
        let refused = api.post(&format!("/api/v1/namespaces/default/{plural}"), object).await.expect(422);
        assert!(refused.message().contains("data[]: Invalid value: \"\""), "{}", refused.message());
    }
}

#[tokio::test]
async fn immutable_config_maps_and_secrets_stay() {
    let api = Api::start().await;
    for (plural, one, two) in [("configmaps", "1", "2"), ("secrets", "MQ==", "Mg==")] {
        let path = format!("/api/v1/namespaces/default/{plural}");
        let object = json!({"metadata": {"name": "fixed"}, "data": {"a": one}});
        let mut object = api.post(&path, object).await.expect(201).body;
        let fixed = format!("{path}/fixed");
        // It may change while it is not immutable, and become so together with a change.
        object["data"]["a"] = two.into();
        let mut object = api.put(&fixed, object).await.expect(200).body;
        object["immutable"] = true.into();
        let object = api.put(&fixed, object).await.expect(200).body;
        for (field, value) in [
            ("data", json!({"a": one})),
            ("data", Value::Null),
            ("immutable", json!(false)),
            ("immutable", Value::Null),
        ] {
            let refused = api.patch("merge", &fixed, json!({field: value})).await.expect(422);
            assert!(
                refused.message().contains("field is immutable when `immutable` is set"),
                "{}",
                refused.message()
            );
        }
        let labelled =
            api.patch("merge", &fixed, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
        assert_eq!(labelled.body["data"], object["data"]);
        api.delete(&fixed, Value::Null).await.expect(200);
    }
}

const DEVICES: &str = "resource.k8s.io";

#[tokio::test]
async fn device_classes() {
    let object =
        json!({"spec": {"selectors": [{"cel": {"expression": "device.driver == 'e2e.example.com'"}}]}});
    operations(Kind::new(DEVICES, "v1", "deviceclasses", &object).of_cluster()).await;
}

fn claim() -> Value {
    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "class"}}]}})
}

#[tokio::test]
async fn resource_claims() {
    let kind = Kind::new(DEVICES, "v1", "resourceclaims", &json!({"spec": claim()}));
    operations(kind.with_status(json!({"allocation": {"devices": {"results": [
        {"request": "r", "driver": "e2e.example.com", "pool": "p", "device": "d"}]}}})))
    .await;
}

#[tokio::test]
async fn resource_claim_templates() {
    operations(Kind::new(DEVICES, "v1", "resourceclaimtemplates", &json!({"spec": {"spec": claim()}}))).await;
}

#[tokio::test]
async fn resource_slices() {
    let object = json!({"spec": {"driver": "e2e.example.com", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]}});
    operations(Kind::new(DEVICES, "v1", "resourceslices", &object).of_cluster()).await;
}
