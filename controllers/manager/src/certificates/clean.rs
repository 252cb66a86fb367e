//! Deletes certificate requests that nobody needs any more.

use std::time::Duration;

use apiserver_client::Cache;
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Result};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tracing::warn;
use x509_parser::pem::Pem;

use super::{APPROVED, DENIED, FAILED, is_issued};
use crate::context::{Context, Tasks};
use crate::limits::CERTIFICATE_CLEAN_PERIOD;
use crate::meta::{name, only_this};

/// Time for which requests are kept once they are issued, denied or failed.
const DECIDED: Duration = Duration::from_secs(60 * 60);
/// Time for which requests are kept that nobody has approved or signed.
const PENDING: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let cleaner = Cleaner {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        requests: context.informers.cache(),
    };
    context.spawn(tasks, async move {
        cleaner.requests.synced().await;
        loop {
            cleaner.round().await;
            tokio::time::sleep(CERTIFICATE_CLEAN_PERIOD).await;
        }
    });
}

struct Cleaner {
    client: Client,
    ambient: Ambient,
    requests: Cache<CertificateSigningRequest>,
}

impl Cleaner {
    async fn round(&self) {
        let now = self.ambient.now();
        for request in self.requests.list().iter().filter(|request| is_over(request, now)) {
            if let Err(error) = self.delete(request).await {
                let cause = &error as &dyn std::error::Error;
                warn!(
                    request = name(&request.metadata),
                    error = cause,
                    "cannot delete a certificate request"
                );
            }
        }
    }

    async fn delete(&self, request: &CertificateSigningRequest) -> Result<()> {
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let name = name(&request.metadata);
        let options = only_this(&request.metadata, DeleteParams::default());
        match api.delete(name, &options).await.attempt(|| format!("delete certificate request {name}")) {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns `true` if a request can be deleted: its certificate has expired, it was issued, denied or refused a
/// while ago, or nobody has approved or signed it for long.
fn is_over(request: &CertificateSigningRequest, now: Timestamp) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_deref());
    let conditions = conditions.unwrap_or_default();
    if conditions.is_empty() {
        return is_older(request.metadata.creation_timestamp.as_ref(), PENDING, now);
    }
    conditions.iter().any(|condition| {
        let older = |age: Duration| is_older(condition.last_update_time.as_ref(), age, now);
        match condition.type_.as_str() {
            DENIED | FAILED => older(DECIDED),
            APPROVED if is_issued(request) => older(DECIDED) || has_expired(request, now),
            APPROVED => older(PENDING),
            _ => false,
        }
    })
}

fn is_older(time: Option<&Time>, age: Duration, now: Timestamp) -> bool {
    time.is_some_and(|time| now.duration_since(time.0).unsigned_abs() > age && time.0 < now)
}

fn has_expired(request: &CertificateSigningRequest, now: Timestamp) -> bool {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    let block = certificate.and_then(|pem| Pem::iter_from_buffer(&pem.0).find_map(std::result::Result::ok));
    let end = block.and_then(|block| Some(block.parse_x509().ok()?.validity().not_after.timestamp()));
    end.is_some_and(|end| end < now.as_second())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;

    use super::*;
    use crate::testing::time;

    const HOUR: i64 = 3600;

    fn request(conditions: &[(&str, i64)], certificate: Option<&str>) -> CertificateSigningRequest {
        let mut request = CertificateSigningRequest::default();
        request.metadata.creation_timestamp = time(0);
        let status = request.status.get_or_insert_default();
        status.certificate = certificate.map(|pem| ByteString(pem.as_bytes().to_vec()));
        let conditions = conditions.iter().map(|(kind, at)| CertificateSigningRequestCondition {
            type_: (*kind).to_owned(),
            last_update_time: time(*at),
            ..CertificateSigningRequestCondition::default()
        });
        status.conditions = Some(conditions.collect());
        request
    }

    #[test]
    fn requests_are_deleted_when_they_are_old_enough() {
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2000, 1, 1);
        let expired = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        let long = rcgen::CertificateParams::default();
        let long = long.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        let at = |seconds: i64| time(seconds).unwrap().0;
        for (request, later, expected) in [
            (request(&[], None), 24 * HOUR, false),
            (request(&[], None), 24 * HOUR + 1, true),
            (request(&[(APPROVED, 0)], None), 24 * HOUR, false),
            (request(&[(APPROVED, 0)], None), 24 * HOUR + 1, true),
            (request(&[(APPROVED, 0)], Some(&long)), HOUR, false),
            (request(&[(APPROVED, 0)], Some(&long)), HOUR + 1, true),
            (request(&[(DENIED, 10)], None), HOUR + 10, false),
            (request(&[(DENIED, 10)], None), HOUR + 11, true),
            (request(&[(APPROVED, HOUR * 9), (FAILED, 10)], None), HOUR + 11, true),
            (request(&[(APPROVED, 0)], Some(&expired)), 1, true),
            (request(&[(APPROVED, 0)], Some("rubbish")), 1, false),
            (request(&[("Custom", 0)], None), 48 * HOUR, false),
        ] {
            let conditions = &request.status.as_ref().unwrap().conditions;
            assert_eq!(is_over(&request, at(later)), expected, "{conditions:?} after {later} s");
        }
    }
}
