//! Extenders over HTTPS.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::server::{Seen, answer_one};
use super::{Reply, consult, with};

/// Serves an extender that lets all nodes pass, with a certificate of its own for the name `extender.test`; returns the
/// settings without those of TLS, and the certificate.
async fn serve() -> (Value, String) {
    let own = rcgen::generate_simple_self_signed(vec!["extender.test".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let answer = |_: &str, request: &Value| Reply::Json(json!({"NodeNames": request["NodeNames"]}));
            answer_one(stream, Seen::default(), Arc::new(answer)).await;
        }
    });
    (json!({"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": true}), own.cert.pem())
}

#[tokio::test]
async fn certificate_is_checked_against_the_roots_and_the_name_that_are_given() {
    let (settings, certificate) = serve().await;
    let ask = async |fields: Value| consult(vec![with(settings.clone(), fields)], &["a"]).await;
    let data = STANDARD.encode(&certificate);
    let right = json!({"enableHTTPS": true, "tlsConfig": {"caData": data, "serverName": "extender.test"}});
    assert_eq!(ask(right).await.unwrap().nodes, ["a"]);
    let nameless = json!({"enableHTTPS": true, "tlsConfig": {"caData": data}});
    assert!(ask(nameless).await.unwrap_err().starts_with("Post \"https://"), "the name is 127.0.0.1");
    let other = rcgen::generate_simple_self_signed(vec!["extender.test".to_owned()]).unwrap().cert.pem();
    let other = json!({"caData": STANDARD.encode(other), "serverName": "extender.test"});
    assert!(ask(json!({"tlsConfig": other})).await.is_err());
}

#[tokio::test]
async fn certificate_is_not_checked_if_no_roots_are_given_or_this_is_asked_for() {
    let (settings, _) = serve().await;
    for fields in [json!({"enableHTTPS": true}), json!({"tlsConfig": {"insecure": true}})] {
        let found = consult(vec![with(settings.clone(), fields)], &["a"]).await;
        assert_eq!(found.unwrap().nodes, ["a"]);
    }
}
