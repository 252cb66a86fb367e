//! `--etcd-prefix`: what stands in etcd where the server's keys begin with `/registry`.

use std::sync::Arc;

use crate::StoreError;

/// What the server's keys begin with.
const OWN: &str = "/registry";

/// The translation of keys; by default there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefix {
    /// Without a slash at its end; `None` where it is the same.
    theirs: Option<Arc<str>>,
}

impl Prefix {
    /// `/other`, `other` and `/other/` are the same, as in Kubernetes.
    pub(super) fn new(prefix: &str) -> Result<Self, StoreError> {
        let name = prefix.trim_matches('/');
        if name.is_empty() {
            return Err(StoreError::Broken {
                attempted: "read the prefix of etcd's keys".to_owned(),
                why: format!(
                    "{prefix:?} names nothing: with it the keys of others would be taken for objects"
                ),
                cause: None,
            });
        }
        let theirs = format!("/{name}");
        Ok(Self { theirs: (theirs != OWN).then(|| theirs.into()) })
    }

    /// A key, or the beginning of one, as etcd has it.
    pub(super) fn outward(&self, key: &str) -> String {
        exchange(key, OWN, self.theirs.as_deref().unwrap_or(OWN))
    }

    /// A key as the server knows it.
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
    fn keys_go_there_and_back() {
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
