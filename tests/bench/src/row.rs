//! Benchmark rows, as JSON lines for scripts.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Name and unit of a metric.
pub type Metric = (&'static str, &'static str);

/// Ratio of a figure to that with one service: the median over neighbouring turns.
pub const RATIO_TO_ONE: &str = "ratio_to_one_service";

/// One figure. Units are SI: seconds, bytes, per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub suite: String,
    /// Name and parameters: `connect_rate/services=1`.
    pub case: String,
    /// Subject: `hawser`, a peer, or `limit`.
    pub subject: String,
    pub metric: String,
    pub unit: String,
    /// Median of `n` repeats.
    pub value: f64,
    pub n: usize,
    pub seed: u64,
}

/// Maximum number of characters of a failure message.
const LONGEST: usize = 2000;

/// Prints rows as they are measured, and appends them to a file if one is given.
pub struct Report {
    json: Option<PathBuf>,
    seed: u64,
    /// Number of failed cases.
    failures: AtomicUsize,
}

impl Report {
    pub fn new(json: Option<PathBuf>, seed: u64) -> Self {
        Self { json, seed, failures: AtomicUsize::new(0) }
    }

    /// Runs a case. A failure is reported and does not stop the others, which may take an hour.
    pub fn attempt(&self, case: &str, measure: impl FnOnce() -> Result<()>) {
        if let Err(error) = measure() {
            let text = format!("{error:#}");
            // The verifier's log can be very long.
            let end = text.char_indices().nth(LONGEST).map_or(text.len(), |(at, _)| at);
            eprintln!("bench: {case}: {}", &text[..end]);
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fails if a case has failed.
    pub fn end(&self) -> Result<()> {
        let failures = self.failures.load(Ordering::Relaxed);
        ensure!(failures == 0, "{failures} cases failed");
        Ok(())
    }

    /// Writes a row for each number of services, whose turns alternated, and their ratios to the turns with
    /// one service.
    pub fn sizes(&self, cases: &[String], sizes: &[usize], turns: &[Vec<f64>]) -> Result<()> {
        let one = sizes.iter().position(|size| *size == 1).and_then(|one| turns.get(one));
        for ((case, size), of_size) in cases.iter().zip(sizes).zip(turns) {
            self.row("dataplane", case, "hawser", ("seconds", "seconds"), of_size)?;
            if let Some(one) = one.filter(|_| *size != 1) {
                self.row("dataplane", case, "hawser", (RATIO_TO_ONE, "ratio"), &ratios(of_size, one))?;
            }
        }
        Ok(())
    }

    /// Writes a row with the median of the repeats.
    pub fn row(
        &self,
        suite: &str,
        case: &str,
        subject: &str,
        (metric, unit): Metric,
        repeats: &[f64],
    ) -> Result<()> {
        let row = Row {
            suite: suite.to_owned(),
            case: case.to_owned(),
            subject: subject.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            value: median(repeats),
            n: repeats.len(),
            seed: self.seed,
        };
        let line = serde_json::to_string(&row).context("cannot encode a row")?;
        println!("{line}");
        let Some(path) = &self.json else { return Ok(()) };
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        writeln!(file, "{line}").with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Reads the rows of a file; of several for the same figure, the last.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut rows: Vec<Row> = Vec::new();
    for line in text.lines() {
        let row: Row = serde_json::from_str(line).with_context(|| format!("{line:?} is no row"))?;
        let of = |row: &Row| (row.suite.clone(), row.case.clone(), row.subject.clone(), row.metric.clone());
        match rows.iter_mut().find(|earlier| of(earlier) == of(&row)) {
            Some(earlier) => *earlier = row,
            None => rows.push(row),
        }
    }
    Ok(rows)
}

/// Returns the ratios of the two values of each turn.
fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// Returns the median; 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the mean of the middle half, which leaves out outliers on either side; 0 if there are no values.
pub fn interquartile_mean(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len() / 4;
    let middle = &sorted[cut..sorted.len() - cut];
    if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
}

/// Returns the smallest value that is not less than this share of all; 0 if there are no values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::{Report, interquartile_mean, median, quantile, read};

    #[test]
    fn sizes_are_compared_turn_by_turn() {
        let file = std::env::temp_dir().join(format!("hawser-bench-rows-{}", std::process::id()));
        let report = Report::new(Some(file.clone()), 1);
        let cases = ["hit_path/services=1".to_owned(), "hit_path/services=9".to_owned()];
        // The machine is twice as slow in the second turn, and busy in the third.
        let turns = [vec![10.0, 20.0, 10.0], vec![11.0, 22.0, 50.0]];
        report.sizes(&cases, &[1, 9], &turns).unwrap();
        let rows = read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let found: Vec<_> =
            rows.iter().map(|row| (row.case.as_str(), row.metric.as_str(), row.value)).collect();
        let expected = [
            (cases[0].as_str(), "seconds", 10.0),
            (cases[1].as_str(), "seconds", 22.0),
            (cases[1].as_str(), "ratio_to_one_service", 1.1),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn outliers_do_not_move_the_mean_of_the_middle() {
        assert!((interquartile_mean(&[1e9, 3.0, 2.0, -1e9]) - 2.5).abs() < f64::EPSILON);
        assert!((interquartile_mean(&[7.0]) - 7.0).abs() < f64::EPSILON);
        assert!(interquartile_mean(&[]).abs() < f64::EPSILON);
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert!((quantile(&values, 0.5) - 50.0).abs() < f64::EPSILON);
        assert!((quantile(&values, 0.99) - 99.0).abs() < f64::EPSILON);
        assert!((quantile(&values[..1], 0.99) - 100.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }
}
