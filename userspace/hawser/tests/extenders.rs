//! `hawser scheduler --config` with extenders over HTTP, against an API server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::probes::{Cluster, Process, create, wait_for};

/// The verb and the request of each call of an extender.
type Calls = Arc<Mutex<Vec<(String, Value)>>>;

/// Answers calls on a port of its own until the process ends; returns the URL. No answer leaves the caller waiting.
fn extender(answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static) -> (String, Calls) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/scheduler", listener.local_addr().unwrap());
    let (calls, answer) = (Calls::default(), Arc::new(answer));
    let seen = Arc::clone(&calls);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
            std::thread::spawn(move || respond(stream, &seen, &*answer));
        }
    });
    (url, calls)
}

fn respond(mut stream: TcpStream, seen: &Calls, answer: &dyn Fn(&str, &Value) -> Option<Value>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return;
        }
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.to_ascii_lowercase());
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length:")).unwrap();
    let mut body = vec![0; length.trim().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let path = lines[0].split(' ').nth(1).unwrap();
    assert!(path.starts_with("/scheduler/"), "{path}");
    let verb = path.rsplit('/').next().unwrap().to_owned();
    let request = serde_json::from_slice(&body).unwrap();
    let reply = answer(&verb, &request);
    seen.lock().unwrap().push((verb, request));
    if let Some(reply) = reply {
        let text = reply.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
        let _ = stream.write_all(format!("{head}{text}").as_bytes());
    } else {
        // Until the caller gives up.
        let _ = stream.read(&mut [0]);
    }
}

/// Answers as an extender that lets some machines pass and prefers one, by names or by objects as it is asked.
fn judge(verb: &str, request: &Value, passing: &[&str], best: &str, score: i64) -> Option<Value> {
    let objects = request["Nodes"]["items"].as_array();
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap().to_owned();
    let names: Vec<String> = match objects {
        Some(objects) => objects.iter().map(name).collect(),
        None => serde_json::from_value(request["NodeNames"].clone()).unwrap(),
    };
    if verb == "prioritize" {
        let scores =
            names.iter().map(|name| json!({"Host": name, "Score": if name == best { score } else { 1 }}));
        return Some(scores.collect());
    }
    let left: Vec<&String> = names.iter().filter(|name| passing.contains(&name.as_str())).collect();
    Some(match objects {
        Some(objects) => {
            let passes = |node: &&Value| left.contains(&&name(node));
            let items: Vec<&Value> = objects.iter().filter(passes).collect();
            json!({"Nodes": {"items": items}, "NodeNames": null, "FailedNodes": {}, "Error": ""})
        }
        None => json!({"Nodes": null, "NodeNames": left, "FailedNodes": {}, "Error": ""}),
    })
}

async fn create_pod(admin: &Client, name: &str, resource: &str) {
    let limits = json!({resource: "1"});
    let pod = json!({"metadata": {"name": name, "annotations": {"seen": "whole"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}});
    create::<Pod>(Api::namespaced(admin.clone(), "default"), pod).await;
}

async fn node_of(admin: &Client, name: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    wait_for("a node", async || pods.get(name).await.unwrap().spec.unwrap().node_name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_asks_the_extenders_of_its_configuration_and_waits_for_none() {
    let cluster = Cluster::start();
    let admin = apiserver_client::connect(&cluster.path("kubeconfig.yaml"), "test").await.unwrap();
    create::<ServiceAccount>(
        Api::namespaced(admin.clone(), "default"),
        json!({"metadata": {"name": "default"}}),
    )
    .await;
    for number in 1..=5 {
        let capacity = json!({"pods": "32", "cpu": "8", "example.com/slow": "9"});
        let status = json!({"capacity": capacity, "allocatable": capacity});
        let node = json!({"metadata": {"name": format!("machine{number}")}, "status": status});
        let nodes: Api<Node> = Api::all(admin.clone());
        let name = create(nodes.clone(), node).await.metadata.name.unwrap();
        // No controller takes away the taint that the API server gives to new nodes.
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        nodes.patch(&name, &PatchParams::default(), &untainted).await.unwrap();
    }
    // The machines of the second and the third are fewer together, and the weights prefer machine2 to machine3.
    let (first, _) =
        extender(|verb, request| judge(verb, request, &["machine1", "machine2", "machine3"], "machine2", 10));
    let binding = admin.clone();
    let runtime = tokio::runtime::Handle::current();
    let (second, second_calls) = extender(move |verb, request| {
        if verb != "bind" {
            return judge(verb, request, &["machine2", "machine3", "machine5"], "machine3", 10);
        }
        let name = request["PodName"].as_str().unwrap();
        let body = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": request["Node"]}});
        let post = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"));
        let post =
            post.header("Content-Type", "application/json").body(body.to_string().into_bytes()).unwrap();
        runtime.block_on(binding.request_text(post)).unwrap();
        Some(json!({"Error": ""}))
    });
    let (third, _) =
        extender(|verb, request| judge(verb, request, &["machine1", "machine2", "machine3"], "machine2", 10));
    let (hanging, hanging_calls) = extender(|_, _| None);
    let managed = |name: &str, is_ignored: bool| json!([{"name": name, "ignoredByScheduler": is_ignored}]);
    let asked = |url: &str, weight: i64| {
        json!({"urlPrefix": url, "filterVerb": "filter",
        "prioritizeVerb": "prioritize", "weight": weight})
    };
    let mut extenders = vec![asked(&first, 3), asked(&second, 4), asked(&third, 10), asked(&hanging, 1)];
    extenders[1]["bindVerb"] = json!("bind");
    extenders[1]["managedResources"] = managed("example.com/fancy", true);
    extenders[2]["nodeCacheCapable"] = json!(true);
    extenders[3]["managedResources"] = managed("example.com/slow", false);
    extenders[3]["httpTimeout"] = json!("1h");
    let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false}, "extenders": extenders});
    std::fs::write(cluster.path("scheduler.yaml"), document.to_string()).unwrap();
    let mut command = cluster.component("scheduler", 0);
    let _running = Process(command.arg("--config").arg(cluster.path("scheduler.yaml")).spawn().unwrap());

    create_pod(&admin, "slow", "example.com/slow").await;
    wait_for("the call that hangs", async || (!hanging_calls.lock().unwrap().is_empty()).then_some(())).await;
    create_pod(&admin, "fancy", "example.com/fancy").await;
    assert_eq!(node_of(&admin, "fancy").await, "machine2");
    let calls = second_calls.lock().unwrap().clone();
    let bound: Vec<&Value> =
        calls.iter().filter(|call| call.0 == "bind").map(|call| &call.1["Node"]).collect();
    assert_eq!(bound, ["machine2"]);
    let (_, filter) = calls.iter().find(|call| call.0 == "filter").unwrap();
    assert_eq!(filter["Pod"]["metadata"]["annotations"]["seen"], "whole");
    assert_eq!(filter["Nodes"]["items"][0]["status"]["capacity"]["pods"], "32");
    let slow: Api<Pod> = Api::namespaced(admin.clone(), "default");
    assert!(slow.get("slow").await.unwrap().spec.unwrap().node_name.is_none());
}

#[test]
fn extenders_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let insecure = "{insecure: true, caFile: /ca.crt}";
    for (extender, expected) in [
        (
            "{urlPrefix: 'http://a', prioritizeVerb: p}".to_owned(),
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        (
            format!("{{urlPrefix: 'https://a', filterVerb: f, tlsConfig: {insecure}}}"),
            "couldn't build extenders: specifying a root certificates file with the insecure flag is not allowed",
        ),
    ] {
        let file = dir.path().join("scheduler.yaml");
        std::fs::write(&file, format!("{head}extenders: [{extender}]\n")).unwrap();
        let mut command = crate::probes::hawser();
        let output = command.arg("scheduler").arg("--config").arg(&file).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(expected), "{told}");
    }
}
