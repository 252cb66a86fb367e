//! The CNI plugin: the runtime calls it for each pod's sandbox, with a command in the environment and a
//! configuration on standard input.

mod attach;
mod error;
mod request;
mod result;

use std::collections::BTreeMap;

use apiserver_meta::ambient::Ambient;
use serde_json::json;

pub use error::{Code, PluginError};

use crate::PLUGIN_NAME;
use crate::ipam::LeaseFile;
use crate::node::LOOPBACK_PLUGIN;
use request::{Attachment, NetConf, Request};

/// Versions of the CNI specification in which results can be written.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The version of an error if the configuration's version is not known.
const LAST_VERSION: &str = "1.1.0";

/// The output and exit code of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub exit_code: u8,
    /// One JSON document, or nothing.
    pub stdout: String,
}

/// Returns `true` if a program called by this name (the last part of `argv[0]`) is the plugin.
pub fn is_plugin_name(name: &str) -> bool {
    name == PLUGIN_NAME || name == LOOPBACK_PLUGIN
}

/// Runs one call of the plugin: `environment` holds the variables of the process (`CNI_COMMAND` and so on),
/// `stdin` is the configuration. It blocks, and starts threads and small runtimes of its own, so it must not
/// be called within a runtime.
pub fn main(environment: &BTreeMap<String, String>, stdin: &[u8], ambient: &Ambient) -> Outcome {
    let mut version = LAST_VERSION.to_owned();
    match answer(environment, stdin, ambient, &mut version) {
        Ok(stdout) => Outcome { exit_code: 0, stdout },
        Err(error) => Outcome { exit_code: 1, stdout: error.json(&version) },
    }
}

fn answer(
    environment: &BTreeMap<String, String>,
    stdin: &[u8],
    ambient: &Ambient,
    version: &mut String,
) -> Result<String, PluginError> {
    let command = request::variable(environment, "CNI_COMMAND")?;
    if command == "VERSION" {
        return Ok(versions(stdin));
    }
    let conf = NetConf::parse(stdin)?;
    version.clone_from(&conf.cni_version);
    if !VERSIONS.contains(&conf.cni_version.as_str()) {
        return Err(PluginError::Version(conf.cni_version));
    }
    let now = ambient.now().as_second();
    if conf.plugin == LOOPBACK_PLUGIN {
        return loopback(command, environment, &conf);
    }
    match command {
        "ADD" => {
            let request = Request::parse(environment, conf, true)?;
            let attached = attach::add(&request, now)?;
            Ok(result::of_attachment(&request, &attached).to_string())
        }
        "DEL" => attach::delete(&Request::parse(environment, conf, false)?, now).map(|()| String::new()),
        "CHECK" => attach::check(&Request::parse(environment, conf, true)?).map(|()| String::new()),
        "GC" => collect(&conf, now).map(|()| String::new()),
        "STATUS" => status(&conf).map(|()| String::new()),
        other => Err(PluginError::Environment {
            variable: "CNI_COMMAND",
            reason: format!("{other:?} is not a CNI command"),
        }),
    }
}

fn versions(stdin: &[u8]) -> String {
    let asked: Option<serde_json::Value> = serde_json::from_slice(stdin).ok();
    let version = asked.as_ref().and_then(|conf| conf["cniVersion"].as_str()).unwrap_or(LAST_VERSION);
    json!({ "cniVersion": version, "supportedVersions": VERSIONS }).to_string()
}

/// Runs the loopback plugin, which sets `lo` up. There is nothing to take down, since the namespace goes.
fn loopback(
    command: &str,
    environment: &BTreeMap<String, String>,
    conf: &NetConf,
) -> Result<String, PluginError> {
    match command {
        "ADD" | "CHECK" => {
            let attachment = Attachment::parse(environment, true)?;
            attach::loopback_up(&attachment)?;
            if command == "CHECK" {
                return Ok(String::new());
            }
            Ok(result::of_loopback(&conf.cni_version, &attachment).to_string())
        }
        "DEL" | "GC" | "STATUS" => Ok(String::new()),
        other => Err(PluginError::Environment {
            variable: "CNI_COMMAND",
            reason: format!("{other:?} is not a CNI command"),
        }),
    }
}

/// Releases everything that is not among the attachments that the runtime still knows.
fn collect(conf: &NetConf, now: i64) -> Result<(), PluginError> {
    let valid = conf.valid_attachments.as_deref().unwrap_or_default();
    let known = |container: &str, interface: &str| {
        valid.iter().any(|one| one.container_id == container && one.ifname == interface)
    };
    let stale: Vec<_> = LeaseFile::open(&conf.state_dir()?)?
        .leases()
        .iter()
        .filter(|lease| !known(&lease.container, &lease.interface))
        .cloned()
        .collect();
    stale.into_iter().try_for_each(|lease| attach::remove(&conf.state_dir()?, &lease, now))
}

fn status(conf: &NetConf) -> Result<(), PluginError> {
    conf.ranges()?;
    LeaseFile::open(&conf.state_dir()?)?;
    Ok(())
}
