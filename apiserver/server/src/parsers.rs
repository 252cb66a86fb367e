//! Parsers of foreign bytes, without a server: for the fuzz targets, and for anyone who wants to know how a
//! request would be read.

use std::sync::{Arc, OnceLock};

use apiserver_kinds::builtin;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use base64::Engine as _;
use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, Uri};
use serde_json::{Value, json};

use crate::conversion::webhook;
use crate::query::Query;
use crate::request::RequestInfo;
use crate::streams::{Links, Rewriter};
use crate::verbs::Patch;
use crate::view::Continue;
use crate::write::parse_configuration;
use crate::{body, negotiate};
use apiserver_admission::certificates::subject;
use apiserver_cache::encoding;

/// Returns the object of a body, and the fields that the body repeats; 400 or 415.
pub fn object(content_type: &str, bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let decoded = body::decode(content_type, Bytes::copy_from_slice(bytes), "")?;
    let repeated = decoded.repeated();
    Ok((decoded.value, repeated))
}

/// Applies a patch to an object of the kind with this schema; errors are 400, 413, 415 or 422.
pub fn patch(media: &str, schema: &str, old: &Value, patch: &[u8]) -> Result<Value, ApiError> {
    Patch::read(media, patch, true)?.0.apply(schema, old)
}

/// Returns the configuration of an apply, and the fields that it repeats; 400.
pub fn configuration(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    parse_configuration(bytes, true)
}

/// Revision and key of a continue token, and the token made anew of them; 400.
pub fn continue_token(token: &str) -> Result<(i64, String, String), ApiError> {
    let place = Continue::decode(token)?;
    let again = place.encode();
    Ok((place.revision, place.start, again))
}

/// Returns the verb, resource, namespace and name of a request. `None` if the target is not a URI.
pub fn request(method: &str, target: &str) -> Option<(&'static str, String, String, String)> {
    let uri: Uri = target.parse().ok()?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let query = Query::parse(uri.query().unwrap_or_default());
    let _ = (query.integer("limit"), query.duration("timeout"), query.flag("watch"));
    let info = RequestInfo::parse(&method, uri.path(), &query);
    Some((info.verb, info.resource, info.namespace, info.name))
}

/// Returns the media type that is answered with; `None` if there is none that the client takes.
pub fn accept(header: &[u8]) -> Option<&'static str> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_bytes(header).ok()?);
    static PODS: OnceLock<Option<Arc<Resource>>> = OnceLock::new();
    let pods = PODS.get_or_init(|| builtin::registry().lookup("", "v1", "pods").cloned());
    negotiate::wanted(&headers, pods.as_ref()?).ok().map(|wanted| wanted.format.media())
}

/// Decodes a stored object; an error if it is neither JSON nor the envelope of a kind.
pub fn stored(bytes: &[u8]) -> Result<Value, Box<dyn std::error::Error>> {
    let json = encoding::json(bytes).map(|text| text.len());
    let read = encoding::read(bytes);
    // Both ways of reading accept the same, except for text that only the second one checks.
    assert!(json.is_ok() || read.is_err(), "a tree without a text");
    Ok(read?)
}

/// Judges a CertificateSigningRequest whose request has these bytes (DER), and reads its subject as admission
/// does; whether it is valid.
pub fn signing_request(der: &[u8]) -> bool {
    static KIND: OnceLock<Option<Arc<Resource>>> = OnceLock::new();
    let kind = KIND.get_or_init(|| {
        builtin::registry().lookup("certificates.k8s.io", "v1", "certificatesigningrequests").cloned()
    });
    let base64 = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let pem =
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", base64(der));
    let request = base64(pem.as_bytes());
    let subject = subject::read(&request);
    let object = json!({
        "metadata": {"name": "fuzz"},
        "spec": {
            "request": request,
            "signerName": "example.org/signer",
            "usages": ["client auth"],
        },
    });
    let valid = kind.as_ref().is_some_and(|kind| (kind.behaviour.validate)(&object).is_empty());
    valid && subject.is_ok()
}

/// The question that a conversion webhook was asked.
#[derive(Clone, Copy, Debug)]
pub struct Conversion<'a> {
    /// Version of the review: `v1` or `v1beta1`.
    pub review: &'a str,
    pub uid: &'a str,
    /// The `apiVersion` that the objects shall have.
    pub wanted: &'a str,
    pub kind: &'a str,
}

impl Conversion<'_> {
    /// Returns the converted objects in the answer to a review of `sent`.
    pub fn read(&self, sent: &[Value], answer: &[u8]) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
        let converted = webhook::read_answer(answer, self.review, self.uid)?;
        Ok(webhook::sound(sent, converted, self.wanted, self.kind)?)
    }
}

/// A pod behind a proxy, and the API server as its clients call it.
#[derive(Clone, Copy, Debug)]
pub struct Proxied<'a> {
    /// The path of the proxy, without a slash at its end.
    pub prefix: &'a str,
    /// `HOST:PORT` of the pod.
    pub backend: &'a str,
    /// `HOST:PORT` of the API server.
    pub asked: &'a str,
}

impl Proxied<'_> {
    fn links(&self) -> Links {
        let [prefix, backend, asked] = [self.prefix, self.backend, self.asked].map(str::to_owned);
        Links { prefix, backend, asked }
    }

    /// Returns a page of the pod that comes in these pieces, as clients get it.
    pub fn page<'b>(&self, pieces: impl IntoIterator<Item = &'b [u8]>) -> Vec<u8> {
        let (mut rewriter, mut page) = (Rewriter::new(self.links()), Vec::new());
        for piece in pieces {
            rewriter.feed(piece, &mut page);
        }
        rewriter.finish(&mut page);
        page
    }

    /// Returns the `Location` that a client gets for the pod's, which answers a request for `path`; `None` where
    /// the redirect is refused.
    pub fn redirect(&self, location: &str, path: &str) -> Option<String> {
        self.links().redirect(location, path)
    }
}
