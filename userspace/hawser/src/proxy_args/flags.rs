//! kube-proxy's flags.

use apiserver_meta::period::Period;
use clap::Args;

/// Parses a boolean as Go does.
pub fn go_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it is true or false"),
    }
}

/// Defines optional flags. Those with a meaning set a field of kube-proxy's configuration.
macro_rules! flags {
    ($($(#[$meta:meta])* $field:ident: $type:tt,)*) => {
        #[derive(Args, Clone, Debug, Default)]
        pub struct KubeProxyFlags {
            $($(#[$meta])* pub $field: Option<$type>,)*
        }

        impl KubeProxyFlags {
            /// Returns the names of the flags that were given.
            pub(super) fn given(&self) -> Vec<String> {
                let all = [$((stringify!($field), self.$field.is_some()),)*];
                all.iter().filter(|(_, given)| *given).map(|(name, _)| name.replace('_', "-")).collect()
            }
        }
    };
}

const AS_KUBE_PROXY: &str = "Flags of kube-proxy";

flags! {
    /// Path of the kubeconfig of the API server; in a pod, its service account unless given
    #[arg(long, value_name = "FILE", help_heading = AS_KUBE_PROXY)]
    kubeconfig: String,
    /// Address of the API server, in place of the kubeconfig's or the pod's
    #[arg(long, value_name = "URL", help_heading = AS_KUBE_PROXY)]
    master: String,
    /// Name of this node's Node object; the host's name unless given
    #[arg(long, alias = "node-name", value_name = "NAME", help_heading = AS_KUBE_PROXY)]
    hostname_override: String,
    /// The node's primary address, in place of the Node object's; 0.0.0.0 for the Node object's
    #[arg(long, alias = "node-ip", value_name = "IP", help_heading = AS_KUBE_PROXY)]
    bind_address: String,
    /// End if a port is taken; otherwise the proxy works and tries again
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, help_heading = AS_KUBE_PROXY)]
    bind_address_hard_fail: bool,
    /// Address of /healthz and /livez [0.0.0.0:10256]; empty for none
    #[arg(long, value_name = "IP:PORT", help_heading = AS_KUBE_PROXY)]
    healthz_bind_address: String,
    /// Address of /metrics and /proxyMode [127.0.0.1:10249]; empty for none
    #[arg(long, value_name = "IP:PORT", help_heading = AS_KUBE_PROXY)]
    metrics_bind_address: String,
    /// Port of /healthz if --healthz-bind-address has none; 0 for none
    #[arg(long, value_name = "PORT", hide_short_help = true, help_heading = AS_KUBE_PROXY)]
    healthz_port: u16,
    /// Port of /metrics if --metrics-bind-address has none; 0 for none
    #[arg(long, value_name = "PORT", hide_short_help = true, help_heading = AS_KUBE_PROXY)]
    metrics_port: u16,
    /// The kube-proxy mode that is replaced: iptables, ipvs or nftables, whose defaults for node ports differ
    #[arg(long, value_name = "MODE", help_heading = AS_KUBE_PROXY)]
    proxy_mode: String,
    /// Way to find pods' interfaces: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE", help_heading = AS_KUBE_PROXY)]
    detect_local_mode: String,
    /// Addresses of pods: one range, or one of each family
    #[arg(long, value_name = "CIDRS", help_heading = AS_KUBE_PROXY)]
    cluster_cidr: String,
    /// The bridge that pods are on
    #[arg(long, value_name = "NAME", help_heading = AS_KUBE_PROXY)]
    pod_bridge_interface: String,
    /// Prefix of the names of pods' interfaces
    #[arg(long, value_name = "PREFIX", help_heading = AS_KUBE_PROXY)]
    pod_interface_name_prefix: String,
    /// Always give packets to cluster addresses the node's address as their source
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, help_heading = AS_KUBE_PROXY)]
    masquerade_all: bool,
    /// Let local processes reach node ports on loopback addresses too [true, in the iptables mode]
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, help_heading = AS_KUBE_PROXY)]
    iptables_localhost_nodeports: bool,
    /// oom_score_adj of the process [-999, if permitted]
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, help_heading = AS_KUBE_PROXY)]
    oom_score_adj: i32,
    /// Maximum number of connections that the kernel tracks, per processor; 0 or not given: unchanged
    #[arg(long, value_name = "COUNT", help_heading = AS_KUBE_PROXY)]
    conntrack_max_per_core: i32,
    /// Minimum of that maximum, for the whole machine
    #[arg(long, value_name = "COUNT", help_heading = AS_KUBE_PROXY)]
    conntrack_min: i32,
    /// Idle time of established TCP connections in the kernel's table
    #[arg(long, value_name = "TIME", help_heading = AS_KUBE_PROXY)]
    conntrack_tcp_timeout_established: Period,
    /// Idle time of TCP connections in CLOSE_WAIT
    #[arg(long, value_name = "TIME", help_heading = AS_KUBE_PROXY)]
    conntrack_tcp_timeout_close_wait: Period,
    /// Do not treat TCP segments outside of the window as invalid
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, help_heading = AS_KUBE_PROXY)]
    conntrack_tcp_be_liberal: bool,
    /// Idle time of UDP flows without an answer
    #[arg(long, value_name = "TIME", help_heading = AS_KUBE_PROXY)]
    conntrack_udp_timeout: Period,
    /// Idle time of UDP flows with answers
    #[arg(long, value_name = "TIME", help_heading = AS_KUBE_PROXY)]
    conntrack_udp_timeout_stream: Period,
    /// Log level: 4 for what the proxy does, 8 for what its libraries do
    #[arg(short, long, value_name = "LEVEL", help_heading = AS_KUBE_PROXY)]
    v: u32,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT", help_heading = AS_KUBE_PROXY)]
    logging_format: String,

    #[arg(long, value_name = "GATES", hide = true)]
    feature_gates: String,
    #[arg(long, value_name = "TIME", hide = true)]
    config_sync_period: Period,
    #[arg(long, value_name = "TYPE", hide = true)]
    kube_api_content_type: String,
    #[arg(long, value_name = "COUNT", hide = true)]
    kube_api_burst: i32,
    #[arg(long, value_name = "RATE", hide = true)]
    kube_api_qps: f64,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    profiling: bool,
    #[arg(long, value_name = "VERSION", hide = true)]
    show_hidden_metrics_for_version: String,
    #[arg(long, value_name = "BIT", hide = true)]
    iptables_masquerade_bit: i32,
    #[arg(long, value_name = "TIME", hide = true)]
    iptables_sync_period: Period,
    #[arg(long, value_name = "TIME", hide = true)]
    iptables_min_sync_period: Period,
    #[arg(long, value_name = "TIME", hide = true)]
    ipvs_sync_period: Period,
    #[arg(long, value_name = "TIME", hide = true)]
    ipvs_min_sync_period: Period,
    #[arg(long, value_name = "NAME", hide = true)]
    ipvs_scheduler: String,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    ipvs_strict_arp: bool,
    #[arg(long, value_name = "TIME", hide = true)]
    ipvs_tcp_timeout: Period,
    #[arg(long, value_name = "TIME", hide = true)]
    ipvs_tcpfin_timeout: Period,
    #[arg(long, value_name = "TIME", hide = true)]
    ipvs_udp_timeout: Period,
    #[arg(long, value_name = "PATTERNS", hide = true)]
    vmodule: String,
    /// Ignored; accepted for command lines of earlier versions
    #[arg(long, value_name = "RANGE", hide = true)]
    proxy_port_range: String,
    /// Ignored; accepted for command lines of earlier versions
    #[arg(long, value_name = "TIME", hide = true)]
    udp_timeout: Period,
    /// Ignored; accepted for command lines of earlier versions
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    cleanup_ipvs: bool,
    #[arg(long, value_name = "TIME", hide = true)]
    log_flush_frequency: Period,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    logtostderr: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    alsologtostderr: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    add_dir_header: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    one_output: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    skip_headers: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    skip_log_headers: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    log_json_split_stream: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, hide = true)]
    log_text_split_stream: bool,
    #[arg(long, hide = true)]
    log_json_info_buffer_size: String,
    #[arg(long, hide = true)]
    log_text_info_buffer_size: String,
    #[arg(long, hide = true)]
    log_backtrace_at: String,
    #[arg(long, hide = true)]
    log_dir: String,
    #[arg(long, hide = true)]
    log_file: String,
    #[arg(long, hide = true)]
    log_file_max_size: String,
    #[arg(long, hide = true)]
    stderrthreshold: String,
    #[arg(long, hide = true)]
    boot_id_file: String,
    #[arg(long, hide = true)]
    machine_id_file: String,
}

/// The end of the help, which names the flags that the list does not show.
pub const WITHOUT_A_MEANING: &str = "\
Flags of kube-proxy that are accepted and have no effect:\n\
\x20 --feature-gates --config-sync-period --kube-api-content-type --kube-api-burst --kube-api-qps\n\
\x20 --profiling --show-hidden-metrics-for-version --iptables-masquerade-bit --iptables-sync-period\n\
\x20 --iptables-min-sync-period --ipvs-sync-period --ipvs-min-sync-period --ipvs-scheduler\n\
\x20 --ipvs-strict-arp --ipvs-tcp-timeout --ipvs-tcpfin-timeout --ipvs-udp-timeout --vmodule\n\
\x20 --proxy-port-range --udp-timeout --cleanup-ipvs --log-flush-frequency --logtostderr\n\
\x20 --alsologtostderr --add-dir-header --one-output --skip-headers --skip-log-headers\n\
\x20 --log-json-split-stream --log-text-split-stream --log-json-info-buffer-size\n\
\x20 --log-text-info-buffer-size --log-backtrace-at --log-dir --log-file --log-file-max-size\n\
\x20 --stderrthreshold --boot-id-file --machine-id-file";

/// Flags whose values are lists.
#[derive(Args, Clone, Debug, Default)]
pub struct KubeProxyLists {
    /// Addresses that serve node ports: CIDRs, primary, localhost, all
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', help_heading = AS_KUBE_PROXY)]
    pub nodeport_addresses: Vec<String>,
    /// Ranges whose virtual servers --cleanup does not remove
    #[arg(long, value_name = "CIDRS", value_delimiter = ',', hide_short_help = true, help_heading = AS_KUBE_PROXY)]
    pub ipvs_exclude_cidrs: Vec<String>,
}
