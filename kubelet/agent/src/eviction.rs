//! Thresholds of memory and disk pressure, in the syntax of `--eviction-hard`.

use apiserver_meta::quantity;

use crate::machine::Pressure;

/// Thresholds below which the node reports pressure. A signal that is `None` is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// `memory.available`
    pub memory: Option<Amount>,
    /// `nodefs.available`
    pub disk: Option<Amount>,
}

/// An absolute amount, or a percentage of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(i64),
    Percent(i64),
}

/// `--eviction-hard` could not be parsed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not SIGNAL<AMOUNT with memory.available or nodefs.available and a quantity or N%")]
pub struct ThresholdError(String);

impl Default for Thresholds {
    /// Returns the defaults of Kubernetes.
    fn default() -> Self {
        Self { memory: Some(Amount::Bytes(100 << 20)), disk: Some(Amount::Percent(10)) }
    }
}

impl Thresholds {
    /// Parses a list such as `memory.available<100Mi,nodefs.available<10%`. As in Kubernetes, signals that
    /// are not listed are not checked.
    pub fn parse(text: &str) -> Result<Self, ThresholdError> {
        let mut thresholds = Self { memory: None, disk: None };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || ThresholdError(part.to_owned());
            let (signal, amount) = part.split_once('<').ok_or_else(wrong)?;
            let amount = Amount::parse(amount.trim()).ok_or_else(wrong)?;
            match signal.trim() {
                "memory.available" => thresholds.memory = Some(amount),
                "nodefs.available" => thresholds.disk = Some(amount),
                _ => return Err(wrong()),
            }
        }
        Ok(thresholds)
    }

    /// Returns `true` if memory is below its threshold; `memory` is the machine's total in bytes.
    pub fn memory_low(&self, pressure: &Pressure, memory: i64) -> bool {
        self.memory.is_some_and(|amount| pressure.memory_available < amount.of(memory))
    }

    /// Returns `true` if free disk space is below its threshold.
    pub fn disk_low(&self, pressure: &Pressure) -> bool {
        self.disk.is_some_and(|amount| pressure.disk_available < amount.of(pressure.disk_size))
    }
}

impl Amount {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(number) => {
                number.parse().ok().filter(|percent| (0..=100).contains(percent)).map(Self::Percent)
            }
            None => quantity::parse(text).ok().map(|quantity| Self::Bytes(quantity.value())),
        }
    }

    fn of(self, whole: i64) -> i64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => whole / 100 * percent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_kubernetes() {
        let parsed = Thresholds::parse("memory.available<100Mi, nodefs.available<10%");
        assert_eq!(parsed, Ok(Thresholds::default()));
    }

    #[test]
    fn signals_that_are_not_listed_are_not_checked() {
        let full = Pressure { memory_available: 0, disk_available: 0, disk_size: 1000 };
        let parsed = Thresholds::parse("nodefs.available<10%").unwrap();
        assert!(parsed.disk_low(&full) && !parsed.memory_low(&full, 1000));
        assert!(!Thresholds::parse("nodefs.available<0%").unwrap().disk_low(&full));
    }

    #[test]
    fn invalid_thresholds_are_refused() {
        for text in
            ["nodefs.available", "imagefs.available<5%", "nodefs.available<many", "nodefs.available<101%"]
        {
            assert!(Thresholds::parse(text).is_err(), "{text}");
        }
    }
}
