//! Manages a containerd of our own: configures it, starts it in a session of its own so that it outlives us,
//! adopts it if it is already running, restarts it when it dies, and removes all traces of it on request.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use kubelet_cri::{ConnectError, CriRuntime, Runtime};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{process::Command, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::machine::{self, cgroup::Hierarchies};

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH: usize = 107;
/// Time that a new containerd has to answer for the first time.
const START: Duration = Duration::from_secs(20);
/// Interval between checks whether a starting containerd answers.
const POLL: Duration = Duration::from_millis(20);
/// Interval between health checks of a running containerd.
const WATCH: Duration = Duration::from_secs(1);
/// Time that processes have to end after a signal.
const END: Duration = Duration::from_secs(5);

/// Paths and programs of a containerd of our own.
#[derive(Clone, Debug)]
pub struct ContainerdConfig {
    /// The `containerd` program; shims are looked up beside it and in `PATH`.
    pub program: PathBuf,
    /// Directory of images and metadata; must live at least as long as the containers.
    pub root: PathBuf,
    /// Directory of sockets and of mounts of running containers.
    pub state: PathBuf,
    /// Directory of CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// Directory of CNI configurations.
    pub cni_conf_dir: PathBuf,
    /// Image of the pause container, which holds a pod's namespaces.
    pub sandbox_image: String,
    /// File that containerd's log is written to.
    pub log_file: PathBuf,
}

/// containerd could not be started or taken down.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    #[error(
        "the path of containerd's socket, {path}, has more than {SOCKET_PATH} bytes: use a shorter data directory"
    )]
    SocketPath { path: PathBuf },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot start {program}")]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("containerd has ended with {status}; its log is {log}")]
    Ended { status: String, log: PathBuf },
    #[error("containerd does not answer")]
    Connect(#[source] ConnectError),
    #[error("cannot take containerd down")]
    Machine(#[from] machine::MachineError),
}

impl ContainerdConfig {
    /// Returns the path of the socket that containerd listens on.
    pub fn socket(&self) -> PathBuf {
        self.state.join("containerd.sock")
    }

    fn config_file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    fn pid_file(&self) -> PathBuf {
        self.state.join("containerd.pid")
    }

    /// Renders containerd's configuration file (format version 2).
    pub fn render(&self) -> String {
        let text = |path: &Path| toml_string(&path.to_string_lossy());
        format!(
            r#"version = 2
root = {root}
state = {state}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.opt",
]

[debug]
  level = "warn"

[grpc]
  address = {socket}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {sandbox}
  # A node inside of a container or a virtual machine may not lower the score of its pods.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  enable_tls_streaming = false
  max_container_log_line_size = 16384
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {bin}
    conf_dir = {conf}
"#,
            root = text(&self.root),
            state = text(&self.state),
            socket = text(&self.socket()),
            sandbox = toml_string(&self.sandbox_image),
            bin = text(&self.cni_bin_dir),
            conf = text(&self.cni_conf_dir),
        )
    }
}

fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A supervised containerd. Dropping this value leaves containerd running.
pub struct Containerd {
    config: ContainerdConfig,
    runtime: CriRuntime,
    /// True if containerd was already running.
    adopted: bool,
}

impl Containerd {
    /// Adopts the containerd that answers on the socket, or starts one.
    pub async fn start(config: ContainerdConfig) -> Result<Self, ContainerdError> {
        let socket = config.socket();
        if socket.as_os_str().len() > SOCKET_PATH {
            return Err(ContainerdError::SocketPath { path: socket });
        }
        for directory in [&config.root, &config.state, &config.cni_conf_dir] {
            fs::create_dir_all(directory)
                .map_err(|source| ContainerdError::Write { path: directory.clone(), source })?;
        }
        if socket.exists()
            && let Ok(runtime) = CriRuntime::connect(&socket).await
        {
            info!(socket = %socket.display(), "adopted a running containerd");
            return Ok(Self { config, runtime, adopted: true });
        }
        // A running containerd that does not answer yet is waited for: two must not share a directory.
        let adopted = is_alive(&config);
        if !adopted {
            spawn(&config)?;
        }
        let runtime = wait(&config).await?;
        Ok(Self { config, runtime, adopted })
    }

    /// Returns `true` if containerd was already running.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Returns a client of its runtime service. It stays valid when containerd is restarted.
    pub fn runtime(&self) -> Arc<CriRuntime> {
        Arc::new(self.runtime.clone())
    }

    /// Restarts containerd whenever it dies, until shutdown. Its containers keep running in the meantime.
    pub async fn supervise(&self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(WATCH) => {}
            }
            if is_alive(&self.config) {
                continue;
            }
            warn!("containerd has died, restarting it");
            let restarted = match spawn(&self.config) {
                Ok(()) => wait(&self.config).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = restarted {
                warn!(error = &error as &dyn std::error::Error, "cannot restart containerd");
            }
        }
    }
}

/// Starts containerd in a new session, so that signals sent to our process group do not reach it.
fn spawn(config: &ContainerdConfig) -> Result<(), ContainerdError> {
    let write = |path: &Path, source| ContainerdError::Write { path: path.to_owned(), source };
    fs::write(config.config_file(), config.render()).map_err(|e| write(&config.config_file(), e))?;
    // With the id of an earlier process in the file, this one would seem to have ended.
    match fs::remove_file(config.pid_file()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(write(&config.pid_file(), error));
        }
        _ => {}
    }
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&config.log_file)
        .map_err(|e| write(&config.log_file, e))?;
    let errors = log.try_clone().map_err(|e| write(&config.log_file, e))?;
    // `setsid` forks if it must, so the shell records the id of the final process.
    let script = r#"echo $$ > "$1" && exec "$2" --config "$3""#;
    let mut child = Command::new("setsid")
        .args(["sh", "-c", script, "sh"])
        .arg(config.pid_file())
        .arg(&config.program)
        .arg(config.config_file())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|source| ContainerdError::Spawn { program: config.program.clone(), source })?;
    // Reap the child if it ends before we do.
    tokio::spawn(async move { child.wait().await });
    info!(socket = %config.socket().display(), "containerd started");
    Ok(())
}

/// Waits until containerd answers.
async fn wait(config: &ContainerdConfig) -> Result<CriRuntime, ContainerdError> {
    let began = Instant::now();
    let socket = config.socket();
    loop {
        let error = match CriRuntime::connect(&socket).await {
            Ok(runtime) => return Ok(runtime),
            Err(error) => error,
        };
        if began.elapsed() > START {
            return Err(ContainerdError::Connect(error));
        }
        if has_ended(config) {
            let status = "an error".to_owned();
            return Err(ContainerdError::Ended { status, log: config.log_file.clone() });
        }
        tokio::time::sleep(POLL).await;
    }
}

fn pid(config: &ContainerdConfig) -> Option<Pid> {
    let text = fs::read_to_string(config.pid_file()).ok()?;
    text.trim().parse().ok().map(Pid::from_raw)
}

/// Returns `true` if the recorded process exists and was started with our configuration.
fn is_alive(config: &ContainerdConfig) -> bool {
    let Some(pid) = pid(config) else { return false };
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let file = config.config_file();
    command.split(|byte| *byte == 0).any(|argument| argument == file.as_os_str().as_encoded_bytes())
        && !is_zombie(pid)
}

/// Returns `true` if the recorded process is gone. On a slow disk it takes a while until the process is recorded, and
/// until its command can be read after it was executed.
fn has_ended(config: &ContainerdConfig) -> bool {
    let Some(pid) = pid(config) else { return false };
    match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(command) if command.is_empty() => is_zombie(pid),
        Ok(_) => !is_alive(config),
        Err(_) => true,
    }
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

/// Stops and removes all pods, stops containerd and its shims, unmounts their mounts, and removes the state
/// directory, with `all` also the root directory, and finally the cgroups of the pods. If containerd is not
/// running it is started first, because only it knows its pods.
pub async fn tear_down(
    config: &ContainerdConfig,
    cgroup_root: &str,
    all: bool,
) -> Result<(), ContainerdError> {
    if config.root.exists() {
        match Containerd::start(config.clone()).await {
            Ok(containerd) => stop_pods(&containerd.runtime).await,
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "cannot ask containerd for its pods")
            }
        }
    }
    if let Some(pid) = pid(config).filter(|_| is_alive(config)) {
        end(&[pid.as_raw()]).await;
    }
    let hierarchies = Hierarchies::detect();
    let kubepods = format!("{}/kubepods", cgroup_root.trim_end_matches('/'));
    let shared = cgroup_root.trim_matches('/').is_empty();
    end(&shims(config)).await;
    if !shared {
        end(&hierarchies.processes(&kubepods)).await;
    }
    machine::linux::remove_directory(&config.state)?;
    if all {
        machine::linux::remove_directory(&config.root)?;
    }
    let removed = hierarchies.remove(&kubepods);
    if shared {
        // The common root cgroup may also hold pods of other kubelets, which must stay.
        return Ok(());
    }
    removed?;
    Ok(hierarchies.remove_unused(cgroup_root)?)
}

async fn stop_pods(runtime: &CriRuntime) {
    let sandboxes = match runtime.list_pod_sandboxes(None).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => return warn!(%error, "cannot list the pods"),
    };
    let stop = |id: String| async move {
        let containers = runtime.list_containers(None).await.unwrap_or_default();
        for container in containers.iter().filter(|container| container.sandbox_id == id) {
            let _ = runtime.stop_container(&container.id, Duration::from_secs(1)).await;
        }
        let stopped = async {
            runtime.stop_pod_sandbox(&id).await?;
            runtime.remove_pod_sandbox(&id).await
        };
        if let Err(error) = stopped.await {
            warn!(%error, "cannot remove a pod");
        }
    };
    let mut waiting: Vec<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
    while !waiting.is_empty() {
        let batch: Vec<String> = waiting.drain(..waiting.len().min(8)).collect();
        futures::future::join_all(batch.into_iter().map(stop)).await;
    }
}

/// Returns the ids of the shims that serve this containerd, which are recognised by its socket address in
/// their arguments.
fn shims(config: &ContainerdConfig) -> Vec<i32> {
    let socket = config.socket();
    let socket = socket.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut arguments = command.split(|byte| *byte == 0);
            let is_shim = arguments.next().is_some_and(|program| {
                String::from_utf8_lossy(program)
                    .rsplit('/')
                    .next()
                    .is_some_and(|name| name.starts_with("containerd-shim"))
            });
            is_shim && arguments.any(|argument| argument == socket)
        })
        .collect()
}

/// Terminates processes, and kills those that do not end in time.
async fn end(pids: &[i32]) {
    let mut left: Vec<Pid> = pids.iter().copied().map(Pid::from_raw).collect();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        left.retain(|pid| kill(*pid, signal) != Err(Errno::ESRCH));
        let began = Instant::now();
        while !left.is_empty() && began.elapsed() < END {
            left.retain(|pid| kill(*pid, None) != Err(Errno::ESRCH) && !is_zombie(*pid));
            tokio::time::sleep(POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_escaped_and_complete() {
        let config = ContainerdConfig {
            program: "/usr/bin/containerd".into(),
            root: "/data/a \"b\"".into(),
            state: "/data/s".into(),
            cni_bin_dir: "/data/bin".into(),
            cni_conf_dir: "/data/net.d".into(),
            sandbox_image: "hawser.local/pause:1".into(),
            log_file: "/data/log".into(),
        };
        let text = config.render();
        assert!(text.contains(r#"root = "/data/a \"b\"""#), "{text}");
        assert!(text.contains(r#"address = "/data/s/containerd.sock""#), "{text}");
        for needed in
            ["restrict_oom_score_adj = true", "netns_mounts_under_state_dir = true", "hawser.local/pause:1"]
        {
            assert!(text.contains(needed), "{needed}");
        }
    }

    #[test]
    fn containerd_has_ended_when_its_recorded_process_is_gone_and_not_before_one_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let config = ContainerdConfig {
            program: "/usr/bin/containerd".into(),
            root: dir.path().into(),
            state: dir.path().into(),
            cni_bin_dir: "/x".into(),
            cni_conf_dir: "/x".into(),
            sandbox_image: String::new(),
            log_file: dir.path().join("log"),
        };
        assert!(!has_ended(&config), "no process is recorded yet");
        let record = |pid: u32| fs::write(config.pid_file(), pid.to_string()).unwrap();
        record(std::process::id());
        assert!(has_ended(&config), "the process is another one");
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line"])
            .arg(config.config_file())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        record(child.id());
        assert!(!has_ended(&config));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&config));
    }

    #[tokio::test]
    async fn a_socket_path_that_is_too_long_is_refused_with_advice() {
        let config = ContainerdConfig {
            program: "/usr/bin/containerd".into(),
            root: "/x".into(),
            state: format!("/{}", "x".repeat(120)).into(),
            cni_bin_dir: "/x".into(),
            cni_conf_dir: "/x".into(),
            sandbox_image: String::new(),
            log_file: "/x".into(),
        };
        let error = Containerd::start(config).await.err().unwrap();
        assert!(error.to_string().contains("shorter data directory"), "{error}");
    }
}
