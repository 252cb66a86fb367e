use std::sync::{Arc, Mutex};

use apiserver_meta::ambient::Ambient;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{Cache, Change, Informers, limits};

fn config_map(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "resourceVersion": version}})
}

fn event(event: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": event, "object": object}))
}

fn end_of_state(version: &str) -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    event("BOOKMARK", &json!({"metadata": {"resourceVersion": version, "annotations": annotations}}))
}

/// Returns the cache of a server that answers with a status and a text, or not at all (0), and what it was asked: `state`,
/// `watch VERSION`, `list LIMIT TOKEN`.
fn follow(
    answer: impl Fn(&str) -> (u16, String) + Clone + Send + 'static,
) -> (Cache<ConfigMap>, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let of = |name: &str| {
            let parts = query.split('&').filter_map(|part| part.split_once('='));
            parts.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect::<String>()
        };
        let request = match (query.contains("watch=true"), query.contains("sendInitialEvents=true")) {
            (true, true) => "state".to_owned(),
            (true, false) => format!("watch {}", of("resourceVersion")),
            (false, _) => format!("list {} {}", of("limit"), of("continue")),
        };
        let (status, body) = answer(&request);
        log.lock().unwrap().push(request);
        async move {
            if status == 0 {
                std::future::pending::<()>().await;
            }
            Response::builder().status(status).body(Body::from(body.into_bytes()))
        }
    });
    let client = Client::new(service, "default");
    let cache = Informers::new(client, Ambient::system(), CancellationToken::new()).cache();
    (cache, asked)
}

fn names(cache: &Cache<ConfigMap>) -> Vec<String> {
    cache.list().iter().map(|object| object.metadata.name.clone().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn watch_brings_the_state_and_what_follows_it_and_goes_on_at_the_last_bookmark() {
    let (cache, asked) = follow(|request| match request {
        "state" => {
            let state =
                [event("ADDED", &config_map("a", "3")), event("ADDED", &config_map("b", "5"))].concat();
            let rest =
                [event("DELETED", &config_map("a", "8")), event("ADDED", &config_map("c", "9"))].concat();
            let mark = event("BOOKMARK", &json!({"metadata": {"resourceVersion": "12"}}));
            (200, [state, end_of_state("7"), rest, mark].concat())
        }
        _ => (0, String::new()),
    });
    cache.synced().await;
    tokio::time::sleep(limits::MIN_RETRY).await;
    assert_eq!(names(&cache), ["b", "c"]);
    assert_eq!((cache.has_seen(12), cache.has_seen(13)), (true, false));
    assert_eq!(*asked.lock().unwrap(), ["state", "watch 12"]);
}

#[tokio::test(start_paused = true)]
async fn objects_are_listed_where_a_server_does_not_stream_them() {
    let list = json!({"metadata": {"resourceVersion": "7"}, "items": [config_map("a", "5")]}).to_string();
    // It refuses, it ends before all was sent, it says what nobody understands.
    let partial = event("ADDED", &config_map("gone", "3"));
    for (status, body) in [(422, String::new()), (200, partial), (200, "nonsense\n".to_owned())] {
        let list = list.clone();
        let (cache, asked) = follow(move |request| match request {
            "state" => (status, body.clone()),
            "list 500 " => (200, list.clone()),
            _ => (0, String::new()),
        });
        cache.synced().await;
        tokio::time::sleep(limits::MIN_RETRY).await;
        assert_eq!(names(&cache), ["a"]);
        assert!(cache.has_seen(7));
        assert_eq!(*asked.lock().unwrap(), ["state", "list 500 ", "watch 7"]);
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_does_not_mark_the_end_of_the_objects_is_not_asked_to_stream_again() {
    let (cache, asked) = follow(|request| match request {
        "state" => (0, String::new()),
        "list 500 " => (200, json!({"metadata": {"resourceVersion": "7"}, "items": []}).to_string()),
        _ => (410, String::new()),
    });
    cache.synced().await;
    tokio::time::sleep(limits::MAX_RETRY).await;
    let asked = asked.lock().unwrap();
    assert_eq!(asked.iter().filter(|request| *request == "state").count(), 1, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn list_whose_rest_has_expired_is_read_at_once() {
    let page = |name: &str, token: &str| {
        let metadata = json!({"resourceVersion": "7", "continue": token});
        (200, json!({"metadata": metadata, "items": [config_map(name, "5")]}).to_string())
    };
    let (cache, asked) = follow(move |request| match request {
        "state" => (422, String::new()),
        "list 500 " => page("a", "more"),
        "list 500 more" => (410, String::new()),
        "list  " => page("b", ""),
        _ => (0, String::new()),
    });
    cache.synced().await;
    assert_eq!(names(&cache), ["b"]);
    assert_eq!(asked.lock().unwrap()[..4], ["state", "list 500 ", "list 500 more", "list  "]);
}

#[tokio::test(start_paused = true)]
async fn version_that_a_server_does_not_know_leads_to_a_new_state() {
    for code in [410, 504] {
        let (cache, asked) = follow(move |request| match request {
            "state" => (200, event("ADDED", &config_map("a", "3")) + &end_of_state("7")),
            _ => (code, String::new()),
        });
        cache.synced().await;
        tokio::time::sleep(limits::MAX_RETRY).await;
        let asked = asked.lock().unwrap();
        assert_eq!(asked[..4], ["state", "watch 7", "state", "watch 7"]);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_that_breaks_off_within_an_event_goes_on_behind_the_last_whole_one() {
    let cut_off = event("ADDED", &config_map("c", "11"));
    let (cache, asked) = follow(move |request| match request {
        "state" => {
            let whole = [
                event("ADDED", &config_map("a", "3")),
                end_of_state("7"),
                event("ADDED", &config_map("b", "9")),
            ];
            (200, whole.concat() + &cut_off[..cut_off.len() / 2])
        }
        "watch 9" => (200, cut_off.clone()),
        _ => (0, String::new()),
    });
    cache.synced().await;
    tokio::time::sleep(2 * limits::MIN_RETRY).await;
    assert_eq!(names(&cache), ["a", "b", "c"]);
    assert!(cache.has_seen(11));
    assert_eq!(*asked.lock().unwrap(), ["state", "watch 9", "watch 11"]);
}

#[tokio::test(start_paused = true)]
async fn object_whose_deletion_nobody_has_seen_goes_with_the_next_state() {
    let states = Arc::new(Mutex::new(0));
    let (cache, asked) = follow(move |request| match request {
        "state" => {
            let mut states = states.lock().unwrap();
            *states += 1;
            let b = event("ADDED", &config_map("b", "5"));
            match *states {
                1 => (200, [event("ADDED", &config_map("a", "3")), b, end_of_state("7")].concat()),
                _ => (200, [b, event("ADDED", &config_map("c", "9")), end_of_state("12")].concat()),
            }
        }
        "watch 7" => (410, String::new()),
        _ => (0, String::new()),
    });
    let changes = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&changes);
    cache.on_change(move |change| {
        let sign = if matches!(change, Change::Deleted(_)) { '-' } else { '+' };
        log.lock().unwrap().push(format!("{sign}{}", change.key()));
    });
    cache.synced().await;
    tokio::time::sleep(limits::MAX_RETRY).await;
    assert_eq!(names(&cache), ["b", "c"]);
    assert_eq!(*asked.lock().unwrap(), ["state", "watch 7", "state", "watch 12"]);
    assert_eq!(*changes.lock().unwrap(), ["+ns/a", "+ns/b", "-ns/a", "+ns/c"]);
}
