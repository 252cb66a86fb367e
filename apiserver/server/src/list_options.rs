//! The options of a list or watch, as Kubernetes reads and judges them (`meta/v1 ListOptions`,
//! KEP-2523, KEP-3157).

use std::num::{IntErrorKind, ParseIntError};

use apiserver_schema::error::{ApiError, FieldError};
use apiserver_store::Revision;
use serde_json::Value;

use crate::query::Query;

/// The meaning of `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    NotOlderThan,
    Exact,
}

/// The options of a client besides its selectors.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// `resourceVersion`; `None`: not given or empty.
    pub version: Option<String>,
    pub rule: Option<Match>,
    /// The largest number of objects; 0: no limit.
    pub limit: usize,
    /// The token of the page before.
    pub token: Option<String>,
    /// `sendInitialEvents` with its default: a watch without a version, or from 0, gets them.
    pub send_initial: Option<bool>,
    pub bookmarks: bool,
    /// Seconds; `None`: not given or 0.
    pub timeout: Option<i64>,
}

impl ListOptions {
    /// Reads and judges them. 400 for what cannot be read, 422 for what makes no sense together.
    pub fn read(query: &Query) -> Result<Self, ApiError> {
        let watch = query.flag("watch");
        let limit = query.integer("limit")?.unwrap_or(0);
        let timeout = query.integer("timeoutSeconds")?.filter(|seconds| *seconds != 0);
        let version = query.get("resourceVersion").map(str::to_owned);
        let mut rule = query.get("resourceVersionMatch").map(str::to_owned);
        let mut send_initial = query.all("sendInitialEvents").next().map(|_| query.flag("sendInitialEvents"));
        let legacy = version.as_deref().is_none_or(|version| version == "0");
        if watch && legacy && send_initial.is_none() && rule.is_none() {
            (send_initial, rule) = (Some(true), Some("NotOlderThan".to_owned()));
        }
        let token = query.get("continue").map(str::to_owned);
        let errors = if watch {
            watch_errors(rule.as_deref(), send_initial, token.is_some())
        } else {
            list_errors(rule.as_deref(), version.as_deref(), send_initial, token.is_some())
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &errors));
        }
        let rule = match rule.as_deref() {
            Some("Exact") => Some(Match::Exact),
            Some(_) => Some(Match::NotOlderThan),
            None => None,
        };
        let bookmarks = query.flag("allowWatchBookmarks");
        // A client that accepts any state gets all of it, as from Kubernetes' watch cache.
        let limit = if version.as_deref() == Some("0") { 0 } else { usize::try_from(limit).unwrap_or(0) };
        Ok(Self { version, rule, limit, token, send_initial, bookmarks, timeout })
    }

    /// Returns the version asked for; `None`: the newest. 400 if it is not a number.
    pub fn revision(&self) -> Result<Option<Revision>, ApiError> {
        revision(self.version.as_deref())
    }

    /// Returns the revision of a watch; a version that is not a number is 500, as in Kubernetes.
    pub fn revision_of_watch(&self) -> Result<Option<Revision>, ApiError> {
        revision_of_get(self.version.as_deref())
    }
}

/// Returns the error for a text that is not a version, in Go's words.
pub fn unread(text: &str, error: &ParseIntError) -> String {
    let why = match error.kind() {
        IntErrorKind::PosOverflow => "value out of range",
        _ => "invalid syntax",
    };
    format!("strconv.ParseUint: parsing {text:?}: {why}")
}

/// Reads `resourceVersion` of a list or watch; 400 if it is not a number.
pub fn revision(text: Option<&str>) -> Result<Option<Revision>, ApiError> {
    read_revision(text).map_err(|why| ApiError::bad_request(format!("invalid resource version: {why}")))
}

/// Reads `resourceVersion` of a get. If it is not a number that is 500, as it is in Kubernetes.
pub fn revision_of_get(text: Option<&str>) -> Result<Option<Revision>, ApiError> {
    read_revision(text).map_err(|why| ApiError::new(500, "", why))
}

fn read_revision(text: Option<&str>) -> Result<Option<Revision>, String> {
    let parse = |text: &str| {
        // Larger ones cannot be revisions; they are in the future like the largest that can.
        let read = text.parse::<u64>().map(|number| Revision::try_from(number).unwrap_or(Revision::MAX));
        read.map_err(|error| format!("resourceVersion: Invalid value: {text:?}: {}", unread(text, &error)))
    };
    text.filter(|text| !text.is_empty()).map(parse).transpose()
}

const MATCH: &str = "resourceVersionMatch";

fn list_errors(
    rule: Option<&str>,
    version: Option<&str>,
    send_initial: Option<bool>,
    continued: bool,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut forbid = |field: &str, why: &str| errors.push(FieldError::forbidden(field, why));
    if rule.is_some() && version.is_none() {
        forbid(MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided");
    }
    if rule.is_some() && continued {
        forbid(MATCH, "resourceVersionMatch is forbidden when continue is provided");
    }
    if rule == Some("Exact") && version == Some("0") {
        forbid(MATCH, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
    }
    if send_initial.is_some() {
        forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if let Some(other) = rule.filter(|rule| !matches!(*rule, "Exact" | "NotOlderThan")) {
        let at = errors.iter().position(|e| e.field != MATCH).unwrap_or(errors.len());
        errors.insert(at, unsupported(other, &["Exact", "NotOlderThan", ""]));
    }
    errors
}

fn watch_errors(rule: Option<&str>, send_initial: Option<bool>, continued: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if send_initial.is_some() && rule != Some("NotOlderThan") {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    let Some(rule) = rule else { return errors };
    if send_initial.is_none() {
        let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    if rule != "NotOlderThan" {
        errors.push(unsupported(rule, &["NotOlderThan"]));
    }
    if continued {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    errors
}

fn unsupported(rule: &str, supported: &[&str]) -> FieldError {
    FieldError::not_supported(MATCH, &Value::from(rule), supported)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ListOptions, ApiError> {
        ListOptions::read(&Query::parse(text))
    }

    #[test]
    fn watch_without_a_version_gets_initial_events_unless_it_declines_them() {
        let table = [
            ("watch=1", Some(true)),
            ("watch=1&resourceVersion=0", Some(true)),
            ("watch=1&resourceVersion=5", None),
            ("watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", Some(false)),
            ("", None),
        ];
        for (query, expected) in table {
            assert_eq!(read(query).unwrap().send_initial, expected, "{query}");
        }
    }

    #[test]
    fn resource_version_with_a_sign_or_letters_is_refused() {
        assert_eq!(revision(None), Ok(None));
        assert_eq!(revision(Some("")), Ok(None));
        assert_eq!(revision(Some("7")), Ok(Some(7)));
        assert_eq!(revision(Some("18446744073709551615")), Ok(Some(Revision::MAX)));
        for (text, why) in [
            ("-1", "invalid syntax"),
            ("x", "invalid syntax"),
            ("18446744073709551616", "value out of range"),
        ] {
            assert!(revision(Some(text)).unwrap_err().message.ends_with(why), "{text}");
        }
    }
}
