//! Times of the API in eight bytes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A time of the API, which has whole seconds, or none, which is before all times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OptionalTime(i64);

/// No time of the calendar.
const NONE: i64 = i64::MIN;

impl Default for OptionalTime {
    fn default() -> Self {
        Self(NONE)
    }
}

impl std::fmt::Debug for OptionalTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl OptionalTime {
    pub fn get(self) -> Option<Timestamp> {
        Timestamp::from_second(self.0).ok()
    }

    /// Returns the time as the types of the API have it.
    pub fn to_api(self) -> Option<Time> {
        self.get().map(Time)
    }
}

impl From<Option<Time>> for OptionalTime {
    fn from(time: Option<Time>) -> Self {
        Self(time.map_or(NONE, |time| time.0.as_second()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_none_are_given_back() {
        for second in [0, -1, 1_800_000_000] {
            let time = Timestamp::from_second(second).unwrap();
            assert_eq!(OptionalTime::from(Some(Time(time))).get(), Some(time));
        }
        assert_eq!((OptionalTime::from(None).get(), OptionalTime::default().to_api()), (None, None));
    }
}
