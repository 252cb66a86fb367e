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
use tokio::time::Instant;

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

impl Operation {
    /// As metrics name it.
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update | Self::UpdateStatus => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// Counts how long a plugin takes. `kind` is `admit` or `validate`.
async fn timed(
    admission: &Admission<'_>,
    (name, kind): (&str, &str),
    work: impl Future<Output = Result<(), ApiError>>,
) -> Result<(), ApiError> {
    let began = Instant::now();
    let result = work.await;
    let (operation, took) = (admission.operation.name(), began.elapsed());
    let metrics = admission.context.server.metrics();
    if name.is_empty() {
        metrics.admission_step(operation, result.is_err(), kind, took);
    } else {
        metrics.admission_plugin(name, operation, result.is_err(), kind, took);
    }
    result
}

/// Plugins that change the object.
pub async fn mutate(admission: &Admission<'_>, object: &mut Value) -> Result<(), ApiError> {
    timed(admission, ("", "admit"), mutate_all(admission, object)).await
}

async fn mutate_all(admission: &Admission<'_>, object: &mut Value) -> Result<(), ApiError> {
    timed(admission, ("NamespaceLifecycle", "admit"), namespace::exists(admission, object)).await?;
    if admission.creates("Pod") {
        timed(admission, ("ServiceAccount", "admit"), service_account::mutate(admission, object)).await?;
        timed(admission, ("Priority", "admit"), priority::mutate(admission, object)).await?;
        tolerations::mutate(object);
    }
    if admission.operation == Operation::Update
        && admission.resource.group.is_empty()
        && admission.resource.kind == "Pod"
    {
        // Whoever replaces the pod does not name what was added to it.
        tolerations::mutate(object);
        if let Some(old) = admission.old {
            priority::keep(object, old);
        }
    }
    // MutatingAdmissionPolicy and MutatingAdmissionWebhook have their place here.
    Ok(())
}

/// Plugins that only judge.
pub async fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    timed(admission, ("", "validate"), async {
        namespace::protects(admission, object)?;
        node::validate(admission, object)?;
        rbac::validate(admission, object)?;
        priority::one_default(admission, object)?;
        // ValidatingAdmissionPolicy, ValidatingAdmissionWebhook and, last, ResourceQuota follow here.
        Ok(())
    })
    .await
}
