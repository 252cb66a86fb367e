//! `hawser proxy`: replaces kube-proxy in any cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use apiserver_meta::ambient::Ambient;
use http::header::USER_AGENT;
use kube::Client;
use kube::config::{Config as ClientConfig, KubeConfigOptions, Kubeconfig};
use tracing::{debug, info, warn};
use userspace_daemon::logging::Form;
use userspace_daemon::shutdown;
use userspace_dataplane::RootLock;
use userspace_proxy::kube_proxy::OOM_SCORE;
use userspace_proxy::{Config, File, KubeProxyConfiguration, Note, adjust, cleanup, notes, route};

use crate::args::Proxy;
use crate::limits;
use crate::node::{self, Surroundings};
use crate::node_proxy;
use crate::proxy_args::{Act, Cleanup, ProxyRun, Resolved, resolve};
use crate::{lock, look};

/// The log settings of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Logging {
    pub form: Form,
    /// Replaces `info`.
    pub filter: Option<&'static str>,
}

/// Runs the command that was given.
pub async fn run(args: Proxy) -> Result<()> {
    let Proxy { look, run } = args;
    if let Some(look) = look {
        return look::run(look).await;
    }
    let ProxyRun { act, kube_proxy, lists, own, sizes } = run;
    let Act { config: path, write_config_to, cleanup, init_only } = act;
    let (file, text) = match &path {
        Some(path) => {
            let text = read(path)?;
            let file = File::parse(&text)
                .with_context(|| format!("cannot use the configuration {}", path.display()))?;
            (Some(file), text)
        }
        None => (None, String::new()),
    };
    let resolved = resolve(&kube_proxy, &lists, file.as_ref())?;
    if let Some(to) = write_config_to {
        return write(resolved.configuration, &to);
    }
    say(&resolved, file.as_ref(), path.as_deref());
    let mut configuration = resolved.configuration;
    match cleanup.unwrap_or(Cleanup::Nothing) {
        Cleanup::Nothing => {}
        Cleanup::Everything => return clean_up(&own.bpf_root, &configuration).await,
        Cleanup::KubeProxy => {
            let hold = userspace_dataplane::others_pass(&own.bpf_root)
                .context("cannot tell whether connections of kube-proxy's are open; nothing was removed")?;
            return done(remove_leftovers(&configuration, hold).await);
        }
    }
    if configuration.hostname_override.is_empty() {
        configuration.hostname_override = node::host_name();
    }
    let mut config =
        Config::new(&configuration, &own.own()).context("the proxy's configuration cannot be used")?;
    let data_plane = userspace_dataplane::Config {
        limits: sizes.limits(),
        xdp: own.xdp_mode.into(),
        xdp_redirect: own.xdp_redirect,
        ..node::data_plane(own.cgroup_mount.as_deref(), &own.cgroup_root, &own.bpf_root)?
    };
    existing(&data_plane.cgroup)?;
    userspace_dataplane::preflight(&data_plane).context("the data plane cannot work here")?;
    adjust_machine(&configuration);
    if init_only.unwrap_or(false) {
        let _lock = lock::take(&own.bpf_root, limits::LOCK_WAIT).await?;
        drop(userspace_dataplane::Kernel::open(data_plane).context("cannot open the data plane")?);
        warn_of_leftovers().await;
        info!("the privileged setup is done; start the proxy without --init-only");
        return Ok(());
    }
    let stop = shutdown::on_signal()?;
    let (client, api_server) = client(&configuration, kube_proxy.master.as_deref()).await?;
    config.api_server = api_server;
    let ambient = Ambient::system();
    tokio::spawn(warn_of_leftovers());
    let around = Surroundings { ambient: &ambient, stop: &stop };
    let open = node_proxy::open(config, data_plane, stop.clone()).await?;
    let proxy = node_proxy::run(open, client, None, &around);
    tokio::select! {
        ended = proxy => ended.context("the proxy failed"),
        path = changed(path, text) => {
            // The supervisor of this process starts it again with the new configuration, as it does kube-proxy.
            stop.cancel();
            bail!("the configuration {} has changed: ending, to be started with the new one", path.display())
        }
    }
}

/// Checks that the cgroup exists. A proxy balances the sockets of a kubelet's pods, whose cgroup exists by
/// then: a missing one is a mistake, and hooks on a new one would see no socket.
fn existing(cgroup: &Path) -> Result<()> {
    if cgroup.is_dir() {
        return Ok(());
    }
    bail!(
        "there is no cgroup {}: give --cgroup-root one that the node's pods are in, or / for all, and \
         --cgroup-mount the directory where cgroup2 is mounted",
        cgroup.display()
    )
}

/// Returns the log settings. A configuration that cannot be used is reported later.
pub fn logging(args: &Proxy) -> Logging {
    let Proxy { look, run } = args;
    if look.is_some() {
        return Logging::default();
    }
    let text = run.act.config.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let file = text.and_then(|text| File::parse(&text).ok());
    let Ok(resolved) = resolve(&run.kube_proxy, &run.lists, file.as_ref()) else { return Logging::default() };
    let logging = resolved.configuration.logging;
    let filter = match logging.verbosity {
        0..4 => None,
        4..8 => Some("info,hawser=debug,userspace_proxy=debug,userspace_dataplane=debug"),
        8..10 => Some("debug"),
        _ => Some("trace"),
    };
    let form = if logging.format == "json" { Form::Json } else { Form::Text };
    Logging { form, filter }
}

/// Logs one line for each setting that may not have the expected effect.
fn say(resolved: &Resolved, file: Option<&File>, path: Option<&Path>) {
    let Resolved { configuration, overruled, meaningless } = resolved;
    for oddity in file.iter().flat_map(|file| &file.oddities) {
        let path = path.map(Path::display);
        warn!(file = path.map(tracing::field::display), "problem in the configuration: {oddity}");
    }
    if !overruled.is_empty() {
        info!("these flags have no effect besides --config: --{}", overruled.join(", --"));
    }
    if let Some(list) = unused(meaningless, &notes(configuration)) {
        info!("settings without an effect: {list}");
    }
}

/// Lists the settings that have no effect, each with the reason where there is one to give.
fn unused(flags: &[String], notes: &[Note]) -> Option<String> {
    let flags = flags.iter().map(|flag| format!("--{flag}"));
    let fields = notes.iter().map(|note| format!("{} ({})", note.field, note.reason));
    let list: Vec<_> = flags.chain(fields).collect();
    (!list.is_empty()).then(|| list.join(", "))
}

fn write(configuration: KubeProxyConfiguration, to: &Path) -> Result<()> {
    let text = userspace_proxy::write(configuration).context("cannot write the configuration")?;
    std::fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))?;
    info!(file = %to.display(), "wrote the configuration");
    Ok(())
}

/// Removes all that a proxy left; goes on after errors and returns all of them. Touches nothing while a proxy
/// runs.
async fn clean_up(bpf_root: &Path, configuration: &KubeProxyConfiguration) -> Result<()> {
    let _lock = RootLock::take_existing(bpf_root).context("nothing was removed")?;
    let mut errors = remove_leftovers(configuration, false).await;
    match route::remove().await {
        Ok(0) => {}
        Ok(routes) => info!("removed {routes} routes of last resort"),
        Err(error) => errors.push(error.into()),
    }
    let removed = userspace_dataplane::remove(bpf_root).context("cannot remove the eBPF programs and maps");
    errors.extend(removed.err());
    done(errors)
}

/// Removes what kube-proxy left, and returns the errors. With `hold`, the connections that it translated go
/// on: the kernel's connection tracking knows them without its rules, but needs one rule to stay active.
async fn remove_leftovers(configuration: &KubeProxyConfiguration, hold: bool) -> Vec<anyhow::Error> {
    let mut errors = Vec::new();
    let excluded: Vec<_> =
        configuration.ipvs.exclude_cidrs.iter().filter_map(|range| range.parse().ok()).collect();
    let (found, failed) = cleanup::find(&excluded).await;
    errors.extend(failed.into_iter().map(anyhow::Error::new));
    if hold {
        if let Err(error) = cleanup::hold(&found).await {
            let error = anyhow::Error::new(error);
            errors.push(error.context("kube-proxy's rules stay: connections that they translate would end"));
            return errors;
        }
        info!(
            "a rule that does nothing keeps the connections going that kube-proxy translated; once they \
             have ended, --cleanup=kube-proxy removes it"
        );
    }
    for leftover in found {
        if let cleanup::Leftover::IpTables { tool, removal } = &leftover {
            for chain in &removal.kept {
                warn!("{tool}: {chain} stays because rules of others lead to it");
            }
        }
        match cleanup::remove(&leftover).await {
            Ok(()) => info!("removed {leftover}"),
            Err(error) => errors.push(anyhow::Error::new(error).context(format!("cannot remove {leftover}"))),
        }
    }
    if !hold {
        let (released, failed) = cleanup::release().await;
        if released > 0 {
            info!("removed {released} rules that kept connections of kube-proxy alive");
        }
        errors.extend(failed.into_iter().map(anyhow::Error::new));
    }
    errors
}

fn done(errors: Vec<anyhow::Error>) -> Result<()> {
    if errors.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
    bail!("cannot remove everything; run it again after correcting this:\n  {}", list.join("\n  "))
}

/// Warns of rules that kube-proxy left. They do no harm, since sockets and packets are translated before they
/// reach them, but they cost time and nothing maintains them.
async fn warn_of_leftovers() {
    let (found, errors) = cleanup::find(&[]).await;
    for error in errors {
        debug!(error = &error as &dyn std::error::Error, "cannot look for kube-proxy's rules");
    }
    if !found.is_empty() {
        let list: Vec<_> = found.iter().map(ToString::to_string).collect();
        warn!(
            "kube-proxy left {}: nothing new needs them; remove them with `hawser proxy \
             --cleanup=kube-proxy` while this proxy runs: connections that they translate go on",
            list.join(", ")
        );
    }
}

/// Applies the kernel settings that the configuration names. A setting that the machine refuses is logged and
/// does not end the process.
fn adjust_machine(configuration: &KubeProxyConfiguration) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for sysctl in adjust::sysctls(&configuration.conntrack, processors) {
        match adjust::set(&sysctl) {
            Ok(true) => info!("{} is {} now", sysctl.name, sysctl.value),
            Ok(false) => {}
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "cannot set a kernel parameter")
            }
        }
    }
    let asked = configuration.oom_score_adj;
    if let Err(error) = adjust::set_oom_score(asked.unwrap_or(OOM_SCORE)) {
        let error = &error as &dyn std::error::Error;
        if asked.is_some() {
            warn!(error, "cannot set the out-of-memory score");
        } else {
            debug!(error, "cannot set the out-of-memory score");
        }
    }
}

/// Returns a client from the kubeconfig or the pod's service account, and the server's host; nothing is sent
/// yet.
async fn client(configuration: &KubeProxyConfiguration, master: Option<&str>) -> Result<(Client, String)> {
    let kubeconfig = &configuration.client_connection.kubeconfig;
    let mut config = if kubeconfig.is_empty() {
        ClientConfig::incluster().context(
            "hawser proxy needs --kubeconfig FILE, or clientConnection.kubeconfig in --config FILE, or the service \
             account of a pod; services, backends, connections look into the tables",
        )?
    } else {
        let read = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("cannot read the kubeconfig {kubeconfig}"))?;
        let options = KubeConfigOptions::default();
        let made = ClientConfig::from_custom_kubeconfig(read, &options).await;
        made.with_context(|| format!("cannot use the kubeconfig {kubeconfig}"))?
    };
    if let Some(master) = master.filter(|master| !master.is_empty()) {
        config.cluster_url = master.parse().with_context(|| format!("--master {master:?} is not a URL"))?;
    }
    config.headers.extend(apiserver_client::user_agent("kube-proxy").map(|agent| (USER_AGENT, agent)));
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let client = apiserver_client::client(config).context("cannot make a client for the API server")?;
    Ok((client, host))
}

/// Waits until the content of the file differs, or for ever without a file.
async fn changed(path: Option<PathBuf>, text: String) -> PathBuf {
    let Some(path) = path else { return std::future::pending().await };
    loop {
        tokio::time::sleep(limits::CONFIG_FILE_CHECK).await;
        // A file that is missing for a moment is being replaced.
        if std::fs::read_to_string(&path).is_ok_and(|now| now != text) {
            return path;
        }
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_lists_all_that_is_not_acted_upon() {
        let mut given = KubeProxyConfiguration::default();
        assert_eq!(unused(&[], &notes(&given)), None);
        given.ipvs.scheduler = "wlc".to_owned();
        given.enable_profiling = true;
        let line = unused(&["udp-timeout".to_owned()], &notes(&given)).unwrap();
        assert!(line.starts_with("--udp-timeout, enableProfiling (there is no profiler"), "{line}");
        assert!(line.contains("ipvs.scheduler (") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_cgroup_that_is_not_there_is_not_made() {
        let mount = tempfile::tempdir().unwrap();
        existing(mount.path()).unwrap();
        let mistyped = mount.path().join("kubepod.slice");
        let said = existing(&mistyped).unwrap_err().to_string();
        assert!(said.contains(&mistyped.display().to_string()) && said.contains("--cgroup-root"), "{said}");
        assert!(!mistyped.exists());
    }
}
