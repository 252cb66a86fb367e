//! A cluster of several control nodes on a bed: `hawser up --store etcd --etcd-start` on the first node, `hawser join
//! --control-plane` on further ones, `hawser join` on the rest, started as an operator would.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::bed::{Bed, Node};
use crate::lab::Machine;
use crate::nodes::Programs;
use crate::{Process, eventually, output};

/// Number of nodes with a control plane, and of those among them with a member of etcd; the first ones each.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    pub control: usize,
    pub members: usize,
}

/// The processes of all nodes. If dropped, they are killed and their traces removed.
pub struct ControlNodes<'a> {
    pub bed: &'a Bed,
    programs: Programs,
    /// Flags of the pod network, for all nodes.
    flags: Vec<String>,
    /// Flags of the store, for the first node.
    store: Vec<String>,
    /// By node.
    running: BTreeMap<usize, Process>,
    /// Nothing is left to remove.
    down: bool,
}

impl<'a> ControlNodes<'a> {
    /// Starts all nodes, and waits until all of them are ready.
    pub fn start(bed: &'a Bed, programs: Programs, roles: Roles, flags: &[&str]) -> Result<Self> {
        let store = ["--store", "etcd", "--etcd-start"].map(str::to_owned).to_vec();
        Self::start_on(bed, programs, roles, store, flags)
    }

    /// Does so with other flags of the store for the first node.
    pub fn start_on(
        bed: &'a Bed,
        programs: Programs,
        roles: Roles,
        store: Vec<String>,
        flags: &[&str],
    ) -> Result<Self> {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut nodes = Self { bed, programs, flags, store, running: BTreeMap::new(), down: false };
        nodes.bring_up(roles).with_context(|| nodes.logs())?;
        Ok(nodes)
    }

    fn bring_up(&mut self, Roles { control, members }: Roles) -> Result<()> {
        let bed = self.bed;
        self.restart(&bed.nodes[0])?;
        eventually("the API server to be ready", || Ok(self.kubectl(1, &["get", "--raw", "/readyz"]).ok()))?;
        for node in &bed.nodes[1..] {
            let kind: &[&str] = if node.number <= control { &["--control-plane"] } else { &[] };
            // The signature that a token brings is made a moment after the start.
            let mut words = eventually("a token", || self.token(kind).map(Some))?;
            words.retain(|word| word != "--etcd-start" || node.number <= members);
            self.join(node, &words)?;
        }
        eventually("all nodes to be ready", || {
            let ready = bed.nodes.iter().map(|node| self.is_ready(1, &node.name()));
            Ok(ready.collect::<Result<Vec<_>>>()?.into_iter().all(|ready| ready).then_some(()))
        })
    }

    /// Makes a token at the first node; returns the arguments of `hawser join` that it prints.
    pub fn token(&self, flags: &[&str]) -> Result<Vec<String>> {
        let first = &self.bed.nodes[0];
        let mut command = first.on(&self.programs.hawser);
        command.args(["token", "create", "--print-join-command"]).args(flags);
        let line = output(command.arg("--data-dir").arg(self.data_dir(1)))?;
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ensure!(words.len() > 2 && words[..2] == ["hawser", "join"], "{line}");
        Ok(words[2..].to_vec())
    }

    /// Starts a node that has joined before, or the first one.
    pub fn restart(&mut self, node: &Node) -> Result<()> {
        if node.number > 1 {
            return self.join(node, &[]);
        }
        let mut command = node.on(&self.programs.hawser);
        command.arg("up").args(&self.store);
        self.run(node, command)
    }

    fn join(&mut self, node: &Node, words: &[String]) -> Result<()> {
        let mut command = node.on(&self.programs.hawser);
        command.arg("join").args(words);
        self.run(node, command)
    }

    fn run(&mut self, node: &Node, mut command: Command) -> Result<()> {
        command.args(["--node-name", &node.name(), "--node-ip", &node.ips()]);
        command.arg("--data-dir").arg(self.data_dir(node.number)).args(["--bpf-root", &node.bpf_root()]);
        command.args(["--cgroup-root", &node.cgroup_root()]);
        // The machine's disk may be nearly full.
        command.args(["--eviction-hard", "memory.available<100Mi"]);
        command.arg("--import").arg(&self.programs.echo_image).args(&self.flags);
        let log = node.dir().join("hawser.log");
        self.running.insert(node.number, Process::start(&mut command, log)?);
        Ok(())
    }

    /// Ends Hawser on a node in good order, and starts it again; pods and etcd go on meanwhile.
    pub fn replace(&mut self, node: &Node) -> Result<()> {
        let process = self.running.remove(&node.number);
        process.with_context(|| format!("hawser does not run on node {}", node.number))?.stop()?;
        self.restart(node)
    }

    /// Returns what `hawser join` says on a node that it refuses, with a data directory of its own.
    pub fn refusal(&self, node: &Node, words: &[String]) -> Result<String> {
        let data = node.dir().join("refused");
        let mut command = node.on(&self.programs.hawser);
        command.arg("join").args(words).arg("--data-dir").arg(&data).args(["--node-name", "refused"]);
        let answer = command.output().context("cannot start hawser join")?;
        ensure!(!answer.status.success(), "{words:?} joined");
        ensure!(!data.exists(), "{words:?} left {}", data.display());
        Ok(String::from_utf8_lossy(&answer.stderr).into_owned())
    }

    /// Kills everything on a node, as if its machine had lost power.
    pub fn kill(&mut self, node: &Node) -> Result<()> {
        node.kill_all()?;
        self.running.remove(&node.number);
        Ok(())
    }

    /// Takes a node out of the cluster.
    pub fn leave(&mut self, node: &Node) -> Result<String> {
        let mut command = node.on(&self.programs.hawser);
        let said = output(command.arg("leave").arg("--data-dir").arg(self.data_dir(node.number)))?;
        self.running.remove(&node.number);
        Ok(said)
    }

    /// Returns the data directory of a node.
    pub fn data_dir(&self, number: usize) -> PathBuf {
        self.bed.nodes[number - 1].dir().join("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir(1).join("kubeconfig.yaml")
    }

    /// Returns the machine's kubectl on a control node, with the API server of that node.
    pub fn kubectl_command(&self, number: usize) -> Command {
        let mut command = self.bed.nodes[number - 1].on("kubectl");
        let kubeconfig = self.data_dir(number).join("kubeconfig.yaml");
        command.arg("--kubeconfig").arg(kubeconfig).env("HOME", self.bed.dir());
        command
    }

    /// Runs kubectl on a control node.
    pub fn kubectl(&self, number: usize, args: &[&str]) -> Result<String> {
        crate::kubectl(self.kubectl_command(number).args(args))
    }

    pub fn json(&self, number: usize, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(number, &[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl -o json printed something else")
    }

    /// Returns `true` if a node reports that it is ready, as a control node sees it.
    pub fn is_ready(&self, at: usize, name: &str) -> Result<bool> {
        let node = self.json(at, &["get", "node", name])?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    }

    /// Sends SIGTERM to all processes, the first node's last, and removes what they made.
    pub fn down(&mut self) -> Result<()> {
        while let Some((node, process)) = self.running.pop_last() {
            process.stop().with_context(|| format!("hawser of node {node} did not stop"))?;
        }
        self.remove()
    }

    /// Restores all nodes, and goes on after errors.
    fn remove(&mut self) -> Result<()> {
        self.down = true;
        let mut errors = Vec::new();
        for node in &self.bed.nodes {
            let mut command = node.on(&self.programs.hawser);
            command.arg("down").arg("--data-dir").arg(self.data_dir(node.number));
            if let Err(error) = output(&mut command) {
                errors.push(error);
                // Such as after a `leave` that failed: what is pinned would stay.
                let mut cleanup = node.on(&self.programs.hawser);
                cleanup.args(["proxy", "--cleanup", "--bpf-root", &node.bpf_root()]);
                errors.extend(output(&mut cleanup).err());
            }
            // Nothing of a node outlives its bed.
            errors.extend(node.kill_all().err());
        }
        let errors: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
        ensure!(errors.is_empty(), "cannot restore all nodes:\n{}", errors.join("\n"));
        Ok(())
    }

    /// Removes what the nodes of a bed left behind whose process was killed.
    pub fn clear(bed: &'a Bed, programs: Programs) -> Result<()> {
        bed.nodes.iter().try_for_each(Node::kill_all)?;
        let (flags, store, running) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { bed, programs, flags, store, running, down: false }.remove()
    }

    /// Returns the ends of all logs.
    pub fn logs(&self) -> String {
        let logs: Vec<_> = self.running.values().map(Process::log_tail).collect();
        logs.join("\n\n")
    }
}

impl Drop for ControlNodes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        self.running.clear();
        if !self.down
            && let Err(error) = self.remove()
        {
            println!("{error:#}");
        }
    }
}
