use super::*;
use apiserver_kinds::builtin;
use serde_json::json;

fn resource(group: &str, plural: &str) -> Resource {
    let registry = builtin::registry();
    Resource::clone(registry.lookup(group, "v1", plural).unwrap())
}

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn pod(node: &str, extra: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "n"},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 20}, "status": {"phase": "Running"}});
    json_patch::merge(&mut pod, &extra);
    pod
}

#[test]
fn delete_of_a_running_pod_marks_it_and_a_later_one_waits_or_shortens_its_grace() {
    let pods = resource("", "pods");
    let Plan::Mark(marked) = plan(&pods, &pod("a", json!({})), &DeleteOptions::default(), now()) else {
        panic!("not marked")
    };
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 20);
    assert_eq!(meta::deletion_timestamp(&marked), Some("2026-01-01T00:00:20Z"));
    assert_eq!(plan(&pods, &marked, &DeleteOptions::default(), now()), Plan::Wait);
    let longer = DeleteOptions { grace: Some(60), ..DeleteOptions::default() };
    assert_eq!(plan(&pods, &marked, &longer, now()), Plan::Wait);
    let shorter = DeleteOptions { grace: Some(5), ..DeleteOptions::default() };
    let Plan::Mark(sooner) = plan(&pods, &marked, &shorter, now()) else { panic!("not shortened") };
    assert_eq!(meta::deletion_timestamp(&sooner), Some("2026-01-01T00:00:05Z"));
    let force = DeleteOptions { grace: Some(0), ..DeleteOptions::default() };
    assert_eq!(plan(&pods, &marked, &force, now()), Plan::Remove);
}

/// Only the grace period of a later request shortens the time; its other options do not count.
#[test]
fn later_delete_of_a_pod_without_a_shorter_grace_changes_nothing() {
    let pods = resource("", "pods");
    let long = DeleteOptions { grace: Some(60), ..DeleteOptions::default() };
    let Plan::Mark(marked) = plan(&pods, &pod("a", json!({})), &long, now()) else { panic!("not marked") };
    assert_eq!(plan(&pods, &marked, &DeleteOptions::default(), now()), Plan::Wait);
    let foreground = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
    assert_eq!(plan(&pods, &marked, &foreground, now()), Plan::Wait);
    let mut ended = marked.clone();
    ended["status"]["phase"] = "Failed".into();
    assert_eq!(plan(&pods, &ended, &DeleteOptions::default(), now()), Plan::Wait);
    // With force it still waits for its finalizers, and is due when it was due first.
    let mut held = marked;
    meta::set_finalizers(&mut held, vec!["example.com/x".to_owned()]);
    let force = DeleteOptions { grace: Some(0), ..DeleteOptions::default() };
    let Plan::Mark(forced) = plan(&pods, &held, &force, now()) else { panic!("not marked") };
    assert_eq!(meta::deletion_timestamp(&forced), Some("2026-01-01T00:00:00Z"));
    assert_eq!(forced["metadata"]["deletionGracePeriodSeconds"], 0);
    // An object that another server has left like this is removed.
    let mut left = forced;
    meta::set_finalizers(&mut left, Vec::new());
    assert_eq!(plan(&pods, &left, &DeleteOptions::default(), now()), Plan::Remove);
}

#[test]
fn delete_without_propagation_orphans_dependents_of_some_kinds_and_never_of_events() {
    let with = |propagation| DeleteOptions { propagation, ..DeleteOptions::default() };
    let object = json!({"metadata": {"name": "o"}});
    for (group, plural) in [("batch", "jobs"), ("", "replicationcontrollers")] {
        let kind = resource(group, plural);
        let Plan::Mark(marked) = plan(&kind, &object, &with(None), now()) else { panic!("not marked") };
        assert_eq!(meta::finalizers(&marked), [ORPHAN]);
        assert_eq!(plan(&kind, &object, &with(Some(Propagation::Background)), now()), Plan::Remove);
        // Finalizers that decide the propagation already are not replaced.
        let chosen = json!({"metadata": {"name": "o", "finalizers": [FOREGROUND]}});
        let Plan::Mark(marked) = plan(&kind, &chosen, &with(None), now()) else { panic!("not marked") };
        assert_eq!(meta::finalizers(&marked), [FOREGROUND]);
    }
    for group in ["", "events.k8s.io"] {
        let events = resource(group, "events");
        for propagation in [Propagation::Orphan, Propagation::Foreground] {
            assert_eq!(plan(&events, &object, &with(Some(propagation)), now()), Plan::Remove);
        }
    }
}

#[test]
fn finalizers_in_spec_hold_namespaces_and_no_other_kind() {
    let mut object = json!({"metadata": {"name": "o"}, "spec": {"finalizers": ["mine"]}});
    let maps = resource("", "configmaps");
    assert_eq!(plan(&maps, &object, &DeleteOptions::default(), now()), Plan::Remove);
    mark(&mut object, now(), 0);
    assert!(is_finished(&maps, &object));
    assert!(!is_finished(&resource("", "namespaces"), &object));
}

#[test]
fn delete_of_a_pod_that_does_not_run_removes_it_at_once() {
    let pods = resource("", "pods");
    let options = DeleteOptions::default();
    assert_eq!(plan(&pods, &pod("", json!({})), &options, now()), Plan::Remove);
    let ended = pod("a", json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(plan(&pods, &ended, &options, now()), Plan::Remove);
}

#[test]
fn delete_with_finalizers_marks_the_object_and_propagation_adds_one() {
    let maps = resource("", "configmaps");
    let held = json!({"metadata": {"name": "c", "finalizers": ["example.com/x"]}});
    let Plan::Mark(marked) = plan(&maps, &held, &DeleteOptions::default(), now()) else {
        panic!("not marked")
    };
    assert!(!is_finished(&maps, &marked));
    assert_eq!(plan(&maps, &marked, &DeleteOptions::default(), now()), Plan::Wait);
    let mut freed = marked.clone();
    meta::set_finalizers(&mut freed, Vec::new());
    assert!(is_finished(&maps, &freed));
    for (propagation, finalizer) in [(Propagation::Foreground, FOREGROUND), (Propagation::Orphan, ORPHAN)] {
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        let Plan::Mark(marked) = plan(&maps, &json!({"metadata": {"name": "c"}}), &options, now()) else {
            panic!("not marked")
        };
        assert_eq!(meta::finalizers(&marked), [finalizer]);
    }
    let background = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    assert_eq!(plan(&maps, &json!({"metadata": {"name": "c"}}), &background, now()), Plan::Remove);
}

#[test]
fn delete_of_a_namespace_terminates_it_until_it_is_finalized() {
    let namespaces = resource("", "namespaces");
    let namespace = json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"}});
    let Plan::Mark(marked) = plan(&namespaces, &namespace, &DeleteOptions::default(), now()) else {
        panic!("not marked")
    };
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(marked["metadata"].get("deletionGracePeriodSeconds"), None);
    let orphan = DeleteOptions { propagation: Some(Propagation::Orphan), ..DeleteOptions::default() };
    assert_eq!(plan(&namespaces, &marked, &orphan, now()), Plan::Wait);
    assert!(!is_finished(&namespaces, &marked));
    let mut finalized = marked;
    finalized["spec"]["finalizers"] = json!([]);
    assert!(is_finished(&namespaces, &finalized));
}

#[test]
fn delete_of_a_definition_sets_no_grace_period_and_no_generation() {
    let definitions = resource("apiextensions.k8s.io", "customresourcedefinitions");
    let object = json!({"metadata": {"name": "d", "generation": 1}});
    let Plan::Mark(marked) = plan(&definitions, &object, &DeleteOptions::default(), now()) else {
        panic!("not marked")
    };
    assert_eq!(meta::deletion_timestamp(&marked), Some("2026-01-01T00:00:00Z"));
    assert_eq!(marked["metadata"].get("deletionGracePeriodSeconds"), None);
    assert_eq!(meta::generation(&marked), 1);
    assert!(!is_finished(&definitions, &marked));
}

#[test]
fn delete_options_that_contradict_each_other_are_refused() {
    let options =
        DeleteOptions::from_value(&json!({"gracePeriodSeconds": 0, "propagationPolicy": "Foreground",
        "preconditions": {"uid": "u"}, "dryRun": ["All"]}))
        .unwrap();
    assert_eq!(options.grace, Some(0));
    assert_eq!(options.uid.as_deref(), Some("u"));
    assert_eq!(options.propagation, Some(Propagation::Foreground));
    assert!(options.dry_run);
    for (bad, code) in [
        (json!({"propagationPolicy": "Foo"}), 422),
        (json!({"propagationPolicy": "Orphan", "orphanDependents": true}), 422),
        (json!({"dryRun": ["Some"]}), 422),
        (json!({"kind": "Pod"}), 400),
        (json!({"gracePeriodSeconds": "5"}), 400),
    ] {
        assert_eq!(DeleteOptions::from_value(&bad).unwrap_err().code, code, "{bad}");
    }
}
