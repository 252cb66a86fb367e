//! The fuzz targets of `tests/fuzz`: built with libFuzzer's instrumentation, which any stable compiler can
//! add, and run in parallel, one per CPU, for a limited time each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

/// The instrumentation that cargo-fuzz also uses: counters on every edge, and the operands of comparisons.
const INSTRUMENTATION: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4";
/// Default seconds per target of `--fuzz`. Rare bugs need longer runs from time to time.
pub const SECONDS: u64 = 60;
/// Seconds after which an input is a finding: generous, since machines are slow and shared.
const SLOW: u64 = 30;
/// Memory limit of a target in MiB; exceeding it is a finding.
const MEMORY: u64 = 2048;
/// Maximum size of an input in bytes.
const LONGEST: u64 = 8192;

/// Runs the targets whose name contains `filter`, or all without one, for `seconds` each, with inputs generated
/// from a random seed that is logged. A finding is printed, since the machine may not be available
/// later, and results in an error that names its file; add it to the corpus, so that it stays fixed.
pub fn run(filter: Option<&str>, seconds: u64) -> Result<()> {
    let program = build()?;
    let names = shell::output(&mut Command::new(&program))?;
    let mut waiting: Vec<&str> =
        names.lines().filter(|name| name.contains(filter.unwrap_or_default())).collect();
    if waiting.is_empty() {
        bail!("no fuzz target is called {}; there are:\n{names}", filter.unwrap_or_default());
    }
    waiting.reverse();
    let side_by_side = std::thread::available_parallelism().map_or(1, usize::from);
    let directory = shell::target_dir().join("fuzz-runs");
    let mut running: Vec<Run> = Vec::new();
    let mut found = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < side_by_side
            && let Some(name) = waiting.pop()
        {
            running.push(Run::start(&program, &directory, name, seconds)?);
        }
        if !running.is_empty() {
            found.extend(running.remove(0).finish()?);
        }
    }
    if !found.is_empty() {
        bail!("the fuzzer found something:\n  {}", found.join("\n  "));
    }
    Ok(())
}

/// Builds the program of all targets in a target directory of its own, because every crate in it is
/// instrumented.
fn build() -> Result<PathBuf> {
    let version = shell::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let target_dir = shell::target_dir().join("fuzz");
    // Without a named target, build scripts and macros would be instrumented, too.
    shell::run(
        shell::cargo()
            .args(["build", "--quiet", "--target", host])
            .current_dir(targets().join("program"))
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("RUSTFLAGS", INSTRUMENTATION),
    )?;
    Ok(target_dir.join(host).join("debug/fuzz"))
}

/// Returns the directory of the targets and their corpus.
fn targets() -> PathBuf {
    shell::root().join("tests/fuzz")
}

/// A running target.
struct Run {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Run {
    fn start(program: &Path, directory: &Path, name: &str, seconds: u64) -> Result<Self> {
        let (grown, log) = (directory.join(name), directory.join(format!("{name}.log")));
        fs::create_dir_all(&grown).with_context(|| format!("cannot make {}", grown.display()))?;
        let output = fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let child = Command::new(program)
            .env("FUZZ_TARGET", name)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={SLOW}"))
            .arg(format!("-rss_limit_mb={MEMORY}"))
            .arg(format!("-max_len={LONGEST}"))
            .arg("-print_final_stats=1")
            .arg(format!("-artifact_prefix={}/{name}-", directory.display()))
            // New inputs go to the first directory; the repository's corpus is only read.
            .args([grown, targets().join("corpus").join(name)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start the target {name}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Waits for the end; returns a finding with the path of its input.
    fn finish(mut self) -> Result<Option<String>> {
        let status =
            self.child.wait().with_context(|| format!("cannot wait for the target {}", self.name))?;
        let log = fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        let log = String::from_utf8_lossy(&log);
        let line =
            |start: &str| log.lines().rev().find(|line| line.contains(start)).unwrap_or_default().to_owned();
        eprintln!("fuzz: {}: {}", self.name, line("stat::number_of_executed_units"));
        if status.success() {
            return Ok(None);
        }
        let why = [line("panicked at"), line("ERROR: libFuzzer")].join(" ");
        let input = line(WRITTEN);
        if let Some((_, path)) = input.split_once(WRITTEN) {
            print_input(&self.name, Path::new(path.trim()))?;
        }
        Ok(Some(format!("{}: {} {input}", self.name, why.trim())))
    }
}

/// Text with which libFuzzer reports the path of a finding's input.
const WRITTEN: &str = "Test unit written to";

/// Prints an input as byte strings of Rust and Python (`b"…"`), in lines that logs do not fold.
fn print_input(name: &str, path: &Path) -> Result<()> {
    let input = fs::read(path).with_context(|| format!("cannot read the finding {}", path.display()))?;
    for part in input.chunks(200) {
        eprintln!("fuzz: {name}: input: {}", part.escape_ascii());
    }
    Ok(())
}
