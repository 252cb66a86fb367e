//! `hawser proxy explain`: which table decides what, and why.

use anyhow::{Context, Result};
use userspace_dataplane::inspect::explain::{self, Candidate, Explanation, From, Outcome, Query};

use super::print::{self, place, words};
use crate::args::{self, ExplainArgs};

/// Prints the decision step by step.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let from = args.from.map(|from| match from {
        args::From::Pod => From::Pod,
        args::From::Host => From::Host,
        args::From::Uplink => From::Uplink,
    });
    let query = Query::parse(&args.flow, from).context("cannot understand the flow")?;
    let inspector = super::open(&args.look.bpf_root)?;
    let snapshot = inspector.snapshot(&query).context("cannot read the tables")?;
    let explanation = explain::explain(&snapshot, &query);
    if args.look.json {
        let row = serde_json::json!({"query": query, "explanation": explanation});
        return print::json(&[row]);
    }
    lines(&explanation).iter().try_for_each(|line| print::line(line))
}

fn lines(explanation: &Explanation) -> Vec<String> {
    let mut text = Vec::new();
    for path in &explanation.paths {
        text.push(format!("{}:", hook(path.hook)));
        let steps: Vec<Vec<String>> = path
            .steps
            .iter()
            .enumerate()
            .map(|(n, step)| vec![format!("  {}.", n + 1), step.table.to_owned(), step.finding.clone()])
            .collect();
        text.extend(print::aligned(&steps));
        text.extend(outcome(&path.outcome));
        text.push(String::new());
    }
    if let Some((connections, refused)) = explanation.counted {
        text.push(format!("The service has had {connections} connections; {refused} were refused."));
    }
    text
}

fn hook(name: &str) -> &str {
    match name {
        "socket" => "connect of a socket",
        "pod" => "packet on a pod's interface",
        "uplink" => "packet on an uplink",
        "xdp" => "packet on an uplink, before the stack (XDP)",
        other => other,
    }
}

fn outcome(outcome: &Outcome) -> Vec<String> {
    match outcome {
        Outcome::NotAService => vec!["  => no service: it goes where it says".to_owned()],
        Outcome::Left { to } => vec![format!("  => left to the next hook ({to})")],
        Outcome::Refused { reason } => vec![format!("  => refused: {reason}")],
        Outcome::Dropped { reason } => vec![format!("  => dropped: {reason}")],
        Outcome::Translated { service, backend, candidates, source, way } => {
            let mut text = vec![match backend {
                Some(backend) => format!("  => {service}: to {}", place(*backend)),
                None => format!("  => {service}: to one of {} backends", candidates.len()),
            }];
            if let Some(source) = source {
                let port = source.port.map(|port| format!(":{port}")).unwrap_or_default();
                text.push(format!("     from {}{port}: {}", source.address, source.reason));
            }
            text.push(format!("     {way}"));
            if candidates.len() > 1 {
                let mut table = vec![words(&["    ", "BACKEND", "LOCAL", "SHARE"])];
                table.extend(candidates.iter().map(candidate));
                text.extend(print::aligned(&table));
            }
            text
        }
    }
}

fn candidate(row: &Candidate) -> Vec<String> {
    vec![
        "    ".to_owned(),
        place((row.address, row.port)),
        row.local.to_string(),
        format!("{:.1} %", row.share * 100.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use userspace_dataplane::inspect::explain::{Path, SourceChange, Step};

    #[test]
    fn steps_are_numbered_and_the_end_stands_out() {
        let explanation = Explanation {
            paths: vec![Path {
                hook: "uplink",
                steps: vec![Step { table: "FLOWS4", finding: "no flow has these ends".to_owned() }],
                outcome: Outcome::Translated {
                    service: "default/web".to_owned(),
                    backend: Some(("10.244.1.6".parse().unwrap(), 8_080)),
                    candidates: Vec::new(),
                    source: Some(SourceChange {
                        address: "192.0.2.1".parse().unwrap(),
                        port: None,
                        reason: "replies must come back",
                    }),
                    way: "rewritten".to_owned(),
                },
            }],
            counted: Some((3, 0)),
        };
        assert_eq!(
            lines(&explanation).join("\n"),
            "packet on an uplink:\n  1.   FLOWS4   no flow has these ends\n  => default/web: to 10.244.1.6:8080\n     \
             from 192.0.2.1: replies must come back\n     rewritten\n\nThe service has had 3 connections; 0 were refused."
        );
    }
}
