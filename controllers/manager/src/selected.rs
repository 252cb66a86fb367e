//! Which controllers run, as `--controllers` says it.

/// The controllers that run. The first entry of the list that names a controller decides on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected(Option<Vec<Entry>>);

/// An entry of a list of controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// `*`: those that run by default.
    Default,
    Run(&'static str),
    /// A name with `-` before it.
    Leave(&'static str),
}

impl Selected {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        Self(Some(entries))
    }

    /// Returns `true` if the controller runs; `default` is whether `*` selects it. Without a list all run.
    pub(crate) fn runs(&self, controller: &str, default: bool) -> bool {
        let Some(entries) = &self.0 else { return true };
        let decided = entries.iter().find_map(|entry| match entry {
            Entry::Run(name) => (*name == controller).then_some(true),
            Entry::Leave(name) => (*name == controller).then_some(false),
            Entry::Default => None,
        });
        decided.unwrap_or_else(|| default && entries.contains(&Entry::Default))
    }
}
