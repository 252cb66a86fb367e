//! Answers of the API server that refuse a request.

use apiserver_meta::error_chain;
use kube::Error;

/// Returns the words of the API server if it refused, or else the error with its causes. The error's own text repeats
/// the whole status after the message.
pub fn message(error: &Error) -> String {
    match error {
        Error::Api(status) => status.message.clone(),
        other => error_chain(other),
    }
}

/// Returns whether a write was refused because its namespace is being deleted, so that nothing can be
/// created in it.
pub fn is_namespace_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
        || (status.code == 403 && status.message.contains("is being terminated"))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_namespace_termination_is_detected() {
        let refused = |code: u16, message: &str, causes: serde_json::Value| {
            let status = serde_json::json!({"code": code, "message": message, "details": {"causes": causes}});
            Error::Api(Box::new(serde_json::from_value::<Status>(status).unwrap()))
        };
        let cause = serde_json::json!([{"reason": "NamespaceTerminating", "message": "m", "field": "f"}]);
        assert!(is_namespace_terminating(&refused(403, "no", cause)));
        let none = || serde_json::json!([]);
        assert!(is_namespace_terminating(&refused(403, "unable to create: it is being terminated", none())));
        assert!(!is_namespace_terminating(&refused(403, "events is forbidden", none())));
        assert!(!is_namespace_terminating(&refused(500, "it is being terminated", none())));
    }
}
