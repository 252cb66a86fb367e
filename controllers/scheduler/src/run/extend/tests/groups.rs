//! Pods of groups that interest extenders.

use apiserver_client::ObjectKey;

use super::*;
use crate::run::follow::Fact;
use crate::run::tests::metric;

#[tokio::test]
async fn pods_of_a_gang_are_tried_alone_and_bound_when_all_have_a_node() {
    let server = passing(&["b"]).await;
    let gates = Gates { generic_workload: true, gang_scheduling: true, ..Gates::default() };
    let mut world = World::with_gates(json!([filter(&server)]), &["a", "b"], gates).await;
    let group = json!({"metadata": {"name": "g", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}});
    let group = Arc::new(from_value(group).unwrap());
    world.scheduler.apply(Update::Fact(Fact::PodGroup(ObjectKey::new("default", "g"), Some(group))));
    for name in ["p", "q"] {
        world.create(name, json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}}));
    }
    for name in ["p", "q"] {
        assert_eq!(world.until_bound(name).await, "b");
    }
    assert_eq!(server.requests("filter").len(), 2);
    let waits = metric(&world.scheduler, "scheduler_permit_wait_duration_seconds", &["Success"]);
    assert_eq!(waits, Some(1.0), "the first one has waited for the second");
}
