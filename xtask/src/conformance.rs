//! Checks that the tests named in `docs/conformance.md` exist.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

const DOCUMENT: &str = "docs/conformance.md";

/// Prefixes of test names in the document, and the folder or file of the tests.
const SUITES: &[(&str, &str)] = &[
    ("conformance", "apiserver/server/tests/conformance"),
    ("api", "apiserver/server/tests/api"),
    ("kubectl", "tests/clients/tests/kubectl"),
    ("kube_rs", "tests/clients/tests/kube_rs"),
    ("languages", "tests/clients/tests/languages.rs"),
    ("client_go", "tests/clients/tests/client_go.rs"),
];

/// Returns rows that claim to pass but name no test, and named tests that do not exist.
pub fn breaches() -> Result<Vec<String>> {
    let path = shell::root().join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    Ok(check(&text, &|file| fs::read_to_string(shell::root().join(file)).ok()))
}

fn check(document: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut seen = 0;
    for (number, line) in document.lines().enumerate() {
        let tests: Vec<(PathBuf, &str)> = tests(line).collect();
        seen += tests.len();
        for (file, test) in &tests {
            let there = read(file).is_some_and(|source| source.contains(&format!("fn {test}(")));
            if !there {
                breaches.push(format!("{DOCUMENT}:{}: {} has no test {test}", number + 1, file.display()));
            }
        }
        let state = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        if line.starts_with("| ") && state.starts_with("passes") && tests.is_empty() {
            breaches.push(format!("{DOCUMENT}:{}: the row passes but names no test", number + 1));
        }
    }
    if seen == 0 {
        breaches.push(format!("{DOCUMENT} names no tests"));
    }
    breaches
}

/// Returns the tests that a line names between backquotes: file and function.
fn tests(line: &str) -> impl Iterator<Item = (PathBuf, &str)> {
    line.split('`').skip(1).step_by(2).filter_map(|name| {
        let mut parts = name.split("::");
        let place = parts.next()?;
        let (_, place) = SUITES.iter().find(|(suite, _)| *suite == place)?;
        let parts: Vec<&str> = parts.collect();
        match parts.as_slice() {
            [test] if Path::new(place).extension().is_some() => Some((PathBuf::from(place), *test)),
            [module, test] => Some((Path::new(place).join(format!("{module}.rs")), *test)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;

    #[test]
    fn missing_tests_and_rows_without_tests_are_reported() {
        let read = |file: &Path| {
            (file == Path::new("tests/clients/tests/kubectl/get.rs")).then(|| "fn one() {}".to_owned())
        };
        let good = "| a | `kubectl::get::one` | passes |\n| b | | later: x |";
        assert!(check(good, &read).is_empty());
        assert_eq!(check("| a | `kubectl::get::two`, `kubectl::get::one` | passes |", &read).len(), 1);
        assert_eq!(check("| a | `kubectl::set::one` | passes |", &read).len(), 1);
        assert_eq!(check(&format!("{good}\n| c | | passes; mostly |"), &read).len(), 1);
        assert_eq!(check("nothing", &read).len(), 1);
    }
}
