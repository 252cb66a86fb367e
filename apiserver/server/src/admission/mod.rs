//! Admission: what looks at, completes or refuses a write after it was decoded and before it is
//! stored. A further plugin is a module and a line in `mutate` or `validate`; the order is that of
//! Kubernetes.

mod namespace;
mod node;
mod priority;
mod rbac;
mod service_account;
mod tolerations;

use apiserver_api::error::ApiError;
use apiserver_api::registry::Resource;
use serde_json::Value;

use crate::context::Context;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    UpdateStatus,
    Delete,
}

/// A write that is judged.
pub struct Admission<'a> {
    pub context: &'a Context,
    pub resource: &'a Resource,
    pub operation: Operation,
    /// The object before; `None` on create.
    pub old: Option<&'a Value>,
}

impl Admission<'_> {
    /// Whether the write creates an object of this core kind.
    fn creates(&self, kind: &str) -> bool {
        self.operation == Operation::Create && self.resource.group.is_empty() && self.resource.kind == kind
    }
}

/// Plugins that change the object.
pub async fn mutate(admission: &Admission<'_>, object: &mut Value) -> Result<(), ApiError> {
    namespace::exists(admission, object).await?;
    if admission.creates("Pod") {
        service_account::mutate(admission, object).await?;
        priority::mutate(admission, object).await?;
        tolerations::mutate(object);
    }
    if admission.operation == Operation::Update
        && admission.resource.group.is_empty()
        && admission.resource.kind == "Pod"
    {
        // Whoever replaces the list does not name what was added to it.
        tolerations::mutate(object);
    }
    // MutatingAdmissionPolicy and MutatingAdmissionWebhook have their place here.
    Ok(())
}

/// Plugins that only judge.
pub async fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    namespace::protects(admission, object)?;
    node::validate(admission, object)?;
    rbac::validate(admission, object)?;
    // ValidatingAdmissionPolicy, ValidatingAdmissionWebhook and, last, ResourceQuota follow here.
    Ok(())
}
