//! Pods of a PodGroup that share a claim without devices, and are placed in one turn.

use super::*;

/// Returns a pod of a group with these claims.
fn member(name: &str, group: &str, claims: &[&str]) -> Arc<PodInfo> {
    let claim = |name: &&str| json!({"name": name, "resourceClaimName": name});
    let claims: Vec<Value> = claims.iter().map(claim).collect();
    pod_of(name, json!({"resourceClaims": claims, "schedulingGroup": {"podGroupName": group}}))
}

/// Returns the nodes that are feasible.
fn feasible(cluster: &Cluster, pod: &PodInfo) -> Vec<&'static str> {
    ["a", "b"].into_iter().filter(|node| reason(cluster, pod, node) == "feasible").collect()
}

fn given(name: &str, device: &str) -> (String, Option<String>) {
    (name.to_owned(), Some(device.to_owned()))
}

#[test]
fn devices_of_the_first_pod_are_those_of_the_others_where_they_can_be_used() {
    let mut cluster = two_nodes();
    ["x", "y"].iter().for_each(|name| add(&mut cluster, &claim(name, json!({}))));
    let (first, second, third) =
        (member("1", "g", &["x"]), member("2", "g", &["x"]), member("3", "g", &["y", "x"]));
    cluster.devices.begin_turn(ObjectKey::new("default", "g"));
    assert_eq!(feasible(&cluster, &first), ["a", "b"]);
    assert_eq!(reserve(&mut cluster, &first, 1).unwrap(), [given("x", "b/d0")]);
    assert_eq!(feasible(&cluster, &second), ["b"]);
    assert_eq!(reason(&cluster, &second, "a"), "resourceclaim not available on the node");
    assert_eq!(reserve(&mut cluster, &second, 1).unwrap(), [given("x", "b/d0")]);
    assert_eq!(feasible(&cluster, &third), ["b"]);
    assert_eq!(reserve(&mut cluster, &third, 1).unwrap(), [given("y", "b/d1"), given("x", "b/d0")]);
    let process = "resource claim default/x is in the process of being allocated";
    for stranger in [member("4", "h", &["x"]), user(&["x"])] {
        assert_eq!(reason(&cluster, &stranger, "b"), process);
    }
    cluster.devices.end_turn();
    assert_eq!(reason(&cluster, &member("5", "g", &["x"]), "b"), process, "a later turn does not share");
    [&first, &second, &third].into_iter().for_each(|pod| plugin().unreserve(pod, &mut cluster));
    assert_eq!(feasible(&cluster, &second), ["a", "b"]);
}

#[test]
fn plans_say_whether_others_may_write_the_same_devices() {
    let mut cluster = two_nodes();
    add(&mut cluster, &claim("x", json!({})));
    let is_shared = |cluster: &mut Cluster, pod: &PodInfo| {
        let plan = plugin().reserve(pod, NodeId::new(0), cluster).unwrap();
        cluster.devices.unreserve(pod);
        let Some(PreBind::Devices(plan)) = plan else { panic!("another plan") };
        plan.claims[0].is_shared
    };
    cluster.devices.begin_turn(ObjectKey::new("default", "g"));
    assert!(is_shared(&mut cluster, &member("1", "g", &["x"])));
    assert!(!is_shared(&mut cluster, &user(&["x"])));
}

#[test]
fn devices_that_are_shared_and_out_of_reach_are_not_freed() {
    let mut cluster = two_nodes();
    add(&mut cluster, &claim("x", json!({})));
    cluster.devices.begin_turn(ObjectKey::new("default", "g"));
    reserve(&mut cluster, &member("1", "g", &["x"]), 1).unwrap();
    let second = member("2", "g", &["x"]);
    let mut diagnosis = Diagnosis { nodes: 2, ..Diagnosis::default() };
    let refusal = refusal(plugin(), &second, &cluster, "a").unwrap();
    diagnosis.refuse(named(&cluster, "a").id, refusal.by("DynamicResources"));
    let finding = plugin().post_filter(&second, &cluster, &diagnosis);
    assert_eq!(finding, Some(Finding { message: "still not schedulable", cleanup: None }));
}
