//! `cargo xtask tidy`: the house rules that can be checked mechanically.

mod comments;
mod commits;
mod cycles;
mod features;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{conformance, security, shell, status};

/// A longer file is reported; one longer than [`FILE_FAIL`] is refused.
const FILE_WARN: usize = 600;
const FILE_FAIL: usize = 1000;
const FUNCTION_FAIL: usize = 70;

/// Packages of the workspace that each package may depend on, apart from `tests-*` and `userspace-hawser`,
/// which may use everything.
const MAY_USE: &[(&str, &[&str])] = &[
    ("ebpf-common", &[]),
    ("ebpf-programs", &["ebpf-common"]),
    ("userspace-dataplane", &["ebpf-common"]),
    ("userspace-daemon", &[]),
    ("userspace-announce", &["apiserver-meta"]),
    (
        "userspace-proxy",
        &[
            "apiserver-meta",
            "apiserver-client",
            "userspace-announce",
            "userspace-daemon",
            "userspace-dataplane",
        ],
    ),
    ("userspace-network", &["apiserver-meta", "apiserver-client", "userspace-daemon"]),
    ("userspace-dns", &["apiserver-meta", "apiserver-client", "userspace-daemon"]),
    ("apiserver-meta", &[]),
    ("apiserver-messages", &[]),
    ("apiserver-schema", &["apiserver-meta", "apiserver-messages"]),
    ("apiserver-apply", &["apiserver-meta", "apiserver-schema"]),
    ("apiserver-structural", &["apiserver-meta", "apiserver-schema", "apiserver-apply"]),
    ("apiserver-cel", &["apiserver-meta", "apiserver-schema", "apiserver-apply", "apiserver-structural"]),
    (
        "apiserver-registry",
        &["apiserver-meta", "apiserver-schema", "apiserver-apply", "apiserver-structural", "apiserver-cel"],
    ),
    (
        "apiserver-kinds",
        &[
            "apiserver-meta",
            "apiserver-schema",
            "apiserver-structural",
            "apiserver-cel",
            "apiserver-registry",
        ],
    ),
    ("apiserver-store", &["apiserver-meta"]),
    (
        "apiserver-cache",
        &["apiserver-schema", "apiserver-registry", "apiserver-kinds", "apiserver-store", "userspace-daemon"],
    ),
    (
        "apiserver-auth",
        &[
            "apiserver-meta",
            "apiserver-schema",
            "apiserver-registry",
            "apiserver-kinds",
            "apiserver-cache",
            "userspace-daemon",
        ],
    ),
    (
        "apiserver-admission",
        &["apiserver-meta", "apiserver-schema", "apiserver-registry", "apiserver-cache", "apiserver-auth"],
    ),
    (
        "apiserver-server",
        &[
            "apiserver-admission",
            "apiserver-auth",
            "apiserver-cache",
            "apiserver-meta",
            "apiserver-schema",
            "apiserver-apply",
            "apiserver-structural",
            "apiserver-cel",
            "apiserver-registry",
            "apiserver-kinds",
            "apiserver-store",
            "userspace-daemon",
        ],
    ),
    ("apiserver-client", &["apiserver-meta", "apiserver-messages"]),
    ("controllers-runtime", &["apiserver-meta", "apiserver-client"]),
    ("controllers-manager", &["controllers-runtime", "apiserver-meta", "apiserver-client", "apiserver-cel"]),
    (
        "controllers-scheduler",
        &["controllers-runtime", "apiserver-meta", "apiserver-client", "apiserver-cel"],
    ),
    ("kubelet-image", &[]),
    ("kubelet-cri", &[]),
    (
        "kubelet-agent",
        &[
            "apiserver-meta",
            "apiserver-client",
            "kubelet-cri",
            "kubelet-image",
            "userspace-daemon",
            "userspace-network",
        ],
    ),
    ("xtask", &["kubelet-image", "tests-e2e"]),
    (features::PACKAGE, &[]),
];

/// External crates that only certain packages may depend on.
const ONLY: &[(&str, &[&str])] = &[
    ("aya", &["userspace-dataplane"]),
    ("aya-log", &["userspace-dataplane"]),
    ("etcd-client", &["apiserver-store"]),
    ("hickory-proto", &["userspace-dns"]),
    ("rtnetlink", &["userspace-daemon", "userspace-network", "userspace-proxy"]),
    ("socket2", &["userspace-announce"]),
    ("tonic", &["kubelet-cri", "kubelet-agent"]),
];

/// Packages that run on every node, and crates that must not be compiled for them, even indirectly.
const APART: &[(&str, &[&str])] = &[
    ("userspace-proxy", &["apiserver-schema", "apiserver-server", "kube-cel", "cel", "x509-parser"]),
    ("userspace-dns", &["apiserver-schema", "apiserver-server", "kube-cel", "cel", "x509-parser"]),
    ("kubelet-agent", &["apiserver-schema", "apiserver-server", "kube-cel", "cel", "x509-parser"]),
];

/// Dependencies that no file of the package names, because only generated or shared code uses them.
const NAMED_ELSEWHERE: &[(&str, &[&str])] = &[
    ("controllers-scheduler", &["proptest"]),
    ("kubelet-cri", &["prost", "tonic-prost"]),
    ("userspace-proxy", &["ebpf-common"]),
];

/// The line by which a crate of the product refuses the machine's clock, randomness, environment and threads
/// (clippy.toml) outside of its tests.
const REFUSES: &str = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]";
/// Folders of the product's crates; what is compiled for the kernel has nothing to refuse.
const PRODUCT: &[&str] = &["apiserver", "controllers", "kubelet", "userspace"];

/// Checks all rules and reports every violation.
pub fn run() -> Result<()> {
    let files = rust_files()?;
    let text = shell::output(shell::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let mut breaches = dependencies(packages, &files)?;
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    breaches.extend(features::breaches(&names)?);
    breaches.extend(compiled_for_nodes()?);
    breaches.extend(conformance::breaches()?);
    breaches.extend(status::breaches()?);
    breaches.extend(security::breaches()?);
    breaches.extend(commits::breaches());
    let mut warnings = Vec::new();
    breaches.extend(import_cycles(&files)?);
    breaches.extend(doc_comments(&files)?);
    for file in &files {
        check_file(file, &mut breaches, &mut warnings)?;
    }
    for warning in &warnings {
        eprintln!("tidy: {warning}");
    }
    if !breaches.is_empty() {
        bail!("tidy found {}:\n  {}", breaches.len(), breaches.join("\n  "));
    }
    Ok(())
}

fn dependencies(packages: &[Value], files: &[PathBuf]) -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    let rules: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let free = name.starts_with("tests-") || name == "userspace-hawser";
        let Some(allowed) = rules.get(name).copied().or(free.then_some(&[][..])) else {
            breaches.push(format!("package {name} has no row in the table of dependencies"));
            continue;
        };
        check_manifest(package, name, &mut breaches)?;
        if name == features::PACKAGE {
            continue;
        }
        unnamed(package, name, files, &mut breaches)?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let of = dependency["name"].as_str().unwrap_or_default();
            let normal = dependency["kind"].is_null();
            if normal && dependency["path"].is_string() && !free && !allowed.contains(&of) {
                breaches.push(format!("package {name} may not use {of}"));
            }
            if let Some((_, owners)) = ONLY.iter().find(|(only, _)| *only == of)
                && normal
                && !owners.contains(&name)
            {
                breaches.push(format!("only {} may name {of}, not {name}", owners.join(", ")));
            }
        }
    }
    Ok(breaches)
}

/// Finds dependencies that no source of the package names.
fn unnamed(package: &Value, name: &str, files: &[PathBuf], breaches: &mut Vec<String>) -> Result<()> {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let folder = manifest.parent().unwrap_or(manifest);
    let mut words = BTreeSet::new();
    for file in files.iter().filter(|file| file.starts_with(folder)) {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        words.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
    }
    let elsewhere =
        NAMED_ELSEWHERE.iter().find(|(package, _)| *package == name).map_or(&[][..], |(_, names)| names);
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let dependency = dependency["rename"].as_str().or(dependency["name"].as_str()).unwrap_or_default();
        if dependency == features::PACKAGE {
            continue;
        }
        if !words.contains(&dependency.replace('-', "_")) && !elsewhere.contains(&dependency) {
            breaches.push(format!("no source of {name} names {dependency}; take it out of Cargo.toml"));
        }
    }
    Ok(())
}

/// Compares the crates compiled for each package of [`APART`] with those that are refused.
fn compiled_for_nodes() -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    for (package, refused) in APART {
        let arguments = ["tree", "--edges", "normal", "--prefix", "none", "--package", package];
        let tree = shell::output(shell::cargo().args(arguments))?;
        let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        if !names.contains(package) {
            bail!("cargo tree does not name {package}");
        }
        let found = refused.iter().filter(|name| names.contains(*name));
        breaches.extend(
            found.map(|name| format!("{name} is compiled for {package}: cargo tree -p {package} -i {name}")),
        );
    }
    Ok(breaches)
}

/// Checks that the package is named after its path and uses the workspace's lints.
fn check_manifest(package: &Value, name: &str, breaches: &mut Vec<String>) -> Result<()> {
    let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
    let text =
        fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    if !text.contains("[lints]\nworkspace = true") {
        breaches.push(format!("{name}: Cargo.toml does not take the workspace's lints"));
    }
    let folder = manifest.parent().and_then(|p| p.strip_prefix(shell::root()).ok()).unwrap_or(Path::new(""));
    if folder.components().next().is_some_and(|top| PRODUCT.iter().any(|product| top.as_os_str() == *product))
    {
        for target in package["targets"].as_array().into_iter().flatten() {
            check_root(target, breaches)?;
        }
    }
    if folder.to_string_lossy().replace('/', "-") != name {
        breaches.push(format!("package {name} is in {}", folder.display()));
    }
    Ok(())
}

/// The root of a library or a binary refuses what [`REFUSES`] says.
fn check_root(target: &Value, breaches: &mut Vec<String>) -> Result<()> {
    let is_product = |kind: &Value| matches!(kind.as_str(), Some("lib" | "bin"));
    if !target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(is_product)) {
        return Ok(());
    }
    let root = Path::new(target["src_path"].as_str().unwrap_or_default());
    let text = fs::read_to_string(root).with_context(|| format!("cannot read {}", root.display()))?;
    if !text.lines().any(|line| line == REFUSES) {
        let shown = root.strip_prefix(shell::root()).unwrap_or(root);
        breaches.push(format!("{}: add the line {REFUSES}", shown.display()));
    }
    Ok(())
}

/// Finds import cycles among the top modules of each package.
fn import_cycles(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    for folder in packages(files) {
        let source = folder.join("src");
        let mut texts = Vec::new();
        for file in files {
            if let Ok(below) = file.strip_prefix(&source) {
                let text =
                    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
                texts.push((below, text));
            }
        }
        let graph = cycles::graph(texts.iter().map(|(path, text)| (*path, text.as_str())))?;
        let groups = cycles::cycles(&graph);
        let shown = folder.strip_prefix(shell::root()).unwrap_or(&folder).display();
        breaches
            .extend(groups.iter().map(|group| format!("{shown}: the modules {group:?} import each other")));
    }
    Ok(breaches)
}

/// Finds the doc comments that [`comments`] refuses.
fn doc_comments(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let path = file.strip_prefix(shell::root()).unwrap_or(file);
        breaches.extend(comments::openings(&text).into_iter().map(|(line, word)| {
            format!(
                "{}:{line}: a doc comment begins with {word:?}; say what the item is or does",
                path.display()
            )
        }));
        breaches.extend(comments::test_names(&text).into_iter().map(|(line, name)| {
            let path = path.display();
            format!(
                "{path}:{line}: the test {name} is named like a riddle; name it subject_condition_outcome"
            )
        }));
        breaches.extend(comments::examples(&text).into_iter().map(|line| {
            let path = path.display();
            format!("{path}:{line}: examples in comments are not run; write a test, or begin the block with ```text")
        }));
    }
    Ok(breaches)
}

/// Returns the folders of packages that contain any of the files.
fn packages(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let source = |file: &PathBuf| {
        file.ancestors().find(|folder| folder.ends_with("src")).and_then(Path::parent).map(Path::to_path_buf)
    };
    files.iter().filter_map(source).collect()
}

fn rust_files() -> Result<Vec<PathBuf>> {
    let list = shell::output(
        std::process::Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
            .current_dir(shell::root()),
    )?;
    Ok(list.lines().map(|line| shell::root().join(line)).filter(|path| path.exists()).collect())
}

fn check_file(file: &Path, breaches: &mut Vec<String>, warnings: &mut Vec<String>) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let shown = file.strip_prefix(shell::root()).unwrap_or(file).display().to_string();
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > FILE_FAIL {
        breaches.push(format!("{shown}: {} lines; split it", lines.len()));
    } else if lines.len() > FILE_WARN {
        warnings.push(format!("{shown}: {} lines, more than {FILE_WARN}", lines.len()));
    }
    for (name, line, length) in functions(&lines) {
        if length > FUNCTION_FAIL {
            breaches.push(format!(
                "{shown}:{line}: function {name} has {length} lines, more than {FUNCTION_FAIL}"
            ));
        }
    }
    Ok(())
}

/// Returns functions as (name, first line, number of lines). In formatted code a function ends at the first
/// brace with its own indentation.
fn functions<'a>(lines: &[&'a str]) -> Vec<(&'a str, usize, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let end = lines[start..].iter().position(|l| {
            let closes = l.trim_end() == format!("{}}}", " ".repeat(indent));
            closes || l.trim_end().ends_with(';') && l.len() - l.trim_start().len() == indent
        });
        if let Some(end) = end {
            found.push((name, start + 1, end + 1));
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::functions;

    #[test]
    fn a_function_ends_at_its_own_brace() {
        let text = "impl X {\n    pub async fn long(\n        a: u8,\n    ) {\n        if a {\n        }\n    }\n}\nfn short() {}\n";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(functions(&lines)[0], ("long", 2, 6));
    }
}
