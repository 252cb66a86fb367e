//! What the client sends and what it wants back.

use apiserver_api::error::ApiError;
use apiserver_api::protobuf;
use apiserver_api::registry::Resource;
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};

/// How an answer is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    /// Of built-in kinds, and of metadata alone.
    Protobuf,
}

impl Format {
    /// Its media type.
    pub fn media(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => protobuf::MEDIA_TYPE,
        }
    }
}

/// What an answer contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The object or list itself.
    Object,
    /// `meta.k8s.io/v1 Table`
    Table,
    /// `meta.k8s.io/v1 PartialObjectMetadata`, or its list.
    Metadata,
}

/// The answer that was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub format: Format,
    pub shape: Shape,
}

/// One media range of an `Accept` header.
pub struct Range {
    /// `application/json`, in small letters.
    pub media: String,
    parameters: Vec<(String, String)>,
    quality: u16,
}

impl Range {
    /// A parameter such as `as`, `g`, `v`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether it names or includes the media type.
    pub fn accepts(&self, media: &str) -> bool {
        let kind = media.split('/').next().unwrap_or_default();
        self.media == media || self.media == "*/*" || self.media == format!("{kind}/*")
    }
}

/// The media ranges, best first.
pub fn ranges(headers: &HeaderMap) -> Vec<Range> {
    let texts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges: Vec<Range> = texts.flat_map(|text| text.split(',')).filter_map(range).collect();
    // Stable: equal quality keeps the client's order.
    ranges.sort_by_key(|range| std::cmp::Reverse(range.quality));
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
            let q: f32 = value.parse().unwrap_or(0.0);
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

/// Whether `Status`, scales and what else is no object of the resource should be protobuf.
pub fn prefers_protobuf(headers: &HeaderMap) -> bool {
    let named = |text: &str| text.contains(protobuf::MEDIA_TYPE);
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(named))
        && choose(headers, true).is_ok_and(|wanted| wanted.format == Format::Protobuf)
}

/// Whether what is no object of the resource should be a table.
pub fn prefers_table(headers: &HeaderMap) -> bool {
    choose(headers, true).is_ok_and(|wanted| wanted.shape == Shape::Table)
}

fn choose(headers: &HeaderMap, in_protobuf: bool) -> Result<Wanted, ApiError> {
    let ranges = ranges(headers);
    if ranges.is_empty() {
        return Ok(Wanted { format: Format::Json, shape: Shape::Object });
    }
    for range in &ranges {
        let formats = [Format::Json, Format::Yaml, Format::Protobuf];
        let Some(format) = formats.into_iter().find(|format| range.accepts(format.media())) else { continue };
        let meta = range.parameter("g").is_none_or(|g| g == "meta.k8s.io")
            && range.parameter("v").is_none_or(|v| v == "v1");
        let shape = match range.parameter("as") {
            None => Shape::Object,
            // A table has no protobuf form.
            Some("Table") if meta && format != Format::Protobuf => Shape::Table,
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if meta => Shape::Metadata,
            Some(_) => continue,
        };
        if format == Format::Protobuf && shape == Shape::Object && !in_protobuf {
            continue;
        }
        return Ok(Wanted { format, shape });
    }
    Err(not_acceptable())
}

/// 406.
pub fn not_acceptable() -> ApiError {
    ApiError::new(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf, \
         application/json;as=Table;g=meta.k8s.io;v=v1, application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    )
}

/// The media type of the body, without parameters, in small letters; empty if none is given.
pub fn content_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether the client takes gzip.
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

    fn built_in(text: &str) -> Result<Wanted, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, text.parse().unwrap());
        choose(&headers, true)
    }

    #[test]
    fn the_first_range_that_can_be_served_wins() {
        let json = Wanted { format: Format::Json, shape: Shape::Object };
        assert_eq!(accept("application/json"), Ok(json));
        assert_eq!(accept("*/*"), Ok(json));
        assert_eq!(accept("application/vnd.kubernetes.protobuf,application/json"), Ok(json));
        let table = Wanted { format: Format::Json, shape: Shape::Table };
        assert_eq!(
            accept(
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            ),
            Ok(table)
        );
        assert_eq!(accept("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"), Ok(json));
        assert_eq!(
            accept("application/json;q=0.1,application/yaml"),
            Ok(Wanted { format: Format::Yaml, shape: Shape::Object })
        );
        assert_eq!(accept("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
        assert_eq!(accept("application/json;as=Foo").unwrap_err().code, 406);
    }
    #[test]
    fn protobuf_is_for_built_in_kinds_and_metadata_and_not_for_tables() {
        let protobuf = Wanted { format: Format::Protobuf, shape: Shape::Object };
        let json = Wanted { format: Format::Json, shape: Shape::Object };
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
        assert_eq!(built_in(metadata), Ok(Wanted { format: Format::Protobuf, shape }));
        assert_eq!(accept(metadata), Ok(Wanted { format: Format::Protobuf, shape }));
        let table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
        assert_eq!(built_in(table).unwrap_err().code, 406);
        let fallback = format!("{table},application/json;as=Table;g=meta.k8s.io;v=v1");
        assert_eq!(built_in(&fallback), Ok(Wanted { format: Format::Json, shape: Shape::Table }));
    }
}
