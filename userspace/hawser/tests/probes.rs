//! Pages of the scheduler and the controllers as separate processes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use apiserver_auth::authentication::pki::{Pki, Subject, kubeconfig};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

/// A process that is killed when dropped.
pub(crate) struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn hawser() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hawser"))
}

/// An API server of its own with a certificate for others to serve with.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    pki: Pki,
    _api: Process,
}

impl Cluster {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = hawser();
        command.args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"]);
        let mut api = Process(command.arg(dir.path()).stdout(Stdio::piped()).spawn().unwrap());
        BufReader::new(api.0.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        let pki = Pki::open(&dir.path().join("pki"), &Ambient::system()).unwrap();
        let pair = pki.issue(&Subject::apiserver("cluster.local", [])).unwrap();
        std::fs::write(dir.path().join("tls.crt"), &pair.certificate).unwrap();
        std::fs::write(dir.path().join("tls.key"), &pair.key).unwrap();
        Self { dir, pki, _api: api }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the command of a component that serves its pages on a port.
    pub fn component(&self, name: &str, port: u16) -> Command {
        let mut command = hawser();
        command.args([name, "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()]);
        command.arg("--kubeconfig").arg(self.path("kubeconfig.yaml"));
        command.arg("--tls-cert-file").arg(self.path("tls.crt"));
        command.arg("--tls-private-key-file").arg(self.path("tls.key"));
        command
    }

    /// Returns a client of the pages on a port, with a certificate that means nothing there.
    async fn pages(&self, port: u16) -> Client {
        let pair = self.pki.issue(&Subject::apiserver("cluster.local", [])).unwrap();
        let url = format!("https://127.0.0.1:{port}");
        let text = kubeconfig(&url, self.pki.ca_pem(), &pair.certificate, &pair.key);
        std::fs::write(self.path("probe.yaml"), text).unwrap();
        apiserver_client::connect(&self.path("probe.yaml"), "test").await.unwrap()
    }
}

fn get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

/// Repeats a request until it succeeds.
pub(crate) async fn wait_for<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt().await {
            return done;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_over_tls_and_a_port_that_is_taken_is_an_error() {
    let cluster = Cluster::start();
    for component in ["scheduler", "controllers"] {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let output = cluster.component(component, port).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("cannot answer probes on 127.0.0.1"), "{text}");
        drop(taken);
        let _running = Process(cluster.component(component, port).spawn().unwrap());
        let client = cluster.pages(port).await;
        let health = wait_for(component, async || client.request_text(get("/healthz")).await.ok()).await;
        assert_eq!(health, "ok");
        for path in ["/livez", "/readyz"] {
            assert_eq!(client.request_text(get(path)).await.unwrap(), "ok");
        }
        assert!(client.request_text(get("/secrets")).await.is_err());
    }
}

pub(crate) async fn create<K>(api: Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn token(client: &Client, account: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    create(accounts.clone(), json!({"metadata": {"name": account}})).await;
    let wanted = serde_json::from_value(json!({"spec": {}})).unwrap();
    let answer = accounts.create_token_request(account, &PostParams::default(), &wanted).await.unwrap();
    answer.status.unwrap().token.unwrap()
}

/// Permits an account of the namespace `default` to get pages.
async fn permit(admin: &Client, account: &str, paths: &[&str]) {
    let rules = json!([{"nonResourceURLs": paths, "verbs": ["get"]}]);
    create::<ClusterRole>(Api::all(admin.clone()), json!({"metadata": {"name": "read"}, "rules": rules}))
        .await;
    let binding = json!({"metadata": {"name": "read"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "read"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]});
    create::<ClusterRoleBinding>(Api::all(admin.clone()), binding).await;
}

/// Checks that the controller of ReplicaSets is the source of its events, by the name and with the field manager that it
/// has in Kubernetes.
async fn replica_set_reports_as_itself(admin: &Client) {
    let pods: Api<Event> = Api::namespaced(admin.clone(), "default");
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}}});
    create::<ReplicaSet>(Api::namespaced(admin.clone(), "default"), set).await;
    let event =
        wait_for("an event", async || pods.list(&Default::default()).await.unwrap().items.pop()).await;
    let source = event.source.unwrap_or_default().component;
    assert_eq!(source.as_deref(), Some("replicaset-controller"), "{:?}", event.message);
    let manager = event.metadata.managed_fields.and_then(|fields| fields.into_iter().next()?.manager);
    assert_eq!(manager.as_deref(), Some("kube-controller-manager"));
}

fn check_configuration(text: &str) {
    let shown: Value = serde_json::from_str(text).unwrap();
    let shown = &shown["kubecontrollermanager.config.k8s.io"];
    assert_eq!(shown["DeploymentController"]["ConcurrentDeploymentSyncs"], 3);
    assert_eq!(shown["Generic"]["Controllers"], json!(["*", "-job"]));
}

fn check_metrics(text: &str) {
    assert!(text.contains("workqueue_work_duration_seconds_count{name=\"serviceaccount\"}"), "{text}");
    let running = |name: &str| {
        text.contains(&format!(
            "running_managed_controllers{{manager=\"kube-controller-manager\",name=\"{name}\"}} 1"
        ))
    };
    assert!(running("cronjob-controller") && !running("job-controller"), "{text}");
    assert!(text.contains("leader_election_master_status{name=\"kube-controller-manager\"} 1"), "{text}");
    assert!(text.contains("rest_client_requests_total{code=\"201\",host=\"127.0.0.1:"), "{text}");
    assert!(text.contains("# TYPE root_ca_cert_publisher_sync_total counter"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_write_as_their_accounts_and_show_metrics_to_those_who_may_get_them() {
    let cluster = Cluster::start();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let mut command = cluster.component("controllers", port);
    let config = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\n\
        kind: KubeControllerManagerConfiguration\ngeneric: {controllers: [job], port: 1}\n\
        deploymentController: {concurrentDeploymentSyncs: 3}\n";
    std::fs::write(cluster.path("controllers.yaml"), config).unwrap();
    command.arg("--config").arg(cluster.path("controllers.yaml"));
    // The flag wins over the file.
    command.args(["--controllers=*,-job", "--use-service-account-credentials"]);
    let _running = Process(command.spawn().unwrap());

    let admin = apiserver_client::connect(&cluster.path("kubeconfig.yaml"), "test").await.unwrap();
    let own: Api<ServiceAccount> = Api::namespaced(admin.clone(), "kube-system");
    let used = async || own.get_opt("service-account-controller").await.unwrap();
    wait_for("the account of a controller", used).await;
    let defaults: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    wait_for("what that controller writes", async || defaults.get_opt("default").await.unwrap()).await;

    let (reader, stranger) = (token(&admin, "reader").await, token(&admin, "stranger").await);
    let paths = ["/metrics", "/metrics/slis", "/configz", "/healthz/*"];
    permit(&admin, "reader", &paths).await;
    let pages = cluster.pages(port).await;
    let page_at = async |path: &str, token: Option<&str>| {
        let request = http::Request::get(path);
        let request = match token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        };
        match pages.request_text(request.body(Vec::new()).unwrap()).await {
            Ok(text) => (200, text),
            Err(kube::Error::Api(status)) => (status.code, String::new()),
            Err(error) => panic!("{error}"),
        }
    };
    let page = async |token: Option<&str>| page_at("/metrics", token).await;
    for path in
        ["/metrics", "/metrics/slis", "/configz", "/healthz/ttl-controller", "/healthz/leaderElection"]
    {
        assert_eq!(page_at(path, None).await.0, 401, "{path}");
        assert_eq!(page_at(path, Some("x.y.z")).await.0, 401, "{path}");
        assert_eq!(page_at(path, Some(&stranger)).await.0, 403, "{path}");
    }
    assert_eq!(page_at("/debug", Some(&reader)).await.0, 404);
    // The role may not have been seen yet.
    let text = wait_for("the metrics", async || Some(page(Some(&reader)).await).filter(|page| page.0 == 200))
        .await
        .1;
    check_metrics(&text);

    check_configuration(&page_at("/configz", Some(&reader)).await.1);
    for check in ["leaderElection", "cronjob-controller"] {
        assert_eq!(page_at(&format!("/healthz/{check}"), Some(&reader)).await, (200, "ok".to_owned()));
    }
    assert_eq!(page_at("/healthz/job-controller", Some(&reader)).await.0, 404);
    let (_, verbose) = page_at("/healthz?verbose", None).await;
    assert!(
        verbose.starts_with("[+]leaderElection ok\n") && verbose.contains("[+]ttl-controller ok\n"),
        "{verbose}"
    );

    let (_, slis) = page_at("/metrics/slis", Some(&reader)).await;
    assert!(slis.contains("kubernetes_healthcheck{name=\"ttl-controller\",type=\"healthz\"} 1"), "{slis}");

    replica_set_reports_as_itself(&admin).await;
}

#[test]
fn wrong_files_and_flags_of_the_controllers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("controllers.yaml");
    let head = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";
    for (text, flags, expected) in [
        ("generic: {minResync: 1h}\n", &[][..], "Generic.minResync: unknown field"),
        ("jobController: {concurrentJobSyncs: 0}\n", &[], "JobController.ConcurrentJobSyncs: must be from 1"),
        (
            "jobController: {concurrentJobSyncs: 2}\n",
            &["--concurrent-job-syncs=0"],
            "--concurrent-job-syncs: must be",
        ),
        ("", &["--master=https://a"], "--master: put the address into the kubeconfig"),
        ("", &[], "--kubeconfig is missing"),
    ] {
        std::fs::write(&file, format!("{head}{text}")).unwrap();
        let output = hawser().arg("controllers").arg("--config").arg(&file).args(flags).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(expected), "{text} {flags:?}: {told}");
    }
}

/// Sends a signal to a process of this test.
fn signal(process: &Process, name: &str) {
    assert!(Command::new("kill").args([name, &process.0.id().to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_that_was_stopped_writes_nothing_when_it_goes_on() {
    let cluster = Cluster::start();
    let start = |controllers: &str| {
        let mut command = cluster.component("controllers", 0);
        command.args(["--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s"]);
        command.args(["--leader-elect-retry-period=500ms", &format!("--controllers={controllers}")]);
        Process(command.spawn().unwrap())
    };
    let admin = apiserver_client::connect(&cluster.path("kubeconfig.yaml"), "test").await.unwrap();
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "kube-system");
    let holder = async || {
        let lease = leases.get_opt("kube-controller-manager").await.unwrap()?;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    };
    let mut first = start("*");
    let defaults: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    wait_for("what the leader writes", async || defaults.get_opt("default").await.unwrap()).await;
    let before = wait_for("a leader", holder).await;
    signal(&first, "-STOP");
    // It leads, and does nothing of what the first one does.
    let _second = start("ttl-controller");
    wait_for("another leader", async || holder().await.filter(|holder| *holder != before)).await;
    create::<Namespace>(Api::all(admin.clone()), json!({"metadata": {"name": "fresh"}})).await;
    signal(&first, "-CONT");
    let ended = wait_for("the end of the first", async || first.0.try_wait().unwrap()).await;
    assert!(!ended.success(), "it has lost the lease");
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "fresh");
    let maps: Api<ConfigMap> = Api::namespaced(admin, "fresh");
    assert!(accounts.list(&Default::default()).await.unwrap().items.is_empty());
    assert!(maps.list(&Default::default()).await.unwrap().items.is_empty());
    assert!(holder().await.is_some_and(|holder| holder != before));
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_shows_metrics_and_resources_of_pods_to_those_who_may_get_them() {
    let cluster = Cluster::start();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let _running = Process(cluster.component("scheduler", port).spawn().unwrap());
    let admin = apiserver_client::connect(&cluster.path("kubeconfig.yaml"), "test").await.unwrap();
    let (reader, stranger) = (token(&admin, "reader").await, token(&admin, "stranger").await);
    permit(&admin, "reader", &["/metrics", "/metrics/resources", "/configz"]).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "reader", "containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi"}}}]}});
    // A node without room: without any node, the pod would be tried again and again.
    let node = json!({"metadata": {"name": "n"}});
    create::<k8s_openapi::api::core::v1::Node>(Api::all(admin.clone()), node).await;
    create::<Pod>(Api::namespaced(admin.clone(), "default"), pod).await;
    let pages = cluster.pages(port).await;
    let page = async |path: &str, token: &str| {
        let request = http::Request::get(path).header("Authorization", format!("Bearer {token}"));
        match pages.request_text(request.body(Vec::new()).unwrap()).await {
            Ok(text) => (200, text),
            Err(kube::Error::Api(status)) => (status.code, String::new()),
            Err(error) => panic!("{error}"),
        }
    };
    let text = wait_for("a pod that fits nowhere", async || {
        let (code, text) = page("/metrics", &reader).await;
        let attempts =
            "scheduler_schedule_attempts_total{result=\"unschedulable\",profile=\"default-scheduler\"} ";
        let waits = "scheduler_pending_pods{queue=\"unschedulable\"} 1";
        (code == 200 && text.contains(attempts) && text.contains(waits)).then_some(text)
    })
    .await;
    for expected in [
        "# TYPE scheduler_framework_extension_point_duration_seconds histogram",
        "scheduler_queue_incoming_pods_total{queue=\"active\",event=\"UnschedulablePodAdd\"} 1",
        "leader_election_master_status{name=\"kube-scheduler\"} 1",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let (_, text) = page("/metrics/resources", &reader).await;
    let labels = |resource: &str, unit: &str| {
        format!(
            "namespace=\"default\",pod=\"p\",node=\"\",scheduler=\"default-scheduler\",priority=\"0\",resource=\"{resource}\",unit=\"{unit}\""
        )
    };
    for expected in [
        format!("kube_pod_resource_request{{{}}} 1.5\n", labels("cpu", "cores")),
        format!("kube_pod_resource_limit{{{}}} 1073741824\n", labels("memory", "bytes")),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let shown: Value = serde_json::from_str(&page("/configz", &reader).await.1).unwrap();
    assert_eq!(shown["componentconfig"]["leaderElection"]["leaseDuration"], "15s");
    for path in ["/metrics", "/metrics/resources", "/configz"] {
        assert_eq!(page(path, &stranger).await.0, 403, "{path}");
        assert_eq!(page(path, "x.y.z").await.0, 401, "{path}");
    }
}
