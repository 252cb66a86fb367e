//! The signer of the tokens in Secrets, which the process that runs the controllers provides.

use std::fmt;
use std::sync::Arc;

/// The account and the Secret of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRequest<'a> {
    pub namespace: &'a str,
    /// Name of the ServiceAccount.
    pub account: &'a str,
    /// UID of the ServiceAccount.
    pub uid: &'a str,
    /// Name of the Secret.
    pub secret: &'a str,
}

type Issue = dyn Fn(TokenRequest<'_>) -> String + Send + Sync;

/// Signs the tokens of Secrets with the key of the API server.
#[derive(Clone)]
pub struct TokenIssuer(Arc<Issue>);

impl TokenIssuer {
    pub fn new(issue: impl Fn(TokenRequest<'_>) -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(issue))
    }

    pub(crate) fn issue(&self, request: TokenRequest<'_>) -> String {
        (self.0)(request)
    }
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenIssuer")
    }
}
