//! The subresource `serviceaccounts/token`.

use apiserver_schema::error::{ApiError, FieldError};
use serde_json::{Value, json};

use super::{BoundKind, BoundObjects, Issuer, KubernetesClaims, NamedUid};
use crate::limits::{TOKEN_SECONDS_MAX, TOKEN_SECONDS_MIN};

const DEFAULT_SECONDS: i64 = 3600;

impl Issuer {
    /// Answers a `TokenRequest` for `service_account` (the whole object): the request with its status. 422
    /// for a bad duration or audience, 404 and 409 for an object that the token cannot be bound to. Admission
    /// has decided before who may ask.
    pub fn token_request(
        &self,
        service_account: &Value,
        request: &Value,
        objects: &dyn BoundObjects,
    ) -> Result<Value, ApiError> {
        let text =
            |pointer: &str| service_account.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name, uid) =
            (text("/metadata/namespace"), text("/metadata/name"), text("/metadata/uid"));
        let spec = &request["spec"];
        let requested = request.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        if !requested.is_empty() && requested != name {
            return Err(ApiError::bad_request(format!(
                "the name of the token request \"{requested}\" is not that of the ServiceAccount \"{name}\""
            )));
        }
        let seconds = seconds(spec).map_err(|error| invalid(name, error))?;
        let audiences = audiences(spec).map_err(|error| invalid(name, error))?;
        let mut claims = KubernetesClaims {
            namespace: namespace.to_owned(),
            service_account: NamedUid { name: name.to_owned(), uid: uid.to_owned() },
            pod: None,
            secret: None,
            node: None,
        };
        if let Some(reference) = spec.get("boundObjectRef").filter(|r| !r.is_null()) {
            bind(&mut claims, reference, objects)?;
        }
        let audiences = if audiences.is_empty() { self.audiences.clone() } else { audiences };
        let (token, expiration) = self.issue(claims, &audiences, seconds);
        let mut answer = json!({
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": whole_seconds(self.now())},
            "spec": {"audiences": audiences, "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": whole_seconds(expiration.as_second())},
        });
        if let Some(reference) = spec.get("boundObjectRef").filter(|r| !r.is_null()) {
            answer["spec"]["boundObjectRef"] = reference.clone();
        }
        Ok(answer)
    }
}

fn whole_seconds(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

fn invalid(name: &str, error: FieldError) -> ApiError {
    ApiError::invalid("authentication.k8s.io", "TokenRequest", name, &[error])
}

fn seconds(spec: &Value) -> Result<i64, FieldError> {
    const FIELD: &str = "spec.expirationSeconds";
    let given = match &spec["expirationSeconds"] {
        Value::Null => return Ok(DEFAULT_SECONDS),
        value => value.as_i64().ok_or_else(|| FieldError::invalid(FIELD, value, "must be an integer"))?,
    };
    let value = Value::from(given);
    if given < TOKEN_SECONDS_MIN {
        return Err(FieldError::invalid(FIELD, &value, "may not specify a duration less than 10 minutes"));
    }
    if given > TOKEN_SECONDS_MAX {
        return Err(FieldError::invalid(
            FIELD,
            &value,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    Ok(given)
}

fn audiences(spec: &Value) -> Result<Vec<String>, FieldError> {
    const FIELD: &str = "spec.audiences";
    match &spec["audiences"] {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => list
            .iter()
            .map(|a| {
                let text = a.as_str().filter(|a| !a.is_empty());
                text.map(str::to_owned)
                    .ok_or_else(|| FieldError::invalid(FIELD, a, "must be a non-empty string"))
            })
            .collect(),
        other => Err(FieldError::invalid(FIELD, other, "must be a list")),
    }
}

fn bind(
    claims: &mut KubernetesClaims,
    reference: &Value,
    objects: &dyn BoundObjects,
) -> Result<(), ApiError> {
    let text = |key: &str| reference[key].as_str().unwrap_or_default();
    let (kind, resource, namespace) = match (text("apiVersion"), text("kind")) {
        ("v1" | "", "Pod") => (BoundKind::Pod, "pods", claims.namespace.clone()),
        ("v1" | "", "Secret") => (BoundKind::Secret, "secrets", claims.namespace.clone()),
        ("v1" | "", "Node") => (BoundKind::Node, "nodes", String::new()),
        (version, kind) => {
            return Err(ApiError::bad_request(format!(
                "cannot bind token to object of type {version}, Kind={kind}"
            )));
        }
    };
    let name = text("name");
    let object =
        objects.lookup(kind, &namespace, name).ok_or_else(|| ApiError::not_found("", resource, name))?;
    if !text("uid").is_empty() && text("uid") != object.uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might \
             have been deleted and then recreated",
            text("uid")
        );
        return Err(ApiError::conflict("", resource, name, &why));
    }
    let bound = NamedUid { name: name.to_owned(), uid: object.uid };
    match kind {
        BoundKind::Pod => {
            let owner = &claims.service_account.name;
            // A pod that names none runs as the namespace's default one.
            let runs_as = match object.service_account.as_str() {
                "" => "default",
                name => name,
            };
            if runs_as != owner {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount \"{owner}\" to pod running with different \
                     serviceaccount name."
                )));
            }
            claims.node = objects
                .lookup(BoundKind::Node, "", &object.node_name)
                .map(|node| NamedUid { name: object.node_name.clone(), uid: node.uid });
            claims.pod = Some(bound);
        }
        BoundKind::Secret => claims.secret = Some(bound),
        BoundKind::Node => claims.node = Some(bound),
        // The match above yields no such reference.
        BoundKind::ServiceAccount => {}
    }
    Ok(())
}
