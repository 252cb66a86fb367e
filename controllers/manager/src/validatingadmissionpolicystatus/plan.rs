//! The kinds that a policy's expressions are about, and the status of the policy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicy,
};
use serde_json::{Value, json};

use crate::limits::{KINDS_OF_POLICY, KINDS_OF_RULE};
use crate::meta::{is_segment, name, uid};

/// A version of a group; the core group has the empty name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupVersion {
    pub group: String,
    pub version: String,
}

impl GroupVersion {
    /// Reads the name of an OpenAPI document: `api/v1`, `apis/apps/v1`. There are others (`apis/apps`, `version`).
    pub fn of_document(name: &str) -> Option<Self> {
        let (group, version) = match name.split('/').collect::<Vec<_>>().as_slice() {
            ["api", version] => ("", *version),
            ["apis", group, version] if is_segment(group) => (*group, *version),
            _ => return None,
        };
        is_segment(version).then(|| Self { group: group.to_owned(), version: version.to_owned() })
    }

    /// Reads the version of an object: `v1`, `apps/v1`.
    fn of_object(api_version: &str) -> Option<Self> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        (!version.contains('/')).then(|| Self { group: group.to_owned(), version: version.to_owned() })
    }

    /// Returns the version as objects have it.
    pub fn api_version(&self) -> String {
        let Self { group, version } = self;
        if group.is_empty() { version.clone() } else { format!("{group}/{version}") }
    }
}

/// A kind. The order is that of the results in a warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub of: GroupVersion,
    pub name: String,
}

/// Formats the kind as warnings name it.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.of.group, self.of.version, self.name)
    }
}

/// The kinds of resources, by version and plural.
pub(super) type Resources = BTreeMap<GroupVersion, BTreeMap<String, String>>;

/// Returns `true` if the policy has changed since its expressions were checked.
pub(super) fn is_due(policy: &ValidatingAdmissionPolicy) -> bool {
    let observed = policy.status.as_ref().and_then(|status| status.observed_generation);
    policy.metadata.generation.unwrap_or(0) > observed.unwrap_or(0)
}

/// The resources that a rule names one by one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule<'p> {
    groups: BTreeSet<&'p str>,
    versions: BTreeSet<&'p str>,
    resources: BTreeSet<&'p str>,
}

impl Rule<'_> {
    fn matches(&self, of: &GroupVersion) -> bool {
        self.groups.contains(of.group.as_str()) && self.versions.contains(of.version.as_str())
    }
}

/// Returns what the rules of a policy name. Rules with wildcards for the group or the version are left out, and so are
/// resources with wildcards, and subresources: it is not known what their objects are.
pub(super) fn rules(policy: &ValidatingAdmissionPolicy) -> Vec<Rule<'_>> {
    let constraints = policy.spec.as_ref().and_then(|spec| spec.match_constraints.as_ref());
    let rules = constraints.and_then(|constraints| constraints.resource_rules.as_ref());
    rules.into_iter().flatten().filter_map(rule).collect()
}

fn rule(rule: &NamedRuleWithOperations) -> Option<Rule<'_>> {
    let all = |list: &'_ Option<Vec<String>>, plain: fn(&str) -> bool| {
        list.as_ref().is_some_and(|list| list.iter().all(|entry| plain(entry)))
    };
    let is_exact = |entry: &str| !entry.contains('*');
    if !all(&rule.api_groups, is_exact) || !all(&rule.api_versions, is_exact) {
        return None;
    }
    let set = |list| texts(list).collect::<BTreeSet<_>>();
    let resources = texts(&rule.resources).filter(|resource| !resource.contains(['*', '/']));
    let rule = Rule {
        groups: set(&rule.api_groups),
        versions: set(&rule.api_versions),
        resources: resources.collect(),
    };
    let is_empty = rule.groups.is_empty() || rule.versions.is_empty() || rule.resources.is_empty();
    (!is_empty).then_some(rule)
}

fn texts(list: &Option<Vec<String>>) -> impl Iterator<Item = &str> {
    list.iter().flatten().map(String::as_str)
}

/// Returns the versions among those that are served whose resources the rules name.
pub(super) fn versions<'s>(
    rules: &[Rule<'_>],
    served: impl Iterator<Item = &'s GroupVersion>,
) -> Vec<&'s GroupVersion> {
    served.filter(|of| rules.iter().any(|rule| rule.matches(of))).collect()
}

/// Returns the kinds that the rules name, in order: at most ten of a rule, after which further rules do not count, as in
/// Kubernetes.
pub(super) fn kinds(rules: &[Rule<'_>], resources: &Resources) -> BTreeSet<Kind> {
    let mut found = BTreeSet::new();
    for rule in rules {
        let matching = resources.iter().filter(|(of, _)| rule.matches(of));
        let named = matching.flat_map(|(of, kinds)| {
            let kinds = rule.resources.iter().filter_map(|plural| kinds.get(*plural));
            kinds.map(|name| Kind { of: of.clone(), name: name.clone() })
        });
        let named: Vec<Kind> = named.take(KINDS_OF_RULE).collect();
        let is_last = named.len() == KINDS_OF_RULE;
        found.extend(named);
        if is_last || found.len() >= KINDS_OF_POLICY {
            break;
        }
    }
    found
}

/// Returns the kind of the policy's parameters, if it has any.
pub(super) fn params(policy: &ValidatingAdmissionPolicy) -> Option<Kind> {
    let kind = policy.spec.as_ref()?.param_kind.as_ref()?;
    let of = GroupVersion::of_object(kind.api_version.as_deref().unwrap_or_default())?;
    Some(Kind { of, name: kind.kind.clone().unwrap_or_default() })
}

/// Returns the configuration to apply to a policy: its expressions have been checked, with these warnings. With the UID
/// a new policy of the same name does not count as checked.
pub(super) fn status(policy: &ValidatingAdmissionPolicy, warnings: Vec<ExpressionWarning>) -> Value {
    let checked = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name(&policy.metadata), "uid": uid(&policy.metadata)},
        "status": {"observedGeneration": policy.metadata.generation, "typeChecking": checked}})
}
