use serde_json::{Value, json};

use crate::apps::{daemon_set, deployment, replica_set, stateful_set};
use crate::testing::{
    NONE, apply_defaults, completed_template_spec, edited, errors, pod_template, row, update_errors, with,
};

#[test]
fn a_minimal_deployment_gets_the_defaults_of_kubernetes() {
    let value = apply_defaults(deployment::default, json!({"spec": {"template": pod_template()}}));
    assert_eq!(
        value,
        json!({"spec": {
            "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"spec": completed_template_spec()}}})
    );
    let recreate = apply_defaults(
        deployment::default,
        json!({"spec": {"strategy": {"type": "Recreate"}, "replicas": 0}}),
    );
    assert_eq!(recreate["spec"]["strategy"], json!({"type": "Recreate"}));
    assert_eq!(recreate["spec"]["replicas"], 0);
}

#[test]
fn stateful_sets_daemon_sets_and_replica_sets_get_their_defaults() {
    let stateful = apply_defaults(
        stateful_set::default,
        json!({"spec": {
        "template": pod_template(), "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}}),
    );
    let spec = &stateful["spec"];
    assert_eq!(spec["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
    assert_eq!(
        spec["persistentVolumeClaimRetentionPolicy"],
        json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
    );
    assert_eq!(spec["volumeClaimTemplates"][0]["spec"]["volumeMode"], "Filesystem");
    assert_eq!(spec["podManagementPolicy"], "OrderedReady");

    let daemon = apply_defaults(daemon_set::default, json!({"spec": {"template": pod_template()}}));
    assert_eq!(
        daemon["spec"]["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
    );
    let set = apply_defaults(replica_set::default, json!({"spec": {"template": pod_template()}}));
    assert_eq!(set["spec"], json!({"replicas": 1, "template": {"spec": completed_template_spec()}}));
}

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[test]
fn daemon_sets_and_stateful_sets_with_wrong_fields_are_refused() {
    let daemon = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("apps", "daemonsets", &edited(&daemon, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    let rolling =
        |value: Value| [("/spec/updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": value}))];
    check(
        &rolling(json!({"maxUnavailable": 0, "maxSurge": 0})),
        &["spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"],
    );
    check(
        &rolling(json!({"maxUnavailable": 1, "maxSurge": "120%"})),
        &[
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"120%\": must not be greater than 100%",
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"120%\": may not be set when maxUnavailable is non-zero",
        ],
    );
    check(
        &[
            ("/spec/template/spec/restartPolicy", json!("Never")),
            ("/spec/template/spec/activeDeadlineSeconds", json!(5)),
        ],
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported",
        ],
    );
    let set = json!({"metadata": {"name": "s"}, "spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template()}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("apps", "statefulsets", &edited(&set, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[
            ("/spec/podManagementPolicy", json!("Any")),
            ("/spec/updateStrategy", json!({"type": "OnDelete", "rollingUpdate": {}})),
            ("/spec/ordinals", json!({"start": -1})),
        ],
        &[
            "spec.podManagementPolicy: Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'",
            "spec.updateStrategy.rollingUpdate: Invalid value: {}: only allowed for updateStrategy 'RollingUpdate'",
            "spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    check(
        &[
            ("/spec/persistentVolumeClaimRetentionPolicy", json!({"whenScaled": "Keep"})),
            (
                "/spec/updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "0%"}}),
            ),
        ],
        &[
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": cannot be 0",
            "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Keep\": supported values: \"Retain\", \"Delete\"",
        ],
    );
    assert!(
        errors("apps", "statefulsets", &with(set, "/metadata/name", json!("a.b")))[0]
            .contains("must not contain dots")
    );
}

fn deployment() -> Value {
    let mut object = json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    deployment::default(&mut object);
    object
}

#[test]
fn deployments_with_wrong_fields_are_refused() {
    let check =
        |pointer: &str, value: Value| errors("apps", "deployments", &with(deployment(), pointer, value));
    assert_eq!(check("/spec/replicas", json!(0)), NONE);
    assert_eq!(
        check("/spec/replicas", json!(-1)),
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
    );
    assert_eq!(
        check("/spec/selector", Value::Null),
        [
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
        ]
    );
    assert_eq!(
        check("/spec/selector", json!({})),
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"]
    );
    assert_eq!(
        check("/spec/template/metadata/labels", json!({"app": "db"})),
        [
            "spec.template.metadata.labels: Invalid value: {\"app\":\"db\"}: `selector` does not match template `labels`"
        ]
    );
    assert_eq!(
        check("/spec/template/spec/restartPolicy", json!("Never")),
        ["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""]
    );
    assert_eq!(
        check("/spec/strategy/rollingUpdate", json!({"maxSurge": 0, "maxUnavailable": "0%"})),
        [
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"
        ]
    );
    assert_eq!(
        check("/spec/strategy/type", json!("Recreate")),
        ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"]
    );
    assert_eq!(
        check("/spec/minReadySeconds", json!(600)),
        ["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"]
    );
    assert_eq!(
        check("/spec/template/spec/containers/0/image", json!("")),
        ["spec.template.spec.containers[0].image: Required value"]
    );
    let moved = with(deployment(), "/spec/selector", json!({"matchLabels": {"app": "db"}}));
    assert_eq!(
        update_errors("apps", "deployments", &moved, &deployment()),
        ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"db\"}}: field is immutable"]
    );
    assert_eq!(update_errors("apps", "deployments", &deployment(), &deployment()), NONE);
}

#[test]
fn stateful_sets_mount_their_claims_and_keep_their_shape() {
    let object = json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}}}});
    assert_eq!(errors("apps", "statefulsets", &object), NONE);
    let scaled = with(object.clone(), "/spec/replicas", json!(5));
    assert_eq!(update_errors("apps", "statefulsets", &scaled, &object), NONE);
    let renamed = with(object.clone(), "/spec/serviceName", json!("other"));
    let found = update_errors("apps", "statefulsets", &renamed, &object);
    assert!(
        found.len() == 1 && found[0].starts_with("spec: Forbidden: updates to statefulset spec"),
        "{found:?}"
    );
}

#[test]
fn controller_revisions_refuse_changes_of_their_data() {
    let revision = json!({"metadata": {"name": "r"}, "revision": 1, "data": {"a": 1}});
    assert_eq!(errors("apps", "controllerrevisions", &revision), NONE);
    let other = with(revision.clone(), "/data", json!({"a": 2}));
    assert_eq!(update_errors("apps", "controllerrevisions", &other, &revision).len(), 1);
}

#[test]
fn rows_of_workloads_show_their_replicas_and_images() {
    let template =
        json!({"spec": {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j:1"}]}});
    let deployment = json!({"metadata": {"name": "d"},
        "spec": {"replicas": 3, "template": template, "selector": {"matchLabels": {"app": "x"}}},
        "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 2, "replicas": 3}});
    assert_eq!(
        row("apps", "deployments", &deployment),
        "d | 2/3 | 3 | 2 | <unknown> | a,b | i:1,j:1 | app=x"
    );
    assert_eq!(row("apps", "replicasets", &deployment), "d | 3 | 3 | 2 | <unknown> | a,b | i:1,j:1 | app=x");
    assert_eq!(row("apps", "statefulsets", &deployment), "d | 2/3 | <unknown> | a,b | i:1,j:1");
}
