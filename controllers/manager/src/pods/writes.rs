//! Creations and deletions of many pods. Their answers have no more of a pod than its metadata, which is cheaper to send
//! and to read, and all that their callers need.

use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::api::core::v1;
use kube::api::{DeleteParams, PostParams};
use kube::core::{PartialObjectMeta, Request};
use kube::{Client, Error, Resource};

use super::Pod;
use crate::meta::{name, only_this};

/// Media type of metadata alone.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Requests for the pods of one namespace.
#[derive(Clone)]
pub(crate) struct Writes {
    client: Client,
    request: Request,
}

impl Writes {
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self { client: client.clone(), request: Request::new(v1::Pod::url_path(&(), Some(namespace))) }
    }

    /// Creates a pod; returns its metadata.
    pub async fn create(&self, pod: &v1::Pod) -> kube::Result<PartialObjectMeta<v1::Pod>> {
        let pod = serde_json::to_vec(pod).map_err(Error::SerdeError)?;
        let request = self.request.create(&PostParams::default(), pod).map_err(Error::BuildRequest)?;
        self.client.request(for_metadata(request)).await
    }

    /// Deletes this pod, and no other one that has its name by now.
    pub async fn delete(&self, pod: &Pod, options: DeleteParams) -> kube::Result<()> {
        let options = only_this(&pod.metadata, options);
        let request = self.request.delete(name(&pod.metadata), &options).map_err(Error::BuildRequest)?;
        self.client.request_text(for_metadata(request)).await.map(drop)
    }
}

fn for_metadata(mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    request.headers_mut().insert(ACCEPT, METADATA);
    request
}
