//! One metric of an autoscaler: what to ask for, and the number of replicas that the answer asks for.

use std::fmt;

use apiserver_meta::quantity;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, CrossVersionObjectReference, ExternalMetricStatus, MetricIdentifier,
    MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus,
    ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::replicas::{Calculated, Goal, Samples, Workload, by_pods, by_share, by_value, total};

/// A question to one of the APIs of metrics.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Query {
    /// Usage of a resource by each pod, or by one container of each.
    Resource { resource: String, container: Option<String> },
    /// A metric of each pod.
    Pods { metric: String, selector: String },
    /// A metric of one object.
    Object { object: CrossVersionObjectReference, metric: String, selector: String },
    /// A metric of something outside of the cluster.
    External { metric: String, selector: String },
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Measured {
    Pods(Samples),
    /// Value of each time series.
    Values(Vec<i64>),
}

/// The answer to a query, or the reason why there is none.
pub(super) type Answer = Result<Measured, String>;

/// A number of replicas, and the metric that asks for it.
#[derive(Debug, PartialEq)]
pub(super) struct Proposal {
    pub replicas: i32,
    /// Description of the metric.
    pub metric: String,
    pub status: MetricStatus,
}

/// Reason for which a metric has no proposal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Reason of the event and of the condition.
    pub reason: &'static str,
    /// Message of the event, and the end of that of the condition.
    pub message: String,
    /// Message of the whole judgement.
    pub whole: String,
}

/// Returns the query of a metric; `None` if it is not complete, which [`propose`] reports.
pub(super) fn query(spec: &MetricSpec) -> Result<Option<Query>, Failure> {
    let wanted = |metric: &MetricIdentifier| selector_text(metric.selector.as_ref());
    let named = |metric: &MetricIdentifier| metric.name.clone();
    let query = match (spec.type_.as_str(), spec) {
        ("Object", MetricSpec { object: Some(object), .. }) => {
            let selector = wanted(&object.metric).map_err(|error| of_object(error, None))?;
            target_of_value(&object.target).map(|_| Query::Object {
                object: object.described_object.clone(),
                metric: named(&object.metric),
                selector,
            })
        }
        ("Pods", MetricSpec { pods: Some(pods), .. }) => {
            let selector = wanted(&pods.metric).map_err(of_pods)?;
            Some(Query::Pods { metric: named(&pods.metric), selector })
        }
        ("Resource", MetricSpec { resource: Some(of), .. }) => {
            has_target(&of.target).then(|| Query::Resource { resource: of.name.clone(), container: None })
        }
        ("ContainerResource", MetricSpec { container_resource: Some(of), .. }) => {
            let container = Some(of.container.clone());
            has_target(&of.target).then(|| Query::Resource { resource: of.name.clone(), container })
        }
        ("External", MetricSpec { external: Some(external), .. }) => {
            let metric = &external.metric;
            let selector = wanted(metric).map_err(|error| of_external(metric, error.clone(), error))?;
            target_of_external(&external.target).map(|_| Query::External { metric: named(metric), selector })
        }
        _ => None,
    };
    Ok(query)
}

fn has_target(target: &MetricTarget) -> bool {
    target.average_value.is_some() || target.average_utilization.is_some()
}

/// Returns the number of replicas that the answer asks for.
pub(super) fn propose(
    spec: &MetricSpec,
    answer: Answer,
    namespace: &str,
    workload: &Workload<'_>,
) -> Result<Proposal, Failure> {
    match (spec.type_.as_str(), spec) {
        ("Object", MetricSpec { object: Some(_), .. }) => by_object(spec, answer, namespace, workload),
        ("Pods", MetricSpec { pods: Some(_), .. }) => by_metric_of_pods(spec, answer, workload),
        ("Resource", MetricSpec { resource: Some(of), .. }) => {
            let (calculated, metric) =
                by_resource(&of.name, None, &of.target, answer, workload).map_err(|message| {
                    let whole = format!("failed to get {} resource metric value: {message}", of.name);
                    Failure { reason: "FailedGetResourceMetric", message, whole }
                })?;
            let current = resource_value(&of.name, &calculated);
            let resource = Some(ResourceMetricStatus { name: of.name.clone(), current });
            Ok(proposal(calculated.replicas, metric, MetricStatus { resource, ..status(spec) }))
        }
        ("ContainerResource", MetricSpec { container_resource: Some(of), .. }) => {
            let container = Some(of.container.as_str());
            let calculated = by_resource(&of.name, container, &of.target, answer, workload);
            let (calculated, metric) = calculated.map_err(|message| {
                let whole = format!("failed to get {} container metric value: {message}", of.container);
                Failure { reason: "FailedGetContainerResourceMetric", message, whole }
            })?;
            let current = resource_value(&of.name, &calculated);
            let (name, container) = (of.name.clone(), of.container.clone());
            let container_resource = Some(ContainerResourceMetricStatus { container, current, name });
            Ok(proposal(calculated.replicas, metric, MetricStatus { container_resource, ..status(spec) }))
        }
        ("External", MetricSpec { external: Some(_), .. }) => by_external(spec, answer, namespace, workload),
        (kind, _) => {
            let message = format!("unknown metric source type \"{kind}\"");
            Err(Failure { reason: "InvalidMetricSourceType", whole: message.clone(), message })
        }
    }
}

fn proposal(replicas: i32, metric: String, status: MetricStatus) -> Proposal {
    Proposal { replicas, metric, status }
}

/// Returns the status of a metric without its value.
fn status(spec: &MetricSpec) -> MetricStatus {
    MetricStatus { type_: spec.type_.clone(), ..MetricStatus::default() }
}

fn average(value: i64) -> MetricValueStatus {
    MetricValueStatus { average_value: Some(amount(value, false)), ..MetricValueStatus::default() }
}

fn value(value: i64) -> MetricValueStatus {
    MetricValueStatus { value: Some(amount(value, false)), ..MetricValueStatus::default() }
}

fn resource_value(resource: &str, calculated: &Calculated) -> MetricValueStatus {
    MetricValueStatus {
        average_utilization: calculated.utilization,
        average_value: Some(amount(calculated.average, resource == "memory")),
        value: None,
    }
}

/// Returns the quantity of an amount in thousandths; `binary` if it is one of bytes.
pub(super) fn amount(milli: i64, binary: bool) -> Quantity {
    if binary && !(-1_024_000 < milli && milli < 1_024_000) {
        let rounded_up = milli / 1000 + (milli % 1000).signum();
        return Quantity(quantity::Quantity::from_bytes(rounded_up).to_string());
    }
    let text = format!("{milli}m");
    Quantity(quantity::parse(&text).map_or(text, |quantity| quantity.to_string()))
}

fn milli(quantity: &Quantity) -> i64 {
    quantity::read(quantity).map_or(0, quantity::Quantity::milli)
}

fn pods(answer: Answer) -> Result<Samples, String> {
    match answer? {
        Measured::Pods(samples) => Ok(samples),
        Measured::Values(_) => Ok(Samples::new()),
    }
}

fn values(answer: Answer) -> Result<Vec<i64>, String> {
    match answer? {
        Measured::Values(values) => Ok(values),
        Measured::Pods(_) => Ok(Vec::new()),
    }
}

/// Returns what was calculated, and a description of the metric.
fn by_resource(
    resource: &str,
    container: Option<&str>,
    target: &MetricTarget,
    answer: Answer,
    workload: &Workload<'_>,
) -> Result<(Calculated, String), String> {
    let (goal, what, metric) = match (&target.average_value, target.average_utilization) {
        (Some(average), _) => {
            (Goal::Usage { amount: milli(average), resource }, "usage", format!("{resource} resource"))
        }
        (None, Some(percent)) => {
            let of = if container.is_some() { "container resource" } else { "resource" };
            let metric = format!("{resource} {of} utilization (percentage of request)");
            (Goal::Utilization { percent, resource, container }, "utilization", metric)
        }
        (None, None) => {
            return Err(
                "invalid resource metric source: neither an average utilization target nor an average value \
                        (usage) target was set"
                    .to_owned(),
            );
        }
    };
    let samples = pods(answer).map_err(|error| {
        format!("failed to get {resource} {what}: unable to get metrics for resource {resource}: {error}")
    })?;
    let calculated = by_pods(goal, samples, workload)
        .map_err(|error| format!("failed to get {resource} {what}: {error}"))?;
    Ok((calculated, metric))
}

fn of_pods(message: String) -> Failure {
    let whole = format!("failed to get pods metric value: {message}");
    Failure { reason: "FailedGetPodsMetric", message, whole }
}

fn by_metric_of_pods(
    spec: &MetricSpec,
    answer: Answer,
    workload: &Workload<'_>,
) -> Result<Proposal, Failure> {
    let source = spec.pods.as_ref();
    let metric = source.map(|source| source.metric.clone()).unwrap_or_default();
    let target = source.and_then(|source| source.target.average_value.as_ref());
    let samples =
        pods(answer).map_err(|error| of_pods(format!("unable to get metric {}: {error}", metric.name)))?;
    let goal = Goal::Average { amount: target.map_or(0, milli) };
    let calculated = by_pods(goal, samples, workload).map_err(|error| of_pods(error.to_string()))?;
    let description = format!("pods metric {}", metric.name);
    let pods = Some(PodsMetricStatus { current: average(calculated.average), metric });
    Ok(proposal(calculated.replicas, description, MetricStatus { pods, ..status(spec) }))
}

/// The target of a metric that is one value.
enum ValueTarget<'a> {
    Value(&'a Quantity),
    Average(&'a Quantity),
}

fn target_of_value(target: &MetricTarget) -> Option<ValueTarget<'_>> {
    match target.type_.as_str() {
        "Value" => target.value.as_ref().map(ValueTarget::Value),
        "AverageValue" => target.average_value.as_ref().map(ValueTarget::Average),
        _ => None,
    }
}

fn target_of_external(target: &MetricTarget) -> Option<ValueTarget<'_>> {
    let average = target.average_value.as_ref().map(ValueTarget::Average);
    average.or(target.value.as_ref().map(ValueTarget::Value))
}

/// Returns the failure of a metric of an object; `metric` is its name if the target is an average.
fn of_object(message: String, metric: Option<&str>) -> Failure {
    let whole = match metric {
        Some(metric) => {
            format!("failed to get object metric value: failed to get {metric} object metric: {message}")
        }
        None => format!("failed to get object metric value: {message}"),
    };
    Failure { reason: "FailedGetObjectMetric", message, whole }
}

fn by_object(
    spec: &MetricSpec,
    answer: Answer,
    namespace: &str,
    workload: &Workload<'_>,
) -> Result<Proposal, Failure> {
    let source = spec.object.clone().unwrap_or_default();
    let (object, metric) = (source.described_object, source.metric);
    let Some(target) = target_of_value(&source.target) else {
        let message =
            "invalid object metric source: neither a value target nor an average value target was set";
        return Err(of_object(message.to_owned(), None));
    };
    let averaged = matches!(target, ValueTarget::Average(_)).then_some(metric.name.as_str());
    let measured = values(answer).map(|values| total(&values)).map_err(|error| {
        // The order of the words is that of Kubernetes.
        let (name, kind) = (&object.name, &object.kind);
        let text = format!("unable to get metric {}: {kind} on {namespace} {name}/{error}", metric.name);
        of_object(text, averaged)
    })?;
    let (replicas, current, description) = match target {
        ValueTarget::Value(target) => {
            let replicas = by_value(measured, milli(target), workload)
                .map_err(|error| of_object(format!("unable to calculate ready pods: {error}"), None))?;
            (replicas, value(measured), format!("{} metric {}", object.kind, metric.name))
        }
        ValueTarget::Average(target) => {
            let (replicas, share) = by_share(measured, milli(target), workload);
            (replicas, average(share), described(&metric))
        }
    };
    let object = Some(ObjectMetricStatus { current, described_object: object, metric });
    Ok(proposal(replicas, description, MetricStatus { object, ..status(spec) }))
}

/// Returns the failure of an external metric; `attempt` is the message with what was attempted.
fn of_external(metric: &MetricIdentifier, message: String, attempt: String) -> Failure {
    let whole = format!("failed to get {} external metric value: {attempt}", metric.name);
    Failure { reason: "FailedGetExternalMetric", message, whole }
}

fn by_external(
    spec: &MetricSpec,
    answer: Answer,
    namespace: &str,
    workload: &Workload<'_>,
) -> Result<Proposal, Failure> {
    let source = spec.external.clone().unwrap_or_default();
    let metric = source.metric;
    let Some(target) = target_of_external(&source.target) else {
        let message =
            "invalid external metric source: neither a value target nor an average value target was set"
                .to_owned();
        return Err(of_external(&metric, message.clone(), message));
    };
    let failed = |message: String| {
        let attempt = match target {
            ValueTarget::Value(_) => format!("failed to get external metric {}: {message}", metric.name),
            ValueTarget::Average(_) => format!("failed to get {} external metric: {message}", metric.name),
        };
        of_external(&metric, message, attempt)
    };
    let measured = values(answer).map_err(|error| {
        let selector = Shown(metric.selector.as_ref());
        failed(format!("unable to get external metric {namespace}/{}/{selector}: {error}", metric.name))
    })?;
    let measured = total(&measured);
    let (replicas, current) = match &target {
        ValueTarget::Value(target) => {
            let replicas = by_value(measured, milli(target), workload)
                .map_err(|error| failed(format!("unable to calculate ready pods: {error}")))?;
            (replicas, value(measured))
        }
        ValueTarget::Average(target) => {
            let (replicas, share) = by_share(measured, milli(target), workload);
            (replicas, average(share))
        }
    };
    let description = described(&metric);
    let external = Some(ExternalMetricStatus { current, metric });
    Ok(proposal(replicas, description, MetricStatus { external, ..status(spec) }))
}

fn described(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, Shown(metric.selector.as_ref()))
}

/// A selector as Kubernetes prints it in messages.
struct Shown<'a>(Option<&'a LabelSelector>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(selector) = self.0 else { return f.write_str("nil") };
        f.write_str("&LabelSelector{MatchLabels:map[string]string{")?;
        for (key, value) in selector.match_labels.iter().flatten() {
            write!(f, "{key}: {value},")?;
        }
        f.write_str("},MatchExpressions:[]LabelSelectorRequirement{")?;
        for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten()
        {
            let values = values.as_deref().unwrap_or_default().join(" ");
            write!(f, "LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")?;
        }
        f.write_str("},}")
    }
}

/// Returns the text of a selector for a query; empty if there is none.
fn selector_text(selector: Option<&LabelSelector>) -> Result<String, String> {
    let Some(selector) = selector else { return Ok(String::new()) };
    let mut parts: Vec<String> =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
        let values = values.as_deref().unwrap_or_default();
        let list = values.join(",");
        parts.push(match operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                return Err(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
                        .to_owned(),
                );
            }
            "In" => format!("{key} in ({list})"),
            "NotIn" => format!("{key} notin ({list})"),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            other => return Err(format!("\"{other}\" is not a valid label selector operator")),
        });
    }
    Ok(parts.join(","))
}
