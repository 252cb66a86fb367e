//! Finds or installs what building, running and testing needs. Idempotent, and fast if nothing is missing. If
//! it cannot install (another distribution, or not root), it lists each missing item with the command that
//! installs it, and changes nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::clients::{self, Client};
use crate::shell::{self, find};
use crate::{deny, encoded};

const BPF_LINKER: &str = "0.13.0";

/// A requirement.
struct Requirement {
    what: &'static str,
    why: &'static str,
    present: fn() -> bool,
    /// Debian packages that provide it.
    packages: &'static [&'static str],
    /// Command for other distributions.
    command: &'static str,
    /// True if only tests and benchmarks need it.
    tests_only: bool,
}

/// Purpose of the set-up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Building and running a cluster.
    Run,
    /// Everything in this workspace.
    Everything,
}

const NEEDS: &[Requirement] = &[
    Requirement {
        what: "a Rust compiler with `core` for the bpf target",
        why: "compiles the eBPF programs",
        present: bpf_target,
        packages: &["rustc-web", "libstd-rust-web-dev-bpf"],
        command: "rustup toolchain install nightly --component rust-src",
        tests_only: false,
    },
    Requirement {
        what: "LLVM 22 development files",
        why: "bpf-linker is built against them",
        present: || find("bpf-linker").is_some() || Path::new("/usr/lib/llvm-22/bin/llvm-config").exists(),
        packages: &["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "zlib1g-dev", "libxml2-dev"],
        command: "install llvm-22 with its development files from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "protoc and the well-known protobuf types",
        why: "etcd-client is generated with them",
        present: || find("protoc").is_some() && well_known_types(),
        packages: &["protobuf-compiler", "libprotobuf-dev"],
        command: "install the protobuf compiler and its include files from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "containerd",
        why: "runs the pods",
        present: || find("containerd").is_some() && find("ctr").is_some(),
        packages: &["containerd"],
        command: "install containerd (1.6 or newer) from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "runc",
        why: "runs the containers",
        present: || find("runc").is_some(),
        packages: &["runc"],
        command: "install runc from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "etcd",
        why: "`up --control-planes` runs it, and the tests run the store's suite against it",
        present: || find("etcd").is_some(),
        packages: &["etcd-server"],
        command: "install etcd (3.4 or newer) from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "nft and iptables",
        why: "the benchmark compares with them",
        present: || find("nft").is_some() && find("iptables-restore").is_some(),
        packages: &["nftables", "iptables"],
        command: "install nftables and iptables from your distribution",
        tests_only: true,
    },
    Requirement {
        what: "h2load",
        why: "the benchmark asks the API server with it",
        present: || find("h2load").is_some(),
        packages: &["nghttp2-client"],
        command: "install h2load, of nghttp2, from your distribution",
        tests_only: true,
    },
    Requirement {
        what: "curl",
        why: "the README and the end-to-end test ask servers with it",
        present: || find("curl").is_some(),
        packages: &["curl"],
        command: "install curl from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "dig",
        why: "the tests ask the cluster's DNS server with it",
        present: || find("dig").is_some(),
        packages: &["bind9-dnsutils"],
        command: "install dig, of BIND, from your distribution",
        tests_only: true,
    },
    Requirement {
        what: "ip",
        why: "`up --nodes` and the end-to-end test make hosts",
        present: || find("ip").is_some(),
        packages: &["iproute2"],
        command: "install iproute2 from your distribution",
        tests_only: false,
    },
    Requirement {
        what: "Python 3.11 or newer with venv",
        why: "the tests use the Python client",
        present: python_venv,
        packages: &["python3-venv"],
        command: "install Python 3 with its venv module from your distribution",
        tests_only: true,
    },
    Requirement {
        what: "Node.js and npm",
        why: "the tests use the JavaScript client",
        present: || find("node").is_some() && find("npm").is_some(),
        packages: &["nodejs", "npm"],
        command: "install Node.js (18 or newer) and npm from your distribution",
        tests_only: true,
    },
];

/// Installs what is missing for a purpose; with `check` only reports it.
pub fn run(purpose: Purpose, check: bool) -> Result<()> {
    let wanted = |need: &&Requirement| purpose == Purpose::Everything || !need.tests_only;
    let missing: Vec<&Requirement> = NEEDS.iter().filter(wanted).filter(|need| !(need.present)()).collect();
    let linker = find("bpf-linker").is_none();
    let clients = match purpose {
        Purpose::Everything => clients::missing(),
        // A user needs some kubectl.
        Purpose::Run if find("kubectl").is_none() && clients::KUBECTL.path().is_none() => {
            vec![clients::KUBECTL]
        }
        Purpose::Run => Vec::new(),
    };
    let encoded = purpose == Purpose::Everything && encoded::path().is_none();
    let deny = purpose == Purpose::Everything && deny::find().is_none();
    if missing.is_empty() && !linker && clients.is_empty() && !encoded && !deny {
        return Ok(());
    }
    let debian =
        fs::read_to_string("/etc/os-release").is_ok_and(|text| text.lines().any(|line| line == "ID=debian"));
    let archive = encoded || clients.iter().any(|client| client.needs_apt());
    let system = !missing.is_empty() || linker || archive;
    if check || system && (!debian || !shell::is_root()) {
        let lacking = Missing { missing: &missing, linker, clients: &clients, encoded, deny };
        return explain(&lacking, debian);
    }
    install_packages(&missing)?;
    if linker {
        install_bpf_linker()?;
    }
    for client in clients {
        client.install()?;
    }
    if encoded {
        encoded::install()?;
    }
    if deny {
        deny::install()?;
    }
    verify(&missing)
}

/// Missing requirements.
struct Missing<'a> {
    missing: &'a [&'a Requirement],
    /// True if bpf-linker is missing.
    linker: bool,
    clients: &'a [&'a Client],
    encoded: bool,
    /// True if cargo-deny is missing.
    deny: bool,
}

/// Reports what is missing and how to install it; always fails.
fn explain(lacking: &Missing<'_>, debian: bool) -> Result<()> {
    let Missing { missing, linker, clients, encoded, deny } = *lacking;
    let mut lines = Vec::new();
    for need in missing {
        let command = if debian {
            format!("apt-get install --no-install-recommends {}", need.packages.join(" "))
        } else {
            need.command.to_owned()
        };
        lines.push(format!("  {} ({}):\n      {command}", need.what, need.why));
    }
    if linker {
        lines.push(format!(
            "  bpf-linker (links the eBPF programs):\n      LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker \
             --version {BPF_LINKER} --no-default-features --features llvm-22"
        ));
    }
    for client in clients {
        lines.push(format!("  {} (tests use the API with it):\n      {}", client.name(), client.command()));
    }
    if encoded {
        lines.push(format!(
            "  {} (tests compare our encoding with them):\n      {}",
            encoded::NAME,
            encoded::command()
        ));
    }
    if deny {
        lines.push(format!("  cargo-deny (checks the dependencies):\n      {}", deny::command()));
    }
    let hint = match (debian, shell::is_root()) {
        (true, true) => "run `cargo xtask setup` to install all of it",
        (true, false) => "run `cargo xtask setup` as root to install all of it, or type the commands above",
        (false, _) => "on this distribution setup installs no package by itself",
    };
    bail!("missing:\n{}\n{hint}", lines.join("\n"))
}

fn install_packages(missing: &[&Requirement]) -> Result<()> {
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages.iter().copied()).collect();
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("setup: installing {}", packages.join(" "));
    shell::run(Command::new("apt-get").args(["update", "-qq"]))?;
    shell::run(
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends", "--no-remove"])
            .args(&packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null()),
    )?;
    // With systemd, the distribution starts a containerd and an etcd of its own. Ours are child processes
    // with their own directories, so nothing else needs to be done.
    Ok(())
}

fn install_bpf_linker() -> Result<()> {
    eprintln!("setup: building bpf-linker {BPF_LINKER}");
    shell::run(
        shell::cargo()
            .args(["install", "--quiet", "bpf-linker", "--version", BPF_LINKER])
            .args(["--no-default-features", "--features", "llvm-22"])
            .env("LLVM_PREFIX", "/usr/lib/llvm-22")
            // It is a program for this machine, independent of the workspace's build settings.
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS"),
    )
}

fn verify(missing: &[&Requirement]) -> Result<()> {
    let still: Vec<&str> = missing.iter().filter(|need| !(need.present)()).map(|need| need.what).collect();
    if !still.is_empty() {
        bail!("setup installed the packages, but these are still missing: {}", still.join(", "));
    }
    Ok(())
}

/// Returns `true` if a compiler for BPF is available: Debian's includes `core` for it, and a rustup nightly
/// with `rust-src` builds it.
fn bpf_target() -> bool {
    let nightly_source = || {
        let root =
            shell::output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]));
        root.is_ok_and(|root| Path::new(root.trim()).join("lib/rustlib/src/rust/library/core").exists())
    };
    let debian =
        ["/usr/bin/rustc", "/usr/lib/rustlib/bpfel-unknown-none/lib"].iter().all(|p| Path::new(p).exists());
    debian || nightly_source()
}

/// Returns `true` if Python can create virtual environments, which Debian packages separately.
fn python_venv() -> bool {
    let works = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    find("python3").is_some_and(|python| {
        let mut command = Command::new(python);
        command.args(["-c", works]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

fn well_known_types() -> bool {
    let include = std::env::var_os("PROTOC_INCLUDE").unwrap_or_else(|| "/usr/include".into());
    Path::new(&include).join("google/protobuf/descriptor.proto").exists()
}
