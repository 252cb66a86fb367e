//! Runs a simulation in a process of its own, so that it depends on nothing but the seed.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::entropy;
use crate::simulation::Simulation;

/// Environment variable with the seed, set in the process that runs one simulation.
const CHILD: &str = "HAWSER_SIM_CHILD";
/// Environment variable that repeats one seed.
const ONE: &str = "HAWSER_SIM_SEED";
/// Environment variable with the number of seeds to try.
const MANY: &str = "HAWSER_SIM_SEEDS";
/// Environment variable with a log filter for `tracing_subscriber`.
const LOG: &str = "HAWSER_SIM_LOG";
/// Prefix of the history's hash in the output of the child.
const HISTORY: &str = "history: ";

/// A scenario: the name of a test, and the code that runs in the simulation.
pub struct Scenario {
    /// Full name of the test function, as the test harness prints it.
    test: &'static str,
}

/// Returns the scenario of the test with that name.
pub fn scenario(test: &'static str) -> Scenario {
    Scenario { test }
}

impl Scenario {
    /// Runs `body` once per seed: those that the environment requests, or 1 to `seeds`. Returns the histories
    /// by seed.
    ///
    /// # Panics
    ///
    /// Panics if a run fails, with the seed and the command that repeats it.
    pub fn run(
        &self,
        seeds: u64,
        body: impl AsyncFnOnce(&mut Simulation) -> Result<()> + Send + 'static,
    ) -> Vec<(u64, String)> {
        if let Some(seed) = number(CHILD) {
            child(seed, body);
            return Vec::new();
        }
        let seeds: Vec<u64> = match number(ONE) {
            Some(seed) => vec![seed],
            None => (1..=number(MANY).unwrap_or(seeds)).collect(),
        };
        seeds.into_iter().map(|seed| (seed, self.spawn(seed))).collect()
    }

    /// Runs one seed in a new process; returns its history.
    ///
    /// # Panics
    ///
    /// Panics like [`Scenario::run`].
    pub fn spawn(&self, seed: u64) -> String {
        let program = std::env::current_exe().expect("a running test has a file");
        let began = Instant::now();
        let output = Command::new(program)
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env(CHILD, seed.to_string())
            // A backtrace of the failed assertion is not helpful; the log before it is.
            .env("RUST_BACKTRACE", "0")
            .output()
            .expect("this program can be started once more");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let history = out.lines().find_map(|line| line.split_once(HISTORY)).map(|(_, history)| history);
        let (test, took) = (self.test, began.elapsed());
        match history {
            Some(history) if output.status.success() => {
                report(&format!("{test} seed {seed}: {history} in {took:.1?}\n{err}"));
                history.to_owned()
            }
            _ => panic!(
                "{test} failed with seed {seed}; repeat it with\n  {ONE}={seed} cargo test -p tests-sim {test}\n\
                 and {LOG}=info for a log\n{out}\n{err}"
            ),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Prints for people who run tests with `--nocapture`.
#[expect(clippy::print_stderr, reason = "the report of a test")]
fn report(text: &str) {
    eprintln!("{}", text.trim_end());
}

#[expect(clippy::print_stdout, reason = "what the parent process reads")]
fn child(seed: u64, body: impl AsyncFnOnce(&mut Simulation) -> Result<()> + Send + 'static) {
    if let Ok(filter) = std::env::var(LOG) {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    }
    let ended = entropy::on_seeded_thread(seed, move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        runtime.block_on(async move {
            let mut simulation = Simulation::new(seed).await?;
            let result = body(&mut simulation).await;
            let model = simulation.model();
            let history = model.history();
            result.map(|()| history).map_err(|error| {
                let recent = model.recent.iter().cloned().collect::<Vec<_>>().join("\n");
                anyhow::anyhow!("{recent}\nat {:?}: {error:#}", simulation.elapsed())
            })
        })
    });
    match ended {
        Ok(history) => println!("{HISTORY}{history}"),
        Err(error) => panic!("{error:#}"),
    }
}
