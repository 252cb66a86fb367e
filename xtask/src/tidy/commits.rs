//! Subjects of the last commits that the main branch has not taken yet: those that can still be reworded.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::shell;

/// The longest subject, in characters, that `git log --oneline` shows whole in a terminal of 80 columns.
const SUBJECT: usize = 72;
/// Commits that are checked: HEAD and the ten before it.
const CHECKED: &str = "11";
/// The main branch: the local one, or else that of the remote a clone was made of.
const MAIN: &[&str] = &["refs/heads/main", "refs/remotes/origin/main"];

/// Returns what is wrong with the subjects of commits. Nothing is checked without git, in a shallow clone, and where
/// there is no main branch to compare with.
pub fn breaches() -> Vec<String> {
    if git(&["rev-parse", "--is-shallow-repository"]).is_none_or(|answer| answer.trim() != "false") {
        return Vec::new();
    }
    let Some(main) = MAIN.iter().find_map(|branch| git(&["rev-list", "--first-parent", branch, "--"])) else {
        return Vec::new();
    };
    // Git words the subjects of merges itself.
    let recent = git(&["log", "--no-merges", "--max-count", CHECKED, "--format=%H %s", "HEAD", "--"]);
    of_subjects(&recent.unwrap_or_default(), &main)
}

/// Returns the standard output of git, `None` if it cannot answer.
fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(shell::root()).stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns what is wrong with the commits of `recent`, lines of hash and subject, that are not in `main`, lines of hashes.
fn of_subjects(recent: &str, main: &str) -> Vec<String> {
    let main: BTreeSet<&str> = main.lines().collect();
    let commits = recent.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    let mut breaches = Vec::new();
    for (hash, subject) in commits.filter(|(hash, _)| !main.contains(hash)) {
        let short = hash.get(..8).unwrap_or(hash);
        let length = subject.chars().count();
        if length > SUBJECT {
            breaches
                .push(format!("commit {short}: the subject has {length} characters, more than {SUBJECT}"));
        }
        if subject.ends_with('.') {
            breaches.push(format!("commit {short}: the subject ends with a period"));
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_that_is_too_long_or_ends_with_a_period_is_found() {
        let (fits, long) = ("ü".repeat(SUBJECT), "ü".repeat(SUBJECT + 1));
        let recent =
            format!("aaaaaaaaaa {fits}\nbbbbbbbbbb {long}\ncccccccccc proxy: mend it.\ndddddddddd \n");
        assert_eq!(
            of_subjects(&recent, ""),
            [
                "commit bbbbbbbb: the subject has 73 characters, more than 72",
                "commit cccccccc: the subject ends with a period",
            ]
        );
    }

    #[test]
    fn commits_that_the_main_branch_has_are_not_checked() {
        let recent = "aaaaaaaaaa proxy: mend it.\nbbbbbbbbbb dns: mend it.\n";
        assert_eq!(
            of_subjects(recent, "bbbbbbbbbb\ncccccccccc\n"),
            ["commit aaaaaaaa: the subject ends with a period"]
        );
        assert_eq!(of_subjects(recent, "aaaaaaaaaa\nbbbbbbbbbb\n"), [""; 0]);
    }
}
