use std::{fs, path::Path};

use kubelet_cri::{ContainerState, ContainerStatus};
use serde_json::json;

use super::*;
use crate::machine::LinuxMachine;

const CONTENT: usize = 4 << 20;

/// A pod with one running container, and its log directory.
struct Node {
    _directory: tempfile::TempDir,
    machine: Arc<LinuxMachine>,
    tracked: Arc<TrackedPod>,
    log: std::path::PathBuf,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (root, logs) = (directory.path().join("root"), directory.path().join("logs"));
        let machine = Arc::new(LinuxMachine::new(&root, &logs).unwrap());
        let pod = json!({"metadata": {"name": "p", "namespace": "a", "uid": "u"},
            "spec": {"containers": [{"name": "c"}]}});
        let tracked = Arc::new(TrackedPod::new(
            Arc::new(serde_json::from_value(pod).unwrap()),
            "/",
            Default::default(),
        ));
        tracked.change(|state| {
            state.runtime.containers.push(ContainerStatus {
                id: "id".to_owned(),
                name: "c".to_owned(),
                state: ContainerState::Running,
                ..ContainerStatus::default()
            });
        });
        let log = machine.log_directory(&tracked.place).join("c");
        fs::create_dir_all(&log).unwrap();
        let node = Self { _directory: directory, machine, tracked, log };
        node.write("0.log", "old", CONTENT);
        node
    }

    /// Writes a log of about `size` bytes.
    fn write(&self, name: &str, word: &str, size: usize) {
        let line = format!("2026-01-01T00:00:00.000000001Z stdout F {word} {}\n", "x".repeat(1000));
        fs::write(self.log.join(name), line.repeat(size / line.len() + 1)).unwrap();
    }

    fn read(&self, follow: bool) -> mpsc::Receiver<io::Result<Frame<Bytes>>> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let machine: Arc<dyn Machine> = self.machine.clone();
        let reader = Reader {
            log: Log { machine, place: self.tracked.place.clone(), container: "c".to_owned(), attempt: 0 },
            renderer: Renderer::default(),
            follow: follow.then(|| (Arc::clone(&self.tracked), "id".to_owned())),
            sender,
        };
        tokio::spawn(reader.run(None));
        receiver
    }

    fn stop(&self) {
        self.tracked.change(|state| state.runtime.containers[0].state = ContainerState::Exited);
    }

    /// Returns how many removed files below the log directory this process has open.
    fn held(&self) -> usize {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let named = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        named.filter(|path| is_removed(path, &self.log)).count()
    }
}

fn is_removed(path: &Path, directory: &Path) -> bool {
    path.starts_with(directory) && path.to_string_lossy().ends_with("(deleted)")
}

/// Waits until a condition that other tasks establish holds.
async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("it never came about");
}

async fn text(receiver: &mut mpsc::Receiver<io::Result<Frame<Bytes>>>) -> (String, Option<io::Error>) {
    let mut text = String::new();
    while let Some(piece) = receiver.recv().await {
        match piece {
            Ok(frame) => text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap()),
            Err(error) => return (text, Some(error)),
        }
    }
    (text, None)
}

#[tokio::test]
async fn readers_that_take_nothing_do_not_keep_removed_logs_on_the_disk() {
    let node = Node::new();
    let mut readers: Vec<_> = [true, false].iter().cycle().take(8).map(|follow| node.read(*follow)).collect();
    until(|| readers.iter().all(|reader| reader.len() == QUEUE)).await;
    fs::remove_file(node.log.join("0.log")).unwrap();
    node.write("0.log", "new", 100);
    assert_eq!(node.held(), 8);
    until(|| node.held() == 0).await;
    node.stop();
    for (index, reader) in readers.iter_mut().enumerate() {
        let (text, error) = text(reader).await;
        assert!(text.starts_with("old") && text.len() < CONTENT / 2);
        match index % 2 {
            0 => assert!(
                error.is_none() && text.lines().last().unwrap().starts_with("new"),
                "a follower goes on"
            ),
            _ => assert_eq!(error.unwrap().to_string(), "the log was removed while it was read"),
        }
    }
}

#[tokio::test]
async fn a_reader_that_keeps_up_reads_a_removed_log_to_its_end_and_a_follower_goes_on() {
    let node = Node::new();
    let mut reader = node.read(true);
    until(|| reader.len() == QUEUE).await;
    fs::rename(node.log.join("0.log"), node.log.join("0.log.1")).unwrap();
    node.write("0.log", "new", 100);
    fs::remove_file(node.log.join("0.log.1")).unwrap();
    node.stop();
    let (text, error) = text(&mut reader).await;
    assert!(error.is_none());
    assert!(text.len() > CONTENT / 2 && text.lines().last().unwrap().starts_with("new"));
    assert_eq!(text.lines().filter(|line| line.starts_with("new")).count(), 1);
}
