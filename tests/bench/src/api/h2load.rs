//! The same requests with `h2load`, which anyone can repeat: `h2load -n 20000 -c 16 -m 4`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::client::{Call, Connection};
use super::server::{EtcdServer, Running, StoreKind};
use super::{BYTES, BYTES_PER_SECOND, PER_SECOND, SUITE, text, wants};
use crate::row::Report;
use crate::subject::{Plan, Subject};

/// Number of objects that are created and then listed.
const OBJECTS: usize = 20_000;
/// The media type of bodies.
const JSON: &str = "content-type: application/json";
/// `metadata.name` of the object that is read.
const ONE: &str = "one";

/// Path of a kind's collection, and an object as it is posted.
struct Kind {
    name: &'static str,
    path: &'static str,
    body: Value,
}

fn kinds() -> [Kind; 2] {
    let payload = "x".repeat(840);
    [
        Kind {
            name: "configmap",
            path: "/api/v1/namespaces/default/configmaps",
            body: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "load-"},
                "data": {"payload": payload}}),
        },
        Kind {
            name: "custom",
            path: "/apis/bench.example.com/v1/namespaces/default/widgets",
            body: json!({"apiVersion": "bench.example.com/v1", "kind": "Widget",
                "metadata": {"generateName": "load-"}, "spec": {"payload": payload, "size": 3}}),
        },
    ]
}

/// Measures create, get and list with `h2load`, as a ServiceAccount with a token.
pub fn run(report: &Report, plan: &Plan) -> Result<()> {
    for store in [StoreKind::Embedded, StoreKind::Etcd] {
        if store == StoreKind::Embedded || wants(plan, Subject::Etcd) {
            of_store(report, plan, store)?;
        }
    }
    Ok(())
}

fn of_store(report: &Report, plan: &Plan, store: StoreKind) -> Result<()> {
    let (directory, runtime) = (super::directory()?, super::runtime()?);
    let etcd = match store {
        StoreKind::Embedded => None,
        StoreKind::Etcd => Some(EtcdServer::start(directory.path())?),
    };
    let url = etcd.as_ref().map(|etcd| etcd.url.as_str());
    let hawser = Running::hawser(&directory.path().join("hawser"), url)?;
    let connection = runtime.block_on(hawser.target.connect(1))?.remove(0);
    let token = runtime.block_on(prepare(&connection))?;
    let count = plan.choose(OBJECTS / 4, OBJECTS);
    for kind in kinds() {
        let load = Load { hawser: &hawser, token: &token, kind: &kind, count };
        load.run(report, plan, directory.path(), (&runtime, &connection), store)?;
    }
    Ok(())
}

/// The load of one kind.
struct Load<'a> {
    hawser: &'a Running,
    token: &'a str,
    kind: &'a Kind,
    count: usize,
}

impl Load<'_> {
    fn run(
        &self,
        report: &Report,
        plan: &Plan,
        directory: &Path,
        (runtime, connection): (&Runtime, &Connection),
        store: StoreKind,
    ) -> Result<()> {
        let path = self.kind.path;
        let file = directory.join("body.json");
        fs::write(&file, self.kind.body.to_string()).context("cannot write a body")?;
        let mut one = self.kind.body.clone();
        one["metadata"] = json!({"name": ONE});
        runtime.block_on(connection.read(Call::post(path, Bytes::from(one.to_string()))))?;
        let case = |name: &str| format!("h2load_{name}/object={}/store={}", self.kind.name, store.name());
        let rounds = plan.choose(1, 3);
        let row = |name: &str, rates: &[f64]| report.row(SUITE, &case(name), "hawser", PER_SECOND, rates);
        let repeat = |args: &[&str], path: &str| {
            (0..rounds).map(|_| self.h2load(args, path)).collect::<Result<Vec<_>>>()
        };
        let body = text(&file);
        let count = self.count.to_string();
        let created = repeat(&["-n", &count, "-d", &body, "-H", JSON], path)?;
        row("create", &created.iter().map(|(rate, _)| *rate).collect::<Vec<_>>())?;
        report.row(SUITE, &case("create"), "hawser", BYTES, &[self.hawser.resident()?])?;
        let got = repeat(&["-n", &count], &format!("{path}/{ONE}"))?;
        row("get", &got.iter().map(|(rate, _)| *rate).collect::<Vec<_>>())?;
        let listed = self.h2load(&["-n", "16"], &format!("{path}?limit={OBJECTS}"))?;
        report.row(SUITE, &case("list"), "hawser", BYTES_PER_SECOND, &[listed.1])?;
        report.row(SUITE, &case("list"), "hawser", BYTES, &[self.hawser.resident()?])
    }

    /// Runs h2load; returns requests per second and bytes per second.
    fn h2load(&self, args: &[&str], path: &str) -> Result<(f64, f64)> {
        let url = format!("https://{}{path}", self.hawser.target.address);
        let authorization = format!("authorization: Bearer {}", self.token);
        let output = Command::new("h2load")
            .args(["-c", "16", "-m", "4", "-H", &authorization])
            .args(args)
            .arg(&url)
            .output()
            .context("cannot run h2load; `cargo xtask setup` installs it")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = said.contains(" 0 failed, 0 errored") && said.contains("0 4xx, 0 5xx");
        ensure!(output.status.success() && failed, "h2load {args:?} {path}: {said}");
        figures(&said).with_context(|| format!("h2load said: {said}"))
    }
}

/// Parses a line such as `finished in 2.65s, 7555.87 req/s, 8.39MB/s`, where `MB` means 2^20 bytes.
fn figures(said: &str) -> Option<(f64, f64)> {
    let line = said.lines().find_map(|line| line.strip_prefix("finished in "))?;
    let mut parts = line.split(", ").skip(1);
    let rate = parts.next()?.strip_suffix(" req/s")?.parse().ok()?;
    let speed = parts.next()?.strip_suffix("B/s")?;
    let units = [('G', 30), ('M', 20), ('K', 10)];
    let unit = units.iter().find(|(unit, _)| speed.ends_with(*unit));
    let number: f64 = speed.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
    Some((rate, number * unit.map_or(1.0, |(_, power)| f64::from(1_u32 << power))))
}

/// Creates the custom kind and a ServiceAccount with all permissions; returns its token.
async fn prepare(connection: &Connection) -> Result<String> {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "payload": {"type": "string"}, "size": {"type": "integer", "minimum": 1, "default": 1}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.bench.example.com"},
        "spec": {"group": "bench.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let account = json!({"metadata": {"name": "bench"}});
    let binding = json!({"metadata": {"name": "bench"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "bench", "namespace": "default"}]});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for (path, object) in [
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition),
        (accounts, account),
        ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
    ] {
        connection.read(Call::post(path, Bytes::from(object.to_string()))).await?;
    }
    let request = json!({"spec": {"expirationSeconds": 86_400}}).to_string();
    let answer = connection.read(Call::post(format!("{accounts}/bench/token"), request.into())).await?;
    let answer: Value = serde_json::from_slice(&answer).context("the token is not JSON")?;
    // The kind is served shortly after its definition exists.
    for _ in 0..100 {
        if connection.ask(Call::get(kinds()[1].path)).await?.0.is_success() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Ok(answer["status"]["token"].as_str().context("there is no token")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_parsed_from_the_output() {
        let said = "\nfinished in 2.65s, 7555.87 req/s, 8.50MB/s\nrequests: 20000 total";
        assert_eq!(figures(said), Some((7555.87, 8.5 * 1_048_576.0)));
        assert_eq!(figures("finished in 1s, 10.00 req/s, 512B/s"), Some((10.0, 512.0)));
        assert_eq!(figures("nothing"), None);
    }
}
