//! Preemptions that extenders take part in: the five cases with extenders of kube-scheduler's `default_preemption_test.go`
//! (four of `TestPreempt` and one of `TestPostFilter`), and what an extender can answer wrongly.

use super::*;
use crate::run::tests::metric;

/// Returns a scheduler with these extenders, and two nodes that are full: `a` with two pods of low priority, `b` with one of
/// a lower one, which is the node that is chosen without extenders.
async fn full(extenders: Value) -> World {
    let mut world = World::new(extenders, &["a", "b"]).await;
    for (name, node, priority, cores) in [("a1", "a", 2, "4"), ("a2", "a", 2, "4"), ("b1", "b", 1, "8")] {
        let container = json!([{"name": "c", "resources": {"requests": {"cpu": cores}}}]);
        world
            .create(name, json!({"spec": {"nodeName": node, "priority": priority, "containers": container}}));
    }
    world
}

/// Creates a pod that fits on neither node.
fn create_important(world: &mut World) {
    let container = json!([{"name": "c", "resources": {"requests": {"cpu": "8", "example.com/gpu": "1"}}}]);
    world.create("p", json!({"spec": {"priority": 10, "containers": container}}));
}

/// Returns settings of an extender that chooses victims.
fn preempting(server: &Server, fields: Value) -> Value {
    let managed = json!([{"name": "example.com/gpu", "ignoredByScheduler": true}]);
    let mut settings = json!({"urlPrefix": server.url, "preemptVerb": "preempt", "nodeCacheCapable": true,
        "managedResources": managed});
    merge(&mut settings, fields);
    settings
}

/// Returns an extender that leaves the candidates on these nodes.
async fn leaving(nodes: &'static [&'static str]) -> Server {
    Server::start(move |_, request| {
        let mut victims = request["NodeNameToMetaVictims"].as_object().unwrap().clone();
        victims.retain(|node, _| nodes.contains(&node.as_str()));
        Reply::Json(json!({"NodeNameToMetaVictims": victims}))
    })
    .await
}

fn evicted(world: &World) -> Vec<String> {
    let names = ["a1", "a2", "b1"].into_iter();
    names.filter(|name| !world.api.sent(&Method::DELETE, name).is_empty()).map(str::to_owned).collect()
}

/// Lets a pod that fits on neither node preempt others; returns the victims.
async fn victims_of(extenders: Value) -> Vec<String> {
    let mut world = full(extenders).await;
    create_important(&mut world);
    world.until_told("p").await;
    let are_deleted = |world: &World| world.scheduler.victims.is_empty();
    world.until("all victims are deleted", are_deleted).await;
    evicted(&world)
}

#[tokio::test]
async fn extender_leaves_one_of_the_candidates() {
    let server = leaving(&["a"]).await;
    assert_eq!(victims_of(json!([preempting(&server, json!({}))])).await, ["a1", "a2"]);
    let request = &server.requests("preempt")[0];
    assert_eq!(
        request["NodeNameToMetaVictims"]["b"],
        json!({"Pods": [{"UID": "b1"}], "NumPDBViolations": 0})
    );
    assert_eq!(request["Pod"]["metadata"]["annotations"]["whole"], "yes");
}

#[tokio::test]
async fn extenders_choose_one_after_another() {
    let (all, one) = (leaving(&["a", "b"]).await, leaving(&["a"]).await);
    let extenders = json!([preempting(&all, json!({})), preempting(&one, json!({"managedResources": []}))]);
    assert_eq!(victims_of(extenders).await, ["a1", "a2"]);
    assert_eq!((all.requests("preempt").len(), one.requests("preempt").len()), (1, 1));
}

#[tokio::test]
async fn extender_that_fails_is_skipped_if_it_may_be_ignored() {
    let (broken, one) = (Server::start(|_, _| Reply::Raw(500, "")).await, leaving(&["a"]).await);
    let broken = preempting(&broken, json!({"ignorable": true, "managedResources": []}));
    let extenders = json!([broken, preempting(&one, json!({}))]);
    assert_eq!(victims_of(extenders).await, ["a1", "a2"]);
}

#[tokio::test]
async fn extender_without_interest_in_the_pod_is_not_asked() {
    let (other, all) = (leaving(&["a"]).await, leaving(&["a", "b"]).await);
    let managed = json!({"managedResources": [{"name": "example.com/other"}]});
    let extenders = json!([preempting(&other, managed), preempting(&all, json!({}))]);
    assert_eq!(victims_of(extenders).await, ["b1"]);
    assert!(other.requests("preempt").is_empty());
}

#[tokio::test]
async fn extender_without_a_cache_gets_the_victims_whole() {
    let server =
        Server::start(|_, _| Reply::Json(json!({"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "a2"}]}}})))
            .await;
    // It names too few: their removal would not help.
    let extenders = json!([preempting(&server, json!({"nodeCacheCapable": false}))]);
    assert!(victims_of(extenders).await.is_empty());
    let request = &server.requests("preempt")[0];
    let whole = &request["NodeNameToVictims"]["a"]["Pods"];
    assert_eq!(whole.as_array().unwrap().len(), 2);
    assert_eq!(whole[0]["metadata"]["annotations"]["whole"], "yes");
    assert_eq!(request["NodeNameToMetaVictims"], Value::Null);
}

#[tokio::test]
async fn post_filter_is_timed_with_what_extenders_have_left() {
    let broken = || Server::start(|_, _| Reply::Raw(500, ""));
    let candidates = leaving(&["a"]).await;
    for (server, is_full, result) in [
        (&candidates, true, "Success"),
        (&leaving(&[]).await, true, "Unschedulable"),
        (&broken().await, true, "Error"),
        // Nobody is there to be preempted, and no extender is asked.
        (&broken().await, false, "Unschedulable"),
    ] {
        let extenders = json!([preempting(server, json!({}))]);
        let mut world = if is_full { full(extenders).await } else { World::new(extenders, &[]).await };
        if !is_full {
            world.scheduler.apply(Update::Node(sized("small", json!({"cpu": "1"}))));
        }
        create_important(&mut world);
        world.until_told("p").await;
        for one in ["Success", "Unschedulable", "Error"] {
            let name = "scheduler_framework_extension_point_duration_seconds";
            let counted = metric(&world.scheduler, name, &["PostFilter", one, "default-scheduler"]);
            assert_eq!(counted, (one == result).then_some(1.0), "{result}: {one}");
        }
    }
}

const FITS_NOWHERE: &str = "0/2 nodes are available: 2 Insufficient cpu.";

/// Returns what is added to the message of a pod after an extender has answered like this.
async fn message_of(reply: fn() -> Reply, fields: Value) -> String {
    let server = Server::start(move |_, _| reply()).await;
    let mut world = full(json!([preempting(&server, fields)])).await;
    create_important(&mut world);
    let (reason, text) = world.until_told("p").await;
    assert_eq!(reason, "Unschedulable");
    assert!(evicted(&world).is_empty());
    let added = text.strip_prefix(FITS_NOWHERE).unwrap_or_else(|| panic!("{text}"));
    added.trim_start().replace(&server.url, "URL")
}

#[tokio::test]
async fn message_says_what_the_extender_has_answered() {
    let none = || Reply::Json(json!({"NodeNameToMetaVictims": {}}));
    let expected = "no new claims to deallocate, preemption: no candidate node for preemption";
    assert_eq!(message_of(none, json!({})).await, expected);
    let broken = || Reply::Raw(500, "");
    let expected = "preemption: failed preempt with extender at URL URL/preempt, code 500";
    assert_eq!(message_of(broken, json!({})).await, expected);
    let unknown = || Reply::Json(json!({"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "zzz"}]}}}));
    let expected = "preemption: extender: URL claims to preempt pod (UID: &{zzz}) on node: a, but the pod is not found \
         on that node";
    assert_eq!(message_of(unknown, json!({})).await, expected);
    let nowhere = || Reply::Json(json!({"NodeNameToMetaVictims": {"z": {"Pods": [{"UID": "a1"}]}}}));
    assert_eq!(message_of(nowhere, json!({})).await, "preemption: nodeinfo not found for node name \"z\"");
    let empty = || Reply::Json(json!({"NodeNameToMetaVictims": {"a": {"Pods": []}}}));
    let expected = "preemption: expected at least one victim pod on node \"a\"";
    assert_eq!(message_of(empty, json!({})).await, expected);
    let expected = "no new claims to deallocate, preemption: no candidate node for preemption";
    assert_eq!(message_of(empty, json!({"ignorable": true})).await, expected);
}

#[tokio::test]
async fn pods_that_fit_but_for_an_extender_preempt_nobody() {
    let server = passing(&[]).await;
    let mut world = World::new(json!([filter(&server)]), &["a"]).await;
    world.create("low", json!({"spec": {"nodeName": "a", "priority": 1}}));
    world.create("p", json!({"spec": {"priority": 10}}));
    let (_, text) = world.until_told("p").await;
    let expected = "0/1 nodes are available: 1 no room in the rack. preemption: expected at least one victim pod on \
         node \"a\"";
    assert_eq!(text, expected);
}
