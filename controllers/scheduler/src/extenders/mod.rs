//! Extenders: HTTP services that take part in decisions about the pods that use resources which they manage.
//!
//! Nothing here decides. What an extender is asked and answers is [`wire`]; the calls are [`call`], the round through all
//! extenders that a pod interests is [`consult`], and the whole objects that are sent come from [`objects`]. The loop waits
//! for none of this: see `run/extend`.

mod call;
mod connect;
mod consult;
mod objects;
#[cfg(test)]
pub(crate) mod tests;
mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use kube::Client;

pub use self::call::CallError;
pub use self::connect::BuildError;
pub(crate) use self::consult::Consulted;
pub(crate) use self::objects::Objects;
use crate::config;
use crate::pod::PodInfo;

/// Time for an answer, unless the configuration has another (`DefaultExtenderTimeout`).
const TIMEOUT: Duration = Duration::from_secs(5);

/// The extenders of a configuration, in the order in which they are asked: those that may be ignored come last.
#[derive(Clone, Debug, Default)]
pub struct Extenders(Arc<[Extender]>);

/// An extender with its connections.
pub struct Extender {
    /// The prefix of its URLs, by which it is named.
    name: String,
    settings: config::Extender,
    managed: BTreeSet<String>,
    timeout: Duration,
    client: Client,
}

impl fmt::Debug for Extender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extender").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Indices of extenders that take part in the choice of a node for a pod.
pub type Interested = Vec<usize>;

impl Extenders {
    /// Makes clients of extenders. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Fails if a URL, or the settings of TLS with their files, cannot be used.
    pub async fn connect(settings: Vec<config::Extender>) -> Result<Self, BuildError> {
        let mut extenders = Vec::new();
        for settings in settings {
            extenders.push(connect::extender(settings).await?);
        }
        extenders.sort_by_key(|extender| extender.settings.ignorable);
        Ok(Self(extenders.into()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the extenders that take part in the choice of a node for a pod, or in that of the pods to preempt for it.
    pub(crate) fn interested(&self, pod: &PodInfo) -> Interested {
        let takes_part = |extender: &Extender| {
            let settings = &extender.settings;
            let verbs = [&settings.filter_verb, &settings.prioritize_verb, &settings.preempt_verb];
            verbs.iter().any(|verb| !verb.is_empty()) && extender.is_interested(pod)
        };
        self.0
            .iter()
            .enumerate()
            .filter(|(_, extender)| takes_part(extender))
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the extender that binds a pod; `None` if the scheduler does.
    pub(crate) fn binder(&self, pod: &PodInfo) -> Option<&Extender> {
        self.0.iter().find(|one| !one.settings.bind_verb.is_empty() && one.is_interested(pod))
    }

    pub(crate) fn get(&self, index: usize) -> &Extender {
        &self.0[index]
    }

    /// Returns `true` if one of them must be told the nodes as objects.
    pub(crate) fn need_nodes(&self) -> bool {
        self.0.iter().any(|extender| {
            let settings = &extender.settings;
            let is_asked = !settings.filter_verb.is_empty() || !settings.prioritize_verb.is_empty();
            is_asked && !settings.node_cache_capable
        })
    }
}

impl Extender {
    /// Returns the prefix of its URLs, by which it is named.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_ignorable(&self) -> bool {
        self.settings.ignorable
    }

    pub(crate) fn filters(&self) -> bool {
        !self.settings.filter_verb.is_empty()
    }

    pub(crate) fn scores(&self) -> bool {
        !self.settings.prioritize_verb.is_empty()
    }

    pub(crate) fn preempts(&self) -> bool {
        !self.settings.preempt_verb.is_empty()
    }

    /// Returns `true` if the extender manages a resource of a container of the pod, or all pods.
    fn is_interested(&self, pod: &PodInfo) -> bool {
        let manages = |container: &Container| {
            let Some(resources) = &container.resources else { return false };
            let lists = resources.requests.iter().chain(&resources.limits);
            lists.flat_map(|list| list.keys()).any(|name| self.managed.contains(name))
        };
        let spec = &pod.spec.source;
        self.managed.is_empty()
            || spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(manages)
    }
}
