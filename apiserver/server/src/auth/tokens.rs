//! ServiceAccount tokens: JSON web tokens signed with ES256, bound to objects that must still
//! exist, and the two OpenID documents with which others can verify them.

use apiserver_api::ambient::Ambient;
use apiserver_api::auth::Identity;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};
use p256::pkcs8::DecodePrivateKey;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::pki::{Pki, PkiError};

mod request;

/// Longest token that is looked at, in bytes. Ours have about 900.
const MAX_TOKEN: usize = 16 * 1024;
/// A token may begin this much later than our clock says, in seconds.
const LEEWAY: i64 = 60;
const USER_PREFIX: &str = "system:serviceaccount:";

/// Why a token was not accepted. The client is told no more than 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token is not a JSON web token of ours")]
    Malformed,
    #[error("the token's signature does not match")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token was issued by another authority, {0}")]
    Issuer(String),
    #[error("the token is meant for {0:?}")]
    Audience(Vec<String>),
    #[error("the {kind} {name} that the token is bound to is gone")]
    Gone { kind: &'static str, name: String },
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
    /// As in `kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Pod => "Pod",
            Self::Secret => "Secret",
            Self::Node => "Node",
        }
    }
}

/// What tokens need to know about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundObject {
    /// `metadata.uid`
    pub uid: String,
    /// `spec.serviceAccountName` of a pod, otherwise empty.
    pub service_account: String,
    /// `spec.nodeName` of a pod, otherwise empty.
    pub node_name: String,
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
        }
    }
}

/// The server's cache, as far as tokens look into it. `namespace` is empty for nodes.
pub trait BoundObjects: Send + Sync {
    /// The object as it is now, `None` if there is none.
    fn lookup(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject>;
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
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{}", claims.namespace)];
        let mut identity = Identity::authenticated(&self.sub, &groups);
        identity.uid = claims.service_account.uid.clone();
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

    /// Refuses a token whose ServiceAccount or bound object is gone or was replaced.
    pub fn check_bound(&self, objects: &dyn BoundObjects) -> Result<(), TokenError> {
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
            if found.is_none_or(|object| object.uid != reference.uid) {
                return Err(TokenError::Gone { kind: kind.as_str(), name: reference.name.clone() });
            }
        }
        Ok(())
    }
}

/// Issues and verifies tokens.
pub struct Issuer {
    url: String,
    audiences: Vec<String>,
    key: SigningKey,
    /// The public key as an uncompressed point.
    public_key: Vec<u8>,
    key_id: String,
    ambient: Ambient,
}

impl Issuer {
    /// An issuer with the key `sa.key` of `pki`. `url` becomes the claim `iss`
    /// (`https://kubernetes.default.svc.cluster.local`); `audiences` are those that the API server
    /// itself answers to, the first being the default of tokens; empty means `url` alone.
    pub fn open(pki: &Pki, url: &str, audiences: &[String]) -> Result<Self, PkiError> {
        let (path, pem) = pki.service_account_key()?;
        let key = SigningKey::from_pkcs8_pem(&pem)
            .map_err(|_| PkiError::Content { path, what: "a P-256 private key" })?;
        Ok(Self::new(key, url, audiences, &pki.ambient))
    }

    fn new(key: SigningKey, url: &str, audiences: &[String], ambient: &Ambient) -> Self {
        let public_key = key.verifying_key().to_encoded_point(false).as_bytes().to_vec();
        let key_id = BASE64.encode(Sha256::digest(&public_key));
        let audiences = if audiences.is_empty() { vec![url.to_owned()] } else { audiences.to_vec() };
        Self { url: url.to_owned(), audiences, key, public_key, key_id, ambient: ambient.clone() }
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
            iss: self.url.clone(),
            jti: self.ambient.uid(),
            nbf: now,
            sub: format!("{USER_PREFIX}{}:{}", kubernetes.namespace, kubernetes.service_account.name),
            kubernetes,
        };
        let expiration = Timestamp::from_second(claims.exp).unwrap_or(Timestamp::MAX);
        (self.sign(&json!(claims)), expiration)
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let mut token =
            format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
        // Deterministic (RFC 6979): the same claims give the same token, in simulation too.
        let signature: Signature = self.key.sign(token.as_bytes());
        token.push('.');
        token.push_str(&BASE64.encode(signature.to_bytes()));
        token
    }

    /// The claims of a token of ours: signature, issuer and times are right. Audience and bound
    /// objects are the caller's to check.
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let claims = self.verify_signature(token)?;
        self.check_times(&claims)?;
        Ok(claims)
    }

    fn verify_signature(&self, token: &str) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let header: Header = decode(header)?;
        // The algorithm is ours to choose, never the token's.
        if header.alg != "ES256" {
            return Err(TokenError::Malformed);
        }
        if header.kid != self.key_id {
            return Err(TokenError::Signature);
        }
        let signature = BASE64.decode(signature).map_err(|_| TokenError::Malformed)?;
        ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, &self.public_key)
            .verify(signed.as_bytes(), &signature)
            .map_err(|_| TokenError::Signature)?;
        let claims: Claims = decode(payload)?;
        if claims.iss != self.url {
            return Err(TokenError::Issuer(claims.iss));
        }
        let kubernetes = &claims.kubernetes;
        if claims.sub != format!("{USER_PREFIX}{}:{}", kubernetes.namespace, kubernetes.service_account.name)
        {
            return Err(TokenError::Malformed);
        }
        Ok(claims)
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
        let (x, y) = self.public_key[1..].split_at(32);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": BASE64.encode(x), "y": BASE64.encode(y),
        }]})
    }

    /// `/.well-known/openid-configuration`; `server_url` is where this API server is reached from
    /// outside, `https://HOST:PORT`.
    pub fn discovery(&self, server_url: &str) -> Value {
        json!({
            "issuer": self.url,
            "jwks_uri": format!("{}/openid/v1/jwks", server_url.trim_end_matches('/')),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

fn decode<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, TokenError> {
    let bytes = BASE64.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
pub(super) mod tests;
