//! Requests to the API server, counted under the names of Kubernetes' own client.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;
use userspace_daemon::metrics::{Counter, Exposition, Family, Histogram};

/// Replaces the status code if there was no answer, as in Kubernetes' client.
const NO_ANSWER: &str = "<error>";
/// Upper bounds in seconds, the same as those of Kubernetes' client.
static BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The requests of one client. Clones count together.
#[derive(Clone)]
pub(crate) struct Requests {
    /// Host of the API server, as in its URL.
    host: Arc<str>,
    /// Answers by code and method.
    answers: Arc<Family<2, Counter>>,
    /// Durations by method.
    durations: Arc<Family<1, Histogram>>,
}

impl Requests {
    /// Creates the counts of a client of `host`, all at zero.
    pub fn to(host: &str) -> Self {
        let durations = Arc::new(Family::new(|| Histogram::new(&BUCKETS)));
        Self { host: host.into(), answers: Arc::default(), durations }
    }

    /// Adds the counts to a page.
    pub fn add(&self, page: &mut Exposition) {
        page.family(
            "rest_client_requests_total",
            "counter",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            |s| {
                self.answers.each(["code", "method"], |labels, count| {
                    let labels = [labels[0], labels[1], ("host", &self.host)];
                    s.value(&labels, count.value() as f64);
                });
            },
        );
        page.family(
            "rest_client_request_duration_seconds",
            "histogram",
            "Request latency in seconds. Broken down by verb, and host.",
            |s| {
                self.durations.each(["verb"], |labels, times| {
                    s.histogram(&[labels[0], ("host", &self.host)], times);
                });
            },
        );
    }

    /// Wraps a client so that its requests are counted. Call it within a runtime.
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

    /// Counts an answer, or the lack of one. A watch counts once, with the time until it was answered.
    pub fn note(&self, method: &Method, status: Option<StatusCode>, took: Duration) {
        self.durations.get(&[method.as_str()]).value.observe(took.as_secs_f64());
        let code = status.as_ref().map_or(NO_ANSWER, StatusCode::as_str);
        self.answers.get(&[code, method.as_str()]).value.add(1);
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use userspace_daemon::metrics::Format;

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
        let mut page = Exposition::new(Format::Text);
        requests.add(&mut page);
        let text = page.finish();
        for line in [
            "# TYPE rest_client_requests_total counter",
            "rest_client_requests_total{code=\"404\",method=\"GET\",host=\"192.0.2.1:6443\"} 2",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"192.0.2.1:6443\"} 1",
            "# TYPE rest_client_request_duration_seconds histogram",
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"192.0.2.1:6443\"} 3",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",host=\"192.0.2.1:6443\",le=\"0.1\"} 0",
            "rest_client_request_duration_seconds_bucket{verb=\"GET\",host=\"192.0.2.1:6443\",le=\"0.25\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
