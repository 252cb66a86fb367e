//! Names of the programs, and their hooks.

/// The programs, by the hooks that they are attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    Connect4,
    Connect6,
    Sendmsg4,
    Sendmsg6,
    Recvmsg4,
    Recvmsg6,
    Getpeername4,
    Getpeername6,
    Bind4,
    Bind6,
    /// A socket is closed.
    Release,
    /// tcx ingress of an uplink.
    UplinkIngress,
    /// tcx ingress of the host's end of a pod's interface.
    PodIngress,
    /// tcx egress of either.
    Egress,
    /// XDP of an uplink.
    UplinkXdp,
}

impl Program {
    pub const ALL: [Self; 15] = [
        Self::Connect4,
        Self::Connect6,
        Self::Sendmsg4,
        Self::Sendmsg6,
        Self::Recvmsg4,
        Self::Recvmsg6,
        Self::Getpeername4,
        Self::Getpeername6,
        Self::Bind4,
        Self::Bind6,
        Self::Release,
        Self::UplinkIngress,
        Self::PodIngress,
        Self::Egress,
        Self::UplinkXdp,
    ];

    /// Returns the name of the program in the object.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect4 => "connect4",
            Self::Connect6 => "connect6",
            Self::Sendmsg4 => "sendmsg4",
            Self::Sendmsg6 => "sendmsg6",
            Self::Recvmsg4 => "recvmsg4",
            Self::Recvmsg6 => "recvmsg6",
            Self::Getpeername4 => "getpeername4",
            Self::Getpeername6 => "getpeername6",
            Self::Bind4 => "bind4",
            Self::Bind6 => "bind6",
            Self::Release => "release",
            Self::UplinkIngress => "uplink_ingress",
            Self::PodIngress => "pod_ingress",
            Self::Egress => "egress",
            Self::UplinkXdp => "uplink_xdp",
        }
    }

    /// Returns the program of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|program| program.name() == name)
    }

    /// Returns the kernel's `enum bpf_attach_type`.
    pub fn attach_type(self) -> u32 {
        match self {
            Self::Connect4 => 10,
            Self::Connect6 => 11,
            Self::Sendmsg4 => 14,
            Self::Sendmsg6 => 15,
            Self::Recvmsg4 => 19,
            Self::Recvmsg6 => 20,
            Self::Getpeername4 => 29,
            Self::Getpeername6 => 30,
            Self::Bind4 => 8,
            Self::Bind6 => 9,
            Self::Release => 34,
            Self::UplinkIngress | Self::PodIngress => 46,
            Self::Egress => 47,
            Self::UplinkXdp => 37,
        }
    }

    /// Returns `true` if the program belongs on a cgroup, not on an interface.
    pub fn on_cgroup(self) -> bool {
        self <= Self::Release
    }
}
