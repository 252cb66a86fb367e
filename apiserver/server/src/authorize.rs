//! Authorization: from a request as it is made to one that may be carried out.

use std::ops::Deref;

use apiserver_schema::error::ApiError;
use http::HeaderMap;
use tokio::time::Instant;

use crate::context::Context;
use crate::metrics::Authorization;
use apiserver_auth::attributes::{Attributes, forbidden};

/// A request that may be carried out as described by its [`RequestInfo`](crate::request::RequestInfo). Only
/// [`authorize`] makes one, and requests are routed as nothing else: [`crate::verbs::dispatch`] takes one and
/// lends the [`Context`] in it to the verb.
pub struct Authorized(Context);

impl Deref for Authorized {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.0
    }
}

impl Authorized {
    /// Returns the same request with other headers.
    pub fn with_headers(&self, headers: HeaderMap) -> Self {
        Self(self.0.with_headers(headers))
    }
}

/// Asks the authorizer; 403 where it does not allow the request.
pub fn authorize(context: Context) -> Result<Authorized, ApiError> {
    let asked = context.info.attributes(&context.identity);
    allowed(&context, &asked)?;
    if context.info.also_creates() {
        allowed(&context, &Attributes { verb: "create", ..asked })?;
    }
    Ok(Authorized(context))
}

fn allowed(context: &Context, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let authorizer = context.server.access().authorizer();
    let began = Instant::now();
    let allowed = authorizer.allows(attributes);
    let result = if allowed { Authorization::Allowed } else { Authorization::NoOpinion };
    context.server.metrics().authorized(result, began.elapsed());
    if allowed { Ok(()) } else { Err(forbidden(attributes, &authorizer.authorize(attributes))) }
}
