//! Objects to tables: pure and total. What an object says wrongly is left out, never an error:
//! the apiserver has validated it, and one odd object may not stop the others.
//!
//! A Service listens on its cluster addresses, its node ports, the addresses of its load balancer
//! (those with `ipMode: VIP`) and, if that is switched on, its `externalIPs`; on each for traffic
//! from inside and from outside. Who gets it is decided as kube-proxy documents it:
//!
//! | address | from inside | from outside |
//! |---|---|---|
//! | cluster address | `internalTrafficPolicy` | `internalTrafficPolicy` |
//! | every other | all endpoints | `externalTrafficPolicy` |
//!
//! "All endpoints" are the ready ones that hints name for this node, else for this zone, else all
//! ready ones, else those that still serve while they terminate. Local endpoints are the ready
//! ones on this node, else those that still serve there. With none of them traffic is dropped if
//! another node has some, and refused otherwise.
//!
//! What Kubernetes has no field for is chosen by annotations of the Service:
//!
//! | annotation | values |
//! |---|---|
//! | `hawser.dev/algorithm` | `random`, or `maglev`: by a hash of the packet's ends that all nodes compute alike. Without it `maglev` from outside for addresses that are for the outside, `random` for all else. |
//! | `hawser.dev/forwarding` | `nat` (the default), or `dsr`, `dsr-ipip`: for traffic from outside, the backend's node answers the client itself. It learns the address that the client knows from an IP option, or from an outer IP header. |
//! | `hawser.dev/weights` | A JSON object from endpoints' addresses or pods' names to 0–65535: the endpoint's share of new connections, 1 for those not named. With 0 it drains: nobody new comes, clients that `sessionAffinity` knows stay. Where no endpoint has a share, all have the same. |
//!
//! Values that are none of these are left out, and [`warnings`] says so; so it does of annotations
//! `hawser.dev/…` that are none of these.

mod address;
mod choices;
mod desired;
mod endpoints;
mod frontends;
mod health;
mod kept;
mod packed;
mod ranges;
mod slice;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use userspace_dataplane::tables::{ServiceTables, Tables};

pub use choices::{Warning, warnings};
pub use desired::{Desired, Effect, Rank};
pub use health::{HealthCheck, health_check};
pub use kept::KeptService;
pub(crate) use slice::ByService;
pub use slice::{Slice, ToSlice};

/// The Service that an EndpointSlice belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// A Service with this label is somebody else's to proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// A Service with this label has no address, whatever its fields say.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// What of a Node matters for tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `spec.nodeName` of the pods that are local.
    pub name: String,
    /// The topology zone, if the node has one.
    pub zone: Option<String>,
    /// `InternalIP` and `ExternalIP` addresses, in the order of the status.
    pub addresses: Vec<IpAddr>,
    /// Load balancers outside may send traffic here: the node is not being deleted.
    pub eligible: bool,
}

impl NodeView {
    /// A node of which nothing but the name is known yet.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), zone: None, addresses: Vec::new(), eligible: true }
    }

    /// What the object says.
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

    /// Whether what was compiled for the one is right for the other.
    pub fn compiles_as(&self, other: &Self) -> bool {
        let Self { name, zone, addresses, eligible: _ } = self;
        (name, zone, addresses) == (&other.name, &other.zone, &other.addresses)
    }
}

/// What tables depend on besides the objects of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    pub node: NodeView,
    /// Serve `spec.externalIPs`. Whoever may write Services can then claim any address
    /// (CVE-2020-8554), so it is off unless asked for.
    pub external_ips: bool,
    /// Traffic to cluster addresses always takes the node's address as its source.
    pub masquerade_all: bool,
}

/// What one Service puts into the tables of the node. `slices` are those that belong to it, in
/// any order.
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
    let endpoints = endpoints::Endpoints::gather(slices.iter().map(Cow::as_ref), &choices, &context.node);
    frontends::all(service, &endpoints, &choices, context)
}

/// The tables of the whole node: [`compile_service`] over all Services, and where two claim one
/// address and port, the older one has it.
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

/// Which Service a slice belongs to, by its label.
pub fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
    Some(ObjectKey::new(slice.metadata.namespace.as_deref().unwrap_or_default(), name))
}

/// Who wins a contested address: the older Service.
pub fn rank(service: &Service) -> Rank {
    let created = service.metadata.creation_timestamp.as_ref();
    Rank(created.map_or(i64::MAX, |time| time.0.as_second()))
}

fn is_ours(service: &Service) -> bool {
    let labelled = |label| service.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
    let external = service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
    !external && !labelled(PROXY_NAME_LABEL) && !labelled(HEADLESS_LABEL)
}
