//! The scheduler's configuration: `KubeSchedulerConfiguration`, as kube-scheduler reads it.

mod args;
mod defaults;
mod document;
mod extenders;
mod gates;
mod problems;
mod profiles;
mod registry;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

pub use self::defaults::with_defaults;
pub use self::document::{API_VERSION, Extender, ExtenderTls, KIND, ManagedResource};
use self::document::{Document, LeaderElection};
pub use self::gates::{Gates, GatesError};
use self::problems::Problems;
use self::registry::Registry;
use crate::framework::Profile;
use crate::queue::QueueConfig;

/// The settings of a document.
pub struct Configuration {
    pub profiles: Vec<Profile>,
    pub queue: QueueConfig,
    pub gates: Gates,
    pub extenders: Vec<Extender>,
    /// Path of the kubeconfig; empty if none is given.
    pub kubeconfig: String,
    pub leader_election: ElectionSettings,
    /// Fields that are understood and have no effect.
    pub ignored: Vec<&'static str>,
}

/// Settings of the election of a leader; `None` means the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionSettings {
    pub leader_elect: Option<bool>,
    pub lease_duration: Option<Duration>,
    pub renew_deadline: Option<Duration>,
    pub retry_period: Option<Duration>,
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
}

/// The document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot parse the configuration as YAML")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    #[error("the configuration is not a {API_VERSION} {KIND}: {0}")]
    Document(String),
    /// Everything that is wrong with the fields.
    #[error("the configuration has fields that cannot be used: {}", .0.join("; "))]
    Fields(Vec<String>),
}

/// Returns the profile `default-scheduler` with the defaults of kube-scheduler.
pub fn default_profile() -> Profile {
    default_profile_with(Gates::default())
}

/// Returns the profile `default-scheduler` with the defaults of kube-scheduler for these feature gates.
pub fn default_profile_with(gates: Gates) -> Profile {
    let mut problems = Problems::default();
    let name = crate::pod::DEFAULT_SCHEDULER.to_owned();
    profiles::profile(name, document::Profile::default(), None, Registry(gates), &mut problems)
}

impl Configuration {
    /// Reads a document, YAML or JSON.
    ///
    /// # Errors
    ///
    /// Fails if the text is not such a document, or has fields that are unknown, of another type or out of range; the error
    /// names them.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::from_value(Self::read(text)?)
    }

    /// Returns the fields of a document, YAML or JSON, without looking at them.
    ///
    /// # Errors
    ///
    /// Fails if the text is not YAML.
    pub fn read(text: &str) -> Result<Value, ConfigError> {
        serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(Box::new(error)))
    }

    /// Reads a parsed document.
    ///
    /// # Errors
    ///
    /// Fails for the reasons of [`Self::parse`].
    pub fn from_value(value: Value) -> Result<Self, ConfigError> {
        Self::with_gates(value, Gates::default())
    }

    /// Reads a parsed document with the defaults and the plugins of some feature gates.
    ///
    /// # Errors
    ///
    /// Fails for the reasons of [`Self::parse`].
    pub fn with_gates(value: Value, gates: Gates) -> Result<Self, ConfigError> {
        let document: Document =
            serde_json::from_value(value).map_err(|error| ConfigError::Document(error.to_string()))?;
        if (document.api_version.as_str(), document.kind.as_str()) != (API_VERSION, KIND) {
            let found = format!("it is a {:?}", format!("{} {}", document.api_version, document.kind).trim());
            return Err(ConfigError::Document(found));
        }
        let mut problems = Problems::default();
        let configuration = read(document, gates, &mut problems);
        let found = problems.into_found();
        if found.is_empty() { Ok(configuration) } else { Err(ConfigError::Fields(found)) }
    }
}

fn read(document: Document, gates: Gates, problems: &mut Problems) -> Configuration {
    let mut ignored = Vec::new();
    let mut ignore = |is_set: bool, field: &'static str| ignored.extend(is_set.then_some(field));
    ignore(document.parallelism.is_some(), "parallelism");
    ignore(document.enable_profiling.is_some(), "enableProfiling");
    ignore(document.enable_contention_profiling.is_some(), "enableContentionProfiling");
    ignore(document.delay_cache_until_active, "delayCacheUntilActive");
    let connection = &document.client_connection;
    ignore(!connection.accept_content_types.is_empty(), "clientConnection.acceptContentTypes");
    ignore(!connection.content_type.is_empty(), "clientConnection.contentType");
    ignore(connection.qps.is_some(), "clientConnection.qps");
    ignore(connection.burst.is_some(), "clientConnection.burst");
    let right = document.parallelism.is_none_or(|parallelism| parallelism > 0);
    problems.check(right, "parallelism", "should be an integer value greater than zero");
    let queue = queue(&document, problems);
    extenders::validate(&document.extenders, problems);
    let percentage = document.percentage_of_nodes_to_score;
    profiles::sampling(percentage, problems);
    let mut profiles = document.profiles;
    extenders::leave_resources(&document.extenders, &mut profiles);
    Configuration {
        profiles: all_profiles(profiles, percentage, Registry(gates), problems),
        queue: QueueConfig { has_extenders: !document.extenders.is_empty(), ..queue },
        gates,
        extenders: document.extenders,
        kubeconfig: document.client_connection.kubeconfig,
        leader_election: problems.within("leaderElection", |to| election(document.leader_election, to)),
        ignored,
    }
}

fn queue(document: &Document, problems: &mut Problems) -> QueueConfig {
    let default = QueueConfig::default();
    let seconds = |given: Option<i64>, default: Duration| {
        given.map_or(default, |given| Duration::from_secs(u64::try_from(given).unwrap_or_default()))
    };
    let initial_backoff = seconds(document.pod_initial_backoff_seconds, default.initial_backoff);
    let max_backoff = seconds(document.pod_max_backoff_seconds, default.max_backoff);
    problems.check(!initial_backoff.is_zero(), "podInitialBackoffSeconds", "must be greater than 0");
    let field = "podMaxBackoffSeconds";
    problems.check(
        max_backoff >= initial_backoff,
        field,
        "must be greater than or equal to PodInitialBackoffSeconds",
    );
    QueueConfig { initial_backoff, max_backoff, ..default }
}

fn all_profiles(
    mut given: Vec<document::Profile>,
    percentage: Option<i64>,
    registry: Registry,
    problems: &mut Problems,
) -> Vec<Profile> {
    if given.is_empty() {
        given.push(document::Profile::default());
    }
    if let [only] = given.as_mut_slice() {
        only.scheduler_name.get_or_insert_with(|| crate::pod::DEFAULT_SCHEDULER.to_owned());
    }
    let mut names = BTreeSet::new();
    let mut profile = |(index, mut profile): (usize, document::Profile)| {
        problems.within(format_args!("profiles[{index}]"), |problems| {
            let name = profile.scheduler_name.take().unwrap_or_default();
            problems.check(!name.is_empty(), "schedulerName", "is required");
            problems.check(
                names.insert(name.clone()),
                "schedulerName",
                format_args!("{name:?} is there twice"),
            );
            profiles::profile(name, profile, percentage, registry, problems)
        })
    };
    given.into_iter().enumerate().map(&mut profile).collect()
}

fn election(given: LeaderElection, problems: &mut Problems) -> ElectionSettings {
    let mut duration = |field: &str, given: Option<String>| {
        let nanos = apiserver_meta::duration::parse(&given?);
        let read = nanos.ok().and_then(|nanos| u64::try_from(nanos).ok()).filter(|nanos| *nanos > 0);
        problems.check(read.is_some(), field, "must be a duration greater than zero, such as 15s");
        read.map(Duration::from_nanos)
    };
    let settings = ElectionSettings {
        leader_elect: given.leader_elect,
        lease_duration: duration("leaseDuration", given.lease_duration),
        renew_deadline: duration("renewDeadline", given.renew_deadline),
        retry_period: duration("retryPeriod", given.retry_period),
        resource_name: given.resource_name,
        resource_namespace: given.resource_namespace,
    };
    let lock = given.resource_lock.as_deref().unwrap_or("leases");
    problems.check(matches!(lock, "" | "leases"), "resourceLock", "resourceLock value must be \"leases\"");
    settings
}
