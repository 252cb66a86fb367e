//! The attributes of a request that authorization looks at, and the answers to it.

use apiserver_meta::identity::Identity;
use apiserver_registry::FieldSelector;
use apiserver_schema::error::ApiError;
use serde_json::json;

/// The attributes of an attempt that authorization looks at. Empty where they do not apply.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub identity: &'a Identity,
    /// `get`, `list`, `create`, `deletecollection`, `impersonate`, …; for other paths the HTTP
    /// method in lower case.
    pub verb: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    /// Plural, without the subresource.
    pub resource: &'a str,
    pub subresource: &'a str,
    /// Empty at the cluster scope and for all namespaces.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
    /// The URL's path, for requests that are not about resources.
    pub path: &'a str,
    /// The field selector of `list`, `watch` and `deletecollection`.
    pub fields: Option<&'a FieldSelector>,
    pub is_resource: bool,
}

impl<'a> Attributes<'a> {
    /// A request for a resource; fill in the rest with struct update syntax.
    pub fn resource(identity: &'a Identity, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Self {
            identity,
            verb,
            group,
            version: "*",
            resource,
            subresource: "",
            namespace: "",
            name: "",
            path: "",
            fields: None,
            is_resource: true,
        }
    }

    /// A request for a path that is not a resource.
    pub fn path(identity: &'a Identity, verb: &'a str, path: &'a str) -> Self {
        Self { path, is_resource: false, ..Self::resource(identity, verb, "", "") }
    }

    /// Returns `true` if the field selector demands this value of the field.
    pub fn selects(&self, field: &str, value: &str) -> bool {
        let terms = self.fields.into_iter().flat_map(FieldSelector::terms);
        terms.into_iter().any(|term| !term.negated && term.path == field && term.value == value)
    }
}

/// The answer of the authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// The reason why it is allowed, or errors found before it was denied; may be empty.
    pub reason: String,
}

/// The 403 for a request that was not allowed.
pub fn forbidden(attributes: &Attributes<'_>, decision: &Decision) -> ApiError {
    let user = &attributes.identity.user;
    let verb = attributes.verb;
    let because = if decision.reason.is_empty() { String::new() } else { format!(": {}", decision.reason) };
    if !attributes.is_resource {
        let message = format!("forbidden: User {user:?} cannot {verb} path {:?}{because}", attributes.path);
        let mut error = ApiError::new(403, "Forbidden", message);
        error.details = Some(json!({}));
        return error;
    }
    let resource = if attributes.subresource.is_empty() {
        attributes.resource.to_owned()
    } else {
        format!("{}/{}", attributes.resource, attributes.subresource)
    };
    let place = if attributes.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", attributes.namespace)
    };
    let why = format!(
        "User {user:?} cannot {verb} resource {resource:?} in API group {:?} {place}{because}",
        attributes.group
    );
    ApiError::forbidden(attributes.group, attributes.resource, attributes.name, &why)
}
