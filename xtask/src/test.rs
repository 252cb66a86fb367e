//! `cargo xtask test`: everything that CI runs, followed by one line of counts.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::kernel::Binary;
use crate::{against, build_ebpf, clients, deny, encoded, fuzz, image, kernel, setup, shell, suite, tidy};

#[derive(clap::Args)]
pub struct Args {
    /// Skip tests that need root, namespaces, containerd or etcd
    #[arg(long)]
    unprivileged: bool,
    /// Run only the end-to-end tests
    #[arg(long, conflicts_with = "unprivileged")]
    e2e: bool,
    /// Run only the tests with third-party clients: kubectl, client-go, helm, kube-rs, Python, JavaScript
    #[arg(long, conflicts_with_all = ["unprivileged", "e2e"])]
    clients: bool,
    /// Run this command with an API server in place of our tests, for example the suite of a client:
    /// KUBECONFIG, HOME and PATH are set for it
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["unprivileged", "e2e", "clients"])]
    suite: Option<String>,
    /// Run only the data plane's tests that need root, and those of encryption between nodes, in an emulated machine with
    /// this kernel, such as 6.1; may be repeated
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["unprivileged", "e2e", "clients", "suite"])]
    kernel: Vec<String>,
    /// With `--kernel`: only these test targets, in this order, such as `packets,model`; `network` is encryption between
    /// nodes, and is left out with a FILTER that does not contain `encryption::`
    #[arg(long, value_delimiter = ',', requires = "kernel")]
    target: Vec<String>,
    /// With `--kernel`: fewer random cases and less churn, for a quick check
    #[arg(long, requires = "kernel")]
    quick: bool,
    /// Run only the fuzz targets, with different inputs every time
    #[arg(long, conflicts_with_all = ["unprivileged", "e2e", "kernel"])]
    fuzz: bool,
    /// With `--fuzz`: seconds per target
    #[arg(long, requires = "fuzz", default_value_t = fuzz::SECONDS)]
    seconds: u64,
    /// Send the same requests to a kube-apiserver and to ours, in place of our tests, and report the
    /// differences in their answers: its URL, or the path of its kubeconfig
    #[arg(long, value_name = "URL", conflicts_with_all = ["unprivileged", "e2e", "clients", "suite", "kernel", "fuzz"])]
    against: Option<String>,
    #[command(flatten)]
    comparison: against::Comparison,
    /// Run only tests whose name contains this
    filter: Option<String>,
}

/// Environment variables of a child process.
type Environment = Vec<(String, OsString)>;

/// Packages that are built and tested.
const WORKSPACE: [&str; 3] = ["--workspace", "--exclude", "ebpf-programs"];

/// A part of the names of the tests that need WireGuard in the kernel.
const WIREGUARD: &str = "encryption::";

/// Counts reported by cargo's test runners.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    /// Tests that need WireGuard, if this kernel has none.
    without_wireguard: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.without_wireguard {
            0 => Ok(()),
            count => write!(f, ", {count} not run: no WireGuard in this kernel"),
        }
    }
}

impl Counts {
    /// Adds the counts of a line of a test runner's output, if it is a summary.
    fn add(&mut self, line: &str) {
        if let Some(summary) = summary(line) {
            self.passed += summary.passed;
            self.failed += summary.failed;
        }
    }
}

/// Runs the checks, then the tests: first those that any user can run, then those that need root.
pub fn run(args: &Args) -> Result<()> {
    if let Some(command) = &args.suite {
        return suite::run(command);
    }
    if let Some(server) = &args.against {
        return against::run(server, &args.comparison);
    }
    if args.fuzz {
        return fuzz::run(args.filter.as_deref(), args.seconds);
    }
    let mut counts = Counts::default();
    let outcome = stages(args, &mut counts);
    if outcome.is_err() && counts.failed == 0 {
        counts.failed = 1;
    }
    if let Err(error) = &outcome {
        eprintln!("test: {error:#}");
    }
    println!("{counts}");
    outcome.map_err(|_| anyhow::anyhow!("not everything passed"))
}

fn stages(args: &Args, counts: &mut Counts) -> Result<()> {
    setup::run(setup::Purpose::Everything, false)?;
    build_ebpf::run()?;
    let environment = environment();
    let filter: Vec<&str> = args.filter.as_deref().into_iter().collect();
    if !args.kernel.is_empty() {
        return kernels(args, &environment, counts);
    }
    if args.clients {
        return real_clients(&environment, &filter, counts);
    }
    if !args.e2e {
        timed("house rules, format, dependencies", checks)?;
        timed("lints, building the tests", || {
            shell::run(cargo(&environment).args(["test", "--quiet", "--no-run", "--tests"]).args(WORKSPACE))
        })?;
        stage("tests", counts, cargo_test(&environment, &[], &filter))?;
        real_clients(&environment, &filter, counts)?;
    }
    if args.unprivileged {
        return Ok(());
    }
    if !shell::is_root() {
        bail!("the remaining tests need root; `cargo xtask test --unprivileged` leaves them out");
    }
    privileged(args, &environment, &filter, counts)
}

/// Runs the tests that need root, and the end-to-end tests.
fn privileged(args: &Args, environment: &Environment, filter: &[&str], counts: &mut Counts) -> Result<()> {
    let harness =
        |threads| -> Vec<&str> { ["--ignored", threads].into_iter().chain(filter.iter().copied()).collect() };
    if !args.e2e {
        let others = ["--exclude", "tests-e2e", "--exclude", "tests-clients"].map(OsString::from);
        let mut harness = harness("--test-threads=1");
        if !has_wireguard() {
            eprintln!(
                "test: this kernel has no WireGuard: `cargo xtask test --kernel 6.1 --target network` runs the tests that \
                 need it"
            );
            counts.without_wireguard = count_wireguard(environment, filter)?;
            harness.extend(["--skip", WIREGUARD]);
        }
        stage("tests that need root", counts, cargo_test(environment, &others, &harness))?;
    }
    timed("building the binary and the image", || {
        image::echo()?;
        binary(environment)
    })?;
    // Each has a machine of its own, and waits most of the time.
    let harness = harness("--test-threads=2");
    stage("end to end", counts, cargo_test(environment, &target("e2e"), &harness))
}

/// Returns the number of requested tests that need WireGuard.
fn count_wireguard(environment: &Environment, filter: &[&str]) -> Result<u64> {
    let mut listing = cargo_test(environment, &target("network"), &["--ignored", "--list"]);
    let parts: Vec<&str> = filter.iter().copied().chain([WIREGUARD]).collect();
    Ok(listed(&shell::output(&mut listing)?, &parts))
}

/// Returns the number of tests in a list whose name contains all parts.
fn listed(list: &str, parts: &[&str]) -> u64 {
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    names.filter(|name| parts.iter().all(|part| name.contains(part))).count() as u64
}

/// Builds the binary in the same way as for the tests of its package.
fn binary(environment: &Environment) -> Result<()> {
    let target = ["--test", "binary"];
    shell::run(cargo(environment).args(["test", "--quiet", "--no-run"]).args(WORKSPACE).args(target))
}

/// Returns the arguments that select a test target, whose name is the only one in the workspace.
fn target(name: &str) -> [OsString; 2] {
    ["--test", name].map(OsString::from)
}

/// Returns the environment of builds and tests: lints, and third-party clients that setup has fetched.
fn environment() -> Environment {
    let mut environment: Environment =
        shell::LINTING.map(|(name, value)| (name.to_owned(), value.into())).into();
    environment.extend(
        clients::CLIENTS
            .iter()
            .map(|client| (client.variable(), client.path().unwrap_or_default().into_os_string())),
    );
    let kubectl = clients::KUBECTL.path().unwrap_or_default();
    environment.push(("HAWSER_KUBECTL".to_owned(), kubectl.into_os_string()));
    let encoded = encoded::path().unwrap_or_default();
    environment.push((encoded::VARIABLE.to_owned(), encoded.into_os_string()));
    environment
}

/// Runs the tests with third-party clients against an API server, over TLS on the loopback interface.
fn real_clients(environment: &Environment, filter: &[&str], counts: &mut Counts) -> Result<()> {
    timed("building the binary", || binary(environment))?;
    let ignored: Vec<&str> = ["--ignored"].into_iter().chain(filter.iter().copied()).collect();
    stage("real clients", counts, cargo_test(environment, &target("clients"), &ignored))
}

/// Returns the test binaries that run on other kernels: all of the data plane, and of the pod network those tests
/// that need WireGuard.
fn binaries(environment: &Environment) -> Result<Vec<Binary>> {
    let build = |select: &[&str]| {
        let mut command = cargo(environment);
        command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(select);
        shell::output(&mut command).map(|messages| kernel::test_binaries(&messages))
    };
    let all = build(&["--package", "userspace-dataplane"])?.into_iter().map(|found| (found, None));
    let network = build(&["--package", "userspace-network", "--test", "network"])?;
    let all = all.chain(network.into_iter().map(|found| (found, Some(WIREGUARD))));
    Ok(all.map(|((name, file), part)| Binary { name, file, part }).collect())
}

/// Returns `true` if this machine's kernel has WireGuard, and loads its module.
fn has_wireguard() -> bool {
    let make = ["--net", "ip", "link", "add", "wg0", "type", "wireguard"];
    let made = Command::new("unshare").args(make).stdin(Stdio::null()).stderr(Stdio::null()).status();
    made.is_ok_and(|status| status.success())
}

/// Runs tests on other kernels, one after the other, continuing after failures.
fn kernels(args: &Args, environment: &Environment, counts: &mut Counts) -> Result<()> {
    let binaries = narrowed(chosen(&binaries(environment)?, &args.target)?, args.filter.as_deref())?;
    let tests = kernel::Tests { binaries: &binaries, filter: args.filter.as_deref(), quick: args.quick };
    let mut failed = Vec::new();
    for version in &args.kernel {
        let outcome = timed(&format!("kernel {version}"), || {
            kernel::test(version, &tests, &mut |line| {
                println!("{line}");
                counts.add(line);
            })
        });
        if let Err(error) = outcome {
            eprintln!("test: {error:#}");
            failed.push(version.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("failed on kernel {}", failed.join(", "));
    }
    Ok(())
}

/// Returns the requested targets in the requested order; all if none is requested.
fn chosen(all: &[Binary], targets: &[String]) -> Result<Vec<Binary>> {
    let of = |name: &String| {
        all.iter().find(|known| known.name == *name).cloned().with_context(|| {
            let known: Vec<&str> = all.iter().map(|known| known.name.as_str()).collect();
            format!("no test target is called {name}; there are {}", known.join(", "))
        })
    };
    if targets.is_empty() { Ok(all.to_vec()) } else { targets.iter().map(of).collect() }
}

/// Returns the binaries to run with a filter. One of which only a part needs another kernel is left out unless the filter
/// contains that part: a test runner takes several filters as alternatives.
fn narrowed(mut binaries: Vec<Binary>, filter: Option<&str>) -> Result<Vec<Binary>> {
    let Some(filter) = filter else { return Ok(binaries) };
    binaries.retain(|binary| binary.part.is_none_or(|part| filter.contains(part)));
    if binaries.is_empty() {
        bail!(
            "no test that needs another kernel has {filter} in its name: those of encryption begin with {WIREGUARD}"
        );
    }
    Ok(binaries)
}

/// Checks house rules, format, and the rules for dependencies. Advisories are left to `cargo xtask deny`,
/// since a new one would fail a commit that passed the day before.
fn checks() -> Result<()> {
    tidy::run()?;
    deny::rules()?;
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
}

fn cargo(environment: &Environment) -> Command {
    let mut command = shell::cargo();
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

fn cargo_test(environment: &Environment, select: &[OsString], harness: &[&str]) -> Command {
    let mut command = cargo(environment);
    // Without `--tests`, rustdoc reads every crate again to find no test in its comments (tidy refuses them).
    let all = if select.contains(&"--test".into()) { &[][..] } else { &["--tests"] };
    command.args(["test", "--no-fail-fast"]).args(WORKSPACE).args(all).args(select).arg("--").args(harness);
    command
}

/// Runs a part, and reports how long it took and how busy it kept the CPUs.
fn timed(name: &str, part: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("test: {name}");
    let (start, before) = (Instant::now(), processor_time());
    let outcome = part();
    let busy = before.zip(processor_time()).map(|(before, after)| {
        let [work, all] = [after[0] - before[0], after[1] - before[1]];
        format!(", {} % of the processors", 100 * work / all.max(1))
    });
    eprintln!("test: {name}: {} s{}", start.elapsed().as_secs(), busy.unwrap_or_default());
    outcome
}

/// Returns the busy and the total time of the CPUs since boot in ticks, from `/proc/stat`, see proc_stat(5).
fn processor_time() -> Option<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|tick| tick.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, ..] = ticks[..] else { return None };
    let work = user + nice + system + irq + softirq;
    Some([work, work + idle + iowait])
}

/// Runs one `cargo test`, shows its output as it comes, and adds up its summary lines.
fn stage(name: &str, counts: &mut Counts, command: Command) -> Result<()> {
    timed(name, || count(counts, command))
}

fn count(counts: &mut Counts, mut command: Command) -> Result<()> {
    let text = shell::describe(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{text}`"))?;
    let stdout = child.stdout.take().context("the child's standard output was not piped")?;
    for line in BufReader::new(stdout).lines() {
        let line = line.with_context(|| format!("cannot read the output of `{text}`"))?;
        println!("{line}");
        counts.add(&line);
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{text}`"))?;
    if !status.success() {
        bail!("`{text}` ended with {status}");
    }
    Ok(())
}

/// Parses the counts of a line such as `test result: ok. 12 passed; 0 failed; 3 ignored; …`.
fn summary(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?;
    let number = |word: &str| {
        rest.split(['.', ';'])
            .find_map(|part| part.trim().strip_suffix(word).and_then(|n| n.trim().parse::<u64>().ok()))
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")?, ..Counts::default() })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Binary, Counts, WIREGUARD, chosen, listed, narrowed, summary};
    use crate::shell::LINTING;

    /// The arguments are a private agreement between clippy's two programs: if it changes, nothing else would
    /// reveal that lints are no longer checked.
    #[test]
    fn a_lint_fails_the_build() {
        let directory = tempfile::tempdir().unwrap();
        let compile = |text: &str| {
            let source = directory.path().join("lint.rs");
            std::fs::write(&source, text).unwrap();
            let [(_, driver), (arguments, denied)] = LINTING;
            let mut command = Command::new(driver);
            command.args(["rustc", "--crate-type=lib", "--emit=metadata", "--out-dir"]).arg(directory.path());
            command.arg(&source).env(arguments, denied).output().unwrap()
        };
        assert!(compile("pub fn negated(a: bool) -> bool { !a }").status.success());
        let refused = compile("pub fn same(a: bool) -> bool { a == true }");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("bool_comparison"), "{said}");
    }

    #[test]
    fn targets_keep_the_requested_order() {
        let all = ["a", "b", "c"].map(|name| Binary { name: name.to_owned(), file: name.into(), part: None });
        let names = |targets: &[&str]| -> Option<Vec<String>> {
            let targets: Vec<String> = targets.iter().map(|name| (*name).to_owned()).collect();
            let chosen = chosen(&all, &targets).ok()?;
            Some(chosen.into_iter().map(|binary| binary.name).collect())
        };
        assert_eq!(names(&[]).unwrap(), ["a", "b", "c"]);
        assert_eq!(names(&["c", "a"]).unwrap(), ["c", "a"]);
        assert_eq!(names(&["d"]), None);
    }

    #[test]
    fn filter_outside_of_the_part_of_a_target_leaves_it_out() {
        let binary = |name: &str, part| Binary { name: name.to_owned(), file: name.into(), part };
        let all = vec![binary("packets", None), binary("network", Some(WIREGUARD))];
        let names = |filter| -> Option<Vec<String>> {
            let left = narrowed(all.clone(), filter).ok()?;
            Some(left.into_iter().map(|binary| binary.name).collect())
        };
        assert_eq!(names(None).unwrap(), ["packets", "network"]);
        assert_eq!(names(Some("routes")).unwrap(), ["packets"]);
        assert_eq!(names(Some("encryption::keys")).unwrap(), ["packets", "network"]);
        assert!(narrowed(all[1..].to_vec(), Some("routes")).is_err(), "nothing would run");
    }

    #[test]
    fn closing_line_counts_tests_that_were_not_run_without_wireguard() {
        let list = "encryption::a: test\nencryption::b: test\npeers::a: test\n\n3 tests, 0 benchmarks\n";
        assert_eq!(
            [&[WIREGUARD][..], &[WIREGUARD, "::b"], &["::a", WIREGUARD]].map(|of| listed(list, of)),
            [2, 1, 1]
        );
        let counts = Counts { passed: 12, failed: 0, without_wireguard: 6 };
        assert_eq!(counts.to_string(), "12 passed, 0 failed, 6 not run: no WireGuard in this kernel");
        assert_eq!(Counts { without_wireguard: 0, ..counts }.to_string(), "12 passed, 0 failed");
    }

    #[test]
    fn a_summary_line_is_counted_and_another_line_is_not() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        let counts = summary(line).unwrap();
        assert_eq!((counts.passed, counts.failed), (12, 3));
        assert!(summary("test cache::tests::x ... ok").is_none());
    }
}
