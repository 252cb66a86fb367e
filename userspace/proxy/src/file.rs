//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`), as far as it means something
//! here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::Flags;

/// Group, version and kind of the file.
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// What a file says.
#[derive(Clone, Debug)]
pub struct FileConfiguration {
    /// Not yet checked; fields that the file leaves out have their defaults.
    pub flags: Flags,
    /// `clientConnection.kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// Fields that are set but mean nothing here (`iptables`, `conntrack`): worth a line in the
    /// log.
    pub ignored: Vec<String>,
}

/// The file is no configuration of ours.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("the configuration is no YAML that we understand")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    #[error("the configuration is a {found:?}, not a {API_VERSION} {KIND}")]
    Kind { found: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    hostname_override: String,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    #[serde(default, rename = "clusterCIDR")]
    cluster_cidr: String,
    node_port_addresses: Option<Vec<String>>,
    client_connection: Option<ClientConnection>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct ClientConnection {
    #[serde(default)]
    kubeconfig: PathBuf,
}

impl FileConfiguration {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| FileError::Yaml(Box::new(error)))?;
        if (file.api_version.as_str(), file.kind.as_str()) != (API_VERSION, KIND) {
            return Err(FileError::Kind { found: format!("{} {}", file.api_version, file.kind) });
        }
        let defaults = Flags::default();
        // An empty address is Kubernetes' way to leave the default.
        let address =
            |given: Option<String>, default| given.filter(|text| !text.is_empty()).unwrap_or(default);
        Ok(Self {
            flags: Flags {
                hostname_override: file.hostname_override,
                healthz_bind_address: address(
                    file.healthz_bind_address,
                    defaults.healthz_bind_address.clone(),
                ),
                metrics_bind_address: address(
                    file.metrics_bind_address,
                    defaults.metrics_bind_address.clone(),
                ),
                cluster_cidr: file.cluster_cidr,
                nodeport_addresses: file.node_port_addresses.unwrap_or_default(),
                ..defaults
            },
            kubeconfig: file
                .client_connection
                .map(|connection| connection.kubeconfig)
                .filter(|path| !path.as_os_str().is_empty()),
            ignored: file.others.into_iter().filter(|(_, value)| says(value)).map(|(name, _)| name).collect(),
        })
    }
}

/// Whether a value differs from the empty one, which is how defaults are written out.
fn says(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0s" | "0"),
        Value::Array(all) => all.iter().any(says),
        Value::Object(fields) => fields.values().any(says),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_file_as_kubeadm_writes_it() {
        let text = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: '', burst: 0, kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: null}
healthzBindAddress: ''
hostnameOverride: ''
iptables: {localhostNodePorts: null, masqueradeAll: false, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, scheduler: rr, strictARP: false}
metricsBindAddress: 127.0.0.1
mode: ''
nodePortAddresses: null
";
        let file = FileConfiguration::parse(text).unwrap();
        assert_eq!(file.kubeconfig.unwrap().to_str(), Some("/var/lib/kube-proxy/kubeconfig.conf"));
        assert_eq!(file.ignored, ["bindAddress", "ipvs"]);
        let flags = Flags { hostname_override: "a".to_owned(), ..file.flags };
        let config = Config::from_flags(&flags).unwrap();
        assert_eq!(config.cluster_cidrs, ["10.244.0.0/16".parse().unwrap()]);
        assert_eq!(config.metrics_bind_address, Some("127.0.0.1:10249".parse().unwrap()));
        assert_eq!(config.healthz_bind_address, Some("0.0.0.0:10256".parse().unwrap()));
    }

    #[test]
    fn another_kind_is_refused_by_its_name() {
        let error = FileConfiguration::parse("apiVersion: v1\nkind: ConfigMap\n").unwrap_err();
        assert!(error.to_string().contains("\"v1 ConfigMap\""), "{error}");
        assert!(matches!(FileConfiguration::parse("{"), Err(FileError::Yaml(_))));
    }
}
