//! Random histories: a client that lists and then watches knows at the end what a fresh list returns, and has
//! received every change once and in order. A paged list is the list of its revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::harness::{Api, Watching, as_item};

const MAPS: &str = "/api/v1/configmaps";

/// A small generator: the same seed, the same history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % sides
    }
}

fn key(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn version(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// A client that lists once and then only watches.
struct Informer {
    selector: &'static str,
    known: BTreeMap<String, Value>,
    seen: i64,
    watch: Watching,
}

impl Informer {
    async fn start(api: &Api, selector: &'static str) -> Self {
        let list = api.get(&format!("{MAPS}?labelSelector={selector}")).await.expect(200).body;
        let seen = version(&list);
        let items = list["items"].as_array().unwrap();
        let known = items.iter().map(|o| (key(o), o.clone())).collect();
        let path = format!("{MAPS}?watch=1&labelSelector={selector}&resourceVersion={seen}");
        Self { selector, known, seen, watch: api.watch(&path).await }
    }

    /// Takes the events that have come.
    async fn catch_up(&mut self) {
        while let Ok(event) =
            tokio::time::timeout(std::time::Duration::from_millis(50), self.watch.next()).await
        {
            self.take(event.expect("the watch goes on"));
        }
    }

    fn take(&mut self, event: Value) {
        let object = as_item(&event["object"]);
        assert!(version(&object) > self.seen, "out of order: {event}");
        self.seen = version(&object);
        let key = key(&object);
        match event["type"].as_str().unwrap() {
            "ADDED" => assert!(self.known.insert(key, object).is_none()),
            "MODIFIED" => assert!(self.known.insert(key, object).is_some()),
            "DELETED" => assert!(self.known.remove(&key).is_some()),
            other => panic!("{other}"),
        }
    }
}

async fn step(api: &Api, dice: &mut Dice) {
    let namespace = ["default", "kube-system"][dice.roll(2) as usize];
    let name = format!("m{}", dice.roll(6));
    let color = ["red", "blue"][dice.roll(2) as usize];
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    match dice.roll(4) {
        0 => drop(api.delete(&format!("{path}/{name}"), Value::Null).await),
        1 | 2 => {
            let patch =
                json!({"metadata": {"labels": {"color": color}}, "data": {"n": dice.roll(100).to_string()}});
            drop(api.patch("merge", &format!("{path}/{name}"), patch).await);
        }
        _ => {
            let map = json!({"metadata": {"name": name, "labels": {"color": color}}});
            drop(api.post(&path, map).await);
        }
    }
}

async fn paged(api: &Api, limit: u64, dice: &mut Dice) -> (i64, Vec<Value>) {
    let (mut items, mut token) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("{MAPS}?limit={limit}&continue={token}")).await.expect(200).body;
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => return (version(&page), items),
        }
        step(api, dice).await;
    }
}

#[tokio::test(start_paused = true)]
async fn informers_and_lists_agree_in_random_histories() {
    for seed in 1..=12 {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let api = Api::start().await;
        let mut informers = Vec::new();
        for _ in 0..80 {
            match dice.roll(12) {
                0 => informers.push(Informer::start(&api, "").await),
                1 => informers.push(Informer::start(&api, "color%3Dred").await),
                2 => {
                    let limit = 1 + dice.roll(4);
                    let (revision, items) = paged(&api, limit, &mut dice).await;
                    let exact = format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
                    let whole = api.get(&exact).await.expect(200).body;
                    assert_eq!(whole["items"], Value::Array(items), "seed {seed}");
                }
                _ => step(&api, &mut dice).await,
            }
        }
        for informer in &mut informers {
            informer.catch_up().await;
            let list = api.get(&format!("{MAPS}?labelSelector={}", informer.selector)).await.expect(200).body;
            let now: BTreeMap<String, Value> =
                list["items"].as_array().unwrap().iter().map(|o| (key(o), o.clone())).collect();
            assert_eq!(informer.known, now, "seed {seed}");
        }
        api.server.stop();
    }
}

/// The same with several threads: writers, informers and lists at one time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn informers_agree_while_many_write() {
    let api = Arc::new(Api::start().await);
    let writers = (1..=4_u64).map(|seed| {
        let api = Arc::clone(&api);
        tokio::spawn(async move {
            let mut dice = Dice(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
            for _ in 0..150 {
                step(&api, &mut dice).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let informers = (0..8_u64).map(|i| {
        let api = Arc::clone(&api);
        tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(10 * i)).await;
            let mut informer = Informer::start(&api, if i % 2 == 0 { "" } else { "color%3Dred" }).await;
            loop {
                match tokio::time::timeout(std::time::Duration::from_secs(20), informer.watch.next()).await {
                    Ok(Some(event)) if event["object"]["metadata"]["name"] == "last" => return informer,
                    Ok(Some(event)) => informer.take(event),
                    other => panic!("the watch ended: {other:?}"),
                }
            }
        })
    });
    let informers: Vec<_> = informers.collect();
    for writer in writers {
        writer.await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let before = api.get(&format!("{MAPS}?labelSelector=color")).await.expect(200).body;
    api.config_map("last", json!({"color": "red"})).await;
    for informer in informers {
        let informer = informer.await.unwrap();
        let wanted = |o: &&Value| informer.selector.is_empty() || o["metadata"]["labels"]["color"] == "red";
        let items = before["items"].as_array().unwrap().iter().filter(wanted);
        let now: BTreeMap<String, Value> = items.map(|o| (key(o), o.clone())).collect();
        assert_eq!(informer.known, now);
    }
}
