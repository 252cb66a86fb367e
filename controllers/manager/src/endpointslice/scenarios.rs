//! Plays the scenarios of EndpointSlices, of which each has room for three endpoints.

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::desired::desired;
use super::place::place;
use crate::meta::name;
use crate::slices::Action;
use crate::testing::scenario::{Scene, check, headed};

fn shown(endpoint: &Endpoint) -> String {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let flags = [
        (conditions.ready == Some(true), " ready"),
        (conditions.serving == Some(true), " serving"),
        (conditions.terminating == Some(true), " terminating"),
    ];
    let flags: String = flags.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
    let part = |word: &str, text: &Option<String>| {
        text.as_ref().map(|text| format!(" {word} {text}")).unwrap_or_default()
    };
    let hints = endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
    let hints: String = hints.map(|zone| format!(" for {}", zone.name)).collect();
    let target = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
    let (node, zone) = (part("on", &endpoint.node_name), part("in", &endpoint.zone));
    format!("{}{}{node}{zone}{hints}{flags}", endpoint.addresses.join(","), part("of", &target))
}

fn content(slice: &EndpointSlice) -> Vec<String> {
    slice.endpoints.iter().flatten().map(shown).collect()
}

fn kind(slice: &EndpointSlice) -> String {
    let ports = slice.ports.iter().flatten().map(|port| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        format!(" {} {}/{}", text(&port.name), port.port.unwrap_or_default(), text(&port.protocol))
    });
    format!("{}{}", slice.address_type, ports.collect::<String>())
}

fn planned(scene: &Scene) -> Vec<String> {
    let service: Service = scene.one("Service");
    let nodes = scene.all::<Node>("Node");
    let node = |wanted: &str| nodes.iter().find(|node| name(&node.metadata) == wanted).cloned();
    let desired = desired(&service, &scene.pods(), &node);
    let actions = place(&service, desired, scene.all("EndpointSlice"), None, 3);
    let lines = actions.into_iter().flat_map(|action| match action {
        Action::Create(slice) => {
            headed(format!("create {}", kind(&slice)), content(&slice)).collect::<Vec<_>>()
        }
        Action::Update { old, new } => {
            headed(format!("update {}: {}", name(&old.metadata), kind(&new)), content(&new)).collect()
        }
        Action::Delete(slice) => vec![format!("delete {}", name(&slice.metadata))],
    });
    lines.collect()
}

#[test]
fn scenarios_of_endpoint_slices_have_their_plans() {
    check("endpointslice/scenarios", || planned);
}
