//! Errors with the codes of the CNI specification.

use apiserver_meta::error_chain;
use serde_json::json;

use crate::ipam::IpamError;
use crate::netlink::NetlinkError;
use crate::netns::NetnsError;
use crate::sysctl::SysctlError;

/// Error codes of the specification, and ours from 100 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    IncompatibleVersion = 1,
    UnknownContainer = 3,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    /// The kernel refused an interface, an address or a route.
    Kernel = 100,
    /// CHECK found something missing or different.
    Differs = 101,
}

/// An error of the plugin.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("version {0:?} of the CNI specification is not known")]
    Version(String),
    #[error("{variable}: {reason}")]
    Environment { variable: &'static str, reason: String },
    #[error("cannot parse the configuration")]
    Decode(#[source] serde_json::Error),
    #[error("{field} in the configuration: {reason}")]
    Config { field: &'static str, reason: String },
    #[error("no address for the pod")]
    Ipam(#[from] IpamError),
    #[error("cannot work in the pod's network namespace")]
    Netns(#[from] NetnsError),
    #[error("cannot set up the pod's network")]
    Netlink(#[from] NetlinkError),
    #[error("cannot set the kernel parameters for the pod")]
    Sysctl(#[from] SysctlError),
    #[error(
        "the pod's network policies are not in force after {seconds} s: is hawser proxy running, and does it \
         reach the API server?"
    )]
    Policies { seconds: u64 },
    #[error("the pod's network has changed: {0}")]
    Differs(String),
}

impl PluginError {
    fn code(&self) -> Code {
        match self {
            Self::Version(_) => Code::IncompatibleVersion,
            Self::Environment { .. } => Code::InvalidEnvironment,
            Self::Decode(_) => Code::Decode,
            Self::Config { .. } => Code::InvalidConfig,
            Self::Ipam(IpamError::Exhausted { .. }) | Self::Policies { .. } => Code::TryAgainLater,
            Self::Ipam(_) => Code::Io,
            Self::Netns(NetnsError::Open { .. }) => Code::UnknownContainer,
            Self::Netns(_) | Self::Netlink(_) | Self::Sysctl(_) => Code::Kernel,
            Self::Differs(_) => Code::Differs,
        }
    }

    /// Returns the document for standard output.
    pub(super) fn json(&self, version: &str) -> String {
        let details = std::error::Error::source(self).map(error_chain).unwrap_or_default();
        json!({
            "cniVersion": version,
            "code": self.code() as u32,
            "msg": self.to_string(),
            "details": details,
        })
        .to_string()
    }
}
