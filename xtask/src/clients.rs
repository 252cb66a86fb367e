//! Clients of other projects, which tests use as their users do: each from its own registry, of one
//! version, checked by hash or signature, kept in the cache and not installed for the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, Source};
use crate::shell::{self, find};

mod go;

/// A client, and where it comes from.
pub enum Client {
    /// kubectl of a minor version, from a suite of Debian's archive, checked by apt's signatures.
    Kubectl { version: &'static str, suite: &'static str },
    /// The Python client and helm's library with its bindings, in an environment of their own,
    /// checked by the hashes of their requirements.
    Python,
    /// The JavaScript client, checked by the hashes of its lock file.
    JavaScript,
    /// Our program in Go, built with Debian's compiler and its source of client-go, checked by apt's
    /// signatures.
    Go,
}

/// All of them. The newest kubectl is last.
pub const CLIENTS: &[Client] = &[
    Client::Kubectl { version: "1.32", suite: "trixie" },
    Client::Kubectl { version: "1.36", suite: "sid" },
    Client::Python,
    Client::JavaScript,
    Client::Go,
];

/// The newest kubectl, which a person's cluster is driven with too.
pub const KUBECTL: &Client = &CLIENTS[1];

impl Client {
    /// What it is called in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Kubectl { version, .. } => format!("kubectl {version}"),
            Self::Python => "the Python client".to_owned(),
            Self::JavaScript => "the JavaScript client".to_owned(),
            Self::Go => "the Go client".to_owned(),
        }
    }

    /// Whether apt brings it, or what it is built with.
    pub fn needs_apt(&self) -> bool {
        match self {
            Self::Kubectl { .. } => true,
            Self::Python | Self::JavaScript => false,
            Self::Go => !go::has_packages(),
        }
    }

    /// What a test calls: kubectl, the environment's `python`, the folder `node_modules`, our program.
    /// `None` where setup has not brought it, or has brought another version than is wanted now.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Kubectl { version, .. } => {
                let file = shell::tools_dir().join(format!("kubectl-{version}"));
                file.is_file().then_some(file)
            }
            Self::Python => current(&python_dir(), &requirements()).then(|| python_dir().join("bin/python")),
            Self::JavaScript => {
                current(&javascript_dir(), &lock_file()).then(|| javascript_dir().join("node_modules"))
            }
            Self::Go => go::program(),
        }
    }

    /// The variable by which tests are told of it.
    pub fn variable(&self) -> String {
        match self {
            Self::Kubectl { version, .. } => format!("HAWSER_KUBECTL_{}", version.replace('.', "_")),
            Self::Python => "HAWSER_CLIENT_PYTHON".to_owned(),
            Self::JavaScript => "HAWSER_CLIENT_NODE_MODULES".to_owned(),
            Self::Go => "HAWSER_CLIENT_GO".to_owned(),
        }
    }

    /// What a person types where setup cannot bring it.
    pub fn command(&self) -> String {
        match self {
            Self::Kubectl { version, .. } => {
                format!(
                    "put kubectl {version} at {}",
                    shell::tools_dir().join(format!("kubectl-{version}")).display()
                )
            }
            Self::Python | Self::JavaScript | Self::Go => "cargo xtask setup".to_owned(),
        }
    }

    /// Fetches it.
    pub fn install(&self) -> Result<()> {
        eprintln!("setup: fetching {}", self.name());
        match self {
            Self::Kubectl { version, suite } => kubectl(version, suite),
            Self::Python => python(),
            Self::JavaScript => javascript(),
            Self::Go => go::install(),
        }
        .with_context(|| format!("cannot set up {}", self.name()))
    }
}

/// Those that setup has not brought.
pub fn missing() -> Vec<&'static Client> {
    CLIENTS.iter().filter(|client| client.path().is_none()).collect()
}

/// Debian's stable suites carry old versions only, so that each comes from the suite that has it:
/// downloaded by apt, with apt's signatures, but not installed.
fn kubectl(version: &str, suite: &'static str) -> Result<()> {
    let work = tempfile::tempdir().context("cannot make a temporary directory")?;
    Apt::open(Source::Suite(suite))?.unpack("kubectl", work.path())?;
    let fetched = work.path().join("usr/bin/kubectl");
    let said = shell::output(Command::new(&fetched).args(["version", "--client"]))?;
    if !said.contains(&format!("v{version}.")) {
        let found = said.lines().next().unwrap_or_default().to_owned();
        bail!("Debian's {suite} has another by now ({found}): name its suite in xtask/src/clients.rs");
    }
    let tools = shell::tools_dir();
    fs::create_dir_all(&tools).with_context(|| format!("cannot make {}", tools.display()))?;
    let file = tools.join(format!("kubectl-{version}"));
    copy(&fetched, &file)?;
    if find("kubectl").is_none() {
        copy(&file, Path::new("/usr/local/bin/kubectl"))?;
    }
    Ok(())
}

/// Through a name of its own, so that what is there is always whole.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    fs::copy(from, &partial)
        .and_then(|_| fs::rename(&partial, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn python() -> Result<()> {
    let dir = fresh(&python_dir())?;
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    shell::run(
        Command::new(dir.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--require-hashes", "--only-binary=:all:"])
            // helm's bindings ask for Python 3.12 and work with 3.11, which Debian 12 has.
            .args(["--ignore-requires-python", "--requirement"])
            .arg(requirements()),
    )?;
    complete(&dir, &requirements())
}

fn javascript() -> Result<()> {
    let dir = fresh(&javascript_dir())?;
    for file in ["package.json", "package-lock.json"] {
        let from = sources().join("javascript").join(file);
        fs::copy(&from, dir.join(file)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    shell::run(
        Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"])
            .current_dir(&dir),
    )?;
    complete(&dir, &lock_file())
}

fn sources() -> PathBuf {
    shell::root().join("tests/clients")
}

fn requirements() -> PathBuf {
    sources().join("python/requirements.txt")
}

fn lock_file() -> PathBuf {
    sources().join("javascript/package-lock.json")
}

fn python_dir() -> PathBuf {
    shell::cache_dir().join("clients/python")
}

fn javascript_dir() -> PathBuf {
    shell::cache_dir().join("clients/javascript")
}

/// An empty directory; one that was begun and not finished is begun again.
fn fresh(dir: &Path) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir.to_path_buf())
}

/// Says by which pins a directory was filled; the last step.
fn complete(dir: &Path, pins: &Path) -> Result<()> {
    fs::copy(pins, dir.join("complete")).with_context(|| format!("cannot finish {}", dir.display()))?;
    Ok(())
}

/// Whether a directory was filled by just these pins.
fn current(dir: &Path, pins: &Path) -> bool {
    let wanted = fs::read(pins).ok();
    wanted.is_some() && fs::read(dir.join("complete")).ok() == wanted
}
