//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) as Kubernetes defines it, with
//! its defaults. Flags and files both become this object, so both mean the same.

use std::collections::BTreeMap;

use apiserver_meta::period::Period;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Group and version of the file.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// Kind of the file.
pub const KIND: &str = "KubeProxyConfiguration";

/// kube-proxy's ports.
pub const HEALTHZ_PORT: u16 = 10_256;
pub const METRICS_PORT: u16 = 10_249;
/// The process's place in the out-of-memory killer's list, unless another is named.
pub const OOM_SCORE: i32 = -999;

/// The configuration of kube-proxy. Fields are spelled as in the API; Kubernetes' reference describes their
/// meaning there, [`crate::notes`] their meaning here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    pub api_version: String,
    pub kind: String,
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: IpTables,
    pub ipvs: Ipvs,
    pub nftables: NfTables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocalInterfaces,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: Option<i32>,
    pub conntrack: Conntrack,
    pub config_sync_period: Period,
    pub port_range: String,
    pub windows_run_as_service: bool,
}

/// The connection to the apiserver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f64,
    pub burst: i32,
}

/// Log settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Logging {
    /// `text` or `json`.
    pub format: String,
    /// A duration, or a number of nanoseconds.
    pub flush_frequency: Value,
    pub verbosity: u32,
    pub vmodule: Vec<VModule>,
    pub options: Value,
}

/// Verbosity of the files that match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VModule {
    pub file_pattern: String,
    pub verbosity: u32,
}

/// Settings of kube-proxy's iptables mode; two of them apply to any mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IpTables {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    #[serde(rename = "snatNodeInternalIP")]
    pub snat_node_internal_ip: Option<bool>,
    pub sync_period: Period,
    pub min_sync_period: Period,
}

/// Settings of kube-proxy's IPVS mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ipvs {
    pub sync_period: Period,
    pub min_sync_period: Period,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: Period,
    pub tcp_fin_timeout: Period,
    pub udp_timeout: Period,
}

/// Settings of kube-proxy's nftables mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NfTables {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub sync_period: Period,
    pub min_sync_period: Period,
}

/// The kernel's connection tracking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conntrack {
    pub max_per_core: Option<i32>,
    pub min: Option<i32>,
    pub tcp_established_timeout: Option<Period>,
    pub tcp_close_wait_timeout: Option<Period>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Period,
    pub udp_stream_timeout: Period,
}

/// Settings for Windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

/// The interfaces that are pods', for two of the detection modes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocalInterfaces {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

impl Default for KubeProxyConfiguration {
    /// Returns kube-proxy's defaults.
    fn default() -> Self {
        let mut empty = Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            bind_address: String::new(),
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            iptables: IpTables::default(),
            ipvs: Ipvs::default(),
            nftables: NfTables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: String::new(),
            detect_local: DetectLocalInterfaces::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: None,
            conntrack: Conntrack::default(),
            config_sync_period: Period::default(),
            port_range: String::new(),
            windows_run_as_service: false,
        };
        empty.set_defaults();
        empty
    }
}

impl KubeProxyConfiguration {
    /// Fills in empty fields, as kube-proxy does for a file: an empty address becomes the default one. The
    /// settings of connection tracking and of the out-of-memory killer stay empty: what nobody asked for is
    /// left as it is on the machine.
    pub fn set_defaults(&mut self) {
        or(&mut self.bind_address, "0.0.0.0");
        let v6 = self.bind_address.contains(':');
        let (all, loopback) = if v6 { ("[::]", "[::1]") } else { ("0.0.0.0", "127.0.0.1") };
        or(&mut self.healthz_bind_address, &format!("{all}:{HEALTHZ_PORT}"));
        or(&mut self.metrics_bind_address, &format!("{loopback}:{METRICS_PORT}"));
        or(&mut self.client_connection.content_type, "application/vnd.kubernetes.protobuf");
        if self.client_connection.qps == 0.0 {
            self.client_connection.qps = 5.0;
        }
        if self.client_connection.burst == 0 {
            self.client_connection.burst = 10;
        }
        or(&mut self.logging.format, "text");
        if self.logging.flush_frequency.is_null() {
            self.logging.flush_frequency = Value::from("5s");
        }
        if self.logging.options.is_null() {
            self.logging.options = serde_json::json!({
                "json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"},
            });
        }
        self.iptables.masquerade_bit.get_or_insert(14);
        self.iptables.localhost_node_ports.get_or_insert(true);
        self.nftables.masquerade_bit.get_or_insert(14);
        for (period, default) in [
            (&mut self.iptables.sync_period, 30),
            (&mut self.iptables.min_sync_period, 1),
            (&mut self.ipvs.sync_period, 30),
            (&mut self.nftables.sync_period, 30),
            (&mut self.nftables.min_sync_period, 1),
            (&mut self.config_sync_period, 15 * 60),
        ] {
            if *period == Period::default() {
                *period = Period::seconds(default);
            }
        }
    }

    /// Returns the object with all defaults, as this proxy works by it. Connection tracking settings that
    /// were not named become zeros, which mean the same to kube-proxy: leave as they are.
    pub fn complete(mut self) -> Self {
        self.set_defaults();
        self.oom_score_adj.get_or_insert(OOM_SCORE);
        let conntrack = &mut self.conntrack;
        conntrack.max_per_core.get_or_insert(0);
        conntrack.min.get_or_insert(0);
        conntrack.tcp_established_timeout.get_or_insert(Period::default());
        conntrack.tcp_close_wait_timeout.get_or_insert(Period::default());
        self
    }
}

fn or(text: &mut String, default: &str) {
    if text.is_empty() {
        default.clone_into(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_follow_the_family_of_the_bind_address() {
        let defaults = KubeProxyConfiguration::default();
        assert_eq!(defaults.healthz_bind_address, "0.0.0.0:10256");
        let mut v6 = KubeProxyConfiguration {
            bind_address: "::".to_owned(),
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            ..defaults
        };
        v6.set_defaults();
        assert_eq!(v6.healthz_bind_address, "[::]:10256");
        assert_eq!(v6.metrics_bind_address, "[::1]:10249");
    }
}
