//! NodeRestriction: the writes that a kubelet's user may make, as far as the path of a request does not
//! decide it. The Node authorizer has allowed the request for its kind and verb; this checks its content.

mod audience;
mod labels;
mod mirror;
mod object;
mod token;

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::Value;

use crate::certificates::subject;
use apiserver_auth::authentication::node_name;
use apiserver_auth::nodes::LEASE_NAMESPACE;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Limits what the users of nodes may write.
pub struct NodeRestriction;

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        node_name(request.identity).is_some()
            && (phase == Phase::Validate) == (request.operation == Operation::Delete)
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        admit(request, object).await
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        admit(request, object).await
    }
}

/// Refuses writes that a node may not make; other users are not checked.
async fn admit(request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
    let identity = request.identity;
    let Some(node) = node_name(identity) else { return Ok(()) };
    if node.is_empty() {
        let why = format!("could not determine node from user {:?}", identity.user);
        return Err(request.forbidden(object, &why));
    }
    let checks = NodeRequest { request, node, object };
    match (request.resource.group.as_str(), request.resource.plural.as_str()) {
        ("", "pods") => checks.pod().await,
        ("", "nodes") => checks.own(),
        ("", "persistentvolumeclaims") => checks.claim(),
        ("", "serviceaccounts") => checks.token().await,
        ("certificates.k8s.io", "podcertificaterequests") => checks.pod_certificate().await,
        ("coordination.k8s.io", "leases") => checks.lease(),
        ("storage.k8s.io", "csinodes") => checks.named_as_node("CSINode"),
        ("resource.k8s.io", "resourceslices") => checks.slice(),
        ("certificates.k8s.io", "certificatesigningrequests") => checks.certificate(),
        _ => Ok(()),
    }
}

/// A write of a node.
struct NodeRequest<'a> {
    request: &'a AdmissionRequest<'a>,
    node: &'a str,
    object: &'a Value,
}

impl NodeRequest<'_> {
    fn refuse(&self, why: impl AsRef<str>) -> Result<(), ApiError> {
        Err(self.request.forbidden(self.object, why.as_ref()))
    }

    /// Returns 403 with the reason of a pure rule.
    fn check(&self, verdict: Result<(), String>) -> Result<(), ApiError> {
        verdict.or_else(|why| self.refuse(why))
    }

    fn name(&self) -> &str {
        self.request.name(self.object)
    }

    fn old(&self) -> &Value {
        self.request.old.unwrap_or(&Value::Null)
    }

    fn operation(&self) -> Operation {
        self.request.operation
    }

    async fn pod(&self) -> Result<(), ApiError> {
        let (node, operation) = (self.node, self.operation());
        match (self.request.subresource, operation) {
            ("", Operation::Create) => {
                self.check(mirror::check(self.object, node))?;
                let Some(own) = find(self.request, ("", "nodes"), "", node).await? else {
                    return Err(ApiError::not_found("", "nodes", node));
                };
                self.check(mirror::check_owner(self.object, node, meta::uid(&own)))
            }
            ("", Operation::Delete) if meta::text(self.old(), "/spec/nodeName") == node => Ok(()),
            ("", Operation::Delete) => {
                self.refuse(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            ("", operation) => self.refuse(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                operation.name()
            )),
            ("status", Operation::Update) => self.check(object::pod_status(self.object, self.old(), node)),
            ("eviction", Operation::Create) => {
                let (namespace, name) = (self.request.namespace(self.object), self.name());
                let Some(pod) = find(self.request, ("", "pods"), namespace, name).await? else {
                    return Err(ApiError::not_found("", "pods", name));
                };
                if meta::text(&pod, "/spec/nodeName") == node {
                    return Ok(());
                }
                self.refuse(format!("node {node} can only evict pods with spec.nodeName set to itself"))
            }
            ("status" | "eviction", operation) => {
                self.refuse(format!("unexpected operation {:?}", operation.name()))
            }
            (other, _) => self.refuse(format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            )),
        }
    }

    /// A Node, and its status.
    fn own(&self) -> Result<(), ApiError> {
        let (node, name) = (self.node, self.name());
        if name != node {
            return self.refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
        }
        match self.operation() {
            Operation::Create => self.check(object::new_node(self.object, node)),
            Operation::Update => self.check(object::changed_node(self.object, self.old(), node)),
            Operation::Delete => Ok(()),
        }
    }

    fn claim(&self) -> Result<(), ApiError> {
        match (self.request.subresource, self.operation()) {
            ("status", Operation::Update) => {
                self.check(object::claim_status(self.object, self.old(), self.node))
            }
            ("status", operation) => self.refuse(format!("unexpected operation {:?}", operation.name())),
            _ => self.refuse("may only update PVC status"),
        }
    }

    fn lease(&self) -> Result<(), ApiError> {
        if self.request.namespace(self.object) != LEASE_NAMESPACE {
            return self
                .refuse(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
        }
        self.named_as_node("node lease")
    }

    fn named_as_node(&self, what: &str) -> Result<(), ApiError> {
        if self.name() == self.node {
            return Ok(());
        }
        self.refuse(format!("can only access {what} with the same name as the requesting node"))
    }

    fn slice(&self) -> Result<(), ApiError> {
        let (verb, slice) = match self.operation() {
            Operation::Create => ("create", self.object),
            Operation::Delete => ("delete", self.old()),
            // The authorizer knows on which node it is, and validation that it stays there.
            Operation::Update => return Ok(()),
        };
        if slice["spec"]["nodeName"] == self.node {
            return Ok(());
        }
        self.refuse(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
    }

    fn certificate(&self) -> Result<(), ApiError> {
        let signer = meta::text(self.object, "/spec/signerName");
        if self.operation() != Operation::Create || ![SERVING_SIGNER, CLIENT_SIGNER].contains(&signer) {
            return Ok(());
        }
        let subject = match subject::read(meta::text(self.object, "/spec/request")) {
            Ok(subject) => subject,
            Err(why) => return self.refuse(format!("unable to parse csr: {why}")),
        };
        let wanted = format!("system:node:{}", self.node);
        // A signer may take any one of several names.
        if subject.common_names == [wanted.as_str()] {
            return Ok(());
        }
        self.refuse(format!("can only create a node CSR with CN={wanted}"))
    }
}

/// Another object, as the server has it now.
async fn find(
    request: &AdmissionRequest<'_>,
    (group, plural): (&str, &str),
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, ApiError> {
    let Some(kind) = request.cluster.kind(group, "v1", plural) else { return Ok(None) };
    if name.is_empty() {
        return Ok(None);
    }
    request.cluster.referred(kind, namespace, name).await
}
