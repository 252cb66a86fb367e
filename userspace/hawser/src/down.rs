//! `hawser down`: restores the machine. Goes on after errors and reports all of them.

use anyhow::{Context, Result, bail};
use kubelet_agent::containerd;

use crate::args::Down;
use crate::data_dir::{DataDir, Made};
use crate::etcd;
use crate::node::Directories;

/// Stops the pods, then removes what carried them. API objects and the volumes of claims stay in the data
/// directory.
pub async fn run(args: Down) -> Result<()> {
    let Down { data_dir } = args;
    if !data_dir.exists() {
        println!("{} does not exist: nothing to do", data_dir.display());
        return Ok(());
    }
    let data = DataDir::open_existing(&data_dir)?;
    let Some(made) = data.made()? else {
        println!("nothing to remove");
        return Ok(());
    };
    let errors = remove(&data, &made).await;
    if !errors.is_empty() {
        let list: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
        bail!("cannot remove everything; run it again after correcting this:\n  {}", list.join("\n  "));
    }
    data.forget()
}

/// Removes everything that was made; goes on after errors and returns all of them.
pub async fn remove(data: &DataDir, made: &Made) -> Vec<anyhow::Error> {
    let directories = Directories::new(data.path());
    let mut errors = Vec::new();
    errors.extend(etcd::stop(data.path()).await.err());
    if made.runtime_endpoint.is_none() {
        errors.extend(stop_pods(&directories, &made.cgroup_root).await.err());
    }
    if let Err(restore) = userspace_network::restore(&directories.network()).await {
        errors.extend(
            restore
                .0
                .into_iter()
                .map(|error| anyhow::Error::new(error).context("cannot restore the network")),
        );
    }
    if let Some(bpf_root) = &made.bpf_root {
        let removed = userspace_dataplane::remove(bpf_root);
        errors.extend(removed.context("cannot remove the eBPF programs and maps").err());
        errors.extend(userspace_proxy::route::remove().await.map_err(anyhow::Error::new).err());
    }
    // The record may be needed for the next attempt if anything failed.
    if errors.is_empty() {
        errors.extend(directories.remove());
    }
    errors
}

async fn stop_pods(directories: &Directories, cgroup_root: &str) -> Result<()> {
    containerd::tear_down(&directories.containerd_config()?, cgroup_root, true)
        .await
        .context("cannot stop the pods and containerd")
}
