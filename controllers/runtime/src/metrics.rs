//! Metrics with labels: what a family of them is, and its values.
//!
//! A [`Family`] is plain data of its owner, so that counting takes no lock and formats nothing: its labels are any ordered
//! type, and become texts only when the family is read.

use std::collections::BTreeMap;
use std::time::Duration;

/// The type of a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// A metric's name and what belongs to it.
#[derive(Debug)]
pub struct Measure {
    pub name: &'static str,
    pub kind: Kind,
    /// Names of the labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// The help, which begins with the stability.
    pub help: &'static str,
}

impl Measure {
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    pub const fn histogram(
        name: &'static str,
        bounds: &'static [f64],
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram(bounds), labels, help }
    }

    /// Returns how the measure differs from its row in a table of `name|type|stability|labels|bounds`, one for each line,
    /// as Kubernetes documents its metrics; `None` if it does not.
    pub fn differs_from(&self, table: &str) -> Option<String> {
        let Some(row) = table.lines().find(|row| row.split('|').next() == Some(self.name)) else {
            return Some(format!("there is no metric {}", self.name));
        };
        let fields: Vec<&str> = row.split('|').collect();
        let &[_, kind, stability, labels, bounds] = fields.as_slice() else {
            return Some(format!("{row:?} has not five fields"));
        };
        let (own_kind, own_bounds) = match self.kind {
            Kind::Counter => ("Counter", &[][..]),
            // Metrics that are computed when they are read are shown as gauges.
            Kind::Gauge if kind == "Custom" => ("Custom", &[][..]),
            Kind::Gauge => ("Gauge", &[][..]),
            Kind::Histogram(bounds) => ("Histogram", bounds),
        };
        let list = |text: &str| {
            let mut list: Vec<String> =
                text.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
            list.sort();
            list
        };
        let bounds: Vec<f64> = bounds.split(',').filter_map(|bound| bound.parse().ok()).collect();
        let is_same = own_kind == kind
            && list(&self.labels.join(",")) == list(labels)
            && self.help.starts_with(&format!("[{stability}] "))
            && own_bounds == bounds;
        (!is_same).then(|| format!("{self:?} is not {row}"))
    }
}

/// Returns bounds of buckets of which each is the one before it times a factor.
pub const fn exponential<const N: usize>(start: f64, factor: f64) -> [f64; N] {
    let mut bounds = [start; N];
    let mut index = 1;
    while index < N {
        bounds[index] = bounds[index - 1] * factor;
        index += 1;
    }
    bounds
}

/// The value of one combination of labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Histogram {
        /// Counts of the buckets, and of what is above the last bound; not cumulative.
        counts: Vec<u64>,
        sum: f64,
    },
}

impl Value {
    fn empty(kind: Kind) -> Self {
        match kind {
            Kind::Counter | Kind::Gauge => Self::Number(0.0),
            Kind::Histogram(bounds) => Self::Histogram { counts: vec![0; bounds.len() + 1], sum: 0.0 },
        }
    }
}

/// A measure with a value for each combination of labels, which are of type `L`.
#[derive(Clone, Debug)]
pub struct Family<L> {
    measure: &'static Measure,
    values: BTreeMap<L, Value>,
}

impl<L: Ord> Family<L> {
    pub fn new(measure: &'static Measure) -> Self {
        Self { measure, values: BTreeMap::new() }
    }

    pub fn measure(&self) -> &'static Measure {
        self.measure
    }

    /// Returns the number of combinations of labels that have a value.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn contains(&self, labels: &L) -> bool {
        self.values.contains_key(labels)
    }

    pub fn get(&self, labels: &L) -> Option<&Value> {
        self.values.get(labels)
    }

    /// Makes a value that is zero, if there is none.
    pub fn touch(&mut self, labels: L) {
        self.value(labels);
    }

    /// Counts more; without effect on a histogram.
    pub fn add(&mut self, labels: L, number: f64) {
        if let Value::Number(count) = self.value(labels) {
            *count += number;
        }
    }

    /// Sets a number; without effect on a histogram.
    pub fn set(&mut self, labels: L, number: f64) {
        if let Value::Number(value) = self.value(labels) {
            *value = number;
        }
    }

    /// Adds a value to a histogram; without effect on a number.
    pub fn observe(&mut self, labels: L, observed: f64) {
        let Kind::Histogram(bounds) = self.measure.kind else { return };
        let Value::Histogram { counts, sum } = self.value(labels) else { return };
        if let Some(count) = counts.get_mut(bounds.partition_point(|bound| *bound < observed)) {
            *count += 1;
        }
        *sum += observed;
    }

    /// Adds a duration to a histogram of seconds.
    pub fn time(&mut self, labels: L, duration: Duration) {
        self.observe(labels, duration.as_secs_f64());
    }

    /// Returns the values with the texts of their labels.
    pub fn series(&self, texts: impl Fn(&L) -> Vec<String>) -> Series {
        let values = self.values.iter().map(|(labels, value)| (texts(labels), value.clone()));
        Series { measure: self.measure, values: values.collect() }
    }

    fn value(&mut self, labels: L) -> &mut Value {
        let kind = self.measure.kind;
        self.values.entry(labels).or_insert_with(|| Value::empty(kind))
    }
}

/// A measure with a value for each combination of labels, as it is shown.
#[derive(Debug)]
pub struct Series {
    pub measure: &'static Measure,
    pub values: BTreeMap<Vec<String>, Value>,
}

impl Series {
    /// Creates a series of numbers.
    pub fn of_numbers(
        measure: &'static Measure,
        numbers: impl IntoIterator<Item = (Vec<String>, f64)>,
    ) -> Self {
        let values = numbers.into_iter().map(|(labels, number)| (labels, Value::Number(number))).collect();
        Self { measure, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SECONDS: Measure =
        Measure::histogram("a_seconds", &exponential::<3>(1.0, 2.0), &["zone"], "[BETA] A.");
    static NUMBER: Measure = Measure::gauge("a_number", &[], "[ALPHA] A.");

    #[test]
    fn values_count_up_to_their_bounds_by_label() {
        let mut family = Family::new(&SECONDS);
        for value in [0.5, 1.0, 1.5, 4.0, 5.0] {
            family.observe("b", value);
        }
        family.time("a", Duration::from_millis(2500));
        family.add("a", 7.0);
        let series = family.series(|zone| vec![(*zone).to_owned()]);
        let expected = [("a", vec![0, 0, 1, 0], 2.5), ("b", vec![2, 1, 1, 1], 12.0)]
            .map(|(zone, counts, sum)| (vec![zone.to_owned()], Value::Histogram { counts, sum }));
        assert_eq!(series.values, BTreeMap::from(expected));
    }

    #[test]
    fn numbers_are_added_and_set() {
        let mut family = Family::new(&NUMBER);
        family.add((), 2.0);
        family.add((), 3.0);
        assert_eq!(family.get(&()), Some(&Value::Number(5.0)));
        family.set((), 1.0);
        family.observe((), 9.0);
        assert_eq!(family.get(&()), Some(&Value::Number(1.0)));
    }

    #[test]
    fn differences_from_the_documented_row_are_told() {
        let table = |row: &str| format!("other|Gauge|ALPHA||\n{row}\n");
        assert_eq!(SECONDS.differs_from(&table("a_seconds|Histogram|BETA|zone|1,2,4")), None);
        assert_eq!(NUMBER.differs_from(&table("a_number|Custom|ALPHA||")), None);
        for row in [
            "a_seconds|Histogram|ALPHA|zone|1,2,4",
            "a_seconds|Histogram|BETA|zone|1,2",
            "a_seconds|Histogram|BETA|node,zone|1,2,4",
            "a_seconds|Counter|BETA|zone|",
            "b_seconds|Histogram|BETA|zone|1,2,4",
        ] {
            assert!(SECONDS.differs_from(&table(row)).is_some(), "{row}");
        }
    }
}
