//! Kernels other than this machine's: they are fetched and booted in an emulated machine, and run
//! programs of ours.
//!
//! ```text
//!   apt ──▶ emulator, kernel, modules        (fetch, modules)
//!            │
//!   programs ─▶ initramfs ─▶ qemu ─▶ serial console ─▶ output, exit code     (initramfs, guest)
//! ```

mod fetch;
mod guest;
mod initramfs;
mod modules;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

use self::fetch::tools;
use self::guest::{Guest, run};

/// Kernel modules that tests may need: interfaces of all kinds, classifiers, socket diagnosis, SCTP, connection
/// tracking, WireGuard. Modules that are built in or missing are skipped.
const MODULES: &[&str] = &[
    "veth",
    "dummy",
    "bridge",
    "vxlan",
    "ipip",
    "ip6_tunnel",
    "tun",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "raw_diag",
    "crc32c_generic",
    "sctp",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "wireguard",
];

/// Additional modules for comparisons with IPVS, iptables and nftables.
const PEER_MODULES: &[&str] = &[
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_sh",
    "ip_vs_mh",
    "nf_tables",
    "nft_chain_nat",
    "nft_compat",
    "nft_ct",
    "nft_fib",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_reject",
    "nft_reject_inet",
    "ip_tables",
    "iptable_filter",
    "iptable_nat",
    "x_tables",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_ipvs",
    "xt_mark",
    "xt_MASQUERADE",
    "xt_nat",
    "xt_recent",
    "xt_set",
    "xt_statistic",
    "xt_tcpudp",
    "ip_set",
    "ip_set_hash_ip",
    "ip_set_hash_ipport",
];

/// Debian packages of programs that comparisons run in the guest.
const PEER_PACKAGES: &[&str] = &["ipvsadm", "ipset", "iptables", "nftables"];

/// Time limit of all tests on one kernel: without hardware acceleration, verification of the programs alone
/// takes tens of seconds per test.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// Factor by which tests wait longer for events.
const WAIT_FACTOR: &str = "20";
/// Number of random cases and of changes under churn, in thousandths of those on this machine's kernel.
const SHARE: &str = "100";
const QUICK_SHARE: &str = "20";

/// A test binary.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The name of its target.
    pub name: String,
    pub file: PathBuf,
    /// A part of the names of the tests that need another kernel; all do if it is not set.
    pub part: Option<&'static str>,
}

/// Tests to run on another kernel.
pub struct Tests<'a> {
    pub binaries: &'a [Binary],
    /// A part of the names of the tests to run, in place of the part of a binary, which it contains.
    pub filter: Option<&'a str>,
    pub quick: bool,
}

impl Tests<'_> {
    /// Returns the script of the guest: each binary separately, continuing after failures. The output of
    /// tests is shown immediately, since all of them may take an hour.
    fn script(&self) -> String {
        let mut script = String::from("failed=0\n");
        for Binary { name, file, part } in self.binaries {
            let program = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            script.push_str(&format!("echo '== {name}'\n{program} --ignored --nocapture --test-threads=1"));
            if let Some(filter) = self.filter.or(*part) {
                script.push_str(&format!(" '{}'", filter.replace('\'', "")));
            }
            script.push_str(" || failed=1\n");
        }
        script.push_str("exit $failed\n");
        script
    }

    /// Returns the settings of the tests, see `userspace/dataplane/tests/support`; variables of this process
    /// come later and override ours.
    fn environment(&self) -> Vec<(String, String)> {
        let share = if self.quick { QUICK_SHARE } else { SHARE };
        let ours = [("HAWSER_TEST_TIME_FACTOR", WAIT_FACTOR), ("HAWSER_TEST_SHARE", share)];
        let ours = ours.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        ours.chain(std::env::vars().filter(|(name, _)| {
            name.starts_with("HAWSER_TEST_") || matches!(name.as_str(), "RUST_LOG" | "RUST_BACKTRACE")
        }))
        .collect()
    }
}

/// Runs tests that need root on another kernel. Passes each line of their output to `line`;
/// fails if a test fails.
///
/// # Errors
///
/// Fails if the kernel or the emulator cannot be fetched, if the guest does not finish, or if a test fails.
pub fn test(version: &str, tests: &Tests<'_>, line: &mut dyn FnMut(&str)) -> Result<()> {
    let mut programs: Vec<PathBuf> = tests.binaries.iter().map(|binary| binary.file.clone()).collect();
    for name in ["ip", "tc", "flock"] {
        programs
            .push(shell::find(name).with_context(|| format!("no `{name}` here; run `cargo xtask setup`"))?);
    }
    let guest =
        Guest { programs, environment: tests.environment(), ..Guest::new(version, tests.script(), LIMIT) };
    match run(&guest, line)? {
        0 => Ok(()),
        code => bail!("tests failed on kernel {version} (exit code {code})"),
    }
}

/// Runs a program of this machine on another kernel, together with IPVS, iptables and nftables and their
/// tools, and passes each line of its output to `line`. Files that it writes are lost.
///
/// # Errors
///
/// Fails if the kernel, the emulator or the tools cannot be fetched, if the guest does not finish within the
/// limit, or if the program fails.
pub fn bench(
    version: &str,
    program: &Path,
    arguments: &[&str],
    limit: Duration,
    line: &mut dyn FnMut(&str),
) -> Result<()> {
    let name = program.file_name().context("a program")?.to_string_lossy().into_owned();
    let tools = tools(PEER_PACKAGES)?;
    let mut programs = vec![program.to_path_buf()];
    // busybox's shell and nsenter would run the `ip` applet instead of the real one.
    for name in ["ip", "dash", "nsenter"] {
        programs.push(shell::find(name).with_context(|| format!("no `{name}` here"))?);
    }
    programs.extend(tools.programs);
    let mut links = tools.links;
    links.push(("sh".to_owned(), "dash".to_owned()));
    // The links of Debian's alternatives.
    for name in ["iptables", "iptables-restore", "iptables-save"] {
        links.push((name.to_owned(), "xtables-nft-multi".to_owned()));
    }
    let guest = Guest {
        programs,
        links,
        files: tools.data,
        libraries: tools.libraries,
        modules: PEER_MODULES.to_vec(),
        processors: 1,
        counted: true,
        ..Guest::new(version, format!("exec {name} {}\n", arguments.join(" ")), limit)
    };
    match run(&guest, line)? {
        0 => Ok(()),
        code => bail!("{name} ended with exit code {code} on kernel {version}"),
    }
}

/// Returns the test binaries of a package by the name of their target, from what
/// `cargo test --no-run --message-format=json` printed.
pub fn test_binaries(messages: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| {
            let file = Path::new(message["executable"].as_str()?).to_path_buf();
            Some((message["target"]["name"].as_str()?.to_owned(), file))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::test_binaries;

    #[test]
    fn only_test_binaries_are_taken() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"b"},"profile":{"test":true},"executable":"/t/b-1"}
{"reason":"compiler-artifact","target":{"name":"lib"},"profile":{"test":true},"executable":null}
{"reason":"compiler-artifact","target":{"name":"tool"},"profile":{"test":false},"executable":"/t/tool"}
{"reason":"compiler-artifact","target":{"name":"a"},"profile":{"test":true},"executable":"/t/a-1"}
{"reason":"build-finished","success":true}"#;
        let names: Vec<String> = test_binaries(messages).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
