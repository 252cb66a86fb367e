//! Namespaces with their labels, and which of them a term selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::Labels;

use crate::limits;
use crate::pod::{Listed, TermNamespaces};
use crate::selector::Selector;

/// A set of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespaces {
    All,
    One(Arc<str>),
    /// Sorted.
    Names(Arc<Vec<Arc<str>>>),
}

impl Namespaces {
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => &**one == name,
            Self::Names(names) => names.binary_search_by(|other| (**other).cmp(name)).is_ok(),
        }
    }
}

/// Labels of the namespaces.
#[derive(Debug, Default)]
pub struct NamespaceLabels {
    labels: BTreeMap<Arc<str>, Labels>,
    /// The namespaces that terms of incoming pods select.
    selected: BTreeMap<Arc<Listed>, Namespaces>,
}

impl NamespaceLabels {
    /// Sets the labels of a namespace, and returns `true` if they were others; `None` if the namespace is gone.
    pub fn set(&mut self, name: &str, labels: Option<Labels>) -> bool {
        if self.labels.get(name) == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => drop(self.labels.insert(name.into(), labels)),
            None => drop(self.labels.remove(name)),
        }
        self.selected.clear();
        true
    }

    /// Returns the labels of a namespace; none if it is not known.
    pub fn labels(&self, name: &str) -> &Labels {
        static NONE: Labels = Labels::new();
        self.labels.get(name).unwrap_or(&NONE)
    }

    /// Remembers the namespaces that a term of an incoming pod selects.
    pub fn add(&mut self, namespaces: &TermNamespaces) {
        let TermNamespaces::Listed(listed) = namespaces else { return };
        if self.selected.contains_key(listed) {
            return;
        }
        if self.selected.len() >= limits::SELECTED_NAMESPACES {
            self.selected.clear();
        }
        let selected = self.select(listed);
        self.selected.insert(Arc::clone(listed), selected);
    }

    /// Returns the namespaces that a term of a pod of namespace `own` selects.
    pub fn resolve(&self, namespaces: &TermNamespaces, own: &Arc<str>) -> Namespaces {
        match namespaces {
            TermNamespaces::Own => Namespaces::One(Arc::clone(own)),
            TermNamespaces::Listed(listed) => {
                self.selected.get(listed).cloned().unwrap_or_else(|| self.select(listed))
            }
        }
    }

    fn select(&self, listed: &Listed) -> Namespaces {
        // kube-scheduler adds the namespaces that the selector matches to the names, and then still compares the
        // selector, with no labels: one that matches these selects all namespaces.
        if listed.selector.matches(&Labels::new()) {
            return Namespaces::All;
        }
        let matching = self.labels.iter().filter(|(_, labels)| listed.selector.matches(labels));
        let mut names = listed.names.clone();
        names.extend(matching.map(|(name, _)| Arc::clone(name)));
        names.sort_unstable();
        names.dedup();
        Namespaces::Names(Arc::new(names))
    }

    /// Returns `true` if a term of a placed pod selects a namespace.
    pub fn reaches(&self, listed: &Listed, namespace: &str) -> bool {
        listed.names.binary_search_by(|name| (**name).cmp(namespace)).is_ok()
            || (listed.selector != Selector::Nothing && listed.selector.matches(self.labels(namespace)))
    }
}
