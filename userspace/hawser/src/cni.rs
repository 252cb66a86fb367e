//! The binary as a CNI plugin.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use apiserver_meta::ambient::Ambient;

/// Acts as the plugin if this program was called by the plugin's name; `None` if it was not.
pub fn run_if_called() -> Option<ExitCode> {
    let called = std::env::args().next()?;
    let name = Path::new(&called).file_name()?.to_str()?;
    if !userspace_network::cni::is_plugin_name(name) {
        return None;
    }
    #[expect(clippy::disallowed_methods, reason = "runtimes talk to plugins by the environment")]
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let mut input = Vec::new();
    // The plugin reports unreadable input as missing.
    let _ = std::io::stdin().read_to_end(&mut input);
    let outcome = userspace_network::cni::main(&environment, &input, &Ambient::system());
    let written = std::io::stdout().write_all(outcome.stdout.as_bytes());
    Some(if written.is_ok() { ExitCode::from(outcome.exit_code) } else { ExitCode::FAILURE })
}
