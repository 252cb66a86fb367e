//! Requests certificates by CertificateSigningRequest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};
use userspace_daemon::private_file;
use userspace_daemon::tls::CertificateAndKey;

use crate::limits;

/// A certificate of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Identifies the node to the API server.
    Client,
    /// Identifies the node server, by these names and addresses.
    Serving(Vec<String>),
}

/// Reason for which no certificate was obtained.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("cannot make a key or a certificate request")]
    Key(#[from] rcgen::Error),
    #[error("cannot keep the key of the certificate request in {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot {attempt}")]
    Api {
        attempt: String,
        #[source]
        cause: Box<kube::Error>,
    },
    #[error("cannot {attempt}: no answer within {} s", limits::CERTIFICATE_REQUEST.as_secs())]
    Late { attempt: String },
    #[error("certificate request {name} was denied: {message}")]
    Denied { name: String, message: String },
    #[error("certificate request {name} was refused by its signer: {message}")]
    Failed { name: String, message: String },
    #[error(
        "certificate request {name} is not approved: approve it with `kubectl certificate approve {name}`"
    )]
    Pending { name: String },
    #[error("certificate request {name} was deleted")]
    Gone { name: String },
    #[error("the certificate in certificate request {name} is not one for the key of this node")]
    Foreign { name: String },
}

impl Wanted {
    fn signer(&self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving(_) => "kubernetes.io/kubelet-serving",
        }
    }

    /// Keys are ECDSA, which encipher nothing.
    fn usages(&self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving(_) => ["digital signature", "server auth"],
        }
    }

    /// Returns the request (PEM) of the node of that name.
    fn request(&self, node: &str, key: &KeyPair) -> Result<String, rcgen::Error> {
        let names = match self {
            Self::Client => Vec::new(),
            Self::Serving(names) => names.clone(),
        };
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        params.serialize_request(key)?.pem()
    }
}

/// Requests a certificate with a new key and waits for it.
pub async fn obtain(client: &Client, node: &str, wanted: &Wanted) -> Result<CertificateAndKey, RequestError> {
    let key = KeyPair::generate()?;
    submit(client, node, wanted, &key, None).await
}

/// Requests the first client certificate of a node. The key is kept in `pending` until the certificate has
/// arrived, so that the next attempt after a crash takes up the same request; the caller removes the file.
///
/// A request is taken up if it is open or granted, has this key, and was made by `author`, if that is given: one of
/// another token may be denied because of that token.
pub async fn bootstrap(
    client: &Client,
    node: &str,
    author: Option<&str>,
    pending: &Path,
) -> Result<CertificateAndKey, RequestError> {
    let failed = |cause| RequestError::File { path: pending.to_owned(), cause };
    let kept = fs::read_to_string(pending).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
    let kept = match kept {
        Some(key) if is_usable(client, node, author, &key).await? => Some(key),
        _ => None,
    };
    let key = match kept {
        Some(key) => key,
        None => {
            let key = KeyPair::generate()?;
            private_file::write(pending, key.serialize_pem().as_bytes()).map_err(failed)?;
            key
        }
    };
    submit(client, node, &Wanted::Client, &key, Some(name_of(&key, node))).await
}

/// Returns the name of the request for the first certificate, which nobody else can know before it is there.
fn name_of(key: &KeyPair, node: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(key.public_key_raw());
    hash.update(node);
    let digest: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("node-csr-{digest}")
}

/// Returns `true` if the request of a kept key is there and may lead to a certificate.
async fn is_usable(
    client: &Client,
    node: &str,
    author: Option<&str>,
    key: &KeyPair,
) -> Result<bool, RequestError> {
    let name = name_of(key, node);
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let found = in_time(format!("read certificate request {name}"), api.get_opt(&name)).await?;
    Ok(found.is_some_and(|request| {
        let refused = matches!(outcome(&request, &name), Some(Err(_)));
        let foreign = author.is_some_and(|author| request.spec.username.as_deref() != Some(author));
        !refused && !foreign && is_for(&request, key)
    }))
}

/// Returns `true` if a request is one for the certificate of a key.
fn is_for(request: &CertificateSigningRequest, key: &KeyPair) -> bool {
    let public = key.public_key_raw();
    let der = CertificateSigningRequestDer::from_pem_slice(&request.spec.request.0);
    der.is_ok_and(|der| der.windows(public.len()).any(|part| part == public))
}

/// Makes a request, whose answer must come in time.
async fn in_time<T>(
    attempt: String,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    match timeout(limits::CERTIFICATE_REQUEST, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(cause)) => Err(RequestError::Api { attempt, cause: Box::new(cause) }),
        Err(_) => Err(RequestError::Late { attempt }),
    }
}

async fn submit(
    client: &Client,
    node: &str,
    wanted: &Wanted,
    key: &KeyPair,
    name: Option<String>,
) -> Result<CertificateAndKey, RequestError> {
    let text = wanted.request(node, key)?;
    let request = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: name.is_none().then(|| "csr-".to_owned()),
            name: name.clone(),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(text.into_bytes()),
            signer_name: wanted.signer().to_owned(),
            usages: Some(wanted.usages().map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let attempt = format!("request a certificate for node {node}");
    let name = match in_time(attempt, api.create(&PostParams::default(), &request)).await {
        Ok(created) => created.metadata.name.unwrap_or_default(),
        Err(RequestError::Api { cause, .. }) if name.is_some() && is_there(&cause) => {
            name.unwrap_or_default()
        }
        Err(error) => return Err(error),
    };
    let certificate = wait(&api, &name).await?;
    let pair = CertificateAndKey { certificate, key: key.serialize_pem() };
    if certified(&pair).is_none() {
        return Err(RequestError::Foreign { name });
    }
    Ok(pair)
}

fn is_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

/// Waits for the certificate of a request. Errors of the connection are waited out; credentials that have ended
/// are not.
async fn wait(api: &Api<CertificateSigningRequest>, name: &str) -> Result<String, RequestError> {
    let started = Instant::now();
    let mut pause = limits::CERTIFICATE_POLL_MIN;
    let mut said = false;
    loop {
        match in_time(format!("read certificate request {name}"), api.get_opt(name)).await {
            Ok(Some(request)) => {
                if let Some(outcome) = outcome(&request, name) {
                    return outcome;
                }
            }
            Ok(None) => return Err(RequestError::Gone { name: name.to_owned() }),
            Err(error) if is_unauthorized(&error) => return Err(error),
            Err(error) => debug!(%error, request = name, "cannot read a certificate request, trying again"),
        }
        if started.elapsed() >= limits::CERTIFICATE_WAIT {
            return Err(RequestError::Pending { name: name.to_owned() });
        }
        if started.elapsed() >= limits::CERTIFICATE_WARN_AFTER && !std::mem::replace(&mut said, true) {
            info!(
                "waiting for certificate request {name} to be approved: `kubectl certificate approve {name}`"
            );
        }
        sleep(pause).await;
        pause = (pause * 2).min(limits::CERTIFICATE_POLL_MAX);
    }
}

fn is_unauthorized(error: &RequestError) -> bool {
    matches!(error, RequestError::Api { cause, .. } if matches!(&**cause, kube::Error::Api(status) if status.code == 401))
}

/// Returns the certificate of a request, or the reason why there will be none; `None` while it is open.
fn outcome(request: &CertificateSigningRequest, name: &str) -> Option<Result<String, RequestError>> {
    let status = request.status.as_ref()?;
    for condition in status.conditions.as_deref().unwrap_or_default() {
        let message = || condition.message.clone().or_else(|| condition.reason.clone()).unwrap_or_default();
        match condition.type_.as_str() {
            "Denied" => return Some(Err(RequestError::Denied { name: name.to_owned(), message: message() })),
            "Failed" => return Some(Err(RequestError::Failed { name: name.to_owned(), message: message() })),
            _ => {}
        }
    }
    let certificate = status.certificate.as_ref().filter(|certificate| !certificate.0.is_empty())?;
    Some(Ok(String::from_utf8_lossy(&certificate.0).into_owned()))
}

/// Returns certificate and key in the form that TLS uses; `None` if they do not belong together.
pub(super) fn certified(pair: &CertificateAndKey) -> Option<CertifiedKey> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).ok()?;
    let certified = CertifiedKey::from_der(chain, key, &userspace_daemon::tls::provider()).ok()?;
    certified.keys_match().ok()?;
    Some(certified)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    };

    use super::*;

    fn with(kind: &str, certificate: Option<&str>) -> CertificateSigningRequest {
        let condition = CertificateSigningRequestCondition {
            type_: kind.to_owned(),
            message: Some("because".to_owned()),
            ..CertificateSigningRequestCondition::default()
        };
        CertificateSigningRequest {
            status: Some(CertificateSigningRequestStatus {
                certificate: certificate.map(|text| ByteString(text.as_bytes().to_vec())),
                conditions: Some(vec![condition]),
            }),
            ..CertificateSigningRequest::default()
        }
    }

    #[test]
    fn a_request_is_open_until_it_has_a_certificate_or_a_refusal() {
        assert!(outcome(&CertificateSigningRequest::default(), "r").is_none());
        assert!(outcome(&with("Approved", None), "r").is_none());
        assert!(outcome(&with("Approved", Some("")), "r").is_none());
        assert_eq!(outcome(&with("Approved", Some("PEM")), "r").unwrap().unwrap(), "PEM");
        let text = |kind: &str| outcome(&with(kind, None), "r").unwrap().unwrap_err().to_string();
        assert_eq!(text("Denied"), "certificate request r was denied: because");
        assert_eq!(text("Failed"), "certificate request r was refused by its signer: because");
    }

    #[test]
    fn a_certificate_for_another_key_is_noticed() {
        let [own, other] = [KeyPair::generate().unwrap(), KeyPair::generate().unwrap()];
        let certificate = CertificateParams::default().self_signed(&own).unwrap().pem();
        let pair =
            |key: &KeyPair| CertificateAndKey { certificate: certificate.clone(), key: key.serialize_pem() };
        assert!(certified(&pair(&own)).is_some());
        assert!(certified(&pair(&other)).is_none());
    }
}
