//! Three control nodes and a worker: one control node is lost under load, comes back, and another one leaves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests_e2e::bed::Place;
use tests_e2e::control_nodes::{ControlNodes, Roles};
use tests_e2e::etcd::Etcd;
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, echo_image, eventually, hawser, output};

/// Number of the worker, which was told the first node's API server.
const WORKER: usize = 4;

#[test]
#[ignore = "needs root, containerd, etcd and kubectl: cargo xtask test"]
fn control_node_that_is_lost_under_load_takes_nothing_acknowledged_along() -> Result<()> {
    let bed = Bed::new(&[Place::Switch; WORKER])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = ControlNodes::start(&bed, programs, Roles { control: 3, members: 3 }, &[])?;
    let outcome = story(&mut nodes);
    if outcome.is_err() {
        println!("{}", nodes.logs());
    }
    outcome?;
    nodes.down()
}

/// A control node may use the etcd of others, as it does where etcd is not Hawser's.
#[test]
#[ignore = "needs root, containerd, etcd and kubectl: cargo xtask test"]
fn control_node_without_a_member_uses_the_etcd_of_others() -> Result<()> {
    let bed = Bed::new(&[Place::Switch; 2])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = ControlNodes::start(&bed, programs, Roles { control: 2, members: 1 }, &[])?;
    nodes.kubectl(2, &["create", "configmap", "there"])?;
    nodes.kubectl(1, &["get", "configmap", "there"])?;
    ensure!(!nodes.data_dir(2).join("etcd").exists(), "it has a member");
    nodes.replace(&bed.nodes[1])?;
    eventually("the node to be back", || Ok(nodes.kubectl(2, &["get", "configmap", "there"]).ok()))?;
    let said = nodes.leave(&bed.nodes[1])?;
    ensure!(said.contains("node-2 has left"), "{said}");
    nodes.kubectl(1, &["get", "configmap", "there"])?;
    nodes.down()
}

/// The etcd is not Hawser's, and wants client certificates: the second control node gets one with the keys.
#[test]
#[ignore = "needs root, containerd, etcd and kubectl: cargo xtask test"]
fn control_nodes_share_an_etcd_that_hawser_did_not_start() -> Result<()> {
    let bed = Bed::new(&[Place::Switch; 2])?;
    let etcd = Etcd::start(&bed)?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let roles = Roles { control: 2, members: 0 };
    let mut nodes = ControlNodes::start_on(&bed, programs, roles, etcd.flags(), &[])?;
    let outcome = on_foreign_etcd(&mut nodes);
    if outcome.is_err() {
        println!("{}", nodes.logs());
    }
    outcome?;
    nodes.down()
}

fn on_foreign_etcd(nodes: &mut ControlNodes<'_>) -> Result<()> {
    let bed = nodes.bed;
    let mut words = nodes.token(&["--control-plane"])?;
    ensure!(words.iter().all(|word| word != "--etcd-start"), "{words:?}");
    words.push("--etcd-start".to_owned());
    let text = nodes.refusal(&bed.nodes[1], &words)?;
    ensure!(text.contains("the etcd of this cluster is not hawser's: leave it out"), "{text}");
    nodes.kubectl(2, &["create", "configmap", "there"])?;
    nodes.kubectl(1, &["get", "configmap", "there"])?;
    for number in [1, 2] {
        ensure!(!nodes.data_dir(number).join("etcd").exists(), "node {number} has a member");
    }
    private(&nodes.data_dir(2).join("pki/etcd"))?;

    // Neither needs the other, nor is the first one special.
    nodes.kill(&bed.nodes[0])?;
    nodes.kubectl(2, &["create", "configmap", "alone"])?;
    nodes.replace(&bed.nodes[1])?;
    eventually("the second node to be back", || Ok(nodes.kubectl(2, &["get", "configmap", "alone"]).ok()))?;
    nodes.restart(&bed.nodes[0])?;
    eventually("the first node to be back", || Ok(nodes.kubectl(1, &["get", "configmap", "alone"]).ok()))?;
    eventually("both servers to be listed", || {
        let slice = nodes.json(2, &["get", "endpointslice", "kubernetes"])?;
        Ok(slice["endpoints"].as_array().filter(|all| all.len() == 2).map(drop))
    })?;
    let said = nodes.leave(&bed.nodes[0])?;
    ensure!(said.contains("node-1 has left"), "{said}");
    ensure!(nodes.kubectl(2, &["get", "node", "node-1"]).is_err(), "the Node is still there");
    nodes.kubectl(2, &["create", "configmap", "after"])?;
    // The keys of the cluster would go with the last one.
    eventually("the first server to be forgotten", || {
        let slice = nodes.json(2, &["get", "endpointslice", "kubernetes"])?;
        Ok(slice["endpoints"].as_array().filter(|all| all.len() == 1).map(drop))
    })?;
    let refused = nodes.leave(&bed.nodes[1]);
    let text = format!("{:#}", refused.err().context("the last control node has left")?);
    ensure!(text.contains("the keys of the cluster would go with this machine"), "{text}");
    nodes.kubectl(2, &["get", "configmap", "after"]).map(drop)
}

fn story(nodes: &mut ControlNodes<'_>) -> Result<()> {
    strangers_get_no_keys(nodes)?;
    refusals_say_what_to_do(nodes)?;
    let bed = nodes.bed;
    let (stop, lost) = (AtomicBool::new(false), AtomicBool::new(false));
    let written = {
        let (nodes, stop, lost) = (&mut *nodes, &stop, &lost);
        let writers = [2, 3].map(|at| (at, nodes.kubectl_command(at)));
        std::thread::scope(|scope| -> Result<_> {
            let running = writers.map(|(at, command)| scope.spawn(move || write(at, command, stop, lost)));
            let outcome = lose_first(nodes, lost);
            stop.store(true, Ordering::SeqCst);
            let mut written = BTreeSet::new();
            for writer in running {
                written.extend(writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??);
            }
            outcome.map(|()| written)
        })?
    };
    println!("{} creates were acknowledged", written.len());
    everything_is_there(nodes, 2, &written)?;

    // It comes back with its data, and then another one leaves for good.
    nodes.restart(&bed.nodes[0])?;
    eventually("the first node to be back", || {
        Ok(nodes
            .kubectl(1, &["get", "--raw", "/readyz"])
            .ok()
            .filter(|_| nodes.is_ready(2, "node-1").unwrap_or_default()))
    })?;
    everything_is_there(nodes, 1, &written)?;
    cut_off(nodes)?;
    let said = nodes.leave(&bed.nodes[2])?;
    ensure!(said.contains("node-3 has left"), "{said}");
    ensure!(!nodes.data_dir(3).exists(), "leave left {}", nodes.data_dir(3).display());
    ensure!(nodes.kubectl(1, &["get", "node", "node-3"]).is_err(), "the Node is still there");
    nodes.kubectl(1, &["create", "configmap", "after"])?;
    // One that joined starts again without server, token or key.
    nodes.replace(&bed.nodes[1])?;
    eventually("the second node to be back", || Ok(nodes.kubectl(2, &["get", "configmap", "after"]).ok()))?;
    // The first one is not needed for ever.
    let said = nodes.leave(&bed.nodes[0])?;
    ensure!(said.contains("node-1 has left"), "{said}");
    nodes.kubectl(2, &["get", "configmap", "after"]).map(drop)
}

/// Cuts the second node off, whose API server the worker uses: its connections stay open, and nothing is answered.
fn cut_off(nodes: &ControlNodes<'_>) -> Result<()> {
    let second = &nodes.bed.nodes[1];
    second.cut()?;
    let began = Instant::now();
    eventually("the others to go on", || Ok(nodes.kubectl(3, &["create", "configmap", "cut"]).ok()))?;
    let renewed = lease(nodes, 3)?;
    eventually("the worker's lease to be renewed", || Ok((lease(nodes, 3)? > renewed).then_some(())))?;
    println!("the worker's lease was renewed {:?} after its server was cut off", began.elapsed());
    second.heal()?;
    eventually("the second node to catch up", || Ok(nodes.kubectl(2, &["get", "configmap", "cut"]).ok()))?;
    eventually("the second node to be ready", || Ok(nodes.is_ready(1, "node-2")?.then_some(())))
}

/// Each mistake is one line that says what to do, and leaves nothing behind.
fn refusals_say_what_to_do(nodes: &ControlNodes<'_>) -> Result<()> {
    let (offered, plain) = (nodes.token(&["--control-plane"])?, nodes.token(&[])?);
    let at =
        |flag: &str| offered.iter().position(|word| word == flag).map(|at| at + 1).context("no such flag");
    let with = |flag: &str, text: &str| -> Result<Vec<String>> {
        let mut words = offered.clone();
        words[at(flag)?] = text.to_owned();
        Ok(words)
    };
    let key = offered[at("--certificate-key")?].clone();
    let other = "0".repeat(64);
    let without_key: Vec<String> =
        offered.iter().filter(|word| **word != key && *word != "--certificate-key").cloned().collect();
    for (words, expected) in [
        (with("--certificate-key", &other)?, "--certificate-key is not that of the token's command line"),
        (with("--certificate-key", "short")?, "64 hexadecimal digits"),
        (with("--token", &plain[2])?, "make one with `hawser token create --control-plane`"),
        (without_key, "give SERVER, --token or --token-file, --certificate-key"),
    ] {
        let text = nodes.refusal(&nodes.bed.nodes[WORKER - 1], &words)?;
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("hawser: ")).collect();
        ensure!(lines.len() == 1 && lines[0].contains(expected), "{expected:?} is not in {text}");
        ensure!(!text.contains(&key) && !text.contains(&other), "a key was logged: {text}");
    }
    Ok(())
}

/// Kills the first node once there is load, and has the others run a new pod on the worker.
fn lose_first(nodes: &mut ControlNodes<'_>, lost: &AtomicBool) -> Result<()> {
    let bed = nodes.bed;
    eventually("load", || {
        let text = nodes.kubectl(2, &["get", "configmaps", "-o", "name"])?;
        Ok((text.lines().filter(|line| line.contains("/load-")).count() > 5).then_some(()))
    })?;
    lost.store(true, Ordering::SeqCst);
    nodes.kill(&bed.nodes[0])?;
    let killed = Instant::now();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "after-the-loss"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": format!("node-{WORKER}")}, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "hawser.local/echo:1", "args": ["serve"]}],
        },
    });
    let file = bed.dir().join("pod.json");
    fs::write(&file, pod.to_string())?;
    // A namespace gets its ServiceAccount, and an election may be going on.
    eventually("the pod to be created", || {
        Ok(nodes.kubectl(2, &["apply", "-f", &file.display().to_string()]).ok())
    })?;
    eventually("the pod to be scheduled", || {
        let pod = nodes.json(2, &["get", "pod", "after-the-loss"])?;
        Ok(pod["spec"]["nodeName"].is_string().then_some(()))
    })?;
    println!("a new pod was scheduled {:?} after the loss", killed.elapsed());
    nodes.kubectl(3, &["wait", "--for=condition=Ready", "pod/after-the-loss", "--timeout=120s"])?;
    println!("it was ready {:?} after the loss", killed.elapsed());
    // The worker was told the lost server, and goes on with another one.
    let renewed = lease(nodes, 3)?;
    eventually("the worker's lease to be renewed", || Ok((lease(nodes, 3)? > renewed).then_some(())))?;
    // Nor does it need the lost server to start.
    nodes.replace(&bed.nodes[WORKER - 1])?;
    let renewed = lease(nodes, 3)?;
    eventually("the worker's lease to be renewed", || Ok((lease(nodes, 3)? > renewed).then_some(())))
}

fn lease(nodes: &ControlNodes<'_>, at: usize) -> Result<String> {
    let lease = nodes.json(at, &["get", "lease", &format!("node-{WORKER}"), "-n", "kube-node-lease"])?;
    Ok(lease["spec"]["renewTime"].as_str().context("the lease was never renewed")?.to_owned())
}

/// Creates objects until told to stop, repeating one that fails once. Returns the names that were acknowledged.
fn write(at: usize, kubectl: Command, stop: &AtomicBool, lost: &AtomicBool) -> Result<Vec<String>> {
    let again = || {
        let mut command = Command::new(kubectl.get_program());
        command.args(kubectl.get_args());
        command.envs(kubectl.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command
    };
    let mut written = Vec::new();
    let mut failed = 0;
    for number in 0.. {
        let name = format!("load-{at}-{number}");
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let create = || output(again().args(["create", "configmap", &name]));
        match create() {
            Ok(_) => {}
            Err(error) if lost.load(Ordering::SeqCst) => {
                println!("writer {at}: {error:#}");
                failed += 1;
                match create() {
                    Ok(_) => {}
                    // The first attempt succeeded, and its answer did not arrive.
                    Err(error) if error.to_string().contains("already exists") => {}
                    Err(error) => return Err(error).context("a second attempt failed"),
                }
            }
            Err(error) => return Err(error).context("a create failed before anything was lost"),
        }
        written.push(name);
    }
    println!("writer {at}: {} created, {failed} of them at the second attempt", written.len());
    Ok(written)
}

fn everything_is_there(nodes: &ControlNodes<'_>, at: usize, written: &BTreeSet<String>) -> Result<()> {
    let text = nodes.kubectl(at, &["get", "configmaps", "-o", "name"])?;
    let found: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("configmap/")).collect();
    let missing: Vec<_> = written.iter().filter(|name| !found.contains(name.as_str())).collect();
    ensure!(missing.is_empty(), "lost: {missing:?}");
    Ok(())
}

/// Plays those who must not get the keys of the cluster: nobody, a node, a token for nodes, another token for control
/// nodes; and tries etcd with the certificates that they have.
fn strangers_get_no_keys(nodes: &ControlNodes<'_>) -> Result<()> {
    let bed = nodes.bed;
    let offered = nodes.token(&["--control-plane"])?;
    let of = |words: &[String]| -> Result<String> {
        let at = words.iter().position(|word| word == "--token").context("there is no token")?;
        Ok(words[at + 1].clone())
    };
    let token = of(&offered)?;
    let (id, _) = token.split_once('.').context("it is no token")?;
    let base = "https://192.0.2.1:6443/api/v1/namespaces/kube-system/secrets";
    let own = format!("{base}/hawser-control-plane-{id}");
    let bearer = |token: &str| vec!["-H".to_owned(), format!("Authorization: Bearer {token}")];
    let certificate = nodes.data_dir(WORKER).join("join/client.pem").display().to_string();
    let node = ["--cert", &certificate, "--key", &certificate].map(str::to_owned).to_vec();
    let ask = |credentials: &[String], url: &str| -> Result<String> {
        let mut curl = bed.nodes[WORKER - 1].on("curl");
        curl.args(["-sk", "-w", "\n%{http_code}", "--max-time", "10"]).args(credentials).arg(url);
        let answer = output(&mut curl)?;
        Ok(answer.lines().last().unwrap_or_default().to_owned())
    };
    // The token may, as soon as its role is known; what it gets is sealed.
    eventually("the token to read its keys", || Ok((ask(&bearer(&token), &own)? == "200").then_some(())))?;
    let plain = bearer(&of(&nodes.token(&[])?)?);
    let other = bearer(&of(&nodes.token(&["--control-plane"])?)?);
    eventually("a token to be known", || {
        Ok((ask(&plain, "https://192.0.2.1:6443/version")? == "200").then_some(()))
    })?;
    for (who, credentials) in
        [("nobody", &Vec::new()), ("a node", &node), ("a token", &plain), ("another", &other)]
    {
        let answer = ask(credentials, &own)?;
        ensure!(answer == "403" || answer == "401", "{who} got {answer}");
    }
    for (who, credentials) in [("the token", &bearer(&token)), ("a node", &node)] {
        let answer = ask(credentials, base)?;
        ensure!(answer == "403", "{who} lists secrets: {answer}");
    }
    for (port, credentials) in [(2379, &Vec::new()), (2379, &node), (2380, &Vec::new()), (2380, &node)] {
        let answer = ask(credentials, &format!("https://192.0.2.1:{port}/version"));
        ensure!(answer.is_err(), "etcd's port {port} answered {answer:?}");
    }
    // The keys lie open nowhere: neither in the Secret nor where others may read.
    let secret = nodes.kubectl(
        1,
        &["get", "secret", &format!("hawser-control-plane-{id}"), "-n", "kube-system", "-o", "yaml"],
    )?;
    ensure!(!secret.contains("PRIVATE KEY") && !secret.contains("LS0tLS1CRUdJTi"), "{secret}");
    private(&nodes.data_dir(2).join("pki"))?;
    // Once the token is deleted, nobody reads them.
    let delete =
        output(bed.nodes[0].on(hawser()?).args(["token", "delete", id, "--data-dir"]).arg(nodes.data_dir(1)));
    delete.context("cannot delete the token")?;
    eventually("the token to be refused", || Ok((ask(&bearer(&token), &own)? == "401").then_some(())))?;
    eventually("the sealed keys to be deleted", || {
        let name = format!("hawser-control-plane-{id}");
        Ok(nodes.kubectl(1, &["get", "secret", &name, "-n", "kube-system"]).is_err().then_some(()))
    })
}

/// Checks that nobody but the owner can read a directory of keys.
fn private(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(dir)?.permissions().mode() & 0o777;
    ensure!(mode == 0o700, "{} has mode {mode:o}", dir.display());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let mode = fs::metadata(&path)?.permissions().mode() & 0o077;
        ensure!(mode == 0, "{} has mode {mode:o}", path.display());
    }
    Ok(())
}
