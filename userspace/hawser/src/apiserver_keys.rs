//! Flags of kube-apiserver that name keys and certificates to use in place of those that the server makes in
//! its data directory, so that several API servers of one cluster share them.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::listener::ListenerFiles;
use apiserver_auth::authentication::pki::Pki;
use apiserver_auth::authentication::tokens::{Issuer, IssuerFiles};
use clap::Args;

/// The default issuer of ServiceAccount tokens, as it appears in them.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

#[derive(Args, Clone, Default)]
pub struct Keys {
    /// Authorities whose client certificates are users, as well as the data directory's own, PEM
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Serving certificate, with intermediate ones after it, PEM; issued by the data directory's
    /// authority unless given
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// RSA or P-256 keys, public or private, PEM, that verify ServiceAccount tokens, besides the signing key;
    /// may be repeated
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// RSA or P-256 private key, PEM, that signs ServiceAccount tokens; made in the data directory
    /// unless given
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Issuer of ServiceAccount tokens; repeated, the first issues and all are accepted
    /// [default: https://kubernetes.default.svc.cluster.local]
    #[arg(long, value_name = "URL")]
    pub service_account_issuer: Vec<String>,
    /// The https URL of the keys of ServiceAccount tokens that discovery announces; this server's advertised
    /// address unless given
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
    /// Comma-separated audiences of tokens that are meant for this API; the issuers unless given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
}

impl Keys {
    /// Returns the issuer that signs and verifies tokens.
    pub fn issuer(&self, pki: &Pki) -> Result<Issuer> {
        for issuer in &self.service_account_issuer {
            if issuer.is_empty() {
                bail!("--service-account-issuer must not be empty");
            }
            if issuer.contains(':') && issuer.split_once("://").is_none_or(|(_, host)| host.is_empty()) {
                bail!("--service-account-issuer {issuer} contains a colon but is not a URL");
            }
        }
        let urls = match self.service_account_issuer.as_slice() {
            [] => vec![ISSUER.to_owned()],
            given => given.to_vec(),
        };
        let files = IssuerFiles {
            signing_key: self.service_account_signing_key_file.clone(),
            keys: self.service_account_key_file.clone(),
        };
        Issuer::open_with(pki, &files, &urls, &self.api_audiences)
            .context("cannot set up ServiceAccount tokens")
    }

    /// Returns the URL at which discovery says that the keys of tokens are: the server at the address where
    /// the cluster reaches it, which its certificate names.
    pub fn jwks_uri(&self, advertised: SocketAddr) -> Result<String> {
        match &self.service_account_jwks_uri {
            Some(url) if !url.starts_with("https://") => {
                bail!("--service-account-jwks-uri {url} requires https scheme")
            }
            Some(url) => Ok(url.clone()),
            None => Ok(format!("https://{advertised}/openid/v1/jwks")),
        }
    }

    /// Returns the files that the port is served with.
    pub fn listener(&self) -> ListenerFiles {
        ListenerFiles {
            client_ca: self.client_ca_file.clone(),
            certificate: self.tls_cert_file.clone(),
            key: self.tls_private_key_file.clone(),
        }
    }
}
