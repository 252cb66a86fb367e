//! Tokens of Secrets: they end with their Secret, and nobody makes others.

use super::super::tests::{issuer, sealed};
use super::*;
use crate::authentication::tokens::{BoundObject, Verified};
use serde_json::Value;

/// A namespace with one ServiceAccount and one Secret.
struct Shop {
    account: Option<BoundObject>,
    secret: Option<TokenSecret>,
}

impl BoundObjects for Shop {
    fn lookup(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject> {
        let is_account = kind == BoundKind::ServiceAccount && (namespace, name) == ("shop", "web");
        self.account.clone().filter(|_| is_account)
    }

    fn token_secret(&self, namespace: &str, name: &str) -> Option<TokenSecret> {
        self.secret.clone().filter(|_| (namespace, name) == ("shop", "web-token"))
    }
}

fn account() -> NamedUid {
    NamedUid { name: "web".to_owned(), uid: "sa-1".to_owned() }
}

fn shop(token: &str) -> Shop {
    let account = BoundObject { uid: "sa-1".to_owned(), ..BoundObject::default() };
    let secret = TokenSecret { token: token.as_bytes().to_vec(), ..TokenSecret::default() };
    Shop { account: Some(account), secret: Some(secret) }
}

fn claims(verified: Verified) -> SecretClaims {
    let Verified::OfSecret(claims) = verified else { panic!("{verified:?}") };
    claims
}

#[test]
fn token_of_a_secret_has_the_claims_of_kubernetes_and_stands_for_its_account() {
    let (issuer, clock) = issuer(1);
    let token = issuer.issue_for_secret("shop", &account(), "web-token");
    clock.advance(10 * 365 * 24 * 3600);
    let claims = claims(issuer.verify_any(&token).unwrap());
    let expected = json!({
        "iss": "kubernetes/serviceaccount",
        "sub": "system:serviceaccount:shop:web",
        "kubernetes.io/serviceaccount/namespace": "shop",
        "kubernetes.io/serviceaccount/secret.name": "web-token",
        "kubernetes.io/serviceaccount/service-account.name": "web",
        "kubernetes.io/serviceaccount/service-account.uid": "sa-1",
    });
    assert_eq!(json!(claims), expected);
    let identity = claims.identity();
    assert_eq!((identity.user.as_str(), identity.uid.as_str()), ("system:serviceaccount:shop:web", "sa-1"));
    let groups = ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"];
    assert_eq!((identity.groups, identity.extra), (groups.map(str::to_owned).to_vec(), Vec::new()));
    assert_eq!(claims.check_held(&token, &shop(&token)), Ok(shop(&token).secret.unwrap()));
    // It is no token that is bound to time.
    assert!(issuer.verify(&token).is_err());
}

#[test]
fn token_ends_with_its_secret_and_its_account() {
    let (issuer, _) = issuer(1);
    let token = issuer.issue_for_secret("shop", &account(), "web-token");
    let claims = claims(issuer.verify_any(&token).unwrap());
    let outcome = |change: &dyn Fn(&mut Shop)| {
        let mut shop = shop(&token);
        change(&mut shop);
        claims.check_held(&token, &shop).unwrap_err()
    };
    let secret = TokenError::Gone { kind: "Secret", name: "web-token".to_owned() };
    assert_eq!(outcome(&|shop| shop.secret = None), secret);
    assert_eq!(outcome(&|shop| shop.secret.as_mut().unwrap().deleted = true), secret);
    // The Secret was made anew, or its token was replaced.
    let other = TokenError::NotHeld { secret: "web-token".to_owned() };
    assert_eq!(outcome(&|shop| shop.secret.as_mut().unwrap().token.clear()), other);
    assert_eq!(outcome(&|shop| shop.secret.as_mut().unwrap().token.push(b'x')), other);
    let account = TokenError::Gone { kind: "ServiceAccount", name: "web".to_owned() };
    assert_eq!(outcome(&|shop| shop.account = None), account);
    assert_eq!(outcome(&|shop| shop.account.as_mut().unwrap().uid = "sa-2".to_owned()), account);
    assert_eq!(outcome(&|shop| shop.account.as_mut().unwrap().deleted = Some(i64::MAX)), account);
    let marked = outcome(&|shop| shop.secret.as_mut().unwrap().invalid_since = "2026-01-01".to_owned());
    assert_eq!(
        marked.to_string(),
        "the token in secret shop/web-token for service account shop/web has been marked invalid. Use tokens \
         from the TokenRequest API or manually created secret-based tokens, or remove the \
         'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
    );
}

/// An attacker can write into a Secret, but nothing that we signed; and what we sign for others is no such token.
#[test]
fn forged_and_incomplete_tokens_are_refused() {
    let (ours, _) = issuer(1);
    let (theirs, _) = issuer(2);
    let forged = theirs.issue_for_secret("shop", &account(), "web-token");
    assert_eq!(ours.verify_any(&forged).unwrap_err(), TokenError::Signature);
    let good = json!(SecretClaims::new("shop", &account(), "web-token"));
    let changed = |key: &str, value: Value| {
        let mut claims = good.clone();
        claims[key] = value;
        ours.verify_any(&sealed(&ours, &claims)).unwrap_err()
    };
    assert_eq!(changed("sub", json!("system:serviceaccount:kube-system:admin")), TokenError::Malformed);
    for part in ["secret.name", "service-account.uid", "namespace"] {
        assert_eq!(
            changed(&format!("kubernetes.io/serviceaccount/{part}"), json!("")),
            TokenError::Malformed
        );
    }
    assert_eq!(changed("iss", json!("elsewhere")), TokenError::Issuer("elsewhere".to_owned()));
    let mut without = good;
    without.as_object_mut().unwrap().remove("kubernetes.io/serviceaccount/secret.name");
    assert_eq!(ours.verify_any(&sealed(&ours, &without)).unwrap_err(), TokenError::Malformed);
}

#[test]
fn tokens_that_are_signed_elsewhere_with_the_same_key_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (ambient, _) = apiserver_meta::seeded::ambient(1);
    let pki = Pki::open(dir.path(), &ambient).unwrap();
    let issuer = Issuer::open(&pki, "https://issuer", &[]).unwrap();
    let expected = issuer.issue_for_secret("shop", &account(), "web-token");
    let tokens = SecretTokens::open(&pki).unwrap();
    assert_eq!(tokens.issue("shop", &account(), "web-token"), expected);
    let tokens = SecretTokens::read(&dir.path().join("sa.key")).unwrap();
    assert_eq!(tokens.issue("shop", &account(), "web-token"), expected);
    assert!(SecretTokens::read(&dir.path().join("ca.crt")).is_err());
}
