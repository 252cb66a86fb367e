//! Warnings about Services and their endpoints.

use serde_json::Value;

use crate::validation::ip;
use apiserver_schema::meta;
use apiserver_schema::validation::{items, text};

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";

pub(super) fn service(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let spec = &new["spec"];
    let mut warnings = Vec::new();
    if meta::annotation(new, HINTS).is_some() {
        warnings.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    let ty = text(spec, "type");
    let headless = ty == "ClusterIP" && text(spec, "clusterIP") == "None";
    let external = items(spec, "externalIPs");
    let cluster = items(spec, "clusterIPs").iter().filter_map(Value::as_str).filter(|ip| *ip != "None");
    for (index, address) in cluster.enumerate() {
        warnings.extend(ip::address_warning(address, &format!("spec.clusterIPs[{index}]")));
    }
    if headless {
        let mut ignored = |field: &str, set: bool| {
            if set {
                warnings.push(format!("spec.{field} is ignored for headless services"));
            }
        };
        ignored("loadBalancerIP", !text(spec, "loadBalancerIP").is_empty());
        ignored("externalIPs", !external.is_empty());
        ignored("SessionAffinity", text(spec, "sessionAffinity") != "None");
    }
    for (index, address) in external.iter().filter_map(Value::as_str).enumerate() {
        warnings.extend(ip::address_warning(address, &format!("spec.externalIPs[{index}]")));
    }
    if !external.is_empty() && !headless && ty != "ExternalName" {
        warnings.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned(),
        );
    }
    warnings.extend(ip::address_warning(text(spec, "loadBalancerIP"), "spec.loadBalancerIP"));
    let ranges = items(spec, "loadBalancerSourceRanges").iter().filter_map(Value::as_str);
    for (index, range) in ranges.enumerate() {
        warnings.extend(ip::range_warnings(range.trim(), &format!("spec.loadBalancerSourceRanges[{index}]")));
    }
    if ty == "ExternalName" && !external.is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if ty != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        warnings.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned(),
        );
    }
    warnings
}

pub(super) fn endpoints(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings =
        vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()];
    for (index, subset) in items(new, "subsets").iter().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            for (number, entry) in items(subset, list).iter().enumerate() {
                let path = format!("subsets[{index}].{list}[{number}].ip");
                warnings.extend(ip::address_warning(text(entry, "ip"), &path));
            }
        }
    }
    warnings
}

pub(super) fn slice(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    if text(new, "addressType") == "FQDN" && old.is_none() {
        warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        return warnings;
    }
    for (index, endpoint) in items(new, "endpoints").iter().enumerate() {
        for (number, address) in items(endpoint, "addresses").iter().filter_map(Value::as_str).enumerate() {
            let path = format!("endpoints[{index}].addresses[{number}]");
            warnings.extend(ip::address_warning(address, &path));
        }
    }
    warnings
}
