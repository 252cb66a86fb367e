//! `cargo xtask up`: from a clean checkout to a running cluster, of this machine or of several nodes in
//! namespaces.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use tests_e2e::bed::{Bed, Place};
use tests_e2e::nodes::{Nodes, Programs};

use crate::{build_ebpf, image, setup, shell};

#[derive(clap::Args)]
pub struct Args {
    /// Number of nodes, each in namespaces of its own on this machine; the first has the control plane.
    /// Without it, this machine itself is the one node
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=100))]
    nodes: Option<u8>,
    /// With `--nodes`: number of nodes, the last ones, that are behind a router and not on the first one's link
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "nodes")]
    routed: u8,
    /// Arguments for `hawser up`; with `--nodes`, flags of the pod network for all nodes
    #[arg(last = true)]
    args: Vec<String>,
}

/// Part of the names of namespaces, cgroups and pins of several nodes.
const BED: &str = "hawser";

/// Data directory of the cluster unless `--data-dir` is among the arguments.
const DATA_DIR: &str = "/var/lib/hawser";

/// Sets up, builds (unless `HAWSER` names a program), and replaces this process by `hawser up`, or runs
/// several nodes until it is interrupted.
pub fn run(args: &Args) -> Result<()> {
    let Args { nodes, routed, args } = args;
    setup::run(setup::Purpose::Run, false)?;
    let binary = match std::env::var_os("HAWSER") {
        Some(program) => program.into(),
        None => build_hawser()?,
    };
    let echo = image::echo()?;
    if let Some(count) = nodes {
        return several(*count, *routed, Programs { hawser: binary, echo_image: echo }, args);
    }
    let mut command = Command::new(binary);
    command.arg("up");
    if !args.iter().any(|a| a == "--data-dir" || a.starts_with("--data-dir=")) {
        command.args(["--data-dir", DATA_DIR]);
    }
    command.arg("--import").arg(echo).args(args);
    Err(command.exec()).context("cannot start hawser")
}

/// Runs a cluster of several nodes until SIGINT or SIGTERM, and leaves nothing but its data.
fn several(count: u8, routed: u8, programs: Programs, args: &[String]) -> Result<()> {
    if routed >= count {
        bail!("--routed {routed}: the first of {count} nodes has to be on the switch");
    }
    let dir = Path::new(DATA_DIR).join("nodes");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let lock = dir.join("lock");
    let file = std::fs::File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    file.try_lock().context("another `cargo xtask up --nodes` is running")?;
    Nodes::clear(&Bed::left_behind(BED, &dir)?, programs.clone())
        .context("cannot remove what an earlier run left")?;
    let place = |number| if number <= count - routed { Place::Switch } else { Place::Router };
    let places: Vec<_> = (1..=count).map(place).collect();
    let bed = Bed::named(BED, &dir, &places)?;
    let flags: Vec<_> = args.iter().map(String::as_str).collect();
    let mut nodes = Nodes::start(&bed, programs, &flags)?;
    // Only now, since children inherit what is blocked. A start that is interrupted is cleared by the next one.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().context("cannot block signals")?;
    println!("{count} nodes are ready; kubeconfig: {}", nodes.kubeconfig().display());
    println!("on the first node: ip netns exec {} kubectl --kubeconfig …", bed.nodes[0].namespace());
    for node in &bed.nodes {
        let cut = node.link_command("down");
        println!("{}: {}, {}, cut off by: {cut}", node.name(), node.ip(), node.namespace());
    }
    signals.wait().context("cannot wait for a signal")?;
    nodes.down()
}

/// Builds the release binary with the eBPF programs in it.
pub fn build_hawser() -> Result<PathBuf> {
    build_ebpf::run()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "userspace-hawser"]))?;
    Ok(shell::target_dir().join("release/hawser"))
}
