//! A cluster on a bed: `hawser up` on the first node, and on each other one `hawser kubelet` and `hawser
//! proxy`, started as an operator would.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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
    /// By node and component.
    running: BTreeMap<(usize, &'static str), Process>,
    /// Nothing is left to remove.
    down: bool,
}

impl<'a> Nodes<'a> {
    /// Starts all nodes and waits until all of them are ready.
    pub fn start(bed: &'a Bed, programs: Programs, flags: &[&str]) -> Result<Self> {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut nodes = Self { bed, programs, flags, running: BTreeMap::new(), down: false };
        for node in &bed.nodes {
            nodes.run(node)?;
        }
        eventually("all nodes to be ready", || {
            let ready = bed.nodes.iter().map(|node| nodes.is_ready(&node.name()));
            Ok(ready.collect::<Result<Vec<_>>>()?.into_iter().all(|ready| ready).then_some(()))
        })
        .with_context(|| nodes.logs())?;
        Ok(nodes)
    }

    /// Removes what the nodes of a bed left behind whose process was killed.
    pub fn clear(bed: &'a Bed, programs: Programs) -> Result<()> {
        bed.nodes.iter().try_for_each(Node::kill_all)?;
        Self { bed, programs, flags: Vec::new(), running: BTreeMap::new(), down: false }.remove()
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
        command.args(["up", "--node-name", &node.name(), "--node-ip", &node.ip()]);
        command.arg("--data-dir").arg(self.data_dir()).args(["--bpf-root", &node.bpf_root()]);
        command.args(["--load-balancer-ranges", LOAD_BALANCERS]);
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
        command.arg("--root-dir").arg(node.dir().join("kubelet"));
        command.args(["--hostname-override", &node.name(), "--node-ip", &node.ip()]);
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

    /// Returns the first node's data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.bed.nodes[0].dir().join("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig.yaml")
    }

    /// Issues the credentials of a node's component, as an operator would: once, since a component that is
    /// starting must not find the certificate of one issue and the key of another.
    fn credentials(&self, node: &Node, component: &str) -> Result<PathBuf> {
        let out = node.dir().join("credentials").join(component);
        if out.exists() {
            return Ok(out);
        }
        let (first, name, ip) = (&self.bed.nodes[0], node.name(), node.ip());
        let server = format!("https://{}:6443", first.ip());
        let mut command = first.on(&self.programs.hawser);
        command.args(["credentials", "--component", component, "--server", &server]);
        if component == "kubelet" {
            command.args(["--node-name", &name, "--node-ip", &ip]);
        }
        output(command.arg("--data-dir").arg(self.data_dir()).arg("--out").arg(&out))?;
        Ok(out)
    }

    /// Runs the machine's kubectl on the first node.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.bed.nodes[0].on("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig()).env("HOME", self.bed.dir());
        output(command.args(args))
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
            let data = if node.number == 1 { self.data_dir() } else { node.dir().join("kubelet") };
            let mut commands = vec![node.on(&self.programs.hawser)];
            commands[0].arg("down").arg("--data-dir").arg(data);
            if node.number != 1 {
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
