//! Durations of configurations, which are read and written as Kubernetes does.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// A duration as Kubernetes writes it: `1h2m3.5s`, `250ms`, `0s`. In nanoseconds, possibly negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(i64);

/// The text is not a duration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration, such as 30s or 1h15m")]
pub struct PeriodError(String);

impl Period {
    pub const fn seconds(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    pub const fn milliseconds(milliseconds: i64) -> Self {
        Self(milliseconds * 1_000_000)
    }

    /// Returns the duration; `None` if it is negative.
    pub fn duration(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }

    /// Returns whole seconds, rounded towards zero.
    pub const fn whole_seconds(self) -> i64 {
        self.0 / 1_000_000_000
    }
}

impl std::str::FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        duration::parse(text).map(Self).map_err(|_| PeriodError(text.to_owned()))
    }
}

impl TryFrom<String> for Period {
    type Error = PeriodError;

    fn try_from(text: String) -> Result<Self, PeriodError> {
        text.parse()
    }
}

impl From<Period> for String {
    fn from(period: Period) -> Self {
        period.to_string()
    }
}

impl fmt::Display for Period {
    /// Formats as Go does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let fraction = |value: u64, unit: u64| value as f64 / unit as f64;
        match magnitude {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{magnitude}ns"),
            1_000..1_000_000 => write!(f, "{}µs", fraction(magnitude, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", fraction(magnitude, 1_000_000)),
            _ => {
                let (minutes, rest) = (magnitude / 60_000_000_000, magnitude % 60_000_000_000);
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write!(f, "{}s", fraction(rest, 1_000_000_000))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_kubernetes_does() {
        let period = |text: &str| text.parse::<Period>();
        assert_eq!(period("15m0s"), Ok(Period::seconds(900)));
        assert_eq!(period("1h15m30.5s").unwrap().to_string(), "1h15m30.5s");
        assert_eq!(period("250ms").unwrap().to_string(), "250ms");
        assert_eq!(period("24h").unwrap().to_string(), "24h0m0s");
        assert_eq!(period("0"), Ok(Period::default()));
        assert_eq!(period("-1s").unwrap().duration(), None);
        assert_eq!(Period::seconds(90).duration(), Some(Duration::from_secs(90)));
        for wrong in ["", "5", "s", "5x", "1.2.3s", "-"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
