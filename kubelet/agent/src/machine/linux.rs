//! A real node.

use std::{
    fs, io,
    io::{Read, Seek},
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use kubelet_cri::Resources;

use super::{
    HttpAnswer, HttpCheck, Machine, MachineError, MachineInfo, PodPlace, Pressure, Result, Usage,
    cgroup::Hierarchies, files, network,
};
use crate::{
    cri_log,
    limits::{LOG_FILES, LOG_ROTATE_BYTES, TERMINATION_MESSAGE},
    pod::{
        resources::{QosClass, class_cgroup},
        spec::{log_directory_name, log_path},
    },
    volumes::Content,
};

/// A real node. Cheap to clone.
#[derive(Clone)]
pub struct LinuxMachine {
    /// Absolute; holds a directory for each pod.
    root: PathBuf,
    logs: PathBuf,
    hierarchies: Hierarchies,
    info: MachineInfo,
}

impl LinuxMachine {
    /// A node that keeps its pods under `root` and their logs under `logs`.
    pub fn new(root: &Path, logs: &Path) -> Result<Self> {
        files::make_dir(&root.join("pods"), 0o750)?;
        files::make_dir(logs, 0o755)?;
        let absolute =
            |path: &Path| fs::canonicalize(path).map_err(|source| MachineError::new("resolve", path, source));
        let root = absolute(root)?;
        let info = read_info(&root)?;
        Ok(Self { logs: absolute(logs)?, hierarchies: Hierarchies::detect(), info, root })
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    fn log_file(&self, pod: &PodPlace, container: &str, attempt: u32) -> PathBuf {
        self.log_directory(pod).join(log_path(container, attempt))
    }

    fn termination_path(&self, pod: &PodPlace, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(&pod.uid).join("containers").join(container).join(attempt.to_string())
    }
}

/// Runs what may block where it may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn read_info(root: &Path) -> Result<MachineInfo> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let meminfo = text("/proc/meminfo");
    let os_release = text("/etc/os-release");
    let pretty = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let (storage, _) = disk(root)?;
    Ok(MachineInfo {
        cpus: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        memory: meminfo_bytes(&meminfo, "MemTotal:"),
        swap: meminfo_bytes(&meminfo, "SwapTotal:"),
        storage,
        hostname: text("/proc/sys/kernel/hostname"),
        machine_id: text("/etc/machine-id"),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        kernel: text("/proc/sys/kernel/osrelease"),
        os_image: pretty.unwrap_or("Linux").trim_matches('"').to_owned(),
        addresses: addresses(),
        resolv_conf: text("/etc/resolv.conf"),
        hosts: text("/etc/hosts"),
    })
}

fn meminfo_bytes(meminfo: &str, field: &str) -> i64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse::<i64>().ok()).unwrap_or_default() * 1024
}

/// Size and free bytes of the file system of a path.
fn disk(path: &Path) -> Result<(i64, i64)> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|errno| MachineError::new("look at the file system of", path, errno))?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    Ok((bytes(stat.f_blocks), bytes(stat.f_bavail)))
}

/// The address that the default route would use; without one, the first that is not loopback.
fn addresses() -> Vec<IpAddr> {
    let routed = |bind: &str, far: &str| {
        // Connecting a datagram socket sends nothing.
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(far).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
    };
    let mut found: Vec<IpAddr> = routed("0.0.0.0:0", "192.0.2.1:9").into_iter().collect();
    if found.is_empty() {
        let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let v4 = interfaces.filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()));
        found.extend(v4.map(IpAddr::V4).find(|ip| !ip.is_loopback()));
    }
    found
}

#[async_trait]
impl Machine for LinuxMachine {
    fn info(&self) -> MachineInfo {
        self.info.clone()
    }

    async fn pressure(&self) -> Result<Pressure> {
        let root = self.root.clone();
        blocking(move || {
            let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let (disk_size, disk_available) = disk(&root)?;
            let memory_available = meminfo_bytes(&meminfo, "MemAvailable:");
            Ok(Pressure { memory_available, disk_available, disk_size })
        })
        .await
    }

    async fn set_up_root(&self, cgroup_root: &str) -> Result<()> {
        let hierarchies = self.hierarchies.clone();
        let root = cgroup_root.to_owned();
        blocking(move || {
            for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                let mut resources = Resources::default();
                if class == QosClass::BestEffort {
                    // Whoever asked for nothing gets what the others leave.
                    resources.cpu_shares = 2;
                }
                hierarchies.create(&class_cgroup(&root, class), &resources)?;
            }
            Ok(())
        })
        .await
    }

    async fn set_up_pod(&self, pod: &PodPlace, resources: &Resources) -> Result<()> {
        let (this, pod, resources) = (self.clone(), pod.clone(), *resources);
        blocking(move || {
            files::make_dir(&this.pod_dir(&pod.uid).join("volumes"), 0o750)?;
            files::make_dir(&this.log_directory(&pod), 0o755)?;
            this.hierarchies.create(&pod.cgroup, &resources)
        })
        .await
    }

    async fn write_hosts(&self, pod: &PodPlace, text: &str) -> Result<PathBuf> {
        let path = self.pod_dir(&pod.uid).join("etc-hosts");
        let (file, text) = (path.clone(), text.to_owned());
        blocking(move || files::write_file(&file, text.as_bytes(), 0o644)).await?;
        Ok(path)
    }

    async fn set_up_volume(
        &self,
        pod: &PodPlace,
        name: &str,
        content: &Content,
        group: Option<i64>,
    ) -> Result<PathBuf> {
        let path = self.pod_dir(&pod.uid).join("volumes").join(name);
        let content = content.clone();
        blocking(move || match content {
            Content::Host { path, kind } => {
                let path = PathBuf::from(path);
                files::check_host_path(&path, &kind)?;
                Ok(path)
            }
            Content::Empty { memory, size } => {
                if path.exists() {
                    // Its mode may have been changed by the pod.
                    if memory {
                        files::mount_memory(&path, size)?;
                    }
                    return Ok(path);
                }
                files::make_dir(&path, 0o777)?;
                if memory {
                    files::mount_memory(&path, size)?;
                }
                if let Some(group) = group {
                    files::give_to_group(&path, group)?;
                }
                Ok(path)
            }
            Content::Files { files: wanted, in_memory } => {
                if !path.exists() {
                    files::make_dir(&path, 0o755)?;
                }
                if in_memory {
                    files::mount_memory(&path, None)?;
                }
                files::write_files(&path, &wanted, group)?;
                Ok(path)
            }
        })
        .await
    }

    async fn sub_path(&self, volume: &Path, sub_path: &str) -> Result<PathBuf> {
        let (volume, sub_path) = (volume.to_owned(), sub_path.to_owned());
        blocking(move || files::sub_path(&volume, &sub_path)).await
    }

    async fn termination_file(&self, pod: &PodPlace, container: &str, attempt: u32) -> Result<PathBuf> {
        let path = self.termination_path(pod, container, attempt);
        let file = path.clone();
        blocking(move || {
            if let Some(parent) = file.parent() {
                files::make_dir(parent, 0o755)?;
            }
            // Anybody may write: the container's user is not known.
            files::write_file(&file, b"", 0o666)
        })
        .await?;
        Ok(path)
    }

    async fn termination_message(&self, pod: &PodPlace, container: &str, attempt: u32) -> String {
        let path = self.termination_path(pod, container, attempt);
        let text = blocking(move || read_beginning(&path, TERMINATION_MESSAGE as u64)).await;
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    }

    fn log_directory(&self, pod: &PodPlace) -> PathBuf {
        self.logs.join(log_directory_name(&pod.namespace, &pod.name, &pod.uid))
    }

    async fn log_tail(
        &self,
        pod: &PodPlace,
        container: &str,
        attempt: u32,
        lines: usize,
        bytes: usize,
    ) -> String {
        let path = self.log_file(pod, container, attempt);
        blocking(move || tail(&path, lines, bytes).unwrap_or_default()).await
    }

    async fn remove_log(&self, pod: &PodPlace, container: &str, attempt: u32) {
        let path = self.log_file(pod, container, attempt);
        blocking(move || {
            for index in 1..LOG_FILES {
                let _ = fs::remove_file(rotated(&path, index));
            }
            let _ = fs::remove_file(path);
        })
        .await;
    }

    async fn rotate_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> bool {
        let path = self.log_file(pod, container, attempt);
        blocking(move || {
            if !fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_ROTATE_BYTES) {
                return false;
            }
            for index in (1..LOG_FILES - 1).rev() {
                let _ = fs::rename(rotated(&path, index), rotated(&path, index + 1));
            }
            fs::rename(&path, rotated(&path, 1)).is_ok()
        })
        .await
    }

    async fn tear_down_pod(&self, pod: &PodPlace) -> Result<()> {
        let (this, pod) = (self.clone(), pod.clone());
        blocking(move || {
            files::remove_with_mounts(&this.pod_dir(&pod.uid))?;
            if pod.cgroup.is_empty() { Ok(()) } else { this.hierarchies.remove(&pod.cgroup) }
        })
        .await
    }

    async fn remove_logs(&self, pod: &PodPlace) {
        let path = self.log_directory(pod);
        blocking(move || {
            let _ = fs::remove_dir_all(path);
        })
        .await;
    }

    async fn pods_on_disk(&self) -> Vec<String> {
        let path = self.root.join("pods");
        blocking(move || {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let mut uids: Vec<String> =
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            uids.sort();
            uids
        })
        .await
    }

    async fn usage(&self, cgroup: &str) -> Option<Usage> {
        let (hierarchies, cgroup) = (self.hierarchies.clone(), cgroup.to_owned());
        blocking(move || hierarchies.usage(&cgroup)).await
    }

    async fn http(&self, check: &HttpCheck, timeout: Duration) -> std::result::Result<HttpAnswer, String> {
        network::http(check, timeout).await
    }

    async fn grpc(
        &self,
        host: &str,
        port: u16,
        service: &str,
        timeout: Duration,
    ) -> std::result::Result<(), String> {
        network::grpc(host, port, service, timeout).await
    }

    async fn tcp(&self, host: &str, port: u16, timeout: Duration) -> std::result::Result<(), String> {
        network::tcp(host, port, timeout).await
    }
}

fn rotated(path: &Path, index: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{index}"));
    name.into()
}

fn read_beginning(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(limit).read_to_end(&mut content)?;
    Ok(content)
}

fn tail(path: &Path, lines: usize, bytes: usize) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    // Each line carries a time and a stream beside its text.
    let window = (bytes * 2 + lines * 64) as u64;
    let length = file.metadata()?.len();
    file.seek(io::SeekFrom::Start(length.saturating_sub(window)))?;
    let mut content = Vec::new();
    file.take(window).read_to_end(&mut content)?;
    let mut renderer = cri_log::Renderer::default();
    let mut output = Vec::new();
    for line in content[cri_log::tail_offset(&content, lines)..].split_inclusive(|byte| *byte == b'\n') {
        renderer.render(line, &mut output);
    }
    let start = output.len().saturating_sub(bytes);
    Ok(String::from_utf8_lossy(&output[start..]).into_owned())
}

/// Removes a directory with all in it, after everything below it was unmounted. Refuses where
/// something stays mounted.
pub fn remove_directory(path: &Path) -> Result<()> {
    files::remove_with_mounts(path)
}
