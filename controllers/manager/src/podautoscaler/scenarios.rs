//! Plays the scenarios of autoscalers: each plan is one judgement.
//!
//! Status and scale that a plan writes are carried out: the next judgement begins with them. Pods run since their creation
//! and request a core unless they say otherwise; there are as many replicas as are set unless the Deployment says how many.
//! `PodMetrics` are the samples of pods by their names, `Metric` are those of all other sources: a `value`, or `pods` with
//! one for each, or the `error` of their server. An autoscaler that has a status in the first scene was judged by a
//! controller that is gone.

use std::sync::Arc;

use apiserver_meta::quantity;
use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::api::core::v1;
use serde_json::{Value, from_value, json};

use super::Memory;
use super::history::{History, may_be_unnoted, unknown_until};
use super::judgement::{Demand, Event, Judgement, Next, Settings};
use super::metric::{Answer, Measured, Query, propose, query};
use super::replicas::{Sample, Workload};
use crate::pods::Pod;
use crate::testing::merge::merge;
use crate::testing::scenario::{Scene, check, headed, status};
use crate::testing::slim;

/// The controller's memory of the autoscaler, and what the API server has.
#[derive(Default)]
struct Player {
    settings: Settings,
    memory: Memory,
    /// Status as it was written; none before the first judgement.
    status: Option<Option<HorizontalPodAutoscalerStatus>>,
    /// Number of replicas as the file last had it, and as it is set.
    replicas: Option<(i32, i32)>,
    inherited: bool,
}

fn number(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|number| i32::try_from(number).ok())
}

fn milli(value: &Value) -> i64 {
    quantity::parse_value(value).expect("an amount").milli()
}

fn pods(scene: &Scene) -> Vec<Arc<Pod>> {
    let whole = |pod: &Value| -> v1::Pod {
        let request = json!({"name": "main", "resources": {"requests": {"cpu": "1"}}});
        let started = &pod["metadata"]["creationTimestamp"];
        let mut whole = json!({"spec": {"containers": [request]}, "status": {"startTime": started}});
        merge(&mut whole, pod);
        from_value(whole).expect("a pod")
    };
    slim(scene.values("Pod").map(whole))
}

/// Returns what the servers of metrics answer.
fn answer(scene: &Scene, query: &Query) -> Answer {
    let metric = |wanted: &str| {
        let found = scene.values("Metric").find(|metric| metric["metadata"]["name"] == wanted);
        let found = found.ok_or_else(|| format!("no metrics returned for {wanted}"))?;
        match found["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(found.clone()),
        }
    };
    let sample =
        |value: &Value| Sample { value: milli(value), at: scene.now, window: SignedDuration::from_secs(30) };
    match query {
        Query::Resource { resource, container } => {
            let usage = |pod: &Value| {
                let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
                let usage = match container {
                    Some(container) => &pod["containers"][container][resource],
                    None => &pod["usage"][resource],
                };
                (!usage.is_null()).then(|| (name, sample(usage)))
            };
            let samples = scene.values("PodMetrics").filter_map(usage).collect();
            Ok(Measured::Pods(samples))
        }
        Query::Pods { metric: wanted, .. } => {
            let found = metric(wanted)?;
            let all = found["pods"].as_object().into_iter().flatten();
            Ok(Measured::Pods(all.map(|(pod, value)| (pod.clone(), sample(value))).collect()))
        }
        Query::Object { metric: wanted, .. } | Query::External { metric: wanted, .. } => {
            Ok(Measured::Values(vec![milli(&metric(wanted)?["value"])]))
        }
    }
}

/// Returns a line about each metric.
fn measured(metrics: Option<&Vec<MetricStatus>>) -> Vec<String> {
    let line = |metric: &MetricStatus| {
        let metric = json!(metric);
        let kind = metric["type"].as_str().unwrap_or_default();
        let mut parts = metric.as_object().into_iter().flatten().filter(|(_, part)| part.is_object());
        let Some((_, source)) = parts.next() else { return "not measured".to_owned() };
        let name = source["name"].as_str().or(source["metric"]["name"].as_str()).unwrap_or_default();
        let current = source["current"].as_object().into_iter().flatten();
        let current = current.map(|(key, value)| match value.as_str() {
            Some(text) => format!(" {key} {text}"),
            None => format!(" {key} {value}"),
        });
        format!("{kind} {name}:{}", current.collect::<String>())
    };
    metrics.into_iter().flatten().map(line).collect()
}

impl Player {
    fn plan(&mut self, scene: &Scene) -> Vec<String> {
        let mut hpa: HorizontalPodAutoscaler = scene.one("HorizontalPodAutoscaler");
        match &self.status {
            Some(status) => hpa.status = status.clone(),
            None => self.inherited = hpa.status.is_some(),
        }
        let settings = self.settings;
        let mut judgement = Judgement::new(&hpa, &settings, scene.now);
        let mut lines = match scene.values("Deployment").next() {
            None => {
                judgement.cannot_get_scale("deployments.apps \"web\" not found");
                Vec::new()
            }
            Some(target) => self.judge(scene, &hpa, target, &mut judgement),
        };
        let (mut new, events) = judgement.end();
        self.status = Some(Some(new.clone()));
        let news = events.into_iter().filter(|event| self.memory.is_news(event, scene.now));
        lines.extend(news.map(|Event { is_warning, reason, message }| {
            format!("{} {reason}: {message}", if is_warning { "warning" } else { "event" })
        }));
        let measured = measured(new.current_metrics.as_ref());
        if !measured.is_empty() {
            lines.extend(headed("measured", measured));
        }
        let mut old = hpa.status.unwrap_or_default();
        (old.current_metrics, new.current_metrics) = (None, None);
        lines.extend(status(&old, &new));
        lines
    }

    /// Does what a judgement does with a scale that can be read and written.
    fn judge(
        &mut self,
        scene: &Scene,
        hpa: &HorizontalPodAutoscaler,
        target: &Value,
        judgement: &mut Judgement<'_>,
    ) -> Vec<String> {
        let file = number(&target["spec"]["replicas"]).expect("a number of replicas");
        let replicas = self.replicas.filter(|(known, _)| *known == file).map_or(file, |(_, set)| set);
        self.replicas = Some((file, replicas));
        let present = number(&target["status"]["replicas"]).unwrap_or(replicas);
        let (status, now) = (hpa.status.as_ref(), scene.now);
        let unknown = if self.inherited { unknown_until(status, replicas, now) } else { None };
        if self.memory.history.is_none() && self.inherited && may_be_unnoted(status, replicas) {
            judgement.may_have_changed();
        }
        let history = self.memory.history.get_or_insert_with(|| History::begin(replicas, unknown, now));
        let rescale = match judgement.begin(replicas) {
            Next::Leave => None,
            Next::Rescale(rescale) => Some(rescale),
            Next::Measure => {
                let Some(demand) = demand(scene, hpa, (replicas, present), judgement) else {
                    return vec!["leave web alone".to_owned()];
                };
                judgement.limit(&demand, history)
            }
        };
        let Some(rescale) = rescale else {
            judgement.stays();
            return vec![format!("leave web at {replicas}")];
        };
        let noted =
            judgement.set_by_others().map(|noted| format!("note that there are {}", noted.desired_replicas));
        history.changed(replicas, rescale.replicas, now);
        judgement.rescaled(&rescale, now);
        self.replicas = Some((file, rescale.replicas));
        let scaled = format!("scale web from {replicas} to {}", rescale.replicas);
        noted.into_iter().chain([scaled]).collect()
    }
}

/// Returns what the metrics ask for. `counts`: the numbers of replicas that are set, and that are there.
fn demand(
    scene: &Scene,
    hpa: &HorizontalPodAutoscaler,
    counts: (i32, i32),
    judgement: &mut Judgement<'_>,
) -> Option<Demand> {
    let pods = pods(scene);
    let workload = Workload {
        replicas: counts.0,
        present: counts.1,
        pods: &pods,
        tolerances: judgement.tolerances(),
        startup: Settings::default().startup,
        now: scene.now,
    };
    let results = hpa.spec.metrics.iter().flatten().map(|spec| {
        let answer = match query(spec)? {
            Some(query) => answer(scene, &query),
            None => Err("there is nothing to ask for".to_owned()),
        };
        propose(spec, answer, "ns", &workload)
    });
    judgement.measured(results.collect())
}

#[test]
fn scenarios_of_autoscalers_have_their_plans() {
    check("podautoscaler/scenarios", || {
        let mut player = Player::default();
        move |scene: &Scene| player.plan(scene)
    });
}
