//! The exposition formats of Prometheus: text 0.0.4, which Kubernetes serves, and OpenMetrics 1.0.0
//! for those who ask for it.

use std::fmt::Write as _;

use super::primitive::Histogram;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    OpenMetrics,
}

impl Format {
    /// The media type.
    pub fn media(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
            Self::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
            }
        }
    }
}

/// A page in the making. Families are sorted by their names at the end.
pub struct Page {
    format: Format,
    families: Vec<(String, String)>,
}

/// The samples of one family.
pub struct Samples<'a> {
    name: &'a str,
    text: &'a mut String,
}

impl Page {
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
        // There a counter's name is the one without the suffix; one without it is no counter.
        let (shown, kind) = match (self.format, kind, name.strip_suffix("_total")) {
            (Format::OpenMetrics, "counter", Some(base)) => (base, "counter"),
            (Format::OpenMetrics, "counter", None) => (name, "unknown"),
            _ => (name, kind),
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let text = format!("# HELP {shown} {help}\n# TYPE {shown} {kind}\n{samples}");
        self.families.push((name.to_owned(), text));
    }

    /// The whole page.
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
    /// One value.
    pub fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// A histogram.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let (rows, count, sum) = histogram.cumulated();
        if count == 0 {
            return;
        }
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

/// As Go writes it: the shortest form, with an exponent for what is very large or small.
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
        let fill = |page: &mut Page| {
            page.family("b_total", "counter", "two\nlines", |s| s.value(&[("a", "x\"\\\n")], 3.0));
            page.family("a_seconds", "histogram", "h", |s| {
                static BOUNDS: [f64; 2] = [0.00005, 1.0];
                let histogram = Histogram::new(&BOUNDS);
                [0.00005, 0.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
                s.histogram(&[], &histogram);
            });
            page.family("empty", "gauge", "nothing", |_| {});
        };
        let mut page = Page::new(Format::Text);
        fill(&mut page);
        assert_eq!(
            page.finish(),
            "# HELP a_seconds h\n# TYPE a_seconds histogram\na_seconds_bucket{le=\"5e-05\"} 1\n\
             a_seconds_bucket{le=\"1\"} 2\na_seconds_bucket{le=\"+Inf\"} 3\na_seconds_sum 7.50005\n\
             a_seconds_count 3\n# HELP b_total two\\nlines\n# TYPE b_total counter\n\
             b_total{a=\"x\\\"\\\\\\n\"} 3\n"
        );
        let mut page = Page::new(Format::OpenMetrics);
        fill(&mut page);
        let text = page.finish();
        assert!(text.contains("# TYPE b counter\nb_total{") && text.ends_with("# EOF\n"), "{text}");
    }
}
