//! Check that the contents of a store can be read here: for `hawser store verify` on the etcd of a cluster
//! that others wrote.

use apiserver_schema::protobuf;
use apiserver_schema::protobuf::Malformed;
use apiserver_store::embedded::Problem;

use apiserver_cache::encoding;
use apiserver_cache::encoding::Unreadable;

const REWRITE: &str = "with a Kubernetes that serves this version and a newer one, write the object once more \
                       (`kubectl get` and `kubectl replace`, or the storage version migrator); or delete the key";

/// Returns an error for what the server would leave out of its answers.
pub fn check(key: &str, value: &[u8]) -> Result<(), Problem> {
    let problem = |what: String, advice: &str| Problem {
        file: key.to_owned(),
        offset: None,
        what,
        advice: advice.to_owned(),
    };
    match encoding::read(value) {
        Ok(_) => Ok(()),
        // Not objects: allocations and leases of Kubernetes' servers among themselves.
        Err(Unreadable::Protobuf(Malformed::Kind { api_version, kind })) if is_bookkeeping(&kind) => {
            tracing::debug!(key, api_version, kind, "not an object of the API, not checked");
            Ok(())
        }
        Err(Unreadable::Protobuf(Malformed::Kind { api_version, kind })) => Err(problem(
            format!("it is a {kind} kept in {api_version}, which is not served any more"),
            REWRITE,
        )),
        Err(_) if value.starts_with(b"k8s:enc:") => Err(problem(
            "it is encrypted, and this server has no keys".to_owned(),
            "turn the encryption at rest off with Kubernetes and write the objects once more",
        )),
        Err(error) => {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let kind = if protobuf::is_envelope(value) { "an envelope" } else { "JSON" };
            Err(problem(
                format!("not an object in {kind}: {error}{cause}"),
                "restore a backup of etcd, or delete the key",
            ))
        }
    }
}

/// Returns `true` for kinds that Kubernetes' servers store under the same prefix and do not serve.
fn is_bookkeeping(kind: &str) -> bool {
    matches!(kind, "RangeAllocation")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn store_check_passes_readable_objects_and_advises_on_others() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
        check("/registry/pods/a", &protobuf::to_envelope(&pod).unwrap()).unwrap();
        check("/registry/x/a", b"{\"kind\": \"X\"}").unwrap();
        let mut ingress = protobuf::envelope_head("networking.k8s.io/v1beta1", "Ingress", 0);
        ingress.extend_from_slice(protobuf::ENVELOPE_TAIL);
        let problem = check("/registry/ingress/a", &ingress).unwrap_err();
        assert!(problem.what.contains("kept in networking.k8s.io/v1beta1"), "{problem:?}");
        assert!(problem.advice.contains("kubectl replace"), "{problem:?}");
        let problem = check("/registry/secrets/a", b"k8s:enc:aescbc:v1:key1:\x01").unwrap_err();
        assert!(problem.what.contains("encrypted"), "{problem:?}");
        assert!(check("/registry/pods/a", b"k8s\0\xff").is_err());
    }
}
