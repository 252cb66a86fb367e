"""helm 4 against `hawser apiserver`: its own library, which the package helm-sdkpy carries."""

import asyncio
import base64
import os
import random
import threading
import unittest
from pathlib import Path

import helm_sdkpy as helm
import yaml
from kubernetes import client, dynamic, watch
from support import Case

CHART = str(Path(__file__).parent / "charts" / "shop")

DEPLOY = Path(__file__).parents[3] / "deploy"

INVALID = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: broken}\ndata: {'not a key': x}\n"


class Helm:
    """helm's actions in a namespace, which are not waited for unless the test says so."""

    def __init__(self, namespace):
        self.configuration = helm.Configuration(namespace=namespace, kubeconfig=os.environ["KUBECONFIG"])

    def run(self, action, *args, **options):
        return asyncio.run(action(self.configuration).run(*args, **options))

    def install(self, name, values=None, chart=CHART, **options):
        options = {"wait": False, "create_namespace": True, "disable_openapi_validation": False} | options
        return self.run(helm.Install, name, chart, values, **options)

    def upgrade(self, name, values=None, **options):
        options = {"wait": False, "disable_openapi_validation": False} | options
        return self.run(helm.Upgrade, name, CHART, values, **options)

    def uninstall(self, name):
        return self.run(helm.Uninstall, name, wait=True, timeout=60)

    def history(self, name):
        """The state of each revision, oldest first."""
        revisions = sorted(self.run(helm.History, name), key=lambda release: release["version"])
        return [release["info"]["status"] for release in revisions]


def owners(obj):
    """Which managers wrote an object, and how."""
    return {(entry.manager, entry.operation) for entry in obj.metadata.managed_fields}


class Releases(Case):
    def setUp(self):
        self.apps = client.AppsV1Api(self.client)
        self.dynamic = dynamic.DynamicClient(self.client)

    def data(self, namespace, name):
        return self.core.read_namespaced_config_map(name, namespace).data

    def password(self, namespace, name):
        return self.core.read_namespaced_secret(f"{name}-password", namespace).data["password"]

    def kept(self, namespace):
        """helm's own records: the state by revision."""
        secrets = self.core.list_namespaced_secret(namespace, label_selector="owner=helm").items
        self.assertTrue(all(secret.type == "helm.sh/release.v1" for secret in secrets))
        return {int(s.metadata.labels["version"]): s.metadata.labels["status"] for s in secrets}

    def test_a_release_through_its_life_with_client_side_apply(self):
        self.life("life-client", server_side_apply=False)

    def test_a_release_through_its_life_with_server_side_apply(self):
        self.life("life-server", server_side_apply=True)

    def life(self, namespace, server_side_apply):
        shop = Helm(namespace)
        release = shop.install("a", {"replicas": 2}, server_side_apply=server_side_apply)
        self.assertEqual(release["info"]["status"], "deployed")
        self.assertEqual(release["info"]["notes"], "a listens on port 80.\n")
        self.assertEqual(release["apply_method"], "ssa" if server_side_apply else "csa")
        self.installed(namespace, "Apply" if server_side_apply else "Update")
        self.assertEqual(shop.run(helm.GetValues, "a"), {"replicas": 2})
        self.upgraded(shop, namespace)
        self.assertEqual(shop.history("a"), ["superseded", "superseded", "deployed"])
        self.assertEqual(self.kept(namespace), {1: "superseded", 2: "superseded", 3: "deployed"})
        self.assertEqual([release["name"] for release in shop.run(helm.List)], ["a"])
        self.removed(shop, namespace)

    def installed(self, namespace, operation):
        """What the first revision makes."""
        deployment = self.apps.read_namespaced_deployment("a", namespace)
        self.assertEqual(deployment.spec.replicas, 2)
        self.assertEqual(deployment.metadata.labels["app.kubernetes.io/managed-by"], "Helm")
        self.assertEqual(deployment.metadata.annotations["meta.helm.sh/release-namespace"], namespace)
        self.assertEqual({how for _, how in owners(deployment)}, {operation})
        settings = self.data(namespace, "a-settings")
        self.assertTrue(settings["kubernetes"].startswith("v1.36."))
        # The chart's own definition is asked for after it was made.
        found = [settings[kind] for kind in ("deployments", "beta", "tills")]
        self.assertEqual(found, ["true", "false", "true"])
        self.assertIn("kube-system,", settings["namespaces"])
        till = self.dynamic.resources.get(api_version="shop.example.com/v1", kind="Till").get("a", namespace)
        self.assertEqual(till.spec.to_dict(), {"currency": "euro", "drawers": 2})
        self.assertEqual(self.data(namespace, "a-pre-install"), {"revision": "1"})
        self.assertEqual(self.data(namespace, "a-post-install"), {"revision": "1"})
        self.assertEqual(self.kept(namespace), {1: "deployed"})

    def upgraded(self, shop, namespace):
        """Values that change, go and stay; an object that comes and goes."""
        password = self.password(namespace, "a")
        extra = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: extra}\n"
        shop.upgrade("a", {"settings": {"colour": None, "shape": "round"}, "extra": extra}, reuse_values=True)
        settings = self.data(namespace, "a-settings")
        self.assertEqual((settings.get("colour"), settings["shape"], settings["revision"]), (None, "round", "2"))
        self.assertEqual(self.apps.read_namespaced_deployment("a", namespace).spec.replicas, 2)
        self.assertEqual(self.password(namespace, "a"), password)
        self.assertIsNone(self.data(namespace, "extra"))
        self.assertEqual(self.data(namespace, "a-pre-upgrade"), {"revision": "2"})
        shop.upgrade("a", {"replicas": 4, "port": 8080}, reset_values=True)
        self.refused(404, self.core.read_namespaced_config_map, "extra", namespace)
        self.assertEqual(self.apps.read_namespaced_deployment("a", namespace).spec.replicas, 4)
        ports = self.core.read_namespaced_service("a", namespace).spec.ports
        self.assertEqual([(port.port, port.target_port) for port in ports], [(8080, "http")])
        self.assertEqual(self.password(namespace, "a"), password)

    def removed(self, shop, namespace):
        """Everything goes, but for the definition and what hooks made."""
        shop.uninstall("a")
        selector = "app.kubernetes.io/instance=a"
        for listed in (
            self.core.list_namespaced_config_map(namespace, label_selector=selector),
            self.core.list_namespaced_secret(namespace),
            self.core.list_namespaced_service(namespace),
            self.apps.list_namespaced_deployment(namespace),
            self.dynamic.resources.get(api_version="shop.example.com/v1", kind="Till").get(namespace=namespace),
        ):
            self.assertEqual(listed.items, [])
        self.assertEqual(self.data(namespace, "a-post-delete"), {"revision": "3"})
        with self.assertRaises(helm.ReleaseNotFoundError):
            shop.run(helm.Status, "a")
        definitions = client.ApiextensionsV1Api(self.client).list_custom_resource_definition()
        self.assertEqual([definition.metadata.name for definition in definitions.items], ["tills.shop.example.com"])

    def test_fields_of_another_manager_are_taken_by_force_only(self):
        shop = Helm("conflicts")
        shop.install("a", server_side_apply=True)
        theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 5},
                  "metadata": {"name": "a", "namespace": "conflicts"}}
        kind = self.dynamic.resources.get(api_version="apps/v1", kind="Deployment")
        kind.server_side_apply(body=theirs, field_manager="scaler", force_conflicts=True)
        with self.assertRaisesRegex(helm.UpgradeError, r'conflict with "scaler".*\.spec\.replicas'):
            shop.upgrade("a", {"replicas": 3})
        self.assertEqual(shop.history("a"), ["deployed", "failed"])
        self.assertEqual(self.apps.read_namespaced_deployment("a", "conflicts").spec.replicas, 5)
        shop.upgrade("a", {"replicas": 3}, force_conflicts=True)
        self.assertEqual(shop.history("a"), ["superseded", "failed", "deployed"])
        self.assertEqual(self.apps.read_namespaced_deployment("a", "conflicts").spec.replicas, 3)

    def test_objects_of_others_are_adopted_when_told_to(self):
        shop = Helm("default")
        theirs = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="adopted-settings"), data={"theirs": "x"})
        self.core.create_namespaced_config_map("default", theirs)
        with self.assertRaisesRegex(helm.InstallError, "invalid ownership metadata"):
            shop.install("adopted")
        self.refused(404, self.apps.read_namespaced_deployment, "adopted", "default")
        shop.install("adopted", server_side_apply=True, take_ownership=True)
        found = self.core.read_namespaced_config_map("adopted-settings", "default")
        self.assertEqual(found.metadata.annotations["meta.helm.sh/release-name"], "adopted")
        self.assertEqual((found.data["theirs"], found.data["colour"]), ("x", "red"))
        shop.uninstall("adopted")

    def test_a_failed_upgrade_is_recorded_and_rolled_back(self):
        shop = Helm("failures")
        shop.upgrade("a", install=True, create_namespace=True)
        broken = {"replicas": 7, "settings": {"colour": "blue"}, "extra": INVALID}
        with self.assertRaisesRegex(helm.UpgradeError, "a valid config key must consist of"):
            shop.upgrade("a", broken, server_side_apply=True)
        self.assertEqual(shop.history("a"), ["deployed", "failed"])
        self.assertEqual(self.kept("failures"), {1: "deployed", 2: "failed"})
        # It waits for what it rolls back to.
        self.ready("failures")
        with self.assertRaisesRegex(helm.UpgradeError, "a valid config key must consist of"):
            shop.upgrade("a", broken, rollback_on_failure=True, timeout=120)
        self.assertEqual(shop.history("a"), ["superseded", "failed", "failed", "deployed"])
        self.assertEqual(self.apps.read_namespaced_deployment("a", "failures").spec.replicas, 1)
        self.assertEqual(self.data("failures", "a-settings")["colour"], "red")
        self.assertEqual(self.data("failures", "a-pre-rollback"), {"revision": "1"})
        shop.upgrade("a", {"replicas": 2})
        self.assertEqual(self.apps.read_namespaced_deployment("a", "failures").spec.replicas, 2)

    def test_what_the_server_does_not_know_or_cannot_keep_is_refused(self):
        shop = Helm("refusals")
        with self.assertRaisesRegex(helm.InstallError, 'no matches for kind "Nothing"'):
            shop.install("unknown-kind", {"extra": "apiVersion: v1\nkind: Nothing\nmetadata: {name: x}\n"})
        with self.assertRaisesRegex(helm.InstallError, "(?s)replicas.*minimum"):
            shop.install("schema", {"replicas": -1})
        noise = base64.b64encode(random.Random(1).randbytes(400_000)).decode()
        with self.assertRaisesRegex(helm.InstallError, "Too long: may not be more than 1048576 bytes"):
            shop.install("large", {"settings": {"noise": noise}})
        self.assertEqual([release["name"] for release in shop.run(helm.List, all=True) or []
                          if release["info"]["status"] == "deployed"], [])

    def test_helm_waits_for_hooks_and_for_readiness(self):
        shop = Helm("waiting")
        self.ready("waiting")
        job = threading.Thread(target=self.complete_job)
        job.start()
        release = shop.install("a", {"job": True}, wait=True, timeout=120, server_side_apply=True)
        job.join()
        self.assertEqual(release["info"]["status"], "deployed")
        self.assertEqual(self.apps.read_namespaced_deployment("a", "waiting").status.ready_replicas, 1)
        # It succeeded, and was removed for it.
        self.assertEqual(client.BatchV1Api(self.client).list_namespaced_job("waiting").items, [])

    def complete_job(self):
        """Says of the hook's Job that it is done, as its controller would."""
        batch = client.BatchV1Api(self.client)
        watcher = watch.Watch()
        for event in watcher.stream(batch.list_job_for_all_namespaces, timeout_seconds=120):
            if event["object"].metadata.name == "a-prepare":
                watcher.stop()
        at = "2026-01-01T00:00:00Z"
        conditions = [{"type": kind, "status": "True", "lastProbeTime": at, "lastTransitionTime": at}
                      for kind in ("SuccessCriteriaMet", "Complete")]
        batch.patch_namespaced_job_status("a-prepare", "waiting", {"status": {
            "startTime": at, "completionTime": at, "succeeded": 1, "conditions": conditions}})

    def ready(self, namespace):
        """Says of each Deployment of a namespace that it is ready, as its controller would, for as
        long as this program runs."""
        conditions = [{"type": "Available", "status": "True"},
                      {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]

        def follow():
            for event in watch.Watch().stream(self.apps.list_deployment_for_all_namespaces, timeout_seconds=120):
                found = event["object"]
                generation, seen = found.metadata.generation, found.status.observed_generation
                if event["type"] == "DELETED" or found.metadata.namespace != namespace or seen == generation:
                    continue
                counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"),
                                       found.spec.replicas)
                status = counts | {"observedGeneration": generation, "conditions": conditions}
                self.apps.patch_namespaced_deployment_status(found.metadata.name, namespace, {"status": status})

        threading.Thread(target=follow, daemon=True).start()


class Proxy(Case):
    """The chart of `hawser proxy`."""

    CHART = str(DEPLOY / "chart")
    SERVER = "https://control-plane.example:6443"

    def setUp(self):
        self.dynamic = dynamic.DynamicClient(self.client)

    def rules(self, obj):
        """An object without what the server and helm add to it."""
        obj = obj.to_dict()
        for key in ("metadata", "status"):
            obj.pop(key, None)
        template = obj.get("spec", {}).get("template", {})
        template.get("metadata", {}).pop("annotations", None)
        return obj

    def manifest(self):
        """Each object of the manifest, as the server would store it."""
        for body in yaml.safe_load_all((DEPLOY / "hawser-proxy.yaml").read_text()):
            kind = self.dynamic.resources.get(api_version=body["apiVersion"], kind=body["kind"])
            meta = body["metadata"]
            yield kind, meta, kind.create(body=body, namespace=meta.get("namespace"), dry_run="All")

    def test_the_chart_makes_the_objects_of_the_manifest(self):
        expected = list(self.manifest())
        self.assertEqual(len(expected), 6)
        helm_ = Helm("kube-system")
        helm_.install("proxy", {"server": self.SERVER}, chart=self.CHART)
        for kind, meta, body in expected:
            found = kind.get(meta["name"], meta.get("namespace"))
            self.assertEqual(found.metadata.labels["app.kubernetes.io/managed-by"], "Helm")
            if kind.kind == "ConfigMap":
                # Comments do not pass through values.
                for file in ("config.conf", "kubeconfig.conf"):
                    self.assertEqual(yaml.safe_load(found.data[file]), yaml.safe_load(body.data[file]))
            else:
                self.assertEqual(self.rules(found), self.rules(body), meta["name"])
        helm_.uninstall("proxy")
        for kind, meta, _ in expected:
            self.refused(404, kind.get, meta["name"], meta.get("namespace"))

    def test_values_of_the_chart_become_flags_and_capabilities(self):
        helm_ = Helm("proxy-values")
        values = {
            "existingConfigMap": "kube-proxy", "announceLoadBalancers": True, "networkPolicies": True,
            "hostPorts": True, "masqueradePods": True, "extraArgs": ["--uplinks=eth1"],
            "image": {"repository": "registry.example/hawser", "tag": "2"},
        }
        helm_.install("proxy", values, chart=self.CHART)
        pod = client.AppsV1Api(self.client).read_namespaced_daemon_set("hawser-proxy", "proxy-values").spec.template.spec
        container = pod.containers[0]
        self.assertEqual(container.command[-5:], [
            "--host-ports", "--masquerade-pods", "--network-policies", "--announce-load-balancers", "--uplinks=eth1"])
        self.assertIn("NET_RAW", container.security_context.capabilities.add)
        self.assertEqual({c.image for c in pod.containers + pod.init_containers}, {"registry.example/hawser:2"})
        self.assertEqual([v.config_map.name for v in pod.volumes if v.config_map], ["kube-proxy"])
        self.refused(404, self.core.read_namespaced_config_map, "hawser-proxy", "proxy-values")
        helm_.uninstall("proxy")

    def test_values_that_cannot_work_are_refused(self):
        helm_ = Helm("proxy-refused")
        for values, words in [
            ({}, "server: give the URL of the API server"),
            ({"server": "control-plane"}, "(?s)server.*pattern"),
            ({"server": self.SERVER, "hostPort": True}, "hostPort"),
            ({"server": self.SERVER, "configuration": {"clientConnection": {}}}, "clientConnection"),
        ]:
            with self.assertRaisesRegex(helm.InstallError, words):
                helm_.install("proxy", values, chart=self.CHART)


if __name__ == "__main__":
    unittest.main()
