//! Removal of the directory of a volume that is gone: `DELETE /localVolumes/NAME`. The API server asks for it in the
//! name of the provisioner, which has made sure that nothing is to be kept.

use http::{Method, Response, StatusCode};
use tracing::{info, warn};

use super::{Body, text};
use crate::agent::Agent;

/// Answers a request for the volume with this name. That it has no directory is a success.
pub(super) async fn serve(agent: &Agent, method: &Method, name: &str) -> Response<Body> {
    if method != Method::DELETE {
        return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    if !is_name(name) {
        return text(StatusCode::BAD_REQUEST, "no volume has this name");
    }
    // Whoever asks: files are not taken from a pod that runs.
    if agent.has_claimed(name) {
        return text(StatusCode::CONFLICT, "a pod on this node has the volume");
    }
    let Ok(_permit) = agent.removals.try_acquire() else {
        return text(
            StatusCode::TOO_MANY_REQUESTS,
            "directories of other volumes are removed, try again later",
        );
    };
    match agent.machine.remove_local_volume(name).await {
        Ok(()) => {
            info!(volume = name, "removed the directory of a volume");
            text(StatusCode::OK, "removed")
        }
        Err(error) => {
            warn!(volume = name, error = &error as &dyn std::error::Error, "cannot remove a directory");
            // The cause could reveal files of the node.
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "cannot remove the directory of the volume: see the node's log",
            )
        }
    }
}

/// Returns `true` for names that PersistentVolumes can have; none of them is a path.
fn is_name(name: &str) -> bool {
    let of_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !name.is_empty() && !name.starts_with(['.', '-']) && name.bytes().all(of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_no_names() {
        assert!(is_name("pvc-6a8f0d7e-0000-4000-8000-000000000000"));
        for name in ["", ".", "..", ".hidden", "a/b", "%2e%2e", "..%2fpods", "A", "a b", "a\0"] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
