//! Devices for pods that request resources instead of claiming devices (KEP-5004).

use std::collections::{BTreeMap, BTreeSet};

use apiserver_meta::quantity;
use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceRequest, ExactDeviceRequest};

use crate::cluster::DeviceClasses;

/// The annotation of the claim that a scheduler makes for a pod's resources.
pub const CLAIM_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// The requests of a claim for resources, and which container has what of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    pub requests: Vec<DeviceRequest>,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// A container of a pod. Init containers come first.
struct Place<'a> {
    index: usize,
    container: &'a Container,
    /// It ends before the next one starts.
    is_short: bool,
}

/// A request of a container for devices.
struct Own {
    name: String,
    count: i64,
}

impl Place<'_> {
    fn mapping(&self, resource: &str, request: &str) -> ContainerExtendedResourceRequest {
        ContainerExtendedResourceRequest {
            container_name: self.container.name.clone(),
            resource_name: resource.to_owned(),
            request_name: request.to_owned(),
        }
    }

    /// Returns the container's request for a resource beyond what it can take from later containers, which start when it has
    /// ended; and what it takes from where.
    fn request(
        &self,
        resource: &str,
        later: &[Option<Own>],
    ) -> (Option<Own>, Vec<ContainerExtendedResourceRequest>) {
        let mut mappings = Vec::new();
        let requests = self.container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let amount = requests.and_then(|requests| quantity::read(requests.get(resource)?));
        let amount = amount.filter(|amount| amount.is_integer()).map_or(0, quantity::Quantity::value);
        let (Some(requests), true) = (requests, amount != 0) else { return (None, mappings) };
        let mut sum = 0_i64;
        for other in later.iter().flatten() {
            sum = sum.saturating_add(other.count);
            mappings.push(self.mapping(resource, &other.name));
            if sum >= amount {
                return (None, mappings);
            }
        }
        let place = requests.keys().position(|name| name == resource).unwrap_or_default();
        let name = format!("container-{}-request-{place}", self.index);
        mappings.push(self.mapping(resource, &name));
        (Some(Own { name, count: amount.saturating_sub(sum) }), mappings)
    }
}

fn places(spec: &PodSpec) -> Vec<Place<'_>> {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let all = init.iter().chain(&spec.containers).enumerate();
    let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    let place = |(index, container): (usize, _)| Place {
        index,
        container,
        is_short: index < init.len() && !is_sidecar(container),
    };
    all.map(place).collect()
}

/// Returns the requests for these resources of a pod.
pub fn serve<'a>(
    spec: &PodSpec,
    resources: impl Iterator<Item = &'a str>,
    classes: &DeviceClasses,
) -> Served {
    let places = places(spec);
    let mut served = Served::default();
    for resource in resources.collect::<BTreeSet<_>>() {
        let Some(class) = classes.serving(resource) else { continue };
        let class = class.metadata.name.as_deref().unwrap_or_default();
        let (requests, mappings) = serve_one(&places, resource);
        served.requests.extend(requests.into_iter().map(|own| request(own, class)));
        served.mappings.extend(mappings);
    }
    served.requests.sort_by(|a, b| a.name.cmp(&b.name));
    served
}

/// Returns the requests for one resource. Containers that end before others start have the largest of their requests in
/// common.
fn serve_one(places: &[Place<'_>], resource: &str) -> (Vec<Own>, Vec<ContainerExtendedResourceRequest>) {
    let mut mappings = Vec::new();
    let mut long: Vec<Option<Own>> = Vec::new();
    for place in places {
        let own = if place.is_short {
            None
        } else {
            let (own, more) = place.request(resource, &[]);
            mappings.extend(more);
            own
        };
        long.push(own);
    }
    let (mut short, mut of_short) = (BTreeMap::new(), Vec::new());
    let mut largest: Option<Own> = None;
    for place in places.iter().filter(|place| place.is_short) {
        let (own, more) = place.request(resource, &long[place.index..]);
        of_short.extend(more);
        let Some(own) = own else { continue };
        short.insert(own.name.clone(), own.count);
        if largest.as_ref().is_none_or(|largest| largest.count < own.count) {
            largest = Some(own);
        }
    }
    if let Some(largest) = &largest {
        for mapping in of_short.iter_mut().filter(|mapping| short.contains_key(&mapping.request_name)) {
            mapping.request_name.clone_from(&largest.name);
        }
    }
    mappings.extend(of_short);
    (largest.into_iter().chain(long.into_iter().flatten()).collect(), mappings)
}

fn request(own: Own, class: &str) -> DeviceRequest {
    let exactly = ExactDeviceRequest {
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(own.count),
        device_class_name: class.to_owned(),
        ..ExactDeviceRequest::default()
    };
    DeviceRequest { name: own.name, exactly: Some(exactly), first_available: None }
}
