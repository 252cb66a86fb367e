//! `proxy` of pods and Services: what Kubernetes' own tests ask of it (`Proxy version v1`), what the pods
//! see of their callers, and what hostile pods and tenants try.

use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::api::{Patch, PatchParams};
use tokio::task::JoinSet;

use super::workloads::Workloads;
use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

type Dialled = Arc<Mutex<Vec<(String, Transport)>>>;

/// A server, a pod `p` at 192.0.2.10 and a Service `s` whose endpoint it is.
async fn start() -> (Running, Dialled) {
    let dialled = Dialled::default();
    let running = {
        let dialled = Arc::clone(&dialled);
        Running::start_async(async |pki: &Pki| {
            let workloads = Workloads { dialled, ..Workloads::start(pki).await };
            Kubelets::with_dial(Arc::new(workloads))
        })
        .await
    };
    populate(&running.client).await;
    let pods: Api<Pod> = Api::default_namespaced(running.client.clone());
    let pod = json!({"metadata": {"name": "porter"}, "spec": {"nodeName": "n", "containers": [
        {"name": "side", "image": "i"},
        {"name": "c", "image": "i", "ports": [{"containerPort": 80}, {"containerPort": 160, "name": "dest1"},
            {"containerPort": 460, "name": "tlsdest1"}]}]}});
    pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    place(&running, "porter", "192.0.2.10").await;
    let services: Api<Service> = Api::default_namespaced(running.client.clone());
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [
        {"name": "portname1", "port": 80, "targetPort": "dest1"}, {"name": "portname2", "port": 81, "targetPort": 162},
        {"name": "tlsportname1", "port": 443, "targetPort": "tlsdest1"},
        {"name": "tlsportname2", "port": 444, "targetPort": 462}]}});
    services.create(&PostParams::default(), &object(service)).await.unwrap();
    let ports = json!([{"name": "portname1", "port": 160}, {"name": "portname2", "port": 162},
        {"name": "tlsportname1", "port": 460}, {"name": "tlsportname2", "port": 462}]);
    endpoints(&running, "s", json!([{"addresses": [address("192.0.2.10", "porter")], "ports": ports}])).await;
    let service =
        json!({"metadata": {"name": "echo"}, "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
    services.create(&PostParams::default(), &object(service)).await.unwrap();
    let subset = json!([{"addresses": [address("192.0.2.10", "porter")], "ports": [{"port": 8080}]}]);
    endpoints(&running, "echo", subset).await;
    (running, dialled)
}

/// Gives a pod an address, as its kubelet does.
async fn place(running: &Running, pod: &str, ip: &str) {
    let pods: Api<Pod> = Api::default_namespaced(running.client.clone());
    let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
    pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

fn address(ip: &str, pod: &str) -> Value {
    json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": "default", "name": pod}})
}

async fn endpoints(running: &Running, name: &str, subsets: Value) {
    let api: Api<Endpoints> = Api::default_namespaced(running.client.clone());
    let endpoints = json!({"metadata": {"name": name}, "subsets": subsets});
    api.create(&PostParams::default(), &object(endpoints)).await.unwrap();
}

/// An answer as it came over the connection.
struct Answer {
    code: u16,
    /// Names in small letters.
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn said(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{} {}", self.code, self.body))
    }
}

/// Sends a request of an administrator with these headers and this body.
async fn send(running: &Running, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let mut stream = running.connect().await;
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: api:6443\r\nconnection: close\r\n");
    for header in headers {
        request.push_str(&format!("{header}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // The server ends the connection without more ado.
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, mut body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {text:?}"));
    let mut lines = head.lines();
    let code = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut whole = String::new();
    if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
        while let Some((length, rest)) = body.split_once("\r\n") {
            let length = usize::from_str_radix(length, 16).unwrap();
            whole.push_str(&rest[..length]);
            body = &rest[length + 2..];
        }
    } else {
        whole.push_str(body);
    }
    Answer { code, headers, body: whole }
}

async fn get(running: &Running, path: &str) -> Answer {
    send(running, "GET", path, &[], "").await
}

/// "should proxy through a service and a pod".
#[tokio::test]
async fn pods_and_services_are_reached_by_every_form_of_their_names() {
    let (running, dialled) = start().await;
    let link = |path: &str, to: &str| format!("<a href=\"{path}/{to}\">test</a>");
    let pod = |id: &str| format!("{PODS}/{id}/proxy");
    let service = |id: &str| format!("{SERVICES}/{id}/proxy");
    let table = [
        (service("s:portname1"), "foo".to_owned()),
        (service("http:s:portname1"), "foo".to_owned()),
        (service("s:portname2"), "bar".to_owned()),
        (service("http:s:portname2"), "bar".to_owned()),
        (service("s:81"), "bar".to_owned()),
        (service("https:s:tlsportname1"), "tls baz".to_owned()),
        (service("https:s:tlsportname2"), "tls qux".to_owned()),
        (service("https:s:443"), "tls baz".to_owned()),
        (pod("porter"), link(&pod("porter"), "rewriteme")),
        (pod("porter:1080"), link(&pod("porter:1080"), "rewriteme")),
        (pod("http:porter:1080"), link(&pod("http:porter:1080"), "rewriteme")),
        (pod("porter:160"), "foo".to_owned()),
        (pod("http:porter:160"), "foo".to_owned()),
        (pod("porter:162"), "bar".to_owned()),
        (pod("http:porter:162"), "bar".to_owned()),
        (pod("porter:dest1"), "foo".to_owned()),
        (pod("https:porter:443"), link(&pod("https:porter:443"), "tlsrewriteme")),
        (pod("https:porter:460"), "tls baz".to_owned()),
        (pod("https:porter:462"), "tls qux".to_owned()),
        (pod("https:porter:tlsdest1"), "tls baz".to_owned()),
    ];
    for (path, expected) in &table {
        let answer = get(&running, &format!("{path}/")).await;
        assert_eq!((answer.code, answer.body.as_str()), (200, expected.as_str()), "{path}");
    }
    let dialled = std::mem::take(&mut *dialled.lock().unwrap());
    assert_eq!(dialled.len(), table.len());
    assert!(dialled.iter().all(|(address, _)| address.starts_with("192.0.2.10:")), "{dialled:?}");
    running.stop().await;
}

/// "A set of valid responses are returned for both pod and service ProxyWithPath", and "Proxy".
#[tokio::test]
async fn every_method_is_passed_on_with_path_query_and_body() {
    let (running, _) = start().await;
    for root in [format!("{PODS}/porter:8080/proxy"), format!("{SERVICES}/echo/proxy")] {
        for method in ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"] {
            for path in [
                &format!("/some/path/with/{method}"),
                "/",
                "/a%2Fb//c/?method=x&a=%20+b&timeout=1&command=id&watch=true&labelSelector==&pretty=1",
            ] {
                let answer = send(&running, method, &format!("{root}{path}"), &[], "some body").await;
                assert_eq!(answer.code, 200, "{method} {root}{path}: {}", answer.body);
                if method == "HEAD" {
                    assert_eq!(answer.body, "");
                    continue;
                }
                let said = answer.said();
                assert_eq!(
                    (&said["method"], &said["uri"], &said["body"]),
                    (&method.into(), &path.into(), &"some body".into()),
                    "{root}"
                );
            }
        }
        for method in ["DELETE", "OPTIONS", "PATCH", "POST", "PUT"] {
            let answer = send(&running, method, &format!("{root}?method={method}"), &[], "").await;
            assert_eq!(answer.code, 200, "{method}: {}", answer.body);
            assert_eq!(answer.said()["uri"], format!("/?method={method}"));
        }
        for method in ["GET", "HEAD"] {
            for query in ["", "?method=GET"] {
                let answer = send(&running, method, &format!("{root}{query}"), &[], "").await;
                assert_eq!((answer.code, answer.body.as_str()), (301, ""));
                assert_eq!(answer.header("location"), Some(format!("{root}/{query}").as_str()));
            }
        }
    }
    assert_eq!(send(&running, "TRACE", &format!("{PODS}/porter/proxy/"), &[], "").await.code, 405);
    running.stop().await;
}

#[tokio::test]
async fn unreachable_backend_is_answered_as_in_kubernetes() {
    let (running, dialled) = start().await;
    let unnamed = json!({"metadata": {"name": "none"}, "spec": {"ports": [{"port": 80}]}});
    let services: Api<Service> = Api::default_namespaced(running.client.clone());
    services.create(&PostParams::default(), &object(unnamed)).await.unwrap();
    endpoints(&running, "none", json!([])).await;
    for (path, code, reason, message) in [
        (format!("{PODS}/absent/proxy/"), 404, "NotFound", "pods \"absent\" not found"),
        (format!("{PODS}/p/proxy/"), 400, "BadRequest", "address not allowed"),
        // Nothing of it could be taken back.
        (format!("{PODS}/porter:80/proxy/?dryRun=All"), 400, "BadRequest", "dryRun is not supported"),
        (format!("{SERVICES}/s/proxy/?dryRun=bad"), 400, "BadRequest", "dryRun is not supported"),
        (format!("{PODS}/p/exec?command=c&dryRun=All"), 400, "BadRequest", "dryRun is not supported"),
        (format!("{PODS}/p/attach?dryRun=All"), 400, "BadRequest", "dryRun is not supported"),
        (format!("{PODS}/p/portforward?dryRun=All"), 400, "BadRequest", "dryRun is not supported"),
        (format!("{PODS}/a:b:c:d/proxy/"), 400, "BadRequest", "invalid pod request \"a:b:c:d\""),
        (format!("{PODS}/ftp:porter:21/proxy/"), 400, "BadRequest", "invalid pod request \"ftp:porter:21\""),
        (
            format!("{PODS}/porter:81/proxy/"),
            503,
            "ServiceUnavailable",
            "error trying to reach service: dial tcp 192.0.2.10:81: connect: connection refused",
        ),
        (format!("{SERVICES}/absent/proxy/"), 404, "NotFound", "services \"absent\" not found"),
        (format!("{SERVICES}/absent:80/proxy/"), 404, "NotFound", "services \"absent\" not found"),
        (format!("{SERVICES}/:80/proxy/"), 400, "BadRequest", "invalid service request \":80\""),
        (
            format!("{SERVICES}/s:82/proxy/"),
            503,
            "ServiceUnavailable",
            "no service port 82 found for service \"s\"",
        ),
        (
            format!("{SERVICES}/s/proxy/"),
            503,
            "ServiceUnavailable",
            "no endpoints available for service \"s\"",
        ),
        (
            format!("{SERVICES}/http:s:nope/proxy/"),
            503,
            "ServiceUnavailable",
            "no endpoints available for service \"http:s:nope\"",
        ),
        (
            format!("{SERVICES}/none:80/proxy/"),
            503,
            "ServiceUnavailable",
            "no endpoints available for service \"none\"",
        ),
    ] {
        let answer = get(&running, &path).await;
        let said = answer.said();
        assert_eq!(
            (answer.code, said["kind"].as_str(), said["reason"].as_str(), said["message"].as_str()),
            (code, Some("Status"), Some(reason), Some(message)),
            "{path}"
        );
    }
    assert_eq!(dialled.lock().unwrap().len(), 1, "{dialled:?}");
    running.stop().await;
}

#[tokio::test]
async fn a_pod_sees_its_caller_but_none_of_the_callers_credentials() {
    let (running, _) = start().await;
    let token = running.admin_token().await;
    let headers = [
        &format!("authorization: Bearer {token}"),
        "impersonate-user: system:admin",
        "impersonate-group: system:masters",
        "proxy-authorization: Basic eA==",
        "te: trailers",
        "x-private: of the first hop",
        "connection: x-private",
        "keep-alive: 5",
        "cookie: a=b",
        "x-forwarded-for: 203.0.113.1",
        "x-forwarded-uri: /forged",
        "accept: text/special",
        "user-agent: test",
    ];
    let path = format!("{PODS}/porter:8080/proxy/a%20b/?c");
    let answer = send(&running, "GET", &path, &headers, "").await;
    let said = answer.said();
    let seen = said["headers"].as_object().unwrap();
    let mut names: Vec<&str> = seen.keys().map(String::as_str).collect();
    names.retain(|name| *name != "content-length");
    assert_eq!(
        names,
        ["accept", "cookie", "host", "user-agent", "x-forwarded-for", "x-forwarded-uri"],
        "{said}"
    );
    assert_eq!(seen["host"], json!(["api:6443"]));
    assert_eq!(seen["x-forwarded-for"], json!(["203.0.113.1, 127.0.0.1"]));
    assert_eq!(seen["x-forwarded-uri"], json!([format!("{PODS}/porter:8080/proxy/a%20b/")]));
    running.stop().await;
}

#[tokio::test]
async fn a_pods_answer_passes_but_for_what_it_says_about_the_api_server() {
    let (running, _) = start().await;
    let root = format!("{PODS}/porter:8080/proxy");
    for code in [200, 201, 204, 304, 400, 401, 404, 418, 500, 503] {
        let answer = get(&running, &format!("{root}/answer/{code}?set-cookie=a&set-cookie=b&x-own=1")).await;
        assert_eq!(answer.code, code, "{}", answer.body);
        let cookies = answer.headers.iter().filter(|(name, _)| name == "set-cookie").count();
        assert_eq!((cookies, answer.header("x-own")), (2, Some("1")));
    }
    let hostile = "access-control-allow-origin=*&access-control-allow-credentials=true&alt-svc=h2&\
                   strict-transport-security=max-age=0&clear-site-data=*&service-worker-allowed=/&\
                   connection=x-hop&x-hop=1&keep-alive=9&proxy-authenticate=Basic&audit-id=mine";
    let answer = get(&running, &format!("{root}/answer/200?{hostile}")).await;
    for (name, value) in &answer.headers {
        let known = ["content-type", "content-length", "cache-control", "audit-id", "date", "connection"];
        assert!(known.contains(&name.as_str()), "{name}: {value}");
    }
    assert_ne!(answer.header("audit-id"), Some("mine"));
    running.stop().await;
}

/// Clients such as kubectl show their token wherever they are sent (CVE-2022-3172).
#[tokio::test]
async fn a_hostile_pod_redirects_its_callers_nowhere_but_to_itself() {
    let (running, _) = start().await;
    let root = format!("{PODS}/porter:8080/proxy");
    for code in [300, 301, 302, 303, 305, 307, 308, 399] {
        for (location, sent) in [
            ("/redirected/target/", Some(format!("{root}/redirected/target/"))),
            ("http://192.0.2.10:8080/x", Some(format!("{root}/x"))),
            ("http://api:6443/x", Some(format!("{root}/x"))),
            ("../x", Some("../x".to_owned())),
            ("https://evil.example/", None),
            ("//evil.example/", None),
            ("http://192.0.2.10:8081/", None),
            ("../../../../secrets", None),
            ("/../../../../secrets", None),
        ] {
            let path = format!("{root}/answer/{code}?location={location}");
            let answer = get(&running, &path).await;
            match &sent {
                Some(sent) => {
                    assert_eq!((answer.code, answer.header("location")), (code, Some(sent.as_str())));
                }
                None => {
                    assert_eq!((answer.code, answer.header("location")), (502, None), "{code} {location}");
                    assert_eq!(
                        answer.said()["message"],
                        "the backend attempted to redirect this request, which is not permitted"
                    );
                    assert!(!answer.body.contains("evil"));
                }
            }
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn an_upgrade_is_passed_through_with_its_query() {
    let (running, _) = start().await;
    for (method, path, tls) in [
        ("GET", format!("{PODS}/porter:8080/proxy"), ""),
        ("GET", format!("{PODS}/https:porter:8443/proxy/ws/?a=b"), "ws/?a=b"),
        ("POST", format!("{SERVICES}/echo/proxy/ws?a=b"), "ws?a=b"),
    ] {
        let mut stream = running.connect().await;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: api\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: eA==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_until(&mut stream, &format!("\r\n\r\n/{tls}\n")).await.to_lowercase();
        assert!(head.starts_with("http/1.1 101"), "{path}: {head}");
        for line in ["upgrade: websocket", "sec-websocket-accept: of the pod", "set-cookie: of=pod"] {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
        }
        stream.write_all(b"hello").await.unwrap();
        assert_eq!(read_until(&mut stream, "HELLO").await, "HELLO");
    }
    for (code, answered) in [(200, 500), (302, 500), (403, 403), (500, 500)] {
        let path = format!("{PODS}/porter:8080/proxy/answer/{code}?location=//evil.example/");
        let headers = ["connection: upgrade", "upgrade: websocket"];
        let answer = send(&running, "GET", &path, &headers, "").await;
        assert_eq!(answer.code, answered, "{code}: {}", answer.body);
        if code < 400 {
            let message = format!("Internal error occurred: invalid upgrade response: status code {code}");
            assert_eq!(answer.said()["message"], message);
        }
    }
    running.stop().await;
}

/// A tenant that writes Endpoints, and a kubelet that makes addresses up.
#[tokio::test]
async fn nothing_but_pods_of_the_namespace_is_reached_and_never_the_api_server() {
    let (running, dialled) = start().await;
    let own = running.address.port();
    let cases = [
        // No pod, another pod's address, no such pod, a pod of another namespace.
        json!({"ip": "192.0.2.66"}),
        address("192.0.2.66", "porter"),
        address("192.0.2.10", "absent"),
        json!({"ip": "192.0.2.10", "targetRef": {"kind": "Pod", "namespace": "other", "name": "porter"}}),
        json!({"ip": "192.0.2.10", "targetRef": {"kind": "Pod", "name": "porter"}}),
    ];
    for (index, case) in cases.into_iter().enumerate() {
        let name = format!("tenant-{index}");
        let ports = json!([{"port": 8080}]);
        endpoints(&running, &name, json!([{"addresses": [case], "ports": ports}])).await;
        let answer = get(&running, &format!("{SERVICES}/{name}/proxy/")).await;
        let message = format!("no endpoints available for service \"{name}\"");
        assert_eq!(
            (answer.code, answer.said()["message"].as_str()),
            (503, Some(message.as_str())),
            "{index}"
        );
    }
    let addresses =
        ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"];
    for ip in addresses.into_iter().chain(["10.96.0.1"]) {
        place_raw(&running, ip).await;
        for port in [own, 80, 443] {
            let answer = get(&running, &format!("{PODS}/porter:{port}/proxy/api/v1/secrets")).await;
            let said = answer.said();
            assert_eq!((answer.code, said["message"].as_str()), (400, Some("address not allowed")), "{ip}");
        }
    }
    assert!(dialled.lock().unwrap().is_empty(), "{dialled:?}");
    running.stop().await;
}

/// Gives the pod an address in the store, as validation would not let a kubelet.
async fn place_raw(running: &Running, ip: &str) {
    use apiserver_store::{Op, Write};
    let key = "/registry/pods/default/porter".to_owned();
    let store = running.server.objects().store();
    let kv = store.get(&key).await.unwrap().kv.unwrap();
    let mut pod: Value = serde_json::from_slice(&kv.value).unwrap();
    pod["status"]["podIPs"] = json!([{"ip": ip}]);
    let op = Op::Put { value: Bytes::from(pod.to_string()), ttl_seconds: 0 };
    store.write(Write { key, expected: kv.mod_revision, op }).await.unwrap();
}

#[tokio::test]
async fn a_page_without_an_end_comes_while_it_is_written() {
    let (running, _) = start().await;
    let path = format!("{PODS}/porter:8080/proxy/endless");
    let mut stream = running.connect().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut text, link) = (String::new(), format!("<a href=\"{PODS}/porter:8080/proxy/next\">"));
    while text.matches(&link).count() < 3 {
        text.push_str(&read_until(&mut stream, &link).await);
    }
    drop(stream);
    running.stop().await;
}

#[tokio::test]
async fn a_tenant_needs_the_right_to_the_proxy_and_its_verb() {
    let (running, dialled) = start().await;
    let nobody = "impersonate-user: nobody";
    for (method, verb) in [
        ("GET", "get"),
        ("HEAD", "get"),
        ("POST", "create"),
        ("PUT", "update"),
        ("PATCH", "patch"),
        ("DELETE", "delete"),
    ] {
        for (root, plural) in [(PODS, "pods"), (SERVICES, "services")] {
            let answer = send(&running, method, &format!("{root}/x/proxy/a"), &[nobody], "").await;
            assert_eq!(answer.code, 403, "{method} {plural}");
            if method != "HEAD" {
                let message = format!(
                    "{plural} \"x\" is forbidden: User \"nobody\" cannot {verb} resource \"{plural}/proxy\" in API \
                     group \"\" in the namespace \"default\""
                );
                assert_eq!(answer.said()["message"], message);
            }
        }
    }
    assert!(dialled.lock().unwrap().is_empty());
    running.stop().await;
}

/// Pods that accept requests and never answer.
struct Silent;

#[async_trait]
impl Dial for Silent {
    async fn dial(&self, _: &Peer, _: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        let (near, far) = duplex(1024);
        tokio::spawn(async move {
            let _far = far;
            std::future::pending::<()>().await;
        });
        Ok(Box::new(near))
    }
}

/// A tenant whose pod never answers does not use up the server's files.
#[tokio::test]
async fn one_tenant_has_a_share_of_the_connections_to_pods() {
    let running = Running::start(|_| Kubelets::with_dial(Arc::new(Silent))).await;
    populate(&running.client).await;
    place(&running, "p", "192.0.2.10").await;
    let token = running.admin_token().await;
    let (mut connections, mut requests) = (JoinSet::new(), JoinSet::new());
    for _ in 0..3 {
        let stream = running.connect_with(b"h2", false).await;
        let executor = hyper_util::rt::TokioExecutor::new();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
        connections.spawn(connection);
        for _ in 0..200 {
            let mut sender: hyper::client::conn::http2::SendRequest<Full<Bytes>> = sender.clone();
            let request = Request::get(format!("https://api{PODS}/p/proxy/"))
                .header("authorization", format!("Bearer {token}"))
                .body(Full::default());
            requests.spawn(async move { sender.send_request(request.unwrap()).await.unwrap() });
        }
    }
    // 64 MiB of one account, 144 KiB for each request and its connection.
    for _ in 0..600 - 64 * 1024 / 144 {
        let answer = tokio::time::timeout(Duration::from_secs(60), requests.join_next()).await;
        assert_eq!(answer.expect("a refusal").unwrap().unwrap().status(), 429);
    }
    // An administrator has shares of its own.
    let mut stream = running.connect().await;
    stream.write_all(format!("GET {PODS}/p HTTP/1.1\r\nhost: api\r\n\r\n").as_bytes()).await.unwrap();
    assert!(read_until(&mut stream, "\r\n").await.starts_with("HTTP/1.1 200"));
    drop((requests, connections, stream));
    running.stop().await;
}
