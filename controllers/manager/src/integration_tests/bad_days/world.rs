//! A small cluster with an object of each kind, which others change while the controllers have a bad day.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Cluster, Fault, Line, begin, delete, labelled, names, object, patch, post, selector};
use crate::testing::api::FakeApi;
use crate::testing::{WallClock, ambient, time};

const CONTROLLERS: [&str; 14] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "cronjob-controller",
    "disruption-controller",
    "resourcequota-controller",
    "persistentvolume-binder-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
];
const NODES: [&str; 2] = ["n1", "n2"];
/// Replicas of the Deployment in the end, and its surge.
const WEB: i64 = 4;
const SURGE: i64 = 1;
/// Completions and parallelism of the Job.
const COMPLETIONS: usize = 4;
const PARALLEL: usize = 2;

/// The cluster. Its clock can be set.
pub struct World {
    pub cluster: Cluster,
    pub line: Line,
    pub clock: WallClock,
    kubelets: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.kubelets.abort();
    }
}

impl World {
    /// Starts the cluster at second 0, in good order. `retries` chooses the client of a kubeconfig.
    pub async fn begin(faults: &[Fault], retries: bool) -> Self {
        let api = FakeApi::new();
        let (line, clock) = (Line::new(&api, faults.to_vec()), WallClock::new());
        let client = if retries { line.retrying_client() } else { line.client() };
        let cluster = begin(&api, client, clock.ambient(), &CONTROLLERS).await;
        let kubelets = tokio::spawn(live(api, cluster.client.clone()));
        let world = Self { cluster, line, clock, kubelets };
        for node in NODES {
            world.add_node(node).await;
        }
        world.populate().await;
        world.line.until(9).await;
        world
    }

    async fn create(&self, plural: &str, object: Value) {
        let path = match plural {
            "nodes" | "namespaces" | "persistentvolumes" => format!("/api/v1/{plural}"),
            "pods" | "services" | "configmaps" | "resourcequotas" | "persistentvolumeclaims" => {
                format!("/api/v1/namespaces/ns/{plural}")
            }
            "jobs" | "cronjobs" => format!("/apis/batch/v1/namespaces/ns/{plural}"),
            "poddisruptionbudgets" => format!("/apis/policy/v1/namespaces/ns/{plural}"),
            _ => format!("/apis/apps/v1/namespaces/ns/{plural}"),
        };
        post(&self.cluster.client, &path, &object).await;
    }

    async fn add_node(&self, name: &str) {
        let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": time(0)}]);
        self.create("nodes", json!({"metadata": {"name": name}, "status": {"conditions": ready}})).await;
    }

    async fn populate(&self) {
        let surge =
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": SURGE, "maxUnavailable": 0}});
        let named = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let web = json!({"replicas": WEB - 1, "progressDeadlineSeconds": 600, "strategy": surge,
            "selector": selector("web"), "template": labelled("web", "image:1")});
        self.create("deployments", named("web", web)).await;
        let db = json!({"replicas": 2, "serviceName": "db", "podManagementPolicy": "OrderedReady",
            "selector": selector("db"), "template": labelled("db", "image:1")});
        self.create("statefulsets", named("db", db)).await;
        let agent = json!({"selector": selector("agent"), "template": labelled("agent", "image:1")});
        self.create("daemonsets", named("agent", agent)).await;
        let tick = json!({"schedule": "* * * * *", "successfulJobsHistoryLimit": 9, "failedJobsHistoryLimit": 9,
            "jobTemplate": {"spec": job("tick", 1, 1)}});
        self.create("cronjobs", named("tick", tick)).await;
        let budget = json!({"minAvailable": 2, "selector": selector("web")});
        self.create("poddisruptionbudgets", named("web", budget)).await;
        self.create(
            "resourcequotas",
            named("q", json!({"hard": {"count/deployments.apps": "9", "pods": "99"}})),
        )
        .await;
        let ports = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
        self.create("services", named("web", ports)).await;
        self.create("namespaces", json!({"metadata": {"name": "doomed"}})).await;
        post(
            &self.cluster.client,
            "/api/v1/namespaces/doomed/configmaps",
            &json!({"metadata": {"name": "m"}}),
        )
        .await;
    }

    /// Changes objects of all kinds, as users and others do.
    pub async fn change(&self) {
        let client = &self.cluster.client;
        let roll = json!({"spec": {"replicas": WEB, "template": labelled("web", "image:2")}});
        patch(client, "/apis/apps/v1/namespaces/ns/deployments/web", &roll).await;
        delete(client, "/api/v1/namespaces/ns/pods/db-1").await;
        self.add_node("n3").await;
        self.create(
            "jobs",
            json!({"metadata": {"name": "once"}, "spec": job("once", COMPLETIONS, PARALLEL)}),
        )
        .await;
        let access = json!(["ReadWriteOnce"]);
        let volume = json!({"accessModes": access, "capacity": {"storage": "2Gi"}, "hostPath": {"path": "/x"},
            "persistentVolumeReclaimPolicy": "Retain"});
        self.create("persistentvolumes", json!({"metadata": {"name": "v"}, "spec": volume})).await;
        let claim = json!({"accessModes": access, "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}}});
        self.create("persistentvolumeclaims", json!({"metadata": {"name": "c"}, "spec": claim})).await;
        let gone = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
        self.create("configmaps", json!({"metadata": {"name": "orphan", "ownerReferences": gone}})).await;
        delete(client, "/api/v1/namespaces/doomed").await;
    }

    fn pods(&self, app: &str) -> Vec<Value> {
        let all = self.cluster.api.all("pods").into_iter();
        all.filter(|pod| pod["metadata"]["labels"]["app"] == app).collect()
    }

    /// Returns what is not done after [`World::change`].
    pub fn unfinished(&self) -> Vec<String> {
        let api = &self.cluster.api;
        let status = |plural: &str, name: &str, field: &str| {
            object(api, plural, name).map(|object| object["status"][field].clone()).unwrap_or_default()
        };
        let new =
            self.pods("web").iter().filter(|pod| pod["spec"]["containers"][0]["image"] == "image:2").count();
        let slices = api.all("endpointslices");
        let ready = slices.iter().map(super::super::endpoints).sum::<usize>();
        let active = api.all("pods").iter().filter(|pod| pod["status"]["phase"] != "Succeeded").count();
        let rows = [
            ("new pods", json!(new), json!(WEB)),
            ("all pods", json!(self.pods("web").len()), json!(WEB)),
            ("updated", status("deployments", "web", "updatedReplicas"), json!(WEB)),
            ("available", status("deployments", "web", "availableReplicas"), json!(WEB)),
            ("stateful", json!(names(api, "pods", "db-")), json!(["db-0", "db-1"])),
            ("stateful ready", status("statefulsets", "db", "readyReplicas"), json!(2)),
            ("daemons", json!(self.pods("agent").len()), json!(NODES.len() + 1)),
            ("daemons ready", status("daemonsets", "agent", "numberReady"), json!(NODES.len() + 1)),
            ("job", status("jobs", "once", "succeeded"), json!(COMPLETIONS)),
            ("budget", status("poddisruptionbudgets", "web", "currentHealthy"), json!(WEB)),
            ("quota", status("resourcequotas", "q", "used")["pods"].clone(), json!(active.to_string())),
            ("claim", status("persistentvolumeclaims", "c", "phase"), json!("Bound")),
            ("volume", status("persistentvolumes", "v", "phase"), json!("Bound")),
            ("endpoints", json!(ready), json!(WEB)),
            ("orphans", json!(names(api, "configmaps", "orphan")), json!([])),
            ("namespaces", json!(names(api, "namespaces", "doomed")), json!([])),
        ];
        let wrong = rows.into_iter().filter(|(_, is, wanted)| is != wanted);
        wrong.map(|(what, is, wanted)| format!("{what}: {is}, not {wanted}")).collect()
    }

    /// Replays all pods; returns what was wrong at any time since `since`.
    pub fn wrongs(&self, since: Instant) -> Vec<String> {
        let api = &self.cluster.api;
        let mut wrongs = Vec::new();
        let mut pods: BTreeMap<String, Value> = BTreeMap::new();
        let mut created: BTreeMap<String, usize> = BTreeMap::new();
        let sets = api.history("replicasets").into_iter().map(|(_, set)| set);
        let size = |set: &Value| usize::try_from(set["spec"]["replicas"].as_i64().unwrap()).unwrap();
        let sizes: Vec<_> = sets
            .map(|set| (version(&set), set["metadata"]["name"].as_str().unwrap().to_owned(), size(&set)))
            .collect();
        let times: Vec<_> = api.times("pods").into_iter().map(|(at, _)| at).collect();
        for (at, (change, pod)) in times.into_iter().zip(api.history("pods")) {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            if change == "ADDED" {
                let app = pod["metadata"]["labels"]["app"].as_str().unwrap_or_default().to_owned();
                *created.entry(app).or_default() += 1;
            }
            let (owner, version) = (owner(&pod).to_owned(), version(&pod));
            if change == "DELETED" {
                pods.remove(&name)
            } else {
                pods.insert(name.clone(), pod)
            };
            if at < since {
                continue;
            }
            let of = |app: &str| {
                let app = app.to_owned();
                pods.values().filter(move |pod| pod["metadata"]["labels"]["app"] == app)
            };
            let owned = of("web").filter(|pod| self::owner(pod) == owner).count();
            let size =
                sizes.iter().rfind(|(at, set, _)| *set == owner && *at < version).map_or(0, |set| set.2);
            let ready = of("web").filter(|pod| pod["status"]["phase"] == "Running").count();
            let active = of("once").filter(|pod| pod["status"]["phase"] != "Succeeded").count();
            let mut wrong = |bad: bool, what: String| {
                if bad {
                    wrongs.push(format!("{what} after {change} {name}"));
                }
            };
            // A set that has shrunk may have more for a moment; then it creates none.
            wrong(
                change == "ADDED" && name.starts_with("web") && owned > size,
                format!("{owned} pods, not {size}"),
            );
            wrong(ready < 3, format!("{ready} pods are ready"));
            wrong(active > PARALLEL, format!("{active} active pods of the Job"));
            let mut nodes = BTreeMap::new();
            of("agent").for_each(|pod| *nodes.entry(daemon_node(pod).unwrap()).or_insert(0) += 1);
            wrong(nodes.values().any(|count| *count > 1), format!("{nodes:?}"));
        }
        let once = created.get("once").copied().unwrap_or(0);
        if once > COMPLETIONS {
            wrongs.push(format!("{once} pods of the Job"));
        }
        wrongs.extend(self.oversized().into_iter().chain(self.lost_nodes()));
        wrongs
    }

    /// Returns the sizes of ReplicaSets that exceed the surge at any time.
    pub fn oversized(&self) -> Vec<String> {
        let (mut sizes, mut wrongs) = (BTreeMap::new(), Vec::new());
        for (change, set) in self.cluster.api.history("replicasets") {
            let size = if change == "DELETED" { 0 } else { set["spec"]["replicas"].as_i64().unwrap() };
            sizes.insert(set["metadata"]["name"].as_str().unwrap().to_owned(), size);
            if sizes.values().sum::<i64>() > WEB + SURGE {
                wrongs.push(format!("sizes {sizes:?}"));
            }
        }
        wrongs
    }

    /// Returns the nodes that were taken for lost at any time, though all of them were alive.
    pub fn lost_nodes(&self) -> Vec<String> {
        let mut lost = Vec::new();
        for (at, node) in self.cluster.api.times("nodes") {
            let (taints, ready) = (node["spec"]["taints"].to_string(), &node["status"]["conditions"][0]);
            if taints.contains("NoExecute") || ready["status"] != "True" {
                let second = self.line.second(at);
                lost.push(format!("{} lost at {second}: {ready} {taints}", node["metadata"]["name"]));
            }
        }
        lost
    }
}

fn job(app: &str, completions: usize, parallelism: usize) -> Value {
    let mut template = labelled(app, "image:1");
    template["spec"]["restartPolicy"] = json!("Never");
    json!({"completions": completions, "parallelism": parallelism, "backoffLimit": 6,
        "selector": selector(app), "template": template})
}

/// Returns the name of the owner; empty if there is none.
fn owner(object: &Value) -> &str {
    object["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default()
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn daemon_node(pod: &Value) -> Option<&str> {
    pod.pointer(
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0",
    )?
    .as_str()
}

/// Does what the scheduler and kubelets do: pods run, those of Jobs succeed, and nodes renew their leases.
async fn live(api: FakeApi, client: Client) {
    let ambient = ambient();
    for second in 0_u64.. {
        for pod in api.all("pods") {
            advance(&client, &pod).await;
        }
        if second.is_multiple_of(10) {
            let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
            for node in names(&api, "nodes", "") {
                let spec = json!({"spec": {"renewTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(ambient.now())}});
                if object(&api, "leases", &node).is_some() {
                    patch(&client, &format!("{leases}/{node}"), &spec).await;
                } else {
                    let mut lease = spec;
                    lease["metadata"] = json!({"name": node});
                    post(&client, leases, &lease).await;
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Lets a pod take its next step.
async fn advance(client: &Client, pod: &Value) {
    let meta = &pod["metadata"];
    let (namespace, name) = (meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let ends = meta["ownerReferences"][0]["kind"] == "Job";
    match pod["status"]["phase"].as_str() {
        None => {
            let node = daemon_node(pod).unwrap_or("n1");
            try_patch(client, &path, &json!({"spec": {"nodeName": node}})).await;
            let version = version(pod);
            let ip = format!("10.244.{}.{}", version / 250 % 250, version % 250 + 1);
            let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": time(0)}]);
            let status =
                json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready});
            try_patch(client, &format!("{path}/status"), &json!({"status": status})).await;
        }
        Some("Running") if ends => {
            try_patch(client, &format!("{path}/status"), &json!({"status": {"phase": "Succeeded"}})).await;
        }
        _ => {}
    }
}

/// Patches a pod, which may have been deleted meanwhile.
async fn try_patch(client: &Client, path: &str, body: &Value) {
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    let _ = client.request_text(request.body(body.to_string().into_bytes()).unwrap()).await;
}
