//! Emulator, kernels and tools from Debian packages, unpacked below the cache directory. Nothing is installed
//! on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, Source};
use crate::shell;

/// Kernel versions and the Debian suite of each. The variants for virtual machines are built from the same
/// sources with fewer drivers, which makes the download smaller.
const KERNELS: &[(&str, &str)] = &[("5.10", "bullseye"), ("6.1", "bookworm"), ("6.12", "trixie")];
/// Directory in which Debian's iptables looks for its extensions.
const EXTENSIONS: &str = "/usr/lib/x86_64-linux-gnu/xtables";
const IMAGE: &str = "linux-image-cloud-amd64";

/// A kernel and its modules.
pub struct Kernel {
    pub image: PathBuf,
    /// Directory that contains the modules.
    pub modules: PathBuf,
}

/// Returns a kernel of a version such as `6.1`, fetching it if needed.
pub fn kernel(version: &str) -> Result<Kernel> {
    let Some((_, suite)) = KERNELS.iter().find(|(known, _)| *known == version) else {
        let known: Vec<&str> = KERNELS.iter().map(|(known, _)| *known).collect();
        bail!("unknown kernel {version}; available are {}", known.join(", "));
    };
    let home = shell::cache_dir().join("kernels").join(version);
    complete(&home, |into| {
        eprintln!("kernel: fetching Linux {version}");
        let apt = Apt::open(Source::Suite(suite))?;
        let depends = apt.depends(IMAGE)?;
        let package = depends
            .iter()
            .find(|name| name.starts_with("linux-image-"))
            .with_context(|| format!("{IMAGE} of {suite} names no kernel"))?;
        apt.unpack(package, into)
    })
    .with_context(|| format!("cannot fetch Linux {version}"))?;
    let image = only(&home.join("boot"), "vmlinuz-")?;
    let modules = ["usr/lib/modules", "lib/modules"].map(|place| home.join(place));
    let modules = modules.iter().find(|place| place.is_dir()).context("the package has no modules")?;
    Ok(Kernel { image, modules: only(modules, "")? })
}

/// The emulator.
pub struct Emulator {
    program: PathBuf,
    /// Directory that it was unpacked to; `None` if it is installed.
    unpacked: Option<PathBuf>,
}

impl Emulator {
    /// Returns the installed emulator, or else fetches one if needed.
    pub fn find() -> Result<Self> {
        if let Some(program) = shell::find("qemu-system-x86_64") {
            return Ok(Self { program, unpacked: None });
        }
        let home = shell::cache_dir().join("qemu");
        complete(&home, |into| {
            eprintln!("kernel: fetching the emulator");
            Apt::open(Source::Machine)?.unpack_with_dependencies(&["qemu-system-x86"], into)
        })
        .context("cannot fetch the emulator; install qemu-system-x86 yourself")?;
        let this = Self { program: home.join("usr/bin/qemu-system-x86_64"), unpacked: Some(home.clone()) };
        let works = this.command().arg("--version").stdout(Stdio::null()).status();
        if !works.is_ok_and(|status| status.success()) {
            // The machine's libraries have changed since it was fetched.
            bail!("{} does not start; remove {} and try again", this.program.display(), home.display());
        }
        Ok(this)
    }

    /// Returns a command to which arguments are added.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(home) = &self.unpacked {
            let libraries = library_directories(home);
            command
                .env("LD_LIBRARY_PATH", std::env::join_paths(&libraries).unwrap_or_default())
                .env("QEMU_MODULE_DIR", home.join("usr/lib/x86_64-linux-gnu/qemu"))
                .arg("-L")
                .arg(home.join("usr/share/qemu"))
                .arg("-L")
                .arg(home.join("usr/share/seabios"));
        }
        command
    }
}

/// Returns the statically linked busybox that the guest starts with.
pub fn busybox() -> Result<PathBuf> {
    let home = shell::cache_dir().join("busybox");
    complete(&home, |into| Apt::open(Source::Machine)?.unpack("busybox-static", into))
        .context("cannot fetch busybox")?;
    let places = ["usr/bin/busybox", "bin/busybox"].map(|place| home.join(place));
    places.into_iter().find(|file| file.is_file()).context("the package has no busybox")
}

/// Returns the programs of Debian packages for use in a guest, fetching them if needed.
///
/// # Errors
///
/// Fails if the packages cannot be fetched.
pub fn tools(packages: &[&str]) -> Result<Tools> {
    let home = shell::cache_dir().join("tools").join(packages.join("+"));
    complete(&home, |into| {
        eprintln!("kernel: fetching {}", packages.join(", "));
        let apt = Apt::open(Source::Machine)?;
        // Including those that are installed, so that the guest is the same on all machines.
        for package in packages {
            apt.unpack(package, into)?;
        }
        // Dependencies that the machine lacks; having none is not an error.
        match apt.unpack_with_dependencies(packages, into) {
            Ok(()) => Ok(()),
            Err(_) if packages.iter().all(|package| installed(package)) => Ok(()),
            Err(error) => Err(error),
        }
    })
    .with_context(|| format!("cannot fetch {}", packages.join(", ")))?;
    let mut tools = Tools { libraries: library_directories(&home), ..Tools::default() };
    for place in ["usr/sbin", "sbin", "usr/bin", "bin"] {
        for entry in fs::read_dir(home.join(place)).into_iter().flatten().flatten() {
            tools.add(&entry.path());
        }
    }
    // iptables loads its matches and targets from here, by name.
    let extensions = home.join("usr/lib/x86_64-linux-gnu/xtables");
    for entry in fs::read_dir(&extensions).into_iter().flatten().flatten() {
        tools.data.push((Path::new(EXTENSIONS).join(entry.file_name()), entry.path()));
    }
    Ok(tools)
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

/// Result of [`tools`], grouped as the guest needs it.
#[derive(Default)]
pub struct Tools {
    pub programs: Vec<PathBuf>,
    /// Links to programs: name in the guest, and target.
    pub links: Vec<(String, String)>,
    /// Directories of libraries, in addition to the machine's own.
    pub libraries: Vec<PathBuf>,
    /// Data files that programs need at run time: path in the guest, file here.
    pub data: Vec<(PathBuf, PathBuf)>,
}

impl Tools {
    fn add(&mut self, path: &Path) {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        match (fs::read_link(path), name(path)) {
            (Ok(target), Some(link)) => self.links.extend(name(&target).map(|target| (link, target))),
            _ => self.programs.push(path.to_path_buf()),
        }
    }
}

/// Fills a directory once: it exists only when it is complete.
fn complete(home: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if home.is_dir() {
        return Ok(());
    }
    let above = home.parent().context("a directory in the cache")?;
    fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
    let work = tempfile::Builder::new()
        .prefix(".unpacking-")
        .tempdir_in(above)
        .with_context(|| format!("cannot make a directory in {}", above.display()))?;
    fill(work.path())?;
    match fs::rename(work.path(), home) {
        // A concurrent run was faster.
        Err(_) if home.is_dir() => Ok(()),
        outcome => outcome.with_context(|| format!("cannot make {}", home.display())),
    }
}

fn library_directories(home: &Path) -> Vec<PathBuf> {
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib"]
        .iter()
        .map(|place| home.join(place))
        .filter(|place| place.is_dir())
        .collect()
}

/// Returns the only entry whose name has this prefix.
fn only(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    entries
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .with_context(|| format!("nothing called {prefix}… in {}", directory.display()))
}
