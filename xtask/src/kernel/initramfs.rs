//! The guest's file system: an archive that the kernel unpacks into memory, with programs of this machine and
//! the libraries that they are linked with.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

/// Directory of all libraries in the guest.
pub const LIBRARIES: &str = "/usr/lib/guest";

/// An archive in the format `newc` of cpio.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<PathBuf>,
}

impl Archive {
    const DIRECTORY: u32 = 0o040_755;
    const FILE: u32 = 0o100_755;
    const LINK: u32 = 0o120_777;

    /// Adds an executable file, and the directories above it. An existing entry is kept.
    pub fn file(&mut self, path: &Path, contents: &[u8]) {
        self.entry(path, Self::FILE, contents);
    }

    pub fn link(&mut self, path: &Path, target: &str) {
        self.entry(path, Self::LINK, target.as_bytes());
    }

    pub fn directory(&mut self, path: &Path) {
        self.entry(path, Self::DIRECTORY, &[]);
    }

    fn entry(&mut self, path: &Path, mode: u32, contents: &[u8]) {
        let path = path.strip_prefix("/").unwrap_or(path);
        if path.as_os_str().is_empty() || !self.names.insert(path.to_path_buf()) {
            return;
        }
        if let Some(above) = path.parent() {
            self.directory(above);
        }
        self.record(&path.to_string_lossy(), mode, contents);
    }

    fn record(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0, // owner
            0, // group
            1, // links
            0, // time
            contents.len() as u32,
            0, // device
            0,
            0, // device number of the entry
            0,
            name.len() as u32 + 1,
            0, // checksum
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.align();
        self.bytes.extend(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.record("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// Adds a program of this machine under its name in `/usr/bin`, without debug information, and its
    /// libraries, which are also looked up in `beside`.
    pub fn program(&mut self, file: &Path, beside: &[PathBuf]) -> Result<()> {
        let name = file.file_name().with_context(|| format!("{} is not a program", file.display()))?;
        let contents = stripped(file)?;
        if contents.starts_with(b"\x7fELF") {
            self.libraries(file, beside)?;
        }
        self.file(&Path::new("/usr/bin").join(name), &contents);
        Ok(())
    }

    /// Adds the libraries that a program or library is linked with.
    pub fn libraries(&mut self, file: &Path, beside: &[PathBuf]) -> Result<()> {
        let output = Command::new("ldd")
            .arg(file)
            .env("LD_LIBRARY_PATH", std::env::join_paths(beside).unwrap_or_default())
            .stderr(Stdio::null())
            .output()
            .context("cannot start ldd")?;
        // ldd fails for statically linked programs.
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            match linked(line) {
                Linked::Library { name, path } => {
                    let contents = fs::read(path).with_context(|| format!("cannot read {path}"))?;
                    self.file(&Path::new(LIBRARIES).join(name), &contents);
                }
                Linked::Loader(path) => {
                    let contents = fs::read(path).with_context(|| format!("cannot read {path}"))?;
                    self.file(Path::new(path), &contents);
                }
                Linked::Missing(name) => bail!("{} needs {name}, which is not here", file.display()),
                Linked::Nothing => {}
            }
        }
        Ok(())
    }
}

/// A line of ldd's output.
#[derive(Debug, PartialEq, Eq)]
enum Linked<'a> {
    Library { name: &'a str, path: &'a str },
    Loader(&'a str),
    Missing(&'a str),
    Nothing,
}

fn linked(line: &str) -> Linked<'_> {
    let line = line.trim();
    let without_address = line.rsplit_once(" (").map_or(line, |(front, _)| front);
    match without_address.split_once(" => ") {
        Some((name, "not found")) => Linked::Missing(name),
        Some((name, path)) if path.starts_with('/') => Linked::Library { name, path },
        None if without_address.starts_with('/') => Linked::Loader(without_address),
        _ => Linked::Nothing,
    }
}

/// Returns the file without its debug information, which makes up most of a test binary.
fn stripped(file: &Path) -> Result<Vec<u8>> {
    let plain = || fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    if shell::find("strip").is_none() {
        return plain();
    }
    let work = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let status = Command::new("strip")
        .args(["--strip-debug", "-o"])
        .arg(work.path())
        .arg(file)
        .stderr(Stdio::null())
        .status()
        .context("cannot start strip")?;
    // Scripts, for example, cannot be stripped.
    if !status.success() {
        return plain();
    }
    fs::read(work.path()).context("cannot read what strip wrote")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_directories_before_files_and_each_once() {
        let mut archive = Archive::default();
        archive.file(Path::new("/usr/bin/a"), b"hello");
        archive.file(Path::new("/usr/bin/a"), b"again");
        archive.link(Path::new("/bin"), "usr/bin");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what}"));
        assert!(at("usr\0") < at("usr/bin\0") && at("usr/bin\0") < at("usr/bin/a\0"));
        assert!(text.contains("hello") && !text.contains("again"));
        assert_eq!(bytes.len() % 4, 0);
        // Its header states a size of five bytes.
        assert_eq!(&text[at("usr/bin/a\0") - 110 + 54..][..8], "00000005");
    }

    #[test]
    fn ldd_output_is_parsed() {
        assert_eq!(
            linked("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)"),
            Linked::Library { name: "libc.so.6", path: "/lib/x86_64-linux-gnu/libc.so.6" }
        );
        assert_eq!(
            linked("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"),
            Linked::Loader("/lib64/ld-linux-x86-64.so.2")
        );
        assert_eq!(linked("\tlinux-vdso.so.1 (0x00007ffd)"), Linked::Nothing);
        assert_eq!(linked("\tlibnl-3.so.200 => not found"), Linked::Missing("libnl-3.so.200"));
        assert_eq!(linked("\tnot a dynamic executable"), Linked::Nothing);
    }
}
