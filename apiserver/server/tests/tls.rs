//! The API over TLS on the loopback interface, with the clients that components use.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authentication::pki::{Component, Pki, Subject};
use apiserver_auth::authentication::tokens::{Issuer, NamedUid, SecretTokens};
use apiserver_client::{Informers, connect, in_process};
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_server::{Server, ServerConfig, serve};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

struct Running {
    server: Arc<Server>,
    pki: Pki,
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    dir: tempfile::TempDir,
}

async fn run() -> Running {
    let dir = tempfile::tempdir().unwrap();
    let ambient = Ambient::system();
    let pki = Pki::open(&dir.path().join("pki"), &ambient).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
    let issuer = Issuer::open(&pki, "https://kubernetes.default.svc.cluster.local", &[]).unwrap();
    let subject = Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()]);
    let tls = pki.apiserver_tls(&subject).unwrap();
    let client_ca = tls.client_authorities().to_owned();
    let issuer = Some(Arc::new(issuer));
    let config = ServerConfig { issuer, client_ca, bootstrap_tokens: true, ..ServerConfig::default() };
    let server = Server::new(config, store, builtin::registry(), ambient).unwrap();
    server.start();
    server.ready().await;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, tls, Arc::clone(&server), shutdown.clone()));
    Running { server, pki, address, shutdown, serving, dir }
}

impl Running {
    async fn client(&self, subject: &Subject) -> Client {
        let path = self.dir.path().join("kubeconfig.yaml");
        self.pki.write_kubeconfig(&path, &format!("https://{}", self.address), "test", subject).unwrap();
        connect(&path, "test").await.unwrap()
    }

    /// A client with a bearer token, or none.
    async fn with_token(&self, token: Option<&str>) -> Client {
        let path = self.dir.path().join("token.yaml");
        let user = token.map_or(json!({}), |token| json!({"token": token}));
        let ca = self.dir.path().join("pki/ca.crt");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", self.address), "certificate-authority": ca}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        connect(&path, "test").await.unwrap()
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn the_certificate_that_kubelets_are_shown_opens_no_api_server() {
    let running = run().await;
    let masters = Subject::client(&Subject::kubelet_client().common_name, &["system:masters"]);
    for subject in [Subject::kubelet_client(), masters] {
        let client = running.client(&subject).await;
        assert_eq!(code(Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await), 401);
        let version = http::Request::get("/version").body(Vec::new()).unwrap();
        assert_eq!(code(client.request_text(version).await), 401, "not even what everybody may see");
    }
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

/// A bootstrap token in a Secret, with changes of its fields.
fn bootstrap_token(id: &str, changes: &serde_json::Value) -> Secret {
    let mut secret = json!({
        "metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        },
    });
    for (key, value) in changes.as_object().unwrap() {
        secret["stringData"][key] = value.clone();
    }
    serde_json::from_value(secret).unwrap()
}

#[tokio::test]
async fn bootstrap_tokens_identify_machines_until_they_end() {
    let running = run().await;
    let admin = running.client(&Subject::admin()).await;
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "kube-system");
    let post = PostParams::default();
    secrets.create(&post, &bootstrap_token("abcdef", &json!({}))).await.unwrap();
    let token = "abcdef.0123456789abcdef";
    let machine = running.with_token(Some(token)).await;
    let review: SelfSubjectReview =
        Api::all(machine.clone()).create(&post, &SelfSubjectReview::default()).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:bootstrap:abcdef"));
    let groups = user.groups.unwrap();
    for group in ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"] {
        assert!(groups.iter().any(|own| own == group), "{groups:?}");
    }
    // It may request certificates, and look whether its name is taken; nothing else.
    let requests = Api::<CertificateSigningRequest>::all(machine.clone());
    assert!(requests.list(&ListParams::default()).await.unwrap().items.is_empty());
    assert_eq!(code(Api::<Node>::all(machine.clone()).get("n").await), 404);
    assert_eq!(code(Api::<Node>::all(machine.clone()).list(&ListParams::default()).await), 403);
    assert_eq!(
        code(Api::<Secret>::namespaced(machine.clone(), "kube-system").list(&ListParams::default()).await),
        403
    );
    let masters = csr(&["system:masters"], "kubernetes.io/kube-apiserver-client");
    assert_eq!(code(requests.create(&post, &masters).await), 403, "nobody asks for everything");
    // A token that is deleted is refused at once, on the same connection.
    secrets.delete("bootstrap-token-abcdef", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(requests.list(&ListParams::default()).await), 401);

    let elsewhere: Api<Secret> = Api::namespaced(admin, "default");
    elsewhere.create(&post, &bootstrap_token("aaaaaa", &json!({}))).await.unwrap();
    let past = json!({"expiration": "2020-01-01T00:00:00Z"});
    for (id, changes) in [
        ("bbbbbb", past),
        ("cccccc", json!({"token-secret": "0123456789abcdeg"})),
        ("dddddd", json!({"usage-bootstrap-authentication": "false"})),
        ("eeeeee", json!({"auth-extra-groups": "system:masters"})),
    ] {
        secrets.create(&post, &bootstrap_token(id, &changes)).await.unwrap();
    }
    let mut opaque = bootstrap_token("ffffff", &json!({}));
    opaque.type_ = Some("Opaque".to_owned());
    secrets.create(&post, &opaque).await.unwrap();
    for id in ["aaaaaa", "bbbbbb", "cccccc", "dddddd", "eeeeee", "ffffff", "zzzzzz"] {
        let stranger = running.with_token(Some(&format!("{id}.0123456789abcdef"))).await;
        let answer = Api::<Node>::all(stranger).get("n").await;
        assert_eq!(code(answer), 401, "{id}");
    }
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

/// The bearer of the token of a Secret is its ServiceAccount, until the Secret or the account ends.
#[tokio::test]
async fn tokens_of_secrets_identify_accounts_until_they_end() {
    let running = run().await;
    let admin = running.client(&Subject::admin()).await;
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "default");
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    let post = PostParams::default();
    let account = ServiceAccount { metadata: name("bot"), ..ServiceAccount::default() };
    let account = accounts.create(&post, &account).await.unwrap();
    let tokens = SecretTokens::open(&running.pki).unwrap();
    let bot = NamedUid { name: "bot".to_owned(), uid: account.metadata.uid.unwrap() };
    let secret = |of: &str, token: &str| -> Secret {
        let annotations = json!({"kubernetes.io/service-account.name": "bot"});
        serde_json::from_value(json!({"metadata": {"name": of, "annotations": annotations},
            "type": "kubernetes.io/service-account-token", "stringData": {"token": token}}))
        .unwrap()
    };
    let token = tokens.issue("default", &bot, "bot-token");
    let client = running.with_token(Some(&token)).await;
    let whoami = async || {
        let review =
            Api::<SelfSubjectReview>::all(client.clone()).create(&post, &SelfSubjectReview::default()).await;
        review.map(|review| review.status.unwrap().user_info.unwrap().username.unwrap())
    };
    assert_eq!(code(whoami().await), 401, "a token that no Secret holds");
    // A Secret that the attacker may write does not make its own contents a token, nor that of another Secret.
    secrets.create(&post, &secret("other", &token)).await.unwrap();
    secrets.create(&post, &secret("bot-token", "a.b.c")).await.unwrap();
    assert_eq!(code(whoami().await), 401);
    secrets.delete("bot-token", &DeleteParams::default()).await.unwrap();
    secrets.create(&post, &secret("bot-token", &token)).await.unwrap();
    assert_eq!(whoami().await.unwrap(), "system:serviceaccount:default:bot");
    assert!(apiserver_meta::time::is_day(&last_use(&admin, "bot-token").await));
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "kube-system");
    let tracking = maps.get("kube-apiserver-legacy-service-account-token-tracking").await.unwrap();
    assert!(apiserver_meta::time::is_day(&tracking.data.unwrap()["since"]));
    let stranger = NamedUid { uid: "00000000-0000-0000-0000-000000000000".to_owned(), ..bot.clone() };
    let forged = tokens.issue("default", &stranger, "forged");
    secrets.create(&post, &secret("forged", &forged)).await.unwrap();
    let client_of = running.with_token(Some(&forged)).await;
    assert_eq!(code(Api::<Node>::all(client_of).get("n").await), 401, "an account of the same name before");
    // It ends at once, on the same connection, with its mark, its Secret and its account.
    let mark = |value: serde_json::Value| {
        Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": value}}}))
    };
    secrets.patch("bot-token", &PatchParams::default(), &mark(json!("2026-01-01"))).await.unwrap();
    assert_eq!(code(whoami().await), 401);
    secrets.patch("bot-token", &PatchParams::default(), &mark(json!(null))).await.unwrap();
    whoami().await.unwrap();
    secrets.delete("bot-token", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(whoami().await), 401);
    secrets.create(&post, &secret("bot-token", &token)).await.unwrap();
    whoami().await.unwrap();
    accounts.delete("bot", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(whoami().await), 401);
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

/// Waits until the server has recorded a use of the token in a Secret, and returns the day.
async fn last_use(admin: &Client, name: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "default");
    for _ in 0..500 {
        let labels = secrets.get(name).await.unwrap().metadata.labels.unwrap_or_default();
        if let Some(day) = labels.get("kubernetes.io/legacy-token-last-used") {
            return day.clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the use of {name} is not recorded");
}

/// A request for a client certificate of somebody in these groups.
fn csr(groups: &[&str], signer: &str) -> CertificateSigningRequest {
    let mut params = rcgen::CertificateParams::default();
    for group in groups {
        params.distinguished_name.push(rcgen::DnType::OrganizationName, *group);
    }
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: k8s_openapi::ByteString(pem.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    }
}

#[tokio::test]
async fn certificates_and_tokens_are_identities() {
    let running = run().await;
    let admin = running.client(&Subject::admin()).await;
    assert_eq!(
        Api::<Namespace>::all(admin.clone()).list(&ListParams::default()).await.unwrap().items.len(),
        4
    );
    let bob = running.client(&Subject::client("bob", &[])).await;
    assert_eq!(code(Api::<Pod>::all(bob).list(&ListParams::default()).await), 403);

    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    let account = ServiceAccount { metadata: name("default"), ..ServiceAccount::default() };
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request("default", &PostParams::default(), &request).await.unwrap();
    let token = answer.status.unwrap().token.unwrap();
    let pod = running.with_token(Some(&token)).await;
    let me: serde_json::Value = pod.request(whoami()).await.unwrap();
    assert_eq!(me["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
    let pods: Api<Pod> = Api::default_namespaced(pod);
    assert_eq!(code(pods.list(&ListParams::default()).await), 403);
    let forged = running.with_token(Some("abc.def.ghi")).await;
    assert_eq!(code(Api::<Pod>::all(forged).list(&ListParams::default()).await), 401);
    let nobody = running.with_token(None).await;
    assert_eq!(code(Api::<Pod>::all(nobody.clone()).list(&ListParams::default()).await), 403);
    nobody.apiserver_version().await.unwrap();
    let page = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let page = admin.request_text(page).await.unwrap();
    for series in [
        "authentication_attempts{result=\"failure\"} 1\n",
        "apiserver_client_certificate_expiration_seconds_bucket{le=\"0\"} 0\n",
        "authenticated_user_requests{username=\"other\"} ",
    ] {
        assert!(page.contains(series), "{series}: {page}");
    }
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

/// The handshake asks for a certificate and accepts any, as in Kubernetes; the answer to the request refuses
/// it.
#[tokio::test]
async fn a_certificate_of_another_authority_is_answered_with_401_and_a_token_beside_it_counts() {
    let running = run().await;
    let admin = running.client(&Subject::admin()).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin, "default");
    let account = ServiceAccount { metadata: name("bot"), ..ServiceAccount::default() };
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let answer = accounts.create_token_request("bot", &PostParams::default(), &request).await.unwrap();
    let token = answer.status.unwrap().token.unwrap();
    let other = Pki::open(&running.dir.path().join("other"), &Ambient::system()).unwrap();
    let pair = other.issue(&Subject::admin()).unwrap();
    let path = running.dir.path().join("foreign.yaml");
    let config = apiserver_auth::authentication::pki::kubeconfig(
        &format!("https://{}", running.address),
        running.pki.ca_pem(),
        &pair.certificate,
        &pair.key,
    );
    std::fs::write(&path, config).unwrap();
    let foreign = connect(&path, "test").await.unwrap();
    let version = || http::Request::get("/version").body(Vec::new()).unwrap();
    assert_eq!(code(foreign.request_text(version()).await), 401, "where anybody may read");
    for (token, expected) in
        [(token.as_str(), Some("system:serviceaccount:default:bot")), ("abc.def.ghi", None)]
    {
        let mut request = whoami();
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        let answer = foreign.request::<serde_json::Value>(request).await;
        match expected {
            Some(user) => assert_eq!(answer.unwrap()["status"]["userInfo"]["username"], user),
            None => assert_eq!(code(answer), 401),
        }
    }
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

fn whoami() -> http::Request<Vec<u8>> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .unwrap()
}

fn name(name: &str) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some(name.to_owned()),
        ..Default::default()
    }
}

async fn exercise(client: Client, count: usize) {
    let informers = Informers::new(client.clone(), Ambient::system(), CancellationToken::new());
    let cache = informers.cache::<ConfigMap>();
    cache.synced().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    for i in 0..count {
        let map = ConfigMap { metadata: name(&format!("m{i}")), ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let patch = json!({"data": {"a": "b"}});
    maps.patch("m0", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    maps.delete("m1", &DeleteParams::default()).await.unwrap();
    let key = apiserver_client::ObjectKey::new("default", "m0");
    for _ in 0..500 {
        let patched = cache.get(&key).is_some_and(|m| m.data.is_some());
        // The server has one of its own elsewhere.
        let ours = |map: &Arc<ConfigMap>| map.metadata.namespace.as_deref() == Some("default");
        if cache.list().iter().filter(|map| ours(map)).count() == count - 1 && patched {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the cache holds {} objects", cache.len());
}

#[tokio::test]
async fn a_component_manages_the_fields_that_it_writes_under_its_own_name() {
    let running = run().await;
    let path = running.dir.path().join("kubeconfig.yaml");
    let url = format!("https://{}", running.address);
    running.pki.write_kubeconfig(&path, &url, "test", &Subject::admin()).unwrap();
    let far = connect(&path, "kube-scheduler").await.unwrap();
    let near = in_process(running.server.service(), Subject::admin().identity(), "kubelet");
    for (client, manager) in [(far, "kube-scheduler"), (near, "kubelet")] {
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let map = ConfigMap {
            metadata: name(manager),
            data: Some([("a".to_owned(), "b".to_owned())].into()),
            ..ConfigMap::default()
        };
        let made = maps.create(&PostParams::default(), &map).await.unwrap();
        let managers: Vec<_> =
            made.metadata.managed_fields.unwrap().into_iter().filter_map(|entry| entry.manager).collect();
        assert_eq!(managers, [manager]);
    }
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

/// kube-scheduler and kube-controller-manager read it with roles of their own, and complain until it is there.
#[tokio::test]
async fn the_authorities_of_clients_are_published_and_made_anew() {
    let running = run().await;
    let scheduler = running.client(&Subject::component(Component::Scheduler)).await;
    let admin = running.client(&Subject::admin()).await;
    let published: Api<ConfigMap> = Api::namespaced(scheduler, "kube-system");
    let maps: Api<ConfigMap> = Api::namespaced(admin, "kube-system");
    const NAME: &str = "extension-apiserver-authentication";
    for _ in 0..2 {
        let began = std::time::Instant::now();
        let map = loop {
            match published.get_opt(NAME).await.unwrap() {
                Some(map) => break map,
                None => assert!(began.elapsed() < Duration::from_secs(10), "it is not published"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(
            map.data.unwrap(),
            [("client-ca-file".to_owned(), running.pki.ca_pem().to_owned())].into()
        );
        let managers: Vec<_> =
            map.metadata.managed_fields.unwrap().into_iter().filter_map(|entry| entry.manager).collect();
        assert_eq!(managers, ["kube-apiserver"]);
        maps.delete(NAME, &DeleteParams::default()).await.unwrap();
    }
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

#[tokio::test]
async fn a_cache_follows_over_tls() {
    let running = run().await;
    exercise(running.client(&Subject::admin()).await, 20).await;
    running.shutdown.cancel();
    running.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cache_follows_in_process_in_paused_time() {
    let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
    let server = Server::new(ServerConfig::default(), store, builtin::registry(), Ambient::system()).unwrap();
    server.start();
    server.ready().await;
    exercise(in_process(server.service(), Identity::authenticated("a", &["system:masters"]), "test"), 20)
        .await;
    server.stop();
}

#[tokio::test]
async fn the_listener_ends_with_the_shutdown() {
    let running = run().await;
    let listed = running.client(&Subject::admin()).await;
    assert!(listed.list_core_api_versions().await.unwrap().versions.contains(&"v1".to_owned()));
    assert!(running.server.is_ready());
    running.shutdown.cancel();
    running.serving.await.unwrap();
    // After the shutdown no request is answered.
    assert!(tokio::net::TcpStream::connect(running.address).await.is_err());
}
