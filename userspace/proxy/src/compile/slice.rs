//! What the proxy keeps of an EndpointSlice: a tenth of the object's memory. There are as many
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

/// When the pod or Service changed that made the slice change; set by the controller.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// An EndpointSlice, as far as tables depend on it.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Namespace, name and the Service's name, which is empty where there is none. None of them
    /// has a `/` in it.
    names: Box<str>,
    version: Option<NonZeroU64>,
    trigger: Option<Timestamp>,
    ports: Box<[Port]>,
    endpoints: Endpoints,
    /// Different ones only.
    hints: Box<[Hints]>,
}

/// A port that can be one.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub name: Box<str>,
    pub protocol: Protocol,
    pub number: u16,
}

/// A name that is only compared: its hash. Two that differ and hash alike are not met by chance,
/// and finding one to match a given name is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name([u8; 8]);

/// The addresses of a slice are of one family.
#[derive(Clone, Debug)]
enum Endpoints {
    V4(Box<[Packed<Ipv4Addr>]>),
    V6(Box<[Packed<Ipv6Addr>]>),
}

/// As small as it gets: there are very many.
#[derive(Clone, Copy, Debug)]
struct Packed<A> {
    address: A,
    node: Name,
    pod: Name,
    conditions: u8,
    /// Place in [`Slice::hints`], counted from 1; 0 for none.
    hints: u16,
}

/// One endpoint, unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint<'a> {
    pub address: IpAddr,
    pub node: Name,
    pub pod: Name,
    pub ready: bool,
    /// Still answers while it shuts down.
    pub draining: bool,
    pub hints: Option<&'a Hints>,
}

/// For whom an endpoint is meant. Empty where nothing is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hints {
    pub nodes: Box<[Name]>,
    pub zones: Box<[Name]>,
}

/// What can be read as a [`Slice`]: one, or the object itself.
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

    /// Of an empty name, [`Name::NONE`].
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
    /// What the object says that can be used: ports that are none and addresses of another family
    /// are left out.
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

    /// The Service that it belongs to.
    pub(crate) fn service(&self) -> Option<ObjectKey> {
        let [namespace, _, service] = self.parts();
        (!service.is_empty()).then(|| ObjectKey::new(namespace, service))
    }

    /// Whether its addresses are of IPv4; those of a slice are of one family.
    pub(crate) fn is_ipv4(&self) -> bool {
        matches!(self.endpoints, Endpoints::V4(_))
    }

    /// When the pod or Service changed that made it change.
    pub(crate) fn trigger(&self) -> Option<Timestamp> {
        self.trigger
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
    /// None where the endpoint is for everybody.
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

/// The endpoints that have an address of the family. Only the first address counts; the others
/// are deprecated equals of it.
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

/// Where the hints are, counted from 1; they are added where they are new.
fn place(hints: &mut Vec<Hints>, found: Hints) -> u16 {
    let known = hints.iter().position(|hint| *hint == found).unwrap_or_else(|| {
        hints.push(found);
        hints.len() - 1
    });
    // The apiserver allows 1000 endpoints in a slice.
    u16::try_from(known + 1).unwrap_or(0)
}

/// A slice in the order of Services, then of its own name.
pub(crate) trait ByService {
    /// Namespace, Service, name.
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
