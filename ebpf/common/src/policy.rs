//! Network policies: which packets may leave a pod, and which may reach it.
//!
//! Only pods that a policy selects have an element in `POLICY_ENDPOINTS`. A packet that begins a connection is
//! judged once: `POLICY_PEERS4` or `POLICY_PEERS6` gives the class of its other end, and `POLICY_RULES` says
//! whether the pod's rules allow that class and port. The verdict is remembered in `POLICY_FLOWS`, so that
//! later packets and replies need one look-up.

/// Value of `POLICY_ENDPOINTS`, by the index of the host's end of a pod's interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The rules for packets to the pod; 0 if all are allowed.
    pub ingress: u32,
    /// The rules for packets of the pod; 0 if all are allowed.
    pub egress: u32,
    /// Index into `POLICY_NAMES`: the policies that isolate the pod, by direction.
    pub ingress_name: u32,
    pub egress_name: u32,
    /// Raised when a rule or a peer changes: verdicts of earlier generations are judged again.
    pub generation: u32,
    /// The tick since which the pod has been isolated.
    pub since: u32,
    /// Bits of [`endpoint_flag`].
    pub flags: u32,
    /// Index into `POLICY_NAMES`: the pod.
    pub pod: u32,
}

/// Bits of [`Endpoint::flags`].
pub mod endpoint_flag {
    /// It is not known yet which policies select the pod: only its node reaches it.
    pub const CLOSED: u32 = 1;
}

/// Key of `POLICY_RULES`, a trie: a rule for all ports of a protocol, or for all protocols, is a shorter
/// prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleKey {
    /// Number of significant bits of what follows.
    pub bits: u32,
    /// [`Endpoint::ingress`] or [`Endpoint::egress`].
    pub set: u32,
    /// The other end's class; [`class::ANY`] in rules for all of them.
    pub class: u32,
    /// IP protocol number.
    pub protocol: u8,
    pub reserved: u8,
    /// In the form of packets.
    pub port: u16,
}

impl RuleKey {
    /// The bits up to the class: all protocols.
    pub const ALL_PROTOCOLS: u32 = 64;
    /// The bits up to the protocol: all its ports.
    pub const ALL_PORTS: u32 = 80;
    /// All bits.
    pub const ONE_PORT: u32 = 96;
}

/// Values of `POLICY_PEERS4` and `POLICY_PEERS6`. All others are classes of addresses that the same rules
/// name.
pub mod class {
    /// In keys of rules: every address. As an address's class: no rule names it.
    pub const ANY: u32 = 0;
    /// An address of this node, to which traffic of its pods is always allowed.
    pub const NODE: u32 = 1;
}

/// Key of `POLICY_FLOWS`: a connection as the pod sees it. Addresses of IPv4 take the first word.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateKey {
    pub local: [u32; 4],
    pub remote: [u32; 4],
    pub local_port: u16,
    pub remote_port: u16,
    pub ifindex: u32,
    /// IP protocol number; with [`StateKey::FRAGMENT`], the ports are a datagram's identification.
    pub protocol: u32,
}

impl StateKey {
    pub const FRAGMENT: u32 = 1 << 8;
}

/// Value of `POLICY_FLOWS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The other end's address that was judged: the client before its address was replaced, or the backend
    /// behind a service.
    pub judged: [u32; 4],
    /// The port that was judged.
    pub port: u16,
    /// Bits of [`state_flag`].
    pub flags: u16,
    /// The verdict's [`Endpoint::generation`].
    pub generation: u32,
    /// Tick of the last packet.
    pub seen: u32,
    /// Index into `POLICY_NAMES`: the rule that allows it; 0 if the pod is not isolated in this direction.
    pub rule: u32,
}

/// Bits of [`State::flags`].
pub mod state_flag {
    /// The pod has begun the connection.
    pub const EGRESS: u16 = 1;
    /// The connection has ended, or is about to.
    pub const CLOSED: u16 = 2;
    /// A policy that came later does not allow it.
    pub const DENIED: u16 = 4;
    /// The addresses are of IPv6.
    pub const V6: u16 = 8;
}

/// Ticks after which a flow without packets is forgotten.
pub mod idle {
    pub const CONNECTION: u32 = 7_200;
    pub const CLOSED: u32 = 60;
    pub const DATAGRAM: u32 = 120;
    pub const FRAGMENT: u32 = 30;
}

/// Ticks after a pod has been isolated in which segments in the middle of an unknown connection pass if either
/// end may have begun it.
pub const GRACE: u32 = 120;

const _: () = {
    assert!(size_of::<Endpoint>() == 32);
    assert!(size_of::<RuleKey>() == 16 && core::mem::offset_of!(RuleKey, port) == 14);
    assert!(size_of::<StateKey>() == 44);
    assert!(size_of::<State>() == 32);
};
