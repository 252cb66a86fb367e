//! A node: the credentials of the kubelet of `node-2`, used by an attacker who has taken over that machine.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests_e2e::lab::CLIENT_IP;
use tests_e2e::{Cluster, Lab, eventually};

use crate::attack::attacker::{Attacker, apply, attack, must_refuse, start};
use crate::attack::tenant::request;

const MANIFEST: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: treasure, namespace: default}
data: {gold: dHJlYXN1cmU=}
---
apiVersion: v1
kind: Secret
metadata: {name: mine, namespace: default}
data: {tin: dGlu}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: treasure, namespace: default}
data: {gold: treasure}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: powerful, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: guest, namespace: default}
---
apiVersion: v1
kind: Pod
metadata: {name: elsewhere, namespace: default, labels: {app: elsewhere}}
spec:
  nodeName: node-1
  serviceAccountName: powerful
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: hawser.local/echo:1, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: guest, namespace: default, labels: {app: guest}}
spec:
  nodeName: node-2
  serviceAccountName: guest
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: hawser.local/echo:1
    imagePullPolicy: Never
    volumeMounts: [{name: mine, mountPath: /mine}]
  volumes: [{name: mine, secret: {secretName: mine}}]
"#;

struct Stolen<'a> {
    cluster: &'a Cluster<'a>,
    node: Attacker<'a>,
}

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_node_reaches_only_its_own_pods() -> Result<()> {
    let lab = Lab::new()?;
    let cluster = Cluster::up(&lab)?;
    let node = Attacker::node(&cluster, "node-2", CLIENT_IP)?;
    let made = node.create("/api/v1/nodes", &json!({"kind": "Node", "metadata": {"name": "node-2"}}))?;
    ensure!(made.status == 201, "node-2 cannot register: {}", start(&made.body));
    apply(&cluster, "node.yaml", MANIFEST)?;
    let stolen = Stolen { cluster: &cluster, node };
    attack(
        &cluster,
        &stolen,
        &[
            ("a node reads what its pods refer to", &own_objects_are_read),
            ("a node reads no other Secret or ConfigMap", &others_are_not_read),
            ("a node does not change the labels that placement trusts", &restricted_labels),
            ("a node does not own, taint or delete its Node away", &own_node),
            ("a node does not touch other nodes", &other_nodes),
            ("a node does not change its pods beyond their status", &pods),
            ("a mirror pod brings nothing with it", &mirror_pods),
            ("a node gets tokens for its own pods and their audiences alone", &tokens),
            ("a node gets certificates for itself alone", &certificates),
            ("a node grants nothing and runs nothing", &the_rest),
        ],
    )
}

fn own_objects_are_read(stolen: &Stolen<'_>) -> Result<()> {
    for path in [
        "/api/v1/nodes/node-2",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-2",
        "/api/v1/namespaces/default/secrets/mine",
        "/api/v1/services",
    ] {
        let answer = stolen.node.get(path)?;
        ensure!(answer.status == 200, "GET {path} was answered with {}: {}", answer.status, answer.body);
    }
    Ok(())
}

fn others_are_not_read(stolen: &Stolen<'_>) -> Result<()> {
    for path in [
        "/api/v1/secrets",
        "/api/v1/configmaps",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/secrets/treasure",
        "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dtreasure",
        "/api/v1/namespaces/default/secrets?watch=1&timeoutSeconds=1",
        "/api/v1/watch/namespaces/default/secrets/treasure?timeoutSeconds=1",
        "/api/v1/namespaces/default/configmaps/treasure",
        "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1",
        "/api/v1/namespaces/kube-system/secrets",
        // Its proxy may list pods, which are the peers of network policies; to get one is another right.
        "/api/v1/namespaces/default/pods/elsewhere",
        "/api/v1/namespaces/default/serviceaccounts",
    ] {
        let answer = stolen.node.get(path)?;
        ensure!(
            answer.status == 403,
            "GET {path} was answered with {}: {}",
            answer.status,
            start(&answer.body)
        );
    }
    Ok(())
}

fn restricted_labels(stolen: &Stolen<'_>) -> Result<()> {
    for label in [
        "node-restriction.kubernetes.io/trusted",
        "x.node-restriction.kubernetes.io/trusted",
        "node-role.kubernetes.io/control-plane",
        "topology.x.kubernetes.io/zone",
        "k8s.io/whatever",
    ] {
        let patch = json!({"metadata": {"labels": {label: "yes"}}});
        for path in ["/api/v1/nodes/node-2", "/api/v1/nodes/node-2/status"] {
            must_refuse(&format!("{label} by {path}"), &stolen.node.patch(path, &patch)?)?;
        }
    }
    let node = stolen.cluster.get("node node-2")?;
    ensure!(!node.to_string().contains("node-restriction"), "the label is there: {node}");
    Ok(())
}

fn own_node(stolen: &Stolen<'_>) -> Result<()> {
    let (node, path) = (&stolen.node, "/api/v1/nodes/node-2");
    let namespace = stolen.cluster.get("namespace default")?;
    let owner = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": namespace["metadata"]["uid"]},
    ]}});
    must_refuse("an owner reference", &node.patch(path, &owner)?)?;
    // Writes of the status may ignore the metadata instead of refusing it.
    node.patch("/api/v1/nodes/node-2/status", &owner)?;
    let owners = stolen.cluster.get("node node-2")?["metadata"]["ownerReferences"].clone();
    ensure!(owners.is_null(), "the Node has owners: {owners}");
    let taint = json!({"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}});
    must_refuse("a taint", &node.patch(path, &taint)?)?;
    let config = json!({"spec": {"configSource": {"configMap": {"name": "x", "namespace": "default"}}}});
    // Kubernetes removed the field; it must not come back through a node.
    let answer = node.patch(path, &config)?;
    ensure!(!answer.body.contains("configSource") || answer.refused(), "configSource was stored");
    must_refuse("a deletion", &node.delete(path)?)?;
    must_refuse("a deletion of all", &node.delete("/api/v1/nodes")?)
}

fn other_nodes(stolen: &Stolen<'_>) -> Result<()> {
    let node = &stolen.node;
    let patch = json!({"metadata": {"labels": {"taken": "yes"}}});
    for path in ["/api/v1/nodes/node-1", "/api/v1/nodes/node-1/status"] {
        must_refuse(path, &node.patch(path, &patch)?)?;
    }
    let tunnel = "/hawser/v1/nodes/node-1/tunnel";
    must_refuse("the tunnel of another node", &node.create(tunnel, &json!({}))?)?;
    let other = json!({"kind": "Node", "metadata": {"name": "node-3"}});
    must_refuse("a Node of another name", &node.create("/api/v1/nodes", &other)?)?;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1";
    must_refuse("the lease of another node", &node.patch(lease, &json!({"spec": {"holderIdentity": "x"}}))?)?;
    let leader = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "node-2"}});
    must_refuse("a lease elsewhere", &node.create(leader, &lease)?)
}

fn pods(stolen: &Stolen<'_>) -> Result<()> {
    let node = &stolen.node;
    let guest = "/api/v1/namespaces/default/pods/guest";
    let label = json!({"metadata": {"labels": {"app": "elsewhere"}}});
    must_refuse("a label by status", &node.patch(&format!("{guest}/status"), &label)?)?;
    must_refuse("a label", &node.patch(guest, &label)?)?;
    let other = "/api/v1/namespaces/default/pods/elsewhere";
    let ready = json!({"status": {"message": "taken"}});
    must_refuse("another node's pod", &node.patch(&format!("{other}/status"), &ready)?)?;
    must_refuse("a deletion elsewhere", &node.delete(other)?)?;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "elsewhere", "namespace": "default"},
    });
    must_refuse("an eviction elsewhere", &node.create(&format!("{other}/eviction"), &eviction)?)?;
    let labels = stolen.cluster.get("pod guest -n default")?["metadata"]["labels"]["app"].clone();
    ensure!(labels == "guest", "the label is {labels}");
    Ok(())
}

fn mirror_pods(stolen: &Stolen<'_>) -> Result<()> {
    let node = stolen.cluster.get("node node-2")?;
    let mirror = |name: &str, spec: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "default",
                "annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": "node-2", "controller": true,
                    "uid": node["metadata"]["uid"],
                }],
            },
            "spec": {"nodeName": "node-2", "containers": [{"name": "main", "image": "x"}]},
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        json!({"volumes": [volume]})
    };
    for (name, spec) in [
        ("secret", volume(json!({"secret": {"secretName": "treasure"}}))),
        ("map", volume(json!({"configMap": {"name": "treasure"}}))),
        ("claim", volume(json!({"persistentVolumeClaim": {"claimName": "treasure"}}))),
        ("projected", volume(json!({"projected": {"sources": [{"secret": {"name": "treasure"}}]}}))),
        ("token", volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}))),
        ("account", json!({"serviceAccountName": "powerful"})),
        ("device", json!({"resourceClaims": [{"name": "c", "resourceClaimName": "treasure"}]})),
        (
            "environment",
            json!({"containers": [
                {"name": "main", "image": "x", "envFrom": [{"secretRef": {"name": "treasure"}}]},
            ]}),
        ),
        ("elsewhere", json!({"nodeName": "node-1"})),
    ] {
        let answer = stolen.node.create("/api/v1/namespaces/default/pods", &mirror(name, spec))?;
        must_refuse(&format!("a mirror pod with {name}"), &answer)?;
    }
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "default"},
        "spec": {"nodeName": "node-2", "containers": [{"name": "main", "image": "x"}]},
    });
    must_refuse("a pod", &stolen.node.create("/api/v1/namespaces/default/pods", &plain)?)?;
    let secret = stolen.node.get("/api/v1/namespaces/default/secrets/treasure")?;
    must_refuse("the secret afterwards", &secret)
}

fn tokens(stolen: &Stolen<'_>) -> Result<()> {
    let pod = |name: &str| stolen.cluster.get(&format!("pod {name} -n default"));
    let (guest, elsewhere) = (pod("guest")?, pod("elsewhere")?);
    let ask = |account: &str, audiences: Value, bound: &Value| {
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let mut spec = json!({"audiences": audiences, "expirationSeconds": 3600});
        if bound.is_object() {
            let meta = &bound["metadata"];
            spec["boundObjectRef"] =
                json!({"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]});
        }
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        stolen.node.create(&path, &body)
    };
    let good = ask("guest", json!([]), &guest)?;
    ensure!(good.status == 201, "the kubelet gets no token for its pod: {}", start(&good.body));
    for (what, answer) in [
        ("another node's account", ask("powerful", json!([]), &elsewhere)?),
        ("another account with an own pod", ask("powerful", json!([]), &guest)?),
        ("an own account with another's pod", ask("guest", json!([]), &elsewhere)?),
        ("a token that is bound to nothing", ask("guest", json!([]), &Value::Null)?),
        ("an audience that the pod does not name", ask("guest", json!(["vault"]), &guest)?),
    ] {
        must_refuse(what, &answer)?;
    }
    Ok(())
}

fn certificates(stolen: &Stolen<'_>) -> Result<()> {
    let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for (name, subject, signer) in [
        ("other", "/O=system:nodes/CN=system:node:node-1", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("admin", "/O=system:masters/CN=admin", "kubernetes.io/kube-apiserver-client"),
    ] {
        let csr = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {"request": request(subject)?, "signerName": signer, "usages": ["client auth"]},
        });
        must_refuse(&format!("a request for {subject}"), &stolen.node.create(csrs, &csr)?)?;
    }
    // A node may create its own request but not approve it.
    let own = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "mine"},
        "spec": {
            "request": request("/O=system:nodes/CN=system:node:node-2")?,
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["client auth", "digital signature"],
        },
    });
    let made = stolen.node.create(csrs, &own)?;
    ensure!(made.status == 201, "a node's own request was refused: {}", start(&made.body));
    let approval = json!({"status": {"conditions": [
        {"type": "Approved", "status": "True", "reason": "x", "message": "x"},
    ]}});
    let answer = stolen.node.patch(&format!("{csrs}/mine/approval"), &approval)?;
    must_refuse("an approval", &answer)
}

fn the_rest(stolen: &Stolen<'_>) -> Result<()> {
    let node = &stolen.node;
    for path in [
        "/api/v1/nodes/node-1/proxy/pods",
        "/api/v1/nodes/node-2/proxy/pods",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/apps/v1/deployments",
        "/api/v1/namespaces/default/pods/elsewhere/log",
        "/metrics",
    ] {
        must_refuse(path, &node.get(path)?)?;
    }
    let endpoints = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "stolen", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": [CLIENT_IP]}],
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    must_refuse("an EndpointSlice", &node.create(slices, &endpoints)?)?;
    // The pod of node-1 was not affected.
    eventually("the other node's pod to run", || {
        let pod = stolen.cluster.get("pod elsewhere -n default")?;
        Ok((pod["status"]["phase"] == "Running").then_some(()))
    })
}
