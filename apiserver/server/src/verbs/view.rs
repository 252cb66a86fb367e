//! Which state a read sees: what `resourceVersion` and `resourceVersionMatch` mean.

use std::sync::Arc;

use apiserver_api::error::ApiError;
use apiserver_store::{Range, Revision, StoreError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::cache::{Cache, Objects};
use crate::context::Context;
use crate::limits;
use crate::server::Server;
use crate::storage;

/// A state of one kind.
pub struct View {
    pub objects: Objects,
    pub revision: Revision,
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Every write acknowledged before the request.
    Fresh,
    /// Whatever is at hand.
    Any,
    NotOlder(Revision),
    Exact(Revision),
}

/// Reads `resourceVersion`; empty means fresh.
pub fn revision(text: Option<&str>) -> Result<Option<Revision>, ApiError> {
    let parse = |text: &str| match text.parse::<Revision>() {
        Ok(revision) if revision >= 0 => Ok(revision),
        _ => Err(ApiError::bad_request(format!(
            "resourceVersion: Invalid value: \"{text}\": must be a whole number"
        ))),
    };
    text.map(parse).transpose()
}

/// The meaning of a list's parameters.
pub fn asked(context: &Context, limit: u64) -> Result<Asked, ApiError> {
    let version = revision(context.query.get("resourceVersion"))?;
    let rule = context.query.get("resourceVersionMatch");
    match (version, rule) {
        (None, None) => Ok(Asked::Fresh),
        (None, Some(_)) => {
            Err(ApiError::bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided"))
        }
        (Some(0), None | Some("NotOlderThan")) => Ok(Asked::Any),
        (Some(0), Some("Exact")) => Err(ApiError::bad_request(
            "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        // The older rule: pages belong to one state.
        (Some(n), None) if limit > 0 => Ok(Asked::Exact(n)),
        (Some(n), None | Some("NotOlderThan")) => Ok(Asked::NotOlder(n)),
        (Some(n), Some("Exact")) => Ok(Asked::Exact(n)),
        (_, Some(other)) => {
            Err(ApiError::bad_request(format!("resourceVersionMatch: Unsupported value: \"{other}\"")))
        }
    }
}

/// The state asked for.
pub async fn view(server: &Server, cache: &Arc<Cache>, asked: &Asked) -> Result<View, ApiError> {
    let caches = server.caches();
    let least = match *asked {
        Asked::Fresh => server.fresh().await?,
        Asked::Any => {
            caches.loaded().await;
            caches.passed()
        }
        Asked::NotOlder(revision) => {
            server.reach(revision).await?;
            caches.passed()
        }
        Asked::Exact(revision) => {
            server.reach(revision).await?;
            return Ok(View { objects: exact(server, cache, revision).await?, revision });
        }
    };
    let snapshot = cache.snapshot();
    live(cache)?;
    Ok(View { objects: snapshot.objects.clone(), revision: snapshot.revision.max(least) })
}

/// 503 for the cache of a custom kind whose definition changed while the request waited: what it
/// holds may be out of date.
pub fn live(cache: &Cache) -> Result<(), ApiError> {
    if cache.is_live() {
        return Ok(());
    }
    let text = format!("the definition of {} has just changed", cache.resource.plural);
    Err(storage::retry_after(ApiError::new(503, "ServiceUnavailable", text), 1))
}

/// The state at a revision, from the cache or, where that has forgotten it, from the store.
async fn exact(server: &Server, cache: &Arc<Cache>, revision: Revision) -> Result<Objects, ApiError> {
    if let Ok(objects) = cache.at(revision) {
        live(cache)?;
        return Ok(objects);
    }
    let mut objects = Objects::new();
    let mut range =
        Range { prefix: cache.prefix.clone(), revision, limit: limits::LOAD_PAGE, ..Range::default() };
    loop {
        let page = server.store().list(range.clone()).await.map_err(|error| match error {
            StoreError::Compacted { oldest, .. } => ApiError::expired(format!(
                "The provided resource version is too old: {revision} (oldest {oldest})"
            )),
            other => storage::store_error(other),
        })?;
        for kv in &page.kvs {
            let entry = cache
                .read(&kv.key, kv.mod_revision, &kv.value, true)
                .map_err(|error| ApiError::internal(error.to_string()))?;
            objects.insert(Arc::clone(&entry.key), Arc::new(entry));
        }
        match page.kvs.last() {
            Some(last) if page.remaining > 0 => range.after.clone_from(&last.key),
            _ => break,
        }
    }
    cache.keep(revision, objects.clone());
    Ok(objects)
}

/// Where a list goes on. Opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The state that the list began in; -1 for whatever is there now.
    pub revision: Revision,
    /// The last key of the page before.
    pub after: String,
}

impl Continue {
    /// The token.
    pub fn encode(&self) -> String {
        let value = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": self.after});
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    /// Reads a token; errors are 400.
    pub fn decode(token: &str) -> Result<Self, ApiError> {
        let bad = |why: &str| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid{why}"))
        };
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| bad(&format!(": {error}")))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| bad(&format!(": {error}")))?;
        let version = value["v"].as_str().unwrap_or_default();
        if version != "meta.k8s.io/v1" {
            return Err(bad(&format!(": server does not recognize this encoded version {version}")));
        }
        let revision = value["rv"]
            .as_i64()
            .filter(|r| *r > 0 || *r == -1)
            .ok_or_else(|| bad(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"))?;
        let after = value["start"].as_str().filter(|s| !s.is_empty());
        let after = after.ok_or_else(|| bad(": encoded start key empty (version meta.k8s.io/v1)"))?;
        let key = after.strip_prefix('/').unwrap_or(after);
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(bad(&format!(": {after}")));
        }
        Ok(Self { revision, after: after.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_goes_there_and_back_and_nonsense_is_refused() {
        let token = Continue { revision: 7, after: "ns/a".to_owned() };
        assert_eq!(Continue::decode(&token.encode()), Ok(token));
        assert_eq!(Continue::decode("zzz").unwrap_err().code, 400);
        assert_eq!(Continue::decode("").unwrap_err().code, 400);
    }
}
