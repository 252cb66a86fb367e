//! All built-in kinds, by group. Each kind describes itself in a file of its own: `apps/deployment.rs`.

use serde_json::Value;

use crate::kind::Kind;
use crate::{
    admissionregistration, apiextensions, apiregistration, apps, autoscaling, batch, certificates,
    coordination, core, discovery, events, flowcontrol, internal, networking, node, policy, rbac, resource,
    scheduling, storage, storagemigration,
};

/// The kinds of each group.
pub(crate) static GROUPS: &[&[&Kind]] = &[
    admissionregistration::KINDS,
    apiextensions::KINDS,
    apiregistration::KINDS,
    apps::KINDS,
    autoscaling::KINDS,
    batch::KINDS,
    certificates::KINDS,
    coordination::KINDS,
    core::KINDS,
    discovery::KINDS,
    events::KINDS,
    flowcontrol::KINDS,
    internal::KINDS,
    networking::KINDS,
    node::KINDS,
    policy::KINDS,
    rbac::KINDS,
    resource::KINDS,
    scheduling::KINDS,
    storage::KINDS,
    storagemigration::KINDS,
];

/// Returns a kind, or the defaults of every kind if it has no entry.
pub(crate) fn kind(group: &str, plural: &str) -> &'static Kind {
    static DEFAULT: Kind = Kind::DEFAULT;
    let kinds = GROUPS.iter().find(|kinds| kinds.first().is_some_and(|kind| kind.group == group));
    kinds.into_iter().copied().flatten().find(|kind| kind.plural == plural).unwrap_or(&&DEFAULT)
}

/// Returns the conditions of an object's row (`TableRowCondition`): for a pod, that it has ended, so that
/// clients can leave such rows out.
pub fn row_conditions(group: &str, plural: &str, object: &Value) -> Option<Value> {
    kind(group, plural).row_conditions?(object)
}
