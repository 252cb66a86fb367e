//! The request of the runtime: environment and configuration, checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::PluginError;
use crate::config::{check_mtu, pod_ranges};
use crate::limits;

/// The configuration: the members of the specification that we use, and ours.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetConf {
    pub cni_version: String,
    #[serde(rename = "type")]
    pub plugin: String,
    /// The directory that records addresses in use; absolute.
    state_dir: Option<PathBuf>,
    /// The node's podCIDRs.
    #[serde(default)]
    ranges: Vec<String>,
    mtu: Option<u32>,
    /// A pod is not started before its network policies are in force.
    #[serde(default)]
    await_policies: bool,
    /// For GC: the attachments that the runtime still knows.
    #[serde(rename = "cni.dev/valid-attachments", alias = "cni.dev/attachments")]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
}

/// One interface of one container, as GC names it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
}

/// An interface of a container.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    pub container: String,
    pub interface: String,
    /// The pod's namespace; may be gone when the pod is deleted.
    pub netns: Option<PathBuf>,
    /// UID of the pod, if the runtime tells it.
    pub pod: Option<String>,
}

/// The request of ADD, DEL and CHECK.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub version: String,
    pub attachment: Attachment,
    pub state_dir: PathBuf,
    pub ranges: Vec<IpNetwork>,
    pub mtu: u32,
    pub await_policies: bool,
}

impl NetConf {
    pub fn parse(stdin: &[u8]) -> Result<Self, PluginError> {
        serde_json::from_slice(stdin).map_err(PluginError::Decode)
    }

    pub fn state_dir(&self) -> Result<PathBuf, PluginError> {
        let wrong =
            || PluginError::Config { field: "stateDir", reason: "an absolute path is needed".to_owned() };
        self.state_dir.clone().filter(|path| path.is_absolute()).ok_or_else(wrong)
    }

    /// Returns the ranges, at least one.
    pub fn ranges(&self) -> Result<Vec<IpNetwork>, PluginError> {
        let wrong = |reason: String| PluginError::Config { field: "ranges", reason };
        let ranges = pod_ranges(&self.ranges).map_err(|error| wrong(error.to_string()))?;
        if ranges.is_empty() { Err(wrong("none is given".to_owned())) } else { Ok(ranges) }
    }

    fn mtu(&self) -> Result<u32, PluginError> {
        let mtu = self.mtu.unwrap_or(1500);
        let wrong =
            |error: crate::ConfigError| PluginError::Config { field: "mtu", reason: error.to_string() };
        check_mtu(mtu).map_err(wrong)?;
        Ok(mtu)
    }
}

impl Request {
    pub fn parse(
        environment: &BTreeMap<String, String>,
        conf: NetConf,
        with_netns: bool,
    ) -> Result<Self, PluginError> {
        Ok(Self {
            attachment: Attachment::parse(environment, with_netns)?,
            state_dir: conf.state_dir()?,
            // A pod can be deleted even if the configuration has lost its ranges.
            ranges: if with_netns { conf.ranges()? } else { Vec::new() },
            mtu: conf.mtu()?,
            await_policies: conf.await_policies,
            version: conf.cni_version,
        })
    }
}

impl Attachment {
    pub fn parse(environment: &BTreeMap<String, String>, with_netns: bool) -> Result<Self, PluginError> {
        let container = variable(environment, "CNI_CONTAINERID")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if !container.starts_with(|c: char| c.is_ascii_alphanumeric()) || !container.chars().all(allowed) {
            let reason = format!("{container:?} is not a container id");
            return Err(PluginError::Environment { variable: "CNI_CONTAINERID", reason });
        }
        let interface = variable(environment, "CNI_IFNAME")?;
        let odd = |c: char| c.is_whitespace() || matches!(c, '/' | ':');
        if interface.len() > limits::INTERFACE_BYTES
            || matches!(interface, "." | "..")
            || interface.contains(odd)
        {
            let reason = format!("{interface:?} is not the name of an interface");
            return Err(PluginError::Environment { variable: "CNI_IFNAME", reason });
        }
        let netns = match variable(environment, "CNI_NETNS") {
            Ok(path) => Some(PathBuf::from(path)),
            Err(error) if with_netns => return Err(error),
            Err(_) => None,
        };
        let pod = environment.get("CNI_ARGS").and_then(|arguments| pod_uid(arguments));
        Ok(Self { container: container.to_owned(), interface: interface.to_owned(), netns, pod })
    }
}

/// Returns the UID of the pod, which runtimes of Kubernetes tell among other arguments. It becomes part of the
/// interface's alias.
fn pod_uid(arguments: &str) -> Option<String> {
    let uid = arguments.split(';').find_map(|argument| argument.strip_prefix("K8S_POD_UID="))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (!uid.is_empty() && uid.len() <= limits::UID_BYTES && uid.chars().all(plain)).then(|| uid.to_owned())
}

/// Returns a variable that must be set and not empty.
pub(super) fn variable<'a>(
    environment: &'a BTreeMap<String, String>,
    variable: &'static str,
) -> Result<&'a str, PluginError> {
    let value = environment.get(variable).map(String::as_str).filter(|value| !value.is_empty());
    value.ok_or_else(|| PluginError::Environment { variable, reason: "is not set".to_owned() })
}
