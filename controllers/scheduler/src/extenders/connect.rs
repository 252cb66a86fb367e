//! Clients of extenders, with the settings of TLS as client-go reads them.

use http::Uri;
use kube::config::{AuthInfo, Cluster, Config, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo};
use kube::config::{NamedCluster, NamedContext};
use serde_json::{from_value, json};

use super::{Extender, TIMEOUT};
use crate::config;

/// The name of everything in a kubeconfig that is made here.
const NAME: &str = "extender";

/// An extender cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("the URL {url:?} of an extender cannot be parsed")]
    Url {
        url: String,
        #[source]
        cause: http::uri::InvalidUri,
    },
    #[error("the URL {0:?} of an extender needs a scheme, http or https, and a host")]
    Relative(String),
    #[error("specifying a root certificates file with the insecure flag is not allowed")]
    InsecureWithRoots,
    #[error("the TLS settings of the extender {url} cannot be read")]
    Settings {
        url: String,
        #[source]
        cause: Box<kube::config::KubeconfigError>,
    },
    #[error("no client can be made for the extender {url}")]
    Client {
        url: String,
        #[source]
        cause: Box<kube::Error>,
    },
}

/// Makes the client of an extender.
pub(super) async fn extender(settings: config::Extender) -> Result<Extender, BuildError> {
    let name = settings.url_prefix.clone();
    let prefix = name.trim_end_matches('/');
    let url: Uri = prefix.parse().map_err(|cause| BuildError::Url { url: name.clone(), cause })?;
    let is_https = match url.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(BuildError::Relative(name)),
    };
    let mut tls = settings.tls_config.clone().unwrap_or_default();
    let has_roots = !tls.ca_file.is_empty() || !tls.ca_data.is_empty();
    tls.insecure |= settings.enable_https && !has_roots;
    if tls.insecure && has_roots {
        return Err(BuildError::InsecureWithRoots);
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig(prefix, &tls), &KubeConfigOptions::default())
        .await
        .map_err(|cause| BuildError::Settings { url: name.clone(), cause: Box::new(cause) })?;
    // The environment's proxy is that of the API server.
    config.proxy_url = None;
    config.default_retry = false;
    if !is_https || tls.insecure {
        // The roots of the machine, which it may not have, are not needed.
        config.root_cert.get_or_insert_default();
    }
    let client = apiserver_client::client(config)
        .map_err(|cause| BuildError::Client { url: name.clone(), cause: Box::new(cause) })?;
    let timeout = settings.http_timeout.and_then(|timeout| timeout.duration());
    Ok(Extender {
        name,
        managed: settings.managed_resources.iter().map(|resource| resource.name.clone()).collect(),
        timeout: timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(TIMEOUT),
        settings,
        client,
    })
}

/// Returns the settings in the form in which the client reads them: data win over files, and a certificate counts only with
/// its key.
fn kubeconfig(url: &str, tls: &config::ExtenderTls) -> Kubeconfig {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let cluster = Cluster {
        server: Some(url.to_owned()),
        insecure_skip_tls_verify: Some(tls.insecure),
        certificate_authority: given(&tls.ca_file),
        certificate_authority_data: given(&tls.ca_data),
        tls_server_name: given(&tls.server_name),
        ..Cluster::default()
    };
    let has_certificate = !tls.cert_file.is_empty() || !tls.cert_data.is_empty();
    let has_key = !tls.key_file.is_empty() || !tls.key_data.is_empty();
    let user = if has_certificate && has_key {
        let key = (!tls.key_data.is_empty()).then(|| json!({"client-key-data": tls.key_data}));
        let key = key.map(|key| from_value(key).expect("a key is text")).unwrap_or_default();
        AuthInfo {
            client_certificate: given(&tls.cert_file),
            client_certificate_data: given(&tls.cert_data),
            client_key: given(&tls.key_file),
            ..key
        }
    } else {
        AuthInfo::default()
    };
    let name = || NAME.to_owned();
    let context = Context { cluster: name(), user: Some(name()), ..Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: name(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo { name: name(), auth_info: Some(user), ..NamedAuthInfo::default() }],
        contexts: vec![NamedContext { name: name(), context: Some(context), ..NamedContext::default() }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    }
}
