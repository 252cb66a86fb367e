//! CertificateApproval, CertificateSigning, ClusterTrustBundleAttest and CertificateSubjectRestriction:
//! writing in a signer's name requires a verb on the signer, besides other rights to write, and nobody can
//! request a certificate that can do everything.

pub mod subject;

use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::Value;

use apiserver_auth::attributes::Attributes;
use apiserver_cache::encoding;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

const GROUP: &str = "certificates.k8s.io";
/// The signer of client certificates that the API server accepts for authentication.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

/// Demands the verb `approve` on the signer from those who approve requests.
pub struct CertificateApproval;

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Validate && concerns(request, "certificatesigningrequests", "approval")
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        approve(request, object, old(request))
    }
}

/// Demands the verb `sign` on the signer from those who issue certificates.
pub struct CertificateSigning;

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && (concerns(request, "certificatesigningrequests", "status")
                || concerns(request, "podcertificaterequests", "status"))
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        if request.resource.plural == "podcertificaterequests" {
            return sign_for_pod(request, object, old(request));
        }
        sign(request, object, old(request))
    }
}

/// Demands the verb `attest` on the signer from those who write its trust bundles.
pub struct ClusterTrustBundleAttest;

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && request.operation != Operation::Delete
            && request.resource.group == GROUP
            && request.resource.plural == "clustertrustbundles"
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        attest(request, object, old(request))
    }
}

/// Refuses requests for client certificates of the group `system:masters`.
pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && request.operation == Operation::Create
            && request.subresource.is_empty()
            && request.resource.is(GROUP, "CertificateSigningRequest")
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        restrict_subject(request, object)
    }
}

/// Returns `true` if the write updates that subresource of that kind.
fn concerns(request: &AdmissionRequest<'_>, plural: &str, subresource: &str) -> bool {
    request.operation == Operation::Update
        && request.resource.group == GROUP
        && request.resource.plural == plural
        && request.subresource == subresource
}

/// The object before the write; null on create.
fn old<'a>(request: &AdmissionRequest<'a>) -> &'a Value {
    request.old.unwrap_or(&Value::Null)
}

/// Returns `true` if the user may do this for the signer, by its name or by that of its domain.
fn may(request: &AdmissionRequest<'_>, verb: &str, signer: &str) -> bool {
    let allowed = |name: &str| {
        let attributes = Attributes::resource(request.identity, verb, GROUP, "signers");
        request.cluster.authorizer().allows(&Attributes { name, ..attributes })
    };
    let domain = signer.split('/').next().unwrap_or_default();
    allowed(signer) || allowed(&format!("{domain}/*"))
}

fn approve(request: &AdmissionRequest<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    // The old object is checked, so that nobody chooses another signer along with the approval.
    let signer = meta::text(old, "/spec/signerName");
    if may(request, "approve", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(request.forbidden(object, &why))
}

fn sign(request: &AdmissionRequest<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(old, "/spec/signerName");
    let same = |field: &str| {
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value.is_null();
        let (new, old) = (&object["status"][field], &old["status"][field]);
        new == old || (empty(new) && empty(old))
    };
    if (same("certificate") && same("conditions")) || may(request, "sign", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to sign requests with signerName {signer:?}");
    Err(request.forbidden(object, &why))
}

/// Allows only the signer to change the status of a PodCertificateRequest.
fn sign_for_pod(request: &AdmissionRequest<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(old, "/spec/signerName");
    if object["status"] == old["status"] || may(request, "sign", signer) {
        return Ok(());
    }
    let user = &request.identity.user;
    let why = format!("User {user:?} is not permitted to \"sign\" for signer {signer:?}");
    let error = FieldError::forbidden("spec.signerName", &why);
    Err(ApiError::invalid(GROUP, &request.resource.kind, meta::name(object), &[error]))
}

fn attest(request: &AdmissionRequest<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(object, "/spec/signerName");
    // The garbage collector attests nothing.
    let collected = request.operation == Operation::Update && is_collection(object, old);
    if signer.is_empty() || collected || may(request, "attest", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to attest for signerName {signer:?}");
    Err(request.forbidden(object, &why))
}

/// Returns `true` if a change is about owners and finalizers alone.
fn is_collection(new: &Value, old: &Value) -> bool {
    let mut new = new.clone();
    for field in ["ownerReferences", "finalizers", "managedFields"] {
        match old["metadata"].get(field) {
            Some(value) => meta::set(&mut new, field, value.clone()),
            None => meta::unset(&mut new, field),
        }
    }
    encoding::same(&new, old)
}

fn restrict_subject(request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
    if meta::text(object, "/spec/signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let organizations = match subject::read(meta::text(object, "/spec/request")) {
        Ok(subject) => subject.organizations,
        Err(why) => return Err(request.forbidden(object, &format!("failed to parse CSR: {why}"))),
    };
    if organizations.iter().any(|group| group == MASTERS) {
        let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
        return Err(request.forbidden(object, &why));
    }
    Ok(())
}
