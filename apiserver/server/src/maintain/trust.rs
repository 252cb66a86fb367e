//! The ConfigMap `kube-system/extension-apiserver-authentication`: which authorities vouch for clients of the
//! cluster. Servers that leave authentication to this one, aggregated ones and the ports of kube-scheduler and
//! kube-controller-manager, read it to know whose certificates they may believe.
//!
//! Each server adds its own authorities to those that others have written, so that several servers with different
//! ones get along, and drops certificates that have expired.

use std::time::Duration;

use apiserver_meta::pem;
use apiserver_schema::error::ApiError;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::OwnObjects;
use crate::errors;
use crate::limits;
use crate::notifications::TRUST;
use apiserver_auth::authentication::pki::certificates;

const NAMESPACE: &str = TRUST.0;
const NAME: &str = TRUST.1;

/// Looked after this often, as in Kubernetes, and whenever the ConfigMap changes.
const EVERY: Duration = Duration::from_secs(60);
/// A write that the store did not take is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);
/// The number of seconds by which certificates count longer than their validity, for clocks that are behind.
const SKEW: i64 = 300;

const CLIENT_CA: &str = "client-ca-file";
const FRONT_PROXY_CA: &str = "requestheader-client-ca-file";
/// The keys besides the authority that describe front proxies. This server has no front proxies; other
/// servers may.
const FRONT_PROXY: [&str; 5] = [
    "requestheader-username-headers",
    "requestheader-uid-headers",
    "requestheader-group-headers",
    "requestheader-extra-headers-prefix",
    "requestheader-allowed-names",
];

/// Keeps the authorities `client_ca` in the ConfigMap until the server ends.
pub async fn run(own: &OwnObjects, client_ca: &str, changed: &Notify, draining: &CancellationToken) {
    loop {
        let pause = match ensure(own, client_ca).await {
            Ok(()) => EVERY,
            Err(error) => {
                tracing::warn!(%error, "cannot update the ConfigMap {NAMESPACE}/{NAME}");
                AGAIN
            }
        };
        tokio::select! {
            () = draining.cancelled() => return,
            () = changed.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn ensure(own: &OwnObjects, client_ca: &str) -> Result<(), ApiError> {
    let objects = own.objects();
    let Some(resource) = objects.registry().by_kind("v1", "ConfigMap") else { return Ok(()) };
    for _ in 0..limits::CONFLICT_RETRIES {
        let current = objects.fetch(resource, NAMESPACE, NAME).await?;
        let held = current.as_ref().map(|current| &current.object);
        let Some(wanted) = wanted(held, client_ca, objects.ambient().now()) else {
            return Ok(());
        };
        let written = match current {
            None => own.create(resource, wanted).await?,
            Some(_) => own.put(resource, wanted).await?,
        };
        if written {
            return Ok(());
        }
    }
    Err(errors::modified(resource, NAME))
}

/// Returns the ConfigMap as it is to be written; `None` if `held` is right, or must not be changed.
fn wanted(held: Option<&Value>, own: &str, now: Timestamp) -> Option<Value> {
    let nothing = Map::new();
    let before = held.and_then(|held| held["data"].as_object()).unwrap_or(&nothing);
    if held.is_some_and(|held| held["immutable"] == true) {
        return None;
    }
    let mut after = combined(before, own, now);
    if size(&after) > limits::CONFIG_MAP_DATA {
        after = combined(&nothing, own, now);
    }
    if after == *before {
        return None;
    }
    let mut object = held.cloned().unwrap_or_else(|| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}})
    });
    object["data"] = Value::Object(after);
    Some(object)
}

fn size(data: &Map<String, Value>) -> usize {
    data.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

/// Returns the data that others have written together with `own`, without expired certificates and unknown keys.
fn combined(before: &Map<String, Value>, own: &str, now: Timestamp) -> Map<String, Value> {
    let text = |key: &str| before.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut after = Map::new();
    let clients = bundle([text(CLIENT_CA), own], now);
    if !clients.is_empty() {
        after.insert(CLIENT_CA.to_owned(), clients.into());
    }
    let proxies = bundle([text(FRONT_PROXY_CA)], now);
    if !proxies.is_empty() {
        after.insert(FRONT_PROXY_CA.to_owned(), proxies.into());
        let known = FRONT_PROXY.iter().filter_map(|key| before.get_key_value(*key));
        after.extend(known.map(|(key, value)| (key.clone(), value.clone())));
    }
    after
}

/// Returns the certificates of all texts that have not expired, each once, as PEM.
fn bundle<const N: usize>(texts: [&str; N], now: Timestamp) -> String {
    let deadline = now.as_second() - SKEW;
    let mut kept: Vec<CertificateDer<'_>> = Vec::new();
    for certificate in texts.into_iter().flat_map(certificates) {
        let valid = X509Certificate::from_der(&certificate)
            .is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() > deadline);
        if valid && !kept.contains(&certificate) {
            kept.push(certificate);
        }
    }
    kept.iter().map(|certificate| pem::encode("CERTIFICATE", certificate)).collect()
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
