//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use super::Worker;
use crate::{
    limits,
    probe::{http_check, pod_address},
};

impl Worker {
    /// Runs a hook for at most `limit`; the error is a message for the event.
    pub(super) async fn hook(
        &self,
        handler: &LifecycleHandler,
        container: &Container,
        id: &str,
        limit: Duration,
    ) -> Result<(), String> {
        if let Some(exec) = &handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            let output =
                self.agent.runtime.exec_sync(id, &command, limit).await.map_err(|e| e.to_string())?;
            return match output.exit_code {
                0 => Ok(()),
                code => {
                    let stderr = &output.stderr[..output.stderr.len().min(limits::PROBE_OUTPUT)];
                    Err(format!(
                        "command '{}' exited with {code}: {}",
                        command.join(" "),
                        String::from_utf8_lossy(stderr)
                    ))
                }
            };
        }
        if let Some(action) = &handler.http_get {
            let address = pod_address(&self.agent, &self.tracked);
            let check =
                http_check(action, container, &address).ok_or("the port of the hook cannot be resolved")?;
            let answer = self.agent.machine.http(&check, limit).await?;
            return if answer.status < 400 {
                Ok(())
            } else {
                Err(format!("the hook returned status {}", answer.status))
            };
        }
        if let Some(action) = &handler.sleep {
            let seconds = Duration::from_secs(action.seconds.unsigned_abs());
            tokio::time::sleep(seconds.min(limit)).await;
            return Ok(());
        }
        // `tcpSocket`, which the API accepts but kubelets do not support.
        Err("Cannot run handler: invalid handler".to_owned())
    }
}
