//! Admission: checks and changes of a write after it was decoded and before it is stored. A further plugin is
//! a module and a line in `mutate` or `validate`; the order is that of Kubernetes.

pub(crate) mod certificates;
mod namespace;
mod node;
mod node_taint;
mod priority;
mod rbac;
mod runtime_class;
mod service_account;
mod storage_protection;
mod tolerations;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;
use tokio::time::Instant;

use crate::context::Context;

/// The operation that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// A write that is judged.
pub struct Admission<'a> {
    pub context: &'a Context,
    pub resource: &'a Resource,
    /// `status`, `approval`, `eviction`, …; empty for the object itself.
    pub subresource: &'a str,
    pub operation: Operation,
    /// The object before; `None` on create.
    pub old: Option<&'a Value>,
}

impl Admission<'_> {
    /// Returns whether the write is about an object of this core kind itself.
    fn is(&self, operation: Operation, kind: &str) -> bool {
        let (resource, whole) = (self.resource, self.subresource.is_empty());
        self.operation == operation && whole && resource.group.is_empty() && resource.kind == kind
    }

    /// The name of the object that is written; empty if it is still to be generated. What is sent to a
    /// subresource may not repeat it.
    fn name<'b>(&'b self, object: &'b Value) -> &'b str {
        if self.subresource.is_empty() { meta::name(object) } else { &self.context.info.name }
    }

    /// The namespace of the object that is written, likewise.
    fn namespace<'b>(&'b self, object: &'b Value) -> &'b str {
        if self.subresource.is_empty() { meta::namespace(object) } else { &self.context.info.namespace }
    }

    /// 403.
    fn forbidden(&self, object: &Value, why: &str) -> ApiError {
        let Resource { group, plural, .. } = self.resource;
        ApiError::forbidden(group, plural, shown_name(object, self.name(object)), why)
    }
}

/// Returns the name under which an object is reported that is refused before it has a name.
pub(crate) fn shown_name<'a>(object: &'a Value, name: &'a str) -> &'a str {
    match (name, meta::generate_name(object)) {
        ("", "") => "Unknown",
        ("", base) => base,
        (name, _) => name,
    }
}

impl Operation {
    /// Returns the operation's name in metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
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

/// Judges an object that is sent to a subresource, and is not stored but carried out: a Binding, an Eviction, a
/// request for a token.
pub async fn order(
    context: &Context,
    resource: &Resource,
    subresource: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let admission = Admission { context, resource, subresource, operation: Operation::Create, old: None };
    let mut object = object.clone();
    mutate(&admission, &mut object).await?;
    validate(&admission, &object).await
}

/// Plugins that change the object, and those that judge it before it is changed.
pub async fn mutate(admission: &Admission<'_>, object: &mut Value) -> Result<(), ApiError> {
    timed(admission, ("", "admit"), mutate_all(admission, object)).await
}

async fn mutate_all(admission: &Admission<'_>, object: &mut Value) -> Result<(), ApiError> {
    timed(admission, ("NamespaceLifecycle", "admit"), namespace::exists(admission, object)).await?;
    let new_pod = admission.is(Operation::Create, "Pod");
    if new_pod {
        let named = Box::pin(service_account::mutate(admission, object));
        timed(admission, ("ServiceAccount", "admit"), named).await?;
    }
    timed(admission, ("NodeRestriction", "admit"), Box::pin(node::admit(admission, object))).await?;
    if admission.is(Operation::Create, "Node") {
        node_taint::mutate(object);
    }
    if new_pod {
        timed(admission, ("Priority", "admit"), priority::mutate(admission, object)).await?;
        tolerations::mutate(object);
    }
    if admission.is(Operation::Update, "Pod") {
        // A client that replaces the pod does not repeat the fields that were added to it.
        tolerations::mutate(object);
        if let Some(old) = admission.old {
            priority::keep(object, old);
        }
    }
    if admission.operation == Operation::Create && admission.subresource.is_empty() {
        storage_protection::mutate(admission.resource, object);
    }
    if new_pod {
        let merged = Box::pin(runtime_class::mutate(admission, object));
        timed(admission, ("RuntimeClass", "admit"), merged).await?;
    }
    // MutatingAdmissionPolicy and MutatingAdmissionWebhook have their place here.
    Ok(())
}

/// Plugins that only judge.
pub async fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    timed(admission, ("", "validate"), async {
        namespace::protects(admission, object)?;
        if admission.operation == Operation::Delete {
            Box::pin(node::admit(admission, object)).await?;
        }
        if admission.is(Operation::Create, "Pod") {
            let judged = Box::pin(runtime_class::validate(admission, object));
            timed(admission, ("RuntimeClass", "validate"), judged).await?;
        }
        certificates::validate(admission, object)?;
        rbac::validate(admission, object)?;
        priority::one_default(admission, object)?;
        // ValidatingAdmissionPolicy, ValidatingAdmissionWebhook and, last, ResourceQuota follow here.
        Ok(())
    })
    .await
}
