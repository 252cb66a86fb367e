//! CertificateApproval, CertificateSigning, ClusterTrustBundleAttest and CertificateSubjectRestriction:
//! writing in a signer's name requires a verb on the signer, besides other rights to write, and nobody can
//! request a certificate that can do everything.

pub(crate) mod subject;

use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use serde_json::Value;

use super::{Admission, Operation};
use crate::context::Context;
use apiserver_auth::attributes::Attributes;
use apiserver_cache::encoding;

const GROUP: &str = "certificates.k8s.io";
/// The signer of client certificates that the API server accepts for authentication.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

/// The four plugins, of which one at most concerns a write.
pub(super) fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    if admission.resource.group != GROUP || admission.operation == Operation::Delete {
        return Ok(());
    }
    let old = admission.old.unwrap_or(&Value::Null);
    match (admission.resource.plural.as_str(), admission.subresource, admission.operation) {
        ("certificatesigningrequests", "approval", Operation::Update) => approve(admission, object, old),
        ("certificatesigningrequests", "status", Operation::Update) => sign(admission, object, old),
        ("certificatesigningrequests", "", Operation::Create) => restrict_subject(admission, object),
        ("podcertificaterequests", "status", Operation::Update) => sign_for_pod(admission, object, old),
        ("clustertrustbundles", ..) => attest(admission, object, old),
        _ => Ok(()),
    }
}

/// Returns whether the user may do this for the signer, by its name or by that of its domain.
fn may(context: &Context, verb: &str, signer: &str) -> bool {
    let allowed = |name: &str| {
        let attributes = Attributes::resource(&context.identity, verb, GROUP, "signers");
        context.server.authorizer().allows(&Attributes { name, ..attributes })
    };
    let domain = signer.split('/').next().unwrap_or_default();
    allowed(signer) || allowed(&format!("{domain}/*"))
}

fn approve(admission: &Admission<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    // The old object is checked, so that nobody chooses another signer along with the approval.
    let signer = meta::text(old, "/spec/signerName");
    if may(admission.context, "approve", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(admission.forbidden(object, &why))
}

fn sign(admission: &Admission<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(old, "/spec/signerName");
    let same = |field: &str| {
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value.is_null();
        let (new, old) = (&object["status"][field], &old["status"][field]);
        new == old || (empty(new) && empty(old))
    };
    if (same("certificate") && same("conditions")) || may(admission.context, "sign", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to sign requests with signerName {signer:?}");
    Err(admission.forbidden(object, &why))
}

/// The same for a PodCertificateRequest, whose status is the signer's as a whole.
fn sign_for_pod(admission: &Admission<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(old, "/spec/signerName");
    if object["status"] == old["status"] || may(admission.context, "sign", signer) {
        return Ok(());
    }
    let user = &admission.context.identity.user;
    let why = format!("User {user:?} is not permitted to \"sign\" for signer {signer:?}");
    let error = FieldError::forbidden("spec.signerName", &why);
    Err(ApiError::invalid(GROUP, &admission.resource.kind, meta::name(object), &[error]))
}

fn attest(admission: &Admission<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let signer = meta::text(object, "/spec/signerName");
    // The garbage collector attests nothing.
    let collected = admission.operation == Operation::Update && is_collection(object, old);
    if signer.is_empty() || collected || may(admission.context, "attest", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to attest for signerName {signer:?}");
    Err(admission.forbidden(object, &why))
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

fn restrict_subject(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    if meta::text(object, "/spec/signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let organizations = match subject::read(meta::text(object, "/spec/request")) {
        Ok(subject) => subject.organizations,
        Err(why) => return Err(admission.forbidden(object, &format!("failed to parse CSR: {why}"))),
    };
    if organizations.iter().any(|group| group == MASTERS) {
        let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
        return Err(admission.forbidden(object, &why));
    }
    Ok(())
}
