//! Compiles objects to tables: pure and total. Invalid parts of an object are left out and are never an
//! error: the apiserver has validated it, and one odd object must not stop the others.
//!
//! A Service listens on its cluster addresses, its node ports, the addresses of its load balancer (those with
//! `ipMode: VIP`) and, if that is switched on, its `externalIPs`; on each for traffic from inside and from
//! outside. The endpoints that receive it are chosen as kube-proxy documents:
//!
//! | address | from inside | from outside |
//! |---|---|---|
//! | cluster address | `internalTrafficPolicy` | `internalTrafficPolicy` |
//! | every other | all endpoints | `externalTrafficPolicy` |
//!
//! "All endpoints" are the ready ones that hints name for this node, else for this zone, else all ready ones,
//! else those that still serve while they terminate. Local endpoints are the ready ones on this node, else
//! those that still serve there. With none of them traffic is dropped if another node has some, and refused
//! otherwise.
//!
//! Annotations of the Service select what Kubernetes has no field for:
//!
//! | annotation | values |
//! |---|---|
//! | `hawser.dev/algorithm` | `random`, or `maglev`: by a hash of the packet's addresses and ports that is the same on all nodes. The default is `maglev` from outside for external addresses and `random` for everything else. |
//! | `hawser.dev/forwarding` | `nat` (the default), or `dsr`, `dsr-ipip`: for traffic from outside, the backend's node answers the client itself. It learns the address that the client knows from an IP option, or from an outer IP header. |
//! | `hawser.dev/weights` | A JSON object from endpoints' addresses or pods' names to 0–65535: the endpoint's share of new connections, 1 for those not named. With 0 it drains: it gets no new clients, and clients that `sessionAffinity` knows stay. If all endpoints have 0, all have the same share. |
//!
//! Other values are ignored, as are other annotations `hawser.dev/…`; [`warnings`] reports both.

mod address;
mod choices;
mod desired;
mod endpoints;
mod frontends;
mod health;
mod packed;
mod projection;
mod ranges;
mod slice;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use userspace_dataplane::tables::{ServiceTables, Tables};

pub(crate) use address::address;
pub(crate) use choices::short;
pub use choices::{Warning, warnings};
pub use desired::{Desired, Effect, Rank};
pub(crate) use endpoints::NodeNames;
pub use health::{HealthCheck, health_check};
pub use projection::ServiceProjection;
pub(crate) use slice::ByService;
pub use slice::{Slice, ToSlice};

/// The label that names the Service of an EndpointSlice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The label of a Service or slice that another proxy serves.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// The label of a Service that has no address, whatever its fields say, and of its slices.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// The condition of a Service whose load balancer address is ours to announce; its controller writes it.
const ADDRESS_ASSIGNED: &str = "hawser.dev/AddressAssigned";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The properties of a Node that tables depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `spec.nodeName` of the pods that are local.
    pub name: String,
    /// The topology zone, if the node has one.
    pub zone: Option<String>,
    /// `InternalIP` and `ExternalIP` addresses, in the order of the status.
    pub addresses: Vec<IpAddr>,
    /// Load balancers may send traffic to the node: it is not being deleted.
    pub eligible: bool,
}

impl NodeView {
    /// Returns the view of a node of which only the name is known.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), zone: None, addresses: Vec::new(), eligible: true }
    }

    /// Returns the view of an object.
    pub fn of(node: &Node) -> Self {
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            zone: node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL)).cloned(),
            addresses: addresses
                .filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"))
                .filter_map(|node| address::address(&node.address))
                .collect(),
            eligible: node.metadata.deletion_timestamp.is_none()
                && !taints.into_iter().any(|taint| taint.key == "ToBeDeletedByClusterAutoscaler"),
        }
    }

    /// Returns `true` if tables that were compiled for one are correct for the other.
    pub fn compiles_as(&self, other: &Self) -> bool {
        let Self { name, zone, addresses, eligible: _ } = self;
        (name, zone, addresses) == (&other.name, &other.zone, &other.addresses)
    }
}

/// The inputs that tables depend on besides the objects of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    pub node: NodeView,
    /// Serve `spec.externalIPs`. Everybody who may write Services can then claim any address (CVE-2020-8554),
    /// so it is off by default.
    pub external_ips: bool,
    /// Traffic to cluster addresses always takes the node's address as its source.
    pub masquerade_all: bool,
    /// Services whose endpoints on this node do not serve at the moment, which this process knows before
    /// their EndpointSlices say so. These endpoints count as terminating ones.
    pub not_serving_here: BTreeSet<ObjectKey>,
}

/// Returns the tables of one Service for this node. `slices` are those of the Service, in any order.
pub fn compile_service<'a, S: ToSlice + 'a>(
    service: &Service,
    slices: impl IntoIterator<Item = &'a S>,
    context: &Context,
) -> ServiceTables {
    if !is_ours(service) {
        return ServiceTables::default();
    }
    let (choices, _) = choices::Choices::of(service);
    let slices: Vec<Cow<'a, Slice>> = slices.into_iter().map(ToSlice::to_slice).collect();
    let slices = slices.iter().map(Cow::as_ref);
    let mut endpoints = endpoints::Endpoints::gather(slices, &choices, &context.node);
    if context.not_serving_here.contains(&ObjectKey::of(service)) {
        endpoints.drain_local();
    }
    frontends::all(service, &endpoints, &choices, context)
}

/// Returns the tables of the whole node: [`compile_service`] over all Services. If two claim the same address
/// and port, the older one gets it.
pub fn compile<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    context: &Context,
) -> Tables {
    let mut by_service: BTreeMap<ObjectKey, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in slices {
        if let Some(service) = service_of(slice) {
            by_service.entry(service).or_default().push(slice);
        }
    }
    let mut desired = Desired::default();
    for service in services {
        let key = ObjectKey::of(service);
        let slices = by_service.get(&key).map(Vec::as_slice).unwrap_or_default();
        let tables = compile_service(service, slices.iter().copied(), context);
        desired.set(&key.to_string(), rank(service), Some(tables));
    }
    desired.tables()
}

/// Returns the Service of a slice, by its label; `None` for slices whose labels exempt them from this proxy.
pub fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    if is_exempt(labels) {
        return None;
    }
    let name = labels.get(SERVICE_NAME_LABEL)?;
    Some(ObjectKey::new(slice.metadata.namespace.as_deref().unwrap_or_default(), name))
}

/// Returns `true` if the Service has an address that Hawser assigned to it and announces.
pub(crate) fn has_own_address(service: &Service) -> bool {
    let conditions = service.status.iter().flat_map(|status| status.conditions.iter().flatten());
    is_ours(service) && conditions.into_iter().any(|is| is.type_ == ADDRESS_ASSIGNED && is.status == "True")
}

/// Returns the load balancer addresses of a Service at which this proxy serves it.
pub(crate) fn balancer_addresses(service: &Service) -> Vec<IpAddr> {
    service.spec.as_ref().map(|spec| frontends::served_balancer_ips(service, spec)).unwrap_or_default()
}

/// Returns the precedence of a Service on a contested address: the older one wins.
pub fn rank(service: &Service) -> Rank {
    let created = service.metadata.creation_timestamp.as_ref();
    Rank(created.map_or(i64::MAX, |time| time.0.as_second()))
}

fn is_ours(service: &Service) -> bool {
    let external = service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
    !external && !service.metadata.labels.as_ref().is_some_and(is_exempt)
}

/// Returns `true` if a Service or slice with these labels is left to another proxy, or to none.
fn is_exempt(labels: &BTreeMap<String, String>) -> bool {
    [PROXY_NAME_LABEL, HEADLESS_LABEL].iter().any(|label| labels.contains_key(*label))
}
