//! `cargo xtask deny`: checks the dependencies against `deny.toml`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Version of cargo-deny that `deny.toml` is written for.
const CARGO_DENY: &str = "0.20.2";
/// Message of cargo-deny if the database of advisories cannot be fetched.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// Checks licences, sources and duplicate versions, then the advisories. If their database cannot be reached,
/// that is reported and not treated as a failure.
///
/// # Errors
///
/// Fails if a dependency violates a rule, or if cargo-deny cannot be installed or started.
pub fn run() -> Result<()> {
    rules()?;
    let program = program()?;
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

/// Checks licences, sources and duplicate versions, which needs no network: the result for a commit does not
/// change from day to day.
///
/// # Errors
///
/// Fails if a dependency violates a rule, or if cargo-deny cannot be installed or started.
pub fn rules() -> Result<()> {
    shell::run(deny(&program()?).args(["check", "licenses", "sources", "bans"]))
}

/// Result of the check of advisories.
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

/// Returns a cargo-deny command in the workspace's directory, where it finds `deny.toml`.
fn deny(program: &PathBuf) -> Command {
    let mut command = Command::new(program);
    command.current_dir(shell::root());
    command
}

/// Returns the path of cargo-deny, if it is installed.
pub fn find() -> Option<PathBuf> {
    shell::find("cargo-deny")
}

/// Returns the command that installs it.
pub fn command() -> String {
    format!("cargo install --locked cargo-deny --version {CARGO_DENY}")
}

/// Builds and installs cargo-deny.
///
/// # Errors
///
/// Fails if it cannot be downloaded or built.
pub fn install() -> Result<()> {
    eprintln!("setup: building cargo-deny {CARGO_DENY}");
    shell::run(
        shell::cargo()
            .args(["install", "--quiet", "--locked", "cargo-deny", "--version", CARGO_DENY])
            // It runs for a second, while link-time optimization takes minutes.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            // It is a program for this machine, independent of the workspace's build settings.
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS"),
    )
}

fn program() -> Result<PathBuf> {
    if find().is_none() {
        install()?;
    }
    find().context("cargo-deny was installed but is not in cargo's install directory")
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
