//! `cargo xtask deny`: holds the dependencies to `deny.toml`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// The version that `deny.toml` is written for.
const CARGO_DENY: &str = "0.20.2";
/// What cargo-deny says where the database of advisories cannot be had.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// Checks licences, sources and duplicate versions, then the advisories. Where their database cannot be
/// reached this is said and is no failure: the other checks need no network.
///
/// # Errors
/// A dependency breaks a rule, or cargo-deny cannot be installed or started.
pub fn run() -> Result<()> {
    let program = program()?;
    shell::run(deny(&program).args(["check", "licenses", "sources", "bans"]))?;
    let mut advisories = deny(&program);
    advisories.args(["check", "advisories"]);
    let output = advisories.output().with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    match verdict(output.status.success(), &text) {
        Verdict::Sound => println!("deny: no dependency has a published vulnerability"),
        Verdict::Unchecked => {
            println!("deny: the advisories were not checked: their database cannot be reached")
        }
        Verdict::Broken => {
            eprint!("{text}");
            bail!("a dependency has a published vulnerability; see above");
        }
    }
    Ok(())
}

/// What the check of advisories found.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Sound,
    Unchecked,
    Broken,
}

fn verdict(success: bool, stderr: &str) -> Verdict {
    match success {
        true => Verdict::Sound,
        false if stderr.contains(UNREACHABLE) => Verdict::Unchecked,
        false => Verdict::Broken,
    }
}

/// cargo-deny in the workspace's directory, so that it finds `deny.toml`.
fn deny(program: &PathBuf) -> Command {
    let mut command = Command::new(program);
    command.current_dir(shell::root());
    command
}

/// Finds cargo-deny, or builds and installs it.
fn program() -> Result<PathBuf> {
    if let Some(program) = shell::find("cargo-deny") {
        return Ok(program);
    }
    eprintln!("deny: building cargo-deny {CARGO_DENY}");
    shell::run(
        shell::cargo()
            .args(["install", "--quiet", "--locked", "cargo-deny", "--version", CARGO_DENY])
            // It is a program for this machine, whatever the workspace's build is told.
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS"),
    )?;
    shell::find("cargo-deny").context("cargo-deny was installed and is not where cargo installs")
}

#[cfg(test)]
mod tests {
    use super::{Verdict, verdict};

    #[test]
    fn an_unreachable_database_is_not_a_vulnerability() {
        let unreachable = "[ERROR] failed to fetch advisory database https://example.org with cli";
        assert_eq!(verdict(false, unreachable), Verdict::Unchecked);
        assert_eq!(verdict(false, "error[vulnerability]: a crate"), Verdict::Broken);
        assert_eq!(verdict(true, ""), Verdict::Sound);
    }
}
