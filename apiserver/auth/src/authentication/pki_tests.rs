//! The authority on disk and in real TLS handshakes.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use apiserver_meta::seeded::ambient;

const DAY: i64 = 24 * 60 * 60;

fn admin() -> Subject {
    Subject::admin()
}

#[test]
fn a_second_start_finds_the_same_authority_and_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(1);
    let first = Pki::open(dir.path(), &ambient).unwrap();
    let pair = first.load_or_issue("admin", &admin()).unwrap();
    let second = Pki::open(dir.path(), &ambient).unwrap();
    assert_eq!(first.ca_pem(), second.ca_pem());
    assert_eq!(pair, second.load_or_issue("admin", &admin()).unwrap());
    for name in ["ca.crt", "ca.key", "admin.crt", "admin.key"] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_kept_certificate_is_renewed_in_its_last_month_and_when_it_should_say_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, clock) = ambient(2);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let hosts = |address: &str| Subject::apiserver("cluster.local", [address.to_owned()]);
    let first = pki.load_or_issue("apiserver", &hosts("10.0.0.1")).unwrap();
    assert_ne!(first, pki.load_or_issue("apiserver", &hosts("10.0.0.2")).unwrap(), "another address");
    let second = pki.load_or_issue("apiserver", &hosts("10.0.0.2")).unwrap();
    clock.advance(334 * DAY);
    assert_eq!(second, pki.load_or_issue("apiserver", &hosts("10.0.0.2")).unwrap(), "31 days are left");
    clock.advance(2 * DAY);
    assert_ne!(second, pki.load_or_issue("apiserver", &hosts("10.0.0.2")).unwrap(), "29 days are left");
}

#[test]
fn a_crash_between_key_and_certificate_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(3);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let old = pki.load_or_issue("admin", &admin()).unwrap();
    let other = pki.issue(&admin()).unwrap();
    std::fs::write(dir.path().join("admin.key"), &other.key).unwrap();
    let mended = pki.load_or_issue("admin", &admin()).unwrap();
    assert_ne!(mended.certificate, old.certificate);
    assert_ne!(mended.key, other.key);

    // A lost `ca.crt` is made again from `ca.key`, which is written first.
    std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
    let again = Pki::open(dir.path(), &ambient).unwrap();
    assert!(again.still_good(&mended, &admin()), "the authority has kept its key");
}

#[test]
fn a_certificate_without_its_key_or_of_another_authority_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, clock) = ambient(4);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let other_dir = tempfile::tempdir().unwrap();
    let other = Pki::open(other_dir.path(), &ambient).unwrap();
    assert!(!pki.still_good(&other.issue(&admin()).unwrap(), &admin()));

    std::fs::write(dir.path().join("ca.crt"), other.ca_pem()).unwrap();
    assert!(matches!(Pki::open(dir.path(), &ambient), Err(PkiError::Content { .. })));
    std::fs::remove_file(dir.path().join("ca.key")).unwrap();
    assert!(matches!(Pki::open(dir.path(), &ambient), Err(PkiError::KeyMissing { .. })));
    clock.advance(3700 * DAY);
    assert!(matches!(Pki::open(other_dir.path(), &ambient), Err(PkiError::Expired { .. })));
}

#[test]
fn organizations_are_one_attribute_each_and_two_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(5);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let two = Subject::client("jane", &["developers", "testers"]);
    let pair = pki.issue(&two).unwrap();
    assert!(pki.still_good(&pair, &two), "what was read back is what was asked for");
    assert!(matches!(
        pki.issue_client("jane", &["a", "b", "c"]),
        Err(PkiError::TooManyOrganizations { count: 3, .. })
    ));
}

#[test]
fn the_kubeconfig_is_yaml_with_everything_inside() {
    use base64::Engine as _;
    let text = kubeconfig("https://127.0.0.1:6443", "CA", "CERT", "KEY");
    let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(value["current-context"], "hawser");
    let cluster = &value["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], "https://127.0.0.1:6443");
    let user = &value["users"][0]["user"];
    for (encoded, plain) in [
        (&cluster["certificate-authority-data"], "CA"),
        (&user["client-certificate-data"], "CERT"),
        (&user["client-key-data"], "KEY"),
    ] {
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded.as_str().unwrap()).unwrap();
        assert_eq!(bytes, plain.as_bytes());
    }
}

/// Performs a handshake; returns the client certificate that the server received, or the error of either
/// side.
async fn handshake(
    server: impl Into<Arc<rustls::ServerConfig>>,
    client: Arc<rustls::ClientConfig>,
    name: &str,
) -> Result<Option<CertificateDer<'static>>, std::io::Error> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = async {
        let mut stream = TlsAcceptor::from(server.into()).accept(near).await?;
        let certificate = stream.get_ref().1.peer_certificates().map(|list| list[0].clone().into_owned());
        stream.write_all(b"x").await?;
        stream.shutdown().await?;
        Ok(certificate)
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let client = async {
        let mut stream = TlsConnector::from(client).connect(name, far).await?;
        stream.read_u8().await
    };
    let (certificate, byte) = tokio::join!(server, client);
    byte?;
    certificate
}

#[tokio::test]
async fn both_sides_accept_each_other_and_nobody_else() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ambient, _) = ambient(6);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let stranger = Pki::open(other_dir.path(), &ambient).unwrap();
    let subject = Subject::apiserver("cluster.local", ["10.96.0.1".to_owned()]);
    let server = pki.apiserver_tls(&subject).unwrap();
    let client = pki.client_tls(&pki.issue(&admin()).unwrap()).unwrap();
    for name in ["kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1", "::1", "10.96.0.1"] {
        let seen = handshake(server.clone(), client.clone(), name).await.unwrap();
        assert!(server.vouches_for(&[seen.unwrap()]), "{name}");
    }
    assert!(handshake(server.clone(), client.clone(), "10.96.0.2").await.is_err(), "another address");

    let foreign = stranger.client_tls(&stranger.issue(&admin()).unwrap()).unwrap();
    assert!(handshake(server.clone(), foreign, "localhost").await.is_err(), "the client does not trust us");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pki.ca_der.clone()).unwrap();
    let pair = stranger.issue(&admin()).unwrap();
    let forged = client_config(&ambient, roots.clone(), Some(&pair));
    let forged = handshake(server.clone(), forged, "localhost").await.unwrap().unwrap();
    assert!(!server.vouches_for(&[forged]), "a client of another authority is heard, not believed");
    // A serving certificate of our own authority is not a user either.
    let pair = pki.issue(&Subject::kubelet("a", ["127.0.0.1".to_owned()])).unwrap();
    let misused = client_config(&ambient, roots.clone(), Some(&pair));
    let misused = handshake(server.clone(), misused, "localhost").await.unwrap().unwrap();
    assert!(!server.vouches_for(&[misused]), "a serving certificate");
    let nobody = client_config(&ambient, roots, None);
    assert_eq!(handshake(server, nobody, "localhost").await.unwrap(), None);
}

#[tokio::test]
async fn a_node_server_lets_the_api_server_in_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(8);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let pair = pki.issue(&Subject::kubelet("a", ["10.0.0.5".to_owned(), "fd00::5".to_owned()])).unwrap();
    let server = pki.node_server_tls(&pair).unwrap();
    let client = pki.kubelet_client_tls().unwrap();
    for name in ["10.0.0.5", "fd00::5", "a"] {
        assert!(handshake(server.clone(), client.to_kubelet("a"), name).await.is_ok(), "{name}");
    }
    let jane = pki.client_tls(&pki.issue(&Subject::client("jane", &["system:masters"])).unwrap()).unwrap();
    assert!(handshake(server.clone(), jane, "a").await.is_err(), "whatever her groups are");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pki.ca_der.clone()).unwrap();
    assert!(handshake(server, client_config(&ambient, roots, None), "a").await.is_err(), "nobody");
}

#[tokio::test]
async fn a_kubelet_is_called_by_the_name_of_its_node_and_not_by_its_address_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(8);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let client = pki.kubelet_client_tls().unwrap();
    let serving = |name: &str, groups: &[&str]| {
        let hosts = ["10.0.0.5".to_owned()].into();
        let subject = Subject { hosts, usage: Usage::Server, ..Subject::client(name, groups) };
        pki.node_server_tls(&pki.issue(&subject).unwrap()).unwrap()
    };
    let accepted = async |server: &Arc<rustls::ServerConfig>, node: &str, address: &str| {
        handshake(Arc::clone(server), client.to_kubelet(node), address).await.is_ok()
    };
    let a = serving("system:node:a", &["system:nodes"]);
    assert!(accepted(&a, "a", "10.0.0.5").await, "as certificates for kubelets are signed");
    assert!(!accepted(&a, "b", "10.0.0.5").await, "node b has written the address of node a");
    assert!(!accepted(&a, "a", "10.0.0.6").await, "another address");
    assert!(!accepted(&a, "", "10.0.0.5").await, "no node");
    assert!(accepted(&serving("a", &[]), "a", "10.0.0.5").await, "as administrators issue them");
    assert!(!accepted(&serving("system:node:a", &[]), "a", "10.0.0.5").await, "no kubelet's");
    let other: Arc<rustls::ServerConfig> =
        pki.apiserver_tls(&Subject::apiserver("cluster.local", ["10.0.0.5".to_owned()])).unwrap().into();
    for node in ["a", "kubernetes", "localhost"] {
        assert!(!accepted(&other, node, "10.0.0.5").await, "an API server is not node {node}");
    }
    // A server on another port sees no certificate of ours.
    let stranger = tempfile::tempdir().unwrap();
    let stranger = Pki::open(stranger.path(), &ambient).unwrap();
    let exporter = stranger.apiserver_tls(&Subject::apiserver("x", [])).unwrap();
    let seen = handshake(exporter, client.without_credentials(), "10.0.0.5").await.unwrap();
    assert_eq!(seen, None);
}

#[test]
fn an_older_directory_gets_a_certificate_for_kubelets_that_is_no_administrators() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(10);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let name = "apiserver-kubelet-client";
    let old = pki.load_or_issue(name, &Subject::client(KUBELET_CLIENT, &["system:masters"])).unwrap();
    pki.kubelet_client_tls().unwrap();
    let kept = std::fs::read_to_string(dir.path().join(format!("{name}.crt"))).unwrap();
    assert_ne!(kept, old.certificate);
    let user = CertificateUser::read(&certificates(&kept)[0]).unwrap();
    assert_eq!((user.name.as_str(), user.groups.len()), (KUBELET_CLIENT, 0));
}

#[test]
fn the_components_are_the_users_that_the_default_roles_are_bound_to() {
    let bindings = serde_json::Value::from(crate::defaults::objects()).to_string();
    for component in [Component::Scheduler, Component::ControllerManager, Component::Proxy, Component::Dns] {
        let subject = Subject::component(component);
        assert!(bindings.contains(&format!("{:?}", subject.common_name)), "{component:?}");
        assert_eq!(subject.identity().groups, ["system:authenticated"]);
    }
    let node = Subject::component(Component::Node("a")).identity();
    assert_eq!(crate::authentication::node_name(&node), Some("a"));
}

#[tokio::test]
async fn a_process_that_runs_for_years_renews_its_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, clock) = ambient(7);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let client = pki.client_tls(&pki.issue(&admin()).unwrap()).unwrap();
    let server = pki.apiserver_tls(&Subject::apiserver("cluster.local", [])).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        // Half a year: each is met once in its last month or later.
        seen.insert(handshake(server.clone(), client.clone(), "localhost").await.unwrap().unwrap().to_vec());
        clock.advance(183 * DAY);
    }
    assert_eq!(seen.len(), 4, "one certificate a year");
}

#[tokio::test]
async fn an_expired_client_certificate_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, clock) = ambient(9);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let pair = pki.issue(&admin()).unwrap();
    let server = pki.apiserver_tls(&Subject::apiserver("cluster.local", [])).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pki.ca_der.clone()).unwrap();
    let client = client_config(&ambient, roots, Some(&pair));
    let seen = handshake(server.clone(), client, "localhost").await.unwrap().unwrap();
    assert!(server.vouches_for(std::slice::from_ref(&seen)));
    clock.advance(366 * DAY);
    assert!(!server.vouches_for(&[seen]));
}

fn client_config(
    ambient: &Ambient,
    roots: rustls::RootCertStore,
    pair: Option<&CertificateAndKey>,
) -> Arc<rustls::ClientConfig> {
    // The system's clock would find certificates of the test's time outside their validity.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let time = Arc::new(crate::authentication::tls::AmbientTime(ambient.clone()));
    let builder = rustls::ClientConfig::builder_with_details(provider, time)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match pair {
        Some(pair) => builder
            .with_client_auth_cert(certificates(&pair.certificate), private_key(&pair.key).unwrap())
            .unwrap(),
        None => builder.with_no_client_auth(),
    })
}

/// Kubernetes' components find no public half in the PKCS #8 key that was written here once.
#[test]
fn the_signing_key_has_its_public_half_beside_it_and_is_kept_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = ambient(5);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let first = pki.service_account_signer().unwrap().public();
    assert!(text("sa.key").starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    assert!(text("sa.pub").starts_with("-----BEGIN PUBLIC KEY-----\n"));
    assert_eq!(VerifyingKey::all(&text("sa.pub")), std::slice::from_ref(&first));
    assert_eq!(pki.service_account_signer().unwrap().public(), first);
    // A key of an older data directory signs on.
    let older = KeyPair::generate().unwrap().serialize_pem();
    assert!(older.starts_with("-----BEGIN PRIVATE KEY-----"));
    std::fs::write(dir.path().join("sa.key"), &older).unwrap();
    let second = pki.service_account_signer().unwrap().public();
    assert_ne!(second, first);
    assert_eq!(text("sa.key"), older);
    assert_eq!(VerifyingKey::all(&text("sa.pub")), std::slice::from_ref(&second));
    // Further keys in the same file belong to others.
    let both = format!("{}{}", first.to_pem(), second.to_pem());
    std::fs::write(dir.path().join("sa.pub"), &both).unwrap();
    pki.service_account_signer().unwrap();
    assert_eq!(text("sa.pub"), both);
}
