//! The ConfigMap of ip-masq-agent: `kube-system/ip-masq-agent`, key `config`.

use futures::StreamExt;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Deserializer};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::limits;
use apiserver_meta::period::Period;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "ip-masq-agent";
const KEY: &str = "config";

/// Ranges of private addresses, which are inside unless the ConfigMap lists others.
const PRIVATE: [&str; 3] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];
/// Maximum number of ranges unless the ConfigMap allows more.
const CIDR_LIMIT: usize = 64;
/// Maximum number of ranges, whatever the ConfigMap allows: the tries of the data plane hold the node's
/// addresses too.
const MOST_CIDRS: usize = 1_024;

/// The content of the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Agent {
    /// It has not been read yet: until then, the settings of an earlier process stay.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    Present(AgentRules),
}

/// The rules in the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRules {
    /// Destinations that are reached under the pod's address.
    pub ranges: Vec<IpNetwork>,
    /// Packets to 169.254.0.0/16 take the node's address.
    pub link_local4: bool,
    /// Packets to fe80::/10 take the node's address.
    pub link_local6: bool,
}

impl Default for AgentRules {
    /// Returns the defaults of ip-masq-agent.
    fn default() -> Self {
        let ranges = PRIVATE.iter().filter_map(|range| range.parse().ok()).collect();
        Self { ranges, link_local4: false, link_local6: false }
    }
}

/// The ConfigMap cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error("not valid ip-masq-agent YAML")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    #[error("nonMasqueradeCIDRs: {0:?} is not a CIDR")]
    Cidr(String),
    #[error("nonMasqueradeCIDRs: {found} is not the beginning of its range: write {aligned}")]
    Aligned { found: String, aligned: String },
    #[error(
        "nonMasqueradeCIDRs has {found} ranges, and {limit} are allowed: raise cidrLimit, up to {MOST_CIDRS}"
    )]
    Many { found: usize, limit: usize },
}

/// The fields of the key; others are ignored, as ip-masq-agent does.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fields {
    #[serde(rename = "nonMasqueradeCIDRs", deserialize_with = "none_is_empty")]
    ranges: Vec<String>,
    cidr_limit: Option<i64>,
    masq_link_local: Option<bool>,
    #[serde(rename = "masqLinkLocalIPv6")]
    masq_link_local_ipv6: Option<bool>,
    /// Checked only: changes are watched.
    #[allow(dead_code, reason = "read to refuse what ip-masq-agent refuses")]
    resync_interval: Option<Period>,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            ranges: PRIVATE.map(str::to_owned).to_vec(),
            cidr_limit: None,
            masq_link_local: None,
            masq_link_local_ipv6: None,
            resync_interval: None,
        }
    }
}

fn none_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(from)?.unwrap_or_default())
}

impl AgentRules {
    /// Reads the key's value.
    ///
    /// # Errors
    /// Names what ip-masq-agent would refuse, too.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let fields: Option<Fields> =
            serde_saphyr::from_str(text).map_err(|error| RulesError::Yaml(Box::new(error)))?;
        let fields = fields.unwrap_or_default();
        let limit = fields.cidr_limit.map_or(CIDR_LIMIT, |limit| usize::try_from(limit).unwrap_or(0));
        let (found, limit) = (fields.ranges.len(), limit.min(MOST_CIDRS));
        if found > limit {
            return Err(RulesError::Many { found, limit });
        }
        Ok(Self {
            ranges: fields.ranges.iter().map(|text| cidr(text)).collect::<Result<_, _>>()?,
            link_local4: fields.masq_link_local.unwrap_or(false),
            link_local6: fields.masq_link_local_ipv6.unwrap_or(false),
        })
    }

    /// Reads the ConfigMap. Without the key, the defaults apply.
    fn of(object: &ConfigMap) -> Result<Self, RulesError> {
        let text = object.data.as_ref().and_then(|data| data.get(KEY));
        text.map_or_else(|| Ok(Self::default()), |text| Self::parse(text))
    }
}

fn cidr(text: &str) -> Result<IpNetwork, RulesError> {
    let wrong = || RulesError::Cidr(text.to_owned());
    // A plain address would parse as a range of one.
    let range: IpNetwork = if text.contains('/') { text.parse().ok() } else { None }.ok_or_else(wrong)?;
    let aligned = IpNetwork::new(range.network(), range.prefix()).map_err(|_| wrong())?;
    if aligned.ip() != range.ip() {
        return Err(RulesError::Aligned { found: text.to_owned(), aligned: aligned.to_string() });
    }
    Ok(aligned)
}

/// The rules that are known now. Clones share them.
#[derive(Clone, Debug)]
pub struct Rules(watch::Receiver<Agent>);

impl Default for Rules {
    /// Returns the rules of a cluster without the ConfigMap.
    fn default() -> Self {
        Self::fixed(Agent::Absent)
    }
}

impl Rules {
    /// Returns rules that never change.
    pub fn fixed(agent: Agent) -> Self {
        Self(watch::channel(agent).1)
    }

    /// Returns rules that follow a channel.
    pub fn following(agent: watch::Receiver<Agent>) -> Self {
        Self(agent)
    }

    /// Watches the ConfigMap until shutdown. If the server does not let us read it, there is none.
    pub fn watch(client: Client, shutdown: CancellationToken) -> Self {
        let (sender, receiver) = watch::channel(Agent::Unknown);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = follow(client, &sender) => {}
            }
        });
        Self(receiver)
    }

    pub fn get(&self) -> Agent {
        self.0.borrow().clone()
    }

    /// Waits until the rules have changed since the last call; for ever if they are fixed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

async fn follow(client: Client, rules: &watch::Sender<Agent>) {
    let api = Api::<ConfigMap>::namespaced(client, NAMESPACE);
    let selection = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let mut stream = std::pin::pin!(watcher(api, selection));
    let mut listed = None;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(object)) => listed = Some(object).filter(is_meant).or(listed),
            Ok(Event::InitDone) => publish(rules, listed.take().as_ref()),
            Ok(Event::Apply(object)) if is_meant(&object) => publish(rules, Some(&object)),
            Ok(Event::Delete(object)) if is_meant(&object) => publish(rules, None),
            Ok(_) => {}
            Err(error) => pause(&error, rules).await,
        }
    }
}

/// Returns `true` for the ConfigMap itself, in case a server ignores the selector.
fn is_meant(object: &ConfigMap) -> bool {
    object.name_any() == NAME
}

/// Waits after an error. A refusal is an answer: nothing is configured for us.
async fn pause(error: &watcher::Error, rules: &watch::Sender<Agent>) {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    };
    debug!(error = error as &dyn std::error::Error, "cannot watch ConfigMap {NAMESPACE}/{NAME}");
    if matches!(status, Some(403 | 404)) {
        let refused = rules.send_if_modified(|agent| {
            let first = *agent == Agent::Unknown;
            if first {
                *agent = Agent::Absent;
            }
            first
        });
        if refused {
            info!("the server does not let us read ConfigMap {NAMESPACE}/{NAME}: it counts as absent");
        }
        tokio::time::sleep(limits::ABSENT_PAUSE).await;
        return;
    }
    tokio::time::sleep(limits::ERROR_PAUSE).await;
}

/// Publishes the rules of the ConfigMap. If it cannot be used, the rules before it stay, at first the
/// defaults.
fn publish(rules: &watch::Sender<Agent>, object: Option<&ConfigMap>) {
    let new = match object.map(AgentRules::of) {
        None => Agent::Absent,
        Some(Ok(rules)) => Agent::Present(rules),
        Some(Err(error)) => {
            warn!(
                error = &error as &dyn std::error::Error,
                "ConfigMap {NAMESPACE}/{NAME} cannot be used; the rules before it stay"
            );
            match &*rules.borrow() {
                Agent::Present(rules) => Agent::Present(rules.clone()),
                Agent::Unknown | Agent::Absent => Agent::Present(AgentRules::default()),
            }
        }
    };
    rules.send_if_modified(|old| {
        let changed = *old != new;
        if changed {
            info!(rules = ?new, "masquerading follows ConfigMap {NAMESPACE}/{NAME}");
            *old = new;
        }
        changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> AgentRules {
        AgentRules::parse(text).unwrap()
    }

    fn ranges(all: &[&str]) -> Vec<IpNetwork> {
        all.iter().map(|range| range.parse().unwrap()).collect()
    }

    #[test]
    fn fields_that_are_absent_have_the_defaults() {
        for text in ["", "{}", "resyncInterval: 60s", "unknown: 1"] {
            assert_eq!(parse(text), AgentRules::default(), "{text:?}");
        }
        let object = ConfigMap::default();
        assert_eq!(AgentRules::of(&object).unwrap(), AgentRules::default());
        let found = parse("nonMasqueradeCIDRs: [198.51.100.0/24, 2001:db8::/32]\nmasqLinkLocal: true\n");
        assert_eq!(found.ranges, ranges(&["198.51.100.0/24", "2001:db8::/32"]));
        assert!(found.link_local4 && !found.link_local6);
        // JSON is YAML.
        let found = parse(r#"{"nonMasqueradeCIDRs": [], "masqLinkLocalIPv6": true}"#);
        assert_eq!((found.ranges.len(), found.link_local6), (0, true));
        assert_eq!(parse("nonMasqueradeCIDRs:").ranges, [], "null is an empty list");
    }

    #[test]
    fn wrong_values_are_named() {
        let error = |text: &str| AgentRules::parse(text).unwrap_err().to_string();
        assert_eq!(error("nonMasqueradeCIDRs: [a]"), "nonMasqueradeCIDRs: \"a\" is not a CIDR");
        assert_eq!(error("nonMasqueradeCIDRs: [10.0.0.1]"), "nonMasqueradeCIDRs: \"10.0.0.1\" is not a CIDR");
        assert_eq!(
            error("nonMasqueradeCIDRs: [10.0.0.1/8]"),
            "nonMasqueradeCIDRs: 10.0.0.1/8 is not the beginning of its range: write 10.0.0.0/8"
        );
        let many = |limit: &str| {
            let list: Vec<String> = (0..65).map(|n| format!("10.{n}.0.0/16")).collect();
            AgentRules::parse(&format!("nonMasqueradeCIDRs: [{}]\n{limit}", list.join(", ")))
        };
        assert!(matches!(many(""), Err(RulesError::Many { found: 65, limit: 64 })));
        assert_eq!(many("cidrLimit: 65").unwrap().ranges.len(), 65);
        assert_eq!(error("resyncInterval: soon"), "not valid ip-masq-agent YAML");
    }

    #[test]
    fn rules_stay_when_the_new_ones_are_wrong() {
        let (sender, receiver) = watch::channel(Agent::Unknown);
        let object = |text: &str| ConfigMap {
            data: Some([(KEY.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        };
        publish(&sender, Some(&object("nonMasqueradeCIDRs: [wrong]")));
        assert_eq!(*receiver.borrow(), Agent::Present(AgentRules::default()));
        publish(&sender, Some(&object("nonMasqueradeCIDRs: [198.51.100.0/24]")));
        publish(&sender, Some(&object("nonMasqueradeCIDRs: [wrong]")));
        let kept = AgentRules { ranges: ranges(&["198.51.100.0/24"]), ..AgentRules::default() };
        assert_eq!(*receiver.borrow(), Agent::Present(kept));
        publish(&sender, None);
        assert_eq!(*receiver.borrow(), Agent::Absent);
    }
}
