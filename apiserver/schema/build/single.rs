//! Paths that do not belong to kinds: groups and versions, and information about the server.

use serde_json::{Map, Value, json};

use crate::paths::{ANSWERS, META, capital, group_stem, group_tag};
use crate::shared::item;

/// The path of a version, `/apis/apps/v1/`.
pub fn version(group: &str, version: &str) -> (String, Value) {
    let id = format!("get{}{}APIResources", group_stem(group), capital(version));
    let tag = format!("{}_{version}", group_tag(group));
    let operation = discovery("get available resources", &id, &tag, "APIResourceList");
    (format!("{}/", crate::paths::prefix(group, version)), operation)
}

/// The path of a group, `/apis/apps/`.
pub fn group(group: &str) -> (String, Value) {
    if group.is_empty() {
        let operation = discovery("get available API versions", "getCoreAPIVersions", "core", "APIVersions");
        return ("/api/".to_owned(), operation);
    }
    let id = format!("get{}APIGroup", group_stem(group));
    let operation = discovery("get information of a group", &id, &group_tag(group), "APIGroup");
    (format!("/apis/{group}/"), operation)
}

/// The documents of single paths, by the names that they have in the index of v3.
pub fn all() -> Vec<(&'static str, String, Value)> {
    let groups = discovery("get available API versions", "getAPIVersions", "apis", "APIGroupList");
    let text = |media: &str| json!({media: {"schema": {"type": "string"}}});
    let keys = "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)";
    let configuration =
        "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'";
    let of = |description: &str, (id, tag): (&str, &str), content: Value| {
        item(Vec::new(), vec![("get", operation(description, id, tag, content))])
    };
    vec![
        ("apis", "/apis/".to_owned(), groups),
        (
            "version",
            "/version/".to_owned(),
            of(
                "get the version information for this server",
                ("getCodeVersion", "version"),
                json!({"application/json": {"schema": {"$ref": "#/$defs/io.k8s.apimachinery.pkg.version.Info"}}}),
            ),
        ),
        (
            "openid/v1/jwks",
            "/openid/v1/jwks/".to_owned(),
            of(keys, ("getServiceAccountIssuerOpenIDKeyset", "openid"), text("application/jwk-set+json")),
        ),
        (
            ".well-known/openid-configuration",
            "/.well-known/openid-configuration/".to_owned(),
            of(
                configuration,
                ("getServiceAccountIssuerOpenIDConfiguration", "WellKnown"),
                text("application/json"),
            ),
        ),
    ]
}

fn discovery(description: &str, id: &str, tag: &str, kind: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("#/$defs/{META}.{kind}")}});
    let content: Map<String, Value> =
        ANSWERS.into_iter().map(|media| (media.to_owned(), schema.clone())).collect();
    item(Vec::new(), vec![("get", operation(description, id, tag, content.into()))])
}

fn operation(description: &str, id: &str, tag: &str, content: Value) -> Value {
    json!({
        "description": description,
        "operationId": id,
        "tags": [tag],
        "responses": {
            "200": {"description": "OK", "content": content},
            "401": {"description": "Unauthorized"},
        },
    })
}
