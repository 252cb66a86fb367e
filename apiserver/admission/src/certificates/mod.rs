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

use crate::{Operation, Phase, Plugin, Write};

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

    fn handles(&self, write: &Write<'_>, phase: Phase) -> bool {
        phase == Phase::Validate && concerns(write, "certificatesigningrequests", "approval")
    }

    async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
        approve(write, object, old(write))
    }
}

/// Demands the verb `sign` on the signer from those who issue certificates.
pub struct CertificateSigning;

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, write: &Write<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && (concerns(write, "certificatesigningrequests", "status")
                || concerns(write, "podcertificaterequests", "status"))
    }

    async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
        if write.resource.plural == "podcertificaterequests" {
            return sign_for_pod(write, object, old(write));
        }
        sign(write, object, old(write))
    }
}

/// Demands the verb `attest` on the signer from those who write its trust bundles.
pub struct ClusterTrustBundleAttest;

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, write: &Write<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && write.operation != Operation::Delete
            && write.resource.group == GROUP
            && write.resource.plural == "clustertrustbundles"
    }

    async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
        attest(write, object, old(write))
    }
}

/// Refuses requests for client certificates of the group `system:masters`.
pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, write: &Write<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && write.operation == Operation::Create
            && write.subresource.is_empty()
            && write.resource.is(GROUP, "CertificateSigningRequest")
    }

    async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
        restrict_subject(write, object)
    }
}

/// Returns true if the write updates that subresource of that kind.
fn concerns(write: &Write<'_>, plural: &str, subresource: &str) -> bool {
    write.operation == Operation::Update
        && write.resource.group == GROUP
        && write.resource.plural == plural
        && write.subresource == subresource
}

/// The object before the write; null on create.
fn old<'a>(write: &Write<'a>) -> &'a Value {
    write.old.unwrap_or(&Value::Null)
}

/// Returns whether the user may do this for the signer, by its name or by that of its domain.
fn may(write: &Write<'_>, verb: &str, signer: &str) -> bool {
    let allowed = |name: &str| {
        let attributes = Attributes::resource(write.identity, verb, GROUP, "signers");
        write.cluster.authorizer().allows(&Attributes { name, ..attributes })
    };
    let domain = signer.split('/').next().unwrap_or_default();
    allowed(signer) || allowed(&format!("{domain}/*"))
}

fn approve(write: &Write<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    // The old object is checked, so that nobody chooses another signer along with the approval.
    let signer = meta::text(old, "/spec/signerName");
    if may(write, "approve", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(write.forbidden(object, &why))
}

fn sign(write: &Write<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(old, "/spec/signerName");
    let same = |field: &str| {
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value.is_null();
        let (new, old) = (&object["status"][field], &old["status"][field]);
        new == old || (empty(new) && empty(old))
    };
    if (same("certificate") && same("conditions")) || may(write, "sign", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to sign requests with signerName {signer:?}");
    Err(write.forbidden(object, &why))
}

/// The same for a PodCertificateRequest, whose status is the signer's as a whole.
fn sign_for_pod(write: &Write<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(old, "/spec/signerName");
    if object["status"] == old["status"] || may(write, "sign", signer) {
        return Ok(());
    }
    let user = &write.identity.user;
    let why = format!("User {user:?} is not permitted to \"sign\" for signer {signer:?}");
    let error = FieldError::forbidden("spec.signerName", &why);
    Err(ApiError::invalid(GROUP, &write.resource.kind, meta::name(object), &[error]))
}

fn attest(write: &Write<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(object, "/spec/signerName");
    // The garbage collector attests nothing.
    let collected = write.operation == Operation::Update && is_collection(object, old);
    if signer.is_empty() || collected || may(write, "attest", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to attest for signerName {signer:?}");
    Err(write.forbidden(object, &why))
}

/// Returns whether a change is about owners and finalizers alone.
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

fn restrict_subject(write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
    if meta::text(object, "/spec/signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let organizations = match subject::read(meta::text(object, "/spec/request")) {
        Ok(subject) => subject.organizations,
        Err(why) => return Err(write.forbidden(object, &format!("failed to parse CSR: {why}"))),
    };
    if organizations.iter().any(|group| group == MASTERS) {
        let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
        return Err(write.forbidden(object, &why));
    }
    Ok(())
}
