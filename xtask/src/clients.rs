//! Third-party clients for tests, each from its own registry in a fixed version, verified by hash or
//! signature, and kept in the cache rather than installed on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, Source};
use crate::shell::{self, find};

mod go;

/// A client and its source.
pub enum Client {
    /// kubectl of a minor version from a suite of Debian's archive, verified by apt's signatures.
    Kubectl { version: &'static str, suite: &'static str },
    /// The Python client and helm's library with its bindings, in a virtual environment, verified by the
    /// hashes of their requirements.
    Python,
    /// The JavaScript client, verified by the hashes of its lock file.
    JavaScript,
    /// Our program in Go, built with Debian's compiler and its source of client-go, verified by apt's
    /// signatures.
    Go,
}

/// All clients, with the newest kubectl last.
pub const CLIENTS: &[Client] = &[
    Client::Kubectl { version: "1.32", suite: "trixie" },
    Client::Kubectl { version: "1.36", suite: "sid" },
    Client::Python,
    Client::JavaScript,
    Client::Go,
];

/// The newest kubectl, which is also used for a user's cluster.
pub const KUBECTL: &Client = &CLIENTS[1];

impl Client {
    /// Returns the name for messages.
    pub fn name(&self) -> String {
        match self {
            Self::Kubectl { version, .. } => format!("kubectl {version}"),
            Self::Python => "the Python client".to_owned(),
            Self::JavaScript => "the JavaScript client".to_owned(),
            Self::Go => "the Go client".to_owned(),
        }
    }

    /// Returns `true` if it comes from apt, or is built with tools from apt.
    pub fn needs_apt(&self) -> bool {
        match self {
            Self::Kubectl { .. } => true,
            Self::Python | Self::JavaScript => false,
            Self::Go => !go::has_packages(),
        }
    }

    /// Returns the path that tests use: kubectl, the environment's `python`, the folder `node_modules`, or
    /// our program. `None` if setup has not fetched it, or another version than is now wanted.
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

    /// Returns the environment variable that passes the path to tests.
    pub fn variable(&self) -> String {
        match self {
            Self::Kubectl { version, .. } => format!("HAWSER_KUBECTL_{}", version.replace('.', "_")),
            Self::Python => "HAWSER_CLIENT_PYTHON".to_owned(),
            Self::JavaScript => "HAWSER_CLIENT_NODE_MODULES".to_owned(),
            Self::Go => "HAWSER_CLIENT_GO".to_owned(),
        }
    }

    /// Returns the command for a person where setup cannot install it.
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

    /// Fetches the client.
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

/// Returns the clients that setup has not fetched.
pub fn missing() -> Vec<&'static Client> {
    CLIENTS.iter().filter(|client| client.path().is_none()).collect()
}

/// Fetches kubectl. Debian's stable suites only have old versions, so each is downloaded with apt, verified
/// by its signatures, from the suite that has it, but not installed.
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

/// Copies through a temporary name, so that an existing file is always complete.
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
            // helm's bindings ask for Python 3.12 but work with 3.11, which Debian 12 has.
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

/// Creates an empty directory; one that was not completed is started over.
fn fresh(dir: &Path) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir.to_path_buf())
}

/// Records the pins with which a directory was filled; the last step.
fn complete(dir: &Path, pins: &Path) -> Result<()> {
    fs::copy(pins, dir.join("complete")).with_context(|| format!("cannot finish {}", dir.display()))?;
    Ok(())
}

/// Returns `true` if a directory was filled with exactly these pins.
fn current(dir: &Path, pins: &Path) -> bool {
    let wanted = fs::read(pins).ok();
    wanted.is_some() && fs::read(dir.join("complete")).ok() == wanted
}
