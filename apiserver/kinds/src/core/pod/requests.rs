//! The requests of a pod as a whole, computed from the requests of its containers.

use apiserver_meta::quantity;
use apiserver_meta::resources::{self, Amounts};
use apiserver_schema::validation::{items, text};
use serde_json::Value;

/// Returns the most that the containers of a pod request at one time, of the resources that a pod may request
/// as a whole (KEP-2837).
pub(crate) fn container_requests(spec: &Value) -> Amounts<'_> {
    let init_containers = items(spec, "initContainers")
        .iter()
        .map(|container| (text(container, "restartPolicy") == "Always", requests(container)));
    resources::most_at_one_time(items(spec, "containers").iter().map(requests), init_containers)
}

fn requests(container: &Value) -> Amounts<'_> {
    container["resources"]["requests"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| resources::is_pod_level(name))
        .filter_map(|(name, amount)| Some((name.as_str(), quantity::parse_value(amount).ok()?)))
        .collect()
}
