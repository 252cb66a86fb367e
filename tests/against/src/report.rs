//! Figures of a run, and its differences by group, the most frequent first.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::accepted;
use crate::compare::{Answer, Difference, Verdict};
use crate::plan::Case;

/// Least share of equal answers, percent of all requests.
pub const EQUAL: f64 = 99.0;
/// Least share of answers that are equal to the word, percent of the requests whose words count.
pub const WORDS: f64 = 95.0;

/// One request with its answers.
pub struct Outcome {
    pub number: usize,
    pub case: Case,
    pub ours: Answer,
    pub theirs: Answer,
    pub verdict: Verdict,
}

#[derive(Default)]
struct Group {
    count: usize,
    kinds: BTreeSet<String>,
    example: usize,
}

/// The figures of all outcomes.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Figures {
    pub all: usize,
    pub same: usize,
    /// Equal, but set aside where words are counted.
    pub decoder: usize,
    pub words: usize,
    pub different: usize,
    /// Differences on the list of accepted ones; counted neither as equal nor as different.
    pub accepted: usize,
}

impl Figures {
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut figures = Self { all: outcomes.len(), ..Self::default() };
        for outcome in outcomes {
            let place = match &outcome.verdict {
                _ if accepted::reason(&outcome.case, &outcome.verdict).is_some() => &mut figures.accepted,
                Verdict::Same => &mut figures.same,
                Verdict::Decoder(_) => &mut figures.decoder,
                Verdict::Words(_) => &mut figures.words,
                Verdict::Different(_) => &mut figures.different,
            };
            *place += 1;
        }
        figures
    }

    /// Percent of the answers that are equal; accepted differences are left out.
    pub fn equal(&self) -> f64 {
        share(self.same + self.decoder + self.words, self.all - self.accepted)
    }

    /// Percent of the answers that are equal to the word; what is accepted and what decoders say is left out.
    pub fn to_the_word(&self) -> f64 {
        share(self.same, self.all - self.accepted - self.decoder)
    }

    pub fn pass(&self) -> bool {
        self.equal() >= EQUAL && self.to_the_word() >= WORDS
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of requests")]
fn share(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// The report as people read it.
pub fn text(outcomes: &[Outcome], groups_shown: usize) -> String {
    let figures = Figures::of(outcomes);
    let mut text = String::new();
    for (title, wanted) in [("Differences", true), ("Words only", false)] {
        let groups = groups(outcomes, wanted);
        let total: usize = groups.iter().map(|(_, group)| group.count).sum();
        if total == 0 {
            continue;
        }
        text += &format!("{title}: {total} answers in {} groups\n\n", groups.len());
        for (signature, group) in groups.iter().take(groups_shown) {
            let kinds: Vec<&str> = group.kinds.iter().map(String::as_str).take(5).collect();
            text += &format!(
                "{:>5}  {signature}\n       {}\n{}\n",
                group.count,
                kinds.join(", "),
                example(&outcomes[group.example])
            );
        }
    }
    for (reason, count) in accepted_counts(outcomes) {
        text += &format!("accepted: {count}: {reason}\n");
    }
    text + &summary(&figures)
}

/// The last lines: what the run found, in numbers.
pub fn summary(figures: &Figures) -> String {
    format!(
        "{} requests: {:.2} % equal (at least {EQUAL} %), {:.2} % to the word (at least {WORDS} %)\n\
         {} to the word, {} equal in the words of a decoder (set aside), {} equal but for words, {} different, {} accepted",
        figures.all,
        figures.equal(),
        figures.to_the_word(),
        figures.same,
        figures.decoder,
        figures.words,
        figures.different,
        figures.accepted,
    )
}

fn accepted_counts(outcomes: &[Outcome]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for reason in outcomes.iter().filter_map(|outcome| accepted::reason(&outcome.case, &outcome.verdict)) {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

/// Outcomes that differ alike, by what they have in common.
fn groups(outcomes: &[Outcome], different: bool) -> Vec<(String, Group)> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (index, outcome) in outcomes.iter().enumerate() {
        let found = match &outcome.verdict {
            Verdict::Different(found) if different => found,
            Verdict::Words(found) if !different => found,
            _ => continue,
        };
        if accepted::reason(&outcome.case, &outcome.verdict).is_some() {
            continue;
        }
        let Some(first) = found.first() else { continue };
        let group =
            groups.entry(signature(first)).or_insert_with(|| Group { example: index, ..Group::default() });
        group.count += 1;
        group.kinds.insert(outcome.case.kind.clone());
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups
}

/// Groups differences that probably have one cause: the place without the path that leads to
/// a pod's spec, and without indices, quoted texts and numbers.
fn signature(difference: &Difference) -> String {
    let mut text = difference.place.clone();
    if !text.starts_with("status") {
        text = general(&text);
    }
    if text.starts_with("status") || text.starts_with("words") || text.starts_with("warnings") {
        text += &format!(": {} | {}", general(&difference.ours), general(&difference.theirs));
    }
    for path in ["spec.jobTemplate.spec.template.", "spec.template.", "template.spec."] {
        text = text.replace(path, "");
    }
    text.chars().take(300).collect()
}

fn general(text: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut digits = false;
    for c in text.chars().filter(|c| *c != '\\') {
        if c == '"' {
            quoted = !quoted;
            if quoted {
                out.push('…');
            }
            continue;
        }
        if quoted {
            continue;
        }
        if c.is_ascii_digit() {
            if !digits {
                out.push('0');
            }
            digits = true;
            continue;
        }
        digits = false;
        out.push(c);
    }
    out
}

fn example(outcome: &Outcome) -> String {
    let (Verdict::Different(found) | Verdict::Words(found)) = &outcome.verdict else { return String::new() };
    let case = &outcome.case;
    let mut text =
        format!("       case {}: {} {}: {}\n", outcome.number, case.verb, case.kind, case.done.join("; "));
    for difference in found.iter().take(3) {
        let short = |text: &str| text.chars().take(600).collect::<String>();
        text += &format!(
            "         {}\n           ours:   {}\n           theirs: {}\n",
            short(&difference.place),
            short(&difference.ours),
            short(&difference.theirs)
        );
    }
    text
}

/// Everything about the answers that differ, for programs.
pub fn json(seed: u64, outcomes: &[Outcome]) -> Value {
    let figures = Figures::of(outcomes);
    let shown = |outcome: &Outcome| {
        let (word, found) = match &outcome.verdict {
            Verdict::Same => return None,
            Verdict::Decoder(found) => ("decoder", vec![found.clone()]),
            Verdict::Words(found) => ("words", found.clone()),
            Verdict::Different(found) => ("different", found.clone()),
        };
        let case = &outcome.case;
        let found: Vec<Value> =
            found.iter().map(|d| json!({"place": d.place, "ours": d.ours, "theirs": d.theirs})).collect();
        let answer = |answer: &Answer| json!({"status": answer.status, "body": answer.body, "warnings": answer.warnings});
        Some(json!({"case": outcome.number, "verdict": word, "verb": case.verb, "kind": case.kind,
            "path": case.path, "body": case.body, "mutations": case.done, "differences": found,
            "accepted": accepted::reason(case, &outcome.verdict),
            "ours": answer(&outcome.ours), "theirs": answer(&outcome.theirs)}))
    };
    json!({"seed": seed, "requests": figures.all, "equalPercent": figures.equal(),
        "toTheWordPercent": figures.to_the_word(), "same": figures.same, "decoder": figures.decoder,
        "words": figures.words, "different": figures.different, "accepted": figures.accepted,
        "answers": outcomes.iter().filter_map(shown).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::{Figures, general};

    #[test]
    fn the_bars_count_what_is_set_aside_apart() {
        let figures = Figures { all: 110, same: 90, decoder: 5, words: 4, different: 1, accepted: 10 };
        assert!(
            (figures.equal() - 99.0).abs() < 1e-9 && (figures.to_the_word() - 9000.0 / 95.0).abs() < 1e-9
        );
        assert!(!figures.pass());
        assert!(Figures { words: 3, same: 91, ..figures }.pass());
        assert!(!Figures { different: 2, same: 92, words: 1, ..figures }.pass());
    }

    #[test]
    fn quoted_texts_and_numbers_do_not_part_groups() {
        assert_eq!(
            general(r#"spec.a[12]: Invalid value: "x": must be 5"#),
            general(r#"spec.a[3]: Invalid value: "y z": must be 60"#)
        );
    }
}
