//! The API server: store, certificates, listener.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_client::in_process;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::networks::first_address;
use apiserver_server::components::Components;
use apiserver_server::limits;
use apiserver_server::streams::Kubelets;
use apiserver_server::{Build, Server, ServerConfig, serve};
use apiserver_store::Store;
use apiserver_store::disk::RealDisk;
use apiserver_store::embedded::{Control, Embedded, Options};
use apiserver_store::etcd::Etcd;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use userspace_daemon::shutdown;

use crate::apiserver_args::Serving;
use crate::apiserver_keys::Keys;
use crate::args::{Apiserver, EtcdArgs, StoreArgs, StoreKind};
use crate::cluster_info::{self, ClusterInfo};
use crate::data_dir::DataDir;
use crate::dns_args::CLUSTER_DOMAIN;
use crate::etcd;
use crate::node;
use crate::node_args::Networks;

/// The settings that an API server is started with.
pub struct Settings<'a> {
    pub data: &'a DataDir,
    pub listen: SocketAddr,
    /// The address at which the cluster reaches this server.
    pub advertise: IpAddr,
    /// Further addresses in its certificate.
    pub addresses: Vec<IpAddr>,
    pub store: &'a StoreArgs,
    pub networks: &'a Networks,
    /// This server's name among those of the cluster.
    pub identity: String,
    /// The cluster's domain, in which the certificate names this server.
    pub cluster_domain: String,
    pub serving: Serving,
    pub keys: Keys,
    /// The addresses of the scheduler and the controllers.
    pub components: Components,
}

/// The build information that the build script recorded.
const BUILD: Build = Build {
    commit: env!("HAWSER_BUILD_COMMIT"),
    tree_state: env!("HAWSER_BUILD_TREE_STATE"),
    date: env!("HAWSER_BUILD_DATE"),
    compiler: env!("HAWSER_BUILD_RUSTC"),
};

/// A running API server.
pub struct Api {
    pub server: Arc<Server>,
    pub pki: Pki,
    /// `https://127.0.0.1:PORT`
    pub url: String,
    /// Names and addresses in the certificate that this server makes for itself.
    pub hosts: BTreeSet<String>,
    serving: JoinHandle<()>,
    embedded: Option<(Arc<Embedded>, Control)>,
}

/// Returns advice about an address that cannot be listened on.
pub fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => ": the port is taken, choose another one",
        std::io::ErrorKind::AddrNotAvailable => ": this machine has no such address",
        std::io::ErrorKind::PermissionDenied => ": ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

/// Opens the store, binds the port, writes the administrator's kubeconfig, and serves until
/// shutdown. Returns when the server is ready.
pub async fn start(settings: Settings<'_>, ambient: &Ambient, stop: &CancellationToken) -> Result<Api> {
    let Settings {
        data,
        listen,
        advertise,
        addresses,
        store,
        networks,
        identity,
        cluster_domain,
        serving,
        keys,
        components,
    } = settings;
    let serving = serving.config()?;
    let listener = apiserver_server::listen(listen).map_err(|error| {
        let hint = listen_hint(&error);
        anyhow::Error::new(error).context(format!("cannot listen on {listen}{hint}"))
    })?;
    let port = listener.local_addr().context("the listener has no address")?.port();
    let pki = Pki::open(&data.join("pki"), ambient).context("cannot set up the certificates")?;
    let issuer = Arc::new(keys.issuer(&pki)?);
    let kubernetes_service = networks.service_cidrs.iter().copied().filter_map(first_address);
    let addresses =
        [advertise].into_iter().chain(addresses).chain(kubernetes_service).map(|address| address.to_string());
    let subject = Subject::apiserver(&cluster_domain, addresses);
    let tls = pki.listener_tls(&subject, &keys.listener()).context("cannot set up TLS for the API")?;
    let compaction_interval = store.etcd_compaction_interval;
    let shared = store.store == StoreKind::Etcd;
    let (store, embedded) = open_store(data.path(), store).await?;
    let url = format!("https://127.0.0.1:{port}");
    let config = ServerConfig {
        advertise: Some(SocketAddr::new(advertise, port)),
        service_cidrs: networks.service_cidrs.clone(),
        issuer: Some(issuer),
        client_ca: tls.client_authorities().to_owned(),
        kubelets: Some(Kubelets::new(
            pki.kubelet_client_tls().context("cannot set up TLS towards kubelets")?,
        )),
        jwks_uri: keys.jwks_uri(SocketAddr::new(advertise, port))?,
        components,
        connections: connections(open_files()),
        build: BUILD,
        compaction_interval,
        identity: Some(identity),
        ..serving
    };
    let bootstrap_tokens = config.bootstrap_tokens;
    let server = Server::new(config, store, apiserver_kinds::registry(), ambient.clone())
        .context("the API server's configuration cannot be used")?;
    pki.write_kubeconfig_trusting(tls.authorities(), &data.kubeconfig(), &url, "admin", &Subject::admin())
        .context("cannot write the administrator's kubeconfig")?;
    let tls_authorities = tls.authorities().to_owned();
    server.start();
    let serving = tokio::spawn(serve(listener, tls, Arc::clone(&server), stop.clone()));
    tokio::select! {
        () = server.ready() => {}
        () = stop.cancelled() => {}
    }
    if bootstrap_tokens {
        let info = ClusterInfo {
            server: format!("https://{}", SocketAddr::new(advertise, port)),
            authorities: tls_authorities,
            networks: networks.clone(),
        };
        let client = in_process(server.service(), Subject::admin().identity(), "hawser");
        tokio::spawn(cluster_info::publish(info, shared, client, stop.clone()));
    }
    Ok(Api { server, pki, url, hosts: subject.hosts, serving, embedded })
}

impl Api {
    /// Waits for the listener to end, then closes the store. Shutdown must have begun.
    pub async fn finish(self) -> Result<()> {
        self.serving.await.context("the API's listener failed")?;
        if let Some((embedded, control)) = self.embedded {
            drop(control);
            embedded.close().await.context("cannot close the embedded store")?;
        }
        Ok(())
    }
}

/// Returns the directory of the embedded store.
pub fn store_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

type Opened = (Arc<dyn Store>, Option<(Arc<Embedded>, Control)>);

async fn open_store(data_dir: &Path, args: &StoreArgs) -> Result<Opened> {
    match args.store {
        StoreKind::Embedded if !args.etcd.etcd_servers.is_empty() => {
            bail!("--etcd-servers is of no use with the embedded store: add --store etcd")
        }
        StoreKind::Embedded => {
            let dir = store_directory(data_dir);
            let disk = RealDisk::new(&dir).with_context(|| format!("cannot use {}", dir.display()))?;
            let store = Embedded::open(Arc::new(disk), options(args.quota_backend_bytes))
                .await
                .with_context(|| format!("cannot open the embedded store in {}", dir.display()))?;
            let store = Arc::new(store);
            let control = store
                .listen(&dir)
                .with_context(|| format!("cannot make the control socket in {}", dir.display()))?;
            Ok((Arc::<Embedded>::clone(&store), Some((store, control))))
        }
        StoreKind::Etcd if args.quota_backend_bytes != 0 => {
            bail!("--quota-backend-bytes is for the embedded store: give it to etcd instead")
        }
        StoreKind::Etcd if args.etcd.etcd_servers.is_empty() => {
            bail!("--store etcd needs --etcd-servers URL,…")
        }
        StoreKind::Etcd => Ok((Arc::new(connect_etcd(&args.etcd).await?), None)),
    }
}

/// Raises the limit of open files as far as the process is allowed to, and returns it.
fn open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
        return current.unwrap_or(u64::MAX);
    }
    maximum.unwrap_or(u64::MAX)
}

/// Returns the number of connections to accept under this limit of open files: at most half of it, since each
/// stream to a kubelet takes a second file.
fn connections(files: u64) -> usize {
    let left = files.saturating_sub(limits::OTHER_FILES as u64).max(files / 2) / 2;
    usize::try_from(left).unwrap_or(usize::MAX).clamp(1, limits::CONNECTIONS)
}

/// Resources that are written even when the store is full, because the cluster depends on them: only the
/// control plane and nodes may write there.
const VITAL: [&str; 3] =
    ["/registry/leases/kube-node-lease/", "/registry/leases/kube-system/", "/registry/minions/"];

/// Returns the embedded store's options; a quota of 0 selects the default, as in etcd.
fn options(quota: u64) -> Options {
    let default = Options::default();
    let quota_bytes = if quota == 0 { default.quota_bytes } else { quota };
    Options { quota_bytes, vital: VITAL.map(str::to_owned).into(), ..default }
}

/// Connects to etcd with the settings of the flags.
pub async fn connect_etcd(args: &EtcdArgs) -> Result<Etcd> {
    let EtcdArgs { etcd_servers, etcd_prefix, .. } = args;
    let tls = etcd::tls(args)?;
    Etcd::connect(etcd_servers, tls)
        .await
        .and_then(|etcd| etcd.with_prefix(etcd_prefix))
        .with_context(|| format!("cannot reach etcd at {}", etcd_servers.join(", ")))
}

/// `hawser apiserver`.
pub async fn run(args: Apiserver) -> Result<()> {
    let Apiserver { data_dir, secure_port, bind_address, advertise_address, store, networks, serving, keys } =
        args;
    let stop = shutdown::on_signal()?;
    let data = DataDir::open(&data_dir)?;
    let settings = Settings {
        data: &data,
        listen: SocketAddr::new(bind_address, secure_port),
        advertise: advertise_address.unwrap_or_else(node::address),
        addresses: Vec::new(),
        store: &store,
        networks: &networks,
        identity: node::host_name(),
        cluster_domain: CLUSTER_DOMAIN.to_owned(),
        serving,
        keys,
        components: Components::default(),
    };
    let api = match start(settings, &Ambient::system(), &stop).await {
        Ok(api) => api,
        Err(error) => {
            data.discard_if_fresh();
            return Err(error);
        }
    };
    println!("serving {}; kubeconfig: {}", api.url, data.kubeconfig().display());
    stop.cancelled().await;
    api.finish().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_the_rest() {
        assert_eq!(connections(u64::MAX), limits::CONNECTIONS);
        assert_eq!(connections(1 << 20), limits::CONNECTIONS);
        assert_eq!(connections(4_096), (4_096 - limits::OTHER_FILES) / 2);
        assert_eq!(connections(1_024), 256);
        assert_eq!(connections(0), 1);
    }
}
