//! Kernel parameters that pods may set: those that belong to a namespace of the pod and cannot harm others,
//! and those that the node's administrator allows.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::spec;

/// Kernel parameters that affect only the pod, with the first kernel version in which they are namespaced.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Maximum length of the name of a kernel parameter.
const MAX_LENGTH: usize = 253;

/// The namespace that a kernel parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    fn name(self) -> &'static str {
        match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
        }
    }

    /// Returns the namespace of a dotted name; `None` if the parameter is not known to be namespaced.
    fn of(name: &str) -> Option<Self> {
        match name {
            "kernel.sem"
            | "kernel.shmall"
            | "kernel.shmmax"
            | "kernel.shmmni"
            | "kernel.shm_rmid_forced"
            | "kernel.shm"
            | "kernel.msgmax"
            | "kernel.msgmnb"
            | "kernel.msgmni"
            | "kernel.msg" => Some(Self::Ipc),
            _ if name.starts_with("net.") => Some(Self::Net),
            _ if name.starts_with("fs.mqueue.") => Some(Self::Ipc),
            _ => None,
        }
    }
}

/// A pattern of `--allowed-unsafe-sysctls` is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error(
        "sysctl {0:?} must have at most {MAX_LENGTH} characters and consist of lower case names, separated by '.' or '/', with an optional '*' at the end"
    )]
    Invalid(String),
    #[error("the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

/// Kernel parameters that pods may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowlist {
    names: BTreeMap<String, Namespace>,
    /// Prefixes of allowed names.
    prefixes: BTreeMap<String, Namespace>,
}

impl Allowlist {
    /// Returns the safe parameters of a kernel (such as `6.1.0-13-amd64`) and those that match the patterns.
    pub fn new(kernel: &str, unsafe_patterns: &[String]) -> Result<Self, PatternError> {
        let kernel = version(kernel);
        let safe = SAFE
            .iter()
            .filter(|(_, since)| kernel.is_some_and(|kernel| kernel >= *since) || *since == (0, 0));
        let mut list = Self { names: BTreeMap::new(), prefixes: BTreeMap::new() };
        for (name, _) in safe {
            list.names.extend(Namespace::of(name).map(|namespace| ((*name).to_owned(), namespace)));
        }
        for pattern in unsafe_patterns {
            if !is_valid_pattern(pattern) {
                return Err(PatternError::Invalid(pattern.clone()));
            }
            let name = normalize(pattern);
            let (name, is_prefix) = match name.split_once('*') {
                Some((prefix, _)) => (prefix.to_owned(), true),
                None => (name, false),
            };
            let namespace = Namespace::of(&name).ok_or_else(|| PatternError::NotNamespaced(name.clone()))?;
            if is_prefix {
                list.prefixes.insert(name, namespace)
            } else {
                list.names.insert(name, namespace)
            };
        }
        Ok(list)
    }

    /// Refuses a pod that sets a parameter that is not allowed; the error is a message that names it.
    pub fn check(&self, pod: &Pod) -> Result<(), String> {
        let spec = spec(pod);
        sysctls(pod).into_keys().try_for_each(|name| {
            let of_prefix = || self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix.as_str()));
            let namespace = self.names.get(&name).or_else(|| of_prefix().map(|(_, namespace)| namespace));
            let shared = match namespace {
                None => return Err(format!("forbidden sysctl: {name:?} not allowlisted")),
                Some(Namespace::Ipc) => spec.host_ipc,
                Some(Namespace::Net) => spec.host_network,
            };
            match (namespace, shared) {
                (Some(namespace), Some(true)) => {
                    let namespace = namespace.name();
                    Err(format!("forbidden sysctl: {name:?} not allowed with host {namespace} enabled"))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Returns the kernel parameters that a pod sets, by dotted name.
pub fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let context = spec(pod).security_context.as_ref();
    let wanted = context.and_then(|context| context.sysctls.as_ref()).into_iter().flatten();
    wanted.map(|sysctl| (normalize(&sysctl.name), sysctl.value.clone())).collect()
}

/// Converts a name to dotted form: `net/ipv4/conf/eth0.1/mtu` becomes `net.ipv4.conf.eth0/1.mtu`.
fn normalize(name: &str) -> String {
    let first = name.find(['.', '/']).and_then(|index| name[index..].chars().next());
    if first != Some('/') {
        return name.to_owned();
    }
    let swapped = name.chars().map(|c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    });
    swapped.collect()
}

fn is_valid_pattern(pattern: &str) -> bool {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    let name = if name.len() < pattern.len() { name.trim_end_matches(['.', '/']) } else { name };
    let is_part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.chars().all(inner) && part.starts_with(edge) && part.ends_with(edge)
    };
    pattern.len() <= MAX_LENGTH && name.split(['.', '/']).all(is_part)
}

/// Returns the major and minor version of a kernel.
fn version(kernel: &str) -> Option<(u32, u32)> {
    let mut parts = kernel.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    fn verdict(list: &Allowlist, names: &[&str], spec: Value) -> Result<(), String> {
        let mut spec = spec;
        let wanted: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        spec["securityContext"] = json!({"sysctls": wanted});
        list.check(&pod(spec))
    }

    #[test]
    fn only_safe_sysctls_are_allowed_unless_the_administrator_says_otherwise() {
        let list = Allowlist::new("6.1.0-13-amd64", &[]).unwrap();
        for (name, _) in SAFE {
            assert_eq!(verdict(&list, &[name, &name.replace('.', "/")], json!({})), Ok(()), "{name}");
        }
        for name in [
            "kernel.msgmax",
            "net.core.somaxconn",
            "net/core/somaxconn",
            "kernel.core_pattern",
            "vm.swappiness",
        ] {
            let why = format!("forbidden sysctl: {:?} not allowlisted", normalize(name));
            assert_eq!(verdict(&list, &["kernel.shm_rmid_forced", name], json!({})), Err(why));
        }
        let patterns = ["net.core.*", "kernel.msg*", "fs/mqueue/msg_max"].map(str::to_owned);
        let list = Allowlist::new("6.1", &patterns).unwrap();
        for name in ["net.core.somaxconn", "kernel.msgmax", "fs.mqueue.msg_max"] {
            assert_eq!(verdict(&list, &[name], json!({})), Ok(()), "{name}");
        }
        assert!(verdict(&list, &["fs.mqueue.queues_max"], json!({})).is_err());
    }

    #[test]
    fn sysctls_of_host_namespaces_are_refused() {
        let list = Allowlist::new("6.1", &["net.core.*".to_owned()]).unwrap();
        let refused = |name: &str, spec: Value| verdict(&list, &[name], spec).unwrap_err();
        assert_eq!(
            refused("net.ipv4.tcp_syncookies", json!({"hostNetwork": true})),
            "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"
        );
        assert!(refused("net.core.somaxconn", json!({"hostNetwork": true})).ends_with("host Net enabled"));
        assert!(refused("kernel.shm_rmid_forced", json!({"hostIPC": true})).ends_with("host IPC enabled"));
        assert_eq!(verdict(&list, &["kernel.shm_rmid_forced"], json!({"hostNetwork": true})), Ok(()));
    }

    #[test]
    fn old_kernels_have_fewer_safe_sysctls() {
        let list = Allowlist::new("4.4.302", &[]).unwrap();
        assert!(verdict(&list, &["net.ipv4.tcp_rmem"], json!({})).is_err());
        assert!(verdict(&list, &["net.ipv4.ip_local_reserved_ports"], json!({})).is_ok());
        let unknown = Allowlist::new("", &[]).unwrap();
        assert!(verdict(&unknown, &["net.ipv4.tcp_syncookies"], json!({})).is_ok());
        assert!(verdict(&unknown, &["net.ipv4.tcp_rmem"], json!({})).is_err());
    }

    #[test]
    fn invalid_patterns_are_refused() {
        let outcome = |pattern: &str| Allowlist::new("6.1", &[pattern.to_owned()]).map(drop);
        assert_eq!(outcome("vm.swappiness"), Err(PatternError::NotNamespaced("vm.swappiness".into())));
        assert_eq!(outcome("kernel.*"), Err(PatternError::NotNamespaced("kernel.".into())));
        for wrong in ["", "*", "net.*.x", "Net.core", "net..core", ".net"] {
            assert!(outcome(wrong).is_err(), "{wrong}");
        }
    }
}
