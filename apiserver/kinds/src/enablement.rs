//! The selection of built-in APIs to serve: the defaults of Kubernetes (KEP-3136: GA on, beta and alpha off)
//! and the changes that `--runtime-config` makes to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use apiserver_registry::{Registry, Resource};

/// A name, and the predicate of the versions that it includes.
type Class = (&'static str, fn(&str) -> bool);

/// Names for versions of all groups, from the most general to the most particular: a later one overrides an
/// earlier one.
const CLASSES: [Class; 4] = [
    ("api/all", |_| true),
    ("api/ga", |version| stability(version) == Some(Stability::Ga)),
    ("api/beta", |version| stability(version) == Some(Stability::Beta)),
    ("api/alpha", |version| stability(version) == Some(Stability::Alpha)),
];

/// The stability level of a version, derived from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    Ga,
    Beta,
    Alpha,
}

/// `v1`, `v1beta2`, `v1alpha1`; `None` for other names.
pub fn stability(version: &str) -> Option<Stability> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let rest = version.strip_prefix('v')?;
    for (word, stability) in [("beta", Stability::Beta), ("alpha", Stability::Alpha)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return (digits(major) && digits(minor)).then_some(stability);
        }
    }
    digits(rest).then_some(Stability::Ga)
}

/// The value of `--runtime-config`: the APIs that are switched on and off, by name. Empty for the defaults of
/// Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enablement(BTreeMap<String, String>);

/// A `--runtime-config` that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnablementError {
    /// With nothing else there would be nothing to serve.
    #[error("invalid runtime-config with only api/all=false")]
    Nothing,
    #[error("runtime-config invalid key {0}: it is api/all, GROUP/VERSION or GROUP/VERSION/RESOURCE")]
    Key(String),
    #[error("invalid value of {key}: {value}: it is true or false")]
    Value { key: String, value: String },
    #[error("unknown api groups {0}")]
    Groups(String),
    #[error("group version {version} that has not been registered; {group} has {known}")]
    Version { group: String, version: String, known: String },
    #[error("unknown resource {resource} of {version}; it has {known}")]
    Resource { version: String, resource: String, known: String },
}

/// A key of `--runtime-config` that names a version, or a kind in it, and not a class of versions.
struct Key<'a> {
    group: &'a str,
    version: &'a str,
    resource: Option<&'a str>,
}

impl fmt::Display for Enablement {
    /// Writes the form that [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for Enablement {
    type Err = std::convert::Infallible;

    /// `KEY=VALUE,…`; a key alone is the same as `KEY=true`. Names are checked by
    /// [`Enablement::apply`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.0.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        Ok(all)
    }
}

impl Enablement {
    /// Every version of every kind.
    pub fn all() -> Self {
        Self(BTreeMap::from([("api/all".to_owned(), "true".to_owned())]))
    }

    /// Adds the entries of another one, which override equal names.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns the kinds of `registry` that are served. Unknown names are errors, so that a misspelled name
    /// is not ignored.
    pub fn apply(&self, registry: &Registry) -> Result<Registry, EnablementError> {
        let served = self.served_resources(registry)?;
        Ok(registry.only(|resource| served(resource)))
    }

    /// Returns a function that decides whether a kind is served.
    fn served_resources(&self, registry: &Registry) -> Result<impl Fn(&Resource) -> bool, EnablementError> {
        if self.0.len() == 1 && self.0.get("api/all").is_some_and(|value| value == "false") {
            return Err(EnablementError::Nothing);
        }
        let mut classes = Vec::new();
        for (name, matches) in CLASSES {
            if let Some(value) = self.0.get(name) {
                // Only these two values are accepted here, as in Kubernetes.
                let on = match value.as_str() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(EnablementError::Value { key: name.to_owned(), value: value.clone() }),
                };
                classes.push((matches, on));
            }
        }
        let (mut versions, mut resources, mut unknown) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (text, value) in &self.0 {
            if CLASSES.iter().any(|(name, _)| name == text) {
                continue;
            }
            let key = parse(text)?;
            if !registry.iter().any(|r| r.group == key.group) {
                unknown.insert(format!("{}/{}", key.group, key.version));
                continue;
            }
            check(&key, registry)?;
            let on = truth(text, value)?;
            let place = (key.group.to_owned(), key.version.to_owned());
            match key.resource {
                None => drop(versions.insert(place, on)),
                Some(resource) => drop(resources.insert((place, resource.to_owned()), on)),
            }
        }
        if !unknown.is_empty() {
            return Err(EnablementError::Groups(unknown.into_iter().collect::<Vec<_>>().join(",")));
        }
        Ok(move |resource: &Resource| {
            let place = (resource.group.clone(), resource.version.clone());
            if let Some(on) = resources.get(&(place.clone(), resource.plural.clone())) {
                return *on;
            }
            if let Some(on) = versions.get(&place) {
                return *on;
            }
            let class = classes.iter().rev().find(|(matches, _)| matches(&resource.version));
            class.map_or_else(|| stability(&resource.version) == Some(Stability::Ga), |(_, on)| *on)
        })
    }
}

/// `v1` and `/v1` are the core group's.
fn parse(text: &str) -> Result<Key<'_>, EnablementError> {
    let mut parts = text.split('/');
    let parts = (parts.next(), parts.next(), parts.next(), parts.next());
    let (group, version, resource) = match parts {
        (Some("v1"), None, _, _) => ("", "v1", None),
        (Some(group), Some(version), resource, None) => (group, version, resource),
        _ => return Err(EnablementError::Key(text.to_owned())),
    };
    Ok(Key { group, version, resource })
}

/// Checks that the version exists, and that it has the kind if one is named.
fn check(key: &Key<'_>, registry: &Registry) -> Result<(), EnablementError> {
    let api_version =
        if key.group.is_empty() { key.version.to_owned() } else { format!("{}/{}", key.group, key.version) };
    let of_group: Vec<_> = registry.iter().filter(|r| r.group == key.group).collect();
    let of_version: Vec<_> = of_group.iter().filter(|r| r.version == key.version).collect();
    let join = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    if of_version.is_empty() {
        return Err(EnablementError::Version {
            group: if key.group.is_empty() { "the core group" } else { key.group }.to_owned(),
            version: api_version,
            known: join(of_group.iter().map(|r| r.version.as_str()).collect()),
        });
    }
    match key.resource {
        Some(resource) if !of_version.iter().any(|r| r.plural == resource) => {
            Err(EnablementError::Resource {
                version: api_version,
                resource: resource.to_owned(),
                known: join(of_version.iter().map(|r| r.plural.as_str()).collect()),
            })
        }
        _ => Ok(()),
    }
}

/// Parses a boolean as Go does; an empty value is true.
fn truth(key: &str, value: &str) -> Result<bool, EnablementError> {
    match value {
        "" | "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(EnablementError::Value { key: key.to_owned(), value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(text: &str) -> Result<BTreeSet<String>, EnablementError> {
        let Ok(enablement) = text.parse::<Enablement>();
        let registry = enablement.apply(&crate::registry())?;
        Ok(registry.iter().map(|r| format!("{}/{}", r.api_version(), r.plural)).collect())
    }

    #[test]
    fn versions_tell_their_stability() {
        assert_eq!(stability("v1"), Some(Stability::Ga));
        assert_eq!(stability("v12"), Some(Stability::Ga));
        assert_eq!(stability("v1beta2"), Some(Stability::Beta));
        assert_eq!(stability("v2alpha1"), Some(Stability::Alpha));
        for other in ["", "v", "1", "v1gamma1", "vbeta1", "v1beta", "valpha"] {
            assert_eq!(stability(other), None, "{other}");
        }
    }

    #[test]
    fn beta_and_alpha_versions_are_off_by_default() {
        let plain = served("").unwrap();
        assert!(plain.contains("v1/pods") && plain.contains("networking.k8s.io/v1/ipaddresses"));
        assert!(!plain.iter().any(|path| path.contains("beta") || path.contains("alpha")), "{plain:?}");
        let all = served("api/all=true").unwrap();
        assert_eq!(all.len(), crate::registry().iter().count());
        let beta = served("api/beta=true").unwrap();
        assert!(beta.contains("networking.k8s.io/v1beta1/ipaddresses"));
        assert!(beta.is_superset(&plain) && !beta.iter().any(|path| path.contains("alpha")));
    }

    #[test]
    fn specific_settings_override_general_ones() {
        let served = served(
            "api/all=true,api/alpha=false,resource.k8s.io/v1beta1=false,resource.k8s.io/v1beta1/resourceslices=true,\
             apps/v1/replicasets=false,scheduling.k8s.io/v1alpha2",
        )
        .unwrap();
        assert!(served.contains("resource.k8s.io/v1beta1/resourceslices"));
        assert!(!served.contains("resource.k8s.io/v1beta1/resourceclaims"));
        assert!(served.contains("resource.k8s.io/v1beta2/resourceclaims"));
        assert!(!served.contains("apps/v1/replicasets") && served.contains("apps/v1/deployments"));
        assert!(served.contains("scheduling.k8s.io/v1alpha2/workloads"));
        assert!(!served.contains("certificates.k8s.io/v1alpha1/clustertrustbundles"));
    }

    #[test]
    fn the_core_group_is_spelled_in_two_ways() {
        let without = served("api/all=false,v1=true").unwrap();
        assert!(without.contains("v1/pods") && !without.contains("apps/v1/deployments"));
        assert_eq!(without, served("api/all=false,/v1=true").unwrap());
    }

    #[test]
    fn unknown_names_are_errors() {
        for (text, why) in [
            ("api/all=false", "with only api/all=false"),
            ("api/all=maybe", "invalid value of api/all: maybe"),
            ("apps=true", "invalid key apps"),
            ("a/b/c/d=true", "invalid key a/b/c/d"),
            ("apps/v1=perhaps", "invalid value of apps/v1: perhaps"),
            (
                "extensions/v1beta1=true,foo.example.com/v1",
                "unknown api groups extensions/v1beta1,foo.example.com/v1",
            ),
            (
                "batch/v2alpha1=true",
                "group version batch/v2alpha1 that has not been registered; batch has v1",
            ),
            (
                "apps/v1/deployment=true",
                "unknown resource deployment of apps/v1; it has controllerrevisions, ",
            ),
        ] {
            let error = served(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
