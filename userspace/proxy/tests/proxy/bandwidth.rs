//! Annotations of pods become limits in the data plane, and Events if they cannot.

use apiserver_client::{Cache, ObjectKey};
use serde_json::{Value, json};
use userspace_dataplane::tables::{Bandwidths, PodBandwidth};
use userspace_proxy::{Config, HostPod, Link, Listeners};

use crate::proxy::events::{api_server, recorder};
use crate::proxy::support::{Plane, Proxy, run_tasks};

fn pod(name: &str, annotations: &Value, host_network: bool) -> k8s_openapi::api::core::v1::Pod {
    let object = json!({
        "metadata": { "namespace": "default", "name": name, "uid": format!("uid-{name}"), "annotations": annotations },
        "spec": { "containers": [], "hostNetwork": host_network },
    });
    serde_json::from_value(object).unwrap()
}

fn link(name: &str, index: u32) -> Link {
    let pod = Some(format!("uid-{name}"));
    Link { name: format!("hwp{index}"), index, up: true, kind: "veth".to_owned(), pod, ..Link::default() }
}

fn limits(proxy: &Proxy) -> Bandwidths {
    proxy.plane.0.lock().unwrap().fake.bandwidths().clone()
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_node_are_limited_for_as_long_as_they_ask_for_it() {
    let pods = Cache::<HostPod>::default();
    let config = Config { pod_bandwidth: true, ..Config::for_node("here").unwrap() };
    let cache = pods.clone();
    let listeners = Listeners::default();
    let mut proxy =
        Proxy::start_with(config, Plane::default(), listeners, |caches| caches.pods = Some(cache));
    let both = json!({ "kubernetes.io/egress-bandwidth": "10M", "kubernetes.io/ingress-bandwidth": "1Mi" });
    pods.apply(pod("a", &both, false));
    pods.apply(pod("host", &both, true));
    proxy.links.send(vec![link("a", 5), link("b", 6), link("host", 7)]).unwrap();
    run_tasks().await;
    assert_eq!(limits(&proxy), Bandwidths::new(), "the first lists have not arrived");
    proxy.sync().await;
    let a = PodBandwidth { egress: Some(10_000_000), ingress: Some(1_048_576) };
    assert_eq!(limits(&proxy), Bandwidths::from([(5, a)]));
    // The pod of an interface that is there already, and a change.
    pods.apply(pod("b", &json!({ "kubernetes.io/egress-bandwidth": "1k" }), false));
    pods.apply(pod("a", &json!({ "kubernetes.io/egress-bandwidth": "20M" }), false));
    run_tasks().await;
    let only = |rate| PodBandwidth { egress: Some(rate), ingress: None };
    assert_eq!(limits(&proxy), Bandwidths::from([(5, only(20_000_000)), (6, only(1_000))]));
    pods.delete(&ObjectKey::new("default", "b"));
    pods.apply(pod("a", &json!({}), false));
    run_tasks().await;
    assert_eq!(limits(&proxy), Bandwidths::new());
    pods.apply(pod("a", &both, false));
    run_tasks().await;
    proxy.links.send(vec![link("b", 6)]).unwrap();
    run_tasks().await;
    assert_eq!(limits(&proxy), Bandwidths::new(), "the interface is gone");
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_no_bandwidth_becomes_one_event_and_changes_nothing_else() {
    let pods = Cache::<HostPod>::default();
    let (client, events) = api_server(201);
    let config = Config { pod_bandwidth: true, ..Config::for_node("here").unwrap() };
    let cache = pods.clone();
    let change = |caches: &mut userspace_proxy::Caches| caches.pods = Some(cache);
    let recorder = Some(recorder(client));
    let mut proxy = Proxy::start_recording(config, Plane::default(), Listeners::default(), change, recorder);
    proxy.links.send(vec![link("a", 5)]).unwrap();
    proxy.sync().await;
    let annotated = |egress: &str, ingress: &str| {
        let annotations =
            json!({ "kubernetes.io/egress-bandwidth": egress, "kubernetes.io/ingress-bandwidth": ingress });
        pods.apply(pod("a", &annotations, false));
    };
    let told = || std::mem::take(&mut *events.lock().unwrap());
    annotated("fast", "5M");
    run_tasks().await;
    let found = told();
    assert_eq!(found.len(), 1);
    let (event, about) = (&found[0], &found[0]["involvedObject"]);
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"InvalidBandwidth".into()));
    assert_eq!(
        (&about["kind"], &about["name"], &about["uid"]),
        (&"Pod".into(), &"a".into(), &"uid-a".into())
    );
    assert_eq!(
        event["message"],
        "annotation kubernetes.io/egress-bandwidth: \"fast\" is not a quantity; what the pod sends is not limited"
    );
    let ingress = |rate| Bandwidths::from([(5, PodBandwidth { egress: None, ingress: Some(rate) })]);
    assert_eq!(limits(&proxy), ingress(5_000_000));
    annotated("fast", "6M");
    run_tasks().await;
    assert_eq!(told().len(), 0, "it has been told");
    assert_eq!(limits(&proxy), ingress(6_000_000));
    // A tenant that writes odd values without end gets a few Events, and every limit is followed.
    for n in 0..100 {
        annotated(&format!("fast{n}"), "7M");
        run_tasks().await;
    }
    assert!((1..=5).contains(&told().len()));
    assert_eq!(limits(&proxy), ingress(7_000_000));
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn limits_of_an_earlier_process_end_if_annotations_are_not_followed_any_more() {
    let plane = Plane::default();
    let earlier = Bandwidths::from([(5, PodBandwidth { egress: Some(1_000), ingress: None })]);
    userspace_dataplane::DataPlane::set_bandwidths(&mut plane.clone(), &earlier).unwrap();
    let pods = Cache::<HostPod>::default();
    pods.apply(pod("a", &json!({ "kubernetes.io/egress-bandwidth": "1k" }), false));
    let config = Config { host_ports: true, ..Config::for_node("here").unwrap() };
    let mut proxy = Proxy::start_with(config, plane, Listeners::default(), |caches| caches.pods = Some(pods));
    proxy.links.send(vec![link("a", 5)]).unwrap();
    run_tasks().await;
    assert_eq!(limits(&proxy), earlier);
    proxy.sync().await;
    assert_eq!(limits(&proxy), Bandwidths::new());
    proxy.stop().await;
}
