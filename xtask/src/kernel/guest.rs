//! An emulated machine that boots, runs a script, and exits.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::initramfs::{Archive, LIBRARIES};
use super::{MODULES, fetch, modules};

/// Prefix of the exit code on the guest's console.
const EXIT: &str = "guest: exit code ";

/// The CPU model. It has no cmpxchg16b, whose flags the emulator of Debian 12 gets wrong and which kernels do
/// not need, and none of the features that only cost time here: five-level paging and hardening.
const CPU: &str = "max,cx16=off,la57=off,smap=off,smep=off,pku=off";

/// Kernel arguments. Hardening only costs time here, and so do slow grace periods. A busy host pauses the
/// guest at times, which is not a fault of the guest, so watchdogs are disabled.
const ARGUMENTS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off init_on_alloc=0 \
                         hardened_usercopy=off audit=0 lsm= rcupdate.rcu_expedited=1 \
                         rcupdate.rcu_cpu_stall_suppress=1 nowatchdog no_timer_check tsc=reliable";

/// Components of a guest, and what it runs.
pub struct Guest {
    /// Version of the kernel, such as `6.1`.
    pub version: String,
    /// Script for busybox's shell, run as root: proc, sysfs, cgroup2 (/sys/fs/cgroup), the BPF file system
    /// and an empty /tmp are mounted, and nothing else runs. Its exit code is that of the guest.
    pub script: String,
    /// Programs of this machine, available in the guest by file name, with their libraries.
    pub programs: Vec<PathBuf>,
    /// Links to programs: name, and name of the program.
    pub links: Vec<(String, String)>,
    /// Additional directories of this machine that contain libraries.
    pub libraries: Vec<PathBuf>,
    /// Other files: path in the guest, file of this machine.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Modules to load in addition to those that the data plane's tests need; missing ones are skipped.
    pub modules: Vec<&'static str>,
    pub environment: Vec<(String, String)>,
    /// Memory in MiB, which also holds all files.
    pub memory: u32,
    pub processors: u32,
    /// If set, the clock advances a nanosecond per executed instruction, so that measurements do not depend
    /// on the load of this machine. Uses one CPU of this machine.
    pub counted: bool,
    /// Time after which the guest is stopped.
    pub limit: Duration,
}

impl Guest {
    /// Returns a guest that runs a script, with nothing but busybox.
    pub fn new(version: &str, script: String, limit: Duration) -> Self {
        Self {
            version: version.to_owned(),
            script,
            programs: Vec::new(),
            links: Vec::new(),
            libraries: Vec::new(),
            files: Vec::new(),
            modules: Vec::new(),
            environment: Vec::new(),
            memory: 3072,
            processors: 2,
            counted: false,
            limit,
        }
    }

    fn initramfs(&self, modules_at: &Path) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for (link, target) in [
            ("/bin", "usr/bin"),
            ("/sbin", "usr/bin"),
            ("/usr/sbin", "bin"),
            ("/lib", "usr/lib"),
            ("/lib64", "usr/lib"),
        ] {
            archive.link(Path::new(link), target);
        }
        for directory in
            ["/dev", "/proc", "/sys", "/run", "/tmp", "/root", "/etc", "/var", "/usr/lib", "/usr/applets"]
        {
            archive.directory(Path::new(directory));
        }
        archive.link(Path::new("/etc/mtab"), "/proc/mounts");
        let busybox = fetch::busybox()?;
        let read =
            |file: &Path| std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        archive.file(Path::new("/usr/bin/busybox"), &read(&busybox)?);
        for program in &self.programs {
            archive.program(program, &self.libraries)?;
        }
        for (name, program) in &self.links {
            archive.link(&Path::new("/usr/bin").join(name), program);
        }
        for (path, file) in &self.files {
            archive.libraries(file, &self.libraries)?;
            archive.file(path, &read(file)?);
        }
        let wanted: Vec<&str> = MODULES.iter().chain(&self.modules).copied().collect();
        let mut load = Vec::new();
        for module in modules::select(modules_at, &wanted)? {
            let path = format!("/usr/lib/modules/{}.ko", module.name);
            archive.file(Path::new(&path), &module.bytes);
            load.push(path);
        }
        archive.file(Path::new("/script"), self.script.as_bytes());
        archive.file(Path::new("/init"), self.init(&load).as_bytes());
        Ok(archive.finish())
    }

    /// Returns the first process' script. busybox's applets come last in `PATH`, so that a real `ip` is
    /// preferred.
    fn init(&self, modules: &[String]) -> String {
        let mut text = format!(
            "#!/usr/bin/busybox sh\n\
             /usr/bin/busybox --install -s /usr/applets\n\
             export PATH=/usr/bin:/usr/applets HOME=/root LD_LIBRARY_PATH={LIBRARIES}\n\
             mount -t proc none /proc\n\
             mount -t sysfs none /sys\n\
             mount -t devtmpfs none /dev\n\
             mount -t tmpfs none /tmp\n\
             mount -t tmpfs none /run\n\
             mount -t cgroup2 none /sys/fs/cgroup\n\
             mount -t bpf none /sys/fs/bpf\n\
             ln -s /proc/self/fd /dev/fd\n\
             ip link set lo up\n"
        );
        for module in modules {
            text.push_str(&format!("insmod {module}\n"));
        }
        for (name, value) in &self.environment {
            text.push_str(&format!("export {name}='{}'\n", value.replace('\'', r"'\''")));
        }
        text.push_str(&format!("sh /script </dev/null\necho \"{EXIT}$?\"\nsync\npoweroff -f\n"));
        text
    }
}

/// Boots a guest, passes each line of its output to `line`, and returns the exit code of its script.
///
/// # Errors
///
/// Fails if something that it needs cannot be fetched, if it does not finish within the limit, or if it
/// crashes.
pub fn run(guest: &Guest, line: &mut dyn FnMut(&str)) -> Result<i32> {
    let kernel = fetch::kernel(&guest.version)?;
    let emulator = fetch::Emulator::find()?;
    let archive = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    std::fs::write(archive.path(), guest.initramfs(&kernel.modules)?)
        .context("cannot write the guest's files")?;
    let mut command = emulator.command();
    if guest.counted {
        command.args(["-accel", "tcg,thread=single,tb-size=1024", "-icount", "shift=0,sleep=off"]);
    } else {
        for accelerator in accelerators() {
            command.args(["-accel", accelerator]);
        }
    }
    command
        .args(["-cpu", CPU, "-nographic", "-no-reboot", "-nic", "none"])
        .args(["-m", &guest.memory.to_string(), "-smp", &guest.processors.to_string()])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(archive.path())
        .args(["-append", ARGUMENTS])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the emulator")?;
    let outcome = follow(&mut child, guest.limit, line);
    if outcome.is_err() {
        // It has no state to lose.
        let _ = child.kill();
    }
    child.wait().context("cannot wait for the emulator")?;
    outcome?.with_context(|| format!("the guest with kernel {} ended before its script did", guest.version))
}

/// Returns the accelerators to try: that the device exists does not mean that it works.
fn accelerators() -> &'static [&'static str] {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = flags
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"));
    if able && Path::new("/dev/kvm").exists() { &["kvm", "tcg"] } else { &["tcg,thread=multi,tb-size=1024"] }
}

/// Reads the console to its end; returns the exit code that it contained.
fn follow(child: &mut Child, limit: Duration, line: &mut dyn FnMut(&str)) -> Result<Option<i32>> {
    let stdout = child.stdout.take().context("the emulator's output was not piped")?;
    let lines = reader(stdout);
    let start = Instant::now();
    let mut code = None;
    loop {
        match lines.recv_timeout(limit.saturating_sub(start.elapsed())) {
            Ok(text) => {
                if let Some(number) = text.strip_prefix(EXIT) {
                    code = number.trim().parse().ok();
                } else {
                    line(&text);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(code),
            Err(RecvTimeoutError::Timeout) => bail!("the guest was stopped after {} s", limit.as_secs()),
        }
    }
}

/// Returns the lines of the console without the firmware's output, which is full of control sequences.
fn reader(stdout: std::process::ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while stdout.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_end_matches(['\r', '\n']);
            let text = text.rsplit("\x1b[2J").next().unwrap_or(text);
            let firmware = text.starts_with("SeaBIOS") || text.starts_with("Booting from");
            if !firmware && !text.contains('\x1b') && sender.send(text.to_owned()).is_err() {
                return;
            }
            bytes.clear();
        }
    });
    receiver
}
