//! Logs: lines on standard error, as text or JSON, chosen by a filter.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Crates that log a warning for each bad frame from a stranger: everybody who reaches a port could fill the
/// disk.
const QUIET: &str = "h2=error,hyper=error,rustls=error,tungstenite=error";

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// For people, with colours on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging of what `filter` selects, for the rest of the process. Call it once.
pub fn start(filter: &str, form: Form) -> Result<(), ParseError> {
    let filter = parse(filter)?;
    let colours = std::io::stderr().is_terminal();
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    match form {
        Form::Text => lines.init(),
        Form::Json => lines.json().init(),
    }
    Ok(())
}

/// Parses a filter. The quiet crates come first, so that a filter that names them can select more.
fn parse(filter: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!("{QUIET},{filter}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_crates_can_be_heard_by_name_and_nonsense_is_refused() {
        assert!(parse("info").unwrap().to_string().contains("h2=error"));
        assert!(parse("info,h2=debug").unwrap().to_string().contains("h2=debug"));
        assert!(parse("hyper=sometimes").is_err());
    }
}
