//! The Secrets of bootstrap tokens, as far as the controllers read them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use crate::meta::name;

pub(super) const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
pub(super) const NAME_PREFIX: &str = "bootstrap-token-";

/// Moment at which a token ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    Never,
    At(Timestamp),
    /// The text is no time; such a token has expired.
    Unreadable,
}

impl Expiry {
    pub(super) fn of(secret: &Secret) -> Self {
        match field(secret, "expiration") {
            None => Self::Never,
            Some(text) => apiserver_meta::time::parse(text).map_or(Self::Unreadable, Self::At),
        }
    }

    pub(super) fn is_past(self, now: Timestamp) -> bool {
        match self {
            Self::Never => false,
            Self::At(time) => time <= now,
            Self::Unreadable => true,
        }
    }
}

/// Returns identifier and secret of a token that signs `cluster-info`.
pub(super) fn signing(secret: &Secret, now: Timestamp) -> Option<(&str, &str)> {
    let id = usable(secret, "usage-bootstrap-signing", now)?;
    let key = field(secret, "token-secret").filter(|key| !key.is_empty())?;
    Some((id, key))
}

/// Returns the identifier of a token by which machines are known.
pub(super) fn authenticating(secret: &Secret, now: Timestamp) -> Option<&str> {
    usable(secret, "usage-bootstrap-authentication", now)
}

/// Returns the identifier of a token that has not ended, and has this usage.
fn usable<'a>(secret: &'a Secret, usage: &str, now: Timestamp) -> Option<&'a str> {
    let id = name(&secret.metadata).strip_prefix(NAME_PREFIX)?;
    let usable = is_id(id)
        && secret.type_.as_deref() == Some(SECRET_TYPE)
        && secret.metadata.deletion_timestamp.is_none()
        && field(secret, "token-id") == Some(id)
        && field(secret, usage) == Some("true")
        && !Expiry::of(secret).is_past(now);
    usable.then_some(id)
}

/// Returns `true` if a text is the identifier of a token by its form.
pub(super) fn is_id(text: &str) -> bool {
    text.len() == 6 && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'))
}

fn field<'a>(secret: &'a Secret, name: &str) -> Option<&'a str> {
    std::str::from_utf8(&secret.data.as_ref()?.get(name)?.0).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    /// Returns the Secret of token `abcdef`, with changes of its fields.
    pub(in crate::bootstrap) fn secret(changes: &[(&str, &str)]) -> Secret {
        let fields = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
        ];
        let fields = fields.iter().chain(changes);
        Secret {
            metadata: ObjectMeta {
                name: Some("bootstrap-token-abcdef".to_owned()),
                namespace: Some("kube-system".to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(
                fields
                    .map(|(name, value)| ((*name).to_owned(), ByteString(value.as_bytes().to_vec())))
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    #[test]
    fn only_tokens_that_have_not_ended_authenticate() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let usage = ("usage-bootstrap-authentication", "true");
        let later = ("expiration", "2026-06-01T12:00:01Z");
        assert_eq!(authenticating(&secret(&[usage]), now), Some("abcdef"));
        assert_eq!(authenticating(&secret(&[usage, later]), now), Some("abcdef"));
        assert_eq!(authenticating(&secret(&[]), now), None);
        for change in [("expiration", "2026-06-01T12:00:00Z"), ("expiration", "x"), ("token-id", "abcdeg")] {
            assert_eq!(authenticating(&secret(&[usage, change]), now), None, "{change:?}");
        }
        let mut going = secret(&[usage]);
        going.metadata.deletion_timestamp = crate::testing::time(0);
        assert_eq!(authenticating(&going, now), None);
    }

    #[test]
    fn only_valid_tokens_for_signing_sign() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        assert_eq!(signing(&secret(&[]), now), Some(("abcdef", "0123456789abcdef")));
        for (field, value) in [
            ("token-id", "abcdeg"),
            ("token-secret", ""),
            ("usage-bootstrap-signing", "false"),
            ("expiration", "2026-06-01T12:00:00Z"),
            ("expiration", "tomorrow"),
        ] {
            assert_eq!(signing(&secret(&[(field, value)]), now), None, "{field}={value}");
        }
        let mut named = secret(&[]);
        named.metadata.name = Some("abcdef".to_owned());
        assert_eq!(signing(&named, now), None);
        let mut typed = secret(&[]);
        typed.type_ = Some("Opaque".to_owned());
        assert_eq!(signing(&typed, now), None);
    }
}
