//! Constant load from a process of its own, with counted results.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Results of the load.
#[derive(Debug)]
pub struct Counts {
    pub ok: u64,
    pub failed: u64,
    /// Number of answers by pod.
    pub answers: BTreeMap<String, u64>,
    /// Messages of the first failures.
    pub failures: Vec<String>,
}

/// A running load; [`Load::finish`] ends it. If dropped, it ends on its own, since its standard input closes.
pub struct Load(Child);

impl Load {
    /// Starts a load; `command` is the echo program with `load TARGET` or `hold TARGET`.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self(child))
    }

    pub fn finish(mut self) -> Result<Counts> {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().context("cannot wait for the load")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(line) = text.lines().find(|line| line.starts_with('{')) else {
            bail!("the load printed no counts: {text}");
        };
        let value: Value = serde_json::from_str(line).context("the load's counts are not JSON")?;
        let number = |name: &str| value[name].as_u64().unwrap_or_default();
        let answers = value["answers"].as_object().cloned().unwrap_or_default();
        Ok(Counts {
            ok: number("ok"),
            failed: number("failed"),
            answers: answers.into_iter().map(|(k, v)| (k, v.as_u64().unwrap_or_default())).collect(),
            failures: value["failures"]
                .as_array()
                .map(|list| list.iter().map(|v| v.as_str().unwrap_or_default().to_owned()).collect())
                .unwrap_or_default(),
        })
    }
}
