//! Resources of the kinds that autoscalers name, and the version of the API of custom metrics.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::message;
use apiserver_meta::error_chain;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::Client;
use kube::api::ApiResource;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::discovery::{self, Kind};
use crate::limits;

/// Group of the API of custom metrics.
pub(super) const CUSTOM_METRICS: &str = "custom.metrics.k8s.io";
/// Versions of it that are understood.
const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The kinds that the server was last found to have. It is asked again when they are old, by one judgement for all.
pub(super) struct Kinds {
    client: Client,
    /// Time for which the version is remembered.
    period: Duration,
    kinds: Mutex<Option<(Instant, Arc<Vec<Kind>>)>>,
    version: Mutex<Option<(Instant, Result<String, String>)>>,
}

fn is_fresh(at: Instant, longest: Duration) -> bool {
    at.elapsed() < longest
}

impl Kinds {
    pub fn new(client: Client, period: Duration) -> Self {
        Self { client, period, kinds: Mutex::new(None), version: Mutex::new(None) }
    }

    /// Returns the resources of a kind.
    pub async fn resources(&self, group: &str, kind: &str) -> Result<Vec<ApiResource>, String> {
        let kinds = self.all().await?;
        let of_kind = kinds.iter().map(|known| &known.resource);
        let found: Vec<_> =
            of_kind.filter(|known| known.group == group && known.kind == kind).cloned().collect();
        if found.is_empty() {
            return Err(format!("no matches for kind \"{kind}\" in group \"{group}\""));
        }
        Ok(found)
    }

    async fn all(&self) -> Result<Arc<Vec<Kind>>, String> {
        let mut known = self.kinds.lock().await;
        if let Some((at, kinds)) = known.as_ref()
            && is_fresh(*at, limits::DISCOVERY_PERIOD)
        {
            return Ok(Arc::clone(kinds));
        }
        let kinds = discovery::kinds(&self.client).await.map_err(|error| error_chain(&error))?;
        let kinds = Arc::new(kinds);
        *known = Some((Instant::now(), Arc::clone(&kinds)));
        Ok(kinds)
    }

    /// Returns the version of the API of custom metrics that the server prefers.
    pub async fn custom_metrics(&self) -> Result<String, String> {
        let mut known = self.version.lock().await;
        if let Some((at, version)) = known.as_ref()
            && is_fresh(*at, self.period)
        {
            return version.clone();
        }
        let groups = self.client.list_api_groups().await.map_err(|error| message(&error))?;
        let version = preferred(&groups);
        *known = Some((Instant::now(), version.clone()));
        version
    }
}

fn preferred(groups: &APIGroupList) -> Result<String, String> {
    let group = groups.groups.iter().find(|group| group.name == CUSTOM_METRICS);
    let group = group.ok_or_else(|| format!("no custom metrics API ({CUSTOM_METRICS}) registered"))?;
    let mut versions = group.preferred_version.iter().chain(&group.versions);
    let known = versions.find(|version| VERSIONS.contains(&version.version.as_str()));
    known
        .map(|version| version.version.clone())
        .ok_or_else(|| "no known available metric versions found".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn the_preferred_version_is_taken_if_it_is_understood() {
        let groups = |preferred: &str, versions: &[&str]| {
            let version =
                |name: &str| json!({"groupVersion": format!("{CUSTOM_METRICS}/{name}"), "version": name});
            let versions: Vec<_> = versions.iter().map(|name| version(name)).collect();
            let group =
                json!({"name": CUSTOM_METRICS, "versions": versions, "preferredVersion": version(preferred)});
            from_value::<APIGroupList>(json!({"groups": [{"name": "apps", "versions": []}, group]})).unwrap()
        };
        assert_eq!(preferred(&groups("v1beta1", &["v1beta2", "v1beta1"])), Ok("v1beta1".to_owned()));
        assert_eq!(preferred(&groups("v3", &["v3", "v1beta2"])), Ok("v1beta2".to_owned()));
        let unknown = "no known available metric versions found".to_owned();
        assert_eq!(preferred(&groups("v3", &["v3"])), Err(unknown));
        let none = "no custom metrics API (custom.metrics.k8s.io) registered".to_owned();
        assert_eq!(preferred(&APIGroupList { groups: Vec::new() }), Err(none));
    }
}
