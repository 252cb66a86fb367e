//! `cargo xtask up`: from a clean checkout to a running cluster, of this machine or of several nodes in
//! namespaces.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use tests_e2e::bed::{Bed, DUAL_STACK, Place, Stack};
use tests_e2e::control_nodes::{ControlNodes, Roles};
use tests_e2e::nodes::{Nodes, Programs};

use crate::{build_ebpf, image, setup, shell};

#[derive(clap::Args)]
pub struct Args {
    /// Number of nodes, each in namespaces of its own on this machine; the first has the control plane.
    /// Without it, this machine itself is the one node
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=100))]
    nodes: Option<u8>,
    /// With `--nodes`: number of nodes, the first ones, that have a control plane, on etcd; three survive the loss of
    /// one
    #[arg(long, value_name = "COUNT", requires = "nodes", value_parser = clap::value_parser!(u8).range(1..=7))]
    control_planes: Option<u8>,
    /// With `--nodes`: number of nodes, the last ones, that are behind a router and not on the first one's link
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "nodes")]
    routed: u8,
    /// With `--nodes`: nodes, pods and Services have addresses of IPv4 and of IPv6
    #[arg(long, requires = "nodes", conflicts_with = "control_planes")]
    dual_stack: bool,
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
    let Args { nodes, control_planes, routed, dual_stack, args } = args;
    setup::run(setup::Purpose::Run, false)?;
    let binary = match std::env::var_os("HAWSER") {
        Some(program) => program.into(),
        None => build_hawser()?,
    };
    let echo = image::echo()?;
    if let Some(count) = nodes {
        let programs = Programs { hawser: binary, echo_image: echo };
        let stack = if *dual_stack { Stack::Dual } else { Stack::Ipv4 };
        return several(*count, *control_planes, (*routed, stack), programs, args);
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
fn several(
    count: u8,
    control_planes: Option<u8>,
    (routed, stack): (u8, Stack),
    programs: Programs,
    args: &[String],
) -> Result<()> {
    if let Some(control) = control_planes.filter(|control| *control > count) {
        bail!("--control-planes {control}: there are {count} nodes");
    }
    if routed >= count {
        bail!("--routed {routed}: the first of {count} nodes has to be on the switch");
    }
    // A node that was a worker cannot become a control node.
    let kind = if control_planes.is_some() { "control-nodes" } else { "nodes" };
    let dir = Path::new(DATA_DIR).join(kind);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let lock = dir.join("lock");
    let file = std::fs::File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    file.try_lock().context("another `cargo xtask up --nodes` is running")?;
    let left = Bed::left_behind(BED, &dir)?;
    if control_planes.is_some() {
        ControlNodes::clear(&left, programs.clone())
    } else {
        Nodes::clear(&left, programs.clone())
    }
    .context("cannot remove what an earlier run left")?;
    drop(left);
    let place = |number| if number <= count - routed { Place::Switch } else { Place::Router };
    let places: Vec<_> = (1..=count).map(place).collect();
    let bed = Bed::named(BED, &dir, &places, stack)?;
    let mut flags: Vec<_> = if stack == Stack::Dual { DUAL_STACK.to_vec() } else { Vec::new() };
    flags.extend(args.iter().map(String::as_str));
    if let Some(control) = control_planes {
        let control = usize::from(control);
        let roles = Roles { control, members: control };
        let mut nodes = ControlNodes::start(&bed, programs, roles, &flags)?;
        until_interrupted(&bed, &nodes.kubeconfig())?;
        return nodes.down();
    }
    let mut nodes = Nodes::start(&bed, programs, &flags)?;
    until_interrupted(&bed, &nodes.kubeconfig())?;
    nodes.down()
}

/// Tells how to reach the nodes, and waits for SIGINT or SIGTERM.
fn until_interrupted(bed: &Bed, kubeconfig: &Path) -> Result<()> {
    // Only now, since children inherit what is blocked. A start that is interrupted is cleared by the next one.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().context("cannot block signals")?;
    println!("{} nodes are ready; kubeconfig: {}", bed.nodes.len(), kubeconfig.display());
    println!("on the first node: ip netns exec {} kubectl --kubeconfig …", bed.nodes[0].namespace());
    for node in &bed.nodes {
        let cut = node.link_command("down");
        println!("{}: {}, {}, cut off by: {cut}", node.name(), node.ips(), node.namespace());
    }
    signals.wait().context("cannot wait for a signal").map(drop)
}

/// Builds the release binary with the eBPF programs in it.
pub fn build_hawser() -> Result<PathBuf> {
    build_ebpf::run()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "userspace-hawser"]))?;
    Ok(shell::target_dir().join("release/hawser"))
}
