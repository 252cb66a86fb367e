//! Settings of a Service by annotation, for which Kubernetes has no fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use userspace_dataplane::tables::{Algorithm, Forwarding};

use super::address::address;
use super::slice::{Endpoint, Name};

use crate::limits;

/// `random` or `maglev`.
const ALGORITHM: &str = "hawser.dev/algorithm";
/// `nat`, `dsr` or `dsr-ipip`.
const FORWARDING: &str = "hawser.dev/forwarding";
/// A JSON object from addresses or pods' names to weights.
const WEIGHTS: &str = "hawser.dev/weights";
/// The prefix of our annotations; an unknown annotation with it is mistyped, or belongs on another object.
const PREFIX: &str = "hawser.dev/";
const KNOWN: [&str; 3] = [ALGORITHM, FORWARDING, WEIGHTS];

/// The valid annotations of one Service.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// The algorithm of both scopes; `None` for each scope's default.
    pub algorithm: Option<Algorithm>,
    pub forwarding: Forwarding,
    weights: BTreeMap<Name, u16>,
    weights_by_address: BTreeMap<IpAddr, u16>,
}

/// A setting of a Service that the proxy cannot follow and ignores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error("annotation {annotation}: {value:?} is not {expected}")]
    Value { annotation: &'static str, value: String, expected: &'static str },
    #[error(
        "annotation {annotation}: {value:?} is not a JSON object from addresses or pods' names to \
         numbers from 0 to 65535: {reason}"
    )]
    Json { annotation: &'static str, value: String, reason: String },
    #[error(
        "annotation {0:?} is none that a Service can have: there are {ALGORITHM}, {FORWARDING} and {WEIGHTS}"
    )]
    Unknown(String),
    #[error("source range {0:?} is not a CIDR")]
    SourceRange(String),
}

impl Warning {
    /// Returns the reason of an Event about the warning.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Value { .. } | Self::Json { .. } => "InvalidAnnotation",
            Self::Unknown(_) => "UnknownAnnotation",
            Self::SourceRange(_) => "InvalidSourceRange",
        }
    }

    /// Describes what applies instead of the ignored setting.
    pub fn instead(&self) -> &'static str {
        match self {
            Self::Value { annotation: FORWARDING, .. } => "forwarding is nat",
            Self::Value { .. } => "the algorithm is the usual one, random inside and maglev from outside",
            Self::Json { .. } => "all endpoints have weight 1",
            Self::Unknown(_) => "nothing is chosen by it",
            Self::SourceRange(_) => {
                "the other ranges say who may come in, and where none is left everybody may"
            }
        }
    }
}

impl Choices {
    /// Parses the annotations, and returns warnings about those that it ignored.
    pub(super) fn of(service: &Service) -> (Self, Vec<Warning>) {
        let (mut choices, mut warnings) = (Self::default(), Vec::new());
        let Some(annotations) = &service.metadata.annotations else { return (choices, warnings) };
        let mut wrong = |annotation, value: &String, expected| {
            warnings.push(Warning::Value { annotation, value: short(value), expected });
        };
        if let Some(value) = annotations.get(ALGORITHM) {
            match value.trim() {
                "random" => choices.algorithm = Some(Algorithm::Random),
                "maglev" => choices.algorithm = Some(Algorithm::Consistent),
                _ => wrong(ALGORITHM, value, "random or maglev"),
            }
        }
        if let Some(value) = annotations.get(FORWARDING) {
            match value.trim() {
                "nat" => choices.forwarding = Forwarding::Nat,
                "dsr" => choices.forwarding = Forwarding::DsrOption,
                "dsr-ipip" => choices.forwarding = Forwarding::DsrIpip,
                _ => wrong(FORWARDING, value, "nat, dsr or dsr-ipip"),
            }
        }
        if let Some(value) = annotations.get(WEIGHTS) {
            match serde_json::from_str::<BTreeMap<String, u16>>(value) {
                Ok(weights) => choices.weigh(weights),
                Err(error) => {
                    let (value, reason) = (short(value), short(&error.to_string()));
                    warnings.push(Warning::Json { annotation: WEIGHTS, value, reason });
                }
            }
        }
        let unknown =
            annotations.keys().filter(|name| name.starts_with(PREFIX) && !KNOWN.contains(&name.as_str()));
        warnings.extend(unknown.take(limits::WARNINGS).map(|name| Warning::Unknown(short(name))));
        (choices, warnings)
    }

    /// Returns the weight of an endpoint: by its address, or else by its pod's name, or else 1.
    pub(super) fn weight(&self, endpoint: &Endpoint<'_>) -> u16 {
        let by_name = || self.weights.get(&endpoint.pod).filter(|_| endpoint.pod != Name::NONE);
        self.weights_by_address.get(&endpoint.address).or_else(by_name).copied().unwrap_or(1)
    }

    fn weigh(&mut self, weights: BTreeMap<String, u16>) {
        let by_address = weights.iter().filter_map(|(name, weight)| Some((address(name)?, *weight)));
        self.weights_by_address = by_address.collect();
        self.weights = weights.into_iter().map(|(name, weight)| (Name::of(&name), weight)).collect();
    }
}

/// Returns `true` if the annotation is one of ours, or is meant to be.
pub(super) fn is_read(annotation: &str) -> bool {
    annotation.starts_with(PREFIX)
}

/// Returns the beginning of a value, shortened for a message.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(limits::WARNING_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the parts of a Service's annotations and source ranges that the proxy cannot follow. They are not
/// errors, since the rest of the Service is served, but its owner should know.
pub fn warnings(service: &Service) -> Vec<Warning> {
    let (_, mut warnings) = Choices::of(service);
    let ranges = super::ranges::texts(service).into_iter().map(Cow::into_owned);
    let odd = ranges.filter(|text| super::address::range(text).is_none());
    warnings.extend(odd.take(limits::WARNINGS).map(|text| Warning::SourceRange(short(&text))));
    warnings.truncate(limits::WARNINGS);
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(annotations: &[(&str, &str)]) -> Service {
        let mut service = Service::default();
        let pairs = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        service.metadata.annotations = Some(pairs.collect());
        service
    }

    fn endpoint(address: &str, pod: &str) -> Endpoint<'static> {
        Endpoint {
            address: address.parse().unwrap(),
            node: Name::NONE,
            pod: Name::of(pod),
            ready: true,
            draining: false,
            hints: None,
        }
    }

    #[test]
    fn invalid_annotations_are_reported_and_ignored() {
        let service = annotated(&[(ALGORITHM, "ring"), (FORWARDING, "DSR"), (WEIGHTS, "{\"a\": 70000}")]);
        let (choices, found) = Choices::of(&service);
        assert_eq!((choices.algorithm, choices.forwarding), (None, Forwarding::Nat));
        assert_eq!(choices.weight(&endpoint("10.0.0.1", "a")), 1);
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts[0], "annotation hawser.dev/algorithm: \"ring\" is not random or maglev");
        assert_eq!(texts[1], "annotation hawser.dev/forwarding: \"DSR\" is not nat, dsr or dsr-ipip");
        let expected = "annotation hawser.dev/weights: \"{\\\"a\\\": 70000}\" is not a JSON object from \
                        addresses or pods' names to numbers from 0 to 65535: invalid value";
        assert!(texts[2].starts_with(expected), "{}", texts[2]);
        let instead: Vec<_> = found.iter().map(Warning::instead).collect();
        assert!(instead[0].contains("random inside") && instead[1].contains("nat"), "{instead:?}");
        assert_eq!(instead[2], "all endpoints have weight 1");
    }

    #[test]
    fn a_mistyped_annotation_is_told_and_a_long_value_is_cut() {
        let long = "x".repeat(300_000);
        let service =
            annotated(&[("hawser.dev/weight", "{}"), ("example.com/weights", "?"), (ALGORITHM, &long)]);
        let (_, found) = Choices::of(&service);
        let reasons: Vec<_> = found.iter().map(Warning::reason).collect();
        assert_eq!(reasons, ["InvalidAnnotation", "UnknownAnnotation"]);
        assert!(found[0].to_string().len() < 200, "{}", found[0]);
        let text = found[1].to_string();
        assert!(text.contains("\"hawser.dev/weight\"") && text.contains("hawser.dev/weights"), "{text}");
    }

    #[test]
    fn a_service_full_of_odd_annotations_makes_few_warnings() {
        let names: Vec<String> = (0..10_000).map(|n| format!("hawser.dev/{n}")).collect();
        let odd: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        let found = warnings(&annotated(&odd));
        assert_eq!(found.len(), limits::WARNINGS);
    }

    #[test]
    fn an_address_weighs_before_a_name() {
        let service = annotated(&[(WEIGHTS, r#"{"10.0.0.1": 0, "web-0": 7, "fd00:0::1": 65535}"#)]);
        let (choices, found) = Choices::of(&service);
        assert_eq!(found, []);
        assert_eq!(choices.weight(&endpoint("10.0.0.1", "web-0")), 0);
        assert_eq!(choices.weight(&endpoint("10.0.0.2", "web-0")), 7);
        assert_eq!(choices.weight(&endpoint("10.0.0.2", "web-1")), 1);
        assert_eq!(choices.weight(&endpoint("fd00::1", "")), 65_535);
    }
}
