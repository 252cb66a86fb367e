//! Bootstrap tokens: Secrets in `kube-system` by which a machine that is about to join is known. A token is
//! `ID.SECRET`; its Secret is `bootstrap-token-ID`.
//!
//! A token is checked against its Secret at each use and nothing is remembered, so that deleting the Secret
//! ends it at once.

use std::collections::BTreeSet;

use apiserver_meta::identity::Identity;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value;
use subtle::ConstantTimeEq;

/// `type` of the Secrets of tokens.
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Prefix of their names.
const SECRET_PREFIX: &str = "bootstrap-token-";
/// Prefix of the users that tokens stand for.
const USER_PREFIX: &str = "system:bootstrap:";
/// Group of all those users.
const GROUP: &str = "system:bootstrappers";
/// Number of characters after `system:bootstrappers:` in a further group.
const GROUP_LENGTH: std::ops::RangeInclusive<usize> = 1..=256;

/// The Secrets of `kube-system` as they are now.
pub trait BootstrapSecrets: Send + Sync {
    /// Returns the Secret of that name.
    fn secret(&self, name: &str) -> Option<Value>;
}

/// Reason for which a bootstrap token was refused. The client is only told 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    #[error("unknown bootstrap token {0}")]
    Unknown(String),
    #[error("wrong secret for bootstrap token {0}")]
    WrongSecret(String),
    #[error("bootstrap token {0} has expired")]
    Expired(String),
    #[error("bootstrap token {0} is not meant for authentication")]
    OtherUsage(String),
    #[error("bootstrap token {id}: {group:?} is not a bootstrappers group")]
    Group { id: String, group: String },
}

/// A text with the form of a bootstrap token.
#[derive(Clone, Copy)]
pub struct BootstrapToken<'a> {
    id: &'a str,
    secret: &'a str,
}

impl<'a> BootstrapToken<'a> {
    /// Splits a text that has the form `[a-z0-9]{6}.[a-z0-9]{16}`.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (id, secret) = text.split_once('.')?;
        let fits = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'))
        };
        (fits(id, 6) && fits(secret, 16)).then_some(Self { id, secret })
    }

    /// Returns the user that the token stands for.
    pub fn authenticate(
        &self,
        secrets: &dyn BootstrapSecrets,
        now: Timestamp,
    ) -> Result<Identity, BootstrapError> {
        let id = || self.id.to_owned();
        let secret = secrets.secret(&format!("{SECRET_PREFIX}{}", self.id));
        let is_token = |secret: &Value| {
            secret["type"] == SECRET_TYPE && secret["metadata"].get("deletionTimestamp").is_none()
        };
        let secret = secret.filter(is_token).ok_or_else(|| BootstrapError::Unknown(id()))?;
        let field = |name: &str| field(&secret, name);
        let stored = field("token-secret").unwrap_or_default();
        // In constant time, so that the duration does not tell how much of a guess is right.
        if !bool::from(stored.ct_eq(self.secret.as_bytes())) {
            return Err(BootstrapError::WrongSecret(id()));
        }
        if field("token-id").as_deref() != Some(self.id.as_bytes()) {
            return Err(BootstrapError::Unknown(id()));
        }
        if field("expiration").is_some_and(|time| is_past(&time, now)) {
            return Err(BootstrapError::Expired(id()));
        }
        if field("usage-bootstrap-authentication").as_deref() != Some(b"true") {
            return Err(BootstrapError::OtherUsage(id()));
        }
        let groups = groups(field("auth-extra-groups").as_deref().unwrap_or_default())
            .map_err(|group| BootstrapError::Group { id: id(), group })?;
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        Ok(Identity::authenticated(&format!("{USER_PREFIX}{}", self.id), &groups))
    }
}

fn field(secret: &Value, name: &str) -> Option<Vec<u8>> {
    BASE64.decode(secret["data"][name].as_str()?).ok()
}

/// Returns `true` if a time has come. A text that is no time has.
fn is_past(time: &[u8], now: Timestamp) -> bool {
    let time = std::str::from_utf8(time).ok().and_then(apiserver_meta::time::parse);
    time.is_none_or(|time| time <= now)
}

/// Returns all groups of a token, or the one in the list of further groups that must not be there.
fn groups(further: &[u8]) -> Result<BTreeSet<String>, String> {
    let mut groups = BTreeSet::from([GROUP.to_owned()]);
    let further = String::from_utf8_lossy(further);
    if further.is_empty() {
        return Ok(groups);
    }
    for group in further.split(',') {
        if !is_group(group) {
            return Err(group.to_owned());
        }
        groups.insert(group.to_owned());
    }
    Ok(groups)
}

/// Returns `true` if a name is `system:bootstrappers:` with lowercase letters, digits, colons and hyphens after
/// it, the last being a letter or digit.
fn is_group(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')) else { return false };
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    GROUP_LENGTH.contains(&rest.len())
        && rest.bytes().all(|byte| plain(byte) || byte == b':' || byte == b'-')
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";
    const NOW: &str = "2026-06-01T12:00:00Z";

    /// One Secret under the name that it is asked for.
    struct One(Value);

    impl BootstrapSecrets for One {
        fn secret(&self, name: &str) -> Option<Value> {
            (self.0["metadata"]["name"] == name).then(|| self.0.clone())
        }
    }

    fn secret(changes: &[(&str, &str)]) -> Value {
        let mut data = json!({
            "token-id": "abcdef", "token-secret": "0123456789abcdef",
            "expiration": "2026-06-01T12:00:01Z", "usage-bootstrap-authentication": "true",
        });
        for (name, value) in changes {
            data[*name] = json!(value);
        }
        for value in data.as_object_mut().unwrap().values_mut() {
            *value = json!(BASE64.encode(value.as_str().unwrap()));
        }
        json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": SECRET_TYPE, "data": data})
    }

    fn authenticate(token: &str, secret: Value) -> Result<Identity, BootstrapError> {
        BootstrapToken::parse(token).unwrap().authenticate(&One(secret), NOW.parse().unwrap())
    }

    #[test]
    fn a_token_is_a_user_with_the_groups_of_its_secret() {
        let identity = authenticate(TOKEN, secret(&[])).unwrap();
        assert_eq!(identity.user, "system:bootstrap:abcdef");
        assert_eq!(identity.groups, ["system:bootstrappers", "system:authenticated"]);
        let more = "system:bootstrappers:worker,system:bootstrappers:kubeadm:default-node-token";
        let identity = authenticate(TOKEN, secret(&[("auth-extra-groups", more)])).unwrap();
        assert_eq!(
            identity.groups,
            [
                "system:bootstrappers",
                "system:bootstrappers:kubeadm:default-node-token",
                "system:bootstrappers:worker",
                "system:authenticated"
            ]
        );
    }

    #[test]
    fn secrets_that_do_not_fit_are_refused() {
        let id = || "abcdef".to_owned();
        let mut typed = secret(&[]);
        typed["type"] = json!("Opaque");
        let mut deleted = secret(&[]);
        deleted["metadata"]["deletionTimestamp"] = json!(NOW);
        let mut empty = secret(&[]);
        empty.as_object_mut().unwrap().remove("data");
        let mut renamed = secret(&[]);
        renamed["metadata"]["name"] = json!("bootstrap-token-abcdeg");
        for (secret, expected) in [
            (typed, BootstrapError::Unknown(id())),
            (deleted, BootstrapError::Unknown(id())),
            (renamed, BootstrapError::Unknown(id())),
            (empty, BootstrapError::WrongSecret(id())),
            (secret(&[("token-secret", "0123456789abcdeg")]), BootstrapError::WrongSecret(id())),
            (secret(&[("token-secret", "0123456789abcde")]), BootstrapError::WrongSecret(id())),
            (secret(&[("token-secret", "")]), BootstrapError::WrongSecret(id())),
            (secret(&[("token-id", "abcdeg")]), BootstrapError::Unknown(id())),
            (secret(&[("expiration", NOW)]), BootstrapError::Expired(id())),
            (secret(&[("expiration", "2025-06-01T12:00:01Z")]), BootstrapError::Expired(id())),
            (secret(&[("expiration", "next year")]), BootstrapError::Expired(id())),
            (secret(&[("usage-bootstrap-authentication", "yes")]), BootstrapError::OtherUsage(id())),
        ] {
            assert_eq!(authenticate(TOKEN, secret), Err(expected));
        }
    }

    #[test]
    fn no_token_is_in_a_group_of_others() {
        let long = format!("system:bootstrappers:{}", "a".repeat(257));
        for group in [
            "system:masters",
            "system:nodes",
            "system:bootstrappers",
            "system:bootstrappers:",
            "system:bootstrappers:a-",
            "system:bootstrappers:A",
            "system:bootstrappers:a,",
            "system:bootstrappers:a, system:bootstrappers:b",
            "system:bootstrappers:a\nsystem:masters",
            &long,
        ] {
            let refused = authenticate(TOKEN, secret(&[("auth-extra-groups", group)]));
            assert!(matches!(refused, Err(BootstrapError::Group { .. })), "{group:?}: {refused:?}");
        }
    }

    #[test]
    fn only_texts_of_the_form_are_tokens() {
        assert!(BootstrapToken::parse(TOKEN).is_some());
        for text in [
            "",
            "abcdef",
            "abcdef.0123456789abcde",
            "abcdef.0123456789abcdef0",
            "abcde.0123456789abcdef",
            "abcdeF.0123456789abcdef",
            "abcdef.0123456789abcde.",
            "abcdef.0123456789abcd\u{e9}",
            "../../.0123456789abcdef",
        ] {
            assert!(BootstrapToken::parse(text).is_none(), "{text:?}");
        }
    }
}
