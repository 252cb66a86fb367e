//! Commands and paths that xtask uses to run other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Compiles our crates with the compiler in clippy, which reports lints at the same time, and makes each of
/// them an error. `cargo clippy` would check all dependencies again in addition to building them, which is a
/// third of CI's compile time.
pub const LINTING: [(&str, &str); 2] = [
    ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
    ("CLIPPY_ARGS", "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"),
];

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns cargo's target directory: `CARGO_TARGET_DIR`, or else `target` in the workspace.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Returns the directory of downloads that are kept.
pub fn cache_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from);
    cache.join("hawser")
}

/// Returns the directory of tools that setup fetches without installing them.
pub fn tools_dir() -> PathBuf {
    cache_dir().join("bin")
}

/// Returns a cargo command in the workspace, using the cargo that runs xtask.
///
/// Variables that `cargo run` sets for the package xtask are not passed on: build scripts of dependencies watch some of
/// them, and everything would be compiled again after a plain `cargo build`.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns a cargo command that compiles as the tests do, so that they share one build.
pub fn linting() -> Command {
    let mut command = cargo();
    command.envs(LINTING);
    command
}

/// Runs a command until it ends; an exit code other than 0 is an error that names the command.
pub fn run(command: &mut Command) -> Result<()> {
    let text = describe(command);
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    if !status.success() {
        bail!("`{text}` ended with {status}");
    }
    Ok(())
}

/// Runs a command until it ends and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let text = describe(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    if !output.status.success() {
        bail!("`{text}` ended with {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Formats the command as a person would type it.
pub fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Finds an executable by name: in the workspace's tools, then in `PATH`, then in the directories of system
/// programs that a user's `PATH` may lack.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(tools_dir())
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .chain(cargo_bin())
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Returns the directory in which `cargo install` puts programs.
pub fn cargo_bin() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))?;
    Some(home.join("bin"))
}

/// Returns `true` if this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
