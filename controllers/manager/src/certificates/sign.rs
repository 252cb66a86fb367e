//! Signs approved requests for the signers of Kubernetes.

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::{Api, Client};

use super::{APPROVED, DENIED, FAILED, has, is_issued, rules};
use crate::authority::{AuthorityError, Request, Signing, lifetime};
use crate::context::{Context, Tasks};
use crate::meta::name;
use crate::{limits, patch};

/// Starts the signers, if there is an authority.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let Some(signing) = context.config.signing.clone() else { return };
    let queue = WorkQueue::new("csrsigning");
    let requests = context.informers.cache::<CertificateSigningRequest>();
    context.feed(tasks, &requests, &queue);
    let signer = Signer {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        signing,
        requests: requests.clone(),
    };
    context.start_with(tasks, queue, signer, limits::CERTIFICATE_WORKERS, async move {
        requests.synced().await;
    });
}

/// Result for a request that is to be signed.
#[derive(Debug, PartialEq, Eq)]
enum Signed {
    Certificate(String),
    /// The request is not one for its signer; contains the message of the condition.
    Refused(String),
}

struct Signer {
    client: Client,
    ambient: Ambient,
    signing: Signing,
    requests: Cache<CertificateSigningRequest>,
}

impl Reconcile for Signer {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(request) = self.requests.get(key) else { return Ok(Outcome::Done) };
        let signed = plan(&request, &self.signing, &self.ambient).map_err(|problem| Error::Unusable {
            object: format!("certificate request {}", name(&request.metadata)),
            problem,
        })?;
        let Some(signed) = signed else { return Ok(Outcome::Done) };
        let mut new = CertificateSigningRequest::clone(&request);
        let status = new.status.get_or_insert_default();
        match signed {
            Signed::Certificate(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
            Signed::Refused(message) => {
                status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
                    type_: FAILED.to_owned(),
                    status: "True".to_owned(),
                    reason: Some("SignerValidationFailure".to_owned()),
                    message: Some(message),
                    ..CertificateSigningRequestCondition::default()
                });
            }
        }
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        patch::update_status(&api, &request, &new).await?;
        Ok(Outcome::Done)
    }
}

/// Returns the answer to a request; `None` if it is not approved, is answered, or is for a signer without an authority.
fn plan(
    request: &CertificateSigningRequest,
    signing: &Signing,
    ambient: &Ambient,
) -> std::result::Result<Option<Signed>, String> {
    let ready = has(request, APPROVED) && !has(request, DENIED) && !has(request, FAILED);
    if !ready || is_issued(request) {
        return Ok(None);
    }
    let spec = &request.spec;
    let usages = spec.usages.as_deref().unwrap_or_default();
    let Some(authority) = signing.authorities.get(spec.signer_name.as_str()) else { return Ok(None) };
    let asked = Request::parse(&spec.request.0)?;
    match rules::check(&spec.signer_name, &asked, usages) {
        None => return Ok(None),
        Some(Err(why)) => return Ok(Some(Signed::Refused(why))),
        Some(Ok(())) => {}
    }
    let lifetime = lifetime(signing.duration, spec.expiration_seconds);
    match authority.sign(&asked, usages, lifetime, ambient) {
        Ok(certificate) => Ok(Some(Signed::Certificate(certificate))),
        Err(error @ AuthorityError::Usages(_)) => Ok(Some(Signed::Refused(error.to_string()))),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
#[path = "sign_tests.rs"]
mod tests;
