//! Conversion of custom resources by a webhook: `ConversionReview` over HTTPS. What comes back is
//! checked as Kubernetes checks it: the same objects in the version asked for, with other metadata
//! than labels and annotations as it was.

use std::borrow::Borrow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::definition::Custom;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::validation::metadata;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::{Caller, Calls};
use crate::clients::budget::Budget;
use crate::clients::task_account;
use crate::errors::too_many_requests;
use crate::limits;
use crate::metrics::WebhookFailure;
use crate::streams;
use crate::streams::{NodeStream, OwnAddresses, Peer, endpoint};

/// Maximum time of a webhook for one review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);
/// The certificate authorities of the machine, for webhooks without a bundle of their own.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The reason why objects were not converted.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// There is no answer, or it cannot be read.
    #[error("{0}")]
    Call(String),
    /// The webhook refuses.
    #[error("{0}")]
    Refused(String),
    /// The objects that came back are not those that were sent.
    #[error("{0}")]
    Objects(String),
}

/// Makes objects of a kind objects of the version of `custom`, in their order. Those that are of that
/// version are left alone; all others are sent in one review. Errors are 500, as in Kubernetes; 429 if as many calls are
/// under way as may be.
pub async fn convert(caller: Caller<'_>, custom: &Custom, objects: &mut [Value]) -> Result<(), ApiError> {
    let wanted = custom.api_version();
    let foreign = objects.iter().filter(|object| meta::text(object, "/apiVersion") != wanted);
    let foreign: Vec<&Value> = foreign.collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let text = serde_json::to_string(&foreign)
        .map_err(|error| ApiError::internal(format!("the objects to convert cannot be written: {error}")))?;
    let account = task_account::current();
    let turn = caller.calls.turns.take(&custom.definition.name, account.as_deref(), text.len());
    let _turn = match caller.refusable {
        true => tokio::time::timeout(limits::FLOW_WAIT, turn).await.map_err(|_| too_many_requests())?,
        false => turn.await,
    };
    convert_in_turn(caller, custom, objects, text).await
}

/// Converts objects in a turn that the caller has taken. `text` is a JSON array of those that are of another version.
pub(super) async fn convert_in_turn(
    caller: Caller<'_>,
    custom: &Custom,
    objects: &mut [Value],
    text: String,
) -> Result<(), ApiError> {
    let wanted = custom.api_version();
    let foreign = |object: &&mut Value| meta::text(object, "/apiVersion") != wanted;
    let mut waiting: Vec<&mut Value> = objects.iter_mut().filter(foreign).collect();
    let Some(first) = waiting.first() else { return Ok(()) };
    let from = meta::text(first, "/apiVersion").to_owned();
    let Some(webhook) = custom.webhook(&from) else { return Ok(()) };
    let kind = custom.definition.kind();
    let sent: Vec<&Value> = waiting.iter().map(|object| &**object).collect();
    let began = Instant::now();
    let converted = review(caller, (&custom.definition.name, webhook), &wanted, text)
        .await
        .and_then(|converted| sound(&sent, converted, &wanted, kind));
    let failure = converted.as_ref().err().map(|error| match error {
        ConversionError::Call(_) => WebhookFailure::Call,
        ConversionError::Refused(_) => WebhookFailure::Response,
        ConversionError::Objects(_) => WebhookFailure::Objects,
    });
    let version = |api_version: &str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
    let labels = [custom.definition.name.as_str(), &version(&from), &version(&wanted)];
    caller.metrics.converted(labels, failure, began.elapsed());
    let converted = converted.map_err(|error| {
        let of = format!("conversion webhook for {from}, Kind={kind}");
        let text = match error {
            ConversionError::Objects(why) => format!("{of} {why}"),
            other => format!("{of} failed: {other}"),
        };
        ApiError::new(500, "InternalError", text)
    })?;
    for (place, mut object) in waiting.iter_mut().zip(converted) {
        custom.adopt(&mut object);
        **place = object;
    }
    Ok(())
}

/// Asks the webhook for the objects of a JSON array in another version.
async fn review(
    caller: Caller<'_>,
    (definition, webhook): (&str, &Value),
    wanted: &str,
    objects: String,
) -> Result<Vec<Value>, ConversionError> {
    let offered = meta::list(webhook, "/conversionReviewVersions").iter().filter_map(Value::as_str);
    let version = offered
        .into_iter()
        .find(|version| matches!(*version, "v1" | "v1beta1"))
        .ok_or_else(|| ConversionError::Call("no supported conversion review versions".to_owned()))?;
    let uid = caller.ambient.uid();
    let api_version = format!("apiextensions.k8s.io/{version}");
    let place = Place::of(caller, definition, webhook)?;
    // Put together as text, since a value would have a copy of each object.
    let request = format!(
        r#"{{"kind":"ConversionReview","apiVersion":{},"request":{{"uid":{},"desiredAPIVersion":{},"objects":{objects}}}}}"#,
        json!(api_version),
        json!(uid),
        json!(wanted)
    );
    drop(objects);
    let call = place.post(caller, request.into());
    let answer = tokio::time::timeout(REVIEW_TIMEOUT, call)
        .await
        .map_err(|_| ConversionError::Call(format!("Post {:?}: context deadline exceeded", place.url)))??;
    read_answer(&answer, version, &uid)
}

/// Returns the objects in a webhook's answer to the review with this version and UID.
pub(crate) fn read_answer(answer: &[u8], version: &str, uid: &str) -> Result<Vec<Value>, ConversionError> {
    let mut review: Value = serde_json::from_slice(answer)
        .map_err(|error| ConversionError::Call(format!("the answer is not JSON: {error}")))?;
    let api_version = format!("apiextensions.k8s.io/{version}");
    let refused = |text: String| Err(ConversionError::Refused(text));
    let text = |pointer: &str| meta::text(&review, pointer);
    let (found_version, found_kind) = (text("/apiVersion"), text("/kind"));
    // The older version was never checked for these.
    if version == "v1" && (found_version, found_kind) != (api_version.as_str(), "ConversionReview") {
        return refused(format!(
            "expected webhook response of {api_version}, Kind=ConversionReview, got {found_version}, Kind={found_kind}"
        ));
    }
    if !review["response"].is_object() {
        return refused("no response provided".to_owned());
    }
    if version == "v1" && text("/response/uid") != uid {
        return refused(format!("expected response.uid={uid:?}, got {:?}", text("/response/uid")));
    }
    match (text("/response/result/status"), text("/response/result/message")) {
        ("Success", _) => {}
        (status, "") => return refused(format!("response.result.status was '{status}', not 'Success'")),
        (_, message) => return refused(message.to_owned()),
    }
    match review["response"]["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Returns the converted objects if they correspond to the sent ones, from which their metadata is taken,
/// except labels and annotations.
pub(crate) fn sound(
    sent: &[impl Borrow<Value>],
    converted: Vec<Value>,
    wanted: &str,
    kind: &str,
) -> Result<Vec<Value>, ConversionError> {
    if converted.len() != sent.len() {
        let text = format!("returned {} objects, expected {}", converted.len(), sent.len());
        return Err(ConversionError::Objects(text));
    }
    let checked = sent.iter().zip(converted).enumerate().map(|(index, (before, after))| {
        restored(before.borrow(), after, wanted, kind).map_err(|why| {
            ConversionError::Objects(format!("returned invalid converted object at index {index}: {why}"))
        })
    });
    checked.collect()
}

fn restored(before: &Value, mut after: Value, wanted: &str, kind: &str) -> Result<Value, String> {
    let version = meta::text(&after, "/apiVersion");
    if version != wanted {
        return Err(format!("invalid groupVersion (expected {wanted}, received {version})"));
    }
    let found = meta::text(&after, "/kind");
    if found != kind {
        return Err(format!("invalid kind (expected {kind}, received {found})"));
    }
    for (what, pointer) in
        [("name", "/metadata/name"), ("namespace", "/metadata/namespace"), ("UID", "/metadata/uid")]
    {
        let (had, has) = (meta::text(before, pointer), meta::text(&after, pointer));
        if had != has {
            return Err(format!("must have the same {what}: {had} != {has}"));
        }
    }
    let made = match after.get_mut("metadata").map(Value::take) {
        Some(made @ Value::Object(_)) => made,
        Some(_) => return Err("invalid metadata in converted object".to_owned()),
        None => return Err("missing metadata in converted object".to_owned()),
    };
    let mut metadata = before["metadata"].clone();
    for field in ["labels", "annotations"] {
        let Some(map) = metadata.as_object_mut() else { break };
        match made.get(field) {
            None | Some(Value::Null) => drop(map.remove(field)),
            Some(Value::Object(values)) => {
                if let Some((key, _)) = values.iter().find(|(_, value)| !value.is_string()) {
                    return Err(format!("metadata.{field}[{key}] must be a string in converted object"));
                }
                map.insert(field.to_owned(), Value::Object(values.clone()));
            }
            Some(_) => return Err(format!("invalid metadata.{field} in converted object")),
        }
    }
    if metadata["labels"] != before["metadata"]["labels"]
        || metadata["annotations"] != before["metadata"]["annotations"]
    {
        let errors = metadata::validate(&json!({"metadata": metadata}), |_| Vec::new());
        let errors: Vec<String> = errors
            .iter()
            .filter(|error| error.field.contains("labels") || error.field.contains("annotations"))
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect();
        if !errors.is_empty() {
            return Err(errors.join(", "));
        }
    }
    after["metadata"] = metadata;
    Ok(after)
}

/// The server of a webhook.
#[derive(Debug, PartialEq, Eq)]
enum Server {
    /// Host name or address, and port.
    Host(String, u16),
    /// An endpoint of a Service.
    Endpoint(Peer),
}

/// The address of a webhook.
struct Place<'a> {
    /// The name of its definition.
    definition: &'a str,
    url: String,
    server: Server,
    /// The name that the certificate must have.
    name: String,
    target: String,
    roots: Option<Vec<u8>>,
}

impl<'a> Place<'a> {
    fn of(caller: Caller<'_>, definition: &'a str, webhook: &Value) -> Result<Self, ConversionError> {
        let config = &webhook["clientConfig"];
        let bundle = meta::text(config, "/caBundle");
        let roots = STANDARD
            .decode(bundle)
            .map_err(|error| ConversionError::Call(format!("caBundle is not base64: {error}")))?;
        let roots = Some(roots).filter(|roots| !roots.trim_ascii().is_empty());
        if let Some(url) = config["url"].as_str() {
            let bad = || ConversionError::Call(format!("parse {url:?}: not an https URL"));
            let uri: Uri = url.parse().map_err(|_| bad())?;
            let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
            return Ok(Self {
                definition,
                url: url.to_owned(),
                name: host.clone(),
                server: Server::Host(host, uri.port_u16().unwrap_or(443)),
                target: uri.path_and_query().map_or("/".to_owned(), ToString::to_string),
                roots,
            });
        }
        let text = |field: &str| meta::text(&config["service"], field);
        let (namespace, service) = (text("/namespace"), text("/name"));
        let port = config["service"]["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
        let server = server(caller, namespace, service, port)?;
        let target = format!("/{}", text("/path").trim_start_matches('/'));
        let name = format!("{service}.{namespace}.svc");
        let url = format!("https://{name}:{port}{target}");
        Ok(Self { definition, url, server, name, target, roots })
    }

    /// Sends a review and returns the answer's body.
    async fn post(&self, caller: Caller<'_>, body: Bytes) -> Result<Bytes, ConversionError> {
        let failed = |why: &dyn std::fmt::Display| {
            ConversionError::Call(format!("Post \"{}?timeout=30s\": {why}", self.url))
        };
        let stream = self.connect(caller).await.map_err(|error| failed(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        let most = largest_answer(body.len());
        let separator = if self.target.contains('?') { '&' } else { '?' };
        let request = Request::post(format!("{}{separator}timeout=30s", self.target))
            .header(http::header::HOST, &self.name)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .header(http::header::USER_AGENT, "kube-apiserver")
            .body(Full::new(body))
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), most).collect().await;
            let body = body.map_err(|error| failed(&error))?.to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            Err(ConversionError::Call(format!(
                "the server answered {}",
                status.canonical_reason().unwrap_or(status.as_str())
            )))
        };
        let mut connection = std::pin::pin!(connection);
        let mut exchange = std::pin::pin!(exchange);
        tokio::select! {
            biased;
            done = &mut exchange => done,
            // Data that arrived before it ended may still be taken.
            _ = &mut connection => exchange.await,
        }
    }

    /// Connects, over TLS with the server itself also where a tunnel leads to it.
    async fn connect(
        &self,
        caller: Caller<'_>,
    ) -> io::Result<tokio_rustls::client::TlsStream<Box<dyn NodeStream>>> {
        let invalid =
            |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
        let mut roots = RootCertStore::empty();
        let bundle = match &self.roots {
            Some(bundle) => bundle.clone(),
            None => tokio::fs::read(SYSTEM_ROOTS).await.unwrap_or_default(),
        };
        for certificate in CertificateDer::pem_slice_iter(&bundle) {
            let certificate = certificate.map_err(|error| invalid(&error))?;
            // The machine's certificates need not all be understood.
            let added = roots.add(certificate);
            if self.roots.is_some() {
                added.map_err(|error| invalid(&error))?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(self.name.clone()).map_err(|error| invalid(&error))?;
        let stream = match &self.server {
            Server::Host(host, port) => self.direct(caller.calls, host, *port).await?,
            Server::Endpoint(peer) => self.to_endpoint(caller, peer).await?,
        };
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Connects to a host. Each definition has one lookup of a name at a time, since users choose the names.
    async fn direct(&self, calls: &Calls, host: &str, port: u16) -> io::Result<Box<dyn NodeStream>> {
        let addresses = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            Err(_) => {
                let name = host.to_owned();
                let lookup = async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) };
                calls.lookups.resolve(self.definition, host, lookup).await?
            }
        };
        let stream = TcpStream::connect(&addresses[..]).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    /// Connects to an endpoint of a Service, through the tunnel of its node where it cannot be dialled. The number of such
    /// connections is that of the calls that may be under way, for each of which a tunnel has a place.
    async fn to_endpoint(&self, caller: Caller<'_>, peer: &Peer) -> io::Result<Box<dyn NodeStream>> {
        let Some(kubelets) = caller.kubelets else {
            return self.direct(caller.calls, &peer.host, peer.port).await;
        };
        // No address is refused: whoever configures webhooks may name the API server itself.
        let (own, budget) = (OwnAddresses::default(), Budget::default());
        let caller = streams::Caller { kubelets, own: &own, budget: &budget, webhook: true };
        caller.stream(peer, false).await.map_err(|error| {
            let node = if peer.node.is_empty() { String::new() } else { format!(" on node {:?}", peer.node) };
            io::Error::other(format!("dial tcp {}{node}: {}", peer.authority(), error.why()))
        })
    }
}

/// Returns the server of a Service: its external name, or one of its endpoints.
fn server(caller: Caller<'_>, namespace: &str, name: &str, port: u16) -> Result<Server, ConversionError> {
    let missing =
        |why: &str| ConversionError::Call(format!("service {name:?} in namespace {namespace:?}: {why}"));
    let services = caller.caches.cache("", "v1", "services").ok_or_else(|| missing("not served"))?;
    let entry = services.get(&format!("{namespace}/{name}")).ok_or_else(|| missing("not found"))?;
    let service: Value = serde_json::from_slice(&entry.object()).unwrap_or_default();
    if service["spec"]["type"] == "ExternalName" {
        return Ok(Server::Host(meta::text(&service, "/spec/externalName").to_owned(), port));
    }
    let port =
        endpoint::port_of(&service, port).ok_or_else(|| missing(&format!("no service port {port} found")))?;
    let slices = caller.caches.cache("discovery.k8s.io", "v1", "endpointslices");
    let slices = slices.ok_or_else(|| missing("EndpointSlices are not served"))?.snapshot();
    let prefix = format!("{namespace}/");
    let of_namespace =
        slices.objects.range(Arc::from(prefix.as_str())..).take_while(|(key, _)| key.starts_with(&prefix));
    let slices: Vec<Value> = of_namespace
        .filter(|(_, entry)| entry.label(endpoint::SERVICE_NAME) == Some(name))
        .filter_map(|(_, entry)| serde_json::from_slice(&entry.object()).ok())
        .collect();
    let chosen = endpoint::choose(&service, &slices, port, caller.ambient.random.next_u64());
    chosen.map(Server::Endpoint).ok_or_else(|| missing("no endpoints available"))
}

/// Returns the limit on the answer to a review of `asked` bytes. A webhook is a foreign program: its answer
/// is held until it has ended, for each request that waits for it.
fn largest_answer(asked: usize) -> usize {
    asked.saturating_mul(limits::CONVERTED_GROWTH).saturating_add(limits::BODY)
}
