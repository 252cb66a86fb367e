//! A cluster on a bed: `hawser up` on the first node, and on each other one `hawser join`, or `hawser kubelet`
//! and `hawser proxy`, started as an operator would.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::bed::{Bed, Node};
use crate::lab::Machine;
use crate::{Process, eventually, output};

/// The addresses of Services of type LoadBalancer, on the switch of the bed.
pub const LOAD_BALANCERS: &str = "192.0.2.200-192.0.2.209";

/// The programs and images of the cluster.
#[derive(Clone, Debug)]
pub struct Programs {
    pub hawser: PathBuf,
    /// An image archive that every node imports.
    pub echo_image: PathBuf,
}

/// The processes of all nodes. If dropped, they are killed and their traces removed.
pub struct Nodes<'a> {
    pub bed: &'a Bed,
    programs: Programs,
    /// Flags of the pod network, for all nodes.
    flags: Vec<String>,
    /// Values of `--node-ip` in place of the bed's, by the number of the node.
    ips: BTreeMap<usize, String>,
    /// Arguments of `hawser join`; `None` if the components of a node run apart.
    join: Option<Vec<String>>,
    /// Directories of credentials that this process has issued.
    issued: RefCell<BTreeSet<PathBuf>>,
    /// By node and component.
    running: BTreeMap<(usize, &'static str), Process>,
    /// Nothing is left to remove.
    down: bool,
}

impl<'a> Nodes<'a> {
    /// Starts all nodes and waits until all of them are ready.
    pub fn start(bed: &'a Bed, programs: Programs, flags: &[&str]) -> Result<Self> {
        let mut nodes = Self::new(bed, programs, flags);
        for node in &bed.nodes {
            nodes.run(node)?;
        }
        nodes.all_ready()?;
        Ok(nodes)
    }

    /// Starts the first node, has the others join it, and waits until all of them are ready.
    pub fn start_joined(bed: &'a Bed, programs: Programs, flags: &[&str]) -> Result<Self> {
        Self::start_joined_at(bed, programs, flags, &[])
    }

    /// Does so with other values of `--node-ip` than the bed's, by the number of the node.
    pub fn start_joined_at(
        bed: &'a Bed,
        programs: Programs,
        flags: &[&str],
        ips: &[(usize, String)],
    ) -> Result<Self> {
        let mut nodes = Self::new(bed, programs, flags);
        nodes.ips.extend(ips.iter().cloned());
        let (first, others) = bed.nodes.split_first().context("a bed without nodes")?;
        nodes.run(first)?;
        // The controllers sign the cluster's description, which those who join verify, just after the start.
        let line = eventually("a token", || nodes.token().map(Some)).with_context(|| nodes.logs())?;
        let words = line.split_whitespace().skip(2).map(str::to_owned);
        nodes.join = Some(words.collect());
        for node in others {
            nodes.run(node)?;
        }
        nodes.all_ready()?;
        Ok(nodes)
    }

    fn new(bed: &'a Bed, programs: Programs, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self {
            bed,
            programs,
            flags,
            ips: BTreeMap::new(),
            join: None,
            issued: RefCell::default(),
            running: BTreeMap::new(),
            down: false,
        }
    }

    /// Returns the command that joins a node, `hawser join SERVER --token T …`.
    fn token(&self) -> Result<String> {
        let mut command = self.bed.nodes[0].on(&self.programs.hawser);
        command.args(["token", "create", "--print-join-command", "--data-dir"]).arg(self.data_dir());
        output(&mut command)
    }

    fn all_ready(&self) -> Result<()> {
        eventually("all nodes to be ready", || {
            let ready = self.bed.nodes.iter().map(|node| self.is_ready(&node.name()));
            Ok(ready.collect::<Result<Vec<_>>>()?.into_iter().all(|ready| ready).then_some(()))
        })
        .with_context(|| self.logs())
    }

    /// Removes what the nodes of a bed left behind whose process was killed.
    pub fn clear(bed: &'a Bed, programs: Programs) -> Result<()> {
        bed.nodes.iter().try_for_each(Node::kill_all)?;
        Self::new(bed, programs, &[]).remove()
    }

    /// Starts what runs on a node and does not run yet.
    pub fn run(&mut self, node: &Node) -> Result<()> {
        if node.number == 1 {
            self.run_one(node, "up", self.up(node))?;
            return eventually("the API server to be ready", || {
                Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
            })
            .with_context(|| self.logs())
            .map(drop);
        }
        if let Some(words) = &self.join {
            let command = self.joined(node, words);
            return self.run_one(node, "join", command);
        }
        let (kubelet, proxy) = (self.kubelet(node)?, self.proxy(node)?);
        self.run_one(node, "kubelet", kubelet)?;
        self.run_one(node, "proxy", proxy)
    }

    fn run_one(&mut self, node: &Node, component: &'static str, mut command: Command) -> Result<()> {
        if let Entry::Vacant(place) = self.running.entry((node.number, component)) {
            let log = node.dir().join(format!("{component}.log"));
            place.insert(Process::start(&mut command, log)?);
        }
        Ok(())
    }

    fn up(&self, node: &Node) -> Command {
        let mut command = node.on(&self.programs.hawser);
        command.args(["up", "--node-name", &node.name(), "--node-ip", &self.ips(node)]);
        command.arg("--data-dir").arg(self.data_dir()).args(["--bpf-root", &node.bpf_root()]);
        command.args(["--load-balancer-ranges", LOAD_BALANCERS]);
        self.with_node_flags(node, command)
    }

    /// Returns the command that joins a node, or that continues as the node that has joined.
    fn joined(&self, node: &Node, words: &[String]) -> Command {
        let data = self.data_dir_of(node);
        let mut command = node.on(&self.programs.hawser);
        command.arg("join").arg("--data-dir").arg(&data);
        if !data.join("join").exists() {
            command.args(words);
        }
        command.args(["--node-name", &node.name(), "--node-ip", &self.ips(node)]);
        command.args(["--bpf-root", &node.bpf_root()]);
        self.with_node_flags(node, command)
    }

    fn kubelet(&self, node: &Node) -> Result<Command> {
        let of = self.credentials(node, "kubelet")?;
        let proxy = self.credentials(node, "proxy")?;
        let mut command = node.on(&self.programs.hawser);
        command.arg("kubelet").arg("--kubeconfig").arg(of.join("kubeconfig.yaml"));
        command.arg("--client-ca-file").arg(of.join("ca.crt"));
        command.arg("--tls-cert-file").arg(of.join("serving.crt"));
        command.arg("--tls-private-key-file").arg(of.join("serving.key"));
        command.arg("--pod-network-kubeconfig").arg(proxy.join("kubeconfig.yaml"));
        command.arg("--root-dir").arg(self.data_dir_of(node));
        command.args(["--hostname-override", &node.name(), "--node-ip", &self.ips(node)]);
        Ok(self.with_node_flags(node, command))
    }

    fn with_node_flags(&self, node: &Node, mut command: Command) -> Command {
        command.args(["--cgroup-root", &node.cgroup_root()]);
        // The machine's disk may be nearly full.
        command.args(["--eviction-hard", "memory.available<100Mi"]);
        command.arg("--import").arg(&self.programs.echo_image).args(&self.flags);
        command
    }

    fn proxy(&self, node: &Node) -> Result<Command> {
        let of = self.credentials(node, "proxy")?;
        let mut command = node.on(&self.programs.hawser);
        command.arg("proxy").arg("--kubeconfig").arg(of.join("kubeconfig.yaml"));
        command.args(["--hostname-override", &node.name(), "--node-ip", &node.ip()]);
        command.args(["--cgroup-root", &node.cgroup_root(), "--bpf-root", &node.bpf_root()]);
        command.arg("--announce-load-balancers");
        Ok(command)
    }

    /// Returns the value of `--node-ip` of a node.
    fn ips(&self, node: &Node) -> String {
        self.ips.get(&node.number).cloned().unwrap_or_else(|| node.ips())
    }

    /// Sets the value of `--node-ip` with which a node starts from now on.
    pub fn set_ips(&mut self, node: usize, ips: &str) {
        self.ips.insert(node, ips.to_owned());
    }

    /// Returns the first node's data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir_of(&self.bed.nodes[0])
    }

    fn data_dir_of(&self, node: &Node) -> PathBuf {
        node.dir().join(match (node.number, &self.join) {
            (1, _) => "data",
            (_, Some(_)) => "join",
            (_, None) => "kubelet",
        })
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig.yaml")
    }

    /// Issues the credentials of a node's component, as an operator would: once, since a component that is
    /// starting must not find the certificate of one issue and the key of another.
    fn credentials(&self, node: &Node, component: &str) -> Result<PathBuf> {
        let out = node.dir().join("credentials").join(component);
        if !self.issued.borrow_mut().insert(out.clone()) {
            return Ok(out);
        }
        let (first, name, ips) = (&self.bed.nodes[0], node.name(), self.ips(node));
        let server = format!("https://{}:6443", first.ip());
        let mut command = first.on(&self.programs.hawser);
        command.args(["credentials", "--component", component, "--server", &server]);
        if component == "kubelet" {
            command.args(["--node-name", &name, "--node-ip", &ips]);
        }
        output(command.arg("--data-dir").arg(self.data_dir()).arg("--out").arg(&out))?;
        Ok(out)
    }

    /// Returns the machine's kubectl on the first node.
    pub fn kubectl_command(&self) -> Command {
        let mut command = self.bed.nodes[0].on("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig()).env("HOME", self.bed.dir());
        command
    }

    /// Runs kubectl on the first node.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        crate::kubectl(self.kubectl_command().args(args))
    }

    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl -o json printed something else")
    }

    /// Returns `true` if a node reports that it is ready.
    pub fn is_ready(&self, name: &str) -> Result<bool> {
        let node = self.json(&["get", "node", name])?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    }

    /// Sends SIGKILL to a component.
    pub fn kill(&mut self, node: usize, component: &'static str) -> Result<()> {
        let process = self.running.remove(&(node, component));
        process.with_context(|| format!("{component} does not run on node {node}"))?.kill()
    }

    /// Sends SIGTERM to a component and starts it again.
    pub fn restart(&mut self, node: usize, component: &'static str) -> Result<()> {
        let process = self.running.remove(&(node, component));
        process.with_context(|| format!("{component} does not run on node {node}"))?.stop()?;
        let bed = self.bed;
        self.run(&bed.nodes[node - 1])
    }

    /// Returns the components that run, with the numbers of their nodes.
    pub fn components(&self) -> Vec<(usize, &'static str)> {
        self.running.keys().copied().collect()
    }

    /// Sends SIGTERM to all processes, the first node's last, and removes what they made.
    pub fn down(&mut self) -> Result<()> {
        while let Some(((node, component), process)) = self.running.pop_last() {
            process.stop().with_context(|| format!("{component} of node {node} did not stop"))?;
        }
        self.remove()
    }

    /// Restores all nodes, and goes on after errors.
    fn remove(&mut self) -> Result<()> {
        self.down = true;
        let mut errors = Vec::new();
        for node in &self.bed.nodes {
            let verb = if node.number != 1 && self.join.is_some() { "leave" } else { "down" };
            let mut commands = vec![node.on(&self.programs.hawser)];
            commands[0].arg(verb).arg("--data-dir").arg(self.data_dir_of(node));
            if node.number != 1 && self.join.is_none() {
                let mut cleanup = node.on(&self.programs.hawser);
                cleanup.args(["proxy", "--cleanup", "--bpf-root", &node.bpf_root()]);
                commands.push(cleanup);
            }
            errors.extend(commands.iter_mut().filter_map(|command| output(command).err()));
        }
        let errors: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
        ensure!(errors.is_empty(), "cannot restore all nodes:\n{}", errors.join("\n"));
        Ok(())
    }

    /// Returns the ends of all logs.
    pub fn logs(&self) -> String {
        let logs: Vec<_> = self.running.values().map(Process::log_tail).collect();
        logs.join("\n\n")
    }
}

impl Drop for Nodes<'_> {
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
