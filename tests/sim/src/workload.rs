//! Actions of users of the simulated cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::ambient::SimRandom;
use crate::control::Process;
use crate::simulation::Simulation;

/// The namespace of all workloads.
pub const NAMESPACE: &str = "default";

/// Returns a Deployment whose pods answer readiness probes, with a surge and an unavailability of 25 %.
pub fn deployment(name: &str, replicas: i64, image: &str) -> Result<Deployment> {
    let object = json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 5, "containers": [{
                    "name": "main", "image": image,
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 2},
                }]},
            },
        },
    });
    serde_json::from_value(object).context("the Deployment is well formed")
}

/// Returns a Service in front of a Deployment.
pub fn service(name: &str) -> Result<Service> {
    let object = json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"type": "NodePort", "selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]},
    });
    serde_json::from_value(object).context("the Service is well formed")
}

impl Simulation {
    /// Creates a Deployment and a Service in front of it.
    pub async fn deploy(&self, name: &str, replicas: i64, image: &str) -> Result<()> {
        let post = PostParams::default();
        self.deployments().create(&post, &deployment(name, replicas, image)?).await?;
        let services = Api::<Service>::namespaced(self.client.clone(), NAMESPACE);
        services.create(&post, &service(name)?).await?;
        Ok(())
    }

    /// Returns a handle on the Deployments, as an administrator.
    pub fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Changes a Deployment by a merge patch.
    pub async fn change(&self, name: &str, patch: Value) -> kube::Result<()> {
        self.deployments().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Sets the number of pods.
    pub async fn scale(&self, name: &str, replicas: i64) -> kube::Result<()> {
        self.change(name, json!({"spec": {"replicas": replicas}})).await
    }

    /// Starts a rolling update.
    pub async fn update(&self, name: &str, image: &str) -> kube::Result<()> {
        let containers = json!([{"name": "main", "image": image}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let patch = Patch::Strategic(patch);
        self.deployments().patch(name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Waits until all pods of a Deployment are of the newest template and ready.
    pub async fn rolled_out(&mut self, name: &str, bound: Duration) -> Result<Duration> {
        let key = format!("{NAMESPACE}/{name}");
        self.until(&format!("{name} is rolled out"), bound, |model| {
            let Some(deployment) = model.deployments.get(&key) else { return false };
            deployment.is_complete()
                && model.count(&deployment.uid) == (deployment.replicas, deployment.replicas)
        })
        .await
    }

    /// Waits until every node is Ready.
    pub async fn nodes_ready(&mut self, bound: Duration) -> Result<Duration> {
        let count = self.nodes.len();
        let ready =
            move |model: &crate::Model| model.nodes.values().filter(|node| node.ready).count() == count;
        self.until("all nodes are ready", bound, ready).await
    }
}

/// Clients that write continuously and remember what was acknowledged.
pub struct Writers {
    /// The newest acknowledged and the newest attempted number of each object.
    numbers: Arc<Mutex<BTreeMap<String, Numbers>>>,
    processes: Vec<Process>,
}

#[derive(Clone, Copy, Default)]
struct Numbers {
    acknowledged: u64,
    tried: u64,
    /// Highest resourceVersion in an answer.
    version: i64,
}

impl Writers {
    /// Starts `count` writers, each with one ConfigMap.
    pub fn start(client: &Client, random: &SimRandom, count: usize) -> Self {
        let numbers: Arc<Mutex<BTreeMap<String, Numbers>>> = Arc::default();
        let processes = (0..count)
            .map(|index| {
                let (client, random, numbers) = (client.clone(), random.clone(), Arc::clone(&numbers));
                Process::start(|_| write(client, random, format!("writer-{index}"), numbers))
            })
            .collect();
        Self { numbers, processes }
    }

    /// Stops the writers; returns how many writes were acknowledged.
    pub fn stop(&mut self) -> u64 {
        self.processes.drain(..).for_each(Process::kill);
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.values().map(|numbers| numbers.acknowledged).sum()
    }

    /// Checks that everything that was acknowledged is in the store.
    pub async fn check(&self, simulation: &Simulation) -> Result<()> {
        let stored: Vec<ConfigMap> = simulation.stored(&format!("configmaps/{NAMESPACE}")).await?;
        let value = |name: &str| -> Option<u64> {
            let map = stored.iter().find(|map| map.metadata.name.as_deref() == Some(name))?;
            map.data.as_ref()?.get("number")?.parse().ok()
        };
        let revision = simulation.model().revision;
        for (name, numbers) in self.numbers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let Numbers { acknowledged, tried, version } = *numbers;
            let found = value(name).unwrap_or_default();
            ensure!(
                (acknowledged..=tried).contains(&found),
                "{name} holds {found}; {acknowledged} was acknowledged and {tried} tried last"
            );
            ensure!(version <= revision, "{name} was acknowledged at {version}, the store is at {revision}");
        }
        Ok(())
    }
}

async fn write(
    client: Client,
    random: SimRandom,
    name: String,
    numbers: Arc<Mutex<BTreeMap<String, Numbers>>>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let with = |change: &dyn Fn(&mut Numbers)| {
        change(numbers.lock().unwrap_or_else(PoisonError::into_inner).entry(name.clone()).or_default());
    };
    for number in 1u64.. {
        with(&|numbers| numbers.tried = number);
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"number": number.to_string()}});
        let object = serde_json::from_value(body.clone()).unwrap_or_default();
        let written = match maps.patch(&name, &PatchParams::default(), &Patch::Merge(body)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                maps.create(&PostParams::default(), &object).await
            }
            other => other,
        };
        if let Ok(written) = written {
            let version = written.metadata.resource_version.and_then(|text| text.parse().ok());
            with(&|numbers| {
                numbers.acknowledged = number;
                numbers.version = version.unwrap_or_default();
            });
        }
        tokio::time::sleep(Duration::from_millis(1 + random.below(40))).await;
    }
}
