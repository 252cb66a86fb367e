//! Tokens without an end, which Secrets of type `kubernetes.io/service-account-token` hold: each is good as long as its
//! Secret holds it and its ServiceAccount exists.

use std::path::Path;

use apiserver_meta::identity::Identity;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{BoundKind, BoundObjects, Issuer, NamedUid, TokenError, USER_PREFIX, account_identity, sign};
use crate::authentication::keys::{TokenSigner, VerifyingKey};
use crate::authentication::pki::{Pki, PkiError};

/// The issuer of these tokens, whatever that of the others is.
pub(super) const ISSUER: &str = "kubernetes/serviceaccount";

/// The facts about a Secret that the validation of its token needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSecret {
    /// `data.token`
    pub token: Vec<u8>,
    /// The label `kubernetes.io/legacy-token-invalid-since`, otherwise empty.
    pub invalid_since: String,
    /// The label `kubernetes.io/legacy-token-last-used`, otherwise empty.
    pub last_used: String,
    /// True if the Secret is being deleted.
    pub deleted: bool,
}

/// All claims of such a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretClaims {
    pub iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub account_uid: String,
    pub sub: String,
}

impl SecretClaims {
    fn new(namespace: &str, account: &NamedUid, secret: &str) -> Self {
        Self {
            iss: ISSUER.to_owned(),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            account: account.name.clone(),
            account_uid: account.uid.clone(),
            sub: format!("{USER_PREFIX}{namespace}:{}", account.name),
        }
    }

    /// Refuses claims that contradict themselves or lack something.
    pub(super) fn check(self) -> Result<Self, TokenError> {
        let named = [&self.namespace, &self.secret, &self.account, &self.account_uid];
        let agrees = self.sub == format!("{USER_PREFIX}{}:{}", self.namespace, self.account);
        if agrees && named.iter().all(|name| !name.is_empty()) {
            Ok(self)
        } else {
            Err(TokenError::Malformed)
        }
    }

    /// The user that the token stands for.
    pub fn identity(&self) -> Identity {
        account_identity(&self.sub, &self.namespace, &self.account_uid)
    }

    /// Refuses a token that its Secret does not hold, or that was marked as invalid there, and one whose ServiceAccount
    /// is gone or was replaced. Returns the Secret.
    pub fn check_held(&self, token: &str, objects: &dyn BoundObjects) -> Result<TokenSecret, TokenError> {
        let Self { namespace, secret, account, .. } = self;
        let gone =
            |kind: BoundKind, name: &String| TokenError::Gone { kind: kind.as_str(), name: name.clone() };
        let held = objects.token_secret(namespace, secret).filter(|held| !held.deleted);
        let held = held.ok_or_else(|| gone(BoundKind::Secret, secret))?;
        if held.token != token.as_bytes() {
            return Err(TokenError::NotHeld { secret: secret.clone() });
        }
        let found = objects.lookup(BoundKind::ServiceAccount, namespace, account);
        if found.is_none_or(|found| found.uid != self.account_uid || found.deleted.is_some()) {
            return Err(gone(BoundKind::ServiceAccount, account));
        }
        if !held.invalid_since.is_empty() {
            let (namespace, secret, account) = (namespace.clone(), secret.clone(), account.clone());
            return Err(TokenError::MarkedInvalid { namespace, secret, account });
        }
        Ok(held)
    }
}

impl Issuer {
    /// A token for the Secret of this name, for as long as it holds it.
    pub fn issue_for_secret(&self, namespace: &str, account: &NamedUid, secret: &str) -> String {
        self.sign(&json!(SecretClaims::new(namespace, account, secret)))
    }
}

/// Signs tokens of Secrets outside of the API server.
pub struct SecretTokens {
    signer: TokenSigner,
    key: VerifyingKey,
}

impl SecretTokens {
    /// Signs with the private key of a PEM file. Errors name the file.
    pub fn read(path: &Path) -> Result<Self, PkiError> {
        TokenSigner::read(path).map(Self::new)
    }

    /// Signs with the key `sa.key` of `pki`.
    pub fn open(pki: &Pki) -> Result<Self, PkiError> {
        pki.service_account_signer().map(Self::new)
    }

    fn new(signer: TokenSigner) -> Self {
        Self { key: signer.public(), signer }
    }

    /// Returns a token for the Secret of this name.
    pub fn issue(&self, namespace: &str, account: &NamedUid, secret: &str) -> String {
        sign(&self.signer, &self.key, &json!(SecretClaims::new(namespace, account, secret)))
    }
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
