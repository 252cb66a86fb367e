//! Client certificates and bearer tokens to identities.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_kinds::certificate::CertificateUser;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_meta::time;
use apiserver_schema::error::ApiError;
use http::HeaderValue;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::bootstrap::{BootstrapSecrets, BootstrapToken};
use super::pki::KUBELET_CLIENT;
use super::tokens::{BoundObjects, Issuer, TokenError, Verified};
use super::uses::TokenUses;
use crate::limits::REMEMBERED_CREDENTIALS;

/// A bounded memory of credentials.
struct Memory<K, V>(Mutex<BTreeMap<K, V>>);

impl<K: Ord, V: Clone> Memory<K, V> {
    fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.lock().get(key).cloned()
    }

    /// Makes room where there is none: first by what `is_over` finds to have expired, then by any.
    fn insert(&self, key: K, value: V, is_over: impl Fn(&V) -> bool) {
        let mut map = self.lock();
        if map.len() >= REMEMBERED_CREDENTIALS {
            map.retain(|_, value| !is_over(value));
        }
        if map.len() >= REMEMBERED_CREDENTIALS {
            // All are in use: forgetting one costs a signature check.
            map.pop_first();
        }
        map.insert(key, value);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<K, V>> {
        // A panic elsewhere cannot leave the map half changed. No section awaits.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The contents of a certificate; times are seconds since 1970.
struct SeenCertificate {
    identity: Identity,
    not_before: i64,
    not_after: i64,
}

/// The claims of a token and the identity that it stands for.
struct TokenUser {
    claims: Verified,
    identity: Identity,
}

impl TokenUser {
    /// Returns `true` if the token has expired.
    fn is_over(&self, now: i64) -> bool {
        matches!(&self.claims, Verified::Bound(claims) if claims.exp <= now)
    }
}

/// Determines the author of a request.
pub struct Authenticator {
    issuer: Arc<Issuer>,
    objects: Arc<dyn BoundObjects>,
    /// The Secrets of bootstrap tokens; `None` if these are not accepted.
    bootstrap: Option<Arc<dyn BootstrapSecrets>>,
    ambient: Ambient,
    uses: Arc<TokenUses>,
    /// Tokens whose signature was right, by their hash. Expiry and bound objects are checked at
    /// each use; only the signature is not computed again.
    tokens: Memory<[u8; 32], Arc<TokenUser>>,
    /// Certificates by their bytes, whose serial number comes early in a comparison.
    certificates: Memory<Vec<u8>, Arc<SeenCertificate>>,
}

impl Authenticator {
    /// An authenticator over the issuer's tokens and the server's cache of objects.
    pub fn new(issuer: Arc<Issuer>, objects: Arc<dyn BoundObjects>, ambient: &Ambient) -> Self {
        let (tokens, certificates) = (Memory(Mutex::default()), Memory(Mutex::default()));
        let (uses, ambient) = (Arc::default(), ambient.clone());
        Self { issuer, objects, bootstrap: None, ambient, uses, tokens, certificates }
    }

    /// Accepts bootstrap tokens as well, whose Secrets are among `secrets`.
    pub fn with_bootstrap_tokens(mut self, secrets: Arc<dyn BootstrapSecrets>) -> Self {
        self.bootstrap = Some(secrets);
        self
    }

    /// Returns the uses of tokens in Secrets.
    pub fn uses(&self) -> &Arc<TokenUses> {
        &self.uses
    }

    /// Returns the identity of a request's author. The certificate must be one that was verified against the
    /// authorities; it takes precedence over a token. Wrong credentials are a 401; a request without any is
    /// from `system:anonymous`.
    pub fn authenticate(
        &self,
        peer_certificate: Option<&CertificateDer<'_>>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Identity, ApiError> {
        if let Some(certificate) = peer_certificate {
            return self.certificate_identity(certificate);
        }
        let Some(token) = authorization.and_then(bearer_token) else { return Ok(Identity::anonymous()) };
        self.verify_any(token, self.issuer.audiences()).map(|(identity, _)| identity).map_err(|error| {
            tracing::debug!(%error, "refused a bearer token");
            unauthorized()
        })
    }

    /// The user of a verified client certificate: CN is the name, each O a group. 401 if it has
    /// expired since the handshake, names nobody, or is that of the API server towards kubelets.
    pub fn certificate_identity(&self, certificate: &CertificateDer<'_>) -> Result<Identity, ApiError> {
        let now = self.ambient.now().as_second();
        let user = self.certificate_user(certificate).ok_or_else(unauthorized)?;
        if now > user.not_after || now < user.not_before {
            return Err(unauthorized());
        }
        Ok(user.identity.clone())
    }

    /// Returns for how many seconds a verified client certificate is still valid, if it names a user.
    pub fn seconds_left(&self, certificate: &CertificateDer<'_>) -> Option<f64> {
        let user = self.certificate_user(certificate)?;
        Some((user.not_after - self.ambient.now().as_second()) as f64)
    }

    /// Returns the contents of a certificate, from the cache if it was seen before.
    fn certificate_user(&self, certificate: &CertificateDer<'_>) -> Option<Arc<SeenCertificate>> {
        if let Some(user) = self.certificates.get(certificate.as_ref()) {
            return Some(user);
        }
        let now = self.ambient.now().as_second();
        let user = Arc::new(certificate_user(certificate)?);
        self.certificates.insert(certificate.to_vec(), user.clone(), |user| user.not_after < now);
        Some(user)
    }

    /// Answers a `TokenReview`: the review with its status.
    pub fn token_review(&self, review: &Value) -> Result<Value, ApiError> {
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        if token.is_empty() {
            return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
        }
        let wanted: Vec<String> = review["spec"]["audiences"]
            .as_array()
            .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .filter(|list: &Vec<String>| !list.is_empty())
            .unwrap_or_else(|| self.issuer.audiences().to_vec());
        let mut answer = review.clone();
        answer["kind"] = json!("TokenReview");
        answer["apiVersion"] = json!("authentication.k8s.io/v1");
        if !answer["metadata"].is_object() {
            answer["metadata"] = json!({});
        }
        answer["status"] = match self.verify_any(token, &wanted) {
            Ok((identity, audiences)) => json!({
                "authenticated": true, "user": user_info(&identity), "audiences": audiences,
            }),
            Err(error) => json!({"user": {}, "error": error.to_string()}),
        };
        Ok(answer)
    }

    /// The user of a good token of any kind for one of `audiences`, with those of them it is for.
    fn verify_any(&self, token: &str, audiences: &[String]) -> Result<(Identity, Vec<String>), TokenError> {
        let (Some(secrets), Some(bootstrap)) = (&self.bootstrap, BootstrapToken::parse(token)) else {
            return self
                .verify_token(token, audiences)
                .map(|(user, audiences)| (user.identity.clone(), audiences));
        };
        // Such a token is for the API server alone.
        let own = self.issuer.audiences();
        let common: Vec<String> = audiences.iter().filter(|a| own.contains(a)).cloned().collect();
        if common.is_empty() {
            return Err(TokenError::Audience(own.to_vec()));
        }
        Ok((bootstrap.authenticate(secrets.as_ref(), self.ambient.now())?, common))
    }

    /// The claims of a good token for one of `audiences`, with those of them it is for.
    fn verify_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(Arc<TokenUser>, Vec<String>), TokenError> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let user = match self.tokens.get(&hash) {
            Some(user) => {
                if let Verified::Bound(claims) = &user.claims {
                    self.issuer.check_times(claims)?;
                }
                user
            }
            None => {
                let claims = self.issuer.verify_any(token)?;
                let user = Arc::new(TokenUser { identity: claims.identity(), claims });
                let now = self.issuer.now();
                self.tokens.insert(hash, user.clone(), |user| user.is_over(now));
                user
            }
        };
        let own = match &user.claims {
            Verified::Bound(claims) => &claims.aud,
            // Those of Secrets are for the API server alone.
            Verified::OfSecret(_) => self.issuer.audiences(),
        };
        let common: Vec<String> = own.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if common.is_empty() {
            return Err(TokenError::Audience(own.to_vec()));
        }
        match &user.claims {
            Verified::Bound(claims) => claims.check_bound(&*self.objects, self.issuer.now())?,
            Verified::OfSecret(claims) => {
                let secret = claims.check_held(token, &*self.objects)?;
                if secret.last_used != time::day(self.ambient.now()) {
                    self.uses.add(&claims.namespace, &claims.secret);
                }
            }
        }
        Ok((user, common))
    }
}

fn certificate_user(certificate: &CertificateDer<'_>) -> Option<SeenCertificate> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let user = match named(&parsed) {
        Ok(user) => user,
        Err(why) => {
            tracing::debug!(why, "refused a client certificate");
            return None;
        }
    };
    let groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
    let mut identity = Identity::authenticated(&user.name, &groups);
    let digest: String = Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect();
    let credential =
        ("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("X509SHA256={digest}")]);
    identity.extra.push(credential);
    let validity = parsed.validity();
    let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Some(SeenCertificate { identity, not_before, not_after })
}

/// Returns the user that a certificate names, or the reason why it is not accepted here.
fn named(certificate: &X509Certificate<'_>) -> Result<CertificateUser, String> {
    let user = CertificateUser::of(certificate).map_err(|error| error.to_string())?;
    // A request under this name went to a kubelet, and was made to come here.
    if user.name == KUBELET_CLIENT {
        return Err("it is the one that kubelets are called with".to_owned());
    }
    Ok(user)
}

/// `userInfo` as reviews and admission spell it.
pub fn user_info(identity: &Identity) -> Value {
    let mut info = json!({"username": identity.user, "groups": identity.groups});
    if !identity.uid.is_empty() {
        info["uid"] = json!(identity.uid);
    }
    if !identity.extra.is_empty() {
        let extra: serde_json::Map<String, Value> =
            identity.extra.iter().map(|(key, values)| (key.clone(), json!(values))).collect();
        info["extra"] = Value::Object(extra);
    }
    info
}

fn bearer_token(header: &HeaderValue) -> Option<&str> {
    let text = header.to_str().ok()?.trim();
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn unauthorized() -> ApiError {
    ApiError::new(401, "Unauthorized", "Unauthorized")
}

#[cfg(test)]
#[path = "authenticator_tests.rs"]
mod tests;
