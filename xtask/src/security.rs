//! Checks that `docs/security.md` names tests that exist, and that no vulnerability in it goes without one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

const DOCUMENT: &str = "docs/security.md";
/// How the last cell of a row begins for what this project does not have.
const ABSENT: &str = "not here";

/// The tests that the document names and that do not exist, and the rows that nothing shows.
pub fn breaches() -> Result<Vec<String>> {
    let path = shell::root().join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    Ok(check(&text, &|file| fs::read_to_string(shell::root().join(file)).ok()))
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

/// The `FILE.rs::FUNCTION` references between backquotes in a line.
fn tests(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let names = line.split('`').skip(1).step_by(2).filter(|name| name.contains(".rs::"));
    names.filter_map(|name| name.rsplit_once("::"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;

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
