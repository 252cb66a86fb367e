//! The ranges of services' addresses according to the cluster's `ServiceCIDR` objects.

use std::collections::BTreeMap;

use apiserver_client::Readable;
use futures::StreamExt;
use ipnetwork::IpNetwork;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::limits;
use crate::node_tables::merged;

/// The ranges that are known now. Clones share them.
#[derive(Clone, Debug)]
pub struct ServiceRanges(watch::Receiver<Ranges>);

/// `None` until the cluster's objects have been read: until then, the settings of an earlier process stay.
type Ranges = Option<Vec<IpNetwork>>;

impl Default for ServiceRanges {
    /// Returns ranges that are always empty.
    fn default() -> Self {
        Self(watch::channel(Some(Vec::new())).1)
    }
}

impl ServiceRanges {
    /// Returns ranges that never change.
    pub fn fixed(ranges: &[IpNetwork]) -> Self {
        Self(watch::channel(Some(merged(ranges))).1)
    }

    /// Watches the cluster's objects until shutdown. A server that does not serve them, or not to us, is
    /// asked again at intervals; nothing waits for the answer.
    pub fn watch(client: Client, shutdown: CancellationToken) -> Self {
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = follow(client, &sender) => {}
            }
        });
        Self(receiver)
    }

    /// Returns the ranges, sorted, none within another; `None` while they are not known.
    pub fn get(&self) -> Option<Vec<IpNetwork>> {
        self.0.borrow().clone()
    }

    /// Waits until the ranges have changed since the last call; for ever if they are fixed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

async fn follow(client: Client, ranges: &watch::Sender<Ranges>) {
    let api = Api::<Readable<ServiceCIDR>>::all(client);
    until_served(&api, ranges).await;
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()));
    let (mut known, mut listed) = (BTreeMap::new(), BTreeMap::new());
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(object.name_any(), ranges_of(object, &known));
                continue;
            }
            Ok(Event::InitDone) => known = std::mem::take(&mut listed),
            Ok(Event::Apply(object)) => drop(known.insert(object.name_any(), ranges_of(object, &known))),
            Ok(Event::Delete(object)) => drop(known.remove(&object.name_any())),
            Err(error) => {
                debug!(error = &error as &dyn std::error::Error, "cannot watch ServiceCIDR objects");
                tokio::time::sleep(limits::ERROR_PAUSE).await;
                continue;
            }
        }
        publish(&known, ranges);
    }
}

/// Asks at intervals until the server serves such objects.
async fn until_served(api: &Api<Readable<ServiceCIDR>>, ranges: &watch::Sender<Ranges>) {
    let mut said = false;
    loop {
        match api.list(&ListParams::default().limit(1)).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if matches!(status.code, 403..=405) => {
                if !std::mem::replace(&mut said, true) {
                    info!(
                        "the server shows no ServiceCIDR objects; without --service-cluster-ip-ranges, packets to \
                         addresses that no service has are not held back"
                    );
                    ranges.send_replace(Some(Vec::new()));
                }
                tokio::time::sleep(limits::ABSENT_PAUSE).await;
            }
            Err(error) => {
                debug!(error = &error as &dyn std::error::Error, "cannot list ServiceCIDR objects");
                tokio::time::sleep(limits::ERROR_PAUSE).await;
            }
        }
    }
}

fn publish(known: &BTreeMap<String, Vec<IpNetwork>>, ranges: &watch::Sender<Ranges>) {
    let all: Vec<_> = known.values().flatten().copied().collect();
    let new = Some(merged(&all));
    ranges.send_if_modified(|old| {
        let changed = *old != new;
        if changed {
            match new.as_deref() {
                Some([]) | None => warn!(
                    "the cluster has no ServiceCIDR object; without --service-cluster-ip-ranges, packets to \
                     addresses that no service has are not held back"
                ),
                Some(new) => info!(ranges = ?new, "services' addresses come from these ranges"),
            }
            *old = new;
        }
        changed
    });
}

/// Returns the ranges of an object, or the known ones if it cannot be read.
fn ranges_of(object: Readable<ServiceCIDR>, known: &BTreeMap<String, Vec<IpNetwork>>) -> Vec<IpNetwork> {
    let name = object.name_any();
    let Some(object) = object.object() else { return known.get(&name).cloned().unwrap_or_default() };
    let spec = object.spec.as_ref();
    spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()).filter_map(|cidr| cidr.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn ranges_are_published_when_they_change() {
        let (sender, receiver) = watch::channel(None);
        let mut ranges = ServiceRanges(receiver);
        let range = |text: &str| vec![text.parse::<IpNetwork>().unwrap()];
        let mut known = BTreeMap::from([("kubernetes".to_owned(), range("10.96.0.0/12"))]);
        publish(&known, &sender);
        ranges.changed().await;
        assert_eq!(ranges.get(), Some(range("10.96.0.0/12")));
        // A range within another changes nothing.
        known.insert("more".to_owned(), range("10.97.0.0/16"));
        publish(&known, &sender);
        assert!(!ranges.0.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn fixed_ranges_never_change() {
        let mut ranges = ServiceRanges::fixed(&["10.96.0.1/12".parse().unwrap()]);
        assert_eq!(ranges.get(), Some(vec!["10.96.0.0/12".parse::<IpNetwork>().unwrap()]));
        assert!(tokio::time::timeout(Duration::from_secs(3600), ranges.changed()).await.is_err());
    }
}
