//! ServiceAccount tokens: JSON web tokens signed with ES256 or RS256, bound to objects that must still
//! exist, and the two OpenID documents with which others can verify them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_schema::meta;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bootstrap::BootstrapError;
use super::keys::{TokenSigner, VerifyingKey};
use super::pki::{Pki, PkiError};
use crate::limits::TOKEN_BYTES;

mod request;
mod secret;

pub use secret::{SecretClaims, SecretTokens, TokenSecret};

/// The tolerance in seconds by which a token may begin later than our clock says, and is valid after the
/// deletion of the object that it is bound to.
const LEEWAY: i64 = 60;
const USER_PREFIX: &str = "system:serviceaccount:";

/// The reason why a token was not accepted. The client is only told 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("invalid bearer token")]
    Malformed,
    #[error("the token's signature does not match")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("invalid bearer token")]
    Issuer(String),
    #[error("the token is meant for {0:?}")]
    Audience(Vec<String>),
    #[error("the {kind} {name} that the token is bound to is gone")]
    Gone { kind: &'static str, name: String },
    #[error("the Secret {secret} holds another token")]
    NotHeld { secret: String },
    #[error(
        "the token in secret {namespace}/{secret} for service account {namespace}/{account} has been marked \
         invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the \
         'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
    )]
    MarkedInvalid { namespace: String, secret: String, account: String },
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

/// The kinds that a token can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundKind {
    ServiceAccount,
    Pod,
    Secret,
    Node,
}

impl BoundKind {
    /// Returns the name of the kind, such as `Pod`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Pod => "Pod",
            Self::Secret => "Secret",
            Self::Node => "Node",
        }
    }
}

/// The facts about an object that the validation of tokens needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundObject {
    /// `metadata.uid`
    pub uid: String,
    /// `spec.serviceAccountName` of a pod, otherwise empty.
    pub service_account: String,
    /// `spec.nodeName` of a pod, otherwise empty.
    pub node_name: String,
    /// `metadata.deletionTimestamp` in seconds since 1970, of an object that is being deleted: for a pod the end
    /// of its grace period.
    pub deleted: Option<i64>,
}

impl BoundObject {
    /// From the whole object.
    pub fn of(object: &Value) -> Self {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            uid: text("/metadata/uid"),
            service_account: text("/spec/serviceAccountName"),
            node_name: text("/spec/nodeName"),
            deleted: deleted(object),
        }
    }
}

/// Returns the time at which an object is or was to be deleted, in seconds since 1970. A time that cannot be
/// parsed counts as past.
pub fn deleted(object: &Value) -> Option<i64> {
    let time = meta::deletion_timestamp(object)?;
    Some(time.parse::<Timestamp>().map_or(i64::MIN, Timestamp::as_second))
}

/// The part of the server's cache that tokens look into. `namespace` is empty for nodes.
pub trait BoundObjects: Send + Sync {
    /// The object as it is now, `None` if there is none.
    fn lookup(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject>;

    /// The Secret of this name as it is now, `None` if there is none.
    fn token_secret(&self, namespace: &str, name: &str) -> Option<TokenSecret>;
}

/// A name with the uid it had when the token was issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedUid {
    pub name: String,
    pub uid: String,
}

/// The claim `kubernetes.io`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    pub namespace: String,
    #[serde(rename = "serviceaccount")]
    pub service_account: NamedUid,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<NamedUid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<NamedUid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NamedUid>,
}

/// All claims of a token; times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    pub nbf: i64,
    pub sub: String,
}

impl Claims {
    /// The user that the token stands for.
    pub fn identity(&self) -> Identity {
        let claims = &self.kubernetes;
        let mut identity = account_identity(&self.sub, &claims.namespace, &claims.service_account.uid);
        let mut extra = |key: &str, value: String| {
            identity.extra.push((format!("authentication.kubernetes.io/{key}"), vec![value]));
        };
        extra("credential-id", format!("JTI={}", self.jti));
        if let Some(node) = &claims.node {
            extra("node-name", node.name.clone());
            extra("node-uid", node.uid.clone());
        }
        if let Some(pod) = &claims.pod {
            extra("pod-name", pod.name.clone());
            extra("pod-uid", pod.uid.clone());
        }
        identity
    }

    /// Refuses a token whose ServiceAccount or bound object is gone or was replaced, or has been due for
    /// deletion for a while at `now`.
    pub fn check_bound(&self, objects: &dyn BoundObjects, now: i64) -> Result<(), TokenError> {
        let claims = &self.kubernetes;
        let namespace = claims.namespace.as_str();
        let mut bound = vec![(BoundKind::ServiceAccount, namespace, &claims.service_account)];
        if let Some(pod) = &claims.pod {
            bound.push((BoundKind::Pod, namespace, pod));
        }
        if let Some(secret) = &claims.secret {
            bound.push((BoundKind::Secret, namespace, secret));
        }
        // A node's claim that only tells where the bound pod runs does not bind the token.
        if let (Some(node), None) = (&claims.node, &claims.pod) {
            bound.push((BoundKind::Node, "", node));
        }
        for (kind, namespace, reference) in bound {
            let found = objects.lookup(kind, namespace, &reference.name);
            let is_over = |time: i64| time < now.saturating_sub(LEEWAY);
            if found.is_none_or(|object| object.uid != reference.uid || object.deleted.is_some_and(is_over)) {
                return Err(TokenError::Gone { kind: kind.as_str(), name: reference.name.clone() });
            }
        }
        Ok(())
    }
}

/// The user that a ServiceAccount is.
fn account_identity(user: &str, namespace: &str, uid: &str) -> Identity {
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
    Identity { uid: uid.to_owned(), ..Identity::authenticated(user, &groups) }
}

/// The claims of a token of one of the two kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// Bound to a time and to objects.
    Bound(Claims),
    /// Good while a Secret holds it.
    OfSecret(SecretClaims),
}

impl Verified {
    /// The user that the token stands for.
    pub fn identity(&self) -> Identity {
        match self {
            Self::Bound(claims) => claims.identity(),
            Self::OfSecret(claims) => claims.identity(),
        }
    }
}

/// The keys with which tokens are signed and verified.
#[derive(Clone, Debug, Default)]
pub struct IssuerFiles {
    /// A private key, PEM; `sa.key` of the data directory's `pki` unless given.
    pub signing_key: Option<PathBuf>,
    /// Keys, PEM and public or private, whose tokens are good as well as those of the signing key.
    pub keys: Vec<PathBuf>,
}

/// Issues and verifies tokens.
pub struct Issuer {
    /// The first is that of new tokens, the others are accepted too. Never empty.
    urls: Vec<String>,
    audiences: Vec<String>,
    signer: TokenSigner,
    /// The signer's comes first.
    keys: Vec<VerifyingKey>,
    ambient: Ambient,
}

impl Issuer {
    /// An issuer with the key `sa.key` of `pki`. `url` becomes the claim `iss`
    /// (`https://kubernetes.default.svc.cluster.local`); `audiences` are those that the API server
    /// itself answers to, the first being the default of tokens; empty means `url` alone.
    pub fn open(pki: &Pki, url: &str, audiences: &[String]) -> Result<Self, PkiError> {
        Self::open_with(pki, &IssuerFiles::default(), &[url.to_owned()], audiences)
    }

    /// Opens an issuer with keys from files. The first of `urls`, which must not be empty, is the issuer of new
    /// tokens; tokens of the others are accepted too. Empty `audiences` mean all of `urls`. Errors name the file.
    pub fn open_with(
        pki: &Pki,
        files: &IssuerFiles,
        urls: &[String],
        audiences: &[String],
    ) -> Result<Self, PkiError> {
        let signer = match &files.signing_key {
            Some(path) => TokenSigner::read(path)?,
            None => pki.service_account_signer()?,
        };
        let mut issuer = Self::new(signer, urls, audiences, &pki.ambient);
        for path in &files.keys {
            for key in VerifyingKey::read_all(path)? {
                if !issuer.keys.contains(&key) {
                    issuer.keys.push(key);
                }
            }
        }
        Ok(issuer)
    }

    fn new(signer: TokenSigner, urls: &[String], audiences: &[String], ambient: &Ambient) -> Self {
        let keys = vec![signer.public()];
        let audiences = if audiences.is_empty() { urls.to_vec() } else { audiences.to_vec() };
        Self { urls: urls.to_vec(), audiences, signer, keys, ambient: ambient.clone() }
    }

    /// The issuer of new tokens.
    fn url(&self) -> &str {
        self.urls.first().map(String::as_str).unwrap_or_default()
    }

    /// The audiences of the API server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The present moment in seconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.ambient.now().as_second()
    }

    /// A token for what `kubernetes` names, good for `seconds` from now, with the moment at which
    /// it expires. Without audiences it is for the API server.
    pub fn issue(
        &self,
        kubernetes: KubernetesClaims,
        audiences: &[String],
        seconds: i64,
    ) -> (String, Timestamp) {
        let now = self.now();
        let claims = Claims {
            aud: if audiences.is_empty() { self.audiences.clone() } else { audiences.to_vec() },
            exp: now.saturating_add(seconds),
            iat: now,
            iss: self.url().to_owned(),
            jti: self.ambient.uid(),
            nbf: now,
            sub: format!("{USER_PREFIX}{}:{}", kubernetes.namespace, kubernetes.service_account.name),
            kubernetes,
        };
        let expiration = Timestamp::from_second(claims.exp).unwrap_or(Timestamp::MAX);
        (self.sign(&json!(claims)), expiration)
    }

    fn sign(&self, claims: &Value) -> String {
        sign(&self.signer, &self.keys[0], claims)
    }

    /// The claims of a token of ours that is bound to a time: signature, issuer and times are right. Audience and
    /// bound objects are the caller's to check.
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        match self.verify_any(token)? {
            Verified::Bound(claims) => Ok(claims),
            Verified::OfSecret(claims) => Err(TokenError::Issuer(claims.iss)),
        }
    }

    /// The claims of a token of ours of either kind: signature, issuer and times are right. Audience, bound objects and
    /// Secrets are the caller's to check.
    pub fn verify_any(&self, token: &str) -> Result<Verified, TokenError> {
        let payload = self.signed_payload(token)?;
        let Ok(claims) = serde_json::from_slice::<Claims>(&payload) else {
            return Self::claims_of_secret(&payload).map(Verified::OfSecret);
        };
        if !self.urls.contains(&claims.iss) {
            return Err(TokenError::Issuer(claims.iss));
        }
        let kubernetes = &claims.kubernetes;
        if claims.sub != format!("{USER_PREFIX}{}:{}", kubernetes.namespace, kubernetes.service_account.name)
        {
            return Err(TokenError::Malformed);
        }
        self.check_times(&claims)?;
        Ok(Verified::Bound(claims))
    }

    fn claims_of_secret(payload: &[u8]) -> Result<SecretClaims, TokenError> {
        let claims: SecretClaims = serde_json::from_slice(payload).map_err(|_| TokenError::Malformed)?;
        if claims.iss == secret::ISSUER { claims.check() } else { Err(TokenError::Issuer(claims.iss)) }
    }

    /// The payload of a token that one of our keys has signed.
    fn signed_payload(&self, token: &str) -> Result<Vec<u8>, TokenError> {
        if token.len() > TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let header: Header = decode(header)?;
        // The algorithm is the key's, never the token's to choose.
        let mut keys = self.keys.iter().filter(|key| key.algorithm.as_str() == header.alg).peekable();
        if keys.peek().is_none() {
            return Err(TokenError::Malformed);
        }
        let signature = BASE64.decode(signature).map_err(|_| TokenError::Malformed)?;
        // A key that the token names is the only one that is asked; other programs name them in
        // other ways, or not at all.
        let named = self.keys.iter().any(|key| key.id == header.kid);
        if !keys.any(|key| (!named || key.id == header.kid) && key.verifies(signed.as_bytes(), &signature)) {
            return Err(TokenError::Signature);
        }
        BASE64.decode(payload).map_err(|_| TokenError::Malformed)
    }

    /// Refuses a token whose time has not come or is over.
    pub fn check_times(&self, claims: &Claims) -> Result<(), TokenError> {
        let now = self.now();
        if now >= claims.exp {
            return Err(TokenError::Expired);
        }
        if claims.nbf > now + LEEWAY {
            return Err(TokenError::NotYetValid);
        }
        Ok(())
    }

    /// `/openid/v1/jwks`, content type `application/jwk-set+json`.
    pub fn jwks(&self) -> Value {
        json!({"keys": self.keys.iter().map(VerifyingKey::jwk).collect::<Vec<_>>()})
    }

    /// `true` if tokens can be verified by discovery (OpenID Connect Discovery 1.0): its issuers are https
    /// URLs without a query or fragment.
    pub fn is_discoverable(&self) -> bool {
        let url = self.url();
        url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty()) && !url.contains(['?', '#'])
    }

    /// `/.well-known/openid-configuration`; the keys are at `jwks_uri`.
    pub fn discovery(&self, jwks_uri: &str) -> Value {
        let algorithms: BTreeSet<&str> = self.keys.iter().map(|key| key.algorithm.as_str()).collect();
        json!({
            "issuer": self.url(),
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A token with these claims, signed with `signer`, whose public half is `key`.
fn sign(signer: &TokenSigner, key: &VerifyingKey, claims: &Value) -> String {
    let header = json!({"alg": key.algorithm.as_str(), "kid": key.id});
    let mut token = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let signature = signer.sign(token.as_bytes());
    token.push('.');
    token.push_str(&BASE64.encode(signature));
    token
}

fn decode<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, TokenError> {
    let bytes = BASE64.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
pub(super) mod tests;
