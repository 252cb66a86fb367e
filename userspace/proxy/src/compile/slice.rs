//! The part of an EndpointSlice that the proxy retains: a tenth of the object's memory. There are as many
//! endpoints as pods in the cluster, and every node holds them all.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;

use apiserver_client::{ObjectKey, Projection};
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::{self, EndpointSlice};
use userspace_dataplane::tables::Protocol;

use super::address::address;
use super::endpoints::protocol;

/// The annotation with the time at which a pod or Service changed and thereby the slice; set by the
/// controller.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The part of an EndpointSlice that tables depend on.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Namespace, name and the Service's name, which is empty if there is none. None of them contains a `/`.
    names: Box<str>,
    version: Option<NonZeroU64>,
    trigger: Option<Timestamp>,
    ports: Box<[Port]>,
    endpoints: Endpoints,
    /// The distinct hints of the endpoints.
    hints: Box<[Hints]>,
}

/// A valid port.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub name: Box<str>,
    pub protocol: Protocol,
    pub number: u16,
}

/// A name that is only compared, as its hash. Collisions do not occur by chance, and finding a name that
/// collides with a given one is infeasible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name([u8; 8]);

/// The endpoints, whose addresses are of one family.
#[derive(Clone, Debug)]
enum Endpoints {
    V4(Box<[Packed<Ipv4Addr>]>),
    V6(Box<[Packed<Ipv6Addr>]>),
}

/// An endpoint in as little memory as possible: there are very many.
#[derive(Clone, Copy, Debug)]
struct Packed<A> {
    address: A,
    node: Name,
    pod: Name,
    conditions: u8,
    /// Index into [`Slice::hints`], counted from 1; 0 for none.
    hints: u16,
}

/// One endpoint, unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint<'a> {
    pub address: IpAddr,
    pub node: Name,
    pub pod: Name,
    pub ready: bool,
    /// The endpoint still serves while it terminates.
    pub draining: bool,
    pub hints: Option<&'a Hints>,
}

/// The nodes and zones that an endpoint is meant for. Empty if there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hints {
    pub nodes: Box<[Name]>,
    pub zones: Box<[Name]>,
}

/// A type that can be read as a [`Slice`]: a slice, or the object itself.
pub trait ToSlice {
    fn to_slice(&self) -> Cow<'_, Slice>;
}

impl ToSlice for Slice {
    fn to_slice(&self) -> Cow<'_, Slice> {
        Cow::Borrowed(self)
    }
}

impl ToSlice for EndpointSlice {
    fn to_slice(&self) -> Cow<'_, Slice> {
        Cow::Owned(Slice::of(self))
    }
}

const READY: u8 = 1;
const DRAINING: u8 = 2;

impl Name {
    pub const NONE: Self = Self([0; 8]);

    /// Returns the hash of a name; [`Name::NONE`] for the empty one.
    pub fn of(name: &str) -> Self {
        if name.is_empty() {
            return Self::NONE;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish().max(1).to_ne_bytes())
    }
}

impl Slice {
    /// Reads the valid parts of an object: invalid ports and addresses of another family are left out.
    pub fn of(object: &EndpointSlice) -> Self {
        let meta = &object.metadata;
        let service = super::service_of(object).map(|service| service.name);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let names = [text(&meta.namespace), text(&meta.name), service.unwrap_or_default()].join("/");
        let trigger = meta.annotations.as_ref().and_then(|all| all.get(TRIGGER_TIME)?.parse().ok());
        let mut hints = Vec::new();
        let endpoints = object.endpoints.as_deref().unwrap_or_default();
        let endpoints = match object.address_type.as_str() {
            "IPv4" => Endpoints::V4(pack(endpoints, &mut hints, |address| match address {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            })),
            "IPv6" => Endpoints::V6(pack(endpoints, &mut hints, |address| match address {
                IpAddr::V4(_) => None,
                IpAddr::V6(address) => Some(address),
            })),
            _ => Endpoints::V4(Box::default()),
        };
        Self {
            names: names.into_boxed_str(),
            version: meta.resource_version.as_ref().and_then(|version| version.parse().ok()),
            trigger,
            ports: object.ports.iter().flatten().filter_map(Port::of).collect(),
            endpoints,
            hints: hints.into_boxed_slice(),
        }
    }

    /// Returns the Service that the slice belongs to.
    pub(crate) fn service(&self) -> Option<ObjectKey> {
        let [namespace, _, service] = self.parts();
        (!service.is_empty()).then(|| ObjectKey::new(namespace, service))
    }

    /// Returns `true` if the addresses are IPv4; those of a slice are of one family.
    pub(crate) fn is_ipv4(&self) -> bool {
        matches!(self.endpoints, Endpoints::V4(_))
    }

    /// Returns the time of the change of a pod or Service that changed the slice.
    pub(crate) fn trigger(&self) -> Option<Timestamp> {
        self.trigger
    }

    /// Returns the addresses of endpoints that are no pods, such as sockets of nodes.
    pub(crate) fn without_pods(&self) -> impl Iterator<Item = IpAddr> {
        self.endpoints().filter(|endpoint| endpoint.pod == Name::NONE).map(|endpoint| endpoint.address)
    }

    /// Returns protocol and number of the ports with one of these names.
    pub(crate) fn ports_named(&self, names: &[&str]) -> impl Iterator<Item = (Protocol, u16)> {
        let named = self.ports.iter().filter(|port| names.contains(&&*port.name));
        named.map(|port| (port.protocol, port.number))
    }

    pub(super) fn ports(&self) -> &[Port] {
        &self.ports
    }

    pub(super) fn endpoints(&self) -> impl Iterator<Item = Endpoint<'_>> {
        let (v4, v6) = match &self.endpoints {
            Endpoints::V4(all) => (&**all, [].as_slice()),
            Endpoints::V6(all) => ([].as_slice(), &**all),
        };
        let v4 = v4.iter().map(|packed| packed.unpack(&self.hints));
        v4.chain(v6.iter().map(|packed| packed.unpack(&self.hints)))
    }

    fn parts(&self) -> [&str; 3] {
        let mut parts = self.names.splitn(3, '/');
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    }
}

impl Projection for Slice {
    type Object = EndpointSlice;

    fn project(object: EndpointSlice) -> Self {
        Self::of(&object)
    }

    fn names(&self) -> (&str, &str) {
        let [namespace, name, _] = self.parts();
        (namespace, name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

impl Port {
    fn of(port: &v1::EndpointPort) -> Option<Self> {
        let number = u16::try_from(port.port?).ok().filter(|number| *number != 0)?;
        let protocol = protocol(port.protocol.as_deref())?;
        Some(Self { name: port.name.clone().unwrap_or_default().into_boxed_str(), protocol, number })
    }
}

impl Hints {
    /// Returns the hints of an endpoint; `None` if it has none.
    fn of(endpoint: &v1::Endpoint) -> Option<Self> {
        let hints = endpoint.hints.as_ref()?;
        let nodes: Box<[Name]> = hints.for_nodes.iter().flatten().map(|node| Name::of(&node.name)).collect();
        let zones: Box<[Name]> = hints.for_zones.iter().flatten().map(|zone| Name::of(&zone.name)).collect();
        (!nodes.is_empty() || !zones.is_empty()).then_some(Self { nodes, zones })
    }
}

impl<A: Copy + Into<IpAddr>> Packed<A> {
    fn unpack<'a>(&self, hints: &'a [Hints]) -> Endpoint<'a> {
        Endpoint {
            address: self.address.into(),
            node: self.node,
            pod: self.pod,
            ready: self.conditions & READY != 0,
            draining: self.conditions & DRAINING != 0,
            hints: usize::from(self.hints).checked_sub(1).and_then(|place| hints.get(place)),
        }
    }
}

/// Packs the endpoints that have an address of the family. Only the first address counts; the others are
/// deprecated equivalents.
fn pack<A>(
    endpoints: &[v1::Endpoint],
    hints: &mut Vec<Hints>,
    family: impl Fn(IpAddr) -> Option<A>,
) -> Box<[Packed<A>]> {
    let one = |endpoint: &v1::Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        let says = |condition: Option<Option<bool>>, default| condition.flatten().unwrap_or(default);
        let ready = says(conditions.map(|is| is.ready), true);
        let draining =
            says(conditions.map(|is| is.serving), true) && says(conditions.map(|is| is.terminating), false);
        let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
        Some(Packed {
            address: family(address(endpoint.addresses.first()?)?)?,
            node: Name::of(endpoint.node_name.as_deref().unwrap_or_default()),
            pod: Name::of(pod.and_then(|pod| pod.name.as_deref()).unwrap_or_default()),
            conditions: u8::from(ready) * READY + u8::from(draining) * DRAINING,
            hints: Hints::of(endpoint).map_or(0, |found| place(hints, found)),
        })
    };
    endpoints.iter().filter_map(one).collect()
}

/// Returns the index of the hints, counted from 1; new ones are added.
fn place(hints: &mut Vec<Hints>, found: Hints) -> u16 {
    let known = hints.iter().position(|hint| *hint == found).unwrap_or_else(|| {
        hints.push(found);
        hints.len() - 1
    });
    // The apiserver allows 1000 endpoints in a slice.
    u16::try_from(known + 1).unwrap_or(0)
}

/// A slice that is ordered by Service, then by its own name.
pub(crate) trait ByService {
    /// Returns namespace, Service and name.
    fn place(&self) -> (&str, &str, &str);
}

impl ByService for Slice {
    fn place(&self) -> (&str, &str, &str) {
        let [namespace, name, service] = self.parts();
        (namespace, service, name)
    }
}

impl ByService for (&str, &str, &str) {
    fn place(&self) -> (&str, &str, &str) {
        *self
    }
}

impl PartialEq for dyn ByService + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn ByService + '_ {}

impl PartialOrd for dyn ByService + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn ByService + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}
