//! Many clients write one object at the same time: writes without a resource version succeed.

use futures::future::join_all;
use serde_json::json;

use crate::api::harness::{Api, every_api};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MAP: &str = "/api/v1/namespaces/default/configmaps/shared";
const CLIENTS: usize = 16;
const WRITES: usize = 10;

#[tokio::test(start_paused = true)]
async fn patches_of_many_clients_all_arrive() {
    for kind in ["merge", "strategic-merge"] {
        let api = Api::start().await;
        api.post(MAPS, json!({"metadata": {"name": "shared"}})).await.expect(201);
        join_all((0..CLIENTS).map(|client| {
            let api = &api;
            async move {
                for write in 0..WRITES {
                    let body = json!({"data": {format!("{client}.{write}"): "x"}});
                    api.patch(kind, MAP, body).await.expect(200);
                }
            }
        }))
        .await;
        let map = api.get(MAP).await.expect(200);
        assert_eq!(map.body["data"].as_object().unwrap().len(), CLIENTS * WRITES);
    }
}

#[tokio::test(start_paused = true)]
async fn configurations_of_many_managers_all_arrive() {
    let api = Api::start().await;
    join_all((0..CLIENTS).map(|client| {
        let api = &api;
        async move {
            for write in 0..WRITES {
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"},
                    "data": {format!("{client}"): write.to_string()}});
                let path = format!("{MAP}?fieldManager=m{client}&force=true");
                let code = api.apply(&path, body).await.code;
                assert!(matches!(code, 200 | 201), "{code}");
            }
        }
    }))
    .await;
    let map = api.get(MAP).await.expect(200);
    assert_eq!(map.body["data"].as_object().unwrap().len(), CLIENTS);
}

#[tokio::test(start_paused = true)]
async fn replacing_and_deleting_without_a_version_succeeds_beside_writers() {
    let api = Api::start().await;
    api.post(MAPS, json!({"metadata": {"name": "shared", "finalizers": ["a.b/c"]}})).await.expect(201);
    let replace = (0..CLIENTS).map(|client| {
        let api = &api;
        async move {
            for write in 0..WRITES {
                let body = json!({"metadata": {"name": "shared", "finalizers": ["a.b/c"]},
                    "data": {"by": format!("{client}.{write}")}});
                api.put(MAP, body).await.expect(200);
            }
        }
    });
    let delete = async {
        for _ in 0..WRITES {
            api.delete(MAP, json!({})).await.expect(200);
        }
    };
    futures::join!(join_all(replace), delete);
    let map = api.get(MAP).await.expect(200);
    assert!(map.body["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test(start_paused = true)]
async fn kinds_that_are_replaced_by_version_say_so() {
    let api = Api::with(every_api()).await;
    let lease = json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let made = api.post(leases, lease.clone()).await.expect(201);
    let refused = api.put(&format!("{leases}/leader"), lease.clone()).await.expect(422);
    assert!(refused.message().contains("metadata.resourceVersion"), "{}", refused.message());
    assert!(refused.message().contains("must be specified for an update"), "{}", refused.message());
    let mut versioned = lease;
    versioned["metadata"]["resourceVersion"] = made.version().into();
    api.put(&format!("{leases}/leader"), versioned).await.expect(200);
    let patch = json!({"spec": {"holderIdentity": "b"}});
    api.patch("merge", &format!("{leases}/leader"), patch).await.expect(200);
}
