//! The command line of `hawser proxy`: all flags of kube-proxy, and our own.

mod flags;
mod own;

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Args;
use userspace_proxy::kube_proxy::VModule;
use userspace_proxy::{File, KubeProxyConfiguration};

pub use self::flags::{KubeProxyFlags, KubeProxyLists, WITHOUT_A_MEANING, go_bool};
pub use self::own::{BPF_ROOT, OwnFlags, Sizes};

#[derive(Args)]
pub struct ProxyRun {
    #[command(flatten)]
    pub act: Act,
    #[command(flatten)]
    pub kube_proxy: KubeProxyFlags,
    #[command(flatten)]
    pub lists: KubeProxyLists,
    #[command(flatten)]
    pub own: OwnFlags,
    #[command(flatten)]
    pub sizes: Sizes,
}

/// The things that `--cleanup` removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    Nothing,
    Everything,
    /// Only what kube-proxy left.
    KubeProxy,
}

fn cleanup(text: &str) -> Result<Cleanup, &'static str> {
    match go_bool(text) {
        Ok(true) => Ok(Cleanup::Everything),
        Ok(false) => Ok(Cleanup::Nothing),
        Err(_) if text == "kube-proxy" => Ok(Cleanup::KubeProxy),
        Err(_) => Err("it is true, false or kube-proxy"),
    }
}

/// Flags that name a configuration file, or something to do instead of running the proxy.
#[derive(Args)]
pub struct Act {
    /// A KubeProxyConfiguration; besides it, the only flags of kube-proxy that have an effect are those of
    /// the node's name and the log
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the complete configuration to this file, and end
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove what a proxy left in the kernel, Hawser's and kube-proxy's, and end. With `kube-proxy`, remove
    /// only kube-proxy's rules, also while a proxy runs; connections that they translate go on
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL|kube-proxy", default_missing_value = "true", value_parser = cleanup)]
    pub cleanup: Option<Cleanup>,
    /// Do the setup that takes privileges (programs, maps, pins, kernel parameters), and end
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool)]
    pub init_only: Option<bool>,
}

/// The result of flags and file together.
pub struct Resolved {
    pub configuration: KubeProxyConfiguration,
    /// Flags that have no effect because a file is given.
    pub overruled: Vec<String>,
    /// Flags that have no effect because no field of the configuration corresponds to them.
    pub meaningless: Vec<String>,
}

/// Flags that have an effect besides a file.
const BESIDE_A_FILE: [&str; 6] =
    ["hostname-override", "kubeconfig", "master", "v", "vmodule", "logging-format"];
/// Flags without a field: those of earlier versions, and of a logging library.
const WITHOUT_A_FIELD: [&str; 21] = [
    "udp-timeout",
    "cleanup-ipvs",
    "log-flush-frequency",
    "logtostderr",
    "alsologtostderr",
    "add-dir-header",
    "one-output",
    "skip-headers",
    "skip-log-headers",
    "log-json-split-stream",
    "log-text-split-stream",
    "log-json-info-buffer-size",
    "log-text-info-buffer-size",
    "log-backtrace-at",
    "log-dir",
    "log-file",
    "log-file-max-size",
    "stderrthreshold",
    "boot-id-file",
    "machine-id-file",
    "proxy-port-range",
];

/// Computes the configuration by kube-proxy's rules: with a file, the only flags that have an effect are
/// those of the node's name and the log. One exception: `--kubeconfig` is used if the file names none.
pub fn resolve(flags: &KubeProxyFlags, lists: &KubeProxyLists, file: Option<&File>) -> Result<Resolved> {
    let mut given = flags.given();
    for (name, list) in
        [("nodeport-addresses", &lists.nodeport_addresses), ("ipvs-exclude-cidrs", &lists.ipvs_exclude_cidrs)]
    {
        given.extend((!list.is_empty()).then(|| name.to_owned()));
    }
    let (meaningless, given): (Vec<_>, Vec<_>) =
        given.into_iter().partition(|name| WITHOUT_A_FIELD.contains(&name.as_str()));
    let (mut configuration, overruled) = match file {
        Some(file) => {
            let beside = |name: &String| BESIDE_A_FILE.contains(&name.as_str());
            (file.configuration.clone(), given.into_iter().filter(|name| !beside(name)).collect())
        }
        None => {
            let mut configuration = KubeProxyConfiguration::default();
            set_all(&mut configuration, flags, lists)?;
            (configuration, Vec::new())
        }
    };
    if let Some(name) = flags.hostname_override.as_ref().filter(|name| !name.is_empty()) {
        if name.trim().is_empty() {
            bail!("--hostname-override is blank: give the name of the Node");
        }
        configuration.hostname_override.clone_from(name);
    }
    if configuration.client_connection.kubeconfig.is_empty() {
        set(&mut configuration.client_connection.kubeconfig, &flags.kubeconfig);
    }
    set(&mut configuration.logging.verbosity, &flags.v);
    set(&mut configuration.logging.format, &flags.logging_format);
    if let Some(text) = &flags.vmodule {
        configuration.logging.vmodule.splice(0..0, vmodule(text)?);
    }
    Ok(Resolved { configuration, overruled, meaningless })
}

fn set<T: Clone>(field: &mut T, flag: &Option<T>) {
    if let Some(value) = flag {
        field.clone_from(value);
    }
}

fn set_all(to: &mut KubeProxyConfiguration, flags: &KubeProxyFlags, lists: &KubeProxyLists) -> Result<()> {
    let some = |field: &mut Option<i32>, flag: Option<i32>| *field = flag.or(*field);
    set(&mut to.client_connection.content_type, &flags.kube_api_content_type);
    set(&mut to.client_connection.burst, &flags.kube_api_burst);
    set(&mut to.client_connection.qps, &flags.kube_api_qps);
    if let Some(address) = &flags.bind_address {
        to.bind_address.clone_from(address);
        // The defaults of the two addresses below follow the family of this one.
        to.healthz_bind_address.clear();
        to.metrics_bind_address.clear();
        to.set_defaults();
    }
    set(&mut to.healthz_bind_address, &flags.healthz_bind_address);
    set(&mut to.metrics_bind_address, &flags.metrics_bind_address);
    deprecated_port(&mut to.healthz_bind_address, flags.healthz_port);
    deprecated_port(&mut to.metrics_bind_address, flags.metrics_port);
    set(&mut to.bind_address_hard_fail, &flags.bind_address_hard_fail);
    set(&mut to.enable_profiling, &flags.profiling);
    set(&mut to.show_hidden_metrics_for_version, &flags.show_hidden_metrics_for_version);
    set(&mut to.mode, &flags.proxy_mode);
    some(&mut to.iptables.masquerade_bit, flags.iptables_masquerade_bit);
    set(&mut to.iptables.sync_period, &flags.iptables_sync_period);
    set(&mut to.iptables.min_sync_period, &flags.iptables_min_sync_period);
    to.iptables.localhost_node_ports =
        flags.iptables_localhost_nodeports.or(to.iptables.localhost_node_ports);
    // One flag sets it for all modes.
    set(&mut to.iptables.masquerade_all, &flags.masquerade_all);
    set(&mut to.nftables.masquerade_all, &flags.masquerade_all);
    set(&mut to.ipvs.sync_period, &flags.ipvs_sync_period);
    set(&mut to.ipvs.min_sync_period, &flags.ipvs_min_sync_period);
    set(&mut to.ipvs.scheduler, &flags.ipvs_scheduler);
    set(&mut to.ipvs.strict_arp, &flags.ipvs_strict_arp);
    set(&mut to.ipvs.tcp_timeout, &flags.ipvs_tcp_timeout);
    set(&mut to.ipvs.tcp_fin_timeout, &flags.ipvs_tcpfin_timeout);
    set(&mut to.ipvs.udp_timeout, &flags.ipvs_udp_timeout);
    to.ipvs.exclude_cidrs.clone_from(&lists.ipvs_exclude_cidrs);
    set(&mut to.detect_local_mode, &flags.detect_local_mode);
    set(&mut to.detect_local.bridge_interface, &flags.pod_bridge_interface);
    set(&mut to.detect_local.interface_name_prefix, &flags.pod_interface_name_prefix);
    set(&mut to.cluster_cidr, &flags.cluster_cidr);
    to.node_port_addresses.clone_from(&lists.nodeport_addresses);
    some(&mut to.oom_score_adj, flags.oom_score_adj);
    some(&mut to.conntrack.max_per_core, flags.conntrack_max_per_core);
    some(&mut to.conntrack.min, flags.conntrack_min);
    to.conntrack.tcp_established_timeout = flags.conntrack_tcp_timeout_established;
    to.conntrack.tcp_close_wait_timeout = flags.conntrack_tcp_timeout_close_wait;
    set(&mut to.conntrack.tcp_be_liberal, &flags.conntrack_tcp_be_liberal);
    set(&mut to.conntrack.udp_timeout, &flags.conntrack_udp_timeout);
    set(&mut to.conntrack.udp_stream_timeout, &flags.conntrack_udp_timeout_stream);
    set(&mut to.config_sync_period, &flags.config_sync_period);
    if let Some(gates) = &flags.feature_gates {
        for gate in gates.split(',').map(str::trim).filter(|gate| !gate.is_empty()) {
            let (name, value) = gate
                .split_once('=')
                .with_context(|| format!("--feature-gates: {gate:?} is not NAME=true or NAME=false"))?;
            let value = go_bool(value.trim())
                .map_err(|error| anyhow::anyhow!("--feature-gates: {gate:?}: {error}"))?;
            to.feature_gates.insert(name.trim().to_owned(), value);
        }
    }
    Ok(())
}

/// Sets the port of an address that has none; port 0 clears the address.
fn deprecated_port(address: &mut String, port: Option<u16>) {
    match port {
        Some(0) => address.clear(),
        Some(port) if IpAddr::from_str(address.trim_matches(['[', ']'])).is_ok() => {
            let ip = address.trim_matches(['[', ']']);
            *address = if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        }
        _ => {}
    }
}

fn vmodule(text: &str) -> Result<Vec<VModule>> {
    let one = |item: &str| {
        let (pattern, level) =
            item.split_once('=').with_context(|| format!("--vmodule: {item:?} is not PATTERN=LEVEL"))?;
        let verbosity = level.parse().with_context(|| format!("--vmodule: {level:?} is not a number"))?;
        Ok(VModule { file_pattern: pattern.to_owned(), verbosity })
    };
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(one).collect()
}

/// Replaces underscores in a flag by hyphens, as kube-proxy does.
pub fn with_hyphens(argument: std::ffi::OsString) -> std::ffi::OsString {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else { return argument };
    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    format!("{}{value}", name.replace('_', "-")).into()
}

#[cfg(test)]
mod tests {
    use apiserver_meta::period::Period;
    use clap::Parser;
    use userspace_dataplane::Limits;
    use userspace_proxy::Own;

    use super::own::Xdp;
    use super::*;
    use crate::args::{Command, Hawser, Proxy};

    fn parse(line: &str) -> Result<ProxyRun, clap::Error> {
        let words = ["hawser", "proxy"].into_iter().chain(line.split_whitespace());
        let arguments = words.map(|word| with_hyphens(word.into()));
        match Hawser::try_parse_from(arguments)?.command {
            Command::Proxy(proxy) => {
                let Proxy { look, run } = *proxy;
                assert!(look.is_none());
                Ok(run)
            }
            _ => unreachable!("it says proxy"),
        }
    }

    fn resolved(line: &str, file: Option<&str>) -> Resolved {
        let run = parse(line).unwrap();
        let file = file.map(|text| File::parse(text).unwrap());
        resolve(&run.kube_proxy, &run.lists, file.as_ref()).unwrap()
    }

    const FILE: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
        mode: ipvs\nhostnameOverride: from-the-file\nclusterCIDR: 10.1.0.0/16\n";

    #[test]
    fn kubeadms_command_line_is_read() {
        let found = resolved("--config=/x --hostname-override=a -v=4 --cluster-cidr=10.9.0.0/16", Some(FILE));
        assert_eq!(found.configuration.hostname_override, "a");
        assert_eq!(found.configuration.logging.verbosity, 4);
        // The file takes precedence over the flag.
        assert_eq!(found.configuration.cluster_cidr, "10.1.0.0/16");
        assert_eq!(found.overruled, ["cluster-cidr"]);
        assert_eq!(resolved("--config /x", Some(FILE)).configuration.hostname_override, "from-the-file");
    }

    #[test]
    fn every_flag_of_kube_proxy_is_taken() {
        let line = "--bind-address=192.0.2.1 --bind-address-hard-fail --cleanup=false --cluster-cidr=10.1.0.0/16 \
            --config-sync-period=15m --conntrack-max-per-core=1 --conntrack-min=2 --conntrack-tcp-be-liberal=true \
            --conntrack-tcp-timeout-close-wait=1h --conntrack-tcp-timeout-established=24h0m0s \
            --conntrack-udp-timeout=30s --conntrack-udp-timeout-stream=1m --detect-local-mode=NodeCIDR \
            --feature-gates=A=true,B=false --healthz-bind-address=0.0.0.0 --healthz-port=11256 \
            --hostname-override=a --init-only=F --iptables-localhost-nodeports=false --iptables-masquerade-bit=14 \
            --iptables-min-sync-period=1s --iptables-sync-period=30s --ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8 \
            --ipvs-min-sync-period=0s --ipvs-scheduler=rr --ipvs-strict-arp --ipvs-sync-period=30s \
            --ipvs-tcp-timeout=0s --ipvs-tcpfin-timeout=0s --ipvs-udp-timeout=0s --kube-api-burst=10 \
            --kube-api-content-type=application/json --kube-api-qps=5 --kubeconfig=/k --log-flush-frequency=5s \
            --log_dir=/tmp --logging-format=json --logtostderr=true --masquerade-all --master=https://a:6443 \
            --metrics-bind-address=127.0.0.1:10249 --metrics-port=0 --nodeport-addresses=primary \
            --nodeport-addresses=10.0.0.0/8,localhost --oom-score-adj=-998 --pod-bridge-interface=cni0 \
            --pod-interface-name-prefix=cali --profiling --proxy-mode=nftables --proxy-port-range=1-2 \
            --show-hidden-metrics-for-version=1.35 --udp-timeout=1s --vmodule=proxy=4,*x=2 -v 2 -v 3";
        let found = resolved(line, None);
        let to = &found.configuration;
        assert_eq!(to.healthz_bind_address, "0.0.0.0:11256");
        assert_eq!(to.metrics_bind_address, "");
        assert_eq!(to.node_port_addresses, ["primary", "10.0.0.0/8", "localhost"]);
        assert_eq!((to.mode.as_str(), to.oom_score_adj), ("nftables", Some(-998)));
        assert!(to.iptables.masquerade_all && to.nftables.masquerade_all && to.bind_address_hard_fail);
        assert_eq!(to.iptables.localhost_node_ports, Some(false));
        assert_eq!(to.feature_gates.get("B"), Some(&false));
        assert_eq!(to.logging.vmodule.len(), 2);
        // The last of two values is used.
        assert_eq!(to.logging.verbosity, 3);
        assert_eq!(to.conntrack.tcp_established_timeout, Some(Period::seconds(86_400)));
        assert_eq!(
            found.meaningless,
            ["proxy-port-range", "udp-timeout", "log-flush-frequency", "logtostderr", "log-dir"]
        );
        assert!(found.overruled.is_empty());
        userspace_proxy::Config::new(to, &Own::default()).unwrap();
    }

    #[test]
    fn the_help_names_the_flags_that_it_hides() {
        use clap::CommandFactory;
        let mut hawser = Hawser::command();
        hawser.build();
        let proxy = hawser.find_subcommand("proxy").unwrap();
        let hidden = proxy.get_arguments().filter(|one| one.is_hide_set()).filter_map(clap::Arg::get_long);
        let hidden: std::collections::BTreeSet<_> = hidden.map(|name| format!("--{name}")).collect();
        let named = WITHOUT_A_MEANING.split_whitespace().filter(|word| word.starts_with("--"));
        assert_eq!(hidden, named.map(str::to_owned).collect());
    }

    #[test]
    fn the_flags_without_a_field_are_flags() {
        let flags = [KubeProxyFlags::default()];
        assert!(flags[0].given().is_empty());
        for name in WITHOUT_A_FIELD.iter().chain(&BESIDE_A_FILE) {
            let value = if name.contains("timeout") || name.contains("frequency") { "1s" } else { "1" };
            let flags = parse(&format!("--{name}={value}")).unwrap().kube_proxy;
            assert_eq!(flags.given(), [(*name).to_owned()]);
        }
    }

    #[test]
    fn addresses_follow_the_family_of_the_bind_address() {
        let to = resolved("--bind-address=::", None).configuration;
        assert_eq!(to.healthz_bind_address, "[::]:10256");
        let to = resolved("--healthz-bind-address=[::1] --healthz-port=1", None).configuration;
        assert_eq!(to.healthz_bind_address, "[::1]:1");
    }

    #[test]
    fn the_kubeconfig_flag_fills_what_the_file_leaves_empty() {
        let kubeconfig = |line: &str, file| resolved(line, file).configuration.client_connection.kubeconfig;
        assert_eq!(kubeconfig("--kubeconfig=/k", Some(FILE)), "/k");
        let named = format!("{FILE}clientConnection: {{kubeconfig: /f}}\n");
        assert_eq!(kubeconfig("--kubeconfig=/k", Some(named.as_str())), "/f");
        assert_eq!(kubeconfig("", Some(FILE)), "");
    }

    #[test]
    fn sizes_are_rounded_to_what_maps_can_have() {
        let sizes = parse("--max-flows=100000 --max-services=7").unwrap().sizes.limits();
        assert_eq!((sizes.flows4, sizes.flows6, sizes.services), (131_072, 131_072, 7));
        assert_eq!(parse("").unwrap().sizes.limits(), Limits::default());
        let v6 = parse("--max-flows=8 --max-flows-ipv6=16").unwrap().sizes.limits();
        assert_eq!((v6.flows4, v6.flows6), (8, 16));
    }

    #[test]
    fn our_own_flags_are_read() {
        let own =
            parse("--uplinks=eth0,eth1 --through-stack=false --xdp-mode=generic --service-cidr=10.96.0.0/12")
                .unwrap()
                .own;
        assert_eq!((own.uplinks.len(), own.xdp_mode), (2, Xdp::Generic));
        let own = own.own();
        assert_eq!((own.through_stack, own.route_of_last_resort), (Some(false), true));
        assert_eq!(own.pod_interface_prefixes, ["hwp"]);
        assert_eq!(own.service_ranges.len(), 1);
        assert!(parse("--xdp-mode=fast").is_err() && parse("--masquerade-all=maybe").is_err());
    }

    fn manifest() -> Vec<serde_json::Value> {
        let text = include_str!("../../../../deploy/hawser-proxy.yaml");
        serde_saphyr::from_multiple(text).unwrap()
    }

    fn of_kind<'a>(objects: &'a [serde_json::Value], kind: &str) -> &'a serde_json::Value {
        objects.iter().find(|object| object["kind"] == kind).unwrap()
    }

    /// Deserializes an object as its type and returns the fields that the type does not have.
    fn strangers<T: serde::de::DeserializeOwned + serde::Serialize>(
        object: &serde_json::Value,
    ) -> Vec<String> {
        let typed: T = serde_json::from_value(object.clone()).unwrap();
        let known = serde_json::to_value(typed).unwrap();
        let mut lost = Vec::new();
        fn compare(given: &serde_json::Value, known: &serde_json::Value, path: &str, lost: &mut Vec<String>) {
            match (given, known) {
                (serde_json::Value::Object(given), known) => {
                    for (name, value) in given {
                        compare(value, &known[name], &format!("{path}.{name}"), lost);
                    }
                }
                (serde_json::Value::Array(given), known) => {
                    for (n, value) in given.iter().enumerate() {
                        compare(value, &known[n], &format!("{path}[{n}]"), lost);
                    }
                }
                (given, known) if given != known => lost.push(path.to_owned()),
                _ => {}
            }
        }
        compare(object, &known, "", &mut lost);
        lost
    }

    #[test]
    fn the_manifest_has_only_fields_that_kubernetes_knows() {
        use k8s_openapi::api::{apps, core, rbac};
        let objects = manifest();
        assert_eq!(objects.len(), 6);
        for object in &objects {
            let lost = match object["kind"].as_str().unwrap() {
                "DaemonSet" => strangers::<apps::v1::DaemonSet>(object),
                "ServiceAccount" => strangers::<core::v1::ServiceAccount>(object),
                "ConfigMap" => strangers::<core::v1::ConfigMap>(object),
                "ClusterRole" => strangers::<rbac::v1::ClusterRole>(object),
                "ClusterRoleBinding" => strangers::<rbac::v1::ClusterRoleBinding>(object),
                other => panic!("{other}"),
            };
            assert!(lost.is_empty(), "{}: {lost:?}", object["kind"]);
        }
    }

    #[test]
    fn the_manifests_command_lines_and_configuration_are_right() {
        let objects = manifest();
        let data = &of_kind(&objects, "ConfigMap")["data"];
        let file = File::parse(data["config.conf"].as_str().unwrap()).unwrap();
        assert_eq!(file.oddities, []);
        kube::config::Kubeconfig::from_yaml(data["kubeconfig.conf"].as_str().unwrap()).unwrap();
        let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
        for container in [&pod["initContainers"][0], &pod["containers"][0]] {
            let words = container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
            assert_eq!(words.clone().next(), Some("/hawser"));
            let Command::Proxy(proxy) = Hawser::try_parse_from(words).unwrap().command else {
                panic!("it is another command");
            };
            let run = proxy.run;
            let path = run.act.config.unwrap();
            assert_eq!(
                file.configuration.client_connection.kubeconfig,
                format!("{}/kubeconfig.conf", path.parent().unwrap().display())
            );
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mounted = |path: &std::path::Path| {
                mounts.iter().any(|mount| path.starts_with(mount["mountPath"].as_str().unwrap()))
            };
            assert!(mounted(&path) && mounted(run.own.cgroup_mount.as_deref().unwrap()));
            let resolved = resolve(&run.kube_proxy, &run.lists, Some(&file)).unwrap();
            assert!(resolved.overruled.is_empty() && resolved.meaningless.is_empty());
            userspace_proxy::Config::new(&resolved.configuration, &run.own.own()).unwrap();
        }
    }
}
