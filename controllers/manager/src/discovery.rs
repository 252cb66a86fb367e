//! Discovers the kinds that the server has, built-in and custom.

use std::cmp::Ordering;

use controllers_runtime::{Attempt, Result, is_not_found};
use kube::api::ApiResource;
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, Resource};
use tokio::sync::watch;
use tracing::debug;

use crate::limits::{DISCOVERY_PERIOD, DISCOVERY_RETRY};

/// A kind, in its most stable version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub resource: ApiResource,
    pub namespaced: bool,
    verbs: Vec<String>,
}

impl Kind {
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Returns `true` if objects can be listed, watched and deleted, as garbage collection requires.
    pub fn is_collectable(&self) -> bool {
        [verbs::DELETE, verbs::LIST, verbs::WATCH].iter().all(|verb| self.supports(verb))
    }

    /// Returns the qualified name of the resource: `deployments.apps`, `pods`.
    pub fn name(&self) -> String {
        if self.resource.group.is_empty() {
            self.resource.plural.clone()
        } else {
            format!("{}.{}", self.resource.plural, self.resource.group)
        }
    }

    /// Returns `true` if this is the kind's name, as [`Kind::name`] returns it.
    pub fn is_named(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(self.resource.plural.as_str()) else { return false };
        let group = if rest.is_empty() { Some("") } else { rest.strip_prefix('.') };
        group == Some(self.resource.group.as_str())
    }

    /// Returns all properties, the first of which tell most kinds apart.
    fn properties(&self) -> (&str, &str, [&str; 3], bool, &[String]) {
        let ApiResource { group, version, api_version, kind, plural } = &self.resource;
        (plural, group, [version, api_version, kind], self.namespaced, &self.verbs)
    }
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.properties().cmp(&other.properties())
    }
}

/// Returns all kinds, ordered by group and name.
pub(crate) async fn kinds(client: &Client) -> Result<Vec<Kind>> {
    let discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(discovery) if discovery.groups().next().is_some() => discovery,
        other => {
            // An old server without aggregated discovery: send one request per group.
            debug!(error = other.err().map(|error| error.to_string()), "no aggregated discovery");
            Discovery::new(client.clone())
                .run()
                .await
                .attempt(|| "discover the kinds of the API".to_owned())?
        }
    };
    let mut kinds: Vec<Kind> = discovery
        .groups_alphabetical()
        .into_iter()
        .flat_map(|group| group.resources_by_stability())
        .map(|(resource, capabilities)| Kind {
            resource,
            namespaced: capabilities.scope == Scope::Namespaced,
            verbs: capabilities.operations,
        })
        .collect();
    kinds.sort_by_key(Kind::name);
    Ok(kinds)
}

/// Waits until the API server serves a kind that it does not serve by default. `known` becomes true as soon as it is
/// known that it does not.
pub(crate) async fn wait_until_served<K: Resource<DynamicType = ()>>(
    client: &Client,
    known: &watch::Sender<bool>,
) {
    loop {
        let pause = match is_served::<K>(client).await {
            Ok(true) => return,
            Ok(false) => {
                known.send_replace(true);
                DISCOVERY_PERIOD
            }
            Err(error) => {
                debug!(error = &error as &dyn std::error::Error, kind = %K::kind(&()), "discovery failed");
                DISCOVERY_RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn is_served<K: Resource<DynamicType = ()>>(client: &Client) -> Result<bool> {
    let version = K::api_version(&());
    match client.list_api_group_resources(&version).await {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == K::plural(&()))),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).attempt(|| format!("discover the kinds of {version}")),
    }
}

#[cfg(test)]
pub(crate) fn kind(group: &str, version: &str, name: &str, plural: &str, namespaced: bool) -> Kind {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Kind {
        resource: ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: name.to_owned(),
            plural: plural.to_owned(),
        },
        namespaced,
        verbs: ["delete", "list", "watch", "get", "patch", "deletecollection"].map(str::to_owned).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_has_exactly_its_own_name() {
        let (pods, sets) =
            (kind("", "v1", "Pod", "pods", true), kind("apps", "v1", "ReplicaSet", "sets", true));
        for (kind, name) in [(&pods, "pods"), (&sets, "sets.apps")] {
            assert_eq!(kind.name(), name);
            assert!(kind.is_named(name));
        }
        for name in ["", "pod", "podsets", "pods.apps", "sets", "sets.app", "sets.apps.x", "setsapps"] {
            assert!(!pods.is_named(name) && !sets.is_named(name), "{name}");
        }
    }

    #[test]
    fn kinds_are_ordered_by_all_that_tells_them_apart() {
        let first = kind("", "v1", "Pod", "pods", true);
        let others = [
            Kind { namespaced: false, ..first.clone() },
            Kind { verbs: Vec::new(), ..first.clone() },
            kind("", "v2", "Pod", "pods", true),
            kind("a", "v1", "Pod", "pods", true),
            kind("", "v1", "Pot", "pods", true),
        ];
        assert_eq!(first.cmp(&first.clone()), Ordering::Equal);
        for other in others {
            assert_ne!(first, other);
            assert_ne!(first.cmp(&other), Ordering::Equal);
            assert_eq!(first.cmp(&other), other.cmp(&first).reverse());
        }
    }
}
