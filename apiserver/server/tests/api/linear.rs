//! Clients of the API that compare and swap, read, list and watch at once, while the server is started
//! anew over a disk that loses power: one order explains all that they were answered.

#![allow(clippy::print_stderr, reason = "shown where the test fails")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use apiserver_server::ServerConfig;
use apiserver_store::disk::{Disk, Faults, SimDisk};
use apiserver_store::embedded::{Embedded, Options};
use serde_json::{Value, json};
use tokio::task::LocalSet;

use crate::api::harness::{Api, Reply};
use crate::history::{Action, History, Listing, Operation, Outcome, Version};
use crate::seeded;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LIVES: u64 = 8;
const ROUNDS: u64 = 3;
const CLIENTS: u64 = 4;
const OPERATIONS: u64 = 15;
const KEYS: u64 = 3;

#[derive(Default)]
struct Seen {
    clock: Cell<u64>,
    history: RefCell<History>,
    /// The revision at which the watch continues.
    watched: Cell<i64>,
}

impl Seen {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn operation(&self, key: &str, called: u64, action: Action) {
        let returned = self.tick();
        self.history.borrow_mut().operations.push(Operation {
            key: key.to_owned(),
            called,
            returned,
            action,
        });
    }
}

#[test]
fn answers_across_restarts_are_linearizable() {
    for seed in seeded::seeds(LIVES) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let history = LocalSet::new().block_on(&runtime, live(seed));
        let unknown = |o: &&Operation| matches!(o.action, Action::Write { outcome: Outcome::Unknown, .. });
        assert!(history.operations.len() > 100 && !history.events.is_empty(), "LIFE_SEED={seed}");
        let lost = history.operations.iter().filter(unknown).count();
        // The watch of the last life ended with the newest change.
        if let Err(why) = history.check() {
            panic!("LIFE_SEED={seed}, {lost} writes without an answer: {why}");
        }
    }
}

async fn live(seed: u64) -> History {
    let disk = SimDisk::new(seed).with_sync_time(Duration::from_micros(100));
    let seen = Rc::new(Seen::default());
    for round in 0..=ROUNDS {
        let store =
            Embedded::open(Arc::new(disk.clone()) as Arc<dyn Disk>, Options::default()).await.unwrap();
        let api = Rc::new(Api::over(ServerConfig::default(), Arc::new(store)).await);
        if seen.watched.get() == 0 {
            seen.watched.set(
                api.get(MAPS).await.body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap(),
            );
        }
        let watching = tokio::task::spawn_local(follow(Rc::clone(&api), Rc::clone(&seen)));
        if round < ROUNDS {
            let at = disk.operations() + 20 + (seed * 31 + round * 17) % 60;
            disk.set_faults(Faults { crash_at: Some(at), ..Faults::default() });
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (api, seen, disk) = (Rc::clone(&api), Rc::clone(&seen), disk.clone());
                    tokio::task::spawn_local(client_of(
                        api,
                        seen,
                        disk,
                        (seed * ROUNDS + round) * CLIENTS + client,
                    ))
                })
                .collect();
            for client in clients {
                client.await.unwrap();
            }
        } else {
            list(&api, &seen).await;
        }
        // Durable writes are watched before the power fails, or after the restart.
        tokio::time::sleep(Duration::from_secs(1)).await;
        watching.abort();
        if let Err(ended) = watching.await
            && ended.is_panic()
        {
            eprintln!("the same life again: LIFE_SEED={seed}");
            std::panic::resume_unwind(ended.into_panic());
        }
        api.server.stop();
        disk.crash();
        tokio::time::sleep(Duration::from_secs(60)).await;
        disk.restart();
    }
    seen.history.take()
}

/// Runs a client. A third of its requests change the same few objects; a disk that hangs is part of it.
async fn client_of(api: Rc<Api>, seen: Rc<Seen>, disk: SimDisk, seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % limit
    };
    for number in 0..OPERATIONS {
        match below(12) {
            0 => disk.pause(Duration::from_secs(2)),
            1 => list(&api, &seen).await,
            _ => {}
        }
        let name = format!("m{}", below(KEYS));
        let path = format!("{MAPS}/{name}");
        let called = seen.tick();
        let found = match answer(api.get(&path).await) {
            Some(reply) if reply.code == 200 => Some(version(&reply.body)),
            Some(_) => None,
            None => return,
        };
        let expected = found.as_ref().map_or(0, |(_, revision)| *revision);
        seen.operation(&name, called, Action::Read { found, revision: None });
        tokio::time::sleep(Duration::from_micros(below(500))).await;
        let unique = format!("{seed}-{number}");
        let value = (expected == 0 || below(4) > 0).then_some(unique);
        let called = seen.tick();
        let reply = match &value {
            None => {
                let preconditions = json!({"preconditions": {"resourceVersion": expected.to_string()}});
                api.delete(&path, preconditions).await
            }
            Some(value) if expected == 0 => {
                api.post(MAPS, json!({"metadata": {"name": name}, "data": {"v": value}})).await
            }
            Some(value) => {
                let metadata = json!({"name": name, "resourceVersion": expected.to_string()});
                api.put(&path, json!({"metadata": metadata, "data": {"v": value}})).await
            }
        };
        let outcome = match (&value, answer(reply)) {
            (_, None) => Outcome::Unknown,
            (Some(_), Some(reply)) if reply.code < 300 => Outcome::Done(Some(version(&reply.body).1)),
            (None, Some(reply)) if reply.code == 200 => Outcome::Done(None),
            (_, Some(reply)) => {
                assert!(matches!(reply.code, 404 | 409), "{}", reply.text);
                Outcome::Refused(None)
            }
        };
        let lost = outcome == Outcome::Unknown;
        seen.operation(&name, called, Action::Write { expected, value, outcome });
        if lost {
            return;
        }
    }
}

/// Returns `None` if the store has stopped, because the result is unknown.
fn answer(reply: Reply) -> Option<Reply> {
    (reply.code < 500).then_some(reply)
}

async fn list(api: &Api, seen: &Seen) {
    let called = seen.tick();
    let Some(reply) = answer(api.get(MAPS).await) else { return };
    let revision = reply.body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let items = reply.body["items"].as_array().unwrap();
    let found: BTreeMap<String, Version> =
        items.iter().filter(|i| ours(i)).map(|i| (name(i), version(i))).collect();
    let known: Vec<String> = seen.history.borrow().operations.iter().map(|o| o.key.clone()).collect();
    // A key whose first write has not been answered yet is unknown here.
    if found.keys().all(|key| known.contains(key)) {
        seen.history.borrow_mut().listings.push(Listing { called, returned: seen.tick(), revision, found });
    }
}

fn ours(object: &Value) -> bool {
    object["metadata"]["name"].as_str().unwrap().starts_with('m')
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

fn version(object: &Value) -> Version {
    let revision = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    (object["data"]["v"].as_str().unwrap().to_owned(), revision)
}

/// Watches from where the watch of the life before ended.
async fn follow(api: Rc<Api>, seen: Rc<Seen>) {
    let from = seen.watched.get();
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    while let Some(event) = watch.next().await {
        let object = &event["object"];
        assert!(event["type"] != "ERROR", "{event}");
        let revision: i64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(revision > seen.watched.get(), "out of order, or twice: {event}");
        seen.watched.set(revision);
        if ours(object) {
            let value = (event["type"] != "DELETED").then(|| version(object).0);
            seen.history.borrow_mut().events.insert(revision, (name(object), value));
        }
    }
}
