//! One policy rule, and which requests it covers.

use serde_json::Value;

use crate::attributes::Attributes;

/// `rbac.authorization.k8s.io/v1` `PolicyRule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    /// From an element of `rules`; fields of another type count as empty.
    pub fn from_value(value: &Value) -> Self {
        let list = |key: &str| {
            let items = value[key].as_array().map(Vec::as_slice).unwrap_or_default();
            items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// Returns the rule as an element of `rules`.
    pub fn to_value(&self) -> Value {
        let mut value = serde_json::json!({"verbs": self.verbs});
        for (key, list) in [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ] {
            if !list.is_empty() {
                value[key] = serde_json::json!(list);
            }
        }
        value
    }

    /// All `rules` of a role.
    pub fn list(role: &Value) -> Vec<Self> {
        role["rules"].as_array().map(|rules| rules.iter().map(Self::from_value).collect()).unwrap_or_default()
    }

    /// Returns `true` if the rule allows the attempt.
    pub fn covers(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !attributes.is_resource {
            return self.non_resource_urls.iter().any(|url| url_covers(url, attributes.path));
        }
        has(&self.api_groups, attributes.group)
            && self.resources.iter().any(|r| resource_covers(r, attributes.resource, attributes.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == attributes.name))
    }
}

fn has(list: &[String], item: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == item)
}

/// `*`, `pods`, `pods/log`, `*/scale`.
fn resource_covers(entry: &str, resource: &str, subresource: &str) -> bool {
    if entry == "*" {
        return true;
    }
    match entry.split_once('/') {
        None => subresource.is_empty() && entry == resource,
        Some((parent, child)) => {
            !subresource.is_empty() && child == subresource && (parent == "*" || parent == resource)
        }
    }
}

/// `*`, `/healthz`, `/healthz/*`.
pub(crate) fn url_covers(entry: &str, path: &str) -> bool {
    entry == path || entry.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}
