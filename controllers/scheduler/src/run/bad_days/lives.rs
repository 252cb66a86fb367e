//! Lives of schedulers by seed, with an API that fails: in the end, what the last of them assumes and what the API has agree,
//! nothing is leaked, and no pod starves. `LIVES=500 cargo test -p controllers-scheduler --lib bad_days::lives` looks for what
//! no seed has found.

use std::sync::atomic::{AtomicBool, Ordering};

use apiserver_client::ObjectKey;
use tokio::time::Instant;

use super::super::follow::{self, Updates};
use super::super::tests::on;
use super::super::{Cluster, Scheduler, Views};
use super::core::{CLAIMS, claim, facts, info, picture, pod, verdict, volume};
use super::*;

/// Second from which on nothing fails and nobody changes anything.
const CALM: u64 = 100;
/// Second in which all has to be done.
const END: u64 = 160;

/// Returns a client whose requests are not answered any more once `is_dead`.
fn mortal(client: Client, is_dead: Arc<AtomicBool>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, is_dead) = (client.clone(), Arc::clone(&is_dead));
        async move {
            if is_dead.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            client.send(request).await.map_err(tower::BoxError::from)
        }
    });
    Client::new(service, "default")
}

/// Runs a scheduler until a second, and returns it as it is then.
async fn live(line: &Line, until: u64) -> Scheduler {
    let (is_dead, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
    let informers = Informers::new(mortal(line.client(), Arc::clone(&is_dead)), ambient(), stop.clone());
    let updates = Updates::new();
    let followed = follow::all(&informers, &updates, crate::config::Gates::default());
    let mut scheduler = on(&informers, ambient(), updates.clone());
    tokio::select! {
        biased;
        () = line.until(until) => {}
        () = async {
            let devices = followed.synced(&updates).await;
            tokio::join!(devices, scheduler.run());
        } => {}
    }
    is_dead.store(true, Ordering::Relaxed);
    stop.cancel();
    scheduler
}

/// Returns faults of a kind and at times that the dice choose.
fn faults(dice: &mut fastrand::Rng) -> Vec<Fault> {
    let failures = [
        Failure::Refused(409, "Conflict", "the object has been modified"),
        Failure::Refused(500, "InternalError", "etcdserver: request timed out"),
        Failure::Busy(None),
        Failure::Busy(Some(3)),
        Failure::Hangs(7),
        Failure::Broken,
        Failure::AnswerLost,
    ];
    let resources: [&[&str]; 4] = [&["pods/binding"], &["pods/status"], &["pods"], &["nodes"]];
    let fault = |dice: &mut fastrand::Rng| {
        let begin = dice.u64(3..80);
        let seconds = begin..(begin + dice.u64(1..20)).min(CALM);
        let failure = failures[dice.usize(..failures.len())];
        let conflicts = matches!(failure, Failure::Refused(409, ..));
        let resources = resources[if conflicts { 0 } else { dice.usize(..4) }];
        let one_of = 1 + dice.usize(..3);
        Fault { resources, one_of, ..Fault::of(failure, seconds) }
    };
    (0..6).map(|_| fault(dice)).collect()
}

async fn set_node(api: &FakeApi, dice: &mut fastrand::Rng) {
    let number = dice.usize(..5);
    let (name, zone) = (format!("n{number}"), ["x", "y"][dice.usize(..2)]);
    let path = format!("/api/v1/nodes/{name}");
    let is_there = api.all("nodes").iter().any(|node| node["metadata"]["name"] == name);
    match dice.usize(..3) {
        0 if is_there => {
            send(api, "DELETE", &path, &json!({})).await;
            // The garbage collector of pods does this in a cluster.
            for pod in api.all("pods").iter().filter(|pod| node_of(pod) == Some(&name)) {
                let pod = pod["metadata"]["name"].as_str().unwrap();
                send(api, "DELETE", &format!("/api/v1/namespaces/ns/pods/{pod}"), &json!({})).await;
            }
        }
        _ if is_there => {
            let (labels, unschedulable) = (json!({"zone": zone}), dice.usize(..5) == 0);
            let patch = json!({"metadata": {"labels": labels}, "spec": {"unschedulable": unschedulable}});
            send(api, "PATCH", &path, &patch).await;
        }
        _ => {
            let node = json!({"metadata": {"name": name, "labels": {"zone": zone, "disk": "x"}}, "spec": {},
                "status": {"allocatable": {"cpu": (2 + number).to_string(), "pods": "20"}}});
            send(api, "POST", "/api/v1/nodes", &node).await;
        }
    }
}

async fn change(api: &FakeApi, dice: &mut fastrand::Rng, number: usize) {
    let pods = "/api/v1/namespaces/ns/pods";
    match dice.usize(..6) {
        0 => set_node(api, dice).await,
        1 => {
            let all = api.all("pods");
            if !all.is_empty() {
                let name = all[dice.usize(..all.len())]["metadata"]["name"].as_str().unwrap().to_owned();
                send(api, "DELETE", &format!("{pods}/{name}"), &json!({})).await;
            }
        }
        _ => {
            let (feature, app) = (dice.usize(..13), ["a", "b"][dice.usize(..2)]);
            let mut pod = pod(&format!("p{number}"), feature, app, 1 + dice.usize(..2));
            pod["metadata"] = json!({"name": format!("p{number}"), "labels": {"app": app}});
            pod["spec"]["priority"] = json!(dice.usize(..3));
            send(api, "POST", pods, &pod).await;
        }
    }
}

/// Returns a cluster of what the API has.
fn stored(api: &FakeApi) -> Cluster {
    let mut cluster = Cluster::default();
    for claim in api.all("persistentvolumeclaims") {
        let key = ObjectKey::new("ns", claim["metadata"]["name"].as_str().unwrap());
        cluster.storage.set_claim(&key, Some(Arc::new(serde_json::from_value(claim).unwrap())));
    }
    for volume in api.all("persistentvolumes") {
        let name = volume["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.storage.set_volume(&name, Some(Arc::new(serde_json::from_value(volume).unwrap())));
    }
    api.all("nodes").iter().for_each(|node| cluster.set_node(facts(node)));
    for pod in api.all("pods").iter().map(info) {
        match (&pod.node, &pod.nominated) {
            (Some(node), _) => cluster.place(&pod, node),
            (None, Some(node)) => cluster.nominated.set(&pod, node),
            (None, None) => {}
        }
    }
    cluster
}

/// Checks that a scheduler at rest and the API agree, and that each pod that waits has to.
fn check(api: &FakeApi, scheduler: &Scheduler, seed: u64) {
    assert_eq!(wrongs(api), Vec::<String>::new(), "seed {seed}");
    let mut stored = stored(api);
    assert_eq!(picture(&scheduler.cluster), picture(&stored), "seed {seed}");
    let under_way = (scheduler.binding.len(), scheduler.victims.len(), scheduler.binder.conditions.len());
    assert_eq!(under_way, (0, 0, 0), "seed {seed}");
    let waiting: Vec<_> = api.all("pods").iter().filter(|pod| node_of(pod).is_none()).map(info).collect();
    let counts = scheduler.queue.counts();
    assert_eq!(
        counts.active + counts.backoff + counts.unschedulable + counts.gated,
        waiting.len(),
        "seed {seed}"
    );
    for pod in waiting {
        let found = verdict(&scheduler.profiles[0], &pod, &mut stored, &mut Views::default());
        assert!(found.is_err(), "seed {seed}: {} starves beside {found:?}", pod.key());
        assert!(pod.refusal.is_some(), "seed {seed}: {} does not say why it waits", pod.key());
    }
}

#[tokio::test(start_paused = true)]
async fn schedulers_that_die_beside_an_api_that_fails_agree_with_it_in_the_end() {
    for seed in crate::seeded::seeds(6) {
        let mut dice = fastrand::Rng::with_seed(seed);
        let api = FakeApi::new();
        for (name, mode) in CLAIMS {
            let made =
                send(&api, "POST", "/api/v1/namespaces/ns/persistentvolumeclaims", &claim(name, mode)).await;
            let mut volume = volume(name, mode);
            volume["spec"]["claimRef"]["uid"] = made["metadata"]["uid"].clone();
            send(&api, "POST", "/api/v1/persistentvolumes", &volume).await;
        }
        let line = Line::new(&api, faults(&mut dice));
        let mut deaths: Vec<u64> = (0..3).map(|_| dice.u64(5..CALM)).collect();
        deaths.sort_unstable();
        let begin = Instant::now();
        let others = async {
            let mut number = 0;
            while begin.elapsed().as_secs() < CALM {
                number += 1;
                change(&api, &mut dice, number).await;
                tokio::time::sleep(Duration::from_millis(dice.u64(1..2500))).await;
            }
        };
        let lives = async {
            for death in deaths {
                live(&line, death).await;
            }
            live(&line, END).await
        };
        let ((), last) = tokio::join!(others, lives);
        check(&api, &last, seed);
    }
}
