//! Settings of kube-proxy that are accepted and have no effect here, with the reason: each that differs from
//! its default gets one line in the log.

use serde_json::Value;

use crate::kube_proxy::KubeProxyConfiguration;

/// A setting without an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its path in the configuration.
    pub field: &'static str,
    pub reason: &'static str,
}

const APPLIED_AT_ONCE: &str = "every change is applied as it arrives, and all is compared every 30 minutes";
const UNMARKED: &str = "packets are not marked";
const NO_IPVS: &str = "connections are not IPVS's";
const WINDOWS: &str = "of Windows";

const NOTES: [(&str, &str); 35] = [
    ("featureGates", "kube-proxy's feature gates switch nothing here"),
    ("clientConnection.acceptContentTypes", "objects are read as JSON"),
    ("clientConnection.contentType", "objects are read as JSON"),
    ("clientConnection.qps", "a few kinds are watched, and nothing is sent that a limit could slow"),
    ("clientConnection.burst", "a few kinds are watched, and nothing is sent that a limit could slow"),
    ("logging.flushFrequency", "lines are written at once, to standard error"),
    ("logging.options", "lines are written at once, to standard error"),
    ("logging.vmodule", "these are not kube-proxy's source files; --log takes filters by module"),
    ("enableProfiling", "there is no profiler to serve"),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    ("mode", "eBPF does the work of every mode; the mode's defaults for node ports are kept"),
    ("iptables.masqueradeBit", UNMARKED),
    ("iptables.snatNodeInternalIP", "it is always the node's own address that packets take"),
    ("iptables.syncPeriod", APPLIED_AT_ONCE),
    ("iptables.minSyncPeriod", APPLIED_AT_ONCE),
    ("ipvs.syncPeriod", APPLIED_AT_ONCE),
    ("ipvs.minSyncPeriod", APPLIED_AT_ONCE),
    ("ipvs.scheduler", "a Service chooses by its annotation hawser.dev/algorithm"),
    ("ipvs.strictARP", "services' addresses are on no interface, so nothing answers ARP for them"),
    ("ipvs.tcpTimeout", NO_IPVS),
    ("ipvs.tcpFinTimeout", NO_IPVS),
    ("ipvs.udpTimeout", NO_IPVS),
    ("nftables.masqueradeBit", UNMARKED),
    ("nftables.syncPeriod", APPLIED_AT_ONCE),
    ("nftables.minSyncPeriod", APPLIED_AT_ONCE),
    ("winkernel.networkName", WINDOWS),
    ("winkernel.sourceVip", WINDOWS),
    ("winkernel.enableDSR", WINDOWS),
    ("winkernel.rootHnsEndpointName", WINDOWS),
    ("winkernel.forwardHealthCheckVip", WINDOWS),
    ("windowsRunAsService", WINDOWS),
    ("configSyncPeriod", "objects are watched, and listed anew when a watch ends"),
    ("portRange", "kube-proxy itself has had no use for it since its userspace mode went"),
    ("ipvs.excludeCIDRs", "it only keeps --cleanup from virtual servers in these ranges"),
    ("conntrack.min", "it means nothing without conntrack.maxPerCore"),
];

/// Returns the settings that have no effect, in the order of the table above.
pub fn notes(configuration: &KubeProxyConfiguration) -> Vec<Note> {
    let default = KubeProxyConfiguration::default();
    let (Ok(given), Ok(default)) = (serde_json::to_value(configuration), serde_json::to_value(default))
    else {
        return Vec::new();
    };
    let per_core = configuration.conntrack.max_per_core.is_some_and(|max| max > 0);
    NOTES
        .iter()
        .filter(|(field, _)| !(per_core && *field == "conntrack.min"))
        .filter(|(field, _)| {
            let (given, default) = (at(&given, field), at(&default, field));
            given != default && says(given)
        })
        .map(|(field, reason)| Note { field, reason })
        .chain(of_another_mode(configuration))
        .collect()
}

/// Returns the note for one thing that each of kube-proxy's modes has a setting of its own for.
fn of_another_mode(configuration: &KubeProxyConfiguration) -> Option<Note> {
    let (iptables, nftables) = (configuration.iptables.masquerade_all, configuration.nftables.masquerade_all);
    let (counts, other, field) = match configuration.mode.as_str() {
        "nftables" => (nftables, iptables, "iptables.masqueradeAll"),
        _ => (iptables, nftables, "nftables.masqueradeAll"),
    };
    (other && !counts).then_some(Note { field, reason: "of a mode that is not asked for" })
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, name| value.get(name).unwrap_or(&Value::Null))
}

/// Returns `true` if a value differs from the empty one, which is how defaults are written.
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::File;

    /// Fields that have an effect.
    const MEANINGFUL: [&str; 27] = [
        "apiVersion",
        "kind",
        "clientConnection.kubeconfig",
        "logging.format",
        "logging.verbosity",
        "hostnameOverride",
        "bindAddress",
        "healthzBindAddress",
        "metricsBindAddress",
        "bindAddressHardFail",
        "iptables.masqueradeAll",
        "iptables.localhostNodePorts",
        "nftables.masqueradeAll",
        "detectLocalMode",
        "detectLocal.bridgeInterface",
        "detectLocal.interfaceNamePrefix",
        "clusterCIDR",
        "nodePortAddresses",
        "oomScoreAdj",
        "conntrack.maxPerCore",
        "conntrack.min",
        "conntrack.tcpEstablishedTimeout",
        "conntrack.tcpCloseWaitTimeout",
        "conntrack.tcpBeLiberal",
        "conntrack.udpTimeout",
        "conntrack.udpStreamTimeout",
        "ipvs.excludeCIDRs",
    ];

    fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) if path != "featureGates" && path != "logging.options" => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    leaves(value, &path, found);
                }
            }
            _ => drop(found.insert(path.to_owned())),
        }
    }

    #[test]
    fn every_field_of_the_api_does_something_or_is_said_to_do_nothing() {
        let mut fields = BTreeSet::new();
        leaves(&serde_json::to_value(KubeProxyConfiguration::default()).unwrap(), "", &mut fields);
        let noted = NOTES.iter().map(|(field, _)| *field);
        let accounted: BTreeSet<_> = MEANINGFUL.into_iter().chain(noted).map(str::to_owned).collect();
        assert_eq!(fields, accounted);
    }

    #[test]
    fn kubeadms_configuration_needs_no_word() {
        let file = File::parse(include_str!("../tests/data/kubeadm.yaml")).unwrap();
        assert_eq!(notes(&file.configuration), []);
        assert_eq!(notes(&KubeProxyConfiguration::default()), []);
    }

    #[test]
    fn ineffective_settings_are_logged_once_each() {
        let mut given = KubeProxyConfiguration { mode: "ipvs".to_owned(), ..Default::default() };
        given.ipvs.scheduler = "wlc".to_owned();
        given.ipvs.strict_arp = true;
        given.iptables.masquerade_bit = Some(15);
        given.feature_gates.insert("X".to_owned(), true);
        given.iptables.masquerade_all = true;
        given.conntrack.min = Some(1000);
        let fields: Vec<_> = notes(&given).iter().map(|note| note.field).collect();
        let expected = [
            "featureGates",
            "mode",
            "iptables.masqueradeBit",
            "ipvs.scheduler",
            "ipvs.strictARP",
            "conntrack.min",
        ];
        assert_eq!(fields, expected);
        given.conntrack.max_per_core = Some(1);
        assert_eq!(notes(&given).len(), 5);
        given.mode = "nftables".to_owned();
        assert_eq!(notes(&given).last().unwrap().field, "iptables.masqueradeAll");
        // A flag of kube-proxy sets both.
        given.nftables.masquerade_all = true;
        assert_eq!(notes(&given).len(), 5);
    }
}
