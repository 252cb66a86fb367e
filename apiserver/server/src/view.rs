//! Choice of the state that a read sees: the meaning of `resourceVersion` and `resourceVersionMatch`.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_schema::error::ApiError;
use apiserver_store::{Revision, StoreError};
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::body;
use crate::errors;
use crate::list_options::{ListOptions, Match};
use crate::objects::Objects;
use apiserver_cache::{Cache, Past, Snapshot};

/// A state of one kind.
pub struct View {
    pub past: Arc<Past>,
    /// The number of objects at or after a key, in the collection that begins there.
    pub counted: BTreeMap<String, usize>,
    pub revision: Revision,
}

impl View {
    /// Returns the present state of a kind.
    pub fn of(cache: &Cache, snapshot: &Snapshot) -> Self {
        Self { past: cache.past(snapshot), counted: BTreeMap::new(), revision: snapshot.revision }
    }
}

/// The state that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Every write acknowledged before the request.
    Fresh,
    /// Any state at hand.
    Any,
    NotOlder(Revision),
    Exact(Revision),
}

/// Returns the meaning of a list's options, a token apart.
pub fn asked(options: &ListOptions) -> Result<Asked, ApiError> {
    let Some(revision) = options.revision()? else { return Ok(Asked::Fresh) };
    Ok(match (revision, options.rule) {
        (0, _) => Asked::Any,
        (n, Some(Match::Exact)) => Asked::Exact(n),
        // The older rule: pages belong to one state.
        (n, None) if options.limit > 0 => Asked::Exact(n),
        (n, _) => Asked::NotOlder(n),
    })
}

/// Returns the state asked for.
pub async fn view(objects: &Objects, cache: &Arc<Cache>, asked: &Asked) -> Result<View, ApiError> {
    let caches = objects.caches();
    let least = match *asked {
        Asked::Fresh => {
            let began = Instant::now();
            let fresh = objects.fresh().await;
            cache.counts.waits.observe(began.elapsed().as_secs_f64());
            cache.counts.consistent[usize::from(fresh.is_ok())].add(1);
            fresh?
        }
        Asked::Any => {
            caches.loaded().await;
            caches.passed()
        }
        Asked::NotOlder(revision) => {
            objects.reach(revision).await?;
            caches.passed()
        }
        Asked::Exact(revision) => {
            objects.reach(revision).await?;
            let past = exact(objects, cache, revision).await?;
            return Ok(View { past, counted: cache.counted(revision), revision });
        }
    };
    let snapshot = cache.snapshot();
    live(cache)?;
    let view = View::of(cache, &snapshot);
    Ok(View { revision: view.revision.max(least), ..view })
}

/// Returns 503 for the cache of a custom kind whose definition changed while the request waited: its objects
/// may be out of date.
pub fn live(cache: &Cache) -> Result<(), ApiError> {
    if cache.is_live() {
        return Ok(());
    }
    let text = format!("the definition of {} has just changed", cache.resource.plural);
    Err(errors::retry_after(ApiError::new(503, "ServiceUnavailable", text), 1))
}

/// Returns the state at a revision, from the cache or, where that has forgotten it, from the store.
async fn exact(objects: &Objects, cache: &Arc<Cache>, revision: Revision) -> Result<Arc<Past>, ApiError> {
    // A cache may know a state for longer than the store. As in Kubernetes, clients get an error once it is
    // compacted.
    if objects.caches().outlasted(revision)
        && let Ok(past) = cache.at(revision)
    {
        live(cache)?;
        return Ok(past);
    }
    let read = objects.caches().read_all(cache, revision).await;
    let (objects, _) = read.map_err(|error| match error {
        StoreError::Compacted { .. } => {
            ApiError::expired("The resourceVersion for the provided list is too old.")
        }
        other => errors::store_error(other),
    })?;
    let past = Arc::new(Past { objects, index: None });
    cache.retain_read(revision, &past);
    Ok(past)
}

/// The position at which a list continues. Opaque to clients; the form is that of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The state that the list began in; -1 for the present one.
    pub revision: Revision,
    /// The key that the page begins at, or the next after it, below that of the collection asked for.
    pub start: String,
}

impl Continue {
    /// Returns the token of the page after the object of `key`, in a list of the objects below `prefix`.
    pub fn after(revision: Revision, key: &str, prefix: &str) -> Self {
        Self { revision, start: format!("{}\0", key.strip_prefix(prefix).unwrap_or(key)) }
    }

    /// Returns the text of the token.
    pub fn encode(&self) -> String {
        let value = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": self.start});
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    /// Decodes a token; errors are 400. No token can name an object outside the collection.
    pub fn decode(token: &str) -> Result<Self, ApiError> {
        let bad = |why: String| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| bad(illegal(token, &error)))?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| bad(body::misread(&bytes, &error)))?;
        if !value.is_object() {
            return Err(bad("the token is not an object".to_owned()));
        }
        if value["v"] != "meta.k8s.io/v1" {
            let version = value["v"].as_str().unwrap_or_default();
            return Err(bad(format!("server does not recognize this encoded version {version}")));
        }
        let revision = match value.get("rv").map(Value::as_i64) {
            Some(Some(revision)) if revision != 0 => revision.max(-1),
            None | Some(Some(_)) => {
                let why = "incorrect encoded start resourceVersion (version meta.k8s.io/v1)";
                return Err(bad(why.to_owned()));
            }
            Some(None) => return Err(bad("the resource version is not a whole number".to_owned())),
        };
        let start = value["start"].as_str().unwrap_or_default();
        if start.is_empty() {
            return Err(bad("encoded start key empty (version meta.k8s.io/v1)".to_owned()));
        }
        if !is_clean(start.strip_prefix('/').unwrap_or(start)) {
            return Err(bad(start.to_owned()));
        }
        Ok(Self { revision, start: start.strip_prefix('/').unwrap_or(start).to_owned() })
    }
}

/// Returns `true` if a path is the shortest of those that mean the same.
fn is_clean(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Returns the error for a text that is not base64, in Go's words.
fn illegal(token: &str, error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        // Tokens have no padding.
        DecodeError::InvalidPadding => token.find('=').unwrap_or(token.len()),
        DecodeError::InvalidLength(_) => token.len().saturating_sub(1),
    };
    format!("illegal base64 data at input byte {at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_token_round_trips_and_malformed_ones_are_refused() {
        let token = Continue::after(7, "ns/a", "ns/");
        assert_eq!(token.start, "a\0");
        assert_eq!(Continue::decode(&token.encode()), Ok(token));
        let raw = |value: &str| URL_SAFE_NO_PAD.encode(value);
        let table = [
            ("z%z".to_owned(), "illegal base64 data at input byte 1"),
            ("Nw==".to_owned(), "illegal base64 data at input byte 2"),
            ("e30=".to_owned(), "illegal base64 data at input byte 3"),
            ("e30ab".to_owned(), "illegal base64 data at input byte 4"),
            (raw("{"), "unexpected end of JSON input"),
            (raw("{} 1"), "invalid character '1' after top-level value"),
            (raw("7"), "the token is not an object"),
            (raw(r#"{"v":"v2"}"#), "server does not recognize this encoded version v2"),
            (
                raw(r#"{"v":"meta.k8s.io/v1","start":"a"}"#),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (raw(r#"{"v":"meta.k8s.io/v1","rv":1}"#), "encoded start key empty (version meta.k8s.io/v1)"),
            (raw(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../b"}"#), "../b"),
            (raw(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a//b"}"#), "a//b"),
        ];
        for (token, why) in table {
            let error = Continue::decode(&token).unwrap_err();
            let expected = format!("invalid continue token: continue key is not valid: {why}");
            assert_eq!((error.code, error.message), (400, expected), "{token}");
        }
    }
}
