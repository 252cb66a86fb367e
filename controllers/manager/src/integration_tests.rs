//! All controllers with an in-memory API on paused time: tests that each is connected to its events and that
//! what one writes triggers the next.

mod aggregation;
mod attaching;
mod autoscaling;
mod bad_days;
mod collection;
mod daemons;
mod devices;
mod disruption;
mod ephemeral;
mod eviction;
mod leadership;
mod measures;
mod policies;
mod quota;
mod replication;
mod stateful;
mod storage;
mod tokens;
mod ttl;

use std::collections::BTreeSet;
use std::time::Duration;

use apiserver_client::Informers;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Client, ResourceExt};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::testing::api::FakeApi;
use crate::testing::{ambient, time};
use crate::{Authority, Config, Metrics, Signing, TokenIssuer, detached_signature};

struct Cluster {
    api: FakeApi,
    client: Client,
    shutdown: CancellationToken,
    metrics: Metrics,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Cluster {
    async fn start() -> Self {
        let api = FakeApi::new();
        let client = api.client();
        let shutdown = CancellationToken::new();
        let informers = Informers::new(client.clone(), ambient(), shutdown.clone());
        let metrics = Metrics::default();
        let config = Config {
            metrics: metrics.clone(),
            root_ca: "PEM".to_owned(),
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            signing: Some(signing()),
            token_issuer: Some(TokenIssuer::new(|of| {
                format!("{}/{}/{}/{}", of.namespace, of.account, of.uid, of.secret)
            })),
            ..Config::default()
        };
        tokio::spawn(crate::run(config, informers, ambient(), shutdown.clone()));
        let cluster = Self { api, client, shutdown, metrics };
        cluster.create::<Namespace>("", json!({"metadata": {"name": "ns"}})).await;
        cluster
    }

    /// Returns the reasons of all events, with the component that each names as its source.
    fn event_sources(&self) -> BTreeSet<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.api.all("events");
        events.iter().map(|event| (text(&event["reason"]), text(&event["source"]["component"]))).collect()
    }

    /// Returns the messages of all events with this reason.
    fn messages(&self, reason: &str) -> BTreeSet<String> {
        let events = self.api.all("events");
        let events = events.iter().filter(|event| event["reason"] == reason);
        events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }

    async fn create<K>(&self, namespace: &str, object: Value) -> K
    where
        K: kube::Resource<DynamicType = ()>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        let url = K::url_path(&(), (!namespace.is_empty()).then_some(namespace));
        let request = http::Request::post(url).body(serde_json::to_vec(&object).unwrap()).unwrap();
        self.client.request(request).await.unwrap()
    }

    /// Lets time pass, with everything that can happen in it.
    async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn names(&self, plural: &str) -> Vec<String> {
        self.api
            .all(plural)
            .iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Does what a scheduler and kubelets would do: every pod runs on `node` and is ready.
    async fn run_pods(&self, node: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "ns");
        for (number, name) in self.names("pods").iter().enumerate() {
            let body = json!({"spec": {"nodeName": node}});
            pods.patch(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
            let ip = format!("10.244.0.{}", number + 1);
            let body = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(0)}]}});
            pods.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
        }
    }

    async fn deploy(&self, replicas: i32) -> Deployment {
        self.create(
            "ns",
            json!({"metadata": {"name": "web"}, "spec": {
                "replicas": replicas, "progressDeadlineSeconds": 600,
                "selector": {"matchLabels": {"app": "web"}},
                "template": template("image:1")}}),
        )
        .await
    }
}

/// Lets all pods of the Jobs succeed.
async fn succeed(cluster: &Cluster) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    for name in cluster.names("pods") {
        let body = json!({"status": {"phase": "Succeeded"}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_starts_jobs_whose_pods_complete_them_and_the_job_is_deleted_in_time() {
    let cluster = Cluster::start().await;
    let labelled = |name: &str, restart: &str| {
        let mut template = template("image:1");
        template["metadata"]["labels"] = json!({"job": name});
        template["spec"]["restartPolicy"] = json!(restart);
        template
    };
    let job = json!({"metadata": {"name": "j"}, "spec": {"parallelism": 2, "completions": 3, "backoffLimit": 6,
        "completionMode": "Indexed", "ttlSecondsAfterFinished": 20, "selector": {"matchLabels": {"job": "j"}},
        "template": labelled("j", "Never")}});
    cluster.create::<Job>("ns", job).await;
    cluster.pass(2).await;
    assert_eq!(cluster.api.all("jobs")[0]["status"]["active"], 2);
    for _ in 0..2 {
        succeed(&cluster).await;
        cluster.pass(2).await;
    }
    let status = &cluster.api.all("jobs")[0]["status"];
    assert_eq!((&status["succeeded"], &status["completedIndexes"]), (&json!(3), &json!("0-2")), "{status}");
    assert_eq!(status["conditions"][1]["type"], "Complete", "{status}");
    let pods = cluster.api.all("pods");
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod["metadata"]["finalizers"] == json!([])), "{pods:?}");
    cluster.pass(25).await;
    assert!(
        cluster.names("jobs").is_empty() && cluster.names("pods").is_empty(),
        "the Job has ended long ago"
    );

    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 6,
        "selector": {"matchLabels": {"job": "c"}}, "template": labelled("c", "Never")});
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *",
        "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1, "jobTemplate": {"spec": spec}}});
    cluster.create::<CronJob>("ns", cron).await;
    for _ in 0..3 {
        cluster.pass(60).await;
        succeed(&cluster).await;
        cluster.pass(2).await;
    }
    let status = &cluster.api.all("cronjobs")[0]["status"];
    assert!(status["active"].is_null() && status["lastSuccessfulTime"].is_string(), "{status}");
    assert_eq!(cluster.names("jobs").len(), 1, "the history");
    let sources = cluster.event_sources();
    for (reason, source) in [
        ("SuccessfulCreate", "job-controller"),
        ("Completed", "job-controller"),
        ("SuccessfulCreate", "cronjob-controller"),
        ("SawCompletedJob", "cronjob-controller"),
        ("SuccessfulDelete", "cronjob-controller"),
    ] {
        assert!(sources.contains(&(reason.to_owned(), source.to_owned())), "{reason}: {sources:?}");
    }
}

/// An authority whose certificates live for an hour.
fn signing() -> Signing {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    let authority = Authority::new(&certificate, &key.serialize_pem()).unwrap();
    Signing::by_one(authority, Duration::from_secs(3600))
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}]}})
}

fn endpoints(slice: &Value) -> usize {
    slice["endpoints"].as_array().map_or(0, Vec::len)
}

#[tokio::test(start_paused = true)]
async fn a_deployment_becomes_pods_and_a_service_finds_them() {
    let cluster = Cluster::start().await;
    cluster.deploy(3).await;
    cluster
        .create::<Service>(
            "ns",
            json!({"metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"],
                "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]}}),
        )
        .await;
    cluster.pass(2).await;
    assert_eq!(cluster.names("pods").len(), 3);
    assert_eq!(cluster.names("serviceaccounts"), ["default"]);
    assert_eq!(cluster.names("configmaps"), ["kube-root-ca.crt"]);
    cluster.run_pods("n1").await;
    cluster.pass(2).await;
    let slices = cluster.api.all("endpointslices");
    assert_eq!((slices.len(), endpoints(&slices[0])), (1, 3));
    let legacy = &cluster.api.all("endpoints")[0];
    assert_eq!(legacy["subsets"][0]["addresses"].as_array().unwrap().len(), 3);
    let triggers = [legacy, &slices[0]].map(|object| {
        object["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"].clone()
    });
    assert!(triggers[0].is_string() && triggers[0] == triggers[1], "{triggers:?}");
    let deployment = &cluster.api.all("deployments")[0];
    assert_eq!(deployment["status"]["availableReplicas"], 3);
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(deployment["metadata"]["generation"], 1, "the revision is no change of what is wanted");
    assert_eq!(deployment["status"]["observedGeneration"], 1);

    // A new version rolls out while its pods become ready one after the other.
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), "ns");
    let body = json!({"spec": {"template": template("image:2")}});
    deployments.patch("web", &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    for _ in 0..10 {
        cluster.pass(1).await;
        cluster.run_pods("n1").await;
    }
    cluster.pass(2).await;
    let pods = cluster.api.all("pods");
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "image:2"), "{pods:?}");
    assert_eq!(cluster.names("replicasets").len(), 2);
    let slices = cluster.api.all("endpointslices");
    assert_eq!((slices.len(), endpoints(&slices[0])), (1, 3));
    let reason = &cluster.api.all("deployments")[0]["status"]["conditions"];
    assert!(reason.to_string().contains("NewReplicaSetAvailable"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn deleting_an_owner_deletes_its_dependents_under_each_policy() {
    for policy in [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan] {
        let cluster = Cluster::start().await;
        cluster.deploy(2).await;
        cluster.pass(2).await;
        assert_eq!(cluster.names("pods").len(), 2);
        let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), "ns");
        let options = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
        deployments.delete("web", &options).await.unwrap();
        cluster.pass(5).await;
        assert!(cluster.names("deployments").is_empty(), "{policy:?}");
        let left = if policy == PropagationPolicy::Orphan { (1, 2) } else { (0, 0) };
        assert_eq!((cluster.names("replicasets").len(), cluster.names("pods").len()), left, "{policy:?}");
        let owned =
            cluster.api.all("replicasets").iter().any(|set| !set["metadata"]["ownerReferences"].is_null());
        assert!(!owned, "an orphan names its former owner");
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_emptied_before_it_goes() {
    let cluster = Cluster::start().await;
    cluster.deploy(2).await;
    cluster.pass(2).await;
    // One object keeps the namespace until its finalizer is removed.
    cluster
        .create::<k8s_openapi::api::core::v1::ConfigMap>(
            "ns",
            json!({"metadata": {"name": "held", "finalizers": ["example.com/x"]}}),
        )
        .await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete("ns", &DeleteParams::default()).await.unwrap();
    cluster.pass(5).await;
    let live = namespaces.get("ns").await.unwrap();
    let conditions = serde_json::to_string(&live.status.unwrap().conditions).unwrap();
    assert!(conditions.contains("configmaps has 1"), "{conditions}");
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(cluster.client.clone(), "ns");
    let free = json!({"metadata": {"finalizers": null}});
    maps.patch("held", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    cluster.pass(5).await;
    assert!(cluster.names("namespaces").is_empty());
    for plural in ["pods", "replicasets", "deployments", "configmaps", "serviceaccounts"] {
        assert!(cluster.names(plural).is_empty(), "{plural}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_a_network_stops_reporting_and_recovers() {
    let cluster = Cluster::start().await;
    for node in ["n1", "n2"] {
        cluster.create::<Node>("", json!({"metadata": {"name": node}})).await;
        send_heartbeat(&cluster, node, 0).await;
    }
    cluster.pass(1).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    assert_eq!(nodes.get("n1").await.unwrap().spec.unwrap().pod_cidr.as_deref(), Some("10.244.0.0/24"));
    assert_eq!(nodes.get("n2").await.unwrap().spec.unwrap().pod_cidr.as_deref(), Some("10.244.1.0/24"));
    cluster.deploy(1).await;
    cluster.pass(1).await;
    cluster.run_pods("n1").await;
    for second in 1..5 {
        cluster.pass(12).await;
        send_heartbeat(&cluster, "n2", second).await;
    }
    cluster.pass(1).await;
    let lost = nodes.get("n1").await.unwrap();
    let ready =
        lost.status.as_ref().unwrap().conditions.as_ref().unwrap().iter().find(|c| c.type_ == "Ready");
    assert_eq!(ready.unwrap().status, "Unknown");
    let taints: Vec<_> =
        lost.spec.unwrap().taints.unwrap().into_iter().map(|taint| (taint.key, taint.effect)).collect();
    let unreachable = "node.kubernetes.io/unreachable".to_owned();
    assert_eq!(
        taints,
        [(unreachable.clone(), "NoSchedule".to_owned()), (unreachable, "NoExecute".to_owned())]
    );
    assert_eq!(
        cluster.event_sources(),
        [
            ("NodeNotReady", "node-controller"),
            ("RegisteredNode", "node-controller"),
            ("ScalingReplicaSet", "deployment-controller"),
            ("SuccessfulCreate", "replicaset-controller"),
            ("TaintManagerEviction", "taint-eviction-controller"),
        ]
        .map(|(reason, source)| (reason.to_owned(), source.to_owned()))
        .into()
    );
    // Its pod has no tolerations, so it was evicted and replaced.
    let pods = cluster.api.all("pods");
    assert_eq!(pods.len(), 1);
    assert!(pods[0]["spec"]["nodeName"].is_null(), "{pods:?}");
    assert!(nodes.get("n2").await.unwrap().spec.unwrap().taints.unwrap_or_default().is_empty());

    send_heartbeat(&cluster, "n1", 9).await;
    cluster.pass(1).await;
    assert!(nodes.get("n1").await.unwrap().spec.unwrap().taints.unwrap_or_default().is_empty());
}

#[tokio::test(start_paused = true)]
async fn deleted_storage_objects_are_removed_once_unused() {
    let cluster = Cluster::start().await;
    let class = json!({"metadata": {"name": "gold"}, "driverName": "d"});
    cluster.create::<VolumeAttributesClass>("", class).await;
    let spec = json!({"volumeAttributesClassName": "gold", "capacity": {"storage": "1Gi"}});
    cluster.create::<PersistentVolume>("", json!({"metadata": {"name": "v"}, "spec": spec})).await;
    cluster.create::<PersistentVolumeClaim>("ns", json!({"metadata": {"name": "c"}, "spec": spec})).await;
    let user = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
    cluster.create::<Pod>("ns", user).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    cluster.pass(1).await;
    assert_eq!(cluster.api.all("persistentvolumes")[0]["status"]["phase"], "Bound");
    for (plural, finalizer) in [
        ("persistentvolumeclaims", "kubernetes.io/pvc-protection"),
        ("persistentvolumes", "kubernetes.io/pv-protection"),
        ("volumeattributesclasses", "kubernetes.io/vac-protection"),
    ] {
        assert_eq!(cluster.api.all(plural)[0]["metadata"]["finalizers"], json!([finalizer]));
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "ns");
    let classes: Api<VolumeAttributesClass> = Api::all(cluster.client.clone());
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    volumes.delete("v", &DeleteParams::default()).await.unwrap();
    classes.delete("gold", &DeleteParams::default()).await.unwrap();
    cluster.pass(1).await;
    let left = || {
        ["persistentvolumeclaims", "persistentvolumes", "volumeattributesclasses"]
            .map(|plural| cluster.names(plural).len())
    };
    assert_eq!(left(), [1, 1, 1], "each is in use");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    cluster.pass(1).await;
    assert_eq!(
        left(),
        [0, 0, 0],
        "the volume is released with its claim, and the class goes with the last that names it"
    );
}

/// Does what a kubelet does: renews its lease and reports that it is ready.
async fn send_heartbeat(cluster: &Cluster, node: &str, second: i64) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let body = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time(second)}]}});
    nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-node-lease");
    let renewed = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(crate::testing::at(second));
    let mut lease = Lease::default();
    lease.metadata.name = Some(node.to_owned());
    lease.spec.get_or_insert_default().renew_time = Some(renewed);
    match leases.get_opt(node).await.unwrap() {
        None => drop(leases.create(&PostParams::default(), &lease).await.unwrap()),
        Some(live) => {
            let body = json!({"spec": lease.spec});
            leases.patch(&live.name_any(), &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
        }
    }
}

/// Returns a request of `author` for a certificate of node `node` with these names.
fn csr(name: &str, author: &str, groups: &[&str], node: &str, names: &[&str]) -> Value {
    let mut params =
        CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let (signer, purpose) = if names.is_empty() {
        ("kube-apiserver-client-kubelet", "client auth")
    } else {
        ("kubelet-serving", "server auth")
    };
    json!({"metadata": {"name": name}, "spec": {
        "request": ByteString(pem.into_bytes()), "signerName": format!("kubernetes.io/{signer}"),
        "usages": ["digital signature", purpose], "username": author, "groups": groups}})
}

#[tokio::test(start_paused = true)]
async fn requests_of_nodes_are_approved_and_signed_and_those_of_strangers_are_not() {
    let cluster = Cluster::start().await;
    cluster.create::<Secret>("kube-system", token_secret(&[])).await;
    let (token, node) = ("system:bootstrap:abcdef", "system:node:b");
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": time(0)}]);
    let alive = json!({"metadata": {"name": "c"}, "status": {"conditions": ready}});
    cluster.create::<Node>("", alive).await;
    for request in [
        // The name of a node that is alive, which only that node itself may renew.
        csr("takes", token, &["nodeclient"], "c", &[]),
        csr("keeps", "system:node:c", &["selfnodeclient"], "c", &[]),
        csr("joins", token, &["nodeclient"], "a", &[]),
        csr("renews", node, &["selfnodeclient", "system:nodes"], "b", &[]),
        csr("serves", node, &["system:nodes"], "b", &["b", "192.0.2.2"]),
        // A token that was deleted after the request.
        csr("lingers", "system:bootstrap:ghijkl", &["nodeclient"], "a", &[]),
        // A node that asks for another one's name, and a token that nobody allowed to join.
        csr("steals", node, &["selfnodeclient", "system:nodes"], "a", &[]),
        csr("lacks", token, &["selfnodeclient"], "a", &[]),
        csr("pretends", node, &["system:nodes"], "a", &["a"]),
        csr("listens", node, &["system:nodes"], "b", &["b", "192.0.2.1"]),
    ] {
        cluster.create::<CertificateSigningRequest>("", request).await;
    }
    cluster.pass(2).await;
    let issued = || -> BTreeSet<String> {
        let all = cluster.api.all("certificatesigningrequests");
        let issued = all.iter().filter(|request| request["status"]["certificate"].is_string());
        issued.map(|request| request["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(issued(), names(&["joins", "keeps", "renews"]), "the Nodes are not there yet");
    for (name, address) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        let node = json!({"metadata": {"name": name}, "status": {"addresses": [
            {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]}});
        cluster.create::<Node>("", node).await;
    }
    cluster.pass(2).await;
    assert_eq!(issued(), names(&["joins", "keeps", "renews", "serves"]));
    for request in cluster.api.all("certificatesigningrequests") {
        let conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let reasons: Vec<&Value> = conditions.iter().map(|condition| &condition["reason"]).collect();
        let expected = match request["metadata"]["name"].as_str().unwrap() {
            "takes" => vec!["NodeNameTaken"],
            "lingers" => vec!["BootstrapTokenEnded"],
            _ if request["status"]["certificate"].is_string() => vec!["AutoApproved"],
            _ => vec![],
        };
        assert_eq!(reasons, expected, "{}", request["metadata"]["name"]);
    }
    for reason in ["ServingCertificateNotApproved", "NodeNameTaken"] {
        let refusal = (reason.to_owned(), "certificate-controller".to_owned());
        assert!(cluster.event_sources().contains(&refusal), "{reason}");
    }
    // Requests that are open when the token ends are denied, so that nobody approves them later.
    let tokens: Api<Secret> = Api::namespaced(cluster.client.clone(), "kube-system");
    tokens.delete("bootstrap-token-abcdef", &DeleteParams::default()).await.unwrap();
    cluster.pass(20).await;
    let all = cluster.api.all("certificatesigningrequests");
    let open = all.iter().find(|request| request["metadata"]["name"] == "lacks").unwrap();
    assert_eq!(open["status"]["conditions"][0]["type"], "Denied", "{open}");
    assert_eq!(open["status"]["conditions"][0]["reason"], "BootstrapTokenEnded");
}

/// Returns the Secret of token `abcdef` with further fields.
fn token_secret(further: &[(&str, String)]) -> Value {
    let mut data = json!({});
    let fields = [
        ("token-id", "abcdef".to_owned()),
        ("token-secret", "0123456789abcdef".to_owned()),
        ("usage-bootstrap-signing", "true".to_owned()),
        ("usage-bootstrap-authentication", "true".to_owned()),
    ];
    for (key, value) in fields.iter().chain(further) {
        data[*key] = json!(ByteString(value.clone().into_bytes()));
    }
    json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token", "data": data})
}

#[tokio::test(start_paused = true)]
async fn the_cluster_is_announced_to_those_with_a_token_until_it_expires() {
    let cluster = Cluster::start().await;
    let map = json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "text"}});
    cluster.create::<ConfigMap>("kube-public", map).await;
    let expiration = ambient().now() + Duration::from_secs(60);
    let secret = token_secret(&[("expiration", expiration.to_string())]);
    cluster.create::<Secret>("kube-system", secret).await;
    cluster.pass(2).await;
    let data = || {
        cluster.api.all("configmaps").iter().find(|m| m["metadata"]["name"] == "cluster-info").unwrap()["data"].clone()
    };
    assert_eq!(data()["jws-kubeconfig-abcdef"], detached_signature("text", "abcdef", "0123456789abcdef"));
    cluster.pass(62).await;
    assert!(cluster.names("secrets").is_empty(), "an expired token is deleted");
    assert_eq!(data(), json!({"kubeconfig": "text"}), "the signature of a token that is gone");
}
