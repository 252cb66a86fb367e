//! Nodes that change between the decision for them and the binding.

use super::*;

/// Begins with two nodes of one core, of which `b` can be used from second 3 on, and a pod whose binding to `a` arrives in second 6.
async fn begin() -> (FakeApi, Line, Life) {
    let api = FakeApi::new();
    add_node(&api, "a", json!({"cpu": "1"})).await;
    let late = Fault { resources: &["pods/binding"], ..Fault::of(Failure::Late, 0..6) };
    let line = Line::new(&api, vec![late]);
    let life = Life::begin(line.client(), ambient(), Config::default());
    add_pod(&api, "first", "1", json!({})).await;
    line.until(3).await;
    add_node(&api, "b", json!({"cpu": "1"})).await;
    (api, line, life)
}

/// Returns the node of each pod.
fn places(api: &FakeApi) -> Vec<Option<String>> {
    api.all("pods").iter().map(|pod| node_of(pod).map(str::to_owned)).collect()
}

fn on(nodes: &[Option<&str>]) -> Vec<Option<String>> {
    nodes.iter().map(|node| node.map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn node_that_is_gone_or_cordoned_before_a_binding_gets_no_further_pod() {
    for cordons in [false, true] {
        let (api, line, _life) = begin().await;
        if cordons {
            send(&api, "PATCH", "/api/v1/nodes/a", &json!({"spec": {"unschedulable": true}})).await;
        } else {
            send(&api, "DELETE", "/api/v1/nodes/a", &json!({})).await;
        }
        line.until(4).await;
        add_pod(&api, "second", "1", json!({})).await;
        add_pod(&api, "third", "1", json!({})).await;
        line.until(30).await;
        // The API server binds to a node that is gone, as Kubernetes' does; the garbage collector of pods removes the pod.
        assert_eq!(places(&api), on(&[Some("a"), Some("b"), None]), "{cordons}");
        send(&api, "DELETE", "/api/v1/namespaces/ns/pods/second", &json!({})).await;
        line.until(50).await;
        assert_eq!(places(&api), on(&[Some("a"), Some("b")]), "{cordons}");
    }
}

#[tokio::test(start_paused = true)]
async fn node_that_replaces_one_of_its_name_has_the_pods_that_are_bound_to_the_name() {
    for cpu in ["1", "2"] {
        let (api, line, _life) = begin().await;
        send(&api, "DELETE", "/api/v1/nodes/a", &json!({})).await;
        add_node(&api, "a", json!({"cpu": cpu})).await;
        line.until(4).await;
        for name in ["second", "third"] {
            add_pod(&api, name, "1", json!({})).await;
        }
        line.until(30).await;
        let waits = if cpu == "1" { 1 } else { 0 };
        assert_eq!((waiting(&api).len(), wrongs(&api)), (waits, vec![]), "{cpu}");
        assert_eq!(places(&api)[0].as_deref(), Some("a"));
    }
}
