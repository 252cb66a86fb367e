//! Covers the 13 cases that Kubernetes tests of this plugin: 3 of added pods, 3 of added groups, and 7 of the way of a pod
//! through PreEnqueue and Permit.

use std::sync::Arc;

use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::groups::Groups;
use crate::testing;

fn group(namespace: &str, name: &str, policy: Value) -> Arc<PodGroup> {
    let object = json!({
        "metadata": {"namespace": namespace, "name": name}, "spec": {"schedulingPolicy": policy},
    });
    Arc::new(from_value(object).unwrap())
}

fn gang(name: &str, needed: u32) -> Arc<PodGroup> {
    group("ns", name, json!({"gang": {"minCount": needed}}))
}

fn pod(namespace: &str, name: &str, group: Option<&str>) -> Arc<PodInfo> {
    let group = group.map(|group| json!({"podGroupName": group}));
    testing::pod(name, json!({"metadata": {"namespace": namespace}, "spec": {"schedulingGroup": group}}))
}

/// Returns a cluster of one node with the groups `one` of three pods, `two` of four, and `basic`, and with these pods.
fn cluster(groups: &[Arc<PodGroup>], pods: &[&Arc<PodInfo>]) -> Cluster {
    let mut cluster = testing::cluster(&[testing::node("n", json!({}))], &[]);
    cluster.groups = Groups::new(true);
    for group in groups {
        cluster.groups.set_object(&ObjectKey::of(group.as_ref()), Some(Arc::clone(group)));
    }
    for pod in pods {
        cluster.groups.waits(pod);
    }
    cluster
}

fn groups() -> [Arc<PodGroup>; 3] {
    [gang("one", 3), gang("two", 4), group("ns", "basic", json!({"basic": {}}))]
}

/// Returns five pods, of which three are of the gang `one`.
fn pods() -> [Arc<PodInfo>; 5] {
    let pod = |name, group| pod("ns", name, Some(group));
    [pod("p1", "one"), pod("p2", "one"), pod("p3", "one"), pod("p4", "two"), pod("p5", "two")]
}

fn permit(cluster: &mut Cluster, pod: &Arc<PodInfo>) -> Permission {
    cluster.place(pod, &"n".into());
    GangScheduling.permit(pod, testing::named(cluster, "n").id, cluster)
}

#[test]
fn added_pod_concerns_the_pods_of_its_own_group() {
    let waiting = pod("ns", "p", Some("one"));
    for (added, expected) in [
        (pod("ns", "new", Some("one")), Hint::Queue),
        (pod("other", "new", Some("one")), Hint::Skip),
        (pod("ns", "new", Some("two")), Hint::Skip),
        (pod("ns", "new", None), Hint::Skip),
    ] {
        assert_eq!(testing::pod_hint(&GangScheduling, &waiting, None, Some(&added)), expected);
    }
}

#[test]
fn added_group_concerns_the_pods_that_name_it() {
    let waiting = pod("ns", "p", Some("one"));
    for (added, expected) in [
        (gang("one", 1), Hint::Queue),
        (gang("two", 1), Hint::Skip),
        (group("other", "one", json!({"gang": {"minCount": 1}})), Hint::Skip),
    ] {
        let change = Change::PodGroup(Versions { old: None, new: Some(&added) });
        assert_eq!(GangScheduling.hint(&waiting, &change, &Cluster::default()), expected);
    }
}

#[test]
fn change_reaches_the_pods_of_its_group_once_the_group_lacks_nothing() {
    let [p1, p2, p3, ..] = pods();
    let alone = pod("ns", "alone", None);
    let basic = pod("ns", "new", Some("basic"));
    let of_pod = |pod: &Arc<PodInfo>, groups: &[_], pods: &[_]| {
        let change = Change::Pod(Versions { old: None, new: Some(pod) });
        GangScheduling.reach(&change, &cluster(groups, pods))
    };
    let one = Reach::Group(ObjectKey::new("ns", "one"));
    assert_eq!(of_pod(&p3, &[], &[&p1, &p2, &p3]), Reach::None, "its group is not there");
    assert_eq!(of_pod(&p3, &groups(), &[&p1, &p3]), Reach::None, "a pod is missing");
    assert_eq!(of_pod(&p3, &groups(), &[&p1, &p2, &p3]), one);
    assert_eq!(of_pod(&basic, &groups(), &[&basic]), Reach::Group(ObjectKey::new("ns", "basic")));
    assert_eq!(of_pod(&alone, &groups(), &[&p1, &p2, &p3]), Reach::None);
    let of_group = |pods: &[_]| {
        let group = gang("one", 3);
        let change = Change::PodGroup(Versions { old: None, new: Some(&group) });
        GangScheduling.reach(&change, &cluster(&groups(), pods))
    };
    assert_eq!(of_group(&[&p1, &p2]), Reach::None);
    assert_eq!(of_group(&[&p1, &p2, &p3]), one);
}

#[test]
fn pods_without_a_gang_are_not_held_up() {
    for pod in [pod("ns", "alone", None), pod("ns", "basic", Some("basic"))] {
        let mut cluster = cluster(&groups(), &[&pod]);
        assert_eq!(GangScheduling.pre_enqueue(&pod, &cluster), None);
        assert_eq!(permit(&mut cluster, &pod), Permission::default());
    }
}

#[test]
fn pods_of_a_gang_are_held_until_there_are_enough_and_the_group_is_there() {
    let [p1, p2, p3, p4, p5] = pods();
    let refusal = |groups: &[_], pods: &[_]| GangScheduling.pre_enqueue(&p1, &cluster(groups, pods));
    let unknown = "waiting for pods's pod group \"one\" to appear in scheduling queue";
    assert_eq!(refusal(&[], &[&p1, &p2, &p3, &p4, &p5]), Some(Refusal::unresolvable(unknown)));
    let few = "waiting for minCount pods from a gang to appear in scheduling queue";
    assert_eq!(refusal(&groups(), &[&p1, &p2, &p4, &p5]), Some(Refusal::unresolvable(few)));
    assert_eq!(refusal(&groups(), &[&p1, &p2, &p3]), None);
}

#[test]
fn placed_pod_waits_for_the_rest_of_its_gang_and_has_it_tried() {
    let [p1, p2, p3, p4, p5] = pods();
    let mut cluster = cluster(&groups(), &[&p1, &p2, &p3, &p4, &p5]);
    [&p2, &p4, &p5].into_iter().for_each(|pod| cluster.place(pod, &"n".into()));
    let reason = "waiting for minCount pods from a gang to be scheduled".to_owned();
    let answer = Permit::Wait { reason, timeout: limits::GANG_WAIT };
    let activates_group = Some(ObjectKey::new("ns", "one"));
    let expected = Permission { answer, activates_group, ..Permission::default() };
    assert_eq!(permit(&mut cluster, &p1), expected);
}

#[test]
fn last_pod_of_a_gang_allows_all_of_it_but_no_other() {
    let [p1, p2, p3, p4, p5] = pods();
    let mut cluster = cluster(&groups(), &[&p1, &p2, &p3, &p4, &p5]);
    [&p2, &p3, &p4, &p5].into_iter().for_each(|pod| cluster.place(pod, &"n".into()));
    let allows_group = Some(ObjectKey::new("ns", "one"));
    let expected = Permission { allows_group, ..Permission::default() };
    assert_eq!(permit(&mut cluster, &p1), expected);
    // So it is for those that are tried together, whose places are counted in the same way.
    let bound = testing::pod(
        "p2",
        json!({"metadata": {"namespace": "ns"},
        "spec": {"schedulingGroup": {"podGroupName": "one"}, "nodeName": "n"}}),
    );
    cluster.place(&bound, &"n".into());
    assert_eq!(permit(&mut cluster, &p1), expected, "a bound pod counts");
}

#[test]
fn group_that_is_gone_is_an_error_for_its_placed_pods() {
    let [p1, ..] = pods();
    let mut cluster = cluster(&[], &[&p1]);
    let text = "failed to get podGroup ns/one: podgroup.scheduling.k8s.io \"one\" not found";
    assert_eq!(permit(&mut cluster, &p1), Permission::refuse(Refusal::new(Code::Error, text)));
}
