//! `hawser controllers`: the controllers as a process of their own, against any Kubernetes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use apiserver_auth::authentication::tokens::SecretTokens;
use apiserver_client::requests::Requests;
use apiserver_client::{Accounts, Informers, authority, connect_counted};
use apiserver_meta::ambient::Ambient;
use controllers_manager::{Authority, Config, Document, DocumentError, Metrics, Signing, TokenIssuer};
use controllers_runtime::Lane;
use tracing::warn;
use userspace_daemon::shutdown;

use crate::args::Controllers;
use crate::components::{identity, read, server, token_issuer};
use crate::controllers_args::ManagerFlags;
use crate::controllers_metrics::{self, Election};
use crate::node_args::{LoadBalancers, Networks};
use crate::server_names;

/// Name under which the controllers write and elect.
const MANAGER: &str = "kube-controller-manager";

/// Runs until a signal, or until the lease is lost.
pub async fn controllers(args: Controllers) -> Result<()> {
    let Controllers { config, flags, secure_port, probes, load_balancers } = args;
    let ambient = Ambient::system();
    let document = document(config.as_deref(), &flags)?;
    let config = of_document(&document, &flags, &identity(&ambient))?;
    let kubeconfig =
        document.kubeconfig().context("--kubeconfig is missing, and the file of --config has none")?;
    let kubeconfig = Path::new(kubeconfig);
    load_balancers.check(&Networks {
        service_cidrs: config.service_cidrs.clone(),
        cluster_cidrs: config.cluster_cidrs.clone(),
    })?;
    let LoadBalancers { load_balancer_ranges, load_balancer_classless } = load_balancers;
    let stop = shutdown::on_signal()?;
    let requests = Requests::new(&server(kubeconfig).unwrap_or_default());
    let client = connect_counted(kubeconfig, MANAGER, &requests).await?;
    let metrics = Metrics::default();
    let election = config.leader_election.clone();
    let shown = election.as_ref().map(|election| Election {
        lease: election.name.clone(),
        duration: election.lease_duration,
        status: election.status.clone(),
    });
    let pages = controllers_metrics::pages(&document, &metrics, &requests, shown);
    probes.answer(secure_port, pages.for_users_of(client.clone()), &stop).await?;
    let clients = if document.uses_account_credentials() {
        let accounts = Accounts::new(kubeconfig, MANAGER, client.clone(), ambient.clone()).await?;
        let measured = requests.clone();
        let client = move |account: &str| measured.around(accounts.client(account));
        Some(controllers_manager::Clients(Arc::new(client)))
    } else {
        None
    };
    let leader_election = match election {
        // Connections of its own: nothing that the controllers send delays a renewal.
        Some(mut election) => {
            election.lane = Lane(Some(connect_counted(kubeconfig, MANAGER, &requests).await?));
            Some(election)
        }
        None => None,
    };
    let root_ca = match document.root_ca_file() {
        Some(file) => read(Path::new(file))?,
        None => authority(kubeconfig).await?.unwrap_or_default(),
    };
    let config = Config {
        api_servers: server_names::known(kubeconfig, &stop).await?,
        load_balancer_ranges,
        load_balancer_classless,
        root_ca,
        signing: signing_of(&document)?,
        token_issuer: issuer_of(document.account_key_file())?,
        leader_election,
        clients,
        metrics,
        ..config
    };
    let informers = Informers::new(client, ambient.clone(), stop.clone());
    controllers_manager::run(config, informers, ambient, stop).await.context("the controllers cannot run")
}

/// Returns the authorities of the signers of certificate requests; `None` if no signer has one.
fn signing_of(document: &Document) -> Result<Option<Signing>> {
    let mut authorities = BTreeMap::new();
    for (signer, (certificate, key)) in document.signing_files() {
        let authority = Authority::new(&read(Path::new(certificate))?, &read(Path::new(key))?);
        let authority = authority.with_context(|| {
            format!("cannot sign for {signer} with the certificate {certificate} and the key {key}")
        })?;
        authorities.insert(signer, Arc::new(authority));
    }
    let duration = document.signing_duration();
    Ok((!authorities.is_empty()).then_some(Signing { authorities, duration }))
}

/// Returns the configuration that the file and the flags ask for.
fn document(file: Option<&Path>, flags: &ManagerFlags) -> Result<Document> {
    let mut document = match file {
        None => Document::default(),
        Some(file) => {
            let text = read(file)?;
            let (document, idle) =
                Document::parse(&text).with_context(|| format!("cannot use --config {}", file.display()))?;
            if !idle.is_empty() {
                warn!(fields = idle.join(", "), file = %file.display(), "fields of --config have no effect");
            }
            document
        }
    };
    flags.apply_to(&mut document)?;
    let idle = flags.without_effect();
    if !idle.is_empty() {
        warn!(flags = idle.join(", "), "flags have no effect");
    }
    Ok(document)
}

fn of_document(document: &Document, flags: &ManagerFlags, identity: &str) -> Result<Config> {
    document.config(identity).map_err(|error| {
        let DocumentError::Fields(problems) = error else { return error.into() };
        let named = problems.iter().map(|problem| match problem.split_once(": ") {
            Some((path, problem)) => format!("{}: {problem}", flags.name_of(path)),
            None => problem.clone(),
        });
        DocumentError::Fields(named.collect()).into()
    })
}

fn issuer_of(key_file: Option<&str>) -> Result<Option<TokenIssuer>> {
    let Some(file) = key_file else { return Ok(None) };
    let tokens = SecretTokens::read(Path::new(file))
        .with_context(|| format!("cannot sign tokens of ServiceAccounts with the key {file}"))?;
    Ok(Some(token_issuer(tokens)))
}
