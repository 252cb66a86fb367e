//! The [`Machine`] implementation for a real Linux node.

use std::{
    collections::BTreeMap,
    fs, io,
    io::{Read, Seek, Write},
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use apiserver_meta::resources::QosClass;
use async_trait::async_trait;
use kubelet_cri::Resources;
use rustix::fs::OFlags;
use tokio::sync::Semaphore;
use tracing::debug;

use super::{
    DiskUsage, HttpAnswer, HttpCheck, Machine, MachineError, MachineInfo, PodPlace, Pressure, Result,
    SubPath, Usage,
    beneath::{self, Dir},
    cgroup::Hierarchies,
    disk_usage::Walk,
    host_path, local,
    logs::Log,
    make_dir,
    mounts::{self, Memory},
    network, sub_path, volume,
};
use crate::{
    limits::{
        CONCURRENT_MEASUREMENTS, ETC_BYTES, TERMINATION_BYTES, TERMINATION_INODES, TERMINATION_MESSAGE,
        WALK_PAUSE, WALK_STEP,
    },
    pod::{
        resources::class_cgroup,
        spec::{log_directory_name, log_path},
    },
    volumes::Content,
};

/// Name of the directory below the root that contains one directory per pod.
const PODS: &str = "pods";
/// Name of the directory of volumes in a pod's directory.
const VOLUMES: &str = "volumes";
/// Name of the directory of `/etc` files in a pod's directory.
const ETC: &str = "etc";
/// Name of the directory of termination messages in a pod's directory.
const TERMINATION: &str = "termination";
/// File system for termination messages. It is in memory, so that containers cannot fill the node's disk with
/// them.
const TERMINATION_FILES: Memory =
    Memory { size: Some(TERMINATION_BYTES), inodes: Some(TERMINATION_INODES), mode: 0o755, group: None };

/// A real node. Cheap to clone.
#[derive(Clone)]
pub struct LinuxMachine {
    /// Absolute path of the directory that contains a directory for each pod.
    root: PathBuf,
    logs: PathBuf,
    /// Absolute path of the directory that contains a directory for each volume that outlives its pods.
    local_volumes: Option<PathBuf>,
    hierarchies: Hierarchies,
    info: MachineInfo,
    /// Limits how many pods are measured at the same time.
    walks: Arc<Semaphore>,
}

impl LinuxMachine {
    /// Creates a node that keeps pods under `root` and their logs under `logs`.
    pub fn new(root: &Path, logs: &Path) -> Result<Self> {
        make_dir(&root.join(PODS), 0o750)?;
        make_dir(logs, 0o755)?;
        let absolute =
            |path: &Path| fs::canonicalize(path).map_err(|source| MachineError::new("resolve", path, source));
        let root = absolute(root)?;
        let info = read_info(&root)?;
        let walks = Arc::new(Semaphore::new(CONCURRENT_MEASUREMENTS));
        let hierarchies = Hierarchies::detect();
        Ok(Self { logs: absolute(logs)?, local_volumes: None, hierarchies, info, root, walks })
    }

    /// Keeps volumes that outlive their pods under `directory`.
    pub fn with_local_volumes(mut self, directory: &Path) -> Result<Self> {
        self.local_volumes = Some(local::open_root(directory)?);
        Ok(self)
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join(PODS).join(uid)
    }

    /// Opens the directory that contains the pods' directories, which no container can reach.
    fn pods(&self) -> io::Result<Dir> {
        Dir::open_trusted(&self.root.join(PODS))
    }

    /// Calls a function with the directory of a pod.
    fn below_pod<T>(
        &self,
        uid: &str,
        attempt: &'static str,
        work: impl FnOnce(&Dir) -> io::Result<T>,
    ) -> Result<T> {
        let done = self.pods().and_then(|dir| work(&dir.make_dir(uid, 0o750)?));
        done.map_err(|source| MachineError::new(attempt, &self.pod_dir(uid), source))
    }

    /// Calls a function with the log of one attempt of a container.
    async fn with_log<T: Send + 'static>(
        &self,
        pod: &PodPlace,
        container: &str,
        attempt: u32,
        work: impl FnOnce(&Log) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (this, pod, path) = (self.clone(), pod.clone(), log_path(container, attempt));
        blocking(move || {
            let directory = log_directory_name(&pod.namespace, &pod.name, &pod.uid);
            work(&Log::find(&Dir::open_trusted(&this.logs)?.dir(directory)?, &path)?)
        })
        .await
    }
}

/// Measures the disk usage of a tree in bytes, step by step; zero if it does not exist.
async fn tree(open: impl FnOnce() -> io::Result<Dir> + Send + 'static) -> io::Result<u64> {
    let mut walk = match blocking(move || open().and_then(Walk::new)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        walk => walk?,
    };
    loop {
        let (walked, done) = blocking(move || {
            let done = walk.step(WALK_STEP);
            (walk, done)
        })
        .await;
        if let Some(used) = done? {
            return Ok(used);
        }
        walk = walked;
        tokio::time::sleep(WALK_PAUSE).await;
    }
}

/// Runs a function on a thread where it may block.
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
        apparmor: text("/sys/module/apparmor/parameters/enabled") == "Y",
    })
}

fn meminfo_bytes(meminfo: &str, field: &str) -> i64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse::<i64>().ok()).unwrap_or_default() * 1024
}

/// Returns the size and the free bytes of the file system that contains a path.
fn disk(path: &Path) -> Result<(i64, i64)> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|errno| MachineError::new("read the size of the file system of", path, errno))?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    Ok((bytes(stat.f_blocks), bytes(stat.f_bavail)))
}

/// Returns the source address of the default route, or the first non-loopback address if there is no such
/// route.
fn addresses() -> Vec<IpAddr> {
    let routed = |bind: &str, far: &str| {
        // Connecting a datagram socket sends no packets.
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
                    // Best-effort pods together get the minimum weight.
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
            this.below_pod(&pod.uid, "create the directories in", |dir| {
                dir.make_dir("volumes", 0o750).map(drop)
            })?;
            let logs = this.log_directory(&pod);
            let name = log_directory_name(&pod.namespace, &pod.name, &pod.uid);
            Dir::open_trusted(&this.logs)
                .and_then(|dir| dir.make_dir(name, 0o755))
                .map_err(|source| MachineError::new("create the directory", &logs, source))?;
            this.hierarchies.create(&pod.cgroup, &resources)
        })
        .await
    }

    async fn write_etc(&self, pod: &PodPlace, files: &BTreeMap<&'static str, String>) -> Result<PathBuf> {
        let (this, uid, files) = (self.clone(), pod.uid.clone(), files.clone());
        blocking(move || {
            this.below_pod(&uid, "write the files of /etc in", |dir| write_etc(dir, &files))?;
            Ok(this.pod_dir(&uid).join(ETC))
        })
        .await
    }

    async fn set_up_volume(
        &self,
        pod: &PodPlace,
        name: &str,
        content: &Content,
        group: Option<i64>,
    ) -> Result<PathBuf> {
        let (this, uid, name, content) = (self.clone(), pod.uid.clone(), name.to_owned(), content.clone());
        blocking(move || {
            if let Content::Host { path, kind, read_only: _ } = &content {
                let path = PathBuf::from(path);
                host_path::check(&path, kind)?;
                return Ok(path);
            }
            let path = this.pod_dir(&uid).join(VOLUMES).join(&name);
            let error = |source| MachineError::new("set up the volume", &path, source);
            let group = group.map(u32::try_from).transpose().map_err(|e| error(io::Error::other(e)))?;
            if let Content::Local { path, read_only: _ } = &content {
                return local::set_up(this.local_volumes.as_deref(), Path::new(path), group);
            }
            let volumes = this.pods().and_then(|dir| dir.make_dir(&uid, 0o750)?.make_dir(VOLUMES, 0o750));
            let volumes = volumes.map_err(error)?;
            match &content {
                Content::Empty { memory, size } => volume::empty(&volumes, &name, *memory, *size, group),
                Content::Files { files, in_memory } => {
                    volume::files(&volumes, &name, files, *in_memory, group)
                }
                Content::Host { .. } | Content::Local { .. } => Ok(()),
            }
            .map_err(error)?;
            Ok(path)
        })
        .await
    }

    fn local_volumes(&self) -> Option<PathBuf> {
        self.local_volumes.clone()
    }

    async fn remove_local_volume(&self, name: &str) -> Result<()> {
        let (root, name) = (self.local_volumes.clone(), name.to_owned());
        blocking(move || root.map_or(Ok(()), |root| local::remove(&root, &name))).await
    }

    async fn sub_path(&self, pod: &PodPlace, wanted: &SubPath) -> Result<PathBuf> {
        let (this, uid, wanted) = (self.clone(), pod.uid.clone(), wanted.clone());
        blocking(move || {
            let volume = Dir::open_trusted(&wanted.volume)
                .map_err(|source| MachineError::new("open the volume", &wanted.volume, source))?;
            let mounted = this.below_pod(&uid, "mount a part of a volume in", |dir| {
                sub_path::mount(dir, &volume, &wanted)
            })?;
            Ok(this.pod_dir(&uid).join(mounted))
        })
        .await
    }

    async fn forget_sub_paths(&self, pod: &PodPlace, container: &str) -> Result<()> {
        let path = self.pod_dir(&pod.uid).join(sub_path::directory(container));
        blocking(move || if path.exists() { mounts::remove_with_mounts(&path) } else { Ok(()) }).await
    }

    async fn termination_file(&self, pod: &PodPlace, container: &str, attempt: u32) -> Result<PathBuf> {
        let (this, uid, container) = (self.clone(), pod.uid.clone(), container.to_owned());
        blocking(move || {
            let name = attempt.to_string();
            this.below_pod(&uid, "create a termination message file in", |dir| {
                let directory =
                    mounts::memory(dir, TERMINATION, &TERMINATION_FILES)?.make_dir(&container, 0o755)?;
                directory.remove_tree(&name)?;
                // World-writable, because the user of the container is not known.
                directory.create_file(&name, 0o666).map(drop)
            })?;
            Ok(this.pod_dir(&uid).join(TERMINATION).join(container).join(name))
        })
        .await
    }

    async fn termination_message(&self, pod: &PodPlace, container: &str, attempt: u32) -> String {
        let (this, path) = (self.clone(), format!("{}/{TERMINATION}/{container}/{attempt}", pod.uid));
        let text = blocking(move || -> io::Result<Vec<u8>> {
            let mut content = Vec::new();
            let file = this.pods()?.open_regular(path, OFlags::RDONLY)?;
            file.take(TERMINATION_MESSAGE as u64).read_to_end(&mut content)?;
            Ok(content)
        });
        String::from_utf8_lossy(&text.await.unwrap_or_default()).into_owned()
    }

    fn log_directory(&self, pod: &PodPlace) -> PathBuf {
        self.logs.join(log_directory_name(&pod.namespace, &pod.name, &pod.uid))
    }

    async fn open_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> io::Result<fs::File> {
        self.with_log(pod, container, attempt, |log| log.open()).await
    }

    async fn log_tail(
        &self,
        pod: &PodPlace,
        container: &str,
        attempt: u32,
        lines: usize,
        bytes: usize,
    ) -> String {
        let tail = self.with_log(pod, container, attempt, move |log| log.tail(lines, bytes));
        tail.await.unwrap_or_default()
    }

    async fn remove_attempt(&self, pod: &PodPlace, container: &str, attempt: u32) {
        let (this, place) = (self.clone(), format!("{}/{TERMINATION}/{container}", pod.uid));
        let message = blocking(move || this.pods()?.dir(place)?.remove_tree(attempt.to_string())).await;
        let log = self.with_log(pod, container, attempt, |log| log.remove()).await;
        for error in [message.err(), log.err()].into_iter().flatten() {
            if error.kind() != io::ErrorKind::NotFound {
                debug!(pod = pod.name, container, %error, "cannot remove the files of a container");
            }
        }
    }

    async fn rotate_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> bool {
        let rotated = self.with_log(pod, container, attempt, |log| log.rotate());
        rotated.await.unwrap_or_default()
    }

    async fn trim_log(&self, pod: &PodPlace, container: &str, attempt: u32, current: bool) {
        let trimmed = self.with_log(pod, container, attempt, move |log| log.trim(current));
        if let Err(error) = trimmed.await
            && error.kind() != io::ErrorKind::NotFound
        {
            debug!(pod = pod.name, container, %error, "cannot trim a log");
        }
    }

    async fn tear_down_pod(&self, pod: &PodPlace) -> Result<()> {
        let (this, pod) = (self.clone(), pod.clone());
        blocking(move || {
            let path = this.pod_dir(&pod.uid);
            // A sandbox created by another client of the runtime may have an arbitrary uid, or none.
            beneath::component(Path::new(&pod.uid))
                .map_err(|source| MachineError::new("remove", &path, source))?;
            mounts::remove_with_mounts(&path)?;
            if pod.cgroup.is_empty() { Ok(()) } else { this.hierarchies.kill_and_remove(&pod.cgroup) }
        })
        .await
    }

    async fn remove_logs(&self, pod: &PodPlace) {
        let (this, name) = (self.clone(), log_directory_name(&pod.namespace, &pod.name, &pod.uid));
        let removed = blocking(move || Dir::open_trusted(&this.logs)?.remove_tree(name)).await;
        if let Err(error) = removed {
            debug!(pod = pod.name, %error, "cannot remove the logs of a pod");
        }
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

    async fn disk_usage(
        &self,
        pod: &PodPlace,
        volumes: &[String],
        containers: &[String],
    ) -> Result<DiskUsage> {
        let _one_of_few = self.walks.acquire().await;
        let mut usage = DiskUsage::default();
        for name in volumes {
            let (this, uid, volume) = (self.clone(), pod.uid.clone(), name.clone());
            let used = tree(move || this.pods()?.dir(uid)?.dir(VOLUMES)?.dir(volume)).await;
            let path = self.pod_dir(&pod.uid).join(VOLUMES).join(name);
            let used = used.map_err(|source| MachineError::new("measure", &path, source))?;
            usage.volumes.insert(name.clone(), used);
        }
        for name in containers {
            let (logs, container) = (self.logs.clone(), name.clone());
            let directory = log_directory_name(&pod.namespace, &pod.name, &pod.uid);
            let path = self.logs.join(&directory).join(name);
            let used = tree(move || Dir::open_trusted(&logs)?.dir(directory)?.dir(container)).await;
            let used = used.map_err(|source| MachineError::new("measure", &path, source))?;
            usage.logs.insert(name.clone(), used);
        }
        Ok(usage)
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

/// Writes the files that every container of a pod has in `/etc`, skipping those that are up to date, since
/// containers may be reading them. All files that change are truncated first, because a container may have
/// grown one until there was no space left.
fn write_etc(pod: &Dir, files: &BTreeMap<&'static str, String>) -> io::Result<()> {
    let needed: usize = files.values().map(String::len).sum();
    let size = Some(ETC_BYTES + 2 * needed as u64);
    let directory = mounts::memory(pod, ETC, &Memory { size, inodes: Some(16), mode: 0o755, group: None })?;
    let mut changed = Vec::new();
    for (name, text) in files {
        match directory.open_regular(name, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                changed.push((directory.create_file(name, 0o644)?, text));
            }
            Err(error) => return Err(error),
            Ok(mut file) => {
                let mut present = Vec::new();
                Read::by_ref(&mut file).take(text.len() as u64 + 1).read_to_end(&mut present)?;
                if present != text.as_bytes() {
                    file.set_len(0)?;
                    file.rewind()?;
                    changed.push((file, text));
                }
            }
        }
    }
    changed.into_iter().try_for_each(|(mut file, text)| file.write_all(text.as_bytes()))
}

/// Removes a directory with its contents after unmounting everything below it. Fails if a mount remains.
pub fn remove_directory(path: &Path) -> Result<()> {
    mounts::remove_with_mounts(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tear_down_with_an_invalid_uid_removes_no_other_pod() {
        let place = tempfile::tempdir().unwrap();
        let machine = LinuxMachine::new(&place.path().join("root"), &place.path().join("logs")).unwrap();
        let other = machine.pod_dir("other").join("kept");
        fs::create_dir_all(&other).unwrap();
        for uid in ["", ".", "..", "../pods", "/", "other/kept"] {
            let pod = PodPlace { uid: uid.to_owned(), ..PodPlace::default() };
            assert!(machine.tear_down_pod(&pod).await.is_err(), "{uid}");
        }
        assert!(other.exists());
        let pod = PodPlace { uid: "other".to_owned(), ..PodPlace::default() };
        machine.tear_down_pod(&pod).await.unwrap();
        machine.tear_down_pod(&pod).await.unwrap();
        assert_eq!(machine.pods_on_disk().await, [""; 0]);
    }
}
