//! Lists and watches of the objects of one kind: requests, the encoding that client and server agree on, and what answers
//! contain.
//!
//! Built-in kinds are asked for in protobuf or JSON, others in JSON alone, and an answer is read as what it says that it is.
//! A server that refuses to choose gets its requests again with JSON alone.

mod decode;
mod events;

use std::fmt;
use std::marker::PhantomData;

use apiserver_messages::Unread;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use kube::client::Body;
use kube::core::params::{ListParams, WatchParams};
use kube::core::{Request as Target, Status};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::media::{self, Encoding};
use crate::readable::Readable;
use decode::Undecodable;
pub(crate) use events::{Batch, Event, Events};

/// A request for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    List,
    Watch,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Watch => "watch",
        })
    }
}

/// A list or a watch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It was not sent, or nobody has answered.
    #[error("the request to {verb} was not answered")]
    Unanswered {
        verb: Verb,
        #[source]
        cause: kube::Error,
    },
    /// The API server has refused it, or has ended it with an error.
    #[error("the API server refused to {verb}: {} ({})", status.message, status.code)]
    Refused { verb: Verb, status: Box<Status> },
    #[error("the answer to {verb} ended early")]
    Interrupted {
        verb: Verb,
        #[source]
        cause: kube::Error,
    },
    #[error("cannot decode the answer to {verb}")]
    Undecodable {
        verb: Verb,
        #[source]
        cause: Undecodable,
    },
    #[error("the answer to {0} has no resource version")]
    NoVersion(Verb),
    /// A watch that was to begin with all objects.
    #[error("the watch ended before it had sent all objects")]
    Unfinished,
    /// The same, by a server that has said nothing for a while: older ones do not mark the end of the objects.
    #[error("the watch did not say that it had sent all objects")]
    Unmarked,
}

impl Error {
    /// Returns `true` if the API server no longer knows the version from which a watch or a list was to go on.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// Returns `true` if a later attempt may succeed without a change of the request.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unanswered { .. } | Self::Interrupted { .. } => true,
            _ => self.code() == Some(429),
        }
    }

    /// Returns `true` if a watch that failed like this cannot go on at the same version.
    pub fn loses_version(&self) -> bool {
        match self {
            Self::Unanswered { .. } | Self::Interrupted { .. } => false,
            // Credentials and load, which have nothing to do with the version.
            Self::Refused { status, .. } => !matches!(status.code, 401 | 403 | 429 | 500 | 502 | 503),
            _ => true,
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }
}

/// A part of a list.
pub(crate) struct Page<K> {
    pub items: Vec<Readable<K>>,
    /// The version of the whole list.
    pub version: String,
    /// The token of the next part.
    pub next: Option<String>,
    pub encoding: Encoding,
}

/// The state with which a watch begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin<'a> {
    /// All objects as new as the request, then a bookmark that says so (KEP-3157).
    State,
    /// The changes after a version.
    After(&'a str),
}

/// Objects of one kind that can be listed and watched.
pub(crate) struct Source<K> {
    client: Client,
    target: Target,
    labels: Option<String>,
    fields: Option<String>,
    /// The encodings that the kind has and that the server knows.
    accept: &'static str,
    unread: Option<&'static Unread>,
    objects: PhantomData<fn() -> K>,
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> Source<K> {
    /// Returns the objects below a path that match the selectors, which may be empty.
    pub fn new(client: Client, path: String, labels: &str, fields: &str) -> Self {
        let given = |selector: &str| (!selector.is_empty()).then(|| selector.to_owned());
        Self {
            client,
            target: Target::new(path),
            labels: given(labels),
            fields: given(fields),
            accept: media::accept(&K::api_version(&()), &K::kind(&())),
            unread: None,
            objects: PhantomData,
        }
    }

    /// Leaves out fields that nobody reads, where the encoding allows for it.
    pub fn without(self, unread: Option<&'static Unread>) -> Self {
        Self { unread, ..self }
    }

    /// Reads a page of the list: of at most so many objects, and behind those that the token stands for.
    pub async fn page(&mut self, limit: Option<u32>, token: Option<&str>) -> Result<Page<K>, Error> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit,
            continue_token: token.map(str::to_owned),
            ..ListParams::default()
        };
        let verb = Verb::List;
        let (encoding, body) = self.send(verb, self.target.list(&params)).await?;
        let bytes = body.collect_bytes().await.map_err(|cause| Error::Interrupted { verb, cause })?;
        let page: Page<K> = decode::page(encoding, &bytes, self.unread)
            .map_err(|cause| Error::Undecodable { verb, cause })?;
        if page.version.is_empty() && page.next.is_none() {
            return Err(Error::NoVersion(verb));
        }
        Ok(page)
    }

    /// Begins a watch.
    pub async fn watch(&mut self, begin: Begin<'_>) -> Result<Events<K>, Error> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            send_initial_events: matches!(begin, Begin::State),
            ..WatchParams::default()
        };
        let version = match begin {
            Begin::State => "",
            Begin::After(version) => version,
        };
        let (encoding, body) = self.send(Verb::Watch, self.target.watch(&params, version)).await?;
        Ok(Events::new(encoding, body, self.unread))
    }

    /// Sends a request; returns the body of its answer, and the encoding of that.
    async fn send(
        &mut self,
        verb: Verb,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<(Encoding, Body), Error> {
        let unanswered = |cause| Error::Unanswered { verb, cause };
        let mut request = request.map_err(|cause| unanswered(kube::Error::BuildRequest(cause)))?;
        // Servers that compress each event by itself are not understood by those who decompress.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        loop {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(self.accept));
            let answer = self.client.send(request.clone().map(Body::from)).await.map_err(unanswered)?;
            let refuses_types =
                matches!(answer.status(), StatusCode::NOT_ACCEPTABLE | StatusCode::UNSUPPORTED_MEDIA_TYPE);
            if refuses_types && self.accept != media::JSON {
                self.accept = media::JSON;
                continue;
            }
            if !answer.status().is_success() {
                return Err(Error::Refused { verb, status: refusal(answer).await });
            }
            return Ok((encoding(&answer), answer.into_body()));
        }
    }
}

fn encoding(answer: &Response<Body>) -> Encoding {
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Encoding::of(kind.unwrap_or_default())
}

/// Returns the status that the body of a refusal holds, or one with its text.
async fn refusal(answer: Response<Body>) -> Box<Status> {
    let (code, encoding) = (answer.status().as_u16(), encoding(&answer));
    let bytes = answer.into_body().collect_bytes().await.unwrap_or_default();
    let status = decode::status(encoding, &bytes).unwrap_or_else(|| {
        Status::failure(String::from_utf8_lossy(&bytes).trim(), "Failed to parse error data").with_code(code)
    });
    Box::new(status)
}

#[cfg(test)]
mod tests;
