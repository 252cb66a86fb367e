//! A network policy that changes all the time, from the API server to the packets between pods of two nodes.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::json;
use tests_e2e::{Load, Nodes, eventually, output, root};

const CHANGES: &str = "2000";

/// Changes a policy for the pod `far` while the pod `near` of another node asks it. Every version admits `near`, but the
/// last.
pub fn change_all_the_time(nodes: &Nodes<'_>) -> Result<()> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "restless"},
        "spec": {"podSelector": {"matchLabels": {"app": "far"}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"app": "near"}}}]},
        ]},
    });
    let file = nodes.bed.dir().join("restless.json");
    fs::write(&file, policy.to_string())?;
    nodes.kubectl(&["apply", "-f", &file.display().to_string()])?;
    let client = |arguments: &[&str]| {
        let mut command = nodes.kubectl_command();
        command.args(["exec", "-i", "near", "--", "/echo"]).args(arguments);
        command
    };
    // A connection for each request, and one for all.
    let loads =
        [Load::start(&mut client(&["load", "far:80"]))?, Load::start(&mut client(&["hold", "far:80"]))?];
    let mut writer = nodes.bed.nodes[0].on("python3");
    // It imports a file beside it, whose compiled form would be left there.
    writer.env("PYTHONDONTWRITEBYTECODE", "1");
    writer.arg(root().join("tests/e2e/tests/policies.py")).arg(nodes.kubeconfig());
    let said = output(writer.args(["restless", "near", CHANGES]))?;
    ensure!(said.trim() == format!("{CHANGES} versions"), "{said}");
    for load in loads {
        let counts = load.finish()?;
        println!("{CHANGES} policies: {} requests, {} failed", counts.ok, counts.failed);
        ensure!(counts.failed == 0 && counts.ok > 10, "{counts:?}");
    }
    // Nobody falls behind for good: the node's tables become those of the last version.
    let nobody = json!({"spec": {"ingress": []}}).to_string();
    nodes.kubectl(&["patch", "networkpolicy", "restless", "--type=merge", "-p", &nobody])?;
    let ask = ["exec", "near", "--", "/echo", "udp", "far:80"];
    eventually("the last version to hold", || Ok(nodes.kubectl(&ask).is_err().then_some(())))?;
    nodes.kubectl(&["delete", "networkpolicy", "restless"])?;
    eventually("the policy to end", || Ok(nodes.kubectl(&ask).ok())).map(drop)
}
