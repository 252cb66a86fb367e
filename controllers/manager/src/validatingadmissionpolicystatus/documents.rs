//! Reads the API server's discovery and OpenAPI documents, some of which other servers behind it have written.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use apiserver_cel::Document;
use controllers_runtime::{Attempt, Error, Result};
use http::StatusCode;
use http::header::ACCEPT;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use tokio::time::timeout;
use tracing::debug;

use super::plan::{GroupVersion, Kind};
use super::schemas::{Known, Schemas};
use crate::limits::{OPENAPI_BYTES, OPENAPI_WAIT};

/// The addresses of the documents, by version.
pub(super) type Addresses = BTreeMap<GroupVersion, String>;

/// Path of the index, below which the documents are.
const INDEX: &str = "/openapi/v3";

/// The index of the documents.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    paths: BTreeMap<String, Place>,
}

#[derive(Deserialize)]
struct Place {
    #[serde(rename = "serverRelativeURL")]
    address: String,
}

/// Reads the index of the documents.
pub(super) async fn addresses(client: &Client) -> Result<Addresses> {
    let unusable = |problem: String| Error::Unusable { object: INDEX.to_owned(), problem };
    let Ok(answer) = timeout(OPENAPI_WAIT, get(client, INDEX)).await else {
        return Err(unusable("there is no answer in time".to_owned()));
    };
    let bytes = match answer? {
        Answer::Bytes(bytes) => bytes,
        // A server without documents.
        Answer::Refused(StatusCode::NOT_FOUND) => return Ok(Addresses::new()),
        Answer::Refused(status) => return Err(unusable(status.to_string())),
        Answer::TooLarge => return Err(unusable(format!("it has more than {OPENAPI_BYTES} bytes"))),
    };
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
    let of_versions = index.paths.into_iter().filter_map(|(name, Place { address })| {
        // Nothing makes this client go elsewhere.
        let is_here = address.strip_prefix(INDEX).is_some_and(|rest| rest.starts_with('/'));
        GroupVersion::of_document(&name).filter(|_| is_here).map(|of| (of, address))
    });
    Ok(of_versions.collect())
}

/// Reads the kinds of the resources of a version, by plural; none if it is not served, or its server is away.
pub(super) async fn resources(client: &Client, of: &GroupVersion) -> Result<BTreeMap<String, String>> {
    let version = of.api_version();
    let list = answered(&version, async {
        let list = if of.group.is_empty() {
            client.list_core_api_resources(&version).await
        } else {
            client.list_api_group_resources(&version).await
        };
        match list {
            Ok(list) => Ok(Some(list)),
            Err(kube::Error::Api(status)) if is_absent(status.code) => Ok(None),
            Err(error) => Err(error).attempt(|| format!("discover the resources of {version}")),
        }
    });
    let APIResourceList { resources, .. } = list.await?.unwrap_or_default();
    let own = resources.into_iter().filter(|resource| !resource.name.contains('/'));
    Ok(own.map(|resource| (resource.name, resource.kind)).collect())
}

/// Reads kinds of one version; those that the documents do not tell about are missing.
pub(super) async fn declarations(
    client: &Client,
    schemas: &Schemas,
    address: &str,
    kinds: &[&Kind],
) -> Result<Vec<Known>> {
    let known: Vec<Option<Known>> = kinds.iter().map(|kind| schemas.get(kind, address)).collect();
    if known.iter().all(Option::is_some) {
        return Ok(known.into_iter().flatten().collect());
    }
    let document = answered(address, async { document(client, address).await.map(Some) }).await?.flatten();
    let declared = |kind: &&Kind| {
        let known = document.as_ref().and_then(|document| declaration(document, kind));
        if document.is_some() {
            schemas.insert(kind, address, known.clone());
        }
        known
    };
    Ok(apiserver_cel::on_large_stack(|| kinds.iter().map(declared).collect()))
}

fn declaration(document: &Document, kind: &Kind) -> Known {
    match document.declaration(&kind.of.group, &kind.of.version, &kind.name) {
        Ok(declaration) => Some(Arc::new(declaration)),
        Err(error) => {
            debug!(%kind, error = &error as &dyn std::error::Error, "cannot resolve the schema of a kind");
            None
        }
    }
}

/// Reads a document; `None` if it is not there, its server is away, or it is not one.
async fn document(client: &Client, address: &str) -> Result<Option<Document>> {
    let bytes = match get(client, address).await? {
        Answer::Bytes(bytes) => bytes,
        Answer::Refused(status) if is_absent(status.as_u16()) => return Ok(None),
        Answer::Refused(status) => {
            return Err(Error::Unusable { object: address.to_owned(), problem: status.to_string() });
        }
        Answer::TooLarge => {
            debug!(address, bytes = OPENAPI_BYTES, "an OpenAPI document is too large");
            return Ok(None);
        }
    };
    match apiserver_cel::on_large_stack(|| Document::read(&bytes)) {
        Ok(document) => Ok(Some(document)),
        Err(error) => {
            debug!(address, %error, "cannot read an OpenAPI document");
            Ok(None)
        }
    }
}

/// Returns `true` if a refusal means that there is nothing to be read, now or at all: a server behind the API server may
/// be away for long.
fn is_absent(status: u16) -> bool {
    matches!(status, 404 | 503)
}

/// Waits for a result that another server may have to give; `None` if it does not come in time.
async fn answered<T>(what: &str, work: impl Future<Output = Result<Option<T>>>) -> Result<Option<T>> {
    match timeout(OPENAPI_WAIT, work).await {
        Ok(result) => result,
        Err(_) => {
            debug!(what, "there is no answer in time");
            Ok(None)
        }
    }
}

enum Answer {
    Bytes(Vec<u8>),
    Refused(StatusCode),
    TooLarge,
}

async fn get(client: &Client, path: &str) -> Result<Answer> {
    let unusable = |problem: String| Error::Unusable { object: path.to_owned(), problem };
    let request = http::Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
    let request = request.map_err(|error| unusable(error.to_string()))?;
    let response = client.send(request).await.attempt(|| format!("get {path}"))?;
    let status = response.status();
    if !status.is_success() {
        return Ok(Answer::Refused(status));
    }
    match Limited::new(response.into_body(), OPENAPI_BYTES).collect().await {
        Ok(body) => Ok(Answer::Bytes(body.to_bytes().into())),
        Err(error) if error.is::<LengthLimitError>() => Ok(Answer::TooLarge),
        Err(error) => Err(unusable(error.to_string())),
    }
}
