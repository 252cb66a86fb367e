//! Checks that the tests named in `docs/security.md` exist, that every vulnerability in it has one, and that
//! every parser of untrusted input has a fuzz target or a reason for having none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

const DOCUMENT: &str = "docs/security.md";
/// Prefix of the last cell of rows that do not apply to this project.
const ABSENT: &str = "not here";
/// Prefix of the header of the table of parsers.
const PARSERS: &str = "| what is read |";
/// Prefixes of the last cell of rows about parsers that need no fuzz target of ours.
const EXEMPT: [&str; 3] = ["fuzzed upstream", "trusted", "the kernel's verifier"];

/// Returns named tests that do not exist, and rows without tests.
pub fn breaches() -> Result<Vec<String>> {
    let path = shell::root().join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let mut breaches = check(&text, &|file| fs::read_to_string(shell::root().join(file)).ok());
    breaches.extend(unfuzzed(&text, &targets()?));
    Ok(breaches)
}

/// Returns the names of the fuzz targets, which are those of their corpora.
fn targets() -> Result<BTreeSet<String>> {
    let corpus = shell::root().join("tests/fuzz/corpus");
    let unread = || format!("cannot list {}", corpus.display());
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&corpus).with_context(unread)? {
        names.insert(entry.with_context(unread)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// Returns rows of the table of parsers that have neither a fuzz target nor a reason, and targets without a
/// row.
fn unfuzzed(document: &str, targets: &BTreeSet<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut unnamed: BTreeSet<&str> = targets.iter().map(String::as_str).collect();
    let lines = document.lines().enumerate().skip_while(|(_, line)| !line.starts_with(PARSERS));
    for (number, line) in lines.skip(2).take_while(|(_, line)| line.starts_with('|')) {
        let cell = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let names: Vec<&str> =
            cell.split('`').skip(1).step_by(2).filter(|name| targets.contains(*name)).collect();
        if names.is_empty() && !EXEMPT.iter().any(|reason| cell.starts_with(reason)) {
            breaches.push(format!(
                "{DOCUMENT}:{}: no fuzz target, and none of: {}",
                number + 1,
                EXEMPT.join(", ")
            ));
        }
        unnamed.retain(|name| !names.contains(name));
    }
    breaches
        .extend(unnamed.iter().map(|name| format!("{DOCUMENT}: no parser is fuzzed by the target {name}")));
    breaches
}

fn check(document: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut rows = 0;
    for (number, line) in document.lines().enumerate() {
        let mut breach = |what: String| breaches.push(format!("{DOCUMENT}:{}: {what}", number + 1));
        let mut shown = 0;
        for (file, test) in tests(line) {
            shown += 1;
            let source = read(Path::new(file));
            if !source.is_some_and(|source| source.contains(&format!("fn {test}("))) {
                breach(format!("{file} has no function {test}"));
            }
        }
        if line.starts_with("| CVE-") {
            rows += 1;
            let cell = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
            if shown == 0 && !cell.starts_with(ABSENT) {
                breach(format!("no test shows it, and its last cell does not begin with \"{ABSENT}\""));
            }
        }
    }
    if rows == 0 {
        breaches.push(format!("{DOCUMENT} lists no vulnerabilities"));
    }
    breaches
}

/// Returns the `FILE.rs::FUNCTION` references between backquotes in a line.
fn tests(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let names = line.split('`').skip(1).step_by(2).filter(|name| name.contains(".rs::"));
    names.filter_map(|name| name.rsplit_once("::"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{check, unfuzzed};

    #[test]
    fn parsers_without_a_fuzz_target_and_targets_without_a_parser_are_found() {
        let targets = ["body", "frames"].map(str::to_owned).into();
        let table = |rows: &str| {
            format!("text\n\n| what is read | x | fuzz target |\n|---|---|---|\n{rows}\n\n| a | b |")
        };
        let good = "| JSON | x | `body`; `a/b.rs` |\n| frames | x | fuzzed upstream; `frames` |\n| TLS | x | trusted |";
        assert_eq!(unfuzzed(&table(good), &targets), Vec::<String>::new());
        let bad = "| JSON | x | none yet |\n| frames | `body` | `a/b.rs` |";
        let found = unfuzzed(&table(bad), &targets);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("docs/security.md:5: no fuzz target"), "{found:?}");
        assert_eq!(found[3], "docs/security.md: no parser is fuzzed by the target frames");
    }

    #[test]
    fn rows_without_a_test_and_tests_that_do_not_exist_are_found() {
        let read = |file: &Path| (file == Path::new("a/b.rs")).then(|| "fn one() {}".to_owned());
        let good = "| CVE-2020-1 | x | `a/b.rs::one` |\n| CVE-2020-2 | x | not here: Windows |";
        assert_eq!(check(good, &read), Vec::<String>::new());
        assert_eq!(check("| CVE-2020-1 | x | `a/b.rs::two` |", &read).len(), 1);
        assert_eq!(check("| CVE-2020-1 | x | `a/c.rs::one` |", &read).len(), 1);
        assert_eq!(check("| CVE-2020-1 | not here at all | closed |", &read).len(), 1);
        assert_eq!(check("nothing", &read), ["docs/security.md lists no vulnerabilities"]);
    }
}
