//! The settings of kube-proxy that concern the machine besides services: the kernel's connection tracking,
//! which packet filters of others still use, and the process's place in the out-of-memory killer's list. Only
//! settings that the configuration names are touched.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::kube_proxy::Conntrack;
use apiserver_meta::period::Period;

/// A kernel parameter and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The path below `/proc/sys`, with slashes.
    pub name: &'static str,
    pub value: String,
}

/// A setting could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {value} to {}", path.display())]
pub struct AdjustError {
    path: PathBuf,
    value: String,
    #[source]
    cause: io::Error,
}

/// Returns the kernel parameters that the configuration asks for on a machine with this number of processors.
pub fn sysctls(conntrack: &Conntrack, processors: usize) -> Vec<Sysctl> {
    let Conntrack {
        max_per_core,
        min,
        tcp_established_timeout,
        tcp_close_wait_timeout,
        tcp_be_liberal,
        udp_timeout,
        udp_stream_timeout,
    } = conntrack;
    let number = |value: i32| u64::try_from(value).ok().filter(|value| *value > 0);
    let max = max_per_core.and_then(number).map(|each| {
        let scaled = each.saturating_mul(processors as u64);
        scaled.max(min.and_then(number).unwrap_or(0))
    });
    let seconds = |period: &Period| Some(period.whole_seconds()).filter(|s| *s > 0).map(|s| s.to_string());
    let all = [
        ("net/netfilter/nf_conntrack_max", max.map(|max| max.to_string())),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            tcp_established_timeout.as_ref().and_then(seconds),
        ),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            tcp_close_wait_timeout.as_ref().and_then(seconds),
        ),
        ("net/netfilter/nf_conntrack_tcp_be_liberal", tcp_be_liberal.then(|| "1".to_owned())),
        ("net/netfilter/nf_conntrack_udp_timeout", seconds(udp_timeout)),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", seconds(udp_stream_timeout)),
    ];
    all.into_iter().filter_map(|(name, value)| Some(Sysctl { name, value: value? })).collect()
}

/// Sets a kernel parameter. A parameter that has the value already is not written, and one that the kernel
/// lacks, because it tracks no connections, is skipped. Returns `true` if it was written.
///
/// # Errors
/// Fails if the kernel refuses; in a container, `/proc/sys` can be read-only.
pub fn set(sysctl: &Sysctl) -> Result<bool, AdjustError> {
    let path = PathBuf::from("/proc/sys").join(sysctl.name);
    write_if_other(path, &sysctl.value)
}

/// Sets this process's `oom_score_adj`, -1000 to 1000. Returns `true` if it was different.
///
/// # Errors
/// Fails if the kernel refuses: a lower value than at the start of the process takes `CAP_SYS_RESOURCE`.
pub fn set_oom_score(score: i32) -> Result<bool, AdjustError> {
    write_if_other(PathBuf::from("/proc/self/oom_score_adj"), &score.to_string())
}

fn write_if_other(path: PathBuf, value: &str) -> Result<bool, AdjustError> {
    let fail = |cause| AdjustError { path: path.clone(), value: value.to_owned(), cause };
    match fs::read_to_string(&path) {
        Ok(now) if now.trim() == value => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Ok(_) | Err(_) => {}
    }
    fs::write(&path, value).map_err(fail)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_set() {
        assert_eq!(sysctls(&Conntrack::default(), 4), []);
        let conntrack = Conntrack {
            max_per_core: Some(1000),
            min: Some(5000),
            tcp_established_timeout: Some(Period::seconds(7200)),
            tcp_be_liberal: true,
            udp_stream_timeout: Period::seconds(90),
            ..Conntrack::default()
        };
        let text = |processors| {
            let all = sysctls(&conntrack, processors);
            all.into_iter().map(|one| format!("{}={}", one.name, one.value)).collect::<Vec<_>>()
        };
        assert_eq!(
            text(4),
            [
                "net/netfilter/nf_conntrack_max=5000",
                "net/netfilter/nf_conntrack_tcp_timeout_established=7200",
                "net/netfilter/nf_conntrack_tcp_be_liberal=1",
                "net/netfilter/nf_conntrack_udp_timeout_stream=90",
            ]
        );
        assert_eq!(text(8)[0], "net/netfilter/nf_conntrack_max=8000");
        // Zero leaves the limit as it is, whatever the minimum.
        let off = Conntrack { max_per_core: Some(0), min: Some(5000), ..Conntrack::default() };
        assert_eq!(sysctls(&off, 4), []);
    }

    #[test]
    fn unchanged_sysctls_are_not_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "7\n").unwrap();
        assert!(!write_if_other(file.path().to_owned(), "7").unwrap());
        assert!(write_if_other(file.path().to_owned(), "8").unwrap());
        assert!(!write_if_other(PathBuf::from("/proc/sys/there/is/none"), "1").unwrap());
    }
}
