//! Content negotiation: the media types that the client sends and accepts.

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::protobuf;
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};

use apiserver_cache::form::{Format, Shape, Wanted, unfit};

use crate::mime;
use crate::query::Query;

/// One media range of an `Accept` header.
pub struct Range {
    /// `application/json`, in small letters.
    pub media: String,
    parameters: Vec<(String, String)>,
    quality: u16,
}

impl Range {
    /// Returns a parameter such as `as`, `g`, `v`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns `true` if it names or includes the media type.
    pub fn accepts(&self, media: &str) -> bool {
        let kind = media.split('/').next().unwrap_or_default();
        self.media == media || self.media == "*/*" || self.media == format!("{kind}/*")
    }
}

/// Returns the media ranges, best first.
pub fn ranges(headers: &HeaderMap) -> Vec<Range> {
    let texts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges: Vec<Range> = texts.flat_map(|text| text.split(',')).filter_map(range).collect();
    // Stable: equal quality keeps the client's order, except for ranges that name no type.
    let vague = |range: &Range| (range.media == "*/*", range.media.ends_with("/*"));
    ranges.sort_by_key(|range| (std::cmp::Reverse(range.quality), vague(range)));
    ranges.retain(|range| range.quality > 0);
    ranges
}

fn range(text: &str) -> Option<Range> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().filter(|m| !m.is_empty())?.to_ascii_lowercase();
    let mut quality = 1000;
    let mut parameters = Vec::new();
    for part in parts {
        let Some((key, value)) = part.split_once('=') else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"').to_owned());
        if key == "q" {
            // Thousandths, the precision of HTTP.
            let q: f32 = value.parse().unwrap_or(1.0);
            quality = (q.clamp(0.0, 1.0) * 1000.0) as u16;
        } else {
            parameters.push((key, value));
        }
    }
    Some(Range { media, parameters, quality })
}

/// Chooses the answer to a request for objects of a kind.
pub fn wanted(headers: &HeaderMap, resource: &Resource) -> Result<Wanted, ApiError> {
    choose(headers, protobuf::of_kind(&resource.api_version(), &resource.kind).is_some())
}

/// Returns `true` if `Status`, scales and other objects that are not of the resource's own kind should be
/// protobuf.
pub fn prefers_protobuf(headers: &HeaderMap) -> bool {
    let named = |text: &str| text.contains(protobuf::MEDIA_TYPE);
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(named))
        && choose(headers, true).is_ok_and(|wanted| wanted.format == Format::Protobuf)
}

/// Returns the apiVersion of the table in which an answer that is not an object of the resource should be
/// given, if it should.
pub fn prefers_table(headers: &HeaderMap) -> Option<&'static str> {
    choose(headers, true).ok().filter(|wanted| wanted.shape == Shape::Table).map(|wanted| wanted.meta)
}

/// Returns 406 for a client that accepts only tables or metadata of answers that have neither.
pub fn check_plain(headers: &HeaderMap) -> Result<(), ApiError> {
    let ranges = ranges(headers);
    let formats = [Format::Json, Format::Yaml, Format::Protobuf];
    let plain = |range: &Range| {
        range.parameter("as").is_none() && formats.into_iter().any(|format| range.accepts(format.media()))
    };
    if ranges.is_empty() || ranges.iter().any(plain) { Ok(()) } else { Err(not_acceptable()) }
}

fn choose(headers: &HeaderMap, in_protobuf: bool) -> Result<Wanted, ApiError> {
    let ranges = ranges(headers);
    if ranges.is_empty() {
        return Ok(Wanted { format: Format::Json, shape: Shape::Object, meta: META });
    }
    for range in &ranges {
        for format in [Format::Json, Format::Yaml, Format::Protobuf] {
            if range.accepts(format.media())
                && let Some((shape, meta)) = shape(range, format, in_protobuf)
            {
                return Ok(Wanted { format, shape, meta });
            }
        }
    }
    Err(not_acceptable())
}

const META: &str = "meta.k8s.io/v1";

/// Returns the shape and apiVersion that a media range asks for in a format; `None` if there is no such
/// shape.
fn shape(range: &Range, format: Format, in_protobuf: bool) -> Option<(Shape, &'static str)> {
    let streamed = range.parameter("stream").filter(|stream| !stream.is_empty());
    if streamed.is_some_and(|stream| stream != "watch" || format == Format::Yaml) {
        return None;
    }
    if ["as", "g", "v"].iter().all(|name| range.parameter(name).is_none()) {
        let possible = format != Format::Protobuf || in_protobuf;
        return possible.then_some((Shape::Object, META));
    }
    let meta = match (range.parameter("g"), range.parameter("v")) {
        (Some("meta.k8s.io"), Some("v1")) => META,
        (Some("meta.k8s.io"), Some("v1beta1")) => "meta.k8s.io/v1beta1",
        _ => return None,
    };
    match range.parameter("as")? {
        // A table has no protobuf form.
        "Table" if format != Format::Protobuf => Some((Shape::Table, meta)),
        "PartialObjectMetadata" => Some((Shape::Metadata, meta)),
        "PartialObjectMetadataList" => Some((Shape::MetadataList, meta)),
        _ => None,
    }
}

/// 406.
pub fn not_acceptable() -> ApiError {
    unfit(
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf"
            .to_owned(),
    )
}

/// 406 of a watch, whose events are never YAML.
pub fn not_streamable() -> ApiError {
    unfit(
        "only the following media types are accepted: application/json;stream=watch, \
         application/vnd.kubernetes.protobuf;stream=watch"
            .to_owned(),
    )
}

/// Returns `true` if JSON is to be indented: if the client asks for it, or is one that people look at.
pub fn is_pretty(headers: &HeaderMap, query: &Query) -> bool {
    let json = Format::Json.media();
    let asks = |range: &Range| range.parameter("pretty") == Some("1");
    let named = headers.get_all(ACCEPT).iter().any(|v| v.to_str().is_ok_and(|text| text.contains("pretty")));
    if named && ranges(headers).iter().find(|range| range.accepts(json)).is_some_and(asks) {
        return true;
    }
    if let Some(text) = query.get("pretty") {
        return matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|people| agent.starts_with(people))
}

/// Returns the media type of the body, without parameters, in lower case; empty if none is given, and a text
/// that matches no type if it is malformed.
pub fn content_type(headers: &HeaderMap) -> String {
    let given = headers.get(CONTENT_TYPE).filter(|value| !value.is_empty());
    given.map_or_else(String::new, |value| {
        value.to_str().ok().and_then(mime::media_type).unwrap_or_else(|| "?".to_owned())
    })
}

/// The media type of configurations of server-side apply; JSON is YAML.
pub const APPLY: &str = "application/apply-patch+yaml";

/// Returns the sort of patch that the body is: Kubernetes cuts what follows the semicolon off, and reads none of it.
pub fn patch_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns `true` if the client accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|p| p.replace(' ', "") == "q=0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(text: &str) -> Result<Wanted, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, text.parse().unwrap());
        choose(&headers, false)
    }

    fn wanted(format: Format, shape: Shape) -> Wanted {
        Wanted { format, shape, meta: META }
    }

    fn built_in(text: &str) -> Result<Wanted, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, text.parse().unwrap());
        choose(&headers, true)
    }

    #[test]
    fn the_first_range_that_can_be_served_wins() {
        let json = wanted(Format::Json, Shape::Object);
        assert_eq!(accept("application/json"), Ok(json));
        assert_eq!(accept("*/*"), Ok(json));
        assert_eq!(accept("application/vnd.kubernetes.protobuf,application/json"), Ok(json));
        let table = wanted(Format::Json, Shape::Table);
        assert_eq!(
            accept(
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            ),
            Ok(table)
        );
        let beta = "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(accept(beta), Ok(Wanted { meta: "meta.k8s.io/v1beta1", ..table }));
        assert_eq!(accept("application/json;as=Table;v=v2;g=meta.k8s.io,application/json"), Ok(json));
        assert_eq!(accept("application/json;as=Table").unwrap_err().code, 406);
        assert_eq!(accept("application/yaml;stream=watch").unwrap_err().code, 406);
        assert_eq!(accept("*/*,application/yaml"), Ok(wanted(Format::Yaml, Shape::Object)));
        assert_eq!(accept("application/json;q=0").map(|_| ()), Ok(()));
        assert_eq!(
            accept("application/json;q=0.1,application/yaml"),
            Ok(wanted(Format::Yaml, Shape::Object))
        );
        assert_eq!(accept("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
        assert_eq!(accept("application/json;as=Foo").unwrap_err().code, 406);
    }
    #[test]
    fn protobuf_is_for_built_in_kinds_and_metadata_and_not_for_tables() {
        let protobuf = wanted(Format::Protobuf, Shape::Object);
        let json = wanted(Format::Json, Shape::Object);
        assert_eq!(built_in("application/vnd.kubernetes.protobuf,application/json"), Ok(protobuf));
        assert_eq!(
            built_in("application/vnd.kubernetes.protobuf;stream=watch,application/json"),
            Ok(protobuf)
        );
        assert_eq!(built_in("application/json,application/vnd.kubernetes.protobuf"), Ok(json));
        assert_eq!(built_in("application/vnd.kubernetes.protobuf;q=0.5,application/json"), Ok(json));
        assert_eq!(built_in("application/*"), Ok(json));
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let shape = Shape::Metadata;
        assert_eq!(built_in(metadata), Ok(wanted(Format::Protobuf, shape)));
        assert_eq!(accept(metadata), Ok(wanted(Format::Protobuf, shape)));
        let table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
        assert_eq!(built_in(table).unwrap_err().code, 406);
        let fallback = format!("{table},application/json;as=Table;g=meta.k8s.io;v=v1");
        assert_eq!(built_in(&fallback), Ok(wanted(Format::Json, Shape::Table)));
    }
}
