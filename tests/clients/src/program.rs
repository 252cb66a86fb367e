//! Programs that are run against an API server, each with a home directory of its own.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::server::Api;

/// Output of a program, and whether it succeeded.
#[derive(Debug)]
pub struct Outcome {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// kubectl of one version, with a server.
pub struct Kubectl<'a> {
    program: PathBuf,
    /// Version, such as `1.36`.
    pub version: &'static str,
    pub api: &'a Api,
}

/// Runs a test with each kubectl of `cargo xtask setup`, each with a server of its own.
pub fn each_kubectl(start: impl Fn() -> Result<Api>, test: impl Fn(&Kubectl<'_>)) -> Result<()> {
    for (version, variable) in [("1.32", "HAWSER_KUBECTL_1_32"), ("1.36", "HAWSER_KUBECTL_1_36")] {
        let api = start()?;
        test(&Kubectl { program: client_path(variable)?, version, api: &api });
        api.stop()?;
    }
    Ok(())
}

/// Returns the program or folder of a client that an environment variable names; it must exist.
pub fn client_path(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).unwrap_or_default();
    if !path.exists() {
        bail!("{variable} names nothing that is there: run this test through `cargo xtask test`");
    }
    Ok(path)
}

/// Splits a line at spaces, except between single quotes.
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

/// Runs a command until it ends.
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
    // Written concurrently with reading, because otherwise both sides could block. A child that does not read
    // is not an error.
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
    /// Returns the command, for a caller that does not wait for its end.
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

    /// Runs a line until it ends.
    #[track_caller]
    pub fn attempt(&self, line: &str, input: &str) -> Outcome {
        run(&mut self.command(words(line)), input).unwrap_or_else(|error| panic!("kubectl {line}: {error:#}"))
    }

    /// Runs a line that must succeed; returns its standard output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.feed(line, "")
    }

    /// Like [`Kubectl::run`], with standard input.
    #[track_caller]
    pub fn feed(&self, line: &str, input: &str) -> String {
        let outcome = self.attempt(line, input);
        assert!(outcome.success, "kubectl {} {line}: {}{}", self.version, outcome.stderr, outcome.stdout);
        outcome.stdout
    }

    /// Runs a line that must fail; returns its output, errors first.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        self.fails_with(line, "")
    }

    /// Like [`Kubectl::fails`], with standard input.
    #[track_caller]
    pub fn fails_with(&self, line: &str, input: &str) -> String {
        let outcome = self.attempt(line, input);
        assert!(!outcome.success, "kubectl {} {line} went well: {}", self.version, outcome.stdout);
        outcome.stderr + &outcome.stdout
    }

    /// Runs a line that must succeed and print exactly this, except for trailing white space.
    #[track_caller]
    pub fn says(&self, line: &str, expected: &str) {
        let said = self.run(line);
        assert_eq!(said.trim_end(), expected, "kubectl {} {line}", self.version);
    }

    /// Runs a line that must succeed and print all of these texts somewhere.
    #[track_caller]
    pub fn shows(&self, line: &str, expected: &[&str]) -> String {
        let said = self.run(line);
        for text in expected {
            assert!(said.contains(text), "kubectl {} {line} lacks {text:?}:\n{said}", self.version);
        }
        said
    }

    /// Returns the cells of a table by line, the header first.
    #[track_caller]
    pub fn table(&self, line: &str) -> Vec<Vec<String>> {
        let text = self.run(line);
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Writes a file for `-f`; returns its path.
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
    fn quoted_arguments_keep_their_spaces() {
        assert_eq!(
            words("get  pods -o 'a b' x='{\"c d\":1}' ''"),
            ["get", "pods", "-o", "a b", "x={\"c d\":1}", ""]
        );
    }
}
