//! Programs that are run against an API server, each with a home of its own.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::server::Api;

/// What a program wrote, and whether it went well.
#[derive(Debug)]
pub struct Outcome {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// kubectl of one version, with a server.
pub struct Kubectl<'a> {
    program: PathBuf,
    /// Such as `1.36`.
    pub version: &'static str,
    pub api: &'a Api,
}

/// What each kubectl of `cargo xtask setup` does with a server of its own.
pub fn each_kubectl(start: impl Fn() -> Result<Api>, test: impl Fn(&Kubectl<'_>)) -> Result<()> {
    for (version, variable) in [("1.32", "HAWSER_KUBECTL_1_32"), ("1.36", "HAWSER_KUBECTL_1_36")] {
        let api = start()?;
        test(&Kubectl { program: told(variable)?, version, api: &api });
        api.stop()?;
    }
    Ok(())
}

/// The program or folder of a client that a variable names; it must be there.
pub fn told(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).unwrap_or_default();
    if !path.exists() {
        bail!("{variable} names nothing that is there: run this test through `cargo xtask test`");
    }
    Ok(path)
}

/// A line cut at its spaces, but for what stands between single quotes.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Runs to the end.
pub fn run(command: &mut Command, input: &str) -> Result<Outcome> {
    let text = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {text}"))?;
    let mut stdin = child.stdin.take().context("standard input was not piped")?;
    let input = input.to_owned();
    // Beside the reading, or both sides could wait for each other. A child that does not read is
    // no error.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().with_context(|| format!("cannot wait for {text}"))?;
    drop(writer.join());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Outcome {
        success: output.status.success(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

impl Kubectl<'_> {
    /// The command, for a caller that does not wait for its end.
    pub fn command<S: Into<OsString>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        let home = self.api.dir().join(format!("home-{}", self.version));
        command
            .args(args.into_iter().map(Into::into))
            .env("KUBECONFIG", self.api.kubeconfig())
            .env("HOME", home)
            .env("KUBE_EDITOR", "sed -i s/before/after/")
            .current_dir(self.api.dir());
        command
    }

    /// Runs a line to its end.
    #[track_caller]
    pub fn attempt(&self, line: &str, input: &str) -> Outcome {
        run(&mut self.command(words(line)), input).unwrap_or_else(|error| panic!("kubectl {line}: {error:#}"))
    }

    /// A line that must go well; what it wrote to standard output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.feed(line, "")
    }

    /// The same with something on standard input.
    #[track_caller]
    pub fn feed(&self, line: &str, input: &str) -> String {
        let outcome = self.attempt(line, input);
        assert!(outcome.success, "kubectl {} {line}: {}{}", self.version, outcome.stderr, outcome.stdout);
        outcome.stdout
    }

    /// A line that must fail; what it wrote, errors first.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        self.fails_with(line, "")
    }

    /// The same with something on standard input.
    #[track_caller]
    pub fn fails_with(&self, line: &str, input: &str) -> String {
        let outcome = self.attempt(line, input);
        assert!(!outcome.success, "kubectl {} {line} went well: {}", self.version, outcome.stdout);
        outcome.stderr + &outcome.stdout
    }

    /// A line that must go well and say just this, but for white space at the end.
    #[track_caller]
    pub fn says(&self, line: &str, expected: &str) {
        let said = self.run(line);
        assert_eq!(said.trim_end(), expected, "kubectl {} {line}", self.version);
    }

    /// A line that must go well and say all of these somewhere.
    #[track_caller]
    pub fn shows(&self, line: &str, expected: &[&str]) -> String {
        let said = self.run(line);
        for text in expected {
            assert!(said.contains(text), "kubectl {} {line} lacks {text:?}:\n{said}", self.version);
        }
        said
    }

    /// A table's cells by line, the header first.
    #[track_caller]
    pub fn table(&self, line: &str) -> Vec<Vec<String>> {
        let text = self.run(line);
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Writes a file for `-f`; its path.
    #[track_caller]
    pub fn file(&self, name: &str, content: &str) -> String {
        let path: &Path = &self.api.dir().join(format!("{}-{name}", self.version));
        if let Err(error) = std::fs::write(path, content) {
            panic!("cannot write {}: {error}", path.display());
        }
        path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn quotes_keep_spaces() {
        assert_eq!(
            words("get  pods -o 'a b' x='{\"c d\":1}' ''"),
            ["get", "pods", "-o", "a b", "x={\"c d\":1}", ""]
        );
    }
}
