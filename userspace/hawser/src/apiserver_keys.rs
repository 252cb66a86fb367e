//! Flags of the API server, kube-apiserver's, that name keys and certificates in place of those
//! that it makes in its data directory: several API servers of one cluster share them.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use apiserver_server::auth::listener::ListenerFiles;
use apiserver_server::auth::pki::Pki;
use apiserver_server::auth::tokens::{Issuer, IssuerFiles};
use clap::Args;

/// The issuer of ServiceAccount tokens, as it stands in them, unless given.
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
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// RSA or P-256 keys, public or private, PEM, whose ServiceAccount tokens are good, as well as
    /// the signing key's; may be repeated
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
    /// Where the keys of ServiceAccount tokens are read, as discovery says it: an https URL; this
    /// server's at its advertised address unless given
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
    /// Audiences whose tokens are for this API, separated by commas; the issuers unless given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
}

impl Keys {
    /// What tokens are issued and verified with.
    pub fn issuer(&self, pki: &Pki) -> Result<Issuer> {
        for issuer in &self.service_account_issuer {
            if issuer.is_empty() {
                bail!("--service-account-issuer must not be empty");
            }
            if issuer.contains(':') && issuer.split_once("://").is_none_or(|(_, host)| host.is_empty()) {
                bail!("--service-account-issuer {issuer} has a colon and is no URL");
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

    /// Where discovery sends those who verify tokens: the server as the cluster reaches it, which its
    /// certificate names.
    pub fn jwks_uri(&self, advertised: SocketAddr) -> Result<String> {
        match &self.service_account_jwks_uri {
            Some(url) if !url.starts_with("https://") => {
                bail!("--service-account-jwks-uri {url} requires https scheme")
            }
            Some(url) => Ok(url.clone()),
            None => Ok(format!("https://{advertised}/openid/v1/jwks")),
        }
    }

    /// What the port is served with.
    pub fn listener(&self) -> ListenerFiles {
        ListenerFiles {
            client_ca: self.client_ca_file.clone(),
            certificate: self.tls_cert_file.clone(),
            key: self.tls_private_key_file.clone(),
        }
    }
}
