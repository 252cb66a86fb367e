//! Features of third-party crates in different selections of packages.
//!
//! Cargo unites features over the selected packages. Where a selection gives a crate other features than the
//! whole workspace does, that crate and everything above it is compiled a second time. `xtask-features` prevents
//! it: every package depends on it, and it names the features that the workspace uses.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::shell;

/// The package that names the features.
pub const PACKAGE: &str = "xtask-features";
/// Packages that are small and start a fresh clone: they are built before or apart from the others.
const SMALL: &[&str] = &["ebpf-common", "ebpf-programs", "tests-echo", "xtask", PACKAGE];
const WORKSPACE: [&str; 3] = ["--workspace", "--exclude", "ebpf-programs"];
/// Dependencies that are compiled for the target, each with one set of features.
const TARGET: &str = "no-build,no-proc-macro";
/// All dependencies; those that are also compiled for build scripts and macros can have two sets.
const ALL: &str = "normal,build,dev";

/// Crates with their versions, each with its sets of features.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Compares the features in the tests of each member with those in the tests of the workspace.
pub fn breaches(members: &[&str]) -> Result<Vec<String>> {
    let mut breaches = BTreeMap::new();
    // For build scripts and macros one package stands for all, because asking takes a fifth of a second.
    for (edges, members) in [(TARGET, members), (ALL, &["userspace-hawser"])] {
        let whole = features(&WORKSPACE, edges)?;
        for member in members.iter().filter(|name| !SMALL.contains(name)) {
            let own = features(&["--package", member], edges)?;
            for (name, set) in differences(&own, &whole) {
                let known = whole.get(name).into_iter().flatten().map(String::as_str);
                let text = format!(
                    "{name} has the features \"{set}\" in the tests of {member} and \"{}\" in those of the whole \
                     workspace: name them in xtask/features/Cargo.toml",
                    known.collect::<Vec<_>>().join("\" or \"")
                );
                breaches.entry(name.to_owned()).or_insert(text);
            }
        }
    }
    Ok(breaches.into_values().collect())
}

/// Returns the crates of a selection with a set of features that the workspace does not give them.
fn differences<'a>(own: &'a Features, whole: &'a Features) -> impl Iterator<Item = (&'a str, &'a str)> {
    own.iter().flat_map(move |(name, sets)| {
        let known = whole.get(name);
        let new = move |set: &&String| !known.is_some_and(|known| known.contains(*set));
        sets.iter().filter(new).map(move |set| (name.as_str(), set.as_str()))
    })
}

fn features(selection: &[&str], edges: &str) -> Result<Features> {
    let format = ["tree", "--prefix", "none", "--format", "{p}|{f}", "--edges", edges];
    Ok(parse(&shell::output(shell::cargo().args(format).args(selection))?))
}

/// Parses lines such as `serde v1.0.229|default,std` and `serde v1.0.229|default,std (*)`.
fn parse(tree: &str) -> Features {
    let mut features = Features::new();
    for line in tree.lines() {
        let line = line.strip_suffix(" (*)").unwrap_or(line);
        let Some((package, set)) = line.split_once('|') else { continue };
        let name = package.split(" (").next().unwrap_or(package);
        features.entry(name.to_owned()).or_default().insert(set.to_owned());
    }
    features
}

#[cfg(test)]
mod tests {
    use super::{differences, parse};

    #[test]
    fn crate_with_fewer_features_in_a_selection_is_reported() {
        let whole = parse("a v1.0.0|default,std\nb v2.0.0 (proc-macro)|\na v1.0.0|default,std (*)\n");
        assert_eq!(differences(&parse("a v1.0.0|default,std\nb v2.0.0|"), &whole).count(), 0);
        let fewer = parse("a v1.0.0|std\nb v2.0.0|");
        assert_eq!(differences(&fewer, &whole).collect::<Vec<_>>(), [("a v1.0.0", "std")]);
    }
}
