//! `hawser proxy explain`: which table decides what, and why.

use std::net::IpAddr;

use anyhow::{Context, Result};
use serde::Serialize;
use userspace_dataplane::inspect::Judgement;
use userspace_dataplane::inspect::explain::{self, Candidate, Counted, Explanation, From, Outcome, Query};

use super::print::{self, place, words};
use crate::args::{self, ExplainArgs};

/// The JSON output.
#[derive(Serialize)]
struct Answer {
    query: Query,
    #[serde(flatten)]
    explanation: Explanation,
    /// The judgements of network policies on a new connection.
    policies: Vec<Judgement>,
}

/// Prints the decision step by step.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let from = args.from.map(|from| match from {
        args::From::Pod => From::Pod,
        args::From::Host => From::Host,
        args::From::Uplink => From::Uplink,
    });
    let query = Query::parse(&args.flow, from).context("cannot parse the flow")?;
    let inspector = super::open(&args.look.bpf_root)?;
    let snapshot = inspector.snapshot(&query).context("cannot read the tables")?;
    let explanation = explain::explain(&snapshot, &query);
    let policies = match query.source {
        Some((source, _)) => inspector
            .judge(query.protocol, source, &destinations(&query, explanation.outcome()))
            .context("cannot read the tables of network policies")?,
        None => Vec::new(),
    };
    if args.look.json {
        return print::json(&[Answer { query, explanation, policies }]);
    }
    lines(&explanation).iter().chain(&judgements(&policies)).try_for_each(|line| print::line(line))
}

/// Returns the places to which a packet may go, behind a service.
fn destinations(query: &Query, outcome: &Outcome) -> Vec<(IpAddr, u16)> {
    match outcome {
        Outcome::Translated { backend: Some(backend), .. } => vec![*backend],
        Outcome::Translated { candidates, .. } => {
            candidates.iter().map(|one| (one.address, one.port)).collect()
        }
        Outcome::Refused { .. } | Outcome::Dropped { .. } => Vec::new(),
        _ => vec![query.destination],
    }
}

/// Describes what network policies say about a new connection.
fn judgements(policies: &[Judgement]) -> Vec<String> {
    let mut text = Vec::new();
    if !policies.is_empty() {
        text.push("network policies, for a new connection:".to_owned());
    }
    for one in policies {
        let verdict = if one.allowed { "allowed" } else { "denied" };
        let (way, (address, port)) = (if one.direction == "egress" { "to" } else { "from" }, one.judged);
        text.push(format!(
            "  {} of pod {}, {way} {address}, port {port}: {verdict}: {}",
            one.direction, one.pod, one.by
        ));
    }
    text
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
    if let Some(Counted { connections, refused }) = explanation.counted {
        text.push(format!(
            "The service has had {}; {}.",
            counted(connections, "connection"),
            match refused {
                1 => "1 was refused".to_owned(),
                _ => format!("{refused} were refused"),
            }
        ));
    }
    text
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
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
        Outcome::NoUplink => vec!["  => no uplink: it goes on as it is".to_owned()],
        Outcome::Left { to } => vec![format!("  => left to the next hook ({to})")],
        Outcome::Refused { reason } => vec![format!("  => refused: {reason}")],
        Outcome::Dropped { reason } => vec![format!("  => dropped: {reason}")],
        Outcome::Masqueraded { source, pod, way } => {
            let mut text = Vec::new();
            if let Some(source) = source {
                let port = source.port.map(|port| format!(":{port}")).unwrap_or_default();
                text.push(format!("  => masqueraded: from {}{port}: {}", source.address, source.reason));
            }
            text.extend(pod.map(|pod| format!("  => a reply to a masqueraded packet: to {}", place(pod))));
            text.push(format!("     {way}"));
            text
        }
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
    use serde_json::json;
    use userspace_dataplane::inspect::explain::{Path, SourceChange, Step};

    #[test]
    fn judgements_name_the_rule_or_the_policies_without_one() {
        let judged = ("10.244.0.6".parse().unwrap(), 8_080);
        let allowed = Judgement {
            pod: "shop/web".to_owned(),
            direction: "egress",
            judged,
            allowed: true,
            by: "shop/web egress rule 0".to_owned(),
        };
        let denied = Judgement {
            direction: "ingress",
            allowed: false,
            by: "no rule of shop/deny".to_owned(),
            ..allowed.clone()
        };
        let text = judgements(&[allowed, denied]);
        assert_eq!(
            text[1],
            "  egress of pod shop/web, to 10.244.0.6, port 8080: allowed: shop/web egress rule 0"
        );
        assert_eq!(
            text[2],
            "  ingress of pod shop/web, from 10.244.0.6, port 8080: denied: no rule of shop/deny"
        );
        assert!(judgements(&[]).is_empty());
    }

    #[test]
    fn packets_that_leave_the_cluster_and_their_replies() {
        let way = "rewritten".to_owned();
        let address = "192.0.2.1".parse().unwrap();
        let source = SourceChange { address, port: Some(1_024), reason: "it leaves" };
        let leaving = Outcome::Masqueraded { source: Some(source), pod: None, way: way.clone() };
        assert_eq!(outcome(&leaving), ["  => masqueraded: from 192.0.2.1:1024: it leaves", "     rewritten"]);
        let pod = Some(("10.244.0.5".parse().unwrap(), 51_000));
        let reply = Outcome::Masqueraded { source: None, pod, way };
        assert_eq!(outcome(&reply)[0], "  => a reply to a masqueraded packet: to 10.244.0.5:51000");
    }

    #[test]
    fn an_answer_in_json() {
        let candidate =
            Candidate { address: "10.244.1.6".parse().unwrap(), port: 8_080, local: false, share: 1.0 };
        let step = Step { table: "FRONTENDS4", finding: "it is a frontend of default/web".to_owned() };
        let path = |hook, outcome| Path { hook, steps: vec![step.clone()], outcome };
        let translated = Outcome::Translated {
            service: "default/web".to_owned(),
            backend: Some(("10.244.1.6".parse().unwrap(), 8_080)),
            candidates: vec![candidate],
            source: Some(SourceChange {
                address: "192.0.2.1".parse().unwrap(),
                port: None,
                reason: "replies must come back",
            }),
            way: "rewritten".to_owned(),
        };
        let explanation = Explanation {
            paths: vec![
                path("socket", Outcome::Left { to: "packets" }),
                path("pod", Outcome::NotAService),
                path("pod", Outcome::Refused { reason: "no endpoints".to_owned() }),
                path("pod", Outcome::Dropped { reason: "no address".to_owned() }),
                path("uplink", translated),
            ],
            counted: Some(Counted { connections: 3, refused: 1 }),
        };
        let query = Query::parse(&["udp 203.0.113.9:4000 192.0.2.1:30080"], Some(From::Uplink)).unwrap();
        let found = serde_json::to_value(Answer { query, explanation, policies: Vec::new() }).unwrap();
        let steps = json!([{"table": "FRONTENDS4", "finding": "it is a frontend of default/web"}]);
        let path = |hook: &str, outcome: serde_json::Value| json!({"hook": hook, "steps": steps, "outcome": outcome});
        let backend = json!({"address": "10.244.1.6", "port": 8_080});
        let expected = json!({
            "query": {
                "protocol": "UDP",
                "source": {"address": "203.0.113.9", "port": 4_000},
                "destination": {"address": "192.0.2.1", "port": 30_080},
                "from": "uplink",
            },
            "paths": [
                path("socket", json!({"verdict": "left", "to": "packets"})),
                path("pod", json!({"verdict": "notAService"})),
                path("pod", json!({"verdict": "refused", "reason": "no endpoints"})),
                path("pod", json!({"verdict": "dropped", "reason": "no address"})),
                path("uplink", json!({
                    "verdict": "translated", "service": "default/web", "backend": backend,
                    "candidates": [{"address": "10.244.1.6", "port": 8_080, "local": false, "share": 1.0}],
                    "source": {"address": "192.0.2.1", "port": null, "reason": "replies must come back"},
                    "way": "rewritten",
                })),
            ],
            "counted": {"connections": 3, "refused": 1},
            "policies": [],
        });
        assert_eq!(found, expected);
        let socket = Query::parse(&["[fd00:96::1]:443"], None).unwrap();
        let value = serde_json::to_value(socket).unwrap();
        assert_eq!((&value["source"], &value["from"]), (&json!(null), &json!("host")));
    }

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
            counted: Some(Counted { connections: 3, refused: 0 }),
        };
        assert_eq!(
            lines(&explanation).join("\n"),
            "packet on an uplink:\n  1.   FLOWS4   no flow has these ends\n  => default/web: to 10.244.1.6:8080\n     \
             from 192.0.2.1: replies must come back\n     rewritten\n\nThe service has had 3 connections; 0 were refused."
        );
    }
}
