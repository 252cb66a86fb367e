//! RuntimeClasses: the choice of the runtime handler of a pod.

use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use kube::Api;
use kubelet_cri::RuntimeHandler;

use super::Worker;
use crate::{limits, pod::spec, probe::within};

/// The runtime handler of a pod cannot be determined.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandlerError {
    #[error("failed to get sandbox runtime: cannot read RuntimeClass \"{0}\"")]
    Silence(String),
    #[error("failed to get sandbox runtime: no runtime for \"{class}\" is configured")]
    Unknown {
        class: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl Worker {
    /// Returns the runtime handler of a pod and its features.
    pub(super) async fn handler(&self, pod: &Pod) -> Result<RuntimeHandler, HandlerError> {
        let class = spec(pod).runtime_class_name.clone().unwrap_or_default();
        let name = if class.is_empty() { String::new() } else { self.handler_of(class).await? };
        Ok(RuntimeHandler { name: name.clone(), ..self.agent.runtime_status.load().handler(&name) })
    }

    async fn handler_of(&self, class: String) -> Result<String, HandlerError> {
        let api: Api<RuntimeClass> = Api::all(self.agent.client.clone());
        match within(limits::API_DEADLINE, api.get(&class)).await {
            Some(Ok(found)) => Ok(found.handler),
            Some(Err(source)) => Err(HandlerError::Unknown { class, source: Box::new(source) }),
            None => Err(HandlerError::Silence(class)),
        }
    }
}
