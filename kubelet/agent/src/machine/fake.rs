//! A simulated node: it has a constant size, keeps nothing on disk, and answers probes from the state of the
//! fake runtime.

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use kubelet_cri::{FakeRuntime, Resources};

use super::{
    DiskUsage, HttpAnswer, HttpCheck, Machine, MachineInfo, PodPlace, Pressure, Result, SubPath, Usage,
};
use crate::volumes::Content;

/// A simulated node. Cheap to clone; clones share all state.
#[derive(Clone)]
pub struct FakeMachine(Arc<Shared>);

struct Shared {
    info: MachineInfo,
    runtime: FakeRuntime,
    /// Volumes of the pods that are currently set up, by uid and volume name.
    pods: Mutex<BTreeMap<String, BTreeMap<String, Content>>>,
    /// Resources last set on the cgroup of each pod, by uid.
    cgroups: Mutex<BTreeMap<String, Resources>>,
    /// Memory usage of each pod in bytes, by uid.
    memory: Mutex<BTreeMap<String, u64>>,
    /// Disk usage of each pod, by uid.
    disk_usage: Mutex<BTreeMap<String, DiskUsage>>,
    /// Names of the volumes whose directories were removed.
    removed_volumes: Mutex<Vec<String>>,
    /// If set, every log is too large each time it is checked.
    logs_overflow: AtomicBool,
    /// Number of upcoming attempts to set up a volume that fail.
    failing_volumes: AtomicUsize,
    /// Number of upcoming attempts to clean up after a pod that fail.
    failing_tear_downs: AtomicUsize,
}

impl FakeMachine {
    /// Creates a node with four CPUs and 16 GiB of memory whose only address is `address`.
    pub fn new(runtime: FakeRuntime, hostname: &str, address: IpAddr) -> Self {
        let info = MachineInfo {
            cpus: 4,
            memory: 16 << 30,
            swap: 0,
            storage: 100 << 30,
            hostname: hostname.to_owned(),
            machine_id: hostname.to_owned(),
            boot_id: "simulated".to_owned(),
            kernel: "6.1".to_owned(),
            os_image: "simulated".to_owned(),
            addresses: vec![address],
            ..MachineInfo::default()
        };
        Self::with_info(runtime, info)
    }

    /// Creates a node with the given properties.
    pub fn with_info(runtime: FakeRuntime, info: MachineInfo) -> Self {
        Self(Arc::new(Shared {
            info,
            runtime,
            pods: Mutex::default(),
            cgroups: Mutex::default(),
            memory: Mutex::default(),
            disk_usage: Mutex::default(),
            removed_volumes: Mutex::default(),
            logs_overflow: AtomicBool::new(false),
            failing_volumes: AtomicUsize::new(0),
            failing_tear_downs: AtomicUsize::new(0),
        }))
    }

    /// Returns the volumes of the pods that are set up, by uid and volume name.
    pub fn volumes(&self) -> BTreeMap<String, BTreeMap<String, Content>> {
        self.pods().clone()
    }

    /// Returns the names of the volumes whose directories were removed, in order.
    pub fn removed_volumes(&self) -> Vec<String> {
        self.0.removed_volumes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the resources last set on the cgroup of a pod.
    pub fn cgroup(&self, uid: &str) -> Option<Resources> {
        self.0.cgroups.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied()
    }

    /// Sets the memory usage of a pod.
    pub fn set_memory_usage(&self, uid: &str, bytes: u64) {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), bytes);
    }

    /// Sets the disk usage of a pod.
    pub fn set_disk_usage(&self, uid: &str, usage: DiskUsage) {
        let mut all = self.0.disk_usage.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(uid.to_owned(), usage);
    }

    /// Makes every log too large each time it is checked.
    pub fn set_logs_overflow(&self) {
        self.0.logs_overflow.store(true, Ordering::Relaxed);
    }

    /// Makes the next `count` attempts to set up or update a volume fail.
    pub fn fail_volumes(&self, count: usize) {
        self.0.failing_volumes.store(count, Ordering::Relaxed);
    }

    /// Makes the next `count` attempts to clean up after a pod fail.
    pub fn fail_tear_downs(&self, count: usize) {
        self.0.failing_tear_downs.store(count, Ordering::Relaxed);
    }

    fn pods(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeMap<String, Content>>> {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self, host: &str) -> bool {
        host.parse().is_ok_and(|address| self.0.runtime.answers(address))
    }
}

/// Consumes one of the remaining failures, if there is one.
fn consume_failure(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

#[async_trait]
impl Machine for FakeMachine {
    fn info(&self) -> MachineInfo {
        self.0.info.clone()
    }

    async fn pressure(&self) -> Result<Pressure> {
        let info = &self.0.info;
        Ok(Pressure { memory_available: info.memory, disk_available: info.storage, disk_size: info.storage })
    }

    async fn set_up_root(&self, _cgroup_root: &str) -> Result<()> {
        Ok(())
    }

    async fn set_up_pod(&self, pod: &PodPlace, resources: &Resources) -> Result<()> {
        let mut cgroups = self.0.cgroups.lock().unwrap_or_else(PoisonError::into_inner);
        cgroups.insert(pod.uid.clone(), *resources);
        self.pods().entry(pod.uid.clone()).or_default();
        Ok(())
    }

    async fn write_etc(&self, pod: &PodPlace, _files: &BTreeMap<&'static str, String>) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/pods/{}/etc", pod.uid)))
    }

    async fn set_up_volume(
        &self,
        pod: &PodPlace,
        name: &str,
        content: &Content,
        _group: Option<i64>,
    ) -> Result<PathBuf> {
        if consume_failure(&self.0.failing_volumes) {
            let error = io::Error::other("the disk is full");
            return Err(super::MachineError::new("create the volume", Path::new(name), error));
        }
        self.pods().entry(pod.uid.clone()).or_default().insert(name.to_owned(), content.clone());
        Ok(PathBuf::from(format!("/pods/{}/volumes/{name}", pod.uid)))
    }

    fn local_volumes(&self) -> Option<PathBuf> {
        Some(PathBuf::from("/volumes"))
    }

    async fn remove_local_volume(&self, name: &str) -> Result<()> {
        self.0.removed_volumes.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        Ok(())
    }

    async fn sub_path(&self, _pod: &PodPlace, wanted: &SubPath) -> Result<PathBuf> {
        Ok(wanted.volume.join(&wanted.path))
    }

    async fn forget_sub_paths(&self, _pod: &PodPlace, _container: &str) -> Result<()> {
        Ok(())
    }

    async fn termination_file(&self, pod: &PodPlace, container: &str, attempt: u32) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/pods/{}/containers/{container}/{attempt}", pod.uid)))
    }

    async fn termination_message(&self, _pod: &PodPlace, _container: &str, _attempt: u32) -> String {
        String::new()
    }

    fn log_directory(&self, pod: &PodPlace) -> PathBuf {
        PathBuf::from(format!("/logs/{}", pod.uid))
    }

    async fn open_log(&self, _pod: &PodPlace, _container: &str, _attempt: u32) -> io::Result<fs::File> {
        // Simulated containers write no logs.
        fs::File::open("/dev/null")
    }

    async fn log_tail(&self, _: &PodPlace, _: &str, _: u32, _: usize, _: usize) -> String {
        String::new()
    }

    async fn remove_attempt(&self, _pod: &PodPlace, _container: &str, _attempt: u32) {}

    async fn trim_log(&self, _pod: &PodPlace, _container: &str, _attempt: u32, _current: bool) {}

    async fn rotate_log(&self, _pod: &PodPlace, _container: &str, _attempt: u32) -> bool {
        self.0.logs_overflow.load(Ordering::Relaxed)
    }

    async fn tear_down_pod(&self, pod: &PodPlace) -> Result<()> {
        if consume_failure(&self.0.failing_tear_downs) {
            let error = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(super::MachineError::new("remove the cgroup", Path::new(&pod.cgroup), error));
        }
        self.0.cgroups.lock().unwrap_or_else(PoisonError::into_inner).remove(&pod.uid);
        self.pods().remove(&pod.uid);
        Ok(())
    }

    async fn remove_logs(&self, _pod: &PodPlace) {}

    async fn pods_on_disk(&self) -> Vec<String> {
        self.pods().keys().cloned().collect()
    }

    async fn usage(&self, cgroup: &str) -> Option<Usage> {
        let all = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = *all.iter().find(|(uid, _)| cgroup.ends_with(&format!("/pod{uid}")))?.1;
        Some(Usage { cpu_nanoseconds: 0, memory, working_set: memory })
    }

    async fn disk_usage(&self, pod: &PodPlace, _: &[String], _: &[String]) -> Result<DiskUsage> {
        let all = self.0.disk_usage.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.get(&pod.uid).cloned().unwrap_or_default())
    }

    async fn http(&self, check: &HttpCheck, _timeout: Duration) -> std::result::Result<HttpAnswer, String> {
        let status = if self.answers(&check.host) { 200 } else { 503 };
        Ok(HttpAnswer { status, body: String::new() })
    }

    async fn grpc(
        &self,
        host: &str,
        port: u16,
        _: &str,
        timeout: Duration,
    ) -> std::result::Result<(), String> {
        self.tcp(host, port, timeout).await
    }

    async fn tcp(&self, host: &str, _port: u16, _timeout: Duration) -> std::result::Result<(), String> {
        if self.answers(host) { Ok(()) } else { Err("connection refused".to_owned()) }
    }
}
