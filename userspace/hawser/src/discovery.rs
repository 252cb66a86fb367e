//! Discovery: a machine that knows the address of an API server, a token and a hash learns whom to trust.
//!
//! `cluster-info` is read over a connection that is not verified. Its signature, by the token's secret, and the
//! hash of the authority's key show that it is the cluster's; then the connection is verified with it.

use std::error::Error as StdError;
use std::io;

use anyhow::{Context, Result, anyhow, bail};
use apiserver_auth::authentication::pki::{certificates, public_key_hash, public_key_hashes};
use apiserver_meta::pem;
use controllers_manager::detached_signature;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Client, Config};
use rustls::CertificateError;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster_info::{self, Discovered};
use crate::limits;
use crate::token::Token;

/// Port of an API server that is named without one.
const PORT: u16 = 6443;
/// The name that the certificate of every API server has, and that no kubelet gets one for.
const SERVER_NAME: &str = "kubernetes.default.svc";

/// The hashes that one of the authority's keys must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pins {
    Hashes(Vec<String>),
    /// The token alone is trusted.
    Skip,
}

impl Pins {
    /// Checks the texts of the command line.
    pub fn parse(hashes: &[String], skip: bool) -> Result<Self> {
        if skip {
            return Ok(Self::Skip);
        }
        if hashes.is_empty() {
            bail!(
                "--discovery-token-ca-cert-hash is missing: `hawser token create --print-join-command` prints it; \
                 --discovery-token-unsafe-skip-ca-verification goes without"
            );
        }
        let hashes = hashes.iter().map(|text| {
            let text = text.to_ascii_lowercase();
            let digits = text.strip_prefix("sha256:").unwrap_or_default();
            if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                bail!("--discovery-token-ca-cert-hash {text}: give sha256: and 64 hexadecimal digits");
            }
            Ok(text)
        });
        Ok(Self::Hashes(hashes.collect::<Result<_>>()?))
    }

    /// Returns the authorities that the hashes pin; whoever has the token can add others.
    fn pinned(&self, authorities: &str) -> Result<String> {
        let Self::Hashes(wanted) = self else { return Ok(authorities.to_owned()) };
        let found = public_key_hashes(authorities);
        let pinned: String = certificates(authorities)
            .iter()
            .filter(|der| public_key_hash(der).is_some_and(|hash| wanted.contains(&hash)))
            .map(|der| pem::encode("CERTIFICATE", der))
            .collect();
        if !pinned.is_empty() {
            return Ok(pinned);
        }
        bail!(
            "the cluster's authority has the hash {}, and not {}: check --discovery-token-ca-cert-hash, or somebody \
             stands in for the API server",
            found.join(" or "),
            wanted.join(" or ")
        )
    }
}

/// Returns the URL of an API server that is named `HOST`, `HOST:PORT` or `https://HOST:PORT`.
pub fn server_url(text: &str) -> Result<String> {
    let wrong = || anyhow!("{text} is not an API server: give ADDRESS:PORT");
    let host = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    if host.is_empty() || host.contains('/') {
        return Err(wrong());
    }
    if let Ok(std::net::IpAddr::V6(address)) = host.parse() {
        return Ok(format!("https://[{address}]:{PORT}"));
    }
    match host.rsplit_once(':') {
        None => Ok(format!("https://{host}:{PORT}")),
        Some(_) if host.starts_with('[') && host.ends_with(']') => Ok(format!("https://{host}:{PORT}")),
        Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(format!("https://{host}"))
        }
        Some(_) => Err(wrong()),
    }
}

/// Returns what the cluster says of itself, once it is known that the cluster says it.
pub async fn discover(url: &str, token: &Token, pins: &Pins, now: Timestamp) -> Result<Discovered> {
    let text = signed_text(url, token).await?;
    let mut found = Discovered::read(&text)?;
    found.authorities = pins.pinned(&found.authorities)?;
    // The same over a connection that is verified, so that the text is not an old one that was recorded.
    let verified = client(kubeconfig(url, &found.authorities, &json!({}))).await?;
    let again = read(&verified).await.map_err(|error| explain(&error, url, &found.server, now))?;
    if again.data.as_ref().and_then(|data| data.get(cluster_info::KUBECONFIG)) != Some(&text) {
        bail!("{url} answered differently once its certificate was checked: run the command again");
    }
    Ok(found)
}

/// Returns the kubeconfig in `cluster-info`, whose signature is that of the token.
async fn signed_text(url: &str, token: &Token) -> Result<String> {
    let mut config = Config::new(url.parse().with_context(|| format!("{url} is not a URL"))?);
    config.accept_invalid_certs = true;
    config.connect_timeout = Some(limits::JOIN_CONNECT);
    config.read_timeout = Some(limits::JOIN_CONNECT);
    let client = apiserver_client::client(config).context("cannot set up TLS")?;
    let started = Instant::now();
    loop {
        let map = read(&client).await.map_err(|error| unreachable_server(&error, url))?;
        if let Some(text) = check_signature(&map, token)? {
            return Ok(text);
        }
        if started.elapsed() > limits::JOIN_SIGNATURE {
            bail!(
                "the cluster does not know token {}, or it has expired: make another one with `hawser token create`",
                token.id
            );
        }
        sleep(limits::JOIN_SIGNATURE_PAUSE).await;
    }
}

/// Returns the kubeconfig if it is signed with the token, `None` if there is no signature for the token.
fn check_signature(map: &ConfigMap, token: &Token) -> Result<Option<String>> {
    let data = map.data.as_ref();
    let field = |key: &str| data.and_then(|data| data.get(key));
    let text = field(cluster_info::KUBECONFIG).context("kube-public/cluster-info has no kubeconfig")?;
    let Some(signature) = field(&format!("{}{}", cluster_info::SIGNATURE, token.id)) else { return Ok(None) };
    if *signature != detached_signature(text, &token.id, &token.secret) {
        bail!(
            "the signature of kube-public/cluster-info is not that of token {}: check the token, or somebody stands in \
             for the API server",
            token.id
        );
    }
    Ok(Some(text.clone()))
}

/// Reads `cluster-info`, with a bound on the time and on the size of the answer: whoever answers may be anybody.
async fn read(client: &Client) -> kube::Result<ConfigMap> {
    let late =
        || kube::Error::Service(format!("no answer within {} s", limits::JOIN_REQUEST.as_secs()).into());
    timeout(limits::JOIN_REQUEST, read_bounded(client)).await.unwrap_or_else(|_| Err(late()))
}

async fn read_bounded(client: &Client) -> kube::Result<ConfigMap> {
    let path = format!("/api/v1/namespaces/{}/configmaps/{}", cluster_info::NAMESPACE, cluster_info::NAME);
    let request = http::Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let answer = client.send(request).await?;
    let code = answer.status();
    let body = Limited::new(answer.into_body(), limits::JOIN_ANSWER).collect().await.map_err(|error| {
        let long = error.is::<LengthLimitError>();
        kube::Error::Service(if long { "the answer is larger than 1 MiB".into() } else { error })
    })?;
    let body = body.to_bytes();
    if code.is_success() {
        return serde_json::from_slice(&body).map_err(kube::Error::SerdeError);
    }
    let status = serde_json::from_slice::<Status>(&body).ok();
    let status = status.unwrap_or_else(|| Status::failure(code.as_str(), "")).with_code(code.as_u16());
    Err(kube::Error::Api(status.boxed()))
}

/// Returns a kubeconfig for a server that is verified with `authorities`, and a user. The server is known by the name
/// [`SERVER_NAME`] and not by its address: for its addresses, a kubelet may get a certificate of the same authority.
pub fn kubeconfig(url: &str, authorities: &str, user: &serde_json::Value) -> serde_json::Value {
    use base64::Engine as _;
    let authorities = base64::engine::general_purpose::STANDARD.encode(authorities);
    json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "hawser", "cluster": {
            "server": url, "certificate-authority-data": authorities, "tls-server-name": SERVER_NAME,
        }}],
        "users": [{"name": "hawser", "user": user}],
        "contexts": [{"name": "hawser", "context": {"cluster": "hawser", "user": "hawser"}}],
        "current-context": "hawser",
    })
}

/// Returns a client for a kubeconfig.
pub async fn client(kubeconfig: serde_json::Value) -> Result<Client> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).context("cannot make a kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("cannot use the cluster's address and authority")?;
    config.connect_timeout = Some(limits::JOIN_CONNECT);
    apiserver_client::client(config).context("cannot set up TLS")
}

/// Returns the error for a server of which nothing is known.
fn unreachable_server(error: &kube::Error, url: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.code == 404 => anyhow!(
            "{url} has no ConfigMap kube-public/cluster-info: start it by `hawser up`, or with \
             --enable-bootstrap-token-auth"
        ),
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => anyhow!(
            "{url} does not show kube-public/cluster-info to strangers: bind the role kubeadm:bootstrap-signer-clusterinfo \
             to system:anonymous, and leave --anonymous-auth on"
        ),
        kube::Error::Api(status) => anyhow!("{url} is not ready: {}: try again", status.message),
        _ => anyhow!(
            "cannot reach the API server at {url}: check the address, and that no firewall is between ({})",
            innermost(error)
        ),
    }
}

/// Returns the error for a server whose certificate is now verified. `announced` is the address that the cluster
/// gives for itself.
pub fn explain(error: &kube::Error, url: &str, announced: &str, now: Timestamp) -> anyhow::Error {
    let Some(rustls::Error::InvalidCertificate(problem)) = tls_error(error) else {
        return unreachable_server(error, url);
    };
    let now = apiserver_meta::time::rfc3339(now);
    match problem {
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => anyhow!(
            "the certificate of {url} is not valid yet: this machine's clock says {now}; set it, for example with \
             `timedatectl set-ntp true`"
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => anyhow!(
            "the certificate of {url} has expired: this machine's clock says {now}; set it if it is wrong, or restart \
             the API server, which renews its certificate"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => anyhow!(
            "the certificate of {url} is not that of an API server, which has the name {SERVER_NAME}: use {announced}, at \
             which the cluster announces itself"
        ),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => anyhow!(
            "the certificate of {url} is not of the authority in cluster-info: somebody stands in for the API server, or \
             its certificate has been replaced"
        ),
        other => anyhow!("the certificate of {url} cannot be used: {other}"),
    }
}

/// Returns the error of TLS in a chain of errors.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // The source of an I/O error is that of the error inside of it, which may be an I/O error again.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    None
}

fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Returns whether a text has certificates at all.
pub fn has_certificates(pem: &str) -> bool {
    !certificates(pem).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_as_kubeadm_names_them() {
        for (text, url) in [
            ("192.0.2.1:6443", "https://192.0.2.1:6443"),
            ("192.0.2.1", "https://192.0.2.1:6443"),
            ("https://api.example:8443/", "https://api.example:8443"),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443"),
            ("2001:db8::1", "https://[2001:db8::1]:6443"),
            ("[2001:db8::1]", "https://[2001:db8::1]:6443"),
        ] {
            assert_eq!(server_url(text).unwrap(), url);
        }
        for text in ["", "http://192.0.2.1", "192.0.2.1/api", "https://", "a:", ":1", "a:99999"] {
            assert!(server_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hashes_have_a_form_and_one_must_match() {
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        let own = public_key_hashes(&pem).remove(0);
        let pins =
            |hashes: &[&str]| Pins::parse(&hashes.iter().map(ToString::to_string).collect::<Vec<_>>(), false);
        let other = format!("sha256:{}", "0".repeat(64));
        let pinned = pins(&[&other, &own.to_ascii_uppercase().replace("SHA", "sha")]).unwrap();
        let hashes = |pem: &str| public_key_hashes(&pinned.pinned(pem).unwrap());
        assert_eq!(hashes(&pem), std::slice::from_ref(&own));
        // A token holder may have added an authority of its own.
        let key = rcgen::KeyPair::generate().unwrap();
        let added = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        assert_eq!(hashes(&format!("{added}{pem}")), std::slice::from_ref(&own));
        let error = pins(&[&other]).unwrap().pinned(&pem).unwrap_err().to_string();
        assert!(error.contains(&own) && error.contains("somebody stands in"), "{error}");
        assert!(pins(&[&own]).unwrap().pinned("").is_err());
        for wrong in ["", "sha256:", "sha1:00", &own[..70], &format!("{own}0")] {
            assert!(pins(&[wrong]).is_err(), "{wrong}");
        }
        assert!(pins(&[]).unwrap_err().to_string().contains("--discovery-token-ca-cert-hash is missing"));
        assert_eq!(Pins::parse(&[], true).unwrap().pinned(&pem).unwrap(), pem);
    }

    /// Serves TLS on loopback with a certificate of an authority for these names, and returns a client of the
    /// kubeconfig that is made for it.
    async fn client_of(names: &[&str]) -> Client {
        use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).unwrap().pem();
        let issuer = rcgen::Issuer::new(params, authority_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_provider(userspace_daemon::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        client(kubeconfig(&url, &authority, &json!({}))).await.unwrap()
    }

    #[tokio::test]
    async fn a_node_with_a_certificate_for_the_servers_address_does_not_stand_in_for_it() {
        // Fails if another test has already made it the default.
        let _ = userspace_daemon::tls::install();
        read(&client_of(&["127.0.0.1", SERVER_NAME]).await).await.unwrap();
        let error = read(&client_of(&["127.0.0.1", "node-1"]).await).await.unwrap_err();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let text = explain(&error, "https://192.0.2.9:6443", "https://192.0.2.1:6443", now).to_string();
        assert!(text.contains("is not that of an API server"), "{text}");
    }

    /// Answers each connection with a head and then with bytes for as long as they are read, or with nothing.
    async fn stranger(head: &'static str, body: &'static [u8]) -> Client {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(head.as_bytes()).await;
                while !body.is_empty() && stream.write_all(body).await.is_ok() {}
                // The connection stays open.
                std::future::pending::<()>().await;
            }
        });
        Client::try_from(Config::new(url.parse().unwrap())).unwrap()
    }

    #[tokio::test]
    async fn an_answer_of_a_stranger_is_bounded() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
        let endless = stranger(head, &[b' '; 4096]).await;
        let error = innermost(&read(&endless).await.unwrap_err());
        assert_eq!(error, "the answer is larger than 1 MiB");
        let silent = stranger("", b"").await;
        tokio::time::pause();
        let error = innermost(&read(&silent).await.unwrap_err());
        assert_eq!(error, "no answer within 10 s");
    }

    #[test]
    fn only_the_token_signs() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let map = |signature: &str| ConfigMap {
            data: Some(
                [
                    (cluster_info::KUBECONFIG.to_owned(), "text".to_owned()),
                    ("jws-kubeconfig-abcdef".to_owned(), signature.to_owned()),
                ]
                .into(),
            ),
            ..ConfigMap::default()
        };
        let good = detached_signature("text", "abcdef", "0123456789abcdef");
        assert_eq!(check_signature(&map(&good), &token).unwrap().as_deref(), Some("text"));
        for forged in
            ["", &detached_signature("other", "abcdef", "0123456789abcdef"), &good[..good.len() - 1]]
        {
            assert!(check_signature(&map(forged), &token).is_err(), "{forged}");
        }
        let other = Token::parse("ghijkl.0123456789abcdef").unwrap();
        assert!(check_signature(&map(&good), &other).unwrap().is_none());
        assert!(check_signature(&ConfigMap::default(), &token).is_err());
    }

    #[test]
    fn errors_of_certificates_say_what_to_do() {
        let explained = |problem: CertificateError| {
            let tls = rustls::Error::InvalidCertificate(problem);
            let error = kube::Error::Service(Box::new(io::Error::other(tls)));
            let now = "2020-01-01T00:00:00Z".parse().unwrap();
            explain(&error, "https://192.0.2.9:6443", "https://192.0.2.1:6443", now).to_string()
        };
        let clock = explained(CertificateError::NotValidYet);
        assert!(clock.contains("clock says 2020-01-01T00:00:00Z") && !clock.contains('\n'), "{clock}");
        assert!(explained(CertificateError::Expired).contains("has expired"));
        assert!(explained(CertificateError::NotValidForName).contains("use https://192.0.2.1:6443"));
        assert!(explained(CertificateError::UnknownIssuer).contains("somebody stands in"));
    }
}
