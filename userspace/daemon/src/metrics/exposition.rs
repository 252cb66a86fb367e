//! Pages of metrics in the exposition formats of Prometheus: text 0.0.4, which Kubernetes serves, and
//! OpenMetrics 1.0.0 for clients that ask for it.

use std::cmp::Reverse;
use std::fmt::Write as _;

use http::{HeaderMap, header::ACCEPT};

use super::process;
use super::value::{Counter, Family, FloatGauge, Gauge, Histogram};

/// An exposition format. Both write the bounds of histograms as Kubernetes does, so that a rule with `le="1"`
/// selects the same series in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    OpenMetrics,
}

impl Format {
    /// Returns the format that an `Accept` header prefers; text, if it prefers none.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut known: Vec<(f32, bool, Self)> =
            ranges.flat_map(|text| text.split(',')).filter_map(Self::range).collect();
        // The sort is stable: ranges of equal quality stay in the client's order, except those that name no
        // type.
        known.sort_by(|(a, vague, _), (b, other, _)| {
            Reverse(a).partial_cmp(&Reverse(b)).unwrap_or(std::cmp::Ordering::Equal).then(vague.cmp(other))
        });
        known.first().map_or(Self::Text, |(_, _, format)| *format)
    }

    /// Returns quality, vagueness and format of a media range that includes one of the formats.
    fn range(text: &str) -> Option<(f32, bool, Self)> {
        let mut parts = text.split(';').map(str::trim);
        let (format, is_vague) = match parts.next()?.to_ascii_lowercase().as_str() {
            "application/openmetrics-text" => (Self::OpenMetrics, false),
            "text/plain" => (Self::Text, false),
            "text/*" | "*/*" => (Self::Text, true),
            _ => return None,
        };
        let quality = parts
            .filter_map(|part| part.split_once('='))
            .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
        let quality = quality.map_or(1.0, |(_, value)| value.trim().parse::<f32>().unwrap_or(1.0));
        (quality > 0.0).then_some((quality, is_vague, format))
    }

    /// Returns the media type.
    pub fn media(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
            Self::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
            }
        }
    }
}

/// A page under construction. Families are sorted by name at the end.
pub struct Exposition {
    format: Format,
    families: Vec<(String, String)>,
}

/// The samples of one family.
pub struct Samples<'a> {
    name: &'a str,
    text: &'a mut String,
}

impl Exposition {
    /// Begins an empty page.
    pub fn new(format: Format) -> Self {
        Self { format, families: Vec::new() }
    }

    /// Adds a family, unless it has no samples. Counters are named with `_total`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str, fill: impl FnOnce(&mut Samples<'_>)) {
        let mut samples = String::new();
        fill(&mut Samples { name, text: &mut samples });
        if samples.is_empty() {
            return;
        }
        // In OpenMetrics the name of a counter's family lacks the suffix; one without a suffix is not a
        // counter.
        let (shown, kind) = match (self.format, kind, name.strip_suffix("_total")) {
            (Format::OpenMetrics, "counter", Some(base)) => (base, "counter"),
            (Format::OpenMetrics, "counter", None) => (name, "unknown"),
            _ => (name, kind),
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let text = format!("# HELP {shown} {help}\n# TYPE {shown} {kind}\n{samples}");
        self.families.push((name.to_owned(), text));
    }

    /// Adds `process_*`, the metrics of the process that every component of Kubernetes has.
    pub fn process(&mut self) {
        process::add(self);
    }

    /// Adds `kubernetes_build_info`, whose labels describe the version and the build.
    pub fn build_info(&mut self, labels: &[(&str, &str)]) {
        self.family(
            "kubernetes_build_info",
            "gauge",
            "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
            |samples| samples.value(labels, 1.0),
        );
    }

    /// Returns the whole page.
    pub fn finish(mut self) -> String {
        self.families.sort();
        let mut page: String = self.families.into_iter().map(|(_, text)| text).collect();
        if self.format == Format::OpenMetrics {
            page.push_str("# EOF\n");
        }
        page
    }
}

impl Samples<'_> {
    /// Adds a value.
    pub fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// Adds every counter of a family.
    pub fn counters<const N: usize>(&mut self, family: &Family<N, Counter>, names: [&str; N]) {
        family.each(names, |labels, counter| self.value(labels, counter.value() as f64));
    }

    /// Adds every gauge of a family.
    pub fn gauges<const N: usize>(&mut self, family: &Family<N, Gauge>, names: [&str; N]) {
        family.each(names, |labels, gauge| self.value(labels, gauge.value() as f64));
    }

    /// Adds every gauge of a family.
    pub fn float_gauges<const N: usize>(&mut self, family: &Family<N, FloatGauge>, names: [&str; N]) {
        family.each(names, |labels, gauge| self.value(labels, gauge.value()));
    }

    /// Adds every histogram of a family.
    pub fn histograms<const N: usize>(&mut self, family: &Family<N, Histogram>, names: [&str; N]) {
        family.each(names, |labels, histogram| self.histogram(labels, histogram));
    }

    /// Adds a histogram, unless nothing was observed.
    pub fn observed(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        if histogram.cumulated().1 > 0 {
            self.histogram(labels, histogram);
        }
    }

    /// Adds a histogram.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let (rows, count, sum) = histogram.cumulated();
        self.rows(labels, rows, count, sum);
    }

    /// Adds a histogram from its bounds with the count of values up to each, the count of all values, and their sum.
    pub fn rows(
        &mut self,
        labels: &[(&str, &str)],
        rows: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        for (bound, below) in rows {
            self.line("_bucket", labels, Some(&number(bound)), below as f64);
        }
        self.line("_bucket", labels, Some("+Inf"), count as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: f64) {
        let text = &mut *self.text;
        text.push_str(self.name);
        text.push_str(suffix);
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        for (index, (key, value)) in all.enumerate() {
            text.push(if index == 0 { '{' } else { ',' });
            text.push_str(key);
            text.push_str("=\"");
            escape(text, value);
            text.push('"');
        }
        if !labels.is_empty() || le.is_some() {
            text.push('}');
        }
        text.push(' ');
        text.push_str(&number(value));
        text.push('\n');
    }
}

fn escape(out: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

/// Formats a number as Go does: the shortest form, with an exponent if it is very large or small.
fn number(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e21).contains(&value.abs()) {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats() {
        let fill = |page: &mut Exposition| {
            page.family("b_total", "counter", "two\nlines", |s| s.value(&[("a", "x\"\\\n")], 3.0));
            page.family("a_seconds", "histogram", "h", |s| {
                static BOUNDS: [f64; 2] = [0.00005, 1.0];
                let histogram = Histogram::new(&BOUNDS);
                [0.00005, 0.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
                s.histogram(&[], &histogram);
            });
            page.family("empty", "gauge", "nothing", |_| {});
        };
        let mut page = Exposition::new(Format::Text);
        fill(&mut page);
        assert_eq!(
            page.finish(),
            "# HELP a_seconds h\n# TYPE a_seconds histogram\na_seconds_bucket{le=\"5e-05\"} 1\n\
             a_seconds_bucket{le=\"1\"} 2\na_seconds_bucket{le=\"+Inf\"} 3\na_seconds_sum 7.50005\n\
             a_seconds_count 3\n# HELP b_total two\\nlines\n# TYPE b_total counter\n\
             b_total{a=\"x\\\"\\\\\\n\"} 3\n"
        );
        let mut page = Exposition::new(Format::OpenMetrics);
        fill(&mut page);
        let text = page.finish();
        assert!(text.contains("# TYPE b counter\nb_total{") && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        let accepted = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, text.parse().unwrap());
            Format::accepted(&headers)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(accepted(prometheus), Format::OpenMetrics);
        for text in ["", "*/*", "text/plain", "application/json", "text/plain;version=0.0.4;q=1,*/*;q=0.1"] {
            assert_eq!(accepted(text), Format::Text, "{text}");
        }
        assert_eq!(accepted("application/openmetrics-text;q=0.2, text/*;q=0.3"), Format::Text);
        assert_eq!(accepted("*/*, application/openmetrics-text"), Format::OpenMetrics);
        assert_eq!(accepted("application/openmetrics-text;q=0, application/json"), Format::Text);
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn a_histogram_without_observations_is_shown_as_zeros_or_left_out() {
        static BOUNDS: [f64; 1] = [1.0];
        let histogram = Histogram::new(&BOUNDS);
        let mut page = Exposition::new(Format::Text);
        page.family("shown", "histogram", "h", |s| s.histogram(&[], &histogram));
        page.family("left_out", "histogram", "h", |s| s.observed(&[], &histogram));
        let text = page.finish();
        assert!(text.contains("shown_bucket{le=\"+Inf\"} 0\nshown_sum 0\nshown_count 0\n"), "{text}");
        assert!(!text.contains("left_out"), "{text}");
    }
}
