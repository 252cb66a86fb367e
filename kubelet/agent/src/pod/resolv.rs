//! Name resolution of pods: `/etc/resolv.conf`, `/etc/hosts` and host names.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri::Dns;

use super::{host_network, name, namespace, spec};

/// Names of the files in `/etc` that the kubelet writes.
pub const HOSTS: &str = "hosts";
pub const HOSTNAME: &str = "hostname";
pub const RESOLV_CONF: &str = "resolv.conf";
/// Maximum length of a host name in the kernel.
const HOSTNAME_LENGTH: usize = 63;
/// Maximum length of a fully qualified domain name as host name.
const FQDN_LENGTH: usize = 64;
/// Maximum number of name servers that a resolver uses.
const SERVERS: usize = 3;
/// Maximum number of search domains that Kubernetes passes on, and of their characters with the spaces between.
const SEARCHES: usize = 32;
const SEARCH_CHARACTERS: usize = 2048;

/// DNS configuration of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDns {
    /// Addresses of the cluster's DNS servers; empty if there are none.
    pub servers: Vec<String>,
    /// Domain of the cluster, such as `cluster.local`.
    pub domain: String,
}

/// Returns the short host name of a pod.
pub fn hostname(pod: &Pod) -> String {
    let wanted = spec(pod).hostname_override.as_deref().or(spec(pod).hostname.as_deref());
    let wanted = wanted.filter(|wanted| !wanted.is_empty()).unwrap_or_else(|| name(pod));
    let cut = &wanted[..wanted.len().min(HOSTNAME_LENGTH)];
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the host name that the pod's processes see, including the domain if the pod asks for it. The error
/// is a message if the name is too long for the kernel.
pub fn kernel_hostname(pod: &Pod, cluster: &ClusterDns) -> Result<String, String> {
    let full = full_name(pod, cluster).filter(|_| spec(pod).set_hostname_as_fqdn == Some(true));
    let name = full.unwrap_or_else(|| hostname(pod));
    if name.len() > FQDN_LENGTH {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long \
             ({FQDN_LENGTH} is the max, {} characters requested)",
            name.len()
        ));
    }
    Ok(name)
}

/// Returns the fully qualified domain name of the pod in the cluster, if its subdomain gives it one.
fn full_name(pod: &Pod, cluster: &ClusterDns) -> Option<String> {
    let subdomain = spec(pod).subdomain.as_deref().filter(|subdomain| !subdomain.is_empty())?;
    Some(format!("{}.{subdomain}.{}.svc.{}", hostname(pod), namespace(pod), cluster.domain))
}

/// Parses the relevant parts of a `resolv.conf`.
pub fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words =
            line.split(['#', ';']).next().unwrap_or_default().split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.servers.extend(words.next()),
            // The last `search` line wins. A dot at the end says nothing; alone it is the root.
            Some("search") => dns.searches = words.map(without_last_dot).collect(),
            Some("options") => dns.options = words.collect(),
            _ => {}
        }
    }
    dns
}

fn without_last_dot(domain: String) -> String {
    match domain.strip_suffix('.') {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => domain,
    }
}

/// Returns a warning if the pod's policy wants the cluster's DNS servers and there are none.
pub fn missing_servers(pod: &Pod, cluster: &ClusterDns) -> Option<String> {
    let policy = spec(pod).dns_policy.as_deref().unwrap_or("ClusterFirst");
    let wanted = match policy {
        "ClusterFirst" => !host_network(pod),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    (wanted && cluster.servers.is_empty()).then(|| {
        format!(
            "pod: \"{}/{}\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"{policy}\" \
             policy. Falling back to \"Default\" policy.",
            namespace(pod),
            name(pod)
        )
    })
}

/// Returns the DNS configuration of the pod. `node` is the node's own.
pub fn dns(pod: &Pod, cluster: &ClusterDns, node: &Dns) -> Dns {
    let policy = spec(pod).dns_policy.as_deref().unwrap_or("ClusterFirst");
    let in_cluster = !cluster.servers.is_empty()
        && match policy {
            "ClusterFirst" => !host_network(pod),
            "ClusterFirstWithHostNet" => true,
            _ => false,
        };
    let mut dns = if in_cluster {
        let domain = &cluster.domain;
        let mut searches = match domain.as_str() {
            "" => Vec::new(),
            domain => {
                vec![format!("{}.svc.{domain}", namespace(pod)), format!("svc.{domain}"), domain.to_owned()]
            }
        };
        searches.extend(node.searches.iter().cloned());
        Dns { servers: cluster.servers.clone(), searches, options: vec!["ndots:5".to_owned()] }
    } else if policy == "None" {
        Dns::default()
    } else {
        node.clone()
    };
    if let Some(extra) = &spec(pod).dns_config {
        dns.servers.extend(extra.nameservers.iter().flatten().cloned());
        dns.searches.extend(extra.searches.iter().flatten().cloned());
        for option in extra.options.iter().flatten() {
            let Some(name) = option.name.as_deref() else { continue };
            dns.options.retain(|old| old.split(':').next() != Some(name));
            dns.options.push(match option.value.as_deref() {
                Some(value) => format!("{name}:{value}"),
                None => name.to_owned(),
            });
        }
    }
    dns.servers = distinct(dns.servers, SERVERS);
    dns.searches = distinct(dns.searches, SEARCHES);
    while dns.searches.join(" ").len() > SEARCH_CHARACTERS {
        dns.searches.pop();
    }
    dns
}

/// Renders a `resolv.conf`.
pub fn render(dns: &Dns) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    text
}

fn distinct(list: Vec<String>, limit: usize) -> Vec<String> {
    let mut seen = BTreeSet::new();
    list.into_iter().filter(|entry| seen.insert(entry.clone())).take(limit).collect()
}

/// Returns the content of the pod's `/etc/hosts`. `node` is the node's own file, used by pods in the host
/// network.
pub fn hosts_file(pod: &Pod, cluster: &ClusterDns, pod_ips: &[String], node: &str) -> String {
    let mut text = "# Kubernetes-managed hosts file.\n".to_owned();
    if host_network(pod) {
        text = format!("# Kubernetes-managed hosts file (host network).\n{node}");
        if !text.ends_with('\n') {
            text.push('\n');
        }
    } else {
        text.push_str(
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        for ip in pod_ips {
            match full_name(pod, cluster) {
                Some(full) => text.push_str(&format!("{ip}\t{full}\t{}\n", hostname(pod))),
                None => text.push_str(&format!("{ip}\t{}\n", hostname(pod))),
            }
        }
    }
    let aliases = spec(pod).host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.clone().unwrap_or_default().join("\t");
            text.push_str(&format!("{}\t{names}\n", alias.ip));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    fn cluster() -> ClusterDns {
        ClusterDns { servers: vec!["10.96.0.10".to_owned()], domain: "cluster.local".to_owned() }
    }

    fn node() -> Dns {
        parse("nameserver 1.1.1.1 # first\nsearch example.com\noptions edns0\n; nothing\n")
    }

    fn conf(spec: Value) -> (String, String, String) {
        let dns = dns(&pod(spec), &cluster(), &node());
        (dns.servers.join(" "), dns.searches.join(" "), dns.options.join(" "))
    }

    fn texts(servers: &str, searches: &str, options: &str) -> (String, String, String) {
        (servers.to_owned(), searches.to_owned(), options.to_owned())
    }

    #[test]
    fn dns_policies_choose_servers_and_search_domains() {
        let cluster_searches = "shop.svc.cluster.local svc.cluster.local cluster.local example.com";
        let host = texts("1.1.1.1", "example.com", "edns0");
        let in_cluster = texts("10.96.0.10", cluster_searches, "ndots:5");
        assert_eq!(conf(json!({})), in_cluster);
        assert_eq!(conf(json!({"hostNetwork": true})), host);
        assert_eq!(conf(json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"})), in_cluster);
        assert_eq!(conf(json!({"dnsPolicy": "Default"})), host);
        let own = json!({"nameservers": ["9.9.9.9"], "options": [{"name": "ndots", "value": "1"}]});
        assert_eq!(conf(json!({"dnsPolicy": "None", "dnsConfig": own})), texts("9.9.9.9", "", "ndots:1"));
        assert_eq!(conf(json!({"dnsConfig": own})), texts("10.96.0.10 9.9.9.9", cluster_searches, "ndots:1"));
    }

    #[test]
    fn search_domains_and_servers_have_limits() {
        let long: Vec<String> = (0..40).map(|number| format!("{}{number}.example", "x".repeat(50))).collect();
        let own = json!({"searches": long, "nameservers": ["9.9.9.1", "9.9.9.2", "9.9.9.3", "9.9.9.4"]});
        let (servers, searches, _) = conf(json!({"dnsPolicy": "None", "dnsConfig": own}));
        assert_eq!(servers, "9.9.9.1 9.9.9.2 9.9.9.3");
        assert!(searches.split(' ').count() <= 32 && searches.len() <= 2048, "{searches}");
        let many: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
        let (_, searches, _) = conf(json!({"dnsPolicy": "None", "dnsConfig": {"searches": many}}));
        assert_eq!(searches.split(' ').count(), 32);
    }

    #[test]
    fn search_lines_keep_the_root_and_lose_dots_at_the_end() {
        assert_eq!(parse("search . a.example. b.example").searches, [".", "a.example", "b.example"]);
    }

    #[test]
    fn pods_of_the_cluster_are_warned_if_it_has_no_servers() {
        let none = ClusterDns { servers: Vec::new(), ..cluster() };
        let warned = |spec: Value, cluster: &ClusterDns| missing_servers(&pod(spec), cluster).is_some();
        assert!(warned(json!({}), &none) && !warned(json!({}), &cluster()));
        assert!(
            !warned(json!({"dnsPolicy": "Default"}), &none) && !warned(json!({"hostNetwork": true}), &none)
        );
        assert!(warned(json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}), &none));
        assert_eq!(dns(&pod(json!({})), &none, &node()), node(), "the node's servers are used instead");
    }

    #[test]
    fn hosts_files_contain_the_pod_and_its_aliases() {
        let ips = ["10.0.0.2".to_owned()];
        let spec = json!({"hostname": "h", "subdomain": "d", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["x", "y"]}]});
        let text = hosts_file(&pod(spec), &cluster(), &ips, "");
        assert!(text.contains("10.0.0.2\th.d.shop.svc.cluster.local\th\n"), "{text}");
        assert!(text.ends_with("1.2.3.4\tx\ty\n"), "{text}");
        let text = hosts_file(&pod(json!({"hostNetwork": true})), &cluster(), &ips, "127.0.0.1 me");
        assert!(text.ends_with("127.0.0.1 me\n"), "{text}");
    }

    #[test]
    fn the_host_name_is_fully_qualified_if_the_pod_asks_for_it() {
        let named = |spec| kernel_hostname(&pod(spec), &cluster());
        assert_eq!(named(json!({"subdomain": "d"})).as_deref(), Ok("web"));
        let full = json!({"subdomain": "d", "setHostnameAsFQDN": true});
        assert_eq!(named(full).as_deref(), Ok("web.d.shop.svc.cluster.local"));
        assert_eq!(named(json!({"setHostnameAsFQDN": true})).as_deref(), Ok("web"));
        let long = json!({"subdomain": "d".repeat(60), "setHostnameAsFQDN": true});
        assert!(named(long).unwrap_err().contains("64 is the max"));
    }

    #[test]
    fn long_host_names_are_truncated_at_a_valid_end() {
        let mut pod = pod(json!({}));
        pod.metadata.name = Some(format!("{}-{}", "a".repeat(62), "b".repeat(20)));
        assert_eq!(hostname(&pod), "a".repeat(62));
    }
}
