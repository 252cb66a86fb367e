//! A claim without a class: its files outlive its pods, a pod cannot leave its directory, and the directory goes with
//! the claim.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::{Cluster, eventually};

pub fn claims_keep_files(cluster: &Cluster<'_>) -> Result<()> {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "echo"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    eventually("the default class", || Ok(cluster.get("storageclass local-path").ok()))?;
    apply(cluster, &claim)?;
    let claim = cluster.get("pvc data -n echo")?;
    ensure!(claim["spec"]["storageClassName"] == "local-path", "the claim has no class: {claim:#}");
    apply(cluster, &pod("first", None))?;
    cluster.kubectl("wait pod/first -n echo --for=condition=Ready --timeout=60s")?;
    cluster.kubectl("exec -n echo first -- /echo write /data/word kept")?;
    cluster.kubectl("delete pod first -n echo")?;
    apply(cluster, &pod("second", None))?;
    cluster.kubectl("wait pod/second -n echo --for=condition=Ready --timeout=60s")?;
    let word = cluster.kubectl("exec -n echo second -- /echo cat /data/word")?;
    ensure!(word.trim() == "kept", "the second pod reads {word:?}");

    let directory = directory(cluster)?;
    let host = cluster.lab.dir().join("host");
    fs::create_dir(&host)?;
    fs::write(host.join("treasure"), "gold")?;
    a_link_leads_nowhere(cluster, &directory, &host)?;
    cluster.kubectl("delete pod second -n echo")?;
    cluster.kubectl("delete pvc data -n echo")?;
    eventually("the volume to be gone", || {
        let left = cluster.get("pv")?["items"].as_array().is_some_and(|all| !all.is_empty());
        Ok((!left && !directory.exists()).then_some(()))
    })?;
    ensure!(fs::read_to_string(host.join("treasure"))? == "gold", "what a link led to is gone");
    Ok(())
}

fn apply(cluster: &Cluster<'_>, object: &Value) -> Result<()> {
    let file = cluster.lab.dir().join("storage.json");
    fs::write(&file, object.to_string()).context("cannot write the manifest")?;
    cluster.kubectl_args(&["apply", "-f", &file.display().to_string()]).map(drop)
}

fn pod(name: &str, part: Option<&str>) -> Value {
    let mount = json!({"name": "data", "mountPath": "/data", "subPath": part});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "echo", "name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "echo", "image": "hawser.local/echo:1", "volumeMounts": [mount]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    })
}

/// Returns the directory of the claim's volume.
fn directory(cluster: &Cluster<'_>) -> Result<PathBuf> {
    let volumes = cluster.get("pv")?;
    let volume = &volumes["items"][0];
    ensure!(volume["status"]["phase"] == "Bound", "the volume is not bound: {volumes:#}");
    let path = PathBuf::from(volume["spec"]["local"]["path"].as_str().context("the volume has no path")?);
    let inside = path.starts_with(cluster.lab.data_dir().canonicalize()?.join("volumes"));
    ensure!(inside && path.join("word").is_file(), "the volume is not in its place: {}", path.display());
    Ok(path)
}

/// A pod has planted links in its volume, and another one mounts what they lead to.
fn a_link_leads_nowhere(cluster: &Cluster<'_>, directory: &Path, host: &Path) -> Result<()> {
    symlink(host, directory.join("link"))?;
    apply(cluster, &pod("thief", Some("link")))?;
    let refused = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    };
    eventually("the pod to be refused", || Ok(Some(cluster.get("pod thief -n echo")?).filter(refused)))?;
    cluster.kubectl("delete pod thief -n echo").map(drop)
}
