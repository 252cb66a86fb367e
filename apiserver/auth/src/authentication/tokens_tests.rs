//! Tests of tokens: those that are issued are accepted, and no others.

use std::collections::BTreeMap;

use super::*;
use apiserver_meta::seeded::{START, TestClock, ambient};
use std::sync::Arc;

const URL: &str = "https://kubernetes.default.svc.cluster.local";

/// Objects by kind, namespace and name.
#[derive(Default)]
pub(in crate::authentication) struct Objects(
    pub(in crate::authentication) BTreeMap<(BoundKind, String, String), BoundObject>,
);

impl Objects {
    pub(in crate::authentication) fn with(
        mut self,
        kind: BoundKind,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Self {
        let mut object = BoundObject { uid: uid.to_owned(), ..BoundObject::default() };
        if kind == BoundKind::Pod {
            object.service_account = "web".to_owned();
            object.node_name = "node-a".to_owned();
        }
        self.0.insert((kind, namespace.to_owned(), name.to_owned()), object);
        self
    }
}

impl BoundObjects for Objects {
    fn lookup(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject> {
        self.0.get(&(kind, namespace.to_owned(), name.to_owned())).cloned()
    }

    fn token_secret(&self, _: &str, _: &str) -> Option<TokenSecret> {
        None
    }
}

/// Returns a token with any claims, signed by an issuer.
pub(super) fn sealed(issuer: &Issuer, claims: &Value) -> String {
    issuer.sign(claims)
}

fn all_objects() -> Objects {
    Objects::default()
        .with(BoundKind::ServiceAccount, "shop", "web", "sa-1")
        .with(BoundKind::Pod, "shop", "web-0", "pod-1")
        .with(BoundKind::Node, "", "node-a", "node-1")
}

pub(super) fn issuer(seed: u64) -> (Issuer, Arc<TestClock>) {
    let (ambient, clock) = ambient(seed);
    let mut bytes = [7_u8; 32];
    bytes[31] = seed as u8;
    let signer = TokenSigner::Es256(p256::ecdsa::SigningKey::from_slice(&bytes).unwrap());
    (Issuer::new(signer, &[URL.to_owned()], &[], &ambient), clock)
}

fn claims() -> KubernetesClaims {
    let named = |name: &str, uid: &str| NamedUid { name: name.to_owned(), uid: uid.to_owned() };
    KubernetesClaims {
        namespace: "shop".to_owned(),
        service_account: named("web", "sa-1"),
        pod: Some(named("web-0", "pod-1")),
        secret: None,
        node: Some(named("node-a", "node-1")),
    }
}

fn service_account() -> Value {
    json!({"metadata": {"namespace": "shop", "name": "web", "uid": "sa-1"}})
}

#[test]
fn a_token_carries_the_account_and_what_it_is_bound_to() {
    let (issuer, _) = issuer(1);
    let (token, expiration) = issuer.issue(claims(), &[], 600);
    assert_eq!(expiration.as_second(), START + 600);
    let claims = issuer.verify(&token).unwrap();
    assert_eq!(claims.aud, [URL]);
    let identity = claims.identity();
    assert_eq!(identity.user, "system:serviceaccount:shop:web");
    assert_eq!(identity.uid, "sa-1");
    let groups = ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"];
    assert_eq!(identity.groups, groups);
    let extra: BTreeMap<_, _> = identity.extra.into_iter().collect();
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["web-0"]);
    assert_eq!(extra["authentication.kubernetes.io/node-uid"], ["node-1"]);
}

#[test]
fn every_changed_character_is_noticed() {
    let (issuer, _) = issuer(2);
    let (token, _) = issuer.issue(claims(), &[], 600);
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(issuer.verify(&changed).is_err(), "character {at}");
    }
    assert!(issuer.verify(&token).is_ok());
}

#[test]
fn neither_another_key_nor_another_algorithm_is_accepted() {
    let (issuer, _) = issuer(3);
    let (token, _) = super::tests::issuer(4).0.issue(claims(), &[], 600);
    assert_eq!(issuer.verify(&token), Err(TokenError::Signature));
    let (token, _) = issuer.issue(claims(), &[], 600);
    let payload = token.split('.').nth(1).unwrap();
    for algorithm in ["none", "HS256", "RS256"] {
        let header = BASE64.encode(json!({"alg": algorithm, "kid": issuer.keys[0].id}).to_string());
        assert_eq!(issuer.verify(&format!("{header}.{payload}.")), Err(TokenError::Malformed));
    }
    for garbage in ["", "a", "a.b", "a.b.c", "....", &"x".repeat(TOKEN_BYTES + 1)] {
        assert_eq!(issuer.verify(garbage), Err(TokenError::Malformed));
    }
}

#[test]
fn another_issuers_claims_are_refused_even_with_our_signature() {
    let (issuer, _) = issuer(5);
    let (token, _) = issuer.issue(claims(), &[], 600);
    let mut forged = json!(issuer.verify(&token).unwrap());
    forged["iss"] = json!("https://elsewhere");
    assert_eq!(issuer.verify(&issuer.sign(&forged)), Err(TokenError::Issuer("https://elsewhere".to_owned())));
    forged["iss"] = json!(URL);
    forged["sub"] = json!("system:serviceaccount:kube-system:admin");
    assert_eq!(issuer.verify(&issuer.sign(&forged)), Err(TokenError::Malformed));
}

#[test]
fn time_ends_a_token() {
    let (issuer, clock) = issuer(6);
    let (token, _) = issuer.issue(claims(), &[], 600);
    clock.advance(599);
    assert!(issuer.verify(&token).is_ok());
    clock.advance(1);
    assert_eq!(issuer.verify(&token), Err(TokenError::Expired));
    clock.advance(-1000);
    assert_eq!(issuer.verify(&token), Err(TokenError::NotYetValid));
}

#[test]
fn a_token_ends_with_what_it_is_bound_to() {
    let (issuer, _) = issuer(7);
    let claims = issuer.verify(&issuer.issue(claims(), &[], 600).0).unwrap();
    assert_eq!(claims.check_bound(&all_objects(), START), Ok(()));
    let gone = |kind: BoundKind, namespace: &str, name: &str| {
        let mut objects = all_objects();
        objects.0.remove(&(kind, namespace.to_owned(), name.to_owned()));
        claims.check_bound(&objects, START)
    };
    assert!(gone(BoundKind::ServiceAccount, "shop", "web").is_err());
    assert!(gone(BoundKind::Pod, "shop", "web-0").is_err());
    assert_eq!(gone(BoundKind::Node, "", "node-a"), Ok(()), "bound through its pod only");
    let replaced = all_objects().with(BoundKind::Pod, "shop", "web-0", "pod-2");
    assert_eq!(
        claims.check_bound(&replaced, START),
        Err(TokenError::Gone { kind: "Pod", name: "web-0".to_owned() })
    );
}

#[test]
fn a_token_ends_a_minute_after_what_it_is_bound_to_was_to_be_deleted() {
    let (issuer, _) = issuer(12);
    let named = |name: &str, uid: &str| Some(NamedUid { name: name.to_owned(), uid: uid.to_owned() });
    let unbound = KubernetesClaims { pod: None, node: None, ..claims() };
    let to_secret = KubernetesClaims { secret: named("s", "secret-1"), ..unbound.clone() };
    let to_node = KubernetesClaims { node: named("node-a", "node-1"), ..unbound.clone() };
    for (bound, kind, namespace, name, uid) in [
        (&claims(), BoundKind::Pod, "shop", "web-0", "pod-1"),
        (&claims(), BoundKind::ServiceAccount, "shop", "web", "sa-1"),
        (&to_secret, BoundKind::Secret, "shop", "s", "secret-1"),
        (&to_node, BoundKind::Node, "", "node-a", "node-1"),
    ] {
        let claims = issuer.verify(&issuer.issue(bound.clone(), &[], 600).0).unwrap();
        let mut objects = all_objects().with(kind, namespace, name, uid);
        let key = (kind, namespace.to_owned(), name.to_owned());
        assert_eq!(claims.check_bound(&objects, START), Ok(()), "{kind:?}");
        objects.0.get_mut(&key).unwrap().deleted = Some(START);
        assert_eq!(claims.check_bound(&objects, START - 30), Ok(()), "{kind:?} within its grace period");
        assert_eq!(claims.check_bound(&objects, START + 60), Ok(()), "{kind:?} within the leeway");
        let gone = Err(TokenError::Gone { kind: kind.as_str(), name: name.to_owned() });
        assert_eq!(claims.check_bound(&objects, START + 61), gone, "{kind:?}");
    }
}

#[test]
fn the_time_of_a_deletion_is_read_from_the_metadata() {
    let object = |time: &str| json!({"metadata": {"uid": "u", "deletionTimestamp": time}});
    assert_eq!(BoundObject::of(&json!({"metadata": {"uid": "u"}})).deleted, None);
    assert_eq!(BoundObject::of(&object("1970-01-01T00:01:00Z")).deleted, Some(60));
    assert_eq!(BoundObject::of(&object("soon")).deleted, Some(i64::MIN), "not for ever");
}

#[test]
fn token_request_answers_with_a_bound_token() {
    let (issuer, _) = issuer(8);
    let request = json!({"spec": {
        "audiences": ["vault"], "expirationSeconds": 1200,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "web-0", "uid": "pod-1"},
    }});
    let answer = issuer.token_request(&service_account(), &request, &all_objects()).unwrap();
    assert_eq!(answer["kind"], "TokenRequest");
    assert_eq!(answer["status"]["expirationTimestamp"], "2026-11-21T00:20:00Z");
    assert_eq!(answer["spec"]["boundObjectRef"]["name"], "web-0");
    let claims = issuer.verify(answer["status"]["token"].as_str().unwrap()).unwrap();
    assert_eq!(claims.aud, ["vault"]);
    assert_eq!(claims.exp, START + 1200);
    assert_eq!(claims.kubernetes, self::claims());

    let plain = issuer.token_request(&service_account(), &json!({"spec": {}}), &all_objects()).unwrap();
    assert_eq!(plain["spec"], json!({"audiences": [URL], "expirationSeconds": 3600}));
}

#[test]
fn token_request_refuses_what_cannot_be_bound() {
    let (issuer, _) = issuer(9);
    let refused = |spec: Value| {
        issuer.token_request(&service_account(), &json!({"spec": spec}), &all_objects()).unwrap_err()
    };
    let error = refused(json!({"expirationSeconds": 599}));
    assert_eq!(error.code, 422);
    assert!(error.message.contains(
        "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
    ));
    assert_eq!(refused(json!({"expirationSeconds": (1_i64 << 32) + 1})).code, 422);
    assert_eq!(refused(json!({"audiences": [""]})).code, 422);
    let bound = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}});
    assert_eq!(refused(bound("Pod", "web-9", "")).code, 404);
    assert_eq!(refused(bound("Pod", "web-0", "pod-0")).code, 409);
    assert_eq!(refused(bound("ConfigMap", "web-0", "")).code, 400);
    let mut objects = all_objects();
    for object in objects.0.values_mut() {
        object.service_account = "other".to_owned();
    }
    let request = json!({"spec": bound("Pod", "web-0", "")});
    assert_eq!(issuer.token_request(&service_account(), &request, &objects).unwrap_err().code, 400);
}

#[test]
fn the_published_key_verifies_tokens() {
    let (issuer, _) = issuer(10);
    let (token, _) = issuer.issue(claims(), &[], 600);
    let jwks = issuer.jwks();
    let key = &jwks["keys"][0];
    let coordinate = |name: &str| BASE64.decode(key[name].as_str().unwrap()).unwrap();
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point)
        .verify(signed.as_bytes(), &BASE64.decode(signature).unwrap())
        .unwrap();
    let header: Value =
        serde_json::from_slice(&BASE64.decode(token.split('.').next().unwrap()).unwrap()).unwrap();
    assert_eq!(header["kid"], key["kid"]);
    assert!(issuer.is_discoverable());
    let discovery = issuer.discovery("https://1.2.3.4:6443/openid/v1/jwks");
    assert_eq!(discovery["issuer"], URL);
    assert_eq!(discovery["jwks_uri"], "https://1.2.3.4:6443/openid/v1/jwks");
    assert_eq!(discovery["id_token_signing_alg_values_supported"], json!(["ES256"]));
}
