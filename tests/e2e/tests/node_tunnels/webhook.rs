//! A conversion webhook in a pod behind the firewall, which the API server calls by its Service.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::Node;
use tests_e2e::{Nodes, eventually, output};

use super::apply;

const PROGRAM: &str = include_str!("webhook.py");
const PORT: u16 = 8443;

/// Starts the webhook on a node, and defines the kind that it converts. The pod runs the machine's Python.
pub fn start(nodes: &Nodes<'_>, node: &Node) -> Result<()> {
    let [certificate, key] = certificate(nodes)?;
    let files = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hooks"},
        "stringData": {"webhook.py": PROGRAM, "tls.crt": certificate, "tls.key": key},
    });
    let mounts: Vec<Value> = [("/usr", "usr"), ("/lib", "lib"), ("/lib64", "lib64"), ("/webhook", "files")]
        .map(|(path, name)| json!({"mountPath": path, "name": name, "readOnly": true}))
        .into();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hooks", "labels": {"app": "hooks"}},
        "spec": {
            "nodeName": node.name(), "terminationGracePeriodSeconds": 0,
            "volumes": [
                {"name": "usr", "hostPath": {"path": "/usr"}}, {"name": "lib", "hostPath": {"path": "/usr/lib"}},
                {"name": "lib64", "hostPath": {"path": "/usr/lib64"}}, {"name": "files", "secret": {"secretName": "hooks"}},
            ],
            "containers": [{
                "name": "main", "image": "hawser.local/echo:1", "volumeMounts": mounts,
                "command": ["/usr/bin/python3", "/webhook/webhook.py", PORT.to_string(), "/webhook/tls.crt", "/webhook/tls.key"],
                "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
            }],
        },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hooks"},
        "spec": {"selector": {"app": "hooks"}, "ports": [{"port": 443, "targetPort": PORT}]},
    });
    for object in [&files, &pod, &service] {
        apply(nodes, object)?;
    }
    nodes.kubectl(&["wait", "--for=condition=Ready", "pod/hooks", "--timeout=120s"])?;
    let encoded = output(Command::new("base64").arg("-w0").arg(nodes.bed.dir().join("hooks.crt")))?;
    apply(nodes, &definition(&encoded))?;
    // kubectl fails while there are no conditions: they are `null` then, as in Kubernetes.
    let wait = ["wait", "--for=condition=Established", "crd/roads.example.com", "--timeout=60s"];
    eventually("the definition to be established", || nodes.kubectl(&wait).map(Some)).map(drop)
}

/// Checks that a Road is converted when it is written and when it is read.
pub fn converts(nodes: &Nodes<'_>, name: &str) -> Result<()> {
    let road = json!({
        "apiVersion": "example.com/v2", "kind": "Road", "metadata": {"name": name}, "to": "Rome",
    });
    // The endpoint and the kind may be new.
    eventually("a Road to be converted", || Ok(apply(nodes, &road).ok()))?;
    let stored = nodes.json(&["get", "roads.v1.example.com", name])?;
    ensure!(stored["destination"] == "Rome", "{stored}");
    let read = nodes.json(&["get", "roads.v2.example.com", name])?;
    ensure!(read["to"] == "Rome" && read["destination"].is_null(), "{read}");
    Ok(())
}

/// Returns a certificate for the Service, and its key.
fn certificate(nodes: &Nodes<'_>) -> Result<[String; 2]> {
    let file = |name: &str| nodes.bed.dir().join(name);
    let (config, certificate, key) = (file("hooks.cnf"), file("hooks.crt"), file("hooks.key"));
    fs::write(
        &config,
        "[req]\ndistinguished_name = dn\nx509_extensions = extensions\nprompt = no\n[dn]\nCN = hooks\n[extensions]\n\
         subjectAltName = DNS:hooks.default.svc\nbasicConstraints = CA:FALSE\n",
    )?;
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
    openssl.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-config"]).arg(&config);
    output(openssl.arg("-out").arg(&certificate).arg("-keyout").arg(&key))?;
    Ok([fs::read_to_string(certificate)?, fs::read_to_string(key)?])
}

fn definition(bundle: &str) -> Value {
    let version = |name: &str, field: &str, stored: bool| {
        json!({
            "name": name, "served": true, "storage": stored,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {field: {"type": "string"}}}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "roads.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "roads", "kind": "Road"},
            "versions": [version("v1", "destination", true), version("v2", "to", false)],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"caBundle": bundle, "service": {"namespace": "default", "name": "hooks"}},
            }},
        },
    })
}
