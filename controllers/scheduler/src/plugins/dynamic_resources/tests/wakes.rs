//! The changes that wake a pod.

use super::*;
use crate::cluster::devices::allocation;

#[test]
fn changes_wake_pods_whose_claims_they_concern() {
    let mut cluster = two_nodes();
    let (open, other) = (claim("x", json!({})), claim("other", json!({})));
    add(&mut cluster, &open);
    let pod = user(&["x"]);
    let hint =
        |cluster: &Cluster, old: Option<&Arc<ResourceClaim>>, new: &Arc<ResourceClaim>, pod: &PodInfo| {
            plugin().hint(pod, &Change::ResourceClaim(Versions { old, new: Some(new) }), cluster)
        };
    let has = claim("x", json!({"status": allocated("a", "d0")}));
    let other_has = claim("other", json!({"status": allocated("a", "d0")}));
    let labeled = claim("x", json!({"metadata": {"labels": {"a": "b"}}}));
    for (what, old, new, wanted) in [
        ("made", None, &open, Hint::Queue),
        ("another one made", None, &other, Hint::Skip),
        ("its status has changed", Some(&open), &has, Hint::Queue),
        ("something else has changed", Some(&open), &labeled, Hint::Skip),
        ("another one has changed", Some(&other), &other_has, Hint::Skip),
        ("devices were freed", Some(&other_has), &other, Hint::Queue),
    ] {
        assert_eq!(hint(&cluster, old, new, &pod), wanted, "{what}");
    }
    assert_eq!(hint(&cluster, Some(&other_has), &other, &user(&["missing"])), Hint::Skip);
    let deleted = Change::ResourceClaim(Versions { old: Some(&has), new: None });
    assert_eq!(plugin().hint(&pod, &deleted, &cluster), Hint::Skip, "deleted");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "older", "controller": true}]);
    let foreign = claim("made", json!({"metadata": {"ownerReferences": owner}}));
    add(&mut cluster, &foreign);
    let template = |statuses: Value| {
        let spec = json!({"resourceClaims": [{"name": "t", "resourceClaimTemplateName": "t"}]});
        super::pod("p", json!({"spec": spec, "status": {"resourceClaimStatuses": statuses}}))
    };
    let made = template(json!([{"name": "t", "resourceClaimName": "made"}]));
    assert_eq!(hint(&cluster, None, &foreign, &made), Hint::Skip, "made for an older pod of the name");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let own = claim("made", json!({"metadata": {"ownerReferences": owner}}));
    add(&mut cluster, &own);
    assert_eq!(hint(&cluster, None, &own, &made), Hint::Queue, "made for the pod");
    let changed = |new: &Arc<PodInfo>| {
        plugin().hint(&pod, &Change::Pod(Versions { old: None, new: Some(new) }), &cluster)
    };
    assert_eq!(changed(&pod), Hint::Queue);
    assert_eq!(changed(&user(&["missing"])), Hint::Skip);
    assert_eq!(changed(&pod_of("q", json!({}))), Hint::Skip);
    assert_eq!(changed(&template(Value::Null)), Hint::Skip, "its claim is not made yet");
    assert_eq!(changed(&made), Hint::Queue, "its claim is made");
    assert!(allocation(&has).is_some() && allocation(&open).is_none());
}
