//! Kernel modules: which to load, in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A module that is ready to be loaded.
pub struct Module {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// Returns these modules and their dependencies, each after its dependencies. Modules that are built in or
/// missing are left out.
pub fn select(directory: &Path, wanted: &[&str]) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    collect(directory, &mut files)?;
    let mut selection = Selection { files, seen: BTreeSet::new(), order: Vec::new() };
    for name in wanted {
        selection.add(&normal(name))?;
    }
    Ok(selection.order)
}

struct Selection {
    files: BTreeMap<String, PathBuf>,
    seen: BTreeSet<String>,
    order: Vec<Module>,
}

impl Selection {
    fn add(&mut self, name: &str) -> Result<()> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(file) = self.files.get(name) else {
            return Ok(());
        };
        let bytes = read(file)?;
        for needed in depends(&bytes) {
            self.add(&needed)?;
        }
        self.order.push(Module { name: name.to_owned(), bytes });
        Ok(())
    }
}

/// Collects the modules below a directory, by name.
fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", directory.display()))?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, files)?;
        } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(normal(name), path);
        }
    }
    Ok(())
}

/// Normalizes a module's name: the kernel treats `-` and `_` as the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return fs::read(file).with_context(|| format!("cannot read {}", file.display())),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{}: a compression that is not known", file.display()),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(file)
        .output()
        .with_context(|| format!("cannot start {program}, which {} needs", file.display()))?;
    if !output.status.success() {
        bail!("{program} cannot read {}", file.display());
    }
    Ok(output.stdout)
}

/// Returns the names after `depends=` in the module's description, a list of zero-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|name| !name.is_empty()).map(normal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let net = directory.path().join("kernel/net");
        fs::create_dir_all(&net).unwrap();
        for (name, needs) in [("a-b", "c,d"), ("c", "d"), ("d", ""), ("other", "a-b")] {
            fs::write(net.join(format!("{name}.ko")), format!("x\0license=GPL\0depends={needs}\0y")).unwrap();
        }
        fs::write(directory.path().join("modules.builtin"), "kernel/net/e.ko").unwrap();
        let names: Vec<String> = select(directory.path(), &["a_b", "c", "e"])
            .unwrap()
            .into_iter()
            .map(|module| module.name)
            .collect();
        assert_eq!(names, ["d", "c", "a_b"]);
    }
}
