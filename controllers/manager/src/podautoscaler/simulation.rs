//! An autoscaler whose metric changes at random, with a controller that dies at any write: it never sets more or fewer
//! replicas than its bounds, its rules and the recommendations within their windows allow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};
use tokio::time::Instant;

use crate::testing::ambient;
use crate::testing::api::{Beside, FakeApi};
use crate::testing::dice::Dice;
use crate::testing::life::Life;

const LIVES: u64 = 150;
/// Longest window of stabilization.
const WINDOW: u64 = 120;
/// Steps of the longest lives, each ten seconds long on average.
const STEPS: usize = 100;
/// Steps of half a minute for which it is watched once it has what it wants.
const REST: usize = 6;

/// The rules of one direction, as the truth reads them.
struct Rules {
    /// Kind, value and period of each policy.
    policies: Vec<(bool, i64, Duration)>,
    select: &'static str,
    window: Duration,
}

impl Rules {
    fn new(dice: &mut Dice) -> Self {
        let policies = (0..1 + dice.below(2)).map(|_| {
            let is_percent = dice.once_in(2);
            let value = if is_percent { 10 + dice.below(150) } else { 1 + dice.below(4) };
            (is_percent, i64::try_from(value).unwrap(), Duration::from_secs(1 + dice.below(120)))
        });
        let policies = policies.collect();
        let select = dice.pick(&["Max", "Max", "Min", "Min", "Disabled"]);
        let window = if dice.once_in(2) { 0 } else { dice.below(WINDOW) };
        Self { policies, select, window: Duration::from_secs(window) }
    }

    fn value(&self) -> Value {
        let policy = |(is_percent, value, period): &(bool, i64, Duration)| {
            let kind = if *is_percent { "Percent" } else { "Pods" };
            json!({"type": kind, "value": value, "periodSeconds": period.as_secs()})
        };
        let policies: Vec<Value> = self.policies.iter().map(policy).collect();
        json!({"policies": policies, "selectPolicy": self.select, "tolerance": "0",
            "stabilizationWindowSeconds": self.window.as_secs()})
    }

    /// Returns the furthest that a step may go from `replicas` if `changes` were made before.
    fn limit(&self, is_up: bool, replicas: i64, changes: &[(Instant, i64)], now: Instant) -> i64 {
        let limits = self.policies.iter().map(|(is_percent, value, period)| {
            let within = changes.iter().filter(|(at, _)| now.duration_since(*at) < *period);
            let start = replicas - within.map(|(_, change)| change).sum::<i64>();
            match (is_up, is_percent) {
                (true, false) => start + value,
                (false, false) => start - value,
                (true, true) => (start as f64 * (1.0 + *value as f64 / 100.0)).ceil() as i64,
                (false, true) => (start as f64 * (1.0 - *value as f64 / 100.0)) as i64,
            }
        });
        let steps =
            limits.map(|limit| if is_up { (limit - replicas).max(0) } else { (replicas - limit).max(0) });
        let step = match self.select {
            "Max" => steps.max().unwrap(),
            "Min" => steps.min().unwrap(),
            _ => 0,
        };
        if is_up { replicas + step } else { replicas - step }
    }
}

/// Returns the answers of discovery without the kinds that no autoscaler of this test names: reading all of them again and
/// again was most of the work.
fn discovery(path: &str) -> Option<Value> {
    let version = json!({"groupVersion": "apps/v1", "version": "v1"});
    match path {
        "/apis" => Some(json!({"kind": "APIGroupList", "apiVersion": "v1",
            "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}]})),
        "/api/v1" => Some(json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": []})),
        _ => None,
    }
}

struct World {
    api: FakeApi,
    client: Client,
    ambient: Ambient,
    dice: Dice,
    bounds: (i64, i64),
    up: Rules,
    down: Rules,
    /// Number of replicas that the metric asks for.
    wanted: Arc<Mutex<i64>>,
    /// The numbers that it asked for, whenever the controller has looked.
    asked: Arc<Mutex<Vec<(Instant, i64)>>>,
    /// Times at which a user has set the number of replicas.
    set_by_user: Vec<Instant>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (api, mut dice) = (FakeApi::new(), Dice::new(seed));
        let least = 1 + i64::try_from(dice.below(3)).unwrap();
        let bounds = (least, least + 1 + i64::try_from(dice.below(20)).unwrap());
        let (up, down) = (Rules::new(&mut dice), Rules::new(&mut dice));
        let (wanted, asked) = (Arc::new(Mutex::new(1)), Arc::<Mutex<Vec<(Instant, i64)>>>::default());
        let (now, log) = (Arc::clone(&wanted), Arc::clone(&asked));
        api.serve(move |path| {
            let others = discovery(path).map(Beside::Value);
            others.or_else(|| {
                path.starts_with("/apis/external.metrics.k8s.io/").then(|| {
                    let wanted = *now.lock().unwrap();
                    log.lock().unwrap().push((Instant::now(), wanted));
                    Beside::Value(json!({"items": [{"metricName": "qps", "value": wanted.to_string()}]}))
                })
            })
        });
        let (client, ambient) = (api.client(), ambient());
        Self { api, client, ambient, dice, bounds, up, down, wanted, asked, set_by_user: Vec::new() }
    }

    fn begin(&mut self, writes: u64) -> Life {
        let writes = usize::try_from(1 + self.dice.below(writes)).unwrap();
        Life::begin(&self.api, &self.ambient, (writes, self.dice.once_in(2)), super::start)
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), "ns")
    }

    async fn create_deployment(&mut self) {
        let replicas = 1 + self.dice.below(25);
        let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {}});
        let deployment = from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        self.deployments().create(&PostParams::default(), &deployment).await.unwrap();
    }

    async fn create_autoscaler(&self) {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let metric = json!({"type": "External", "external": {"metric": {"name": "qps"},
            "target": {"type": "AverageValue", "averageValue": "1"}}});
        let behavior = json!({"scaleUp": self.up.value(), "scaleDown": self.down.value()});
        let (least, most) = self.bounds;
        let spec = json!({"minReplicas": least, "maxReplicas": most, "scaleTargetRef": target,
            "metrics": [metric], "behavior": behavior});
        let hpa = from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), "ns");
        hpas.create(&PostParams::default(), &hpa).await.unwrap();
    }

    fn replicas(&self) -> i64 {
        self.api.all("deployments")[0]["spec"]["replicas"].as_i64().unwrap()
    }

    /// Does what the controller of Deployments would: there are as many replicas as are set.
    async fn follow(&self) {
        let deployment = &self.api.all("deployments")[0];
        let replicas = &deployment["spec"]["replicas"];
        if deployment["status"]["replicas"] == *replicas {
            return;
        }
        let status = Patch::Merge(json!({"status": {"replicas": replicas}}));
        self.deployments().patch_status("web", &PatchParams::default(), &status).await.unwrap();
    }

    /// Sets the number of replicas as a user may, if the controller has noted all that it did, and recommendations from
    /// before its start no longer count.
    async fn meddle(&mut self, life: &Life) {
        let noted = self.api.all("horizontalpodautoscalers");
        let is_noted = noted.first().is_some_and(|hpa| hpa["status"]["desiredReplicas"] == self.replicas());
        if !is_noted || life.is_dead() || life.age().as_secs() <= WINDOW {
            return;
        }
        let replicas = 1 + self.dice.below(25);
        let spec = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.deployments().patch("web", &PatchParams::default(), &spec).await.unwrap();
        self.set_by_user.push(Instant::now());
    }

    async fn step(&mut self, life: &Life) {
        if self.dice.once_in(3) {
            let wanted = if self.dice.once_in(4) { 0 } else { self.dice.below(30) };
            *self.wanted.lock().unwrap() = i64::try_from(wanted).unwrap();
        }
        if self.dice.once_in(20) {
            self.meddle(life).await;
        }
        if !self.dice.once_in(4) {
            self.follow().await;
        }
        tokio::time::sleep(Duration::from_millis(1 + self.dice.below(20_000))).await;
    }

    /// Checks every number of replicas that the controller has set, by all that had happened until then.
    fn check(&self, seed: u64) -> usize {
        let states = self.api.times("deployments");
        let replicas = |state: &Value| state["spec"]["replicas"].as_i64().unwrap();
        let (least, most) = self.bounds;
        let mut changes: Vec<(Instant, i64)> = Vec::new();
        for pair in states.windows(2) {
            let (now, before, after) = (pair[1].0, replicas(&pair[0].1), replicas(&pair[1].1));
            if before == after || self.set_by_user.contains(&now) {
                continue;
            }
            let what = format!("seed {seed}: {before} to {after}, {changes:?}");
            assert!((least..=most).contains(&after), "{what}");
            if (least..=most).contains(&before) {
                let is_up = after > before;
                let rules = if is_up { &self.up } else { &self.down };
                let limit = rules.limit(is_up, before, &changes, now);
                let recent = self.asked.lock().unwrap().clone().into_iter();
                let recent = recent.filter(|(at, _)| *at <= now && now.duration_since(*at) < rules.window);
                let stable = recent.map(|(_, wanted)| wanted);
                if is_up {
                    assert!(after <= limit, "{what}: at most {limit}");
                    assert!(stable.min().is_none_or(|lowest| after <= lowest.max(least)), "{what}");
                } else {
                    assert!(after >= limit, "{what}: at least {limit}");
                    assert!(stable.max().is_none_or(|highest| after >= highest.min(most)), "{what}");
                }
            }
            changes.push((now, after - before));
        }
        changes.len()
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_stay_within_bounds_and_rules_through_crashes_between_any_two_writes() {
    let mut changes = 0;
    let seeds = crate::seeded::seeds(LIVES);
    let is_all = seeds.end - seeds.start >= LIVES;
    for seed in seeds {
        let mut world = World::new(seed);
        world.create_deployment().await;
        let is_there = world.dice.once_in(2);
        if is_there {
            world.create_autoscaler().await;
        }
        let mut life = world.begin(12);
        if !is_there {
            world.step(&life).await;
            world.create_autoscaler().await;
        }
        for _ in 0..world.dice.steps(STEPS) {
            world.step(&life).await;
            let is_dead = life.is_dead();
            if is_dead {
                life.end().await;
                life = world.begin(12);
            }
        }
        life.end().await;
        // Undisturbed, it reaches what the metric asks for, and stays there.
        let last = world.begin(1 << 40);
        let wanted = i64::try_from(world.dice.below(30)).unwrap();
        *world.wanted.lock().unwrap() = wanted;
        let (least, most) = world.bounds;
        let reachable = wanted.clamp(least, most);
        let is_disabled = |world: &World| {
            let rules = if reachable > world.replicas() { &world.up } else { &world.down };
            rules.select == "Disabled"
        };
        let mut rest = 0;
        for _ in 0..200 {
            world.follow().await;
            tokio::time::sleep(Duration::from_secs(30)).await;
            rest += usize::from(world.replicas() == reachable || is_disabled(&world));
            if rest == REST {
                break;
            }
        }
        last.end().await;
        changes += world.check(seed);
        let now = world.replicas();
        assert!(now == reachable || is_disabled(&world), "seed {seed}: {now} instead of {reachable}");
    }
    assert!(!is_all || changes > 100, "{changes} changes in all");
}
