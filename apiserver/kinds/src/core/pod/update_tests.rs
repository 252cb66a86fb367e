//! Changes of pods.

use serde_json::{Value, json};

use crate::core::pod::{self, status, update};
use crate::testing::{NONE, texts};

fn pod(spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod::default(&mut pod);
    pod
}

#[test]
fn a_grace_period_that_was_negative_becomes_one() {
    let old = pod(json!({"terminationGracePeriodSeconds": -5}));
    let update = |seconds: i64| {
        let mut new = old.clone();
        new["spec"]["terminationGracePeriodSeconds"] = json!(seconds);
        texts(update::validate_update(&new, &old))
    };
    assert_eq!(update(1), NONE);
    assert_eq!(update(2).len(), 1);
    assert!(update(2)[0].starts_with("spec: Forbidden: pod updates may not change fields other than"));
}

#[test]
fn placement_of_a_gated_pod_is_only_narrowed() {
    let terms = |expressions: Value| {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": expressions}]}}})
    };
    let first = json!({"key": "a", "operator": "Exists"});
    let second = json!({"key": "b", "operator": "Exists"});
    let old = pod(json!({"schedulingGates": [{"name": "g"}, {"name": "h"}], "nodeSelector": {"a": "b"},
        "affinity": terms(json!([first]))}));
    let update = |field: &str, value: Value| {
        let mut new = old.clone();
        new["spec"][field] = value;
        texts(update::validate_update(&new, &old))
    };
    assert_eq!(update("nodeSelector", json!({"a": "b", "c": "d"})), NONE);
    assert_eq!(
        update("nodeSelector", json!({"a": "c"})),
        [
            "spec.nodeSelector: Invalid value: {\"a\":\"c\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        ]
    );
    assert_eq!(update("affinity", terms(json!([first, second]))), NONE);
    let wider = update("affinity", terms(json!([second])));
    assert!(wider.len() == 1 && wider[0].contains("only additions are allowed"), "{wider:?}");
    assert_eq!(update("schedulingGates", json!([{"name": "h"}])), NONE);
    assert_eq!(
        update("schedulingGates", json!([{"name": "x"}])),
        [
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'x'"
        ]
    );
    let spread = update("topologySpreadConstraints", json!([{"maxSkew": 1}]));
    assert!(spread.len() == 1 && spread[0].starts_with("spec: Forbidden"), "{spread:?}");
    // Without affinity of its own it can get one for nodes.
    let bare = pod(json!({"schedulingGates": [{"name": "g"}]}));
    let mut new = bare.clone();
    new["spec"]["affinity"] = terms(json!([first]));
    assert_eq!(texts(update::validate_update(&new, &bare)), NONE);
    new["spec"]["affinity"]["podAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{}]});
    assert_eq!(texts(update::validate_update(&new, &bare)).len(), 1);
}

#[test]
fn ephemeral_containers_are_only_added() {
    let with = |list: Value| pod(json!({"ephemeralContainers": list}));
    let one = json!({"name": "a", "image": "i"});
    let (old, none) = (with(json!([one])), with(json!([])));
    let check = |new: &Value, old: &Value| texts(update::validate_ephemeral(new, old));
    assert_eq!(check(&old, &none), NONE);
    assert_eq!(check(&with(json!([{"name": "b", "image": "i"}, one])), &old), NONE);
    assert_eq!(
        check(&none, &old),
        ["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"a\" may not be removed\n"]
    );
    assert_eq!(
        check(&with(json!([{"name": "a", "image": "j"}])), &old),
        ["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"a\" may not be changed\n"]
    );
    let mut mirror = none.clone();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_eq!(check(&old, &mirror), [": Forbidden: static pods do not support ephemeral containers"]);
}

#[test]
fn a_resize_changes_cpu_and_memory_and_not_the_class() {
    let with = |resources: Value| {
        pod(json!({"containers": [{"name": "c", "image": "i", "resources": resources}],
                   "initContainers": [{"name": "i", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}))
    };
    let old = with(json!({"requests": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"},
                          "limits": {"memory": "2Gi", "example.com/gpu": "1"}}));
    let check = |new: &Value| texts(update::validate_resize(new, &old));
    let mut new = old.clone();
    new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    assert_eq!(check(&new), NONE);
    new["spec"]["containers"][0]["resources"]["limits"]["example.com/gpu"] = json!("2");
    assert_eq!(check(&new), ["spec: Forbidden: only cpu and memory resources are mutable"]);
    let mut less = old.clone();
    less["spec"]["containers"][0]["resources"]["limits"].as_object_mut().unwrap().remove("memory");
    assert_eq!(
        check(&less),
        ["spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"]
    );
    let mut init = old.clone();
    init["spec"]["initContainers"][0]["resources"]["requests"]["cpu"] = json!("2");
    assert_eq!(check(&init), ["spec: Forbidden: resources for non-sidecar init containers are immutable"]);
    let small = with(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}));
    let best = pod(json!({}));
    let mut raised = best.clone();
    raised["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    assert_eq!(
        texts(update::validate_resize(&raised, &best)),
        ["spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"]
    );
    assert_eq!(texts(update::validate_resize(&small, &small)), NONE);
}

#[test]
fn a_pod_becomes_no_mirror_pod_by_an_update_of_itself_or_of_its_status() {
    let plain = pod(json!({}));
    let mut mirror = plain.clone();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    for check in [update::validate_update, status::validate] {
        let path = "metadata.annotations[kubernetes.io/config.mirror]";
        assert_eq!(
            texts(check(&mirror, &plain)),
            [format!("{path}: Forbidden: may not add mirror pod annotation")]
        );
        assert_eq!(
            texts(check(&plain, &mirror)),
            [format!("{path}: Forbidden: may not remove or update mirror pod annotation")]
        );
        assert_eq!(texts(check(&mirror, &mirror)), NONE);
    }
}
