//! The context of a request, as the verbs see it.

use std::sync::{Arc, Mutex, PoisonError};

use apiserver_meta::identity::Identity;
use apiserver_schema::error::ApiError;
use http::HeaderMap;

use crate::clients::budget::Budget;
use crate::clients::lanes::Place;
use crate::limits;
use crate::query::Query;
use crate::request::RequestInfo;
use crate::server::Server;
use crate::warning_header::shortened;

/// Makes the contexts of the server's own writes, which no client asked for.
#[derive(Clone)]
pub struct OwnContexts(Arc<Server>);

impl OwnContexts {
    /// Returns the contexts of the writes of `server`.
    pub fn new(server: Arc<Server>) -> Self {
        Self(server)
    }

    /// Returns a context for writes to a collection.
    pub fn collection(&self, namespace: &str) -> Context {
        self.object(namespace, "", "")
    }

    /// Returns a context for writes to one object, through a subresource or none.
    pub fn object(&self, namespace: &str, name: &str, subresource: &str) -> Context {
        let info = Arc::new(RequestInfo::internal(namespace, name, subresource));
        let identity = Identity::authenticated("system:apiserver", &["system:masters"]);
        let server = Arc::clone(&self.0);
        let context = Context::new(server, info, Query::default(), HeaderMap::new(), identity);
        Context { internal: true, ..context }
    }
}

/// One request, after authentication.
pub struct Context {
    pub server: Arc<Server>,
    /// The attributes that were authorized; nothing changes them.
    pub info: Arc<RequestInfo>,
    pub query: Query,
    pub headers: HeaderMap,
    pub identity: Identity,
    /// The server writes something of its own, whose status it knows.
    pub internal: bool,
    /// The budget that the answer is charged to.
    pub budget: Budget,
    /// The place that the request occupies while it is worked on.
    pub place: Arc<Place>,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Context {
    /// Returns a context for a request.
    pub fn new(
        server: Arc<Server>,
        info: Arc<RequestInfo>,
        query: Query,
        headers: HeaderMap,
        identity: Identity,
    ) -> Self {
        let (budget, place, warnings) = Default::default();
        Self { server, info, query, headers, identity, internal: false, budget, place, warnings }
    }

    /// Returns the contexts of writes that the server makes in its own name while it answers this request.
    pub fn own_contexts(&self) -> OwnContexts {
        OwnContexts(Arc::clone(&self.server))
    }

    /// Returns the same request with other headers.
    pub fn with_headers(&self, headers: HeaderMap) -> Self {
        Self {
            server: Arc::clone(&self.server),
            info: Arc::clone(&self.info),
            query: self.query.clone(),
            headers,
            identity: self.identity.clone(),
            internal: self.internal,
            budget: self.budget.clone(),
            place: Arc::clone(&self.place),
            warnings: Arc::clone(&self.warnings),
        }
    }

    /// Returns `true` if nothing is to be stored.
    pub fn dry_run(&self) -> Result<bool, ApiError> {
        let mut dry = false;
        for value in self.query.all("dryRun") {
            match value {
                "All" => dry = true,
                "" => {}
                other => {
                    return Err(ApiError::bad_request(format!(
                        "dryRun: Unsupported value: \"{other}\": supported values: \"All\""
                    )));
                }
            }
        }
        Ok(dry)
    }

    /// Adds a warning for the client's author to the answer. A text that is too long for a header is cut to one
    /// character more than fits, so that it is still recognized as too long.
    pub fn warn(&self, warning: String) {
        let warning = shortened(&warning, limits::WARNING_CHARS + 1).to_owned();
        let mut sent = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() < apiserver_kinds::limits::WARNINGS && !sent.contains(&warning) {
            sent.push(warning);
        }
    }

    /// Returns the warnings so far.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
