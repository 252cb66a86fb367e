//! A tenant: ServiceAccounts with permissions in the namespace `a`, and pods there.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Cluster, Lab, eventually};

use crate::attack::attacker::{Attacker, apply, attack, base64, must_fail, must_refuse, start};

/// A secret that only administrators may see.
const TREASURE: &str = "dHJlYXN1cmU=";

const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: v1
kind: Namespace
metadata: {name: b}
---
apiVersion: v1
kind: Secret
metadata: {name: treasure, namespace: b}
data: {gold: dHJlYXN1cmU=}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: everything, namespace: a}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: owner, namespace: a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: everything}
subjects: [{kind: ServiceAccount, name: owner, namespace: a}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer, namespace: a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: viewer, namespace: a}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: looker, namespace: a}
rules:
- {apiGroups: [""], resources: ["pods/exec", "pods/attach", "pods/portforward"], verbs: ["get"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: looker, namespace: a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: looker}
subjects: [{kind: ServiceAccount, name: looker, namespace: a}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prober}
rules: [{apiGroups: [""], resources: ["nodes/proxy"], verbs: ["get"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prober}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prober}
subjects: [{kind: ServiceAccount, name: prober, namespace: a}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: operator-of-nodes}
rules: [{apiGroups: [""], resources: ["nodes/proxy"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator-of-nodes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: operator-of-nodes}
subjects: [{kind: ServiceAccount, name: operator, namespace: a}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: owner, namespace: a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: viewer, namespace: a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: looker, namespace: a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: prober, namespace: a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: a}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: a}
data: {color: blue}
---
apiVersion: v1
kind: Pod
metadata: {name: inside, namespace: a}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: hawser.local/echo:1
    imagePullPolicy: Never
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: projected, mountPath: /projected}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: projected, projected: {sources: [{configMap: {name: settings}}]}}
"#;

/// The tenant's accounts.
struct Tenant<'a> {
    cluster: &'a Cluster<'a>,
    /// May do everything in the namespace `a`.
    owner: Attacker<'a>,
    /// Has the ClusterRole `view` in `a`.
    viewer: Attacker<'a>,
    /// May `get` pods/exec and similar subresources in `a`.
    looker: Attacker<'a>,
    /// May `get` nodes/proxy.
    prober: Attacker<'a>,
    /// May do everything with nodes/proxy.
    operator: Attacker<'a>,
}

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_tenant_gains_nothing_beyond_its_namespace() -> Result<()> {
    let lab = Lab::new()?;
    let cluster = Cluster::up(&lab)?;
    apply(&cluster, "tenant.yaml", MANIFEST)?;
    let account = |name| Attacker::service_account(&cluster, "a", name);
    let tenant = Tenant {
        cluster: &cluster,
        owner: account("owner")?,
        viewer: account("viewer")?,
        looker: account("looker")?,
        prober: account("prober")?,
        operator: account("operator")?,
    };
    cluster.kubectl("wait -n a pod/inside --for=condition=Ready --timeout=120s")?;
    attack(
        &cluster,
        &tenant,
        &[
            (
                "rights in one namespace do not reach cluster-scoped objects",
                &cluster_scoped_below_a_namespace,
            ),
            ("rights in one namespace do not reach another by an odd path", &odd_paths),
            ("a body does not name another namespace or object than the path", &bodies_that_disagree),
            ("nodes/proxy does not reach the API server", &proxy_to_the_api),
            ("nodes/proxy does not reach addresses that belong to the server's own host", &proxy_inward),
            ("get nodes/proxy runs nothing on a node", &proxy_runs_nothing),
            ("the proxies of pods and services reach pods of the namespace alone", &proxies_reach_own_pods),
            ("get pods/exec is not enough for a WebSocket", &websockets_need_create),
            ("nobody grants, binds or impersonates beyond what they hold", &no_escalation),
            ("nobody grants by a label what they do not hold", &no_aggregation),
            ("nobody approves or signs for the cluster's own authority", &no_certificates),
            ("volumes of configuration cannot be written", &volumes_are_read_only),
            ("what a pod asks for is honoured or refused", &pods_are_not_dropped_silently),
        ],
    )
}

/// Returns all cluster-scoped kinds of the discovery documents.
fn cluster_kinds(cluster: &Cluster<'_>) -> Result<Vec<(String, String)>> {
    let mut kinds = Vec::new();
    let raw = |path: &str| -> Result<Value> {
        Ok(serde_json::from_str(&cluster.kubectl_args(&["get", "--raw", path])?)?)
    };
    let mut roots = vec!["/api/v1".to_owned()];
    let groups = raw("/apis")?;
    for group in groups["groups"].as_array().context("/apis has no groups")? {
        let version = group["preferredVersion"]["groupVersion"].as_str().context("a group has no version")?;
        roots.push(format!("/apis/{version}"));
    }
    for root in roots {
        for kind in raw(&root)?["resources"].as_array().into_iter().flatten() {
            let name = kind["name"].as_str().unwrap_or_default();
            if kind["namespaced"] == false && !name.contains('/') {
                kinds.push((root.clone(), name.to_owned()));
            }
        }
    }
    Ok(kinds)
}

fn cluster_scoped_below_a_namespace(tenant: &Tenant<'_>) -> Result<()> {
    let before = tenant.cluster.get("namespaces kube-system b")?;
    for (root, kind) in cluster_kinds(tenant.cluster)? {
        for name in ["", "/b", "/kube-system", "/cluster-admin", "/node-1"] {
            let path = format!("{root}/namespaces/a/{kind}{name}");
            for attacker in [&tenant.owner, &tenant.viewer] {
                must_fail(&[403, 404], &format!("GET {path}"), &attacker.get(&path)?)?;
            }
            let patched = tenant.owner.patch(&path, &json!({"metadata": {"labels": {"taken": "yes"}}}))?;
            must_fail(&[403, 404], &format!("PATCH {path}"), &patched)?;
            must_fail(&[403, 404], &format!("DELETE {path}"), &tenant.owner.delete(&path)?)?;
        }
    }
    let after = tenant.cluster.get("namespaces kube-system b")?;
    ensure!(before["items"] == after["items"], "the namespaces changed: {after}");
    Ok(())
}

fn odd_paths(tenant: &Tenant<'_>) -> Result<()> {
    for path in [
        "/api/v1/namespaces/a/../b/secrets/treasure",
        "/api/v1/namespaces/a/secrets/../../b/secrets/treasure",
        "/api/v1/namespaces/a%2f..%2fb/secrets/treasure",
        "/api/v1/namespaces/a/secrets/..%2f..%2fb%2fsecrets%2ftreasure",
        "/api/v1/namespaces/a/secrets/%2e%2e%2f%2e%2e%2fb%2fsecrets%2ftreasure",
        "/api/v1/namespaces/a//secrets/../../../b/secrets/treasure",
        "/api/v1/namespaces/a/namespaces/b/secrets/treasure",
        "/api/v1/namespaces/a/watch/namespaces/b/secrets",
        "/api/v1/watch/namespaces/a/namespaces/b/secrets?timeoutSeconds=1",
        "/api/v1/namespaces/a/secrets?fieldSelector=metadata.namespace%3Db",
        "/api/v1/namespaces/a/secrets?namespace=b&allNamespaces=true",
        "/api/v1/secrets?fieldSelector=metadata.namespace%3Da",
        "/api/v1/secrets?namespace=a",
        "//api/v1/namespaces/b/secrets/treasure",
        "/api/v1/namespaces/B/secrets/treasure",
        "/api/v1/namespaces/a/secrets;/../b/secrets/treasure",
        "/api/v1/namespaces/a/secrets/treasure%00/../b",
        "/API/v1/namespaces/b/secrets/treasure",
        "/healthz/../api/v1/namespaces/b/secrets/treasure",
        "/openapi/v3/../../api/v1/namespaces/b/secrets/treasure",
    ] {
        let answer = tenant.owner.get(path)?;
        ensure!(!answer.body.contains(TREASURE), "GET {path} showed the treasure");
    }
    Ok(())
}

fn bodies_that_disagree(tenant: &Tenant<'_>) -> Result<()> {
    let map = |namespace: &str, name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}});
    let owner = &tenant.owner;
    must_fail(
        &[400],
        "a create in b",
        &owner.create("/api/v1/namespaces/a/configmaps", &map("b", "planted"))?,
    )?;
    let update = owner.update("/api/v1/namespaces/a/configmaps/settings", &map("b", "settings"))?;
    must_fail(&[400], "an update in b", &update)?;
    let update = owner.update("/api/v1/namespaces/a/configmaps/settings", &map("a", "other"))?;
    must_fail(&[400], "an update of another name", &update)?;
    let moved = owner.patch("/api/v1/namespaces/a/configmaps/settings", &map("b", "settings"))?;
    must_fail(&[400], "a patch into b", &moved)?;
    let applied = owner.request(
        "PATCH",
        "/api/v1/namespaces/a/configmaps/planted?fieldManager=x",
        &["Content-Type: application/apply-patch+yaml"],
        Some(&map("b", "planted")),
    )?;
    must_fail(&[400], "an apply into b", &applied)?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "treasure", "namespace": "b"},
        "target": {"kind": "Node", "name": "node-1"},
    });
    must_fail(&[400], "a binding in b", &owner.create("/api/v1/namespaces/a/bindings", &binding)?)?;
    let maps = tenant.cluster.get("configmaps -n b")?.to_string();
    ensure!(!maps.contains("planted") && !maps.contains("settings"), "something is in b: {maps}");
    Ok(())
}

fn proxy_to_the_api(tenant: &Tenant<'_>) -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "taken"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "prober", "namespace": "a"}],
    });
    for node in ["node-1:6443", "https:node-1:6443", "http:node-1:6443", "node-1:06443", "node-1%3A6443"] {
        let secret = format!("/api/v1/nodes/{node}/proxy/api/v1/namespaces/b/secrets/treasure");
        for attacker in [&tenant.prober, &tenant.operator] {
            let answer = attacker.get(&secret)?;
            ensure!(!answer.body.contains(TREASURE), "GET {secret} showed the treasure");
            must_fail(&[400, 403], &format!("GET {secret}"), &answer)?;
        }
        let path =
            format!("/api/v1/nodes/{node}/proxy/apis/rbac.authorization.k8s.io/v1/clusterrolebindings");
        must_fail(&[400, 403], &format!("POST {path}"), &tenant.operator.create(&path, &binding)?)?;
    }
    let taken = tenant.cluster.kubectl("get clusterrolebinding taken");
    ensure!(taken.is_err(), "the binding was created");
    Ok(())
}

fn proxy_inward(tenant: &Tenant<'_>) -> Result<()> {
    let node = tenant.cluster.get("node node-1")?;
    let restore = node["status"]["addresses"].clone();
    let status = |addresses: Value| -> Result<()> {
        let patch = json!({"status": {"addresses": addresses}}).to_string();
        let line = ["patch", "node", "node-1", "--subresource=status", "--type=merge", "-p", &patch];
        tenant.cluster.kubectl_args(&line).map(drop)
    };
    let mut outcome = Ok(());
    for address in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "localhost", "fe80::1", "224.0.0.1"] {
        status(json!([{"type": "InternalIP", "address": address}]))?;
        for port in [":6443", ":10250", ":80"] {
            let path = format!("/api/v1/nodes/node-1{port}/proxy/api/v1/namespaces/b/secrets/treasure");
            let answer = tenant.operator.get(&path)?;
            // Another refusal would come from the server that listens there.
            if answer.status != 400 || !answer.body.contains("address not allowed") {
                let said = start(&answer.body);
                outcome = Err(anyhow::anyhow!("{address}{port} answered {}: {said}", answer.status));
            }
        }
    }
    status(restore)?;
    outcome
}

fn proxy_runs_nothing(tenant: &Tenant<'_>) -> Result<()> {
    for command in
        ["exec/a/inside/main?command=/echo&command=print&command=owned&output=1", "run/a/inside/main"]
    {
        for upgrade in [&[][..], &WEBSOCKET[..]] {
            let path = format!("/api/v1/nodes/node-1/proxy/{command}");
            let answer = tenant.prober.request("GET", &path, upgrade, None)?;
            ensure!(answer.refused(), "GET {path} was answered with {}", answer.status);
            ensure!(!answer.body.contains("owned"), "GET {path} ran the command");
        }
    }
    Ok(())
}

/// Endpoints with addresses that do not belong to pods, and a pod that claims the server's own address.
fn proxies_reach_own_pods(tenant: &Tenant<'_>) -> Result<()> {
    let (owner, core) = (&tenant.owner, "/api/v1/namespaces/a");
    let answer = owner.get(&format!("{core}/pods/inside:8080/proxy/"))?;
    ensure!(answer.status == 200 && answer.body.starts_with("inside"), "{}", start(&answer.body));
    let answer = tenant.viewer.get(&format!("{core}/pods/inside:8080/proxy/"))?;
    ensure!(answer.status == 403, "a viewer was answered with {}", answer.status);
    // Without credentials the API server would also be reached, with 401 or 403.
    let held = |what: &str, path: &str| {
        let answer = owner.get(&format!("{core}/{path}/proxy/api/v1/namespaces/b/secrets/treasure"))?;
        let status = answer.status;
        ensure!(matches!(status, 400 | 503), "{what} was answered with {status}: {}", start(&answer.body));
        Ok(())
    };
    let service = json!({"metadata": {"name": "trap"}, "spec": {"ports": [{"port": 443}]}});
    ensure!(owner.create(&format!("{core}/services"), &service)?.status == 201, "no service was created");
    let references = [
        Value::Null,
        json!({"kind": "Pod", "namespace": "a", "name": "inside"}),
        json!({"kind": "Pod", "namespace": "kube-system", "name": "inside"}),
    ];
    for (ip, port) in [(NODE_IP, 6443), (NODE_IP, 10250), ("10.96.0.1", 443), ("192.0.2.2", 80)] {
        for reference in &references {
            let address = json!({"ip": ip, "targetRef": reference});
            let endpoints = json!({"metadata": {"name": "trap"},
                "subsets": [{"addresses": [address], "ports": [{"port": port}]}]});
            let made = owner.create(&format!("{core}/endpoints"), &endpoints)?;
            ensure!(made.status == 201, "no endpoints were created: {}", start(&made.body));
            let what = format!("the service at {ip}:{port} of {reference}");
            held(&what, "services/https:trap:")?;
            held(&what, "services/https:trap:443")?;
            owner.delete(&format!("{core}/endpoints/trap"))?;
        }
    }
    for ip in [NODE_IP, "10.96.0.1", "127.0.0.1", "169.254.169.254"] {
        // The kubelet soon restores the true address.
        owner.patch(
            &format!("{core}/pods/inside/status"),
            &json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}}),
        )?;
        held(&format!("the pod at {ip}"), "pods/https:inside:6443")?;
    }
    Ok(())
}

const WEBSOCKET: [&str; 5] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol: v5.channel.k8s.io",
];

fn websockets_need_create(tenant: &Tenant<'_>) -> Result<()> {
    for path in ["exec?command=/echo&command=env&stdout=1", "attach?stdout=1", "portforward?ports=8080"] {
        let path = format!("/api/v1/namespaces/a/pods/inside/{path}");
        for upgrade in [&WEBSOCKET[..], &["Connection: Upgrade", "Upgrade: SPDY/3.1"][..]] {
            let answer = tenant.looker.request("GET", &path, upgrade, None)?;
            ensure!(answer.status == 403, "GET {path} was answered with {}", answer.status);
        }
    }
    Ok(())
}

fn no_escalation(tenant: &Tenant<'_>) -> Result<()> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "t"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "owner", "namespace": "a"}],
    });
    let owner = &tenant.owner;
    must_refuse("a cluster binding", &owner.create(&format!("{rbac}/clusterrolebindings"), &binding)?)?;
    for headers in [
        &["Impersonate-User: system:admin"][..],
        &["Impersonate-User: x", "Impersonate-Group: system:masters"],
        &["Impersonate-User: x", "Impersonate-Uid: 1"],
    ] {
        let answer = owner.request("GET", "/api/v1/namespaces/b/secrets/treasure", headers, None)?;
        must_refuse(&headers.join(", "), &answer)?;
    }
    for header in ["X-Remote-User: admin", "X-Remote-Group: system:masters", "X-Forwarded-User: admin"] {
        let answer = owner.request("GET", "/api/v1/namespaces/b/secrets/treasure", &[header], None)?;
        must_refuse(header, &answer)?;
    }
    Ok(())
}

/// A label makes a ClusterRole's rules part of `view`, so setting it grants them.
fn no_aggregation(tenant: &Tenant<'_>) -> Result<()> {
    let patcher = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: patcher}
rules: [{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [get, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: patcher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: patcher}
subjects: [{kind: ServiceAccount, name: viewer, namespace: a}]
"#;
    apply(tenant.cluster, "patcher.yaml", patcher)?;
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin";
    let label = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    must_refuse("a label on cluster-admin", &tenant.viewer.patch(path, &label)?)?;
    let secret = tenant.viewer.get("/api/v1/namespaces/a/secrets")?;
    ensure!(secret.status == 403, "the role view reads Secrets: {}", secret.status);
    Ok(())
}

fn no_certificates(tenant: &Tenant<'_>) -> Result<()> {
    let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let approver = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: approver-without-signers}
rules:
- apiGroups: [certificates.k8s.io]
  resources: [certificatesigningrequests, certificatesigningrequests/approval, certificatesigningrequests/status]
  verbs: [get, list, create, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: approver-without-signers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: approver-without-signers}
subjects: [{kind: ServiceAccount, name: viewer, namespace: a}]
"#;
    apply(tenant.cluster, "approver.yaml", approver)?;
    let (mine, masters) = (request("/CN=tenant")?, request("/O=system:masters/CN=tenant")?);
    let signer = "kubernetes.io/kube-apiserver-client";
    let csr = |name: &str, request: &str| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {"request": request, "signerName": signer, "usages": ["client auth"]},
        })
    };
    let viewer = &tenant.viewer;
    must_refuse("a request for system:masters", &viewer.create(csrs, &csr("masters", &masters))?)?;
    let made = viewer.create(csrs, &csr("mine", &mine))?;
    ensure!(made.status == 201, "an ordinary request was refused: {}", start(&made.body));
    let mut approved: Value = serde_json::from_str(&made.body)?;
    approved["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "x", "message": "x"}]);
    must_refuse("an approval", &viewer.update(&format!("{csrs}/mine/approval"), &approved)?)?;
    let patch = json!({"status": approved["status"]});
    must_refuse("an approval by patch", &viewer.patch(&format!("{csrs}/mine/approval"), &patch)?)?;
    let certificate = std::fs::read(tenant.cluster.lab.data_dir().join("pki/ca.crt"))?;
    let signed = json!({"status": {"certificate": base64(&certificate)?}});
    must_refuse("a signature", &viewer.patch(&format!("{csrs}/mine/status"), &signed)?)?;
    Ok(())
}

/// Returns a PKCS #10 request for a subject, in base64.
pub fn request(subject: &str) -> Result<String> {
    let script = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /dev/null \
                  -subj \"$0\" 2>/dev/null | base64 -w0";
    tests_e2e::output(std::process::Command::new("sh").args(["-c", script, subject]))
}

fn volumes_are_read_only(tenant: &Tenant<'_>) -> Result<()> {
    for file in [
        "/settings/planted",
        "/settings/color",
        "/settings/..data/color",
        "/projected/planted",
        "/var/run/secrets/kubernetes.io/serviceaccount/planted",
    ] {
        let line = ["exec", "-n", "a", "inside", "--", "/echo", "write", file, "planted"];
        let written = tenant.cluster.kubectl_args(&line);
        ensure!(written.is_err(), "a container wrote {file}");
    }
    Ok(())
}

/// Returns a pod's manifest with a part of its spec that this node may not support.
fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "a"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "hawser.local/echo:1", "imagePullPolicy": "Never"}],
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn pods_are_not_dropped_silently(tenant: &Tenant<'_>) -> Result<()> {
    let sysctl = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}});
    let made = tenant.owner.create("/api/v1/namespaces/a/pods", &pod("sysctl", &sysctl))?;
    ensure!(made.status == 201, "the pod was refused by the API: {}", start(&made.body));
    let status = eventually("the pod to run or to be refused", || {
        let pod = tenant.cluster.get("pod sysctl -n a")?;
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        Ok(matches!(phase, "Running" | "Failed").then(|| pod["status"].clone()))
    })?;
    let refused = status["phase"] == "Failed" && status["reason"] == "SysctlForbidden";
    ensure!(refused, "an unsafe sysctl: {} {}", status["phase"], status["reason"]);
    user_namespaces(tenant)
}

/// A pod that asks for a user namespace gets one, or does not run.
fn user_namespaces(tenant: &Tenant<'_>) -> Result<()> {
    let made =
        tenant.owner.create("/api/v1/namespaces/a/pods", &pod("userns", &json!({"hostUsers": false})))?;
    ensure!(made.status == 201, "the pod was refused by the API: {}", start(&made.body));
    let running = eventually("the pod to run or to be refused", || {
        let pod = tenant.cluster.get("pod userns -n a")?;
        let events = tenant.cluster.get("events -n a --field-selector involvedObject.name=userns")?;
        let warned = events["items"].as_array().into_iter().flatten().any(|event| event["type"] == "Warning");
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        Ok(match phase {
            "Running" => Some(true),
            "Failed" => Some(false),
            _ => warned.then_some(false),
        })
    })?;
    if running {
        let map = ["exec", "-n", "a", "userns", "--", "/echo", "cat", "/proc/self/uid_map"];
        let map = tenant.cluster.kubectl_args(&map)?;
        let first: Vec<&str> = map.split_whitespace().take(2).collect();
        ensure!(first != ["0", "0"], "the pod runs in the host's user namespace: {map}");
    }
    Ok(())
}
