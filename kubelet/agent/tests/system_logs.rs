//! The logs of the machine, `/logs/` of the node's server, for readers and for those who write links and pipes there.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    net::Ipv4Addr,
    os::unix::{fs::symlink, net::UnixListener},
    sync::Arc,
    time::Duration,
};

use http_body_util::BodyExt;
use kubelet_agent::{FakeMachine, limits};
use kubelet_cri::{FakeRuntime, fake::FakeOptions};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::bench::{Bench, Kubelet};
use crate::support::Api;

/// Starts a kubelet whose logs are below `var/log` of the bench, with a secret file beside the directory.
async fn node(bench: &Bench) -> Kubelet {
    let logs = bench.path("var/log");
    fs::create_dir_all(logs.join("pods/ns_pod")).unwrap();
    fs::write(bench.path("var/secret"), "secret").unwrap();
    fs::write(logs.join("messages"), "kernel: hello\n").unwrap();
    fs::write(logs.join("page.html"), "<script>alert(1)</script>").unwrap();
    fs::write(logs.join("pods/ns_pod/0.log"), "from the pod\n").unwrap();
    let runtime = FakeRuntime::new(FakeOptions::new((Ipv4Addr::new(10, 9, 0, 0), 24), Arc::new(|| 1)));
    let machine = FakeMachine::new(runtime.clone(), "n1", Ipv4Addr::LOCALHOST.into());
    bench.kubelet_over(&Api::new(), Arc::new(runtime), Arc::new(machine)).await
}

#[tokio::test]
async fn logs_of_the_node_are_listed_and_read_by_the_api_server_alone() {
    let bench = Bench::new();
    let kubelet = node(&bench).await;
    symlink("ns_pod", bench.path("var/log/pods/link")).unwrap();
    for path in ["/logs", "/logs/"] {
        let answer = bench.open(kubelet.port, path, true).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (200, &"text/html; charset=utf-8".parse().unwrap())
        );
        let page = answer.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page);
        let entry = |name: &str| format!("<a href=\"{name}\">{name}</a>\n");
        assert!(page.contains(&[entry("messages"), entry("page.html"), entry("pods/")].concat()), "{page}");
    }
    for (path, code, text) in [
        ("/logs/messages", 200, "kernel: hello\n"),
        ("/logs/mess%61ges", 200, "kernel: hello\n"),
        ("/logs/pods/ns_pod/0.log", 200, "from the pod\n"),
        // A link that stays below the directory.
        ("/logs/pods/link/0.log", 200, "from the pod\n"),
        ("/logs/none", 404, "404 page not found"),
        ("/logs/messages/x", 404, "404 page not found"),
    ] {
        assert_eq!(bench.get(kubelet.port, path, true).await, (code, text.to_owned()), "{path}");
        assert_eq!(bench.get(kubelet.port, path, false).await.0, 401, "{path}");
    }
    // Logs are read through the API server: a browser must not take them for one of its pages.
    let page = bench.open(kubelet.port, "/logs/page.html", true).await;
    assert_eq!(page.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(page.headers()["x-content-type-options"], "nosniff");
    let (code, why) = bench.get(kubelet.port, "/logs/?query=kubelet", true).await;
    assert!(code == 501 && why.contains("not served"), "{code} {why}");
    kubelet.stop().await;
}

#[tokio::test]
async fn paths_and_links_out_of_the_directory_of_logs_lead_nowhere() {
    let bench = Bench::new();
    let kubelet = node(&bench).await;
    let logs = bench.path("var/log");
    symlink("../secret", logs.join("relative")).unwrap();
    symlink(bench.path("var/secret"), logs.join("absolute")).unwrap();
    symlink("..", logs.join("up")).unwrap();
    symlink("pods/../../secret", logs.join("through")).unwrap();
    symlink("/proc/self/root/etc/passwd", logs.join("magic")).unwrap();
    symlink("loop", logs.join("loop")).unwrap();
    for path in [
        "/logs/../secret",
        "/logs/%2e%2e/secret",
        "/logs/%2E%2E%2Fsecret",
        "/logs/pods/..%2f..%2fsecret",
        "/logs/pods/../../secret",
        "/logs//../secret",
        "/logs/relative",
        "/logs/absolute",
        "/logs/up/secret",
        "/logs/up/",
        "/logs/through",
        "/logs/magic",
        "/logs/loop",
        "/logs/messages%00",
    ] {
        let (code, text) = bench.get(kubelet.port, path, true).await;
        assert!(matches!(code, 400 | 403 | 404), "{path}: {code}");
        assert!(!text.contains("secret") && !text.contains("root:"), "{path}: {text}");
    }
    // Twice encoded, it is a name.
    assert_eq!(bench.get(kubelet.port, "/logs/%252e%252e/secret", true).await.0, 404);
    kubelet.stop().await;
}

#[tokio::test]
async fn pipes_sockets_and_devices_among_the_logs_are_not_opened() {
    let bench = Bench::new();
    let kubelet = node(&bench).await;
    let logs = bench.path("var/log");
    mknodat(CWD, logs.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = UnixListener::bind(logs.join("socket")).unwrap();
    symlink("pipe", logs.join("link")).unwrap();
    let mut names = vec!["pipe", "socket", "link"];
    // Takes root: the device is /dev/zero, which never ends.
    if mknodat(CWD, logs.join("zero"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 5)).is_ok() {
        names.push("zero");
    }
    for name in names {
        let path = format!("/logs/{name}");
        let answer = bench.get(kubelet.port, &path, true);
        let (code, text) = tokio::time::timeout(Duration::from_secs(20), answer).await.expect(name);
        assert_eq!(
            (code, text.as_str()),
            (403, "403 Forbidden: neither a regular file nor a directory"),
            "{name}"
        );
    }
    kubelet.stop().await;
}

#[tokio::test]
async fn huge_log_is_sent_in_pieces_to_a_few_readers_at_once() {
    let bench = Bench::new();
    let kubelet = node(&bench).await;
    let huge =
        OpenOptions::new().create(true).truncate(true).write(true).open(bench.path("var/log/huge")).unwrap();
    // A hole of 4 TiB takes no place on the disk, and would not fit into memory.
    huge.set_len(4 << 40).unwrap();
    let mut open = Vec::new();
    for _ in 0..limits::NODE_LOG_STREAMS {
        let answer = bench.open(kubelet.port, "/logs/huge", true).await;
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        let mut read = 0;
        while read < 1 << 20 {
            read += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        }
        open.push(body);
    }
    assert_eq!(bench.open(kubelet.port, "/logs/huge", true).await.status(), 429);
    // Readers that disconnect free their places.
    drop(open);
    while bench.open(kubelet.port, "/logs/messages", true).await.status() != 200 {}
    kubelet.stop().await;
}

#[tokio::test]
async fn log_that_grows_while_it_is_read_ends() {
    let bench = Bench::new();
    let kubelet = node(&bench).await;
    let path = bench.path("var/log/growing");
    let line = "x".repeat(1 << 20);
    fs::write(&path, line.repeat(8)).unwrap();
    let answer = bench.open(kubelet.port, "/logs/growing", true).await;
    assert_eq!(answer.headers()["content-length"], (8 << 20).to_string());
    let mut body = answer.into_body();
    let mut read = body.frame().await.unwrap().unwrap().into_data().unwrap().len();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(line.as_bytes()).unwrap();
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(read, 8 << 20);
    kubelet.stop().await;
}

#[tokio::test]
async fn log_that_is_cut_off_does_not_look_complete() {
    let bench = Bench::new();
    let kubelet = node(&bench).await;
    let path = bench.path("var/log/rotated");
    let log = OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    // More than all buffers on the way to the reader hold.
    log.set_len(1 << 30).unwrap();
    let mut body = bench.open(kubelet.port, "/logs/rotated", true).await.into_body();
    body.frame().await.unwrap().unwrap();
    log.set_len(0).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.push(frame.map(|frame| frame.into_data().unwrap().len()));
    }
    let (last, others) = frames.split_last().unwrap();
    assert!(last.is_err() && others.iter().all(Result::is_ok), "{last:?}");
    kubelet.stop().await;
}
