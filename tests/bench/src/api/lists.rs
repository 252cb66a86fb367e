//! Lists: whole, selected by label, and in pages of 500.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;

use super::client::{Call, Connection, next_chunk};
use super::objects::{LEAST_POD, SELECTED, SELECTOR};
use super::server::Running;
use super::{BYTES_PER_SECOND, RATIO_TO_LIMIT, SECONDS, SUITE, lines_of, shares, wants};
use crate::row::{Metric, Report};
use crate::subject::{Plan, Subject, in_turn};

/// Peak resident memory during the list, beyond that before it.
const EXTRA: Metric = ("extra_bytes", "bytes");
/// Number of objects in a page.
const PAGE: usize = 500;
/// Text that precedes the token of the next page.
const CONTINUE: &[u8] = b"\"continue\":\"";

/// Form of a list request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Whole,
    Selected,
    Paged,
}

impl Form {
    pub const ALL: [Self; 3] = [Self::Whole, Self::Selected, Self::Paged];

    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Selected => "selected",
            Self::Paged => "paged",
        }
    }

    /// Returns path and query of the page with this token.
    pub fn path(self, token: Option<&str>) -> String {
        let next = token.map(|token| format!("&continue={token}")).unwrap_or_default();
        match self {
            Self::Whole => "/api/v1/pods".to_owned(),
            Self::Selected => format!("/api/v1/pods?{SELECTOR}"),
            Self::Paged => format!("/api/v1/pods?limit={PAGE}{next}"),
        }
    }

    /// Fails if the size is not plausible for the number of pods.
    pub fn check(self, bytes: usize, pods: usize) -> Result<()> {
        let items = if self == Self::Selected { pods.div_ceil(SELECTED) } else { pods };
        ensure!(bytes >= items * LEAST_POD, "{bytes} bytes are not {items} pods");
        Ok(())
    }
}

/// Beginning of an answer, which contains the token of the next page.
#[derive(Default)]
pub struct Head(Vec<u8>);

impl Head {
    /// More than the size of a list's metadata.
    const LENGTH: usize = 1024;

    /// Appends the next bytes of the answer, up to the length.
    pub fn take(&mut self, data: &[u8]) {
        let room = Self::LENGTH.saturating_sub(self.0.len()).min(data.len());
        self.0.extend_from_slice(&data[..room]);
    }

    /// Returns the token of the next page.
    pub fn token(&self) -> Option<String> {
        let end = self.0.windows(8).position(|window| window == b"\"items\":").unwrap_or(self.0.len());
        let head = &self.0[..end];
        let at = head.windows(CONTINUE.len()).position(|window| window == CONTINUE)?;
        let rest = &head[at + CONTINUE.len()..];
        let end = rest.iter().position(|byte| *byte == b'"')?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned()).filter(|token| !token.is_empty())
    }
}

/// Results of one list.
#[derive(Clone, Copy, Debug)]
struct Listed {
    seconds: f64,
    bytes: usize,
    extra: f64,
}

/// Measures over TLS, alternating with the bare server sending as many bytes.
pub fn over_tls(report: &Report, plan: &Plan, hawser: &Running, echo: &Running, pods: usize) -> Result<()> {
    let runtime = super::runtime()?;
    let connect =
        |server: &Running| Ok::<_, anyhow::Error>(runtime.block_on(server.target.connect(1))?.remove(0));
    let (to_hawser, to_echo) = (connect(hawser)?, connect(echo)?);
    for form in Form::ALL {
        let bytes = runtime.block_on(pages(&to_hawser, form))?;
        form.check(bytes, pods)?;
        let subjects: Vec<Subject> =
            [Subject::Hawser, Subject::Limit].into_iter().filter(|subject| wants(plan, *subject)).collect();
        let rounds = rounds(plan, pods);
        let turns = in_turn(&subjects, rounds, |subject| match subject {
            Subject::Hawser => of_hawser(&runtime, hawser, &to_hawser, form),
            _ => of_echo(&runtime, &to_echo, bytes),
        })?;
        let case = case(pods, "tls", form);
        let named: Vec<(&str, Vec<Listed>)> = subjects.iter().map(|s| s.name()).zip(turns).collect();
        rows(report, &case, &named)?;
    }
    Ok(())
}

/// Returns the number of rounds; small lists are quick.
fn rounds(plan: &Plan, pods: usize) -> usize {
    if pods <= PAGE { plan.choose(20, 100) } else { plan.choose(3, 7) }
}

fn case(pods: usize, transport: &str, form: Form) -> String {
    let form = if form == Form::Whole { String::new() } else { format!("/form={}", form.name()) };
    format!("list/pods={pods}/transport={transport}{form}")
}

fn of_hawser(runtime: &Runtime, server: &Running, connection: &Connection, form: Form) -> Result<Listed> {
    server.forget_peak()?;
    let before = server.resident()?;
    let start = Instant::now();
    let bytes = runtime.block_on(pages(connection, form))?;
    Ok(Listed { seconds: start.elapsed().as_secs_f64(), bytes, extra: server.peak()? - before })
}

fn of_echo(runtime: &Runtime, connection: &Connection, bytes: usize) -> Result<Listed> {
    let start = Instant::now();
    let (_, bytes) = runtime.block_on(connection.ask(Call::get(format!("/list?{bytes}"))))?;
    Ok(Listed { seconds: start.elapsed().as_secs_f64(), bytes, extra: 0.0 })
}

/// Reads all pages of a list; returns their size in bytes.
async fn pages(connection: &Connection, form: Form) -> Result<usize> {
    let (mut bytes, mut token) = (0, None);
    loop {
        let (status, mut body) = connection.open_stream(Call::get(form.path(token.as_deref()))).await?;
        ensure!(status.is_success(), "a list was answered with {status}");
        let mut head = Head::default();
        while let Some(chunk) = next_chunk(&mut body).await? {
            bytes += chunk.len();
            head.take(&chunk);
        }
        token = head.token();
        if token.is_none() {
            return Ok(bytes);
        }
    }
}

/// Measures in a process that is server and client at once, alternating with bare copies of memory.
pub fn in_process(report: &Report, plan: &Plan, store: &str, pods: usize) -> Result<()> {
    let rounds = rounds(plan, pods).to_string();
    let lines = lines_of(&["lists", store, &pods.to_string(), &rounds])?;
    let of = |name: &str| -> Result<Vec<Listed>> {
        let figures = lines.iter().filter(|(line, _)| line == name);
        figures
            .map(|(_, figures)| {
                let figure = |i: usize| figures.get(i).copied().context("a figure is missing");
                let (seconds, bytes) = (figure(0)?, figure(1)? as usize);
                Ok(Listed { seconds, bytes, extra: figure(2).unwrap_or(0.0) })
            })
            .collect()
    };
    for form in Form::ALL {
        let mut named = vec![("hawser", of(form.name())?)];
        if form == Form::Whole && wants(plan, Subject::Limit) {
            named.push(("limit", of("limit")?));
        }
        rows(report, &case(pods, "in-process", form), &named)?;
    }
    Ok(())
}

fn rows(report: &Report, case: &str, named: &[(&str, Vec<Listed>)]) -> Result<()> {
    let rates = |turns: &[Listed]| turns.iter().map(|t| t.bytes as f64 / t.seconds).collect::<Vec<_>>();
    let limit = named.iter().find(|(name, _)| *name == "limit").map(|(_, turns)| rates(turns));
    for (name, turns) in named {
        let seconds: Vec<f64> = turns.iter().map(|turn| turn.seconds).collect();
        report.row(SUITE, case, name, BYTES_PER_SECOND, &rates(turns))?;
        report.row(SUITE, case, name, SECONDS, &seconds)?;
        if *name == "limit" {
            continue;
        }
        let extra: Vec<f64> = turns.iter().map(|turn| turn.extra).collect();
        report.row(SUITE, case, name, EXTRA, &extra)?;
        if let Some(limit) = &limit {
            report.row(SUITE, case, name, RATIO_TO_LIMIT, &shares(&rates(turns), limit))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_the_next_page_is_in_the_lists_metadata() {
        let mut head = Head::default();
        head.take(br#"{"kind":"PodList","metadata":{"resourceVersion":"7","cont"#);
        head.take(br#"inue":"abc","remainingItemCount":3},"items":[{"continue":"no"}"#);
        assert_eq!(head.token().as_deref(), Some("abc"));
        let mut last = Head::default();
        last.take(br#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"continue":"no"}}]}"#);
        assert_eq!(last.token(), None);
        assert_eq!(Form::Paged.path(Some("abc")), "/api/v1/pods?limit=500&continue=abc");
    }
}
