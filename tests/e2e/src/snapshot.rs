//! A snapshot of the machine, to check exactly that it is as it was before.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::lab::{Machine, unified};
use crate::output;

/// Everything that `down` must restore, one line per item.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Records links, routes, rules, sysctls and neighbours of the node, BPF programs attached there, and
    /// mounts, cgroups, pins and processes of the machine that contain the lab's name.
    pub fn take(lab: &dyn Machine) -> Result<Self> {
        let mut lines = BTreeSet::new();
        let mut add = |kind: &str, text: &str| {
            lines.extend(text.lines().map(|line| format!("{kind}: {}", line.trim())));
        };
        add("link", &output(lab.run("ip").args(["-o", "-d", "link"]))?);
        add("address", &output(lab.run("ip").args(["-o", "addr"]))?);
        for family in ["-4", "-6"] {
            add("route", &output(lab.run("ip").args([family, "-o", "route", "show", "table", "all"]))?);
            add("rule", &output(lab.run("ip").args([family, "rule"]))?);
        }
        for name in ["net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.uplink.rp_filter"] {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            add("sysctl", &format!("{name} {}", output(lab.run("cat").arg(path))?));
        }
        add("nft", &output(lab.run("nft").args(["list", "ruleset"]))?);
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let data = lab.dir().display().to_string();
        for line in mounts.lines().filter(|line| line.contains(&data) || line.contains(lab.id())) {
            add("mount", line);
        }
        for hierarchy in cgroup_hierarchies()? {
            walk(Path::new(&hierarchy), &mut |path| {
                if path.contains(lab.id()) && Path::new(path) != lab.cgroup() {
                    add("cgroup", path);
                }
            });
        }
        walk(Path::new("/sys/fs/bpf"), &mut |path| {
            if path.contains(lab.id()) {
                add("pin", path);
            }
        });
        for process in processes(&data) {
            add("process", &process);
        }
        Ok(Self(lines))
    }

    /// Returns what is only here or only in `before`.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let more = self.0.difference(&before.0).map(|line| format!("+ {line}"));
        let less = before.0.difference(&self.0).map(|line| format!("- {line}"));
        more.chain(less).collect()
    }
}

fn cgroup_hierarchies() -> Result<Vec<String>> {
    let mut found = vec![unified()?.display().to_string()];
    for line in fs::read_to_string("/proc/self/mounts")?.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.get(2) == Some(&"cgroup") {
            found.push(fields[1].to_owned());
        }
    }
    Ok(found)
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&path.display().to_string());
            walk(&path, visit);
        } else if dir.starts_with("/sys/fs/bpf") {
            visit(&path.display().to_string());
        }
    }
}

/// Returns the command lines that contain the lab's directory, except those of the test itself.
fn processes(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(name) {
            found.push(line);
        }
    }
    found
}
