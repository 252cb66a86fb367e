//! Gangs whose pods share one claim of devices.

use super::*;

const DEVICES: &str = "/apis/resource.k8s.io/v1";

impl World {
    /// Adds a node with a device, and a claim of any device.
    async fn with_devices(cores: &[u32], node: &str) -> Self {
        let world = Self::of_gangs(cores).await;
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": node,
            "devices": [{"name": "dev"}],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
        send(&world.api, "POST", &format!("{DEVICES}/resourceslices"), &slice).await;
        let class = json!({"metadata": {"name": "c"}, "spec": {}});
        send(&world.api, "POST", &format!("{DEVICES}/deviceclasses"), &class).await;
        let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
        let claim = json!({"metadata": {"name": "x"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
        send(&world.api, "POST", &format!("{DEVICES}/namespaces/ns/resourceclaims"), &claim).await;
        world
    }

    async fn add_users(&self, names: &[&str]) {
        let claims = json!([{"name": "x", "resourceClaimName": "x"}]);
        for name in names {
            self.add(name, json!({"spec": {"resourceClaims": claims}})).await;
        }
    }

    fn claim(&self) -> Value {
        self.api.all("resourceclaims").pop().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn gang_is_bound_where_the_devices_are_that_its_pods_share() {
    let world = World::with_devices(&[9, 3], "n1").await;
    world.add_group("g", json!({"gang": {"minCount": 3}})).await;
    world.add_users(&["a", "b", "c"]).await;
    world.line.until(10).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.api.all("pods").iter().all(|pod| node_of(pod) == Some("n1")));
    assert!(world.is_scheduled());
    assert_eq!(world.notes("FailedScheduling"), Vec::<String>::new(), "none of them was tried twice");
    let status = world.claim()["status"].clone();
    assert_eq!(status["reservedFor"].as_array().map(Vec::len), Some(3));
    assert_eq!(status["allocation"]["devices"]["results"][0]["device"], "dev");
}

#[tokio::test(start_paused = true)]
async fn gang_that_does_not_fit_beside_its_devices_leaves_them_to_others() {
    let world = World::with_devices(&[9, 2], "n1").await;
    world.add_group("g", json!({"gang": {"minCount": 3}})).await;
    world.add_users(&["a", "b", "c"]).await;
    world.line.until(10).await;
    assert_eq!(waiting(&world.api).len(), 3);
    assert!(world.claim()["status"]["allocation"].is_null());
    let claims = json!([{"name": "x", "resourceClaimName": "x"}]);
    add_pod(&world.api, "alone", "1", json!({"spec": {"resourceClaims": claims}})).await;
    world.line.until(20).await;
    assert_eq!(node_of(&world.pod("alone")), Some("n1"));
    assert_eq!(world.claim()["status"]["reservedFor"].as_array().map(Vec::len), Some(1));
    assert_eq!(waiting(&world.api).len(), 3);
}
