//! Tables of cases: numbers of replicas, limits by rules, and whole judgements.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus, MetricSpec,
};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, from_value, json};

use super::groups::Startup;
use super::history::History;
use super::judgement::{Demand, Event, Judgement, Next, Settings};
use super::metric::{Answer, Measured, propose, query};
use super::replicas::{Goal, Sample, Samples, Tolerances, Workload, by_pods, by_share, by_value, total};
use crate::pods::Pod;
use crate::testing::{at, meta};

/// A case: its name, what there is, and what follows.
pub(super) struct Case<'a> {
    pub name: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    pub expected: &'a str,
}

pub(super) fn cases(text: &str) -> impl Iterator<Item = Case<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, rest) = line.split_once(": ").unwrap();
        let (given, expected) = rest.split_once(" -> ").unwrap();
        let fields = given.split(' ').map(|field| field.split_once('=').unwrap()).collect();
        Case { name, fields, expected }
    })
}

impl<'a> Case<'a> {
    pub fn all(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(name, _)| *name == key).map(|(_, value)| *value)
    }

    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.all(key).next()
    }

    pub fn number(&self, key: &str) -> i32 {
        self.get(key).unwrap().parse().unwrap()
    }

    /// Returns `least..most`.
    pub fn bounds(&self) -> (i32, i32) {
        let (least, most) = self.get("bounds").unwrap().split_once("..").unwrap();
        (least.parse().unwrap(), most.parse().unwrap())
    }

    /// Returns a list of numbers, of which `5*3` is 5, 5, 5.
    pub fn numbers(&self, key: &str) -> Vec<i64> {
        let list = self.get(key).unwrap_or_default().split(',').filter(|item| !item.is_empty());
        list.flat_map(|item| {
            let (number, times) = item.split_once('*').unwrap_or((item, "1"));
            vec![number.parse().unwrap(); times.parse().unwrap()]
        })
        .collect()
    }

    /// Returns the letter of a pod.
    fn letter(&self, key: &str, pod: usize) -> Option<char> {
        self.get(key).and_then(|letters| letters.chars().nth(pod))
    }

    /// Returns changes with their age in seconds, such as `5@60`.
    fn past(&self, key: &str) -> Vec<(Timestamp, i32)> {
        let list = self.get(key).unwrap_or_default().split(',').filter(|item| !item.is_empty());
        list.map(|item| {
            let (number, age) = item.split_once('@').unwrap();
            (now() - SignedDuration::from_secs(age.parse().unwrap()), number.parse().unwrap())
        })
        .collect()
    }

    /// Returns a pod with two containers that request as much each. Without `ready_since_start`, its condition has no
    /// time.
    fn pod(&self, index: usize, request: Option<i64>, ready_since_start: bool) -> Arc<Pod> {
        let start = match self.letter("age", index) {
            Some('h') => now(),
            Some('c') => now() - SignedDuration::from_secs(180),
            _ => Timestamp::MIN,
        };
        let mut metadata = meta(&format!("pod-{index}"));
        if self.letter("deleted", index) == Some('y') {
            metadata.deletion_timestamp = Some(Time(now()));
        }
        let phase = match self.letter("phase", index) {
            Some('p') => "Pending",
            Some('f') => "Failed",
            _ => "Running",
        };
        let ready = if self.letter("ready", index) == Some('n') { "False" } else { "True" };
        let requests = request.map(|request| json!({"cpu": format!("{request}m")}));
        let container = |name: &str| json!({"name": name, "resources": {"requests": requests}});
        let mut pod = v1::Pod { metadata, ..v1::Pod::default() };
        let containers = [container("container1"), container("container2")];
        pod.spec = from_value(json!({"containers": containers})).unwrap();
        let conditions = json!([{"type": "Ready", "status": ready}]);
        pod.status = from_value(json!({"phase": phase, "conditions": conditions})).unwrap();
        let status = pod.status.as_mut().unwrap();
        status.start_time = Some(Time(start));
        if ready_since_start {
            status.conditions.as_mut().unwrap()[0].last_transition_time = Some(Time(start));
        }
        Arc::new(pod.into())
    }
}

pub(super) fn now() -> Timestamp {
    at(100_000)
}

/// Returns the time that has passed this many seconds ago.
pub(super) fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

pub(super) const STARTUP: Startup = Startup {
    initialization: SignedDuration::from_secs(120),
    readiness_delay: SignedDuration::from_secs(10),
};

fn samples(values: impl IntoIterator<Item = (String, i64)>, at: Timestamp) -> Samples {
    let window = SignedDuration::from_secs(60);
    values.into_iter().map(|(pod, value)| (pod, Sample { value, at, window })).collect()
}

/// Returns the usage of each pod, as a whole or of one container, if it is known.
fn usages(case: &Case<'_>) -> Vec<(String, i64)> {
    let container = case.get("container").map(|number| number.parse::<usize>().unwrap() - 1);
    let name = |index| format!("{}-{index}", case.get("of").unwrap_or("pod"));
    let both = case.numbers("both").into_iter().map(|usage| vec![usage, usage]);
    let each = case.get("each").unwrap_or_default().split(',').filter(|pod| !pod.is_empty());
    let each = each.map(|pod| pod.split('/').map(|usage| usage.parse().unwrap()).collect::<Vec<i64>>());
    let of = |usages: Vec<i64>| match container {
        Some(container) => usages.get(container).copied(),
        None => Some(usages.iter().sum()),
    };
    both.chain(each).enumerate().filter_map(|(index, pod)| Some((name(index), of(pod)?))).collect()
}

#[test]
fn numbers_of_replicas_are_those_of_the_table() {
    for case in cases(include_str!("replicas.txt")) {
        let replicas = case.number("replicas");
        let requests = case.numbers("requests");
        let count = usize::try_from(replicas).unwrap().max(case.get("phase").map_or(0, str::len));
        let pods: Vec<_> =
            (0..count).map(|index| case.pod(index, requests.get(index).copied(), false)).collect();
        let tolerance = case.get("tolerance").unwrap_or("0.1/0.1").split_once('/').unwrap();
        let workload = Workload {
            replicas,
            present: replicas,
            pods: &pods,
            tolerances: Tolerances { down: tolerance.0.parse().unwrap(), up: tolerance.1.parse().unwrap() },
            startup: STARTUP,
            now: now(),
        };
        let values = case.numbers("values");
        let named = values.iter().enumerate().map(|(index, value)| (format!("pod-{index}"), *value));
        let amount = |key: &str| case.get(key).map(|amount| amount.parse::<i64>().unwrap());
        let container = case.get("container").map(|number| format!("container{number}"));
        let found = if let Some(percent) = amount("utilization") {
            let percent = i32::try_from(percent).unwrap();
            let goal = Goal::Utilization { percent, resource: "cpu", container: container.as_deref() };
            by_pods(goal, samples(usages(&case), Timestamp::MIN), &workload)
                .map(|found| format!("{} {}% {}", found.replicas, found.utilization.unwrap(), found.average))
        } else if let Some(amount) = amount("average") {
            by_pods(Goal::Average { amount }, samples(named, Timestamp::MIN), &workload)
                .map(|found| format!("{} {}", found.replicas, found.average))
        } else if let Some(target) = amount("value") {
            let value = total(&values);
            by_value(value, target, &workload).map(|replicas| format!("{replicas} {value}"))
        } else {
            let (replicas, share) = by_share(total(&values), amount("share").unwrap(), &workload);
            Ok(format!("{replicas} {share}"))
        };
        assert_eq!(found.unwrap_or_else(|error| error.to_string()), case.expected, "{}", case.name);
    }
}

/// Reads rules, such as `4pods/15,100%/15;window/30;select/Min`.
fn rules(text: &str) -> Value {
    let mut rules = json!({});
    if text == "none" {
        rules["policies"] = json!([]);
        return rules;
    }
    for (name, value) in text.split([',', ';']).map(|part| part.split_once('/').unwrap()) {
        match name {
            "window" => rules["stabilizationWindowSeconds"] = json!(value.parse::<i32>().unwrap()),
            "select" => rules["selectPolicy"] = json!(value),
            "tolerance" => rules["tolerance"] = json!(value),
            policy => {
                let kinds = [("pods", "Pods"), ("%", "Percent")];
                let (amount, kind) =
                    kinds.iter().find_map(|(unit, kind)| Some((policy.strip_suffix(unit)?, kind))).unwrap();
                let (amount, period): (i32, i32) = (amount.parse().unwrap(), value.parse().unwrap());
                let policy = json!({"type": kind, "value": amount, "periodSeconds": period});
                let policies = rules["policies"].as_array().cloned().unwrap_or_default();
                rules["policies"] = json!([policies, vec![policy]].concat());
            }
        }
    }
    rules
}

/// Returns the behavior of a case, if it has one.
fn behavior(case: &Case<'_>) -> Option<HorizontalPodAutoscalerBehavior> {
    let [up, down] = ["up", "down"].map(|key| case.get(key).map(rules));
    (up.is_some() || down.is_some()).then(|| from_value(json!({"scaleUp": up, "scaleDown": down})).unwrap())
}

/// Returns an autoscaler with these bounds.
pub(super) fn autoscaler(
    (least, most): (i32, i32),
    behavior: Option<HorizontalPodAutoscalerBehavior>,
    metrics: Vec<MetricSpec>,
) -> HorizontalPodAutoscaler {
    let spec = HorizontalPodAutoscalerSpec {
        min_replicas: Some(least),
        max_replicas: most,
        behavior,
        metrics: Some(metrics),
        ..HorizontalPodAutoscalerSpec::default()
    };
    HorizontalPodAutoscaler { metadata: meta("hpa"), spec, status: None }
}

/// Returns three replicas with these pods.
pub(super) fn workload(pods: &[Arc<Pod>]) -> Workload<'_> {
    let tolerances = Tolerances { down: 0.1, up: 0.1 };
    Workload { replicas: 3, present: 3, pods, tolerances, startup: STARTUP, now: now() }
}

/// Returns an event of type Warning.
pub(super) fn warning(reason: &'static str, message: &str) -> Event {
    Event { is_warning: true, reason, message: message.to_owned() }
}

/// Returns the reasons of the conditions in their order, with `+` for those that are true. Each has to have its place.
pub(super) fn reasons(status: &HorizontalPodAutoscalerStatus) -> Vec<String> {
    let order = ["AbleToScale", "ScalingActive", "ScalingLimited"];
    let conditions = status.conditions.as_deref().unwrap_or_default();
    assert!(conditions.len() <= order.len(), "{conditions:?}");
    conditions
        .iter()
        .zip(order)
        .map(|(condition, kind)| {
            assert_eq!(condition.type_, kind);
            let sign = if condition.status == "True" { '+' } else { '-' };
            format!("{sign}{}", condition.reason.as_deref().unwrap())
        })
        .collect()
}

#[test]
fn limits_by_rules_are_those_of_the_table() {
    for case in cases(include_str!("limits.txt")) {
        let behavior = behavior(&case).unwrap_or_default();
        let hpa = autoscaler(case.bounds(), Some(behavior), Vec::new());
        let settings = Settings::default();
        let mut judgement = Judgement::new(&hpa, &settings, now());
        judgement.assume(case.number("replicas"));
        let downs = case.past("downs").into_iter().map(|(at, change)| (at, -change));
        let mut history = History::of(Vec::new(), case.past("ups").into_iter().chain(downs).collect());
        let demand = Demand { replicas: case.number("wanted"), metric: "cpu".to_owned() };
        let replicas = judgement
            .limit(&demand, &mut history)
            .map_or(case.number("replicas"), |rescale| rescale.replicas);
        let (status, _) = judgement.end();
        let limited = status.conditions.unwrap().pop().unwrap();
        assert_eq!(limited.type_, "ScalingLimited");
        assert_eq!(limited.status == "True", replicas != demand.replicas, "{}", case.name);
        assert_eq!(format!("{replicas} {}", limited.reason.unwrap()), case.expected, "{}", case.name);
    }
}

/// Returns the specification of a metric such as `cpu:30%` or `object/pod:15`.
pub(super) fn spec(text: &str) -> MetricSpec {
    let text = text.trim_end_matches('!');
    let Some((source, target)) = text.split_once(':') else {
        return MetricSpec { type_: text.to_owned(), ..MetricSpec::default() };
    };
    let percent = target.strip_suffix('%').map(|percent| percent.parse::<i32>().unwrap());
    let utilization = json!({"type": "Utilization", "averageUtilization": percent});
    let (value, average) =
        (json!({"type": "Value", "value": target}), json!({"type": "AverageValue", "averageValue": target}));
    let metric = json!({"name": "qps"});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "some"});
    let spec = match source {
        "cpu" => json!({"type": "Resource", "resource": {"name": "cpu", "target": utilization}}),
        "memory" => json!({"type": "Resource", "resource": {"name": "memory", "target": average}}),
        "pods" => json!({"type": "Pods", "pods": {"metric": metric, "target": average}}),
        "object" => {
            json!({"type": "Object", "object": {"describedObject": object, "metric": metric, "target": value}})
        }
        "object/pod" => {
            json!({"type": "Object", "object": {"describedObject": object, "metric": metric, "target": average}})
        }
        "external" => json!({"type": "External", "external": {"metric": metric, "target": value}}),
        "external/pod" => json!({"type": "External", "external": {"metric": metric, "target": average}}),
        container => json!({"type": "ContainerResource",
            "containerResource": {"name": "cpu", "container": container, "target": utilization}}),
    };
    from_value(spec).unwrap()
}

/// Returns what the APIs answer about a metric.
fn answer(case: &Case<'_>, metric: &str) -> Answer {
    if metric.ends_with('!') {
        return Err("something went wrong".to_owned());
    }
    let levels = case.numbers("levels");
    let half = |level: &i64| level / 2;
    let of_pods = |values: Vec<i64>| {
        let named = values.into_iter().enumerate().map(|(index, value)| (format!("pod-{index}"), value));
        Measured::Pods(samples(named, now()))
    };
    match metric.split(':').next().unwrap() {
        "cpu" if levels.is_empty() => Err("no metrics returned from resource metrics API".to_owned()),
        "cpu" => Ok(of_pods(levels.iter().map(|level| half(level) * 2).collect())),
        "pods" => Ok(of_pods(levels)),
        "object" | "object/pod" => Ok(Measured::Values(levels[..1].to_vec())),
        "external" | "external/pod" => Ok(Measured::Values(levels)),
        _ => Ok(of_pods(levels.iter().map(half).collect())),
    }
}

/// Judges an autoscaler; whatever it decides can be written.
fn judge(case: &Case<'_>) -> (HorizontalPodAutoscalerStatus, Vec<Event>) {
    let metrics: Vec<&str> = case.all("metric").collect();
    let specs = metrics.iter().map(|metric| spec(metric)).collect();
    let mut hpa = autoscaler(case.bounds(), behavior(case), specs);
    let (replicas, present) =
        case.get("replicas").map(|text| text.split_once('/').unwrap_or((text, text))).unwrap();
    let (replicas, present): (i32, i32) = (replicas.parse().unwrap(), present.parse().unwrap());
    let zero = json!([{"type": "ScaledToZero", "status": "True", "reason": "ScaledToZero"}]);
    let conditions = case.get("was").map(|_| zero);
    hpa.status = from_value(json!({"desiredReplicas": replicas, "conditions": conditions})).unwrap();
    let requests = match case.get("requests") {
        Some(_) => case.numbers("requests"),
        None => vec![1000; usize::try_from(present).unwrap()],
    };
    let pods: Vec<_> = requests
        .iter()
        .enumerate()
        .map(|(index, request)| case.pod(index, Some(request / 2), true))
        .collect();
    let mut history = match case.get("past") {
        Some(_) => History::of(case.past("past"), Vec::new()),
        None => History::begin(replicas, None, now()),
    };
    let settings = Settings { startup: STARTUP, ..Settings::default() };
    let mut judgement = Judgement::new(&hpa, &settings, now());
    let tolerances = judgement.tolerances();
    let workload = Workload { replicas, present, pods: &pods, tolerances, startup: STARTUP, now: now() };
    let rescale = match judgement.begin(replicas) {
        Next::Leave => None,
        Next::Rescale(rescale) => Some(rescale),
        Next::Measure => {
            let results = metrics.iter().map(|metric| {
                let spec = spec(metric);
                query(&spec).and_then(|_| propose(&spec, answer(case, metric), "ns", &workload))
            });
            match judgement.measured(results.collect()) {
                Some(demand) => judgement.limit(&demand, &mut history),
                None => return judgement.end(),
            }
        }
    };
    match rescale {
        Some(rescale) => judgement.rescaled(&rescale, now()),
        None => judgement.stays(),
    }
    judgement.end()
}

#[test]
fn judgements_are_those_of_the_table() {
    for case in cases(include_str!("judgements.txt")) {
        let (status, events) = judge(&case);
        let mut expected = case.expected.split(' ').peekable();
        let replicas: i32 = expected.next().unwrap().parse().unwrap();
        assert_eq!(status.desired_replicas, replicas, "{}", case.name);
        if let Some(percent) = expected.next_if(|word| word.ends_with('%')) {
            let current = &status.current_metrics.as_ref().unwrap()[0].resource.as_ref().unwrap().current;
            assert_eq!(format!("{}%", current.average_utilization.unwrap()), percent, "{}", case.name);
        }
        let wanted: Vec<&str> = match expected.collect::<Vec<_>>().as_slice() {
            ["ok"] => vec!["+SucceededRescale", "+ValidMetricFound", "-DesiredWithinRange"],
            ["same"] => vec!["+ReadyForNewScale", "+ValidMetricFound", "-DesiredWithinRange"],
            reasons => reasons.to_vec(),
        };
        assert_eq!(reasons(&status), wanted, "{}", case.name);
        let rescales = wanted.first() == Some(&"+SucceededRescale");
        let rescaled = events.iter().any(|event| event.reason == "SuccessfulRescale");
        assert_eq!((rescaled, status.last_scale_time.is_some()), (rescales, rescales), "{}", case.name);
    }
}
