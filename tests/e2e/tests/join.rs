//! A second machine joins a cluster, lives through the replacement of its certificates and kill -9, and leaves.
//! It is the lab's other host: it has a network namespace and a cgroup of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::lab::{CLIENT_IP, NODE_IP, unified};
use tests_e2e::{Cluster, Lab, Process, Snapshot, echo_image, eventually, hawser, output};

const NAME: &str = "node-2";

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_machine_joins_rotates_its_certificates_and_leaves() -> Result<()> {
    let lab = Lab::new()?;
    let machine = Machine::new(&lab)?;
    // Certificates live so short that they are replaced while the test runs.
    let mut cluster = Cluster::with(&lab, &["--cluster-signing-duration", "60s"])?;
    // The lab has just made the link: what was seen before it is up would count as a difference.
    eventually("the link to be up", || Ok((!machine.network()?.contains("NO-CARRIER")).then_some(())))?;
    let before = (Snapshot::take(&lab)?, machine.network()?);
    let join = join_command(&cluster)?;

    refusals_say_what_to_do(&cluster, &machine, &join)?;
    // Where nobody can read it among the command lines.
    let file = lab.dir().join("token");
    fs::write(&file, &join[2])?;
    let mut hidden = join.clone();
    hidden.splice(1..3, ["--token-file".to_owned(), file.display().to_string()]);
    let mut process = machine.start(&hidden)?;
    let outcome = life(&cluster, &machine, &mut process);
    if outcome.is_err() {
        println!("{}", process.log_tail());
    }
    outcome?;
    leave(&cluster, &machine, process)?;
    eventually("the machine to be as before", || {
        let mut differences = Snapshot::take(&lab)?.differences(&before.0);
        if machine.network()? != before.1 {
            differences.push(format!("{}\nbefore:\n{}", machine.network()?, before.1));
        }
        ensure!(differences.is_empty(), "leave left the machine different:\n{}", differences.join("\n"));
        Ok(Some(()))
    })?;
    ensure!(!machine.data_dir().exists(), "leave left {}", machine.data_dir().display());
    cluster.stop()
}

/// Returns the arguments of `hawser join` that an administrator copies.
fn join_command(cluster: &Cluster<'_>) -> Result<Vec<String>> {
    // The controllers make the signature, and the server the ConfigMap, just after the start.
    let line = eventually("a token", || {
        token(cluster, &["create", "--description", "test", "--print-join-command"]).map(Some)
    })?;
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    ensure!(words[..2] == ["hawser", "join"] && words[2] == format!("{NODE_IP}:6443"), "{line}");
    ensure!(words[3] == "--token" && words[5] == "--discovery-token-ca-cert-hash", "{line}");
    let list = token(cluster, &["list"])?;
    ensure!(list.contains(&words[4]) && list.contains("authentication") && list.contains("test"), "{list}");
    Ok(words[2..].to_vec())
}

fn token(cluster: &Cluster<'_>, args: &[&str]) -> Result<String> {
    let mut command = cluster.lab.on_node(hawser()?);
    output(command.arg("token").args(args).arg("--data-dir").arg(cluster.lab.data_dir()))
}

/// Each mistake is one line that says what to do, and leaves nothing behind.
fn refusals_say_what_to_do(cluster: &Cluster<'_>, machine: &Machine<'_>, join: &[String]) -> Result<()> {
    let with = |at: usize, text: &str| {
        let mut words = join.to_vec();
        words[at] = text.to_owned();
        words
    };
    let wrong_hash = format!("sha256:{}", "0".repeat(64));
    let unknown = "zzzzzz.zyxwvu9876543210";
    let forged = format!("{}.zyxwvu9876543210", &join[2][..6]);
    token(cluster, &["create", "--ttl", "1s", "short0.zyxwvu9876543210"])?;
    eventually("an expired token to be deleted", || {
        Ok((!token(cluster, &["list"])?.contains("short0")).then_some(()))
    })?;
    let name = |name: &str| [join, &["--node-name".to_owned(), name.to_owned()]].concat();
    for (words, expected) in [
        (with(4, &wrong_hash), "somebody stands in for the API server"),
        (with(2, unknown), "make another one with `hawser token create`"),
        (with(2, "short0.zyxwvu9876543210"), "make another one with `hawser token create`"),
        (with(2, &forged), "check the token"),
        (with(2, "nonsense"), "does not have the form"),
        (with(0, &format!("{NODE_IP}:1")), "check the address"),
        (name("node-1"), "node-1 is in the cluster and alive: give another --node-name"),
        (join[..3].to_vec(), "--discovery-token-ca-cert-hash is missing"),
        (Vec::new(), "this machine has not joined a cluster"),
    ] {
        let refused = machine.command(&words)?.output().context("cannot start hawser join")?;
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("hawser: ")).collect();
        ensure!(!refused.status.success(), "{words:?} joined");
        ensure!(lines.len() == 1 && lines[0].contains(expected), "{words:?}: {expected:?} is not in {text}");
        ensure!(!text.contains("zyxwvu9876543210"), "a secret was logged: {text}");
        ensure!(!machine.data_dir().exists(), "{words:?} left {}", machine.data_dir().display());
    }
    Ok(())
}

fn life(cluster: &Cluster<'_>, machine: &Machine<'_>, process: &mut Process) -> Result<()> {
    eventually("the node to be ready", || ready(cluster))?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there"},
        "spec": {
            "nodeName": NAME, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "hawser.local/echo:1", "args": ["serve"]}],
        },
    });
    let file = cluster.lab.dir().join("pod.json");
    fs::write(&file, pod.to_string())?;
    cluster.kubectl_args(&["apply", "-f", &file.display().to_string()])?;
    cluster.kubectl("wait --for=condition=Ready pod/there --timeout=120s")?;
    // Logs come from the node server, whose certificate the API server verifies.
    eventually("logs", || Ok(cluster.kubectl("logs there").ok().filter(|logs| !logs.is_empty())))?;
    requests_are_as_they_should(cluster)?;

    let pid = process.pid();
    let first = machine.certificates()?;
    for round in 1..=2 {
        let before = machine.certificates()?;
        for name in ["client.pem", "serving.pem"] {
            eventually(&format!("a new {name}, round {round}"), || {
                Ok((machine.certificates()?.get(name) != before.get(name)).then_some(()))
            })?;
        }
    }
    // The first certificates have ended by now; the node still reports, and its server still answers.
    ensure!(machine.certificates()? != first && process.pid() == pid);
    let renewed = lease(cluster)?;
    eventually("the lease to be renewed", || Ok((lease(cluster)? > renewed).then_some(())))?;
    eventually("logs", || Ok(cluster.kubectl("logs there").ok().filter(|logs| !logs.is_empty())))?;
    ready(cluster)?.context("the node is not ready any more")?;

    let restarts = restarts(cluster)?;
    let killed = std::mem::replace(process, machine.idle()?);
    killed.kill()?;
    // No server or token is passed: the machine has joined already.
    *process = machine.start(&[])?;
    let renewed = lease(cluster)?;
    eventually("the lease to be renewed again", || Ok((lease(cluster)? > renewed).then_some(())))?;
    eventually("the node to be ready again", || ready(cluster))?;
    ensure!(self::restarts(cluster)? == restarts, "the pod was restarted");
    Ok(())
}

/// The signed requests carry the reasons that Kubernetes gives.
fn requests_are_as_they_should(cluster: &Cluster<'_>) -> Result<()> {
    let requests = cluster.get("csr")?["items"].as_array().cloned().unwrap_or_default();
    for (signer, author) in [
        ("kubernetes.io/kube-apiserver-client-kubelet", "system:bootstrap:"),
        ("kubernetes.io/kubelet-serving", "system:node:node-2"),
    ] {
        let request = requests.iter().find(|request| {
            let spec = &request["spec"];
            spec["signerName"] == signer && spec["username"].as_str().unwrap_or_default().starts_with(author)
        });
        let condition = &request.with_context(|| format!("no request of {author} to {signer}"))?["status"]["conditions"]
            [0];
        ensure!(condition["type"] == "Approved" && condition["reason"] == "AutoApproved", "{condition}");
    }
    Ok(())
}

fn leave(cluster: &Cluster<'_>, machine: &Machine<'_>, process: Process) -> Result<()> {
    let lab = cluster.lab;
    let out = lab.dir().join("admin");
    let server = format!("https://{NODE_IP}:6443");
    let mut credentials = lab.on_node(hawser()?);
    credentials.args(["credentials", "--component", "admin", "--server", &server, "--data-dir"]);
    output(credentials.arg(lab.data_dir()).arg("--out").arg(&out))?;
    let mut leave = machine.on(hawser()?);
    leave.arg("leave").arg("--data-dir").arg(machine.data_dir()).arg("--drain");
    let said = output(leave.arg("--kubeconfig").arg(out.join("kubeconfig.yaml")))?;
    ensure!(said.contains("node-2 has left"), "{said}");
    drop(process);
    ensure!(cluster.kubectl("get node node-2").is_err(), "the Node is still there");
    ensure!(cluster.kubectl("get pod there").is_err(), "the pod was not evicted");
    fs::remove_dir_all(&out)?;
    // With nothing to leave, it says so.
    let again = output(machine.on(hawser()?).arg("leave").arg("--data-dir").arg(machine.data_dir()))?;
    ensure!(again.contains("nothing to do"), "{again}");
    Ok(())
}

fn ready(cluster: &Cluster<'_>) -> Result<Option<()>> {
    let node = cluster.get("node node-2")?;
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    Ok(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True").then_some(()))
}

fn lease(cluster: &Cluster<'_>) -> Result<String> {
    let lease = cluster.get("lease node-2 -n kube-node-lease")?;
    Ok(lease["spec"]["renewTime"].as_str().context("the lease was never renewed")?.to_owned())
}

fn restarts(cluster: &Cluster<'_>) -> Result<Value> {
    Ok(cluster.get("pod there")?["status"]["containerStatuses"][0]["restartCount"].clone())
}

/// The lab's other host as a node.
struct Machine<'a> {
    lab: &'a Lab,
    cgroup: PathBuf,
    id: String,
}

impl<'a> Machine<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let id = format!("{}j", lab.id);
        let cgroup = unified()?.join(&id);
        fs::create_dir_all(&cgroup).with_context(|| format!("cannot make {}", cgroup.display()))?;
        Ok(Self { lab, cgroup, id })
    }

    fn data_dir(&self) -> PathBuf {
        self.lab.dir().join(NAME)
    }

    /// Returns a command for a program on the machine.
    fn on(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg("echo $$ > \"$0\"/cgroup.procs && net=$1 && shift && exec nsenter --net=\"$net\" -- \"$@\"")
            .arg(&self.cgroup)
            .arg(format!("/run/netns/{}c", self.lab.id))
            .arg(program.as_ref());
        command
    }

    fn command(&self, words: &[String]) -> Result<Command> {
        let mut command = self.on(hawser()?);
        command.arg("join").arg("--data-dir").arg(self.data_dir());
        if !words.iter().any(|word| word == "--node-name") {
            command.args(["--node-name", NAME]);
        }
        command.args(["--node-ip", CLIENT_IP, "--cgroup-root", &format!("/{}", self.id)]);
        command.args(["--bpf-root", &format!("/sys/fs/bpf/{}", self.id)]);
        // The machine's disk may be nearly full, which is not what is tested.
        command.args(["--eviction-hard", "memory.available<100Mi"]).arg("--import").arg(echo_image()?);
        command.args(words);
        Ok(command)
    }

    fn start(&self, words: &[String]) -> Result<Process> {
        Process::start(&mut self.command(words)?, self.lab.dir().join("join.log"))
    }

    /// Returns a process that does nothing.
    fn idle(&self) -> Result<Process> {
        Process::start(&mut Command::new("true"), self.lab.dir().join("idle.log"))
    }

    /// Returns the contents of the files of the node's certificates.
    fn certificates(&self) -> Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(self.data_dir().join("join")).context("the node has not joined")? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "pem") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                found.insert(name, fs::read_to_string(&path)?);
            }
        }
        Ok(found)
    }

    /// Returns links, addresses, routes and rules of the machine.
    fn network(&self) -> Result<String> {
        let namespace = format!("{}c", self.lab.id);
        let mut text = String::new();
        for line in ["-o link", "-o addr", "-4 route show table all", "-6 route show table all", "rule"] {
            let args = ["-n", &namespace].into_iter().chain(line.split(' '));
            text.push_str(&output(Command::new("ip").args(args))?);
        }
        Ok(text)
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if self.data_dir().exists() {
            let left = hawser().and_then(|hawser| {
                output(self.on(hawser).arg("leave").arg("--data-dir").arg(self.data_dir()))
            });
            if let Err(error) = left {
                println!("hawser leave: {error:#}");
            }
        }
        remove_cgroup(&self.cgroup);
    }
}

/// Removes a cgroup with rmdir, children first.
fn remove_cgroup(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}
