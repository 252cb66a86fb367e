//! The names of the API server that a kubeconfig leads to. No node gets a serving certificate for one of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::server_names;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::limits;

/// Returns the host in the kubeconfig's URL, and the names in the certificate that the server shows; waits until
/// it answers or shutdown. A server behind a proxy is known by its URL alone.
pub async fn known(kubeconfig: &Path, stop: &CancellationToken) -> Result<BTreeSet<String>> {
    let unreadable = || format!("cannot read {}", kubeconfig.display());
    let file = Kubeconfig::read_from(kubeconfig).with_context(unreadable)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let config = config.with_context(unreadable)?;
    let mut names = BTreeSet::new();
    let Some(host) = config.cluster_url.host() else { bail!("{} names no server", kubeconfig.display()) };
    let host = host.trim_matches(['[', ']']).to_owned();
    names.insert(host.clone());
    if config.proxy_url.is_some() || config.cluster_url.scheme_str() != Some("https") {
        return Ok(names);
    }
    let mut said = false;
    loop {
        let shown = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(names),
            shown = timeout(limits::NAMES_HANDSHAKE, certificate(&config, &host)) => shown,
        };
        match shown.context("it does not answer").flatten() {
            Ok(shown) => {
                names.extend(shown);
                return Ok(names);
            }
            Err(error) if !std::mem::replace(&mut said, true) => {
                let server = &config.cluster_url;
                warn!(error = format!("{error:#}"), %server, "cannot see the API server's certificate, trying again");
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(names),
            () = sleep(limits::NAMES_PAUSE) => {}
        }
    }
}

/// Returns the names in the certificate of the server, which is verified as every client does.
async fn certificate(config: &Config, host: &str) -> Result<BTreeSet<String>> {
    let tls = config.rustls_client_config().context("cannot set up TLS")?;
    let name = config.tls_server_name.as_deref().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).context("the server's name is not a DNS name or an address")?;
    let port = config.cluster_url.port_u16().unwrap_or(443);
    let stream = TcpStream::connect((host, port)).await.context("cannot connect")?;
    let stream =
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await.context("cannot set up TLS")?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().map(|own| server_names(own)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use apiserver_auth::authentication::pki::{Pki, Subject};
    use apiserver_meta::ambient::Ambient;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    #[tokio::test]
    async fn the_names_in_a_servers_certificate_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(&dir.path().join("pki"), &Ambient::system()).unwrap();
        let hosts = ["127.0.0.1", "api.example", "192.0.2.9"].map(str::to_owned);
        let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", hosts.clone())).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            TlsAcceptor::from(tls.config()).accept(stream).await.unwrap();
        });
        let kubeconfig = dir.path().join("kubeconfig.yaml");
        pki.write_kubeconfig(&kubeconfig, &url, "admin", &Subject::admin()).unwrap();
        let known = known(&kubeconfig, &CancellationToken::new()).await.unwrap();
        assert!(hosts.iter().all(|host| known.contains(host)), "{known:?}");
        server.await.unwrap();
        // Shutdown ends the wait for a server that does not answer.
        pki.write_kubeconfig(&kubeconfig, "https://127.0.0.1:1", "admin", &Subject::admin()).unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(super::known(&kubeconfig, &stop).await.unwrap(), ["127.0.0.1".to_owned()].into());
    }
}
