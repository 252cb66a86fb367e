//! The node's server on a real socket, with a fake runtime behind it: answers to unauthorized clients, and
//! the streams that one tenant leaves to others.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use crate::bench::{Bench, Kubelet};
use crate::support::Api;
use http_body_util::BodyExt;
use kubelet_agent::{FakeMachine, limits};
use kubelet_cri::{FakeRuntime, fake::FakeOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn node(bench: &Bench, api: &Api) -> Kubelet {
    let time = AtomicI64::new(1_800_000_000_000_000_000);
    let clock = Arc::new(move || time.fetch_add(1, Ordering::Relaxed));
    let runtime = FakeRuntime::new(FakeOptions::new((Ipv4Addr::new(10, 9, 0, 0), 24), clock));
    let machine = FakeMachine::new(runtime.clone(), "n1", Ipv4Addr::LOCALHOST.into());
    bench.kubelet_over(api, Arc::new(runtime), Arc::new(machine)).await
}

#[tokio::test]
async fn unauthorized_clients_learn_nothing_about_health() {
    let (bench, api) = (Bench::new(), Api::new());
    let kubelet = node(&bench, &api).await;
    for path in ["/healthz", "/healthz/", "//healthz", "/healthz/ping", "/pods", "/nothing"] {
        assert_eq!(bench.get(kubelet.port, path, false).await, (401, "Unauthorized".to_owned()), "{path}");
    }
    assert_eq!(bench.get(kubelet.port, "/healthz", true).await, (200, "ok".to_owned()));
    kubelet.stop().await;
}

#[tokio::test]
async fn unauthorized_clients_get_one_http_1_answer_and_no_http_2() {
    let (bench, api) = (Bench::new(), Api::new());
    let kubelet = node(&bench, &api).await;
    let answer = async |sent: &[u8]| {
        let mut stream = bench.connect(kubelet.port, false).await;
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // The server may close without a TLS close_notify.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let twice = answer(&b"GET /pods HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2)).await;
    assert_eq!(twice.matches("HTTP/1.1 401").count(), 1, "{twice}");
    // The preface and an empty SETTINGS frame, which an HTTP/2 server answers with its own.
    let frames = answer(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    assert!(frames.is_empty() || frames.starts_with("HTTP/1.1 4"), "{frames:?}");
    kubelet.stop().await;
}

#[tokio::test]
async fn streams_to_one_pod_leave_room_for_those_to_others() {
    let (bench, api) = (Bench::new(), Api::new());
    let kubelet = node(&bench, &api).await;
    for name in ["greedy", "modest"] {
        api.create_pod(name, json!({"containers": [{"name": "c", "image": "web"}]}));
        api.until_ready(name).await;
    }
    let follow = async |pod: &str| {
        let path = format!("/containerLogs/default/{pod}/c?follow=true");
        bench.open(kubelet.port, &path, true).await
    };
    let mut open = Vec::new();
    for _ in 0..limits::POD_STREAMS {
        let answer = follow("greedy").await;
        assert_eq!(answer.status(), 200);
        open.push(answer);
    }
    let refused = follow("greedy").await;
    assert_eq!(refused.status(), 429);
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "too many streams to pod default/greedy are open on this node, try again later");
    assert_eq!(follow("modest").await.status(), 200);
    // Exec streams are counted as well, before the runtime is involved.
    let exec = "/exec/default/greedy/c?command=x";
    assert_eq!(bench.upgrade(kubelet.port, exec, "SPDY/3.1").await, 429);
    assert_eq!(bench.upgrade(kubelet.port, "/exec/default/none/c?command=x", "SPDY/3.1").await, 404);
    drop(open);
    while follow("greedy").await.status() != 200 {}
    kubelet.stop().await;
}

#[tokio::test]
async fn directories_of_volumes_are_removed_by_name_for_the_api_server_alone() {
    let (bench, api) = (Bench::new(), Api::new());
    let time = AtomicI64::new(1_800_000_000_000_000_000);
    let clock = Arc::new(move || time.fetch_add(1, Ordering::Relaxed));
    let runtime = FakeRuntime::new(FakeOptions::new((Ipv4Addr::new(10, 9, 0, 0), 24), clock));
    let machine = FakeMachine::new(runtime.clone(), "n1", Ipv4Addr::LOCALHOST.into());
    let kubelet = bench.kubelet_over(&api, Arc::new(runtime), Arc::new(machine.clone())).await;
    let answer = async |method: &str, path: &str, permitted: bool| {
        let method = method.parse().unwrap();
        bench.send(kubelet.port, method, path, permitted).await.status().as_u16()
    };
    assert_eq!(answer("DELETE", "/localVolumes/pvc-1", false).await, 401);
    for method in ["GET", "POST", "PUT"] {
        assert_eq!(answer(method, "/localVolumes/pvc-1", true).await, 405, "{method}");
    }
    for path in [
        "/localVolumes/..",
        "/localVolumes/.",
        "/localVolumes/.pvc-1",
        "/localVolumes/%2e%2e",
        "/localVolumes/..%2fpods",
        "/localVolumes/PVC",
    ] {
        assert_eq!(answer("DELETE", path, true).await, 400, "{path}");
    }
    for path in ["/localVolumes", "/localVolumes/", "/localVolumes/pvc-1/deeper", "/localVolumes/../pods"] {
        assert_eq!(answer("DELETE", path, true).await, 404, "{path}");
    }
    assert_eq!(machine.removed_volumes(), [""; 0]);
    assert_eq!(answer("DELETE", "/localVolumes/pvc-1", true).await, 200);
    assert_eq!(machine.removed_volumes(), ["pvc-1"]);

    // Not even the API server takes the files of a pod that runs.
    let named = |name: &str| json!({"name": name, "namespace": "default", "uid": "u"});
    let claim =
        json!({"metadata": named("c"), "spec": {"volumeName": "pvc-2"}, "status": {"phase": "Bound"}});
    api.create("api/v1/persistentvolumeclaims", claim);
    let spec = json!({"claimRef": named("c"), "local": {"path": "/volumes/pvc-2"}});
    api.create("api/v1/persistentvolumes", json!({"metadata": {"name": "pvc-2"}, "spec": spec}));
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}});
    api.create_pod("p", json!({"containers": [{"name": "c", "image": "web"}], "volumes": [volume]}));
    api.until_ready("p").await;
    assert_eq!(answer("DELETE", "/localVolumes/pvc-2", true).await, 409);
    api.delete_pod("p", 0);
    api.until_gone("p").await;
    while answer("DELETE", "/localVolumes/pvc-2", true).await == 409 {}
    assert_eq!(machine.removed_volumes(), ["pvc-1", "pvc-2"]);
    kubelet.stop().await;
}
