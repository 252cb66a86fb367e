//! Schedulers that are killed, and two that want one Lease.

use controllers_runtime::LeaderElection;

use super::*;

/// The pods of [`schedulers_killed_amid_a_thousand_bindings_bind_no_pod_twice_and_overcommit_no_node`].
const PODS: usize = 1000;

/// Creates nodes with room for exactly these pods, some of which want a host port; and a claim that two pods want, of which
/// only one may have it.
async fn crowd(api: &FakeApi) {
    for node in 0..20 {
        add_node(api, &format!("n{node:02}"), json!({"cpu": "50"})).await;
    }
    for pod in 0..PODS {
        let port = json!([{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}],
            "resources": {"requests": {"cpu": "1"}}}]);
        let fields = if pod < 20 { json!({"spec": {"containers": port}}) } else { json!({}) };
        add_pod(api, &format!("p{pod:04}"), "1", fields).await;
    }
    let spec = json!({"accessModes": ["ReadWriteOncePod"], "storageClassName": "c",
        "resources": {"requests": {"storage": "1Gi"}}});
    let mut claim = json!({"metadata": {"name": "alone", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": spec, "status": {"phase": "Bound"}});
    claim["spec"]["volumeName"] = json!("v");
    let mut volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOncePod"],
        "storageClassName": "c", "capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"namespace": "ns", "name": "alone"}}, "status": {"phase": "Bound"}});
    let made = send(api, "POST", "/api/v1/namespaces/ns/persistentvolumeclaims", &claim).await;
    volume["spec"]["claimRef"]["uid"] = made["metadata"]["uid"].clone();
    send(api, "POST", "/api/v1/persistentvolumes", &volume).await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "alone"}}]);
    for name in ["first", "second"] {
        add_pod(api, name, "0", json!({"spec": {"volumes": volumes}})).await;
    }
}

#[tokio::test(start_paused = true)]
async fn schedulers_killed_amid_a_thousand_bindings_bind_no_pod_twice_and_overcommit_no_node() {
    let api = FakeApi::new();
    crowd(&api).await;
    let mut lives = 0;
    for (writes, last_is_done) in [(1, true), (1, false), (130, true), (257, false), (300, true), (40, false)]
    {
        let (client, mut dead) = api.mortal_client(writes, last_is_done);
        let life = Life::begin(client, ambient(), Config::default());
        if tokio::time::timeout(Duration::from_secs(60), dead.wait_for(|dead| *dead)).await.is_ok() {
            lives += 1;
        }
        drop(life);
        assert_eq!(wrongs(&api), Vec::<String>::new());
    }
    assert_eq!(lives, 6, "each has died at a write");
    let life = Life::begin(api.client(), ambient(), Config::default());
    tokio::time::sleep(Duration::from_secs(30)).await;
    drop(life);
    assert_eq!(wrongs(&api), Vec::<String>::new());
    let waiting = waiting(&api);
    assert!(matches!(waiting.as_slice(), [one] if one == "first" || one == "second"), "{waiting:?}");
}

#[tokio::test(start_paused = true)]
async fn scheduler_that_may_have_lost_its_lease_writes_nothing_and_the_other_goes_on() {
    let api = FakeApi::new();
    add_node(&api, "n", json!({"cpu": "100"})).await;
    let config = |identity: &str| Config {
        leader_election: Some(LeaderElection::new("kube-scheduler", identity)),
        ..Config::default()
    };
    // The first no longer reaches the Lease, but everything else, and its binding hangs for a while.
    let away = Fault { resources: &["leases"], ..Fault::of(Failure::Silence, 20..200) };
    let late = Fault { resources: &["pods/binding"], ..Fault::of(Failure::Hangs(5), 20..200) };
    let line = Line::new(&api, vec![away, late]);
    let mut first = Life::begin(line.client(), ambient(), config("first"));
    line.until(5).await;
    let second = Line::new(&api, Vec::new());
    let _second = Life::begin(second.client(), ambient(), config("second"));
    for number in 0..70 {
        add_pod(&api, &format!("p{number:02}"), "1", json!({})).await;
        line.until(6 + number).await;
    }
    line.until(90).await;
    // The last renewal was before second 20, and lasts for 10 s.
    let late: Vec<_> =
        line.asked(31..90).into_iter().filter(|one| one.verb != "get" && one.writes()).collect();
    assert!(late.iter().all(|one| one.plural() == "leases"), "{late:?}");
    assert!(
        line.asked(0..20).iter().any(|one| one.resource == "pods/binding"),
        "the first has worked before"
    );
    assert!((&mut first.0).await.unwrap().is_err(), "it ends when it has lost the lease");
    assert_eq!((waiting(&api), wrongs(&api)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn clocks_that_jump_by_an_hour_change_neither_back_off_nor_lease() {
    for jump in [3600, -3600] {
        let (api, clock) = (FakeApi::new(), WallClock::new());
        let line = Line::new(&api, Vec::new());
        let leader_election = Some(LeaderElection::new("kube-scheduler", "one"));
        let config = Config { leader_election, ..Config::default() };
        let life = Life::begin(line.client(), clock.ambient(), config);
        add_node(&api, "n", json!({"cpu": "1"})).await;
        add_pod(&api, "large", "2", json!({})).await;
        line.until(5).await;
        clock.jump(jump);
        // The node grows: the pod is tried again at once.
        let grown = json!({"status": {"allocatable": {"cpu": "3"}}});
        send(&api, "PATCH", "/api/v1/nodes/n/status", &grown).await;
        add_pod(&api, "small", "1", json!({})).await;
        line.until(16).await;
        assert_eq!((waiting(&api), wrongs(&api)), (vec![], vec![]), "{jump}");
        assert!(line.asked(0..16).iter().filter(|one| one.resource == "pods/binding").count() == 2);
        line.until(100).await;
        assert!(!life.0.is_finished(), "{jump}: it holds the Lease");
        assert!(line.asked(20..100).iter().all(|one| one.plural() == "leases"), "{jump}: it is at rest");
    }
}
