//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) as Kubernetes defines it, with
//! its defaults. Flags and files both become this object, so both mean the same.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use apiserver_meta::duration;
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

/// A duration as Kubernetes writes it: `1h2m3.5s`, `250ms`, `0s`. In nanoseconds, possibly negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(i64);

/// The text is not a duration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration, such as 30s or 1h15m")]
pub struct PeriodError(String);

impl Period {
    pub const fn seconds(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// Returns the duration; `None` if it is negative.
    pub fn duration(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }

    /// Returns whole seconds, rounded towards zero.
    pub const fn whole_seconds(self) -> i64 {
        self.0 / 1_000_000_000
    }
}

impl std::str::FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        duration::parse(text).map(Self).map_err(|_| PeriodError(text.to_owned()))
    }
}

impl TryFrom<String> for Period {
    type Error = PeriodError;

    fn try_from(text: String) -> Result<Self, PeriodError> {
        text.parse()
    }
}

impl From<Period> for String {
    fn from(period: Period) -> Self {
        period.to_string()
    }
}

impl fmt::Display for Period {
    /// Formats as Go does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let fraction = |value: u64, unit: u64| value as f64 / unit as f64;
        match magnitude {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{magnitude}ns"),
            1_000..1_000_000 => write!(f, "{}µs", fraction(magnitude, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", fraction(magnitude, 1_000_000)),
            _ => {
                let (minutes, rest) = (magnitude / 60_000_000_000, magnitude % 60_000_000_000);
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write!(f, "{}s", fraction(rest, 1_000_000_000))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_kubernetes_does() {
        let period = |text: &str| text.parse::<Period>();
        assert_eq!(period("15m0s"), Ok(Period::seconds(900)));
        assert_eq!(period("1h15m30.5s").unwrap().to_string(), "1h15m30.5s");
        assert_eq!(period("250ms").unwrap().to_string(), "250ms");
        assert_eq!(period("24h").unwrap().to_string(), "24h0m0s");
        assert_eq!(period("0"), Ok(Period::default()));
        assert_eq!(period("-1s").unwrap().duration(), None);
        assert_eq!(Period::seconds(90).duration(), Some(Duration::from_secs(90)));
        for wrong in ["", "5", "s", "5x", "1.2.3s", "-"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }

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
