//! An extender over HTTP on loopback, and an API server that answers from memory.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config;
use crate::extenders::{Extenders, Objects};

/// The answer of a test's extender.
pub(crate) enum Reply {
    Json(Value),
    /// Another code, or a body that is not JSON.
    Raw(u16, &'static str),
    /// No answer at all.
    Hang,
}

/// Requests by verb, in the order in which they came.
pub(crate) type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// An extender that listens until it is dropped.
pub(crate) struct Server {
    pub url: String,
    pub seen: Seen,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, answer) = (Seen::default(), Arc::new(answer));
        let all = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_one(stream, Arc::clone(&all), Arc::clone(&answer)));
            }
        });
        Self { url, seen, task }
    }

    /// Returns the requests so far, by verb.
    pub fn requests(&self, verb: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(of, _)| of == verb).map(|(_, body)| body.clone()).collect()
    }
}

/// Reads one request and answers it.
pub(crate) async fn answer_one<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    seen: Seen,
    answer: Arc<impl Fn(&str, &Value) -> Reply>,
) {
    let mut read = Vec::new();
    let head = loop {
        let mut part = [0; 4096];
        match stream.read(&mut part).await {
            Ok(length) if length > 0 => read.extend_from_slice(&part[..length]),
            _ => return,
        }
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
    let length: usize =
        text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0").parse().unwrap();
    while read.len() < head + length {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap();
        read.extend_from_slice(&part[..count]);
    }
    let path = String::from_utf8_lossy(&read[..head]).split(' ').nth(1).unwrap().to_owned();
    let verb = path.rsplit('/').next().unwrap().to_owned();
    let body = serde_json::from_slice(&read[head..]).unwrap();
    let reply = answer(&verb, &body);
    seen.lock().unwrap().push((verb, body));
    let (code, text) = match reply {
        Reply::Json(value) => (200, value.to_string()),
        Reply::Raw(code, text) => (code, text.to_owned()),
        Reply::Hang => return std::future::pending().await,
    };
    let length = text.len();
    let answer = format!("HTTP/1.1 {code} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Returns extenders with these settings.
pub(crate) async fn connect(settings: impl IntoIterator<Item = Value>) -> Extenders {
    let parse = |fields| serde_json::from_value::<config::Extender>(fields).unwrap();
    Extenders::connect(settings.into_iter().map(parse).collect()).await.unwrap()
}

/// A request to the API server: method, path and body.
pub(crate) type Sent = (Method, String, Value);

/// An API server with every pod and node that it is asked for; the UID of a pod is its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Api(Arc<Mutex<Vec<Sent>>>);

impl Api {
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if path.ends_with("/pods") || path.ends_with("/nodes") {
            return std::future::pending().await;
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        self.0.lock().unwrap().push((method, path.clone(), body));
        let name = path.rsplit('/').next().unwrap_or_default();
        if name == "gone" {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
                "message": "not found", "reason": "NotFound"});
            let body = Body::from(status.to_string().into_bytes());
            return Response::builder().status(404).body(body).unwrap();
        }
        let object = json!({"metadata": {"name": name, "namespace": "default", "uid": name,
            "annotations": {"whole": "yes"}, "managedFields": [{"manager": "m"}]}});
        Response::new(Body::from(object.to_string().into_bytes()))
    }

    /// Returns the bodies of requests so far whose path ends like this.
    pub fn sent(&self, method: &Method, end: &str) -> Vec<Value> {
        let sent = self.0.lock().unwrap();
        sent.iter().filter(|one| one.0 == *method && one.1.ends_with(end)).map(|one| one.2.clone()).collect()
    }

    /// Returns a reader of whole objects.
    pub fn objects(&self) -> Objects {
        Objects::without_cache(self.client())
    }
}
