//! The control plane: store, API server, controllers, scheduler; each can be killed and restarted.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver_auth::authentication::pki::{Component, Pki};
use apiserver_auth::authentication::tokens::Issuer;
use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use apiserver_server::{Server, ServerConfig};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use ipnetwork::IpNetwork;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::network::Network;

/// Network of Service addresses.
const SERVICE_CIDR: &str = "10.96.0.0/16";
/// Network that node networks are taken from.
const CLUSTER_CIDR: &str = "10.128.0.0/9";

/// Certificate that is published as the authority's. The real one differs in each run, because the
/// cryptography has randomness of its own.
const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nc2ltdWxhdGVk\n-----END CERTIFICATE-----\n";

/// A component that runs until it is killed.
pub struct Process {
    pub life: CancellationToken,
    task: JoinHandle<()>,
}

impl Process {
    /// Starts the future that `run` returns; it is given the token of the process' life.
    pub fn start<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(CancellationToken) -> F) -> Self {
        let life = CancellationToken::new();
        let task = tokio::spawn(run(life.clone()));
        Self { life, task }
    }

    /// Kills it like `kill -9`: its connections break, and nothing of it continues.
    pub fn kill(self) {
        self.life.cancel();
        self.task.abort();
    }
}

/// State that survives a crash of the API server.
pub struct DurableState {
    pub disk: SimDisk,
    config: ServerConfig,
    /// Contains the key of the token issuer.
    _keys: tempfile::TempDir,
}

impl DurableState {
    /// Creates an empty disk and new keys.
    pub fn new(seed: u64, ambient: &Ambient) -> Result<Self> {
        let keys = tempfile::tempdir().context("cannot make a directory for keys")?;
        let pki = Pki::open(keys.path(), ambient).context("cannot make keys")?;
        let issuer = Issuer::open(&pki, "https://kubernetes.default.svc.cluster.local", &[])
            .context("cannot make an issuer of tokens")?;
        let config = ServerConfig {
            advertise: Some(([192, 0, 2, 1], 6443).into()),
            service_cidrs: vec![network(SERVICE_CIDR)?],
            issuer: Some(Arc::new(issuer)),
            ..ServerConfig::default()
        };
        // Syncs take time, so that writes form groups and a crash can happen in between.
        let disk = SimDisk::new(seed).with_sync_time(Duration::from_millis(1));
        Ok(Self { disk, config, _keys: keys })
    }

    /// Recovers the store and starts a server on it.
    pub async fn start(&self, ambient: &Ambient) -> Result<Api> {
        // Small, so that segments are completed and checkpoints taken within a test.
        let options = Options { segment_bytes: 256 << 10, checkpoint_bytes: 1 << 20, ..Options::default() };
        let store =
            Embedded::open(Arc::new(self.disk.clone()), options).await.context("cannot open the store")?;
        let shared = Arc::new(store.clone());
        let server = Server::new(self.config.clone(), shared, apiserver_kinds::registry(), ambient.clone())
            .context("cannot set up the server")?;
        server.start();
        Ok(Api { server, store })
    }
}

fn network(text: &str) -> Result<IpNetwork> {
    text.parse().with_context(|| format!("{text} is no network"))
}

/// A running API server.
pub struct Api {
    pub server: Arc<Server>,
    pub store: Embedded,
}

/// Starts the controllers.
pub fn controllers(network_: &Network, ambient: &Ambient) -> Result<Process> {
    let config = controllers_manager::Config {
        cluster_cidrs: vec![network(CLUSTER_CIDR)?],
        service_cidrs: vec![network(SERVICE_CIDR)?],
        root_ca: ROOT_CA.to_owned(),
        ..controllers_manager::Config::default()
    };
    let (network_, ambient) = (network_.clone(), ambient.clone());
    Ok(Process::start(|life| async move {
        let client = network_.client(Component::ControllerManager, life.clone());
        let informers = Informers::new(client, ambient.clone(), life.clone());
        if let Err(error) = controllers_manager::run(config, informers, ambient, life).await {
            tracing::error!(%error, "the controllers ended");
        }
    }))
}

/// Starts the scheduler.
pub fn scheduler(network: &Network, ambient: &Ambient) -> Process {
    let (network, ambient) = (network.clone(), ambient.clone());
    Process::start(|life| async move {
        let client = network.client(Component::Scheduler, life.clone());
        let informers = Informers::new(client, ambient.clone(), life.clone());
        let config = controllers_scheduler::Config::default();
        if let Err(error) = controllers_scheduler::run(config, informers, ambient, life).await {
            tracing::error!(%error, "the scheduler ended");
        }
    })
}
