use super::*;

fn runtime() -> FakeRuntime {
    FakeRuntime::new(FakeOptions::new((Ipv4Addr::new(10, 1, 0, 0), 29), Arc::new(|| 7)))
}

fn pod(uid: &str) -> SandboxConfig {
    let labels = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
    SandboxConfig { name: uid.to_owned(), uid: uid.to_owned(), labels, ..SandboxConfig::default() }
}

async fn start(runtime: &FakeRuntime, sandbox: &str, image: &str) -> String {
    let config = ContainerConfig { image: image.to_owned(), ..ContainerConfig::default() };
    let id = runtime.create_container(sandbox, &config, &SandboxConfig::default()).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn addresses_are_not_used_again_at_once_and_run_out() {
    let runtime = runtime();
    let mut seen = Vec::new();
    for uid in ["a", "b"] {
        let id = runtime.run_pod_sandbox(&pod(uid)).await.unwrap();
        seen.extend(runtime.pod_sandbox_status(&id).await.unwrap().ips);
        runtime.remove_pod_sandbox(&id).await.unwrap();
    }
    assert_eq!(seen, ["10.1.0.2", "10.1.0.3"]);
    for uid in ["c", "d", "e", "f", "g"] {
        runtime.run_pod_sandbox(&pod(uid)).await.unwrap();
    }
    let error = runtime.run_pod_sandbox(&pod("h")).await.unwrap_err();
    assert!(error.message.contains("no address"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn scripted_containers_exit_and_become_ready_in_time() {
    let runtime = runtime();
    let job = Behaviour { exits: Some((Duration::from_secs(3), 2)), ..Behaviour::default() };
    runtime.set_behaviour("job", job);
    runtime.set_behaviour("slow", Behaviour { ready_after: Duration::from_secs(5), ..Behaviour::default() });
    let sandbox = runtime.run_pod_sandbox(&pod("a")).await.unwrap();
    let (job, slow) = (start(&runtime, &sandbox, "job").await, start(&runtime, &sandbox, "slow").await);
    let mut hints = runtime.hints();
    hints.mark_unchanged();
    hints.changed().await.unwrap();
    let status = runtime.container_status(&job).await.unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 2));
    let address = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2));
    assert!(!runtime.answers(address));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(runtime.answers(address) && runtime.container_answers(&slow));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_stop_in_time_is_killed() {
    let runtime = runtime();
    runtime
        .set_behaviour("stubborn", Behaviour { stop_takes: Duration::from_secs(60), ..Behaviour::default() });
    let sandbox = runtime.run_pod_sandbox(&pod("a")).await.unwrap();
    let id = start(&runtime, &sandbox, "stubborn").await;
    let before = Instant::now();
    runtime.stop_container(&id, Duration::from_secs(2)).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 2);
    assert_eq!(runtime.container_status(&id).await.unwrap().exit_code, 137);
}

#[tokio::test(start_paused = true)]
async fn calls_fail_as_often_as_asked() {
    let runtime = runtime();
    runtime.fail_next("RunPodSandbox", 1);
    assert!(runtime.run_pod_sandbox(&pod("a")).await.is_err());
    runtime.run_pod_sandbox(&pod("a")).await.unwrap();
    assert_eq!(runtime.calls("RunPodSandbox"), 2);
    assert_eq!(runtime.list_pod_sandboxes(Some("a")).await.unwrap().len(), 1);
    assert_eq!(runtime.list_pod_sandboxes(Some("b")).await.unwrap(), []);
}
