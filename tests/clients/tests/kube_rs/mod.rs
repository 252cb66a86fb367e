//! kube-rs against `hawser apiserver`, as operators use it: over TLS with the kubeconfig.

mod collected;
mod custom;
mod objects;
mod runtime;

use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tests_clients::Api;

/// Timeout that only ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a test with a client for a server of its own.
fn with_client<F: Future<Output = Result<()>>>(test: impl FnOnce(Client) -> F) -> Result<()> {
    against(Api::start()?, test)
}

/// Like [`with_client`], with a server that is already running.
fn against<F: Future<Output = Result<()>>>(api: Api, test: impl FnOnce(Client) -> F) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(api.kubeconfig()).context("cannot read the kubeconfig")?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        tokio::time::timeout(LIMIT, test(client)).await.context("the test hangs")?
    })?;
    drop(runtime);
    api.stop()
}

/// Returns the status code of a refusal.
fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("expected a refusal: {other:?}"),
    }
}
