//! Creates the initial objects of every namespace: the ServiceAccount `default`, and the certificate with
//! which its pods verify the API server.

use apiserver_client::cache::Selection;
use apiserver_client::{Cache, ObjectKey};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, Resource};

use tokio::time::Instant;

use crate::context::{Context, Tasks};
use crate::meta::{is_deleted, namespace};
use crate::metrics::{Metrics, ROOT_CA_DURATION, ROOT_CA_SYNCS};
use crate::patch;

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const ROOT_CA_KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";

fn named(name: &str) -> Selection {
    Selection { fields: format!("metadata.name={name}"), ..Selection::default() }
}

/// Enqueues the namespace of each changed object.
fn follow<K: Resource + Send + Sync + 'static>(cache: &Cache<K>, queue: &WorkQueue<ObjectKey>) {
    let queue = queue.clone();
    cache.on_change(move |change| queue.add(ObjectKey::new("", namespace(change.object().meta()))));
}

/// Starts the controller of the account `default` of each namespace.
pub(crate) fn start_accounts(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("serviceaccount");
    let namespaces = context.informers.cache::<Namespace>();
    let accounts = context.informers.select::<ServiceAccount>(named(ACCOUNT));
    context.feed(tasks, &namespaces, &queue);
    follow(&accounts, &queue);
    let controller = Accounts {
        client: context.client.clone(),
        namespaces: namespaces.clone(),
        accounts: accounts.clone(),
    };
    context.start(tasks, queue, controller, async move {
        namespaces.synced().await;
        accounts.synced().await;
    });
}

/// Starts the publisher of the root certificate, if there is one.
pub(crate) fn start_root_ca(context: &Context, tasks: &mut Tasks) {
    if context.config.root_ca.is_empty() {
        return;
    }
    let queue = WorkQueue::new("root-ca-certificate-publisher");
    let namespaces = context.informers.cache::<Namespace>();
    let maps = context.informers.select::<ConfigMap>(named(ROOT_CA));
    context.feed(tasks, &namespaces, &queue);
    follow(&maps, &queue);
    let controller = RootCa {
        client: context.client.clone(),
        certificate: context.config.root_ca.clone(),
        namespaces: namespaces.clone(),
        maps: maps.clone(),
        metrics: context.config.metrics.clone(),
    };
    context.start(tasks, queue, controller, async move {
        namespaces.synced().await;
        maps.synced().await;
    });
}

/// Returns `true` if objects can still be created in the namespace.
fn living(namespaces: &Cache<Namespace>, key: &ObjectKey) -> bool {
    namespaces.get(key).is_some_and(|namespace| {
        let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
        !is_deleted(&namespace.metadata) && phase != Some("Terminating")
    })
}

/// Treats a creation that lost a race as success.
fn tolerant<T>(created: Result<T>) -> Result<Outcome> {
    match created {
        Err(error)
            if !error.is_already_exists() && !error.is_namespace_terminating() && !error.is_not_found() =>
        {
            Err(error)
        }
        _ => Ok(Outcome::Done),
    }
}

struct Accounts {
    client: Client,
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
}

impl Reconcile for Accounts {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let exists = self.accounts.get(&ObjectKey::new(&key.name, ACCOUNT)).is_some();
        if exists || !living(&self.namespaces, key) {
            return Ok(Outcome::Done);
        }
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.name);
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(ACCOUNT.to_owned()),
                namespace: Some(key.name.clone()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        let created = api.create(&PostParams::default(), &account).await;
        tolerant(created.attempt(|| format!("create service account {}/{ACCOUNT}", key.name)))
    }
}

struct RootCa {
    client: Client,
    certificate: String,
    namespaces: Cache<Namespace>,
    maps: Cache<ConfigMap>,
    metrics: Metrics,
}

impl Reconcile for RootCa {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        if !living(&self.namespaces, key) {
            return Ok(Outcome::Done);
        }
        let started = Instant::now();
        let done = self.publish(key).await;
        let code = done.as_ref().map_or_else(|error| error.code().unwrap_or(500), |_| 200).to_string();
        self.metrics.count(&ROOT_CA_SYNCS, &[&code]);
        self.metrics.time(&ROOT_CA_DURATION, &[&code], started.elapsed());
        done
    }
}

impl RootCa {
    /// Writes the ConfigMap of a namespace.
    async fn publish(&self, key: &ObjectKey) -> Result<Outcome> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.name);
        let existing = self.maps.get(&ObjectKey::new(&key.name, ROOT_CA));
        let wanted = published(existing.as_deref(), &key.name, &self.certificate);
        match existing {
            None => {
                let created = api.create(&PostParams::default(), &wanted).await;
                tolerant(created.attempt(|| format!("create config map {}/{ROOT_CA}", key.name)))
            }
            Some(existing) => match patch::update(&api, existing.as_ref(), &wanted).await {
                Err(error) if !Error::is_not_found(&error) => Err(error),
                _ => Ok(Outcome::Done),
            },
        }
    }
}

/// Returns the ConfigMap as it should be, based on the existing one.
fn published(existing: Option<&ConfigMap>, namespace: &str, certificate: &str) -> ConfigMap {
    let mut map = existing.cloned().unwrap_or_default();
    map.metadata.name = Some(ROOT_CA.to_owned());
    map.metadata.namespace = Some(namespace.to_owned());
    map.metadata.annotations.get_or_insert_default().insert(
        DESCRIPTION.to_owned(),
        "The authority of the API server's certificate as pods see it inside the cluster; it vouches for \
         no other server."
            .to_owned(),
    );
    map.data = Some([(ROOT_CA_KEY.to_owned(), certificate.to_owned())].into());
    map.binary_data = None;
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_data_in_the_config_map_is_replaced_and_labels_are_kept() {
        let mut edited = published(None, "ns", "PEM");
        edited.data.as_mut().unwrap().insert("other".to_owned(), "x".to_owned());
        edited.metadata.labels = Some(crate::testing::labels(&[("a", "b")]));
        let again = published(Some(&edited), "ns", "PEM");
        assert_eq!(again.data.unwrap().len(), 1);
        assert_eq!(again.metadata.labels, edited.metadata.labels);
        assert_eq!(published(Some(&published(None, "ns", "PEM")), "ns", "PEM"), published(None, "ns", "PEM"));
    }
}
