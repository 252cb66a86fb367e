//! Information about the server: versions, resources, events, certificates, and the proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tests_clients::{Api, Kubectl, each_kubectl, words};
use tests_e2e::eventually;

use crate::kubectl::{account, object};

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn the_server_tells_what_it_is_and_serves() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        let versions: Value = serde_json::from_str(&kubectl.run("version -o json")).unwrap();
        assert_eq!(versions["serverVersion"]["minor"], "36");
        let url = kubectl.api.url().unwrap();
        let info = kubectl.run("cluster-info");
        assert!(info.contains("Kubernetes control plane") && info.contains(&url), "{info}");
        let versions = kubectl.run("api-versions");
        for version in
            ["v1", "apps/v1", "batch/v1", "apiextensions.k8s.io/v1", "rbac.authorization.k8s.io/v1"]
        {
            assert!(versions.lines().any(|line| line == version), "{version}: {versions}");
        }
        let resources = kubectl.run("api-resources -o wide");
        let pods = resources.lines().find(|line| line.starts_with("pods ")).unwrap();
        assert!(
            pods.contains("create,delete,deletecollection,get,list,patch,update,watch")
                && pods.contains("all"),
            "{pods}"
        );
        kubectl.shows("api-resources --namespaced=false --verbs=list -o name", &["nodes", "namespaces"]);
        kubectl.shows("api-resources --api-group=apps -o name", &["deployments.apps", "statefulsets.apps"]);
        kubectl.shows("api-resources --categories=all -o name", &["pods", "deployments.apps"]);
        kubectl.shows("cluster-info dump", &["\"kind\": \"NodeList\"", "\"kind\": \"EventList\""]);
        let refused = kubectl.fails("top nodes");
        assert!(refused.contains("Metrics API not available"), "{refused}");
        events(kubectl);
        certificates(kubectl);
        debug(kubectl);
    })
}

fn events(kubectl: &Kubectl<'_>) {
    let event = |name: &str, kind: &str, second: u8| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default", "apiVersion": "v1"},
            "reason": "Tested", "message": format!("said {name}"), "type": kind, "count": 1,
            "lastTimestamp": format!("2026-01-01T00:00:0{second}Z"), "source": {"component": "test"}})
        .to_string()
    };
    kubectl.feed("create -f -", &event("late", "Warning", 9));
    kubectl.feed("create -f -", &event("early", "Normal", 1));
    let client_path = kubectl.table("events --for=pod/p --no-headers");
    assert_eq!(
        client_path.iter().map(|row| row.last().unwrap().as_str()).collect::<Vec<_>>(),
        ["early", "late"]
    );
    kubectl.shows("events --types=Warning", &["said late"]);
    kubectl.shows("get events --field-selector=involvedObject.name=p,type=Normal", &["said early"]);
    kubectl.shows("get events --sort-by=.lastTimestamp", &["LAST SEEN", "REASON", "OBJECT"]);
}

fn certificates(kubectl: &Kubectl<'_>) {
    // A request for CN=joe with an elliptic curve key, created once for this test.
    let request = include_str!("joe.csr.base64").trim();
    for name in ["yes", "no"] {
        let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}});
        kubectl.feed("create -f -", &object.to_string());
    }
    kubectl.shows("certificate approve yes", &["certificatesigningrequest.certificates.k8s.io/yes approved"]);
    kubectl.shows("certificate deny no", &["certificatesigningrequest.certificates.k8s.io/no denied"]);
    let table = kubectl.table("get csr --no-headers");
    assert_eq!(table.iter().map(|row| row[5].as_str()).collect::<Vec<_>>(), ["Denied", "Approved"]);
    assert_eq!(object(kubectl, "csr yes")["spec"]["username"], "kubernetes-admin");
    kubectl.shows("describe csr yes", &["Common Name:    joe", "Status:             Approved"]);
}

fn debug(kubectl: &Kubectl<'_>) {
    kubectl.run("run p --image=i");
    kubectl.run("debug p --image=busybox --container=look --attach=false");
    let pod = object(kubectl, "pod p");
    assert_eq!(pod["spec"]["ephemeralContainers"][0]["name"], "look");
    kubectl.run("debug p --copy-to=q --image=busybox --attach=false");
    kubectl.says("get pods -o name", "pod/p\npod/q");
    let refused = kubectl.fails("logs nope");
    assert!(refused.contains("(NotFound): pods \"nope\" not found"), "{refused}");
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn a_proxy_passes_requests_on() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        let (mut child, line) = proxy(kubectl, "proxy --port=0");
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        let stream = TcpStream::connect(&address).unwrap();
        assert!(ask(stream, "/api").contains("\"versions\""));
        let stream = TcpStream::connect(&address).unwrap();
        assert!(ask(stream, "/api/v1/namespaces/default").contains("\"phase\""));
        child.kill().unwrap();
        child.wait().unwrap();
        let socket = kubectl.api.dir().join("proxy.sock");
        let (mut child, _) = proxy(kubectl, &format!("proxy --unix-socket={}", socket.display()));
        let stream = eventually("the socket is there", || Ok(UnixStream::connect(&socket).ok())).unwrap();
        assert!(ask(stream, "/api").contains("\"versions\""));
        child.kill().unwrap();
        child.wait().unwrap();
    })
}

/// Starts a proxy; returns it with the line that it prints when it serves.
fn proxy(kubectl: &Kubectl<'_>, line: &str) -> (Child, String) {
    let mut child = kubectl.command(words(line)).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("Starting to serve on"), "{said}");
    (child, said)
}

fn ask(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}
