//! Benchmark rows: JSON lines that scripts read.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

/// One figure. Units are SI: seconds, bytes, per second.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub suite: &'static str,
    /// A name and its parameters: `connect_rate/services=1`.
    pub case: String,
    /// `hawser`, a peer, or `limit`.
    pub subject: &'static str,
    pub metric: &'static str,
    pub unit: &'static str,
    /// The median of `n` repeats.
    pub value: f64,
    pub n: usize,
    pub seed: u64,
}

/// Prints rows as they come and appends them to a file if one was given.
pub struct Report {
    pub json: Option<PathBuf>,
    pub seed: u64,
}

impl Report {
    /// The median of the repeats is the row's value.
    pub fn row(
        &self,
        suite: &'static str,
        case: &str,
        subject: &'static str,
        (metric, unit): (&'static str, &'static str),
        repeats: &[f64],
    ) -> Result<()> {
        let row = Row {
            suite,
            case: case.to_owned(),
            subject,
            metric,
            unit,
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

/// The middle value; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Mean of the middle half: outliers on either side are left out; 0 of none.
pub fn middle_mean(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len() / 4;
    let middle = &sorted[cut..sorted.len() - cut];
    if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
}

/// The smallest value that is not less than this share of all; 0 of none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::{median, middle_mean, quantile};

    #[test]
    fn outliers_do_not_move_the_mean_of_the_middle() {
        assert!((middle_mean(&[1e9, 3.0, 2.0, -1e9]) - 2.5).abs() < f64::EPSILON);
        assert!((middle_mean(&[7.0]) - 7.0).abs() < f64::EPSILON);
        assert!(middle_mean(&[]).abs() < f64::EPSILON);
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
