//! Label selectors on typed objects.

use std::collections::BTreeMap;

use apiserver_meta::label_selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Returns `true` if a label selector matches; an absent one matches nothing, an empty one everything.
pub fn labels(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector.is_some_and(|selector| label_selector::matches(selector, labels))
}
