//! Impersonation: the headers `Impersonate-*` and the verb `impersonate`.

use apiserver_meta::identity::Identity;
use apiserver_schema::error::ApiError;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::attributes::{Attributes, forbidden};
use crate::authorizer::Authorizer;

const EXTRA_PREFIX: &str = "impersonate-extra-";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const GROUP: &str = "authentication.k8s.io";

/// Returns the identity as which the request is to be carried out: `None` without impersonation headers. 403
/// if `identity` may not act as the user, or one of the groups, extra values or the uid; 400 if there are
/// headers but no user.
pub fn evaluate(
    headers: &HeaderMap,
    authorizer: &Authorizer,
    identity: &Identity,
) -> Result<Option<Identity>, ApiError> {
    let Some(wanted) = requested(headers)? else { return Ok(None) };
    let check = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let attributes = Attributes {
            subresource,
            namespace,
            name,
            version: "v1",
            ..Attributes::resource(identity, "impersonate", group, resource)
        };
        let decision = authorizer.authorize(&attributes);
        if decision.allowed { Ok(()) } else { Err(forbidden(&attributes, &decision)) }
    };
    match service_account(&wanted.user) {
        Some((namespace, name)) => check("", "serviceaccounts", "", namespace, name)?,
        None => check("", "users", "", "", &wanted.user)?,
    }
    for group in &wanted.groups {
        check("", "groups", "", "", group)?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            check(GROUP, "userextras", key, "", value)?;
        }
    }
    if !wanted.uid.is_empty() {
        check(GROUP, "uids", "", "", &wanted.uid)?;
    }
    Ok(Some(complete(wanted)))
}

/// Removes the impersonation headers from a request that is passed on.
pub fn strip(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn requested(headers: &HeaderMap) -> Result<Option<Identity>, ApiError> {
    let text = |value: &HeaderValue| {
        value
            .to_str()
            .map(str::to_owned)
            .map_err(|_| ApiError::bad_request("impersonation headers must be ASCII"))
    };
    let one = |name: &str| headers.get(name).map(text).transpose().map(Option::unwrap_or_default);
    let groups = headers.get_all("impersonate-group").iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let mut wanted =
        Identity { user: one("impersonate-user")?, uid: one("impersonate-uid")?, groups, extra: Vec::new() };
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(EXTRA_PREFIX) else { continue };
        let values = headers.get_all(name).iter().map(text).collect::<Result<Vec<_>, _>>()?;
        wanted.extra.push((percent_decode(key), values));
    }
    wanted.extra.sort();
    if !wanted.user.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted.groups.is_empty() && wanted.extra.is_empty() && wanted.uid.is_empty() {
        return Ok(None);
    }
    Err(ApiError::bad_request("requested groups, extra values or uid without impersonating a user"))
}

/// Adds the groups that such a user always has.
fn complete(mut identity: Identity) -> Identity {
    if identity.user == "system:anonymous" {
        if !identity.in_group("system:unauthenticated") {
            identity.groups.push("system:unauthenticated".to_owned());
        }
        return identity;
    }
    if identity.groups.is_empty()
        && let Some((namespace, _)) = service_account(&identity.user)
    {
        identity.groups =
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    if !identity.in_group("system:authenticated") && !identity.in_group("system:unauthenticated") {
        identity.groups.push("system:authenticated".to_owned());
    }
    identity
}

fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Keys of extra values are percent-encoded in header names.
pub fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
#[path = "impersonation_tests.rs"]
mod tests;
