//! The source ranges of a load balancer: the addresses that its clients may have.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Service;

use super::NodeView;
use super::address::{Family, range};

/// The annotation that preceded `spec.loadBalancerSourceRanges`; used if that is empty.
pub(super) const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// The source ranges of one Service.
#[derive(Debug, Default)]
pub(super) struct SourceRanges {
    /// Families of which only some addresses are admitted.
    families: Vec<Family>,
    ranges: BTreeSet<IpNetwork>,
}

impl SourceRanges {
    /// Returns the source ranges of a Service. A family without a range is not limited, and neither is one
    /// whose range is everything. If the node is admitted, so are the load balancer's addresses: the node may
    /// have one of them as its own and connect from it.
    pub(super) fn of(service: &Service, balancer: &[IpAddr], node: &NodeView) -> Self {
        let mut all = Self::default();
        if balancer.is_empty() {
            return all;
        }
        let named: Vec<_> = texts(service).iter().filter_map(|text| range(text)).collect();
        for family in Family::BOTH {
            let own: Vec<_> =
                named.iter().copied().filter(|range| Family::of(range.network()) == family).collect();
            if own.is_empty() || own.iter().any(|range| range.prefix() == 0) {
                continue;
            }
            all.families.push(family);
            if own.iter().any(|range| node.addresses.iter().any(|address| range.contains(*address))) {
                let addresses = balancer.iter().filter(|address| Family::of(**address) == family);
                all.ranges.extend(addresses.map(|address| IpNetwork::from(*address)));
            }
            all.ranges.extend(own);
        }
        all
    }

    /// Returns `true` if only some addresses of a family are admitted.
    pub(super) fn limits(&self, family: Family) -> bool {
        self.families.contains(&family)
    }

    /// Returns the ranges of the limited families, sorted.
    pub(super) fn into_sorted(self) -> Vec<IpNetwork> {
        self.ranges.into_iter().collect()
    }
}

/// Returns the ranges of the Service as text.
pub(super) fn texts(service: &Service) -> Vec<Cow<'_, str>> {
    let Some(spec) = service.spec.as_ref().filter(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
    else {
        return Vec::new();
    };
    let field = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    if !field.is_empty() {
        return field.iter().map(|text| Cow::Borrowed(text.as_str())).collect();
    }
    let annotation = service.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    let parts = annotation.into_iter().flat_map(|value| value.split(','));
    parts.map(str::trim).filter(|text| !text.is_empty()).map(Cow::Borrowed).collect()
}
