//! Credentials to identities.

use super::*;
use crate::authentication::pki::{Pki, Subject, certificates};
use crate::authentication::tokens::tests::Objects;
use crate::authentication::tokens::{BoundKind, BoundObject, KubernetesClaims, NamedUid, TokenSecret};
use apiserver_meta::seeded::{TestClock, ambient};

struct Setup {
    pki: Pki,
    clock: Arc<TestClock>,
    issuer: Arc<Issuer>,
    authenticator: Authenticator,
    _dir: tempfile::TempDir,
}

fn setup(objects: Objects) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, clock) = ambient(1);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let issuer = Arc::new(Issuer::open(&pki, "https://issuer", &["api".to_owned()]).unwrap());
    let authenticator = Authenticator::new(issuer.clone(), Arc::new(objects), &ambient);
    Setup { pki, clock, issuer, authenticator, _dir: dir }
}

fn account() -> Objects {
    Objects::default().with(BoundKind::ServiceAccount, "ns", "bot", "u1")
}

fn claims(uid: &str) -> KubernetesClaims {
    let service_account = NamedUid { name: "bot".to_owned(), uid: uid.to_owned() };
    KubernetesClaims { namespace: "ns".to_owned(), service_account, pod: None, secret: None, node: None }
}

fn bearer(token: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("Bearer {token}")).unwrap()
}

#[test]
fn a_certificate_names_user_and_groups() {
    let setup = setup(Objects::default());
    let pair = setup.pki.issue(&Subject::client("system:node:a", &["system:nodes"])).unwrap();
    let certificate = certificates(&pair.certificate).remove(0);
    // A certificate takes precedence over a token, even a bad one.
    let identity = setup.authenticator.authenticate(Some(&certificate), Some(&bearer("rubbish"))).unwrap();
    assert_eq!(identity.user, "system:node:a");
    assert_eq!(identity.groups, ["system:nodes", "system:authenticated"]);
    assert!(identity.extra[0].1[0].starts_with("X509SHA256="));
    setup.clock.advance(366 * 24 * 3600);
    let error = setup.authenticator.authenticate(Some(&certificate), None).unwrap_err();
    assert_eq!((error.code, error.reason), (401, "Unauthorized"), "a connection may outlive its certificate");
}

#[test]
fn the_certificate_that_kubelets_are_called_with_opens_no_api_server() {
    let setup = setup(Objects::default());
    for groups in [&[][..], &["system:masters"], &["system:nodes"]] {
        let pair = setup.pki.issue(&Subject::client(KUBELET_CLIENT, groups)).unwrap();
        let certificate = certificates(&pair.certificate).remove(0);
        let error = setup.authenticator.authenticate(Some(&certificate), None).unwrap_err();
        assert_eq!((error.code, error.reason), (401, "Unauthorized"), "{groups:?}");
    }
}

#[test]
fn a_certificate_with_several_names_identifies_no_user() {
    let setup = setup(Objects::default());
    for (first, second) in [("kubernetes-admin", "jane"), ("jane", "kubernetes-admin"), ("jane", "jane")] {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, first);
        params.distinguished_name.push(rcgen::DnType::CustomDnType(vec![2, 5, 4, 3]), second);
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let error = setup.authenticator.authenticate(Some(certificate.der()), None).unwrap_err();
        assert_eq!((error.code, error.reason), (401, "Unauthorized"), "{first}, {second}");
    }
}

#[test]
fn without_credentials_one_is_anonymous_and_with_wrong_ones_refused() {
    let setup = setup(account());
    let authenticate = |header: Option<&HeaderValue>| setup.authenticator.authenticate(None, header);
    assert_eq!(authenticate(None).unwrap(), Identity::anonymous());
    let basic = HeaderValue::from_static("Basic dTpw");
    assert_eq!(authenticate(Some(&basic)).unwrap(), Identity::anonymous(), "another scheme is not ours");
    assert_eq!(authenticate(Some(&bearer("rubbish"))).unwrap_err().code, 401);
}

#[test]
fn tokens_are_checked_at_each_use_though_their_signature_is_remembered() {
    let setup = setup(account());
    let (token, _) = setup.issuer.issue(claims("u1"), &[], 600);
    for _ in 0..2 {
        let identity = setup.authenticator.authenticate(None, Some(&bearer(&token))).unwrap();
        assert_eq!(identity.user, "system:serviceaccount:ns:bot");
    }
    assert_eq!(setup.authenticator.tokens.lock().len(), 1);
    setup.clock.advance(600);
    assert_eq!(setup.authenticator.authenticate(None, Some(&bearer(&token))).unwrap_err().code, 401);
    let (replaced, _) = setup.issuer.issue(claims("u0"), &[], 600);
    assert_eq!(setup.authenticator.authenticate(None, Some(&bearer(&replaced))).unwrap_err().code, 401);
    let (elsewhere, _) = setup.issuer.issue(claims("u1"), &["vault".to_owned()], 600);
    assert_eq!(setup.authenticator.authenticate(None, Some(&bearer(&elsewhere))).unwrap_err().code, 401);
}

#[test]
fn the_memory_of_tokens_is_bounded() {
    let setup = setup(account());
    let claims = setup.issuer.verify_any(&setup.issuer.issue(claims("u1"), &[], 600).0).unwrap();
    let user = Arc::new(TokenUser { identity: claims.identity(), claims });
    for number in 0..REMEMBERED_CREDENTIALS + 10 {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        setup.authenticator.tokens.insert(hash, user.clone(), |user| user.is_over(setup.issuer.now()));
    }
    assert_eq!(setup.authenticator.tokens.lock().len(), REMEMBERED_CREDENTIALS);
    setup.clock.advance(601);
    setup.authenticator.tokens.insert([0xff; 32], user, |user| user.is_over(setup.issuer.now()));
    assert_eq!(setup.authenticator.tokens.lock().len(), 1, "expired ones go first");
}

#[test]
fn token_review_tells_who_and_for_whom() {
    let setup = setup(account());
    let (token, _) = setup.issuer.issue(claims("u1"), &["api".to_owned(), "vault".to_owned()], 600);
    let review = |token: &str, audiences: Value| {
        let review = json!({"spec": {"token": token, "audiences": audiences}});
        setup.authenticator.token_review(&review).unwrap()["status"].clone()
    };
    let status = review(&token, Value::Null);
    assert_eq!(status["authenticated"], true);
    assert_eq!(status["user"]["username"], "system:serviceaccount:ns:bot");
    assert_eq!(status["user"]["uid"], "u1");
    assert_eq!(status["audiences"], json!(["api"]));
    assert_eq!(review(&token, json!(["vault", "other"]))["audiences"], json!(["vault"]));
    let refused = review(&token, json!(["other"]));
    assert!(refused.get("authenticated").is_none());
    assert!(refused["error"].as_str().unwrap().contains("vault"));
    assert_eq!(setup.authenticator.token_review(&json!({"spec": {}})).unwrap_err().code, 400);
}

/// The ServiceAccount `bot`, and its Secret.
struct Held(Mutex<Option<TokenSecret>>);

impl BoundObjects for Held {
    fn lookup(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject> {
        account().lookup(kind, namespace, name)
    }

    fn token_secret(&self, namespace: &str, name: &str) -> Option<TokenSecret> {
        self.0.lock().unwrap().clone().filter(|_| (namespace, name) == ("ns", "bot-token"))
    }
}

#[tokio::test]
async fn tokens_of_secrets_are_checked_and_counted_at_each_use_and_are_for_the_api_server_alone() {
    let Setup { issuer, clock, _dir, .. } = setup(Objects::default());
    let bot = NamedUid { name: "bot".to_owned(), uid: "u1".to_owned() };
    let token = issuer.issue_for_secret("ns", &bot, "bot-token");
    let secret = TokenSecret { token: token.clone().into_bytes(), ..TokenSecret::default() };
    let held = Arc::new(Held(Mutex::new(Some(secret))));
    let authenticator = Authenticator::new(issuer, held.clone(), &apiserver_meta::seeded::ambient(1).0);
    for _ in 0..2 {
        let identity = authenticator.authenticate(None, Some(&bearer(&token))).unwrap();
        assert_eq!(identity.user, "system:serviceaccount:ns:bot");
        clock.advance(365 * 24 * 3600);
    }
    assert_eq!(authenticator.tokens.lock().len(), 1);
    assert_eq!(authenticator.uses().next().await, [("ns".to_owned(), "bot-token".to_owned())].into());
    let today = apiserver_meta::time::day(apiserver_meta::seeded::ambient(1).0.now());
    held.0.lock().unwrap().as_mut().unwrap().last_used = today;
    authenticator.authenticate(None, Some(&bearer(&token))).unwrap();
    let next = tokio::time::timeout(std::time::Duration::ZERO, authenticator.uses().next()).await;
    assert!(next.is_err(), "the day is recorded already");
    let review = |audiences: Value| {
        let review = json!({"spec": {"token": token, "audiences": audiences}});
        authenticator.token_review(&review).unwrap()["status"].clone()
    };
    assert_eq!(review(Value::Null)["audiences"], json!(["api"]));
    assert!(review(json!(["vault"])).get("authenticated").is_none());
    *held.0.lock().unwrap() = None;
    let error = authenticator.authenticate(None, Some(&bearer(&token))).unwrap_err();
    assert_eq!((error.code, error.reason), (401, "Unauthorized"), "the signature alone is worth nothing");
}

/// The Secret of the token `abcdef.0123456789abcdef`.
struct OneToken;

impl BootstrapSecrets for OneToken {
    fn secret(&self, name: &str) -> Option<Value> {
        use base64::Engine as _;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        (name == "bootstrap-token-abcdef").then(|| {
            json!({"type": "bootstrap.kubernetes.io/token", "data": {
                "token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"),
                "usage-bootstrap-authentication": encode("true"),
            }})
        })
    }
}

#[test]
fn bootstrap_tokens_count_only_where_they_are_accepted() {
    let setup = setup(Objects::default());
    let token = bearer("abcdef.0123456789abcdef");
    assert_eq!(setup.authenticator.authenticate(None, Some(&token)).unwrap_err().code, 401);
    let authenticator = setup.authenticator.with_bootstrap_tokens(Arc::new(OneToken));
    let identity = authenticator.authenticate(None, Some(&token)).unwrap();
    assert_eq!(identity.user, "system:bootstrap:abcdef");
    let wrong = bearer("abcdef.0123456789abcdeg");
    assert_eq!(authenticator.authenticate(None, Some(&wrong)).unwrap_err().code, 401);
    // Nothing of it is remembered.
    assert!(authenticator.tokens.lock().is_empty());
    let review = |audiences: Value| {
        let spec = json!({"token": "abcdef.0123456789abcdef", "audiences": audiences});
        authenticator.token_review(&json!({"spec": spec})).unwrap()["status"].clone()
    };
    let answer = review(json!([]));
    assert_eq!((&answer["authenticated"], &answer["audiences"]), (&json!(true), &json!(["api"])));
    assert_eq!(answer["user"]["username"], "system:bootstrap:abcdef");
    assert!(review(json!(["vault"])).get("authenticated").is_none(), "it is for the API server alone");
}
