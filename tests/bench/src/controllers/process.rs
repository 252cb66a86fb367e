//! The process `hawser controllers` and its figures.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::{Pki, Subject, kubeconfig};
use apiserver_meta::ambient::Ambient;
use bytes::Bytes;
use kube::Client;
use serde_json::{Value, json};

use crate::api::client::{Call, Connection};
use crate::api::server::{free_port, processor_time};
use crate::api::text;
use crate::cluster::memory;

/// All controllers but those that judge and evict nodes by their heartbeats.
const SELECTED: &str = "*,-node-lifecycle-controller,-taint-eviction-controller";
/// Name of the account, its role and its binding, with which the metrics are read.
const READER: &str = "bench-metrics";

/// The process, which is killed when dropped.
pub struct Controllers {
    child: Child,
    /// Client of the pages, with a certificate that means nothing there.
    pages: Client,
    token: String,
}

impl Controllers {
    /// Starts the controllers of the API server whose data are in `directory`.
    pub async fn start(directory: &Path, admin: &Connection) -> Result<Self> {
        let token = reader(admin).await?;
        let pki = Pki::open(&directory.join("pki"), &Ambient::system()).context("cannot read the keys")?;
        let pair =
            pki.issue(&Subject::apiserver("cluster.local", [])).context("cannot issue a certificate")?;
        let (certificate, key) = (directory.join("bench.crt"), directory.join("bench.key"));
        for (path, pem) in [(&certificate, &pair.certificate), (&key, &pair.key)] {
            std::fs::write(path, pem).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let port = free_port()?;
        let pages = directory.join("bench.yaml");
        let url = format!("https://127.0.0.1:{port}");
        std::fs::write(&pages, kubeconfig(&url, pki.ca_pem(), &pair.certificate, &pair.key))
            .with_context(|| format!("cannot write {}", pages.display()))?;
        let pages = apiserver_client::connect(&pages, "bench").await?;
        let mut command = Command::new(tests_e2e::hawser()?);
        command.args(["controllers", "--log", "error", "--bind-address", "127.0.0.1"]);
        command.args(["--secure-port", &port.to_string(), "--controllers", SELECTED]);
        command.args(["--kubeconfig", &text(&directory.join("kubeconfig.yaml"))]);
        command.args(["--tls-cert-file", &text(&certificate), "--tls-private-key-file", &text(&key)]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, pages, token })
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot look after the controllers")? {
            Some(status) => bail!("the controllers ended with {status}"),
            None => Ok(()),
        }
    }

    /// Returns the figures of the queues; `None` as long as the process does not answer.
    pub async fn page(&self) -> Result<Option<Page>> {
        let request =
            http::Request::get("/metrics").header("authorization", format!("Bearer {}", self.token));
        let request = request.body(Vec::new()).context("no request")?;
        // It may not listen yet, and may not know the role of the token yet.
        Ok(self.pages.request_text(request).await.ok().map(Page))
    }

    /// Returns the resident bytes.
    pub fn resident(&self) -> Result<f64> {
        memory(self.child.id(), "VmRSS:")
    }

    /// Returns the peak of resident memory since the start.
    pub fn peak(&self) -> Result<f64> {
        memory(self.child.id(), "VmHWM:")
    }

    /// Returns the CPU time so far in seconds.
    pub fn processor_time(&self) -> Result<f64> {
        processor_time(self.child.id())
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a token of an account that may read the metrics.
async fn reader(admin: &Connection) -> Result<String> {
    let role = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    let binding = json!({"metadata": {"name": READER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": "default"}]});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for (path, body) in [
        (accounts.to_owned(), json!({"metadata": {"name": READER}})),
        (format!("{role}/clusterroles"), json!({"metadata": {"name": READER}, "rules": rules})),
        (format!("{role}/clusterrolebindings"), binding),
    ] {
        admin.read(Call::post(path, Bytes::from(body.to_string()))).await?;
    }
    let request = Bytes::from(json!({"spec": {}}).to_string());
    let answer = admin.read(Call::post(format!("{accounts}/{READER}/token"), request)).await?;
    let answer: Value = serde_json::from_slice(&answer).context("the token is not JSON")?;
    answer["status"]["token"].as_str().map(str::to_owned).context("there is no token")
}

/// A page of metrics.
pub struct Page(String);

impl Page {
    /// Returns a value of a queue; 0 if the page does not have it.
    pub fn of_queue(&self, metric: &str, queue: &str) -> f64 {
        let start = format!("{metric}{{name=\"{queue}\"}} ");
        let line = self.0.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    /// Returns the number of times that keys of a queue were processed.
    pub fn processed(&self, queue: &str) -> f64 {
        self.of_queue("workqueue_work_duration_seconds_count", queue)
    }

    /// Returns the queues whose workers computed longest in total, with these times.
    pub fn busiest(&self) -> Vec<(String, f64)> {
        let start = "workqueue_computing_duration_seconds_sum{name=\"";
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(start)?.split_once("\"} "));
        let mut sums: Vec<(String, f64)> =
            lines.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect();
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn values_of_a_page_are_found_by_their_queue() {
        let text = "# HELP workqueue_depth x\nworkqueue_depth{name=\"job\"} 3\nworkqueue_depth{name=\"job_orphan_pod\"} 4\n\
                    workqueue_computing_duration_seconds_sum{name=\"job\"} 0.5\n\
                    workqueue_computing_duration_seconds_sum{name=\"daemonset\"} 2\n";
        let page = Page(text.to_owned());
        assert!((page.of_queue("workqueue_depth", "job") - 3.0).abs() < f64::EPSILON);
        assert!(page.of_queue("workqueue_depth", "daemonset").abs() < f64::EPSILON);
        assert_eq!(page.busiest(), [("daemonset".to_owned(), 2.0), ("job".to_owned(), 0.5)]);
    }
}
