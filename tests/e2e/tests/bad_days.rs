//! Failing starts, which must give one clear message, a non-zero exit code, and leave nothing behind; and
//! bursts of work, which must not leak memory.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Cluster, Lab, Process, Snapshot, echo, eventually, hawser, output, root};

/// Returns a `hawser up` command that stays within the lab.
fn up(lab: &Lab, more: &[&str]) -> Result<Command> {
    let mut command = lab.on_node(hawser()?);
    command
        .args(["up", "--node-name", "node-1", "--node-ip", NODE_IP, "--cgroup-root", &lab.cgroup_root()])
        .args(["--bpf-root", &format!("/sys/fs/bpf/{}", lab.id)])
        .arg("--data-dir")
        .arg(lab.data_dir())
        .args(more);
    Ok(command)
}

/// Runs a command that must fail; returns its output.
fn refusal(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot start hawser up")?;
    ensure!(!output.status.success(), "it ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().rev().find(|line| line.starts_with("hawser: "));
    line.map(str::to_owned).with_context(|| format!("no line that says why: {text}"))
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn a_failed_start_reports_why_and_leaves_nothing_behind() -> Result<()> {
    let lab = Lab::new()?;
    let before = Snapshot::take(&lab)?;
    let unchanged = |what: &str| -> Result<()> {
        let differences = Snapshot::take(&lab)?.differences(&before);
        ensure!(differences.is_empty(), "{what} left:\n{}", differences.join("\n"));
        ensure!(!lab.data_dir().exists(), "{what} left its data directory");
        Ok(())
    };
    for (port, flag) in
        [("6443", "--api-port"), ("10250", "--kubelet-port"), ("10256", "--healthz-bind-address")]
    {
        let mut holder = lab.on_node(echo()?);
        let holder = Process::start(holder.env("PORT", port), lab.dir().join("holder.log"))?;
        eventually("the port to be taken", || {
            Ok(output(lab.on_node(echo()?).args(["get", &format!("127.0.0.1:{port}")])).ok())
        })?;
        let why = refusal(&mut up(&lab, &[])?)?;
        ensure!(why.contains(port) && why.contains(flag), "port {port} taken: {why}");
        holder.kill()?;
        unchanged(flag)?;
    }
    for (args, expected) in [
        (["--import", "/nowhere.tar"], "no such file"),
        (["--service-cidr", "10.244.0.0/16"], "overlap"),
        (["--container-runtime-endpoint", "unix:///nowhere.sock"], "container runtime"),
    ] {
        let why = refusal(&mut up(&lab, &args)?)?;
        ensure!(why.contains(expected), "{args:?}: {why}");
        unchanged(args[0])?;
    }
    std::fs::create_dir_all(lab.data_dir())?;
    std::fs::write(lab.data_dir().join("mine.txt"), "mine")?;
    let why = refusal(&mut up(&lab, &[])?)?;
    ensure!(why.contains("not a data directory of hawser"), "a directory of others: {why}");
    ensure!(
        std::fs::read_to_string(lab.data_dir().join("mine.txt"))? == "mine",
        "another's file was touched"
    );
    Ok(())
}

/// Maximum growth of resident memory after ten thousand pods.
const GROWTH: usize = 10 << 20;

/// Returns the resident bytes of `hawser up` without file pages, which the kernel reclaims on demand and
/// which depend on the code that runs.
fn resident(cluster: &Cluster<'_>) -> Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn creating_and_deleting_ten_thousand_pods_leaks_no_memory() -> Result<()> {
    let lab = Lab::new()?;
    // The history for watches and in the store also takes memory, so it is shorter than by default.
    let mut cluster = Cluster::with(&lab, &["--etcd-compaction-interval", "10s"])?;
    let pods = |count: &str| {
        let script = root().join("tests/e2e/tests/pods.py");
        output(lab.on_node("python3").arg(script).arg(cluster.kubeconfig()).arg(count))
    };
    // The start's own memory is given back after some seconds: on a slow machine before the next line, else later.
    let start = resident(&cluster)?;
    // The first requests allocate memory of their own, such as that of connections.
    pods("16")?;
    let before = resident(&cluster)?.max(start);
    pods("10000")?;
    let peak = resident(&cluster)?;
    // Watches can begin up to 75 seconds in the past.
    let mut last = peak;
    for _ in 0..3 {
        let given_back = eventually("memory to be given back", || {
            last = resident(&cluster)?;
            Ok((last <= before + GROWTH).then_some(()))
        });
        if given_back.is_ok() {
            println!(
                "{} MiB resident before, {} MiB with its past, {} MiB after",
                before >> 20,
                peak >> 20,
                last >> 20
            );
            cluster.stop()?;
            return Ok(());
        }
    }
    anyhow::bail!(
        "{} MiB resident before ten thousand pods and {} MiB after, {} MiB between",
        before >> 20,
        last >> 20,
        peak >> 20
    )
}
