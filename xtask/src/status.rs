//! Checks that the tests named in `docs/status.md` exist.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

use crate::shell;

const DOCUMENT: &str = "docs/status.md";

/// Returns the files and folders that the column "shown by" names but that do not exist.
pub fn breaches() -> Result<Vec<String>> {
    let path = shell::root().join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    // Uncommitted files count as well.
    let listed = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let files = shell::output(std::process::Command::new("git").current_dir(shell::root()).args(listed))?;
    let there = |file: &&str| shell::root().join(file).exists();
    Ok(check(&text, &endings(files.lines().filter(there))))
}

/// Returns all suffixes of the paths of files and of their folders: for `a/b/c.rs` these are `c.rs`,
/// `b/c.rs`, `a/b`, …
fn endings<'a>(files: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut endings = BTreeSet::new();
    for file in files {
        let begins = || std::iter::once(0).chain(file.match_indices('/').map(|(at, _)| at + 1));
        let ends = file.match_indices('/').map(|(at, _)| at).chain([file.len()]);
        for end in ends {
            endings.extend(begins().take_while(|begin| *begin < end).map(|begin| &file[begin..end]));
        }
    }
    endings
}

fn check(document: &str, known: &BTreeSet<&str>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut seen = 0;
    for (number, line) in document.lines().enumerate() {
        for path in paths(line) {
            seen += 1;
            // The name of a module may lack the extension.
            if !known.contains(path.as_str()) && !known.contains(format!("{path}.rs").as_str()) {
                breaches.push(format!("{DOCUMENT}:{}: there is no {path}", number + 1));
            }
        }
    }
    if seen == 0 {
        breaches.push(format!("{DOCUMENT} names no tests"));
    }
    breaches
}

/// Returns the paths between backquotes in the last cell of a row of three, with braces expanded. Words with
/// blanks or colons are commands or test names.
fn paths(line: &str) -> Vec<String> {
    let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix('|')) else {
        return Vec::new();
    };
    let Some((_, cell)) = row.trim_end().rsplit_once('|') else { return Vec::new() };
    let names = cell.split('`').skip(1).step_by(2);
    let names = names.filter(|name| !name.contains(' ') && !name.contains("::"));
    names.flat_map(expanded).map(|path| path.trim_end_matches('/').to_owned()).collect()
}

/// Expands `a/{b,c}.rs` as a shell does.
fn expanded(name: &str) -> Vec<String> {
    let Some((head, (inside, tail))) =
        name.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)))
    else {
        return vec![name.to_owned()];
    };
    inside.split(',').flat_map(|one| expanded(&format!("{head}{one}{tail}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, endings, expanded};

    #[test]
    fn missing_tests_are_reported() {
        let files = ["a/server/tests/api/one.rs", "a/server/tests/two.rs", "docs/x.md"];
        let known = endings(files.into_iter());
        let good = "| f | works, `nothing.rs` | `api/one.rs`, `server/tests/{two.rs,api/one.rs}`, `tests/api/`, `two` |\n\
                    | g | works | `cargo xtask test --all`, `some::test`, [x](x.md) |\n\
                    | h | missing | |";
        assert_eq!(check(good, &known), Vec::<String>::new());
        let told = |cell: &str| check(&format!("{good}\n| i | works | {cell} |"), &known);
        assert_eq!(told("`api/three.rs`"), ["docs/status.md:4: there is no api/three.rs"]);
        assert_eq!(told("`tests/{two,three}.rs`"), ["docs/status.md:4: there is no tests/three.rs"]);
        // A part of a file name does not match.
        assert_eq!(told("`ne.rs`").len(), 1);
        assert_eq!(check("nothing", &known), ["docs/status.md names no tests"]);
    }

    #[test]
    fn braces_are_expanded() {
        assert_eq!(expanded("a/{b,c/d}/{e,f}"), ["a/b/e", "a/b/f", "a/c/d/e", "a/c/d/f"]);
        assert_eq!(expanded("a"), ["a"]);
    }
}
