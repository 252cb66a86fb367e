//! Tests of the plan.

use std::sync::Arc;

use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use serde_json::{Value, from_value, json, to_value};

use super::plan::{
    DELETE_PROTECTION, Life, POD_CLAIM, Step, claim_for, life, owning_pod, released, remaining, reserved,
    step, unprotected, with_statuses,
};
use crate::device_claims::entries;
use crate::pods::Pod;
use crate::testing;

/// Returns a pod with one entry that names a template, and the claim in its status if there is one.
fn pod(claim: Option<&str>) -> v1::Pod {
    let mut pod = testing::pod("p");
    pod.spec.as_mut().unwrap().resource_claims =
        from_value(json!([{"name": "gpu", "resourceClaimTemplateName": "t"}])).unwrap();
    let status = claim.map(|claim| json!([{"name": "gpu", "resourceClaimName": claim}]));
    pod.status.get_or_insert_default().resource_claim_statuses =
        status.and_then(|status| from_value(status).ok());
    pod
}

/// Returns a pod that uses a claim that somebody made.
fn sharing(node: &str) -> v1::Pod {
    let mut pod = pod(None);
    let spec = pod.spec.as_mut().unwrap();
    spec.resource_claims = from_value(json!([{"name": "gpu", "resourceClaimName": "c"}])).unwrap();
    spec.node_name = Some(node.to_owned()).filter(|node| !node.is_empty());
    pod
}

fn on_node(mut pod: v1::Pod) -> v1::Pod {
    pod.spec.as_mut().unwrap().node_name = Some("n".to_owned());
    pod
}

fn user(name: &str) -> Value {
    json!({"resource": "pods", "name": name, "uid": format!("uid-{name}")})
}

fn claim(owner: Option<&str>, users: &[Value], allocated: bool) -> ResourceClaim {
    let owner = owner
        .map(|uid| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]));
    let allocation = allocated.then(|| json!({"devices": {}}));
    let claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "uid-c", "ownerReferences": owner,
        "annotations": {POD_CLAIM: "gpu"}}, "spec": {}, "status": {"allocation": allocation, "reservedFor": users}});
    from_value(claim).unwrap()
}

fn protected(mut claim: ResourceClaim) -> ResourceClaim {
    claim.metadata.finalizers = Some(vec!["example.com/x".to_owned(), DELETE_PROTECTION.to_owned()]);
    claim
}

fn decide(pod: &v1::Pod, named: Option<&ResourceClaim>, owned: &[&ResourceClaim]) -> Step {
    let owned: Vec<_> = owned.iter().map(|claim| Arc::new(ResourceClaim::clone(claim))).collect();
    let pod = Pod::from(pod.clone());
    step(&pod, &entries(&pod)[0], named.cloned().map(Arc::new), &owned)
}

#[test]
fn claims_are_generated_once() {
    let own = claim(Some("uid-p"), &[], false);
    let mut of_other_entry = own.clone();
    of_other_entry.metadata.annotations = Some(testing::labels(&[(POD_CLAIM, "nic")]));
    let mut unannotated = own.clone();
    unannotated.metadata.annotations = None;
    let foreign = claim(Some("uid-other"), &[], false);
    // An attacker's: whoever may make claims in a namespace may name any owner there.
    let mut elsewhere = own.clone();
    elsewhere.metadata.namespace = Some("other".to_owned());
    let record = || Step::Record("c".to_owned());
    for (about, pod, named, owned, expected) in [
        ("new pod", pod(None), None, vec![], Step::Generate),
        ("status was not written", pod(None), None, vec![&own], record()),
        ("claim of another entry", pod(None), None, vec![&of_other_entry], Step::Generate),
        ("claim that was not generated", pod(None), None, vec![&unannotated], Step::Generate),
        ("claim of another namespace", pod(None), None, vec![&elsewhere], Step::Generate),
        ("complete", pod(Some("c")), Some(&own), vec![&own], Step::Nothing),
        ("claim was lost", pod(Some("c")), None, vec![], Step::Generate),
        ("claim was lost, another is there", pod(Some("b")), None, vec![&own], record()),
        ("claim of another pod is in the way", pod(Some("c")), Some(&foreign), vec![], Step::Nothing),
        ("the user has to make it", sharing(""), None, vec![], Step::Nothing),
    ] {
        assert_eq!(decide(&pod, named, &owned), expected, "{about}");
    }
    let mut unknown = pod(None);
    unknown.spec.as_mut().unwrap().resource_claims = from_value(json!([{"name": "gpu"}])).unwrap();
    assert_eq!(decide(&unknown, None, &[]), Step::Unsupported);
    let mut unneeded = pod(Some("c"));
    unneeded.status.as_mut().unwrap().resource_claim_statuses = from_value(json!([{"name": "gpu"}])).unwrap();
    assert_eq!(decide(&unneeded, None, &[]), Step::Nothing);
}

#[test]
fn allocated_claims_are_reserved_for_pods_that_were_not_scheduled() {
    let (other, own) = (user("q"), user("p"));
    let allocated = claim(Some("uid-p"), &[], true);
    let shared = claim(None, std::slice::from_ref(&other), true);
    for (about, pod, named, is_reserved) in [
        ("generated", on_node(pod(Some("c"))), allocated.clone(), true),
        ("given", sharing("n"), shared.clone(), true),
        ("the scheduler will do it", pod(Some("c")), allocated.clone(), false),
        ("no devices", on_node(pod(Some("c"))), claim(Some("uid-p"), &[], false), false),
        ("reserved", on_node(pod(Some("c"))), claim(Some("uid-p"), std::slice::from_ref(&own), true), false),
        ("another pod's", on_node(pod(Some("c"))), claim(Some("uid-q"), &[], true), false),
    ] {
        let expected = if is_reserved { Step::Reserve(Arc::new(named.clone())) } else { Step::Nothing };
        assert_eq!(decide(&pod, Some(&named), &[]), expected, "{about}");
    }
    let new = reserved(&shared, &sharing("n").into());
    assert_eq!(to_value(&new.status.unwrap().reserved_for).unwrap(), json!([other, own]));
}

#[test]
fn new_statuses_leave_the_others() {
    let mut pod = pod(Some("old"));
    let other = json!({"name": "nic", "resourceClaimName": "other"});
    let statuses = json!([{"name": "gpu", "resourceClaimName": "old"}, other]);
    pod.status.as_mut().unwrap().resource_claim_statuses = from_value(statuses).unwrap();
    let new = with_statuses(&pod.into(), &[("gpu".to_owned(), "new".to_owned())]);
    assert_eq!(to_value(new).unwrap(), json!([other, {"name": "gpu", "resourceClaimName": "new"}]));
}

fn template() -> ResourceClaimTemplate {
    from_value(json!({"metadata": {"name": "t", "namespace": "ns"}, "spec": {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/x"]},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "class", "adminAccess": true}}]}}}}))
    .unwrap()
}

#[test]
fn generated_claim_has_the_template_and_the_pod_as_its_owner() {
    let claim = to_value(claim_for(&pod(None).into(), "gpu", &template())).unwrap();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true});
    let metadata = json!({"generateName": "p-gpu-", "namespace": "ns", "ownerReferences": [owner],
        "labels": {"a": "b"}, "annotations": {"c": "d", POD_CLAIM: "gpu"}});
    assert_eq!(claim["metadata"], metadata);
    assert_eq!(claim["spec"], to_value(template()).unwrap()["spec"]["spec"]);
}

#[test]
fn long_names_are_shortened_in_proportion() {
    let named = |pod_name: &str, entry: &str| {
        let mut pod = pod(None);
        pod.metadata.name = Some(pod_name.to_owned());
        claim_for(&pod.into(), entry, &template()).metadata.generate_name.unwrap()
    };
    let (most, more) = ("p".repeat(52), "p".repeat(53));
    assert_eq!(named(&most, "gpu"), format!("{most}-gpu-"), "57 characters");
    assert_eq!(named(&more, "gpu"), format!("{}-gp", "p".repeat(52)));
    assert_eq!(named(&"p".repeat(200), &"g".repeat(50)), format!("{}-{}", "p".repeat(45), "g".repeat(11)));
}

#[test]
fn pods_need_their_claims_until_they_are_over() {
    let mut ended = on_node(pod(None));
    ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let mut stopping = on_node(pod(None));
    stopping.metadata.deletion_timestamp = testing::time(1);
    let mut unscheduled = pod(None);
    unscheduled.metadata.deletion_timestamp = testing::time(1);
    for (about, cached, expected) in [
        ("waits", Some(pod(None)), Life::Needed),
        ("its node stops it", Some(stopping), Life::Needed),
        ("ended", Some(ended), Life::Over),
        ("deleted before it was scheduled", Some(unscheduled), Life::Over),
        ("not seen", None, Life::Unknown),
    ] {
        assert_eq!(life("uid-p", cached.map(Pod::from).as_ref()), expected, "{about}");
    }
    let other = life("uid-other", Some(&Pod::from(pod(None))));
    assert_eq!(other, Life::Unknown, "which of the two is newer?");
}

#[test]
fn only_pods_lose_their_claims() {
    let workload = json!({"apiGroup": "example.com", "resource": "pods", "name": "w", "uid": "uid-w"});
    let claim = claim(None, &[user("p"), workload.clone(), user("q")], true);
    let left = remaining(&claim, |one| one.name != "q");
    assert_eq!(to_value(left).unwrap(), json!([workload, user("q")]));
}

#[test]
fn devices_are_given_back_when_the_last_user_goes() {
    let deleted = |mut claim: ResourceClaim| {
        claim.metadata.deletion_timestamp = testing::time(1);
        claim
    };
    let users = [user("p"), user("q")];
    let in_use = || protected(claim(None, &users, true));
    let idle = || protected(claim(None, &[], true));
    // Case, number of users that stay, and `true` if devices and finalizer stay.
    for (about, claim, stay, devices, finalizer) in [
        ("last user goes", in_use(), 0, false, false),
        ("one of two goes", in_use(), 1, true, true),
        ("nobody goes", in_use(), 2, true, true),
        ("deleted, last user goes", deleted(in_use()), 0, false, false),
        ("deleted, in use", deleted(in_use()), 1, true, true),
        ("was not used", idle(), 0, true, true),
        ("deleted, was not used", deleted(idle()), 0, false, false),
        ("deleted, without devices", deleted(protected(claim(None, &[], false))), 0, false, false),
        ("new", protected(claim(None, &[], false)), 0, false, true),
        ("devices of another allocator", claim(None, &users, true), 0, true, false),
    ] {
        let before = crate::device_claims::consumers(&claim).to_vec();
        let new = released(&claim, before[..stay].to_vec());
        let status = new.status.as_ref().unwrap();
        assert_eq!(status.reserved_for.as_ref().map_or(0, Vec::len), stay, "{about}");
        assert_eq!(status.allocation.is_some(), devices, "{about}");
        let free = unprotected(&new, stay < before.len());
        let finalizers = free.unwrap_or(new).metadata.finalizers.unwrap_or_default();
        assert_eq!(finalizers.iter().any(|one| one == DELETE_PROTECTION), finalizer, "{about}");
        assert_eq!(
            finalizers.is_empty(),
            about == "devices of another allocator",
            "{about}: the other one stays"
        );
    }
}

#[test]
fn only_a_controlling_pod_owns_a_generated_claim() {
    let own = claim(Some("uid-p"), &[], false);
    assert_eq!(owning_pod(&own).map(|owner| owner.uid.as_str()), Some("uid-p"));
    for (field, value) in
        [("controller", json!(false)), ("kind", json!("PodGroup")), ("apiVersion", json!("v2"))]
    {
        let mut claim = to_value(&own).unwrap();
        claim["metadata"]["ownerReferences"][0][field] = value;
        assert_eq!(owning_pod(&from_value(claim).unwrap()), None, "{field}");
    }
    assert_eq!(owning_pod(&claim(None, &[], false)), None);
}
