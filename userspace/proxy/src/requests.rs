//! Requests to the API server, counted under the names of Kubernetes' own client.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// In place of a status code where there was no answer; so Kubernetes' client has it.
const NO_ANSWER: &str = "<error>";
/// Upper bounds in seconds, those of Kubernetes' client.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: String,
    host: String,
}

/// What one client sent. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// Of the API server, as in its URL.
    host: Arc<str>,
    answers: Family<Answer, Counter>,
    durations: Family<Verb, Histogram, fn() -> Histogram>,
}

impl Requests {
    pub fn to(host: &str) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            host: host.into(),
            answers: Family::default(),
            durations: Family::new_with_constructor(histogram),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Number of HTTP requests, partitioned by status code, method, and host";
        registry.register("rest_client_requests", help, self.answers.clone());
        let help = "Request latency in seconds. Broken down by verb, and host";
        registry.register("rest_client_request_duration_seconds", help, self.durations.clone());
    }

    /// A client that does as `client` does, and counts. Within a runtime.
    pub fn count(&self, client: Client) -> Client {
        let (requests, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, requests) = (client.clone(), requests.clone());
            async move {
                let (method, start) = (request.method().clone(), Instant::now());
                let outcome = client.send(request).await;
                requests.note(&method, outcome.as_ref().ok().map(|answer| answer.status()), start.elapsed());
                outcome
            }
        });
        Client::new(service, namespace)
    }

    /// A watch counts once, with the time until it was answered.
    fn note(&self, method: &Method, status: Option<StatusCode>, took: Duration) {
        let (method, host) = (method.as_str().to_owned(), self.host.to_string());
        let verb = Verb { verb: method.clone(), host: host.clone() };
        self.durations.get_or_create(&verb).observe(took.as_secs_f64());
        let code = status.map_or_else(|| NO_ANSWER.to_owned(), |status| status.as_str().to_owned());
        self.answers.get_or_create(&Answer { code, method, host }).inc();
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_and_failures_are_counted_by_code_method_and_host() {
        let server = tower::service_fn(|request: Request<Body>| async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if request.uri().path().ends_with("/lost") {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
            }
            let status = serde_json::json!({"kind": "Status", "status": "Failure", "reason": "NotFound",
                "message": "there is none", "code": 404});
            let answer = Response::builder().status(404).body(Body::from(status.to_string().into_bytes()));
            Ok(answer.unwrap())
        });
        let requests = Requests::to("192.0.2.1:6443");
        let nodes: Api<Node> = Api::all(requests.count(Client::new(server, "default")));
        for _ in 0..2 {
            let error = nodes.get("here").await.unwrap_err();
            assert!(matches!(&error, kube::Error::Api(status) if status.code == 404), "{error:?}");
        }
        assert!(nodes.get("lost").await.is_err());
        let mut registry = Registry::default();
        requests.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE rest_client_requests counter",
            "rest_client_requests_total{code=\"404\",method=\"GET\",host=\"192.0.2.1:6443\"} 2",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"192.0.2.1:6443\"} 1",
            "# TYPE rest_client_request_duration_seconds histogram",
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"192.0.2.1:6443\"} 3",
            "rest_client_request_duration_seconds_bucket{le=\"0.1\",verb=\"GET\",host=\"192.0.2.1:6443\"} 0",
            "rest_client_request_duration_seconds_bucket{le=\"0.25\",verb=\"GET\",host=\"192.0.2.1:6443\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
