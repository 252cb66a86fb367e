//! Every place of a pod and of a volume that names another object.

use serde_json::{Value, json};

use super::*;
use apiserver_meta::pods::MIRROR;

fn found(spec: Value) -> Vec<String> {
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec}))
            .unwrap();
    pod.references().into_iter().map(|(kind, name)| format!("{kind:?} {name}")).collect()
}

#[test]
fn each_field_of_a_pod_that_names_an_object_is_found() {
    let key = |field: &str| json!([{"name": "v", "valueFrom": {field: {"name": "x", "key": "k"}}}]);
    let from = |field: &str| json!([{field: {"name": "x"}}, {"prefix": "p"}]);
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!({"volumes": [volume]})
    };
    let secret = |field: &str| volume(json!({field: {"secretRef": {"name": "x"}, "readOnly": true}}));
    let source = |field: &str| volume(json!({"projected": {"sources": [{field: {"name": "x"}}]}}));
    let table = [
        (json!({"serviceAccountName": "x"}), "ServiceAccount x"),
        (json!({"imagePullSecrets": [{"name": "x"}]}), "Secret x"),
        (json!({"containers": [{"env": key("secretKeyRef")}]}), "Secret x"),
        (json!({"initContainers": [{"env": key("secretKeyRef")}]}), "Secret x"),
        (json!({"ephemeralContainers": [{"env": key("secretKeyRef")}]}), "Secret x"),
        (json!({"containers": [{"envFrom": from("secretRef")}]}), "Secret x"),
        (json!({"containers": [{"env": key("configMapKeyRef")}]}), "ConfigMap x"),
        (json!({"initContainers": [{"envFrom": from("configMapRef")}]}), "ConfigMap x"),
        (json!({"ephemeralContainers": [{"envFrom": from("configMapRef")}]}), "ConfigMap x"),
        (volume(json!({"secret": {"secretName": "x"}})), "Secret x"),
        (volume(json!({"configMap": {"name": "x"}})), "ConfigMap x"),
        (source("secret"), "Secret x"),
        (source("configMap"), "ConfigMap x"),
        (volume(json!({"azureFile": {"secretName": "x", "shareName": "s"}})), "Secret x"),
        (secret("cephfs"), "Secret x"),
        (secret("cinder"), "Secret x"),
        (secret("flexVolume"), "Secret x"),
        (secret("rbd"), "Secret x"),
        (secret("scaleIO"), "Secret x"),
        (secret("iscsi"), "Secret x"),
        (secret("storageos"), "Secret x"),
        (volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "x"}}})), "Secret x"),
        (volume(json!({"persistentVolumeClaim": {"claimName": "x"}})), "PersistentVolumeClaim x"),
        (volume(json!({"ephemeral": {"volumeClaimTemplate": {}}})), "PersistentVolumeClaim p-v"),
        (json!({"resourceClaims": [{"name": "c", "resourceClaimName": "x"}]}), "ResourceClaim x"),
    ];
    for (spec, expected) in table {
        assert_eq!(found(spec.clone()), [expected], "{spec}");
    }
}

#[test]
fn pod_without_references_grants_nothing() {
    for spec in [
        json!({}),
        json!({"containers": null, "volumes": null, "serviceAccountName": null}),
        json!({"serviceAccountName": "", "imagePullSecrets": [{}, {"name": ""}]}),
        json!({"containers": [{"env": [{"name": "a", "value": "b"}], "envFrom": [{}]}]}),
        json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "secret": {}}, {"name": "x", "projected": {}}]}),
        json!({"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}),
    ] {
        assert_eq!(found(spec.clone()), [""; 0], "{spec}");
    }
}

#[test]
fn claims_made_from_templates_are_those_of_the_status() {
    let pod: Pod = serde_json::from_value(json!({
        "spec": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]},
        "status": {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "other"}, {"name": "c", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": []},
        },
    }))
    .unwrap();
    let claim = |name: &str| (Kind::ResourceClaim, name.to_owned());
    assert_eq!(pod.references(), References::from([claim("made"), claim("extended")]));
}

#[test]
fn a_mirror_pod_gives_no_rights() {
    for value in [json!("x"), json!("")] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"annotations": {MIRROR: value}},
            "spec": {"nodeName": "n", "serviceAccountName": "admin", "volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
        }))
        .unwrap();
        assert!(pod.is_mirror() && pod.references().is_empty() && pod.node() == "n");
    }
}

#[test]
fn a_volume_gives_the_secrets_that_a_kubelet_mounts_it_with() {
    let volume = |spec: Value| -> PersistentVolume {
        let mut spec = spec;
        spec["claimRef"] = json!({"namespace": "ns", "name": "c", "uid": "u"});
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
    };
    let pair = |namespace: &str| BTreeSet::from([(namespace.to_owned(), "x".to_owned())]);
    let named = json!({"name": "x", "namespace": "vault"});
    let table = [
        (json!({"azureFile": {"secretName": "x", "secretNamespace": "vault"}}), pair("vault")),
        (json!({"azureFile": {"secretName": "x"}}), pair("ns")),
        (json!({"cephfs": {"secretRef": {"name": "x"}}}), pair("ns")),
        (json!({"rbd": {"secretRef": named}}), pair("vault")),
        (json!({"csi": {"driver": "d", "nodePublishSecretRef": named}}), pair("vault")),
        (json!({"csi": {"driver": "d", "nodeStageSecretRef": named}}), pair("vault")),
        (json!({"csi": {"driver": "d", "nodeExpandSecretRef": named}}), pair("vault")),
        (json!({"csi": {"driver": "d", "controllerPublishSecretRef": named}}), BTreeSet::new()),
        (json!({"csi": {"driver": "d", "controllerExpandSecretRef": named}}), BTreeSet::new()),
        (json!({"hostPath": {"path": "/"}}), BTreeSet::new()),
    ];
    for (spec, expected) in table {
        let volume = volume(spec.clone());
        assert_eq!(volume.secrets(), expected, "{spec}");
        assert_eq!(volume.claim(), Some(("ns", "c")));
    }
}
