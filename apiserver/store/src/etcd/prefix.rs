//! `--etcd-prefix`: replaces `/registry` at the beginning of keys in etcd.

use std::sync::Arc;

use crate::StoreError;

/// Prefix of the server's own keys.
const OWN: &str = "/registry";

/// Translation of keys; the default leaves them unchanged.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefix {
    /// Prefix in etcd without a trailing slash; `None` if it is the same.
    theirs: Option<Arc<str>>,
}

impl Prefix {
    /// Creates the translation. `/other`, `other` and `/other/` are equivalent, as in Kubernetes.
    pub(super) fn new(prefix: &str) -> Result<Self, StoreError> {
        let name = prefix.trim_matches('/');
        if name.is_empty() {
            return Err(StoreError::Broken {
                attempted: "parse the prefix of etcd's keys".to_owned(),
                why: format!("{prefix:?} is empty: keys of other programs would be read as objects"),
                cause: None,
            });
        }
        let theirs = format!("/{name}");
        Ok(Self { theirs: (theirs != OWN).then(|| theirs.into()) })
    }

    /// Translates a key, or a prefix of one, to etcd.
    pub(super) fn outward(&self, key: &str) -> String {
        exchange(key, OWN, self.theirs.as_deref().unwrap_or(OWN))
    }

    /// Translates a key from etcd.
    pub(super) fn inward(&self, key: String) -> String {
        match self.theirs.as_deref() {
            Some(theirs) => exchange(&key, theirs, OWN),
            None => key,
        }
    }
}

fn exchange(key: &str, from: &str, to: &str) -> String {
    match key.strip_prefix(from) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_translated_both_ways() {
        for spelled in ["/other", "other", "/other/"] {
            let prefix = Prefix::new(spelled).unwrap();
            assert_eq!(prefix.outward("/registry/pods/a"), "/other/pods/a");
            assert_eq!(prefix.outward("/registry/"), "/other/");
            assert_eq!(prefix.outward("/registryx/"), "/registryx/");
            assert_eq!(prefix.inward("/other/pods/a".to_owned()), "/registry/pods/a");
        }
        let same = Prefix::new("registry").unwrap();
        assert_eq!(same.outward("/registry/a"), "/registry/a");
        assert_eq!(same.inward("/registry/a".to_owned()), "/registry/a");
        assert!(Prefix::new("/").is_err());
    }
}
