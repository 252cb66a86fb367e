//! Requests of a node against a cluster that is slow, hostile, or whose clock is another one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_meta::ambient::{Ambient, Clock};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::Client;
use kube::client::Body;
use rcgen::{CertificateParams, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::limits;

const TOKEN: &str = "system:bootstrap:abcdef";
const HOUR: Duration = Duration::from_secs(3600);

/// Behaviour towards new requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Signs,
    Waits,
    /// Accepts connections and answers nothing.
    Hangs,
}

struct State {
    mood: Mood,
    /// The user that requests are said to be of.
    author: &'static str,
    requests: BTreeMap<String, CertificateSigningRequest>,
    /// Number of requests that were created.
    created: usize,
}

/// A cluster that knows certificate requests alone.
#[derive(Clone)]
struct FakeCluster(Arc<Mutex<State>>);

impl FakeCluster {
    fn new(mood: Mood) -> Self {
        Self(Arc::new(Mutex::new(State { mood, author: TOKEN, requests: BTreeMap::new(), created: 0 })))
    }

    fn client(&self) -> Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move {
                if cluster.0.lock().unwrap().mood == Mood::Hangs {
                    std::future::pending::<()>().await;
                }
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let name = parts.uri.path().rsplit('/').next().unwrap().to_owned();
                let (code, text) = cluster.answer(&parts.method, &name, &body);
                let answer = Response::builder().status(code).body(Full::new(bytes::Bytes::from(text)));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, name: &str, body: &[u8]) -> (u16, String) {
        let refuse = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": reason, "message": reason});
            (code, status.to_string())
        };
        let mut state = self.0.lock().unwrap();
        if *method == Method::GET {
            let found = state.requests.get(name);
            return found.map_or_else(|| refuse(404, "NotFound"), |found| (200, json!(found).to_string()));
        }
        let mut request: CertificateSigningRequest = serde_json::from_slice(body).unwrap();
        let name = request.metadata.name.clone().unwrap_or_else(|| format!("csr-{}", state.created));
        if state.requests.contains_key(&name) {
            return refuse(409, "AlreadyExists");
        }
        state.created += 1;
        request.metadata.name = Some(name.clone());
        request.spec.username = Some(state.author.to_owned());
        if state.mood == Mood::Signs {
            sign(&mut request);
        }
        let text = json!(request).to_string();
        state.requests.insert(name, request);
        (201, text)
    }

    fn approve_all(&self) {
        self.0.lock().unwrap().requests.values_mut().for_each(sign);
    }

    fn deny_all(&self) {
        for request in self.0.lock().unwrap().requests.values_mut() {
            let denied =
                CertificateSigningRequestCondition { type_: "Denied".to_owned(), ..Default::default() };
            request.status.get_or_insert_default().conditions = Some(vec![denied]);
        }
    }

    fn created(&self) -> usize {
        self.0.lock().unwrap().created
    }
}

/// The point of a P-256 key.
struct Point(Vec<u8>);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn sign(request: &mut CertificateSigningRequest) {
    let der = CertificateSigningRequestDer::from_pem_slice(&request.spec.request.0).unwrap();
    // The bit string of an uncompressed point.
    let at = der.windows(4).position(|part| part == [3, 0x42, 0, 4]).unwrap() + 3;
    let point = Point(der[at..at + 65].to_vec());
    let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
    let certificate = CertificateParams::default().signed_by(&point, &issuer).unwrap().pem();
    request.status.get_or_insert_default().certificate = Some(ByteString(certificate.into_bytes()));
}

struct Fixed(&'static str);

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        self.0.parse().unwrap()
    }
}

/// Every certificate is of the first day of 2026.
fn first_day(_: &str) -> Option<Validity> {
    let [not_before, not_after] =
        ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"].map(|t| t.parse().unwrap());
    Some(Validity { not_before, not_after })
}

fn rotation(cluster: &FakeCluster, dir: &tempfile::TempDir, now: &'static str) -> Rotation {
    Rotation {
        client: cluster.client(),
        node: "a".to_owned(),
        wanted: Wanted::Client,
        file: PairFile::new(dir.path().join("client.pem")),
        read_validity: first_day,
        ambient: Ambient { clock: Arc::new(Fixed(now)), ..Ambient::system() },
    }
}

/// A node whose clock was a day ahead requested certificates as fast as the cluster signed them.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_does_not_make_requests_without_end() {
    for now in ["2030-01-01T00:00:00Z", "2020-01-01T00:00:00Z"] {
        let (cluster, dir) = (FakeCluster::new(Mood::Signs), tempfile::tempdir().unwrap());
        let changed = |_| async { panic!("a certificate that is not valid now was used") };
        let run = rotation(&cluster, &dir, now).run(changed, CancellationToken::new());
        assert!(timeout(HOUR, run).await.is_err());
        assert!((5..50).contains(&cluster.created()), "{now}: {} requests", cluster.created());
    }
}

#[tokio::test(start_paused = true)]
async fn a_valid_certificate_is_requested_once() {
    let (cluster, dir) = (FakeCluster::new(Mood::Signs), tempfile::tempdir().unwrap());
    let run = rotation(&cluster, &dir, "2026-01-01T00:00:01Z").run(|_| async {}, CancellationToken::new());
    assert!(timeout(HOUR, run).await.is_err());
    assert_eq!(cluster.created(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_is_not_waited_for() {
    let cluster = FakeCluster::new(Mood::Hangs);
    let start = Instant::now();
    let error = obtain(&cluster.client(), "a", &Wanted::Client).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot request a certificate for node a: no answer within 10 s");
    assert_eq!(start.elapsed(), limits::CERTIFICATE_REQUEST);
}

/// An administrator may come the next day: the key waits, and survives kill -9.
#[tokio::test(start_paused = true)]
async fn a_late_approval_is_not_lost() {
    let (cluster, dir) = (FakeCluster::new(Mood::Waits), tempfile::tempdir().unwrap());
    let (client, pending) = (cluster.client(), dir.path().join("client.key"));
    let join = || bootstrap(&client, "a", Some(TOKEN), &pending);
    // Killed after twenty hours.
    assert!(timeout(20 * HOUR, join()).await.is_err());
    cluster.approve_all();
    join().await.unwrap();
    assert_eq!(cluster.created(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kept_key_that_leads_to_nothing_is_replaced() {
    let (cluster, dir) = (FakeCluster::new(Mood::Waits), tempfile::tempdir().unwrap());
    let (client, pending) = (cluster.client(), dir.path().join("client.key"));
    let kept = || std::fs::read_to_string(&pending).unwrap();
    let join = || bootstrap(&client, "a", Some(TOKEN), &pending);
    assert!(timeout(HOUR, join()).await.is_err());
    let first = kept();
    cluster.deny_all();
    assert!(timeout(HOUR, join()).await.is_err());
    let second = kept();
    assert!(first != second && cluster.created() == 2);
    // With another token, the request of the first one is of no use.
    cluster.0.lock().unwrap().author = "system:bootstrap:ghijkl";
    assert!(timeout(HOUR, bootstrap(&client, "a", Some("system:bootstrap:ghijkl"), &pending)).await.is_err());
    assert!(kept() != second && cluster.created() == 3);
    // Cleaned up by the cluster.
    cluster.0.lock().unwrap().requests.clear();
    cluster.0.lock().unwrap().mood = Mood::Signs;
    let third = kept();
    bootstrap(&client, "a", None, &pending).await.unwrap();
    assert!(kept() != third);
}
