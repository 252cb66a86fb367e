//! Asks the APIs of metrics through the API server.

use std::fmt::Write as _;

use apiserver_client::message;
use apiserver_meta::{duration, quantity};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::kinds::{CUSTOM_METRICS, Kinds};
use super::metric::{Answer, Measured, Query};
use super::replicas::{Sample, Samples};

/// Window of samples that name none.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Returns the answer to a query about the pods of a namespace that `selector` selects, by `deadline`.
pub(super) async fn measure(
    client: &Client,
    kinds: &Kinds,
    (namespace, selector): (&str, &str),
    query: &Query,
    deadline: Instant,
) -> Answer {
    let api = match query {
        Query::Resource { .. } => "resource",
        Query::Pods { .. } | Query::Object { .. } => "custom",
        Query::External { .. } => "external",
    };
    let question = Question { client, namespace, api };
    let answer = async {
        match query {
            Query::Resource { resource, container } => {
                question.of_resource(selector, resource, container.as_deref()).await
            }
            Query::Pods { metric, selector: of } => question.of_pods(kinds, metric, [selector, of]).await,
            Query::Object { object, metric, selector } => {
                let group = object.api_version.as_deref().unwrap_or_default();
                let group = group.split_once('/').map_or("", |(group, _)| group);
                question.of_object(kinds, [group, &object.kind, &object.name], metric, selector).await
            }
            Query::External { metric, selector } => question.of_external(metric, selector).await,
        }
    };
    match tokio::time::timeout_at(deadline, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(question.failed("the server did not answer in time")),
    }
}

struct Question<'a> {
    client: &'a Client,
    namespace: &'a str,
    /// Name of the API in messages.
    api: &'static str,
}

impl Question<'_> {
    fn failed(&self, error: &str) -> String {
        format!("unable to fetch metrics from {} metrics API: {error}", self.api)
    }

    /// Requests a path of encoded segments. `resource` is its name in messages.
    async fn get<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        parameters: &[(&str, &str)],
        resource: &str,
    ) -> Result<T, String> {
        let path = path(segments, parameters).map_err(|error| self.failed(&error))?;
        let request =
            http::Request::get(path).body(Vec::new()).map_err(|error| self.failed(&error.to_string()))?;
        let answer = self.client.request::<T>(request).await;
        answer.map_err(|error| self.failed(&words(&error, resource)))
    }

    /// Returns the items, of which there has to be at least one.
    fn some<T>(&self, list: List<T>) -> Result<Vec<T>, String> {
        let items = list.items.filter(|items| !items.is_empty());
        items.ok_or_else(|| format!("no metrics returned from {} metrics API", self.api))
    }

    async fn of_resource(&self, selector: &str, resource: &str, container: Option<&str>) -> Answer {
        let path = ["apis", "metrics.k8s.io", "v1beta1", "namespaces", self.namespace, "pods"];
        let list = self.get(&path, &[("labelSelector", selector)], "pods.metrics.k8s.io").await?;
        let pods: Vec<PodMetrics> = self.some(list)?;
        let samples = pods.into_iter().filter_map(|pod| {
            let sample = Sample {
                value: pod.usage(resource, container)?,
                at: pod.timestamp.map_or(Timestamp::MIN, |time| time.0),
                window: window_of(&pod.window),
            };
            Some((pod.metadata.name, sample))
        });
        Ok(Measured::Pods(samples.collect()))
    }

    async fn of_pods(&self, kinds: &Kinds, metric: &str, [selector, of]: [&str; 2]) -> Answer {
        let version = kinds.custom_metrics().await.map_err(|error| self.failed(&error))?;
        let path =
            ["apis", CUSTOM_METRICS, version.as_str(), "namespaces", self.namespace, "pods", ALL, metric];
        let parameters = [("labelSelector", selector), ("metricLabelSelector", of)];
        let list = self.get(&path, &parameters, &format!("pods.{CUSTOM_METRICS}")).await?;
        let values: Vec<MetricValue> = self.some(list)?;
        let samples = values.into_iter().map(|value| {
            let seconds = value.window_seconds.map(SignedDuration::from_secs);
            let at = value.timestamp.map_or(Timestamp::MIN, |time| time.0);
            let sample = Sample { value: milli(&value.value), at, window: seconds.unwrap_or(WINDOW) };
            (value.described_object.name, sample)
        });
        Ok(Measured::Pods(samples.collect::<Samples>()))
    }

    /// Asks for a metric of an object, of which the group, the kind and the name are given.
    async fn of_object(
        &self,
        kinds: &Kinds,
        [group, kind, name]: [&str; 3],
        metric: &str,
        selector: &str,
    ) -> Answer {
        let version = kinds.custom_metrics().await.map_err(|error| self.failed(&error))?;
        let root = ["apis", CUSTOM_METRICS, version.as_str(), "namespaces", self.namespace];
        let parameters = [("metricLabelSelector", selector)];
        let list: List<MetricValue> = if (group, kind) == ("", "Namespace") {
            // The namespace is always that of the autoscaler, whatever name is given.
            let path = [&root[..], &["metrics", metric]].concat();
            self.get(&path, &parameters, &format!("metrics.{CUSTOM_METRICS}")).await?
        } else {
            let resource = kinds.resources(group, kind).await.map_err(|error| {
                let dot = if group.is_empty() { "" } else { "." };
                self.failed(&format!("unable to map kind {kind}{dot}{group} to resource: {error}"))
            })?;
            let plural = resource.first().map_or("", |resource| resource.plural.as_str());
            let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
            let path = [&root[..], &[resource.as_str(), name, metric]].concat();
            self.get(&path, &parameters, &format!("{resource}.{CUSTOM_METRICS}")).await?
        };
        match list.items.as_deref().unwrap_or_default() {
            [one] => Ok(Measured::Values(vec![milli(&one.value)])),
            items => Err(self.failed(&format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                items.len()
            ))),
        }
    }

    async fn of_external(&self, metric: &str, selector: &str) -> Answer {
        let path = ["apis", "external.metrics.k8s.io", "v1beta1", "namespaces", self.namespace, metric];
        let resource = format!("{metric}.external.metrics.k8s.io");
        let list = self.get(&path, &[("labelSelector", selector)], &resource).await?;
        let values: Vec<MetricValue> = self.some(list)?;
        Ok(Measured::Values(values.iter().map(|value| milli(&value.value)).collect()))
    }
}

/// The name that stands for all objects.
const ALL: &str = "*";

#[derive(Deserialize)]
struct List<T> {
    /// Missing or null if there are none.
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct PodMetrics {
    #[serde(default)]
    metadata: Named,
    timestamp: Option<Time>,
    #[serde(default)]
    window: String,
    containers: Option<Vec<ContainerMetrics>>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    #[serde(default)]
    name: String,
    #[serde(default)]
    usage: Value,
}

impl PodMetrics {
    /// Returns the usage of a resource by one container, or by all; `None` if it is not known of each of them.
    fn usage(&self, resource: &str, container: Option<&str>) -> Option<i64> {
        let usage = |one: &ContainerMetrics| one.usage.get(resource).map(milli);
        let all = self.containers.as_deref().unwrap_or_default();
        match container {
            Some(container) => all.iter().find(|one| one.name == container).and_then(usage),
            None if all.is_empty() => None,
            None => all.iter().try_fold(0_i64, |sum, one| Some(sum.saturating_add(usage(one)?))),
        }
    }
}

/// A value of a custom or an external metric.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: Named,
    timestamp: Option<Time>,
    #[serde(alias = "window")]
    window_seconds: Option<i64>,
    #[serde(default)]
    value: Value,
}

fn milli(value: &Value) -> i64 {
    quantity::parse_value(value).map_or(0, quantity::Quantity::milli)
}

fn window_of(text: &str) -> SignedDuration {
    duration::parse(text).map_or(SignedDuration::ZERO, SignedDuration::from_nanos)
}

/// Returns the path of these segments, with those of the parameters that are not empty.
fn path(segments: &[&str], parameters: &[(&str, &str)]) -> Result<String, String> {
    let mut path = String::new();
    for segment in segments {
        // Names come from those who write autoscalers: none may lead to another path.
        if matches!(*segment, "" | "." | "..") || segment.contains(['/', '%']) {
            return Err(format!("invalid name \"{segment}\" in a path of the API"));
        }
        path.push('/');
        encode(segment, &mut path);
    }
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    for (index, (name, value)) in given.enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        encode(value, &mut path);
    }
    Ok(path)
}

/// Appends a text with everything encoded that may have a meaning in a URL.
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~*".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Returns the words of Kubernetes' clients for an error: those of the API, or general ones for an answer that is not
/// its own, such as that of a path that is not served.
pub(super) fn words(error: &kube::Error, resource: &str) -> String {
    let kube::Error::Api(status) = error else { return message(error) };
    let unknown = "the server could not find the requested resource";
    let text = match (status.code, status.reason.as_str()) {
        (404, "NotFound") if status.message == unknown => unknown.to_owned(),
        (404, "Failed to parse error data") => unknown.to_owned(),
        (503, "Failed to parse error data") => {
            "the server is currently unable to handle the request".to_owned()
        }
        (_, "Failed to parse error data") => {
            let answer: String = status.message.chars().take(LONGEST_ANSWER).collect();
            format!("an error on the server ({answer:?}) has prevented the request from succeeding")
        }
        _ => return message(error),
    };
    format!("{text} (get {resource})")
}

/// Number of characters of an answer that a message repeats.
const LONGEST_ANSWER: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn names_of_attackers_lead_to_no_other_path() {
        let below = |name: &str| {
            path(&["apis", "external.metrics.k8s.io", name], &[("labelSelector", "a=b,c in (d)")])
        };
        let query = "?labelSelector=a%3Db%2Cc%20in%20%28d%29";
        assert_eq!(below("qps"), Ok(format!("/apis/external.metrics.k8s.io/qps{query}")));
        for name in ["", ".", "..", "a/b", "../../api/v1/secrets", "%2e%2e", "a%2Fb"] {
            assert!(below(name).is_err(), "{name}");
        }
        assert_eq!(
            below("a?watch=1#x y\n"),
            Ok(format!("/apis/external.metrics.k8s.io/a%3Fwatch%3D1%23x%20y%0A{query}"))
        );
        assert_eq!(path(&["a"], &[("b", ""), ("c", "&d")]), Ok("/a?c=%26d".to_owned()));
    }

    #[test]
    fn usage_is_known_only_if_each_container_has_it() {
        let container = |name: &str, usage: Value| json!({"name": name, "usage": usage});
        let usage = |containers: Vec<Value>, of: Option<&str>| {
            let pod = json!({"metadata": {"name": "p"}, "window": "30s", "containers": containers});
            from_value::<PodMetrics>(pod).unwrap().usage("cpu", of)
        };
        let (one, two) =
            (container("a", json!({"cpu": "1500m"})), container("b", json!({"cpu": "250000000n"})));
        let idle = container("c", json!({"memory": "1Gi"}));
        assert_eq!(usage(vec![one.clone(), two.clone()], None), Some(1750));
        assert_eq!(usage(vec![one.clone(), two.clone()], Some("b")), Some(250));
        assert_eq!(usage(vec![one.clone(), two], Some("x")), None);
        assert_eq!(usage(vec![one, idle.clone()], None), None);
        assert_eq!(usage(vec![idle], Some("c")), None);
        assert_eq!(usage(vec![], None), None);
    }

    #[test]
    fn errors_have_the_words_of_kubernetes_clients() {
        let error = |code: u16, reason: &str, message: &str| {
            let status = kube::core::Status::failure(message, reason).with_code(code);
            words(&kube::Error::Api(status.boxed()), "pods.metrics.k8s.io")
        };
        let plain = "Failed to parse error data";
        for (code, reason, message, expected) in [
            (
                404,
                plain,
                "404 page not found",
                "the server could not find the requested resource (get pods.metrics.k8s.io)",
            ),
            (
                404,
                "NotFound",
                "the server could not find the requested resource",
                "the server could not find the requested resource (get pods.metrics.k8s.io)",
            ),
            (
                503,
                plain,
                "",
                "the server is currently unable to handle the request (get pods.metrics.k8s.io)",
            ),
            (
                500,
                plain,
                "oh",
                "an error on the server (\"oh\") has prevented the request from succeeding (get pods.metrics.k8s.io)",
            ),
            (403, "Forbidden", "pods.metrics.k8s.io is forbidden", "pods.metrics.k8s.io is forbidden"),
            (404, "NotFound", "deployments.apps \"x\" not found", "deployments.apps \"x\" not found"),
        ] {
            assert_eq!(error(code, reason, message), expected);
        }
    }

    #[test]
    fn values_of_both_versions_are_read() {
        let read = |value: Value| from_value::<MetricValue>(value).unwrap();
        let older = read(
            json!({"describedObject": {"name": "p"}, "metricName": "qps", "window": 20, "value": "1500m"}),
        );
        assert_eq!((older.window_seconds, milli(&older.value)), (Some(20), 1500));
        let newer =
            read(json!({"metric": {"name": "qps"}, "windowSeconds": 30, "timestamp": null, "value": 2}));
        assert_eq!((newer.window_seconds, milli(&newer.value)), (Some(30), 2000));
        assert_eq!(window_of("1m30s"), SignedDuration::from_secs(90));
        assert_eq!(window_of("soon"), SignedDuration::ZERO);
    }
}
