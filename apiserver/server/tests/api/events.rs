//! Events of `events.k8s.io/v1` with series, as the scheduler writes them, and what clients of `v1` see of them.

use std::time::Duration;

use apiserver_server::ServerConfig;
use serde_json::{Value, json};

use crate::api::harness::{Api, pod};
use crate::api::kubectl::{self, Kubectl};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const CORE: &str = "/api/v1/namespaces/default/events";

/// Returns the time so many seconds ago.
fn ago(seconds: i64) -> Value {
    json!(format!("{:.6}", jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)))
}

/// Returns the event of a pod that was refused 9.5 hours ago.
fn refused() -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "p.1", "namespace": "default"},
        "eventTime": ago(34_200), "type": "Warning", "reason": "FailedScheduling", "action": "Scheduling",
        "note": "no room", "reportingController": "default-scheduler", "reportingInstance": "default-scheduler-a",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p", "uid": "u"},
        "related": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "q"},
    })
}

/// Returns the patch that makes it a series, which was seen last 20.5 minutes ago.
fn seven_times() -> Value {
    json!({"series": {"count": 7, "lastObservedTime": ago(1230)}})
}

#[tokio::test(start_paused = true)]
async fn series_of_an_event_is_seen_in_the_older_version_too() {
    let api = Api::start().await;
    api.post(EVENTS, refused()).await.expect(201);
    api.patch("strategic-merge", &format!("{EVENTS}/p.1"), seven_times()).await.expect(200);
    let core = api.get(&format!("{CORE}?fieldSelector=involvedObject.name%3Dp,involvedObject.uid%3Du")).await;
    let core = core.expect(200).body["items"][0].clone();
    let fields = ["message", "reason", "action", "reportingComponent", "reportingInstance"];
    assert_eq!(
        fields.map(|field| core[field].as_str().unwrap_or_default()),
        ["no room", "FailedScheduling", "Scheduling", "default-scheduler", "default-scheduler-a"]
    );
    assert_eq!((&core["related"]["name"], &core["series"]["count"]), (&json!("q"), &json!(7)));
    for path in [EVENTS, CORE] {
        let table = api.get_as(path, "application/json;as=Table;v=v1;g=meta.k8s.io").await.expect(200).body;
        let source = "default-scheduler, default-scheduler-a";
        let cells =
            json!(["20m", "Warning", "FailedScheduling", "pod/p", "", source, "no room", "9h", 7, "p.1"]);
        assert_eq!(table["rows"][0]["cells"], cells, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn event_lives_as_long_as_its_series_is_refreshed() {
    let api =
        Api::with(ServerConfig { event_ttl: Duration::from_secs(3600), ..ServerConfig::default() }).await;
    api.post(EVENTS, refused()).await.expect(201);
    for count in 2..6 {
        tokio::time::sleep(Duration::from_secs(1800)).await;
        let series = json!({"series": {"count": count, "lastObservedTime": ago(0)}});
        api.patch("strategic-merge", &format!("{EVENTS}/p.1"), series).await.expect(200);
    }
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    api.get(&format!("{CORE}/p.1")).await.expect(404);
    api.patch("strategic-merge", &format!("{EVENTS}/p.1"), seven_times()).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs kubectl: cargo xtask test"]
async fn kubectl_shows_the_series_of_an_event() {
    let newer = std::env::var("HAWSER_KUBECTL").ok().filter(|program| !program.is_empty());
    for program in ["kubectl".to_owned()].into_iter().chain(newer) {
        let dir = tempfile::tempdir().unwrap();
        let (shutdown, serving) = kubectl::run(dir.path()).await;
        let home = dir.path().to_path_buf();
        let done = tokio::task::spawn_blocking(move || shows_series(&Kubectl { program, home })).await;
        shutdown.cancel();
        serving.await.unwrap();
        done.unwrap();
    }
}

fn shows_series(kubectl: &Kubectl) {
    kubectl.run("create serviceaccount default");
    let manifest = kubectl.file("pod.json", &pod("p"));
    kubectl.run(&format!("create -f {manifest}"));
    let mut event = refused();
    event["regarding"]["uid"] = kubectl.object("pod/p")["metadata"]["uid"].clone();
    let manifest = kubectl.file("event.json", &event);
    kubectl.run(&format!("create -f {manifest}"));
    let patch = kubectl.file("patch.json", &seven_times());
    kubectl.run(&format!("patch events.events.k8s.io p.1 --patch-file {patch}"));
    let columns = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let list = columns(&kubectl.run("get events"));
    assert_eq!(list[1], "20m Warning FailedScheduling pod/p no room");
    let events = columns(&kubectl.run("events --for pod/p"));
    assert_eq!(events[1], "20m (x7 over 9h) Warning FailedScheduling Pod/p no room");
    let described = columns(&kubectl.run("describe pod p"));
    let line = "Warning FailedScheduling 20m (x7 over 9h) default-scheduler no room";
    assert!(described.iter().any(|text| text == line), "{described:#?}");
}
