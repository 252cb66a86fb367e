//! Signs the kubeconfig in the ConfigMap `kube-public/cluster-info` with each bootstrap token, so that a
//! machine that has one knows that it was not forged.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::cache::Selection;
use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::{Api, Client};

use super::jws::detached_signature;
use super::token;
use crate::context::{Context, Tasks};

const NAMESPACE: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
/// The part of the ConfigMap that is signed.
const KUBECONFIG: &str = "kubeconfig";
/// Prefix of the signatures, each with the identifier of its token.
const SIGNATURE: &str = "jws-kubeconfig-";

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("bootstrap_signer_queue");
    let fields = format!("metadata.name={CLUSTER_INFO}");
    let maps =
        context.informers.select_in::<ConfigMap>(NAMESPACE, Selection { fields, ..Selection::default() });
    let tokens = super::tokens(context);
    context.feed(tasks, &maps, &queue);
    let changed = queue.clone();
    tokens.on_change(move |_| changed.add(ObjectKey::new(NAMESPACE, CLUSTER_INFO)));
    let signer = Signer {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        maps: maps.clone(),
        tokens: tokens.clone(),
    };
    context.start_with(tasks, queue, signer, 1, async move {
        maps.synced().await;
        tokens.synced().await;
    });
}

struct Signer {
    client: Client,
    ambient: Ambient,
    maps: Cache<ConfigMap>,
    tokens: Cache<Secret>,
}

impl Reconcile for Signer {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(map) = self.maps.get(key) else { return Ok(Outcome::Done) };
        let Some(signed) = plan(&map, &self.tokens.list(), self.ambient.now()) else {
            return Ok(Outcome::Done);
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
        let written = api.replace(&key.name, &PostParams::default(), &signed).await;
        match written.attempt(|| format!("sign config map {key}")) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Outcome::Done),
        }
    }
}

/// Returns the ConfigMap with the signatures that it should have; `None` if it has them, or if there is
/// nothing to sign.
fn plan(map: &ConfigMap, tokens: &[Arc<Secret>], now: Timestamp) -> Option<ConfigMap> {
    let data = map.data.as_ref()?;
    let content = data.get(KUBECONFIG)?;
    let mut wanted: BTreeMap<String, String> = data
        .iter()
        .filter(|(key, _)| !key.starts_with(SIGNATURE))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    for (id, secret) in tokens.iter().filter_map(|token| token::signing(token, now)) {
        wanted.insert(format!("{SIGNATURE}{id}"), detached_signature(content, id, secret));
    }
    (wanted != *data).then(|| ConfigMap { data: Some(wanted), ..map.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::token::tests::secret;
    use super::*;

    #[test]
    fn each_token_has_a_signature_and_those_of_others_are_removed() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let data = [(KUBECONFIG, "text"), ("jws-kubeconfig-gone00", "x"), ("own", "y")];
        let map = ConfigMap {
            data: Some(data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
            ..ConfigMap::default()
        };
        let tokens = [Arc::new(secret(&[]))];
        let signed = plan(&map, &tokens, now).unwrap();
        let data = signed.data.as_ref().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["jws-kubeconfig-abcdef", KUBECONFIG, "own"]);
        assert_eq!(data["jws-kubeconfig-abcdef"], detached_signature("text", "abcdef", "0123456789abcdef"));
        assert_eq!(plan(&signed, &tokens, now), None, "once is enough");
        let mut edited = signed.clone();
        edited.data.as_mut().unwrap().insert(KUBECONFIG.to_owned(), "other".to_owned());
        assert_ne!(plan(&edited, &tokens, now).unwrap().data, edited.data, "another text, other signatures");
        assert_eq!(plan(&signed, &[], now).unwrap().data.unwrap().len(), 2);
        assert_eq!(plan(&ConfigMap::default(), &tokens, now), None);
    }
}
