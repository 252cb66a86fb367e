//! `hawser join --control-plane`: makes the machine another control node of a cluster on etcd. It gets the shared keys,
//! and then runs what `hawser up` runs.

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_auth::authentication::sealed::SealingKey;
use apiserver_meta::ambient::Ambient;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_daemon::shutdown;

use crate::args::{EtcdArgs, Up};
use crate::control_plane::{ControlPlane, Joined, LocalMember};
use crate::data_dir::DataDir;
use crate::discovery::{self, Pins};
use crate::dns_args::{JoinDns, UpDns};
use crate::etcd;
use crate::etcd_args::EtcdStart;
use crate::handover::Handover;
use crate::join::{self, check_name};
use crate::join_args::Join;
use crate::node;
use crate::tasks::Tasks;
use crate::token::{self, Token};
use crate::up;

/// Runs a control node until SIGTERM, or an ordinary node if the machine neither is to be a control node nor is one. A
/// failed start leaves nothing behind.
pub async fn run(args: Join) -> Result<()> {
    let is_ours = ControlPlane::read(&args.data_dir)?.is_some_and(|record| record.joined.is_some());
    if !args.control_plane && !is_ours {
        return Box::pin(join::run(args)).await;
    }
    let start = Instant::now();
    let stop = shutdown::on_signal()?;
    if !is_ours && args.data_dir.join("pki").exists() {
        bail!("{} is the directory of an API server: give another --data-dir", args.data_dir.display());
    }
    if args.data_dir.join("join").exists() {
        bail!("this machine has joined as a node: run `hawser leave` first, then join as a control node");
    }
    let data = DataDir::open(&args.data_dir)?;
    let first = data.made()?.is_none();
    let mut tasks = Tasks::default();
    let outcome = Box::pin(member(args, &data, start, &stop, &mut tasks)).await;
    if outcome.is_err() {
        if data.is_fresh() && !tasks.were_ready() {
            give_up_membership(&data).await;
        }
        up::clean_up(&data, first, &stop, &mut tasks).await?;
    }
    outcome
}

async fn member(
    args: Join,
    data: &DataDir,
    start: Instant,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<()> {
    let (name, ambient) = (node::name(&args.node), Ambient::system());
    let record = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        record = admit(&args, &name, data, &ambient) => record?,
    };
    let up = settings(args, &record, data)?;
    up::check(&up)?;
    Box::pin(up::cluster(up, data, start, stop, tasks)).await
}

/// Returns the settings of the cluster with those of this machine.
fn settings(args: Join, record: &ControlPlane, data: &DataDir) -> Result<Up> {
    let Join { bpf_root, node, runtime, pod_network, proxy, dns, etcd_start, .. } = args;
    let JoinDns { cluster: _, server, without_dns } = dns;
    let mut up = record.up(data.path())?;
    let etcd_start = match &record.member {
        Some(LocalMember { client_port, peer_port, .. }) => {
            EtcdStart { etcd_start: true, etcd_client_port: *client_port, etcd_peer_port: *peer_port }
        }
        None => etcd_start,
    };
    if etcd_start.etcd_start && !record.etcd_started {
        bail!("--etcd-start: the etcd of this cluster is not hawser's: leave it out");
    }
    if !etcd_start.etcd_start {
        let EtcdArgs { etcd_prefix, .. } = up.store.etcd;
        up.store.etcd = EtcdArgs { etcd_prefix, ..etcd::flags_of(record, data.path()) };
    }
    up.dns = UpDns { cluster: up.dns.cluster, server, without_dns };
    Ok(Up { bpf_root, node, runtime, pod_network, proxy, etcd_start, ..up })
}

/// Returns the record of this control node: that of its cluster, or of the one that admits it now.
async fn admit(args: &Join, node_name: &str, data: &DataDir, ambient: &Ambient) -> Result<ControlPlane> {
    let earlier = ControlPlane::read(data.path())?.filter(|_| data.join("pki/ca.key").exists());
    if let Some(record) = earlier {
        let name = record.joined.as_ref().map(|joined| joined.node_name.as_str()).unwrap_or_default();
        if name != node_name {
            bail!(
                "this machine has joined as node {name} and not as {node_name}: give --node-name {name}, or run `hawser \
                 leave` first"
            );
        }
        certify(&record, data, ambient)?;
        info!(node = node_name, "this machine has joined already");
        return Ok(record);
    }
    let token = Token::given(args.token.as_deref(), args.token_file.as_deref())?;
    let key = match (&args.certificate_key, &args.certificate_key_file) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(file)) => Some(token::read_file("--certificate-key-file", file)?),
        (None, None) => None,
    };
    let (Some(server), Some(token), Some(key)) = (&args.server, token, key) else {
        bail!(
            "this machine has not joined a cluster: give SERVER, --token or --token-file, --certificate-key or \
             --certificate-key-file, and --discovery-token-ca-cert-hash, as `hawser token create --control-plane` prints \
             them"
        );
    };
    let key = SealingKey::parse(key.trim()).context("--certificate-key")?;
    let pins =
        Pins::parse(&args.discovery_token_ca_cert_hash, args.discovery_token_unsafe_skip_ca_verification)?;
    let url = discovery::server_url(server)?;
    let found = discovery::discover(&url, &token, &pins, ambient.now()).await?;
    let user = json!({"token": token.to_string()});
    let client = discovery::client(discovery::kubeconfig(&url, &found.authorities, &user)).await?;
    check_name(&client, node_name, &token).await?;
    let handover = Handover::fetch(&client, &token.id, &key).await?;
    let joined = Some(Joined { node_name: node_name.to_owned() });
    let record = ControlPlane { joined, ..handover.record.clone() };
    // The record alone says nothing yet: the keys are what makes a control node.
    record.write(data.path())?;
    handover.write(data.path())?;
    certify(&record, data, ambient)?;
    info!(node = node_name, server = %url, "received the keys of the cluster");
    Ok(record)
}

/// Issues the certificate with which this machine is a client of Hawser's etcd, or replaces it in time.
fn certify(record: &ControlPlane, data: &DataDir, ambient: &Ambient) -> Result<()> {
    if !record.etcd_started {
        return Ok(());
    }
    let pki = Pki::open_named(&data.join(etcd::PKI), etcd::AUTHORITY, ambient);
    let issued = pki.and_then(|pki| pki.load_or_issue("client", &Subject::etcd_client()));
    issued.map(drop).context("cannot issue the certificate for etcd")
}

/// Takes the member of a start that failed out of etcd's cluster.
async fn give_up_membership(data: &DataDir) {
    let left = async {
        let Some(record) = ControlPlane::read(data.path())? else { return Ok(()) };
        let Some(member) = &record.member else { return Ok(()) };
        etcd::leave(&etcd::flags_of(&record, data.path()), &member.peer_url).await
    };
    if let Err(error) = left.await {
        let error = format!("{error:#}");
        warn!(error, "etcd still lists this machine's member: remove it with `etcdctl member remove`");
    }
}
