//! A malicious conversion webhook, from a user who can write CustomResourceDefinitions, or who has taken over
//! the server behind one.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests_e2e::lab::CLIENT_IP;
use tests_e2e::{Cluster, Lab, eventually};

use crate::attack::attacker::{Attacker, apply, attack, base64, issued, start};
use crate::attack::kubelet::{Hostile, hostile, memory};

const PORT: u16 = 8443;
/// Number of concurrent calls of one webhook that one account may have.
const SHARE: usize = 8;
const MORE_THAN_A_SHARE: usize = SHARE + 20;

struct Converted<'a> {
    cluster: &'a Cluster<'a>,
    administrator: Attacker<'a>,
    /// Another account with the same permissions.
    neighbour: Attacker<'a>,
}

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_hostile_webhook_changes_only_what_it_converts() -> Result<()> {
    let lab = Lab::new()?;
    let cluster = Cluster::with(&lab, &["--log", "trace"])?;
    let authority = std::fs::read(lab.data_dir().join("pki/ca.crt")).context("cannot read ca.crt")?;
    let bundle = base64(&authority)?;
    apply(&cluster, "crd.yaml", &definition(&bundle))?;
    // kubectl fails while there are no conditions: they are `null` then, as in Kubernetes.
    eventually("the definition to be established", || {
        cluster.kubectl("wait crd/things.example.org --for=condition=Established --timeout=60s").map(Some)
    })?;
    let thing =
        "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one, namespace: default}\nspec: {a: 1}\n";
    // The definition may be served a moment later than it claims.
    eventually("the kind to be served", || apply(&cluster, "thing.yaml", thing).map(Some))?;
    for account in ["default administrator", "kube-public neighbour"] {
        let (namespace, name) = account.split_once(' ').context("two words")?;
        cluster.kubectl(&format!("create serviceaccount {name} -n {namespace}"))?;
        let line = format!(
            "create clusterrolebinding {name} --clusterrole=cluster-admin --serviceaccount={namespace}:{name}"
        );
        cluster.kubectl(&line)?;
    }
    let administrator = Attacker::service_account(&cluster, "default", "administrator")?;
    let neighbour = Attacker::service_account(&cluster, "kube-public", "neighbour")?;
    attack(
        &cluster,
        &Converted { cluster: &cluster, administrator, neighbour },
        &[
            ("a redirect is not followed", &redirect),
            ("the identity of an object cannot be changed", &rename),
            ("an endless answer is cut off", &endless),
            ("a silent webhook delays no other request", &silent),
        ],
    )
}

fn definition(bundle: &str) -> String {
    format!(
        r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: things.example.org}}
spec:
  group: example.org
  scope: Namespaced
  names: {{plural: things, singular: thing, kind: Thing, listKind: ThingList}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
  - name: v2
    served: true
    storage: false
    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {{url: "https://{CLIENT_IP}:{PORT}/convert", caBundle: {bundle}}}
"#
    )
}

impl Converted<'_> {
    fn hostile(&self, behaviour: &str) -> Result<Hostile> {
        let dir = issued(self.cluster, "webhook", CLIENT_IP)?;
        hostile(self.cluster, behaviour, PORT, &dir.join("serving.crt"), &dir.join("serving.key"))
    }

    /// Reads the object in the other version.
    fn converted(&self) -> Result<crate::attack::attacker::Answer> {
        self.administrator.get("/apis/example.org/v2/namespaces/default/things/one")
    }

    /// Checks that the stored object is unchanged and is served to another account.
    fn untouched(&self) -> Result<()> {
        let answer = self.neighbour.get("/apis/example.org/v1/namespaces/default/things/one")?;
        ensure!(answer.status == 200, "the stored version is answered with {}", answer.status);
        let object: Value = serde_json::from_str(&answer.body).context("the object is not JSON")?;
        let (meta, spec) = (&object["metadata"], &object["spec"]);
        let same = meta["name"] == "one" && meta["namespace"] == "default" && spec["a"] == 1;
        ensure!(same, "the object changed: {object}");
        Ok(())
    }
}

fn redirect(converted: &Converted<'_>) -> Result<()> {
    let hostile = converted.hostile("redirect")?;
    let answer = converted.converted()?;
    ensure!(answer.status == 500, "a redirect was answered with {}", answer.status);
    ensure!(!answer.headers.contains("location:"), "the redirect was passed on: {}", answer.headers);
    ensure!(
        hostile.requests_received().contains("/convert"),
        "nobody asked: {}",
        hostile.requests_received()
    );
    ensure!(
        !hostile.requests_received().contains("/stolen"),
        "the redirect was followed: {}",
        hostile.requests_received()
    );
    ensure!(
        !hostile.requests_received().contains("Bearer"),
        "the caller's token was passed on: {}",
        hostile.requests_received()
    );
    // Otherwise a user who writes webhooks and reads logs could read answers of servers that only the API
    // server can reach.
    let log = std::fs::read(converted.cluster.log_file()).context("cannot read the log")?;
    let log = String::from_utf8_lossy(&log);
    ensure!(log.contains("TRACE"), "the log is not that of the level trace");
    ensure!(!log.contains("whispered"), "the log has what the webhook answered");
    ensure!(!answer.body.contains("whispered"), "the caller sees what the webhook answered: {}", answer.body);
    converted.untouched()
}

fn rename(converted: &Converted<'_>) -> Result<()> {
    let _hostile = converted.hostile("rename")?;
    let answer = converted.converted()?;
    ensure!(answer.refused(), "another object came: {}", start(&answer.body));
    converted.untouched()
}

fn endless(converted: &Converted<'_>) -> Result<()> {
    let _hostile = converted.hostile("endless")?;
    let before = memory(converted.cluster)?;
    let answer = converted.converted()?;
    ensure!(answer.refused(), "an answer without end was believed: {}", start(&answer.body));
    let grown = memory(converted.cluster)?.saturating_sub(before);
    ensure!(grown < 32 << 20, "an answer without end cost {} MiB", grown >> 20);
    converted.untouched()
}

fn silent(converted: &Converted<'_>) -> Result<()> {
    let hostile = converted.hostile("silent")?;
    let mut waiting = Vec::new();
    for _ in 0..MORE_THAN_A_SHARE {
        let mut curl = converted.administrator.curl();
        curl.args(["--max-time", "60", "-o", "/dev/null"]);
        curl.arg(format!("{}/apis/example.org/v2/namespaces/default/things", crate::attack::attacker::API));
        waiting.push(curl.stdout(std::process::Stdio::null()).spawn().context("cannot start curl")?);
    }
    let outcome = eventually("a share of calls to wait", || {
        Ok((hostile.requests_received().matches("/convert").count() >= SHARE).then_some(()))
    })
    .and_then(|()| {
        // This account has used up its share of the calls, and nothing else.
        let own = converted.converted()?;
        ensure!(own.status == 429, "calls are left: {}", own.status);
        let path = "/apis/example.org/v1/namespaces/default/things/one";
        let own = converted.administrator.get(path)?;
        ensure!(own.status == 200, "the stored version is answered with {}", own.status);
        converted.untouched()?;
        converted.cluster.kubectl("get things.v1.example.org one").map(drop)
    });
    for mut curl in waiting {
        let _ = curl.kill();
        curl.wait().context("cannot wait for curl")?;
    }
    outcome
}
