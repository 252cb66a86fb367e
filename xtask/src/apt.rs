//! Downloads and unpacks Debian packages without installing them, with package lists, a cache and a package
//! status of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

/// Source of packages.
#[derive(Clone, Copy)]
pub enum Source {
    /// The sources that this machine's apt is configured with. Installed packages count as present.
    Machine,
    /// A suite of Debian's archive, such as `trixie`, regardless of what is installed.
    Suite(&'static str),
}

/// An apt that does not affect the machine's.
pub struct Apt {
    work: tempfile::TempDir,
    source: Source,
}

impl Apt {
    /// Fetches the lists of packages.
    pub fn open(source: Source) -> Result<Self> {
        if shell::find("apt-get").is_none() || shell::find("dpkg-deb").is_none() {
            bail!("apt-get and dpkg-deb are required but not installed");
        }
        let work = tempfile::tempdir().context("cannot make a temporary directory")?;
        let dir = work.path();
        for sub in ["state/lists/partial", "cache/archives/partial", "out"] {
            fs::create_dir_all(dir.join(sub)).with_context(|| format!("cannot make {sub}"))?;
        }
        fs::write(dir.join("status"), "").context("cannot write an empty package status")?;
        // apt drops its privileges to read and write here.
        shell::run(Command::new("chmod").arg("-R").arg("a+rwX").arg(dir))?;
        if let Source::Suite(suite) = source {
            let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
            let line = format!("deb [signed-by={keyring}] {} {suite} main\n", mirror()?);
            fs::write(dir.join("sources.list"), line).context("cannot write a list of sources")?;
        }
        let this = Self { work, source };
        shell::run(this.command("apt-get").arg("update"))?;
        Ok(this)
    }

    fn command(&self, program: &str) -> Command {
        let dir = self.work.path();
        let mut command = Command::new(program);
        let mut option = |name: &str, value: &Path| {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        };
        option("Dir::State::lists", &dir.join("state/lists"));
        option("Dir::Cache", &dir.join("cache"));
        if let Source::Suite(_) = self.source {
            option("Dir::Etc::sourcelist", &dir.join("sources.list"));
            option("Dir::Etc::sourceparts", Path::new("-"));
            option("Dir::State", &dir.join("state"));
            // Packages that are installed here must not affect what is fetched.
            option("Dir::State::status", &dir.join("status"));
        }
        command.arg("-qq").current_dir(dir.join("out")).stdin(Stdio::null());
        command
    }

    /// Returns the dependencies of a package, without alternatives.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = shell::output(self.command("apt-cache").args(["depends", "--important", package]))?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends:"))
            .map(|name| name.trim().to_owned())
            .collect())
    }

    /// Downloads one package and unpacks it.
    pub fn unpack(&self, package: &str, into: &Path) -> Result<()> {
        self.unpack_each(&[package], into)
    }

    /// Downloads just these packages and unpacks them.
    pub fn unpack_each(&self, packages: &[&str], into: &Path) -> Result<()> {
        shell::run(self.command("apt-get").arg("download").args(packages))?;
        unpack_all(&self.work.path().join("out"), into)
    }

    /// Downloads packages with all dependencies that the machine lacks, and unpacks them.
    pub fn unpack_with_dependencies(&self, packages: &[&str], into: &Path) -> Result<()> {
        shell::run(
            self.command("apt-get")
                // Nothing is installed, so no lock is needed.
                .args(["-o", "Debug::NoLocking=1"])
                .args(["install", "--yes", "--download-only", "--no-install-recommends"])
                .args(packages)
                .stdout(Stdio::null()),
        )?;
        unpack_all(&self.work.path().join("cache/archives"), into)
    }
}

/// Unpacks the packages in a directory, and removes them.
fn unpack_all(directory: &Path, into: &Path) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let packages: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    if packages.is_empty() {
        bail!("apt-get downloaded no package");
    }
    for package in packages {
        shell::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(into))?;
        fs::remove_file(&package).with_context(|| format!("cannot remove {}", package.display()))?;
    }
    Ok(())
}

/// Returns the URL of this machine's Debian mirror.
fn mirror() -> Result<String> {
    let mut texts = vec![fs::read_to_string("/etc/apt/sources.list").unwrap_or_default()];
    for entry in fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten() {
        texts.push(fs::read_to_string(entry.path()).unwrap_or_default());
    }
    texts
        .iter()
        .flat_map(|text| text.split_whitespace())
        .find(|word| {
            let word = word.trim_end_matches('/');
            word.contains("://") && word.ends_with("/debian")
        })
        .map(|word| word.trim_end_matches('/').to_owned())
        .context("no Debian archive in /etc/apt")
}
