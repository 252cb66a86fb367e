"""The typed client: every verb, watches, subresources, creation from YAML, informers, leader election."""

import datetime
import json
import os
import tempfile
import threading
import unittest

from kubernetes import client, config, utils, watch
from kubernetes.client.api_client import ApiClient
from kubernetes.informer import SharedInformer
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock

from support import Case, api_client, pod


class Objects(Case):
    def test_pods_through_their_life(self):
        made = self.core.create_namespaced_pod("default", pod("one", app="one"))
        self.assertEqual(made.status.phase, "Pending")
        self.assertEqual(made.spec.restart_policy, "Always")
        self.assertIsInstance(made.metadata.creation_timestamp, datetime.datetime)
        read = self.core.read_namespaced_pod("one", "default")
        self.assertEqual(read.metadata.uid, made.metadata.uid)
        self.assertEqual([p.metadata.name for p in self.core.list_pod_for_all_namespaces(label_selector="app=one").items], ["one"])
        self.core.patch_namespaced_pod_status(
            "one", "default", {"status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        running = self.core.list_namespaced_pod("default", field_selector="status.phase=Running")
        self.assertEqual([p.status.pod_ip for p in running.items], ["10.0.0.1"])
        read = self.core.read_namespaced_pod("one", "default")
        read.metadata.annotations = {"note": "x"}
        replaced = self.core.replace_namespaced_pod("one", "default", read)
        self.assertEqual(replaced.metadata.annotations, {"note": "x"})
        self.refused(409, self.core.replace_namespaced_pod, "one", "default", read)
        gone = self.core.delete_namespaced_pod("one", "default", grace_period_seconds=0)
        self.assertIsInstance(gone, client.V1Pod)
        body = json.loads(self.refused(404, self.core.read_namespaced_pod, "one", "default"))
        self.assertEqual((body["reason"], body["details"]["kind"]), ("NotFound", "pods"))

    def test_config_maps_are_patched_in_every_way(self):
        self.core.create_namespaced_config_map("default", {"metadata": {"name": "m"}, "data": {"a": "1"}})
        merged = self.core.patch_namespaced_config_map("m", "default", {"data": {"b": "2"}})
        self.assertEqual(merged.data, {"a": "1", "b": "2"})
        listed = self.core.patch_namespaced_config_map("m", "default", [{"op": "remove", "path": "/data/a"}])
        self.assertEqual(listed.data, {"b": "2"})
        applied = self.core.patch_namespaced_config_map(
            "m", "default",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"c": "3"}},
            field_manager="python", force=True, _content_type="application/apply-patch+yaml",
        )
        self.assertEqual(applied.data, {"b": "2", "c": "3"})
        self.assertIn("python", [entry.manager for entry in applied.metadata.managed_fields])
        dry = self.core.patch_namespaced_config_map("m", "default", {"data": {"d": "4"}}, dry_run="All")
        self.assertIn("d", dry.data)
        self.assertNotIn("d", self.core.read_namespaced_config_map("m", "default").data)
        self.core.delete_collection_namespaced_config_map("default", field_selector="metadata.name=m")
        self.refused(404, self.core.read_namespaced_config_map, "m", "default")

    def test_deployments_scale_and_restart(self):
        apps = client.AppsV1Api(self.client)
        labels = {"app": "web"}
        template = client.V1PodTemplateSpec(
            metadata=client.V1ObjectMeta(labels=labels),
            spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="i:1")]),
        )
        spec = client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template)
        made = apps.create_namespaced_deployment("default", client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec))
        self.assertEqual((made.metadata.generation, made.spec.revision_history_limit), (1, 10))
        scale = apps.read_namespaced_deployment_scale("web", "default")
        scale.spec.replicas = 3
        self.assertEqual(apps.replace_namespaced_deployment_scale("web", "default", scale).spec.replicas, 3)
        made.spec.template.spec.containers[0].image = "i:2"
        made.metadata.resource_version = None
        made.spec.replicas = 3
        changed = apps.replace_namespaced_deployment("web", "default", made)
        self.assertEqual((changed.metadata.generation, changed.spec.template.spec.containers[0].image), (3, "i:2"))
        made.spec.selector.match_labels = {"app": "other"}
        body = json.loads(self.refused(422, apps.replace_namespaced_deployment, "web", "default", made))
        self.assertEqual(body["reason"], "Invalid")
        self.assertIn("spec.selector", [cause["field"] for cause in body["details"]["causes"]])
        apps.delete_namespaced_deployment("web", "default")

    def test_pages_and_selectors(self):
        for number in range(5):
            self.core.create_namespaced_secret("default", {"metadata": {"name": f"s{number}", "labels": {"n": str(number)}}})
        names, token = [], None
        while True:
            page = self.core.list_namespaced_secret("default", limit=2, _continue=token)
            names += [item.metadata.name for item in page.items]
            token = page.metadata._continue
            if not token:
                break
            self.assertGreater(page.metadata.remaining_item_count, 0)
        self.assertEqual(names, [f"s{number}" for number in range(5)])
        chosen = self.core.list_namespaced_secret("default", label_selector="n in (1,3)")
        self.assertEqual([item.metadata.name for item in chosen.items], ["s1", "s3"])
        self.refused(400, self.core.list_namespaced_secret, "default", label_selector="a in b")

    def test_other_groups_answer(self):
        self.assertEqual(client.VersionApi(self.client).get_code().minor, "36")
        groups = [group.name for group in client.ApisApi(self.client).get_api_versions().groups]
        for group in ["apps", "batch", "rbac.authorization.k8s.io", "apiextensions.k8s.io"]:
            self.assertIn(group, groups)
        review = client.AuthorizationV1Api(self.client).create_self_subject_access_review(
            {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
        )
        self.assertTrue(review.status.allowed)
        token = self.core.create_namespaced_service_account_token("default", "default", {"spec": {"expirationSeconds": 600}})
        answer = client.AuthenticationV1Api(self.client).create_token_review({"spec": {"token": token.status.token}})
        self.assertEqual(answer.status.user.username, "system:serviceaccount:default:default")
        self.assertEqual(self.core.list_namespace().items[0].metadata.name, "default")
        made = client.BatchV1Api(self.client).create_namespaced_job("default", {
            "metadata": {"name": "j"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
        })
        self.assertEqual((made.spec.completions, made.spec.backoff_limit), (1, 6))

    def test_services_get_addresses(self):
        made = self.core.create_namespaced_service("default", {
            "metadata": {"name": "svc"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "targetPort": "http"}]},
        })
        self.assertTrue(made.spec.cluster_ip.startswith("10.96."))
        self.assertEqual((made.spec.ports[0].target_port, made.spec.session_affinity), ("http", "None"))
        self.core.delete_namespaced_service("svc", "default")


class Watches(Case):
    def test_a_watch_starts_with_what_is_there_and_goes_on(self):
        namespace = "watched"
        self.core.create_namespace({"metadata": {"name": namespace}})
        self.core.create_namespaced_config_map(namespace, {"metadata": {"name": "old"}})
        seen, stream = [], watch.Watch()

        def change():
            self.core.create_namespaced_config_map(namespace, {"metadata": {"name": "new"}})
            self.core.patch_namespaced_config_map("new", namespace, {"data": {"a": "b"}})
            self.core.delete_namespaced_config_map("new", namespace)

        for event in stream.stream(self.core.list_namespaced_config_map, namespace, timeout_seconds=60):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 1:
                threading.Thread(target=change).start()
            if len(seen) == 4:
                stream.stop()
        self.assertEqual(seen, [("ADDED", "old"), ("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new")])

    def test_a_watch_that_is_too_old_is_gone(self):
        future = int(self.core.list_namespace().metadata.resource_version)
        stream = watch.Watch()
        events = stream.stream(self.core.list_namespace, resource_version=str(future), timeout_seconds=1)
        self.assertEqual(list(events), [])

    def test_an_informer_follows(self):
        added, deleted = threading.Event(), threading.Event()
        informer = SharedInformer(list_func=self.core.list_namespaced_config_map, namespace="default", label_selector="informed=yes")
        informer.add_event_handler("ADDED", lambda _: added.set())
        informer.add_event_handler("DELETED", lambda _: deleted.set())
        informer.start()
        try:
            self.core.create_namespaced_config_map("default", {"metadata": {"name": "informed", "labels": {"informed": "yes"}}})
            self.assertTrue(added.wait(60))
            self.assertEqual([item.metadata.name for item in informer.cache.list()], ["informed"])
            self.core.delete_namespaced_config_map("informed", "default")
            self.assertTrue(deleted.wait(60))
        finally:
            informer.stop()


class Tools(Case):
    def test_objects_are_created_from_yaml(self):
        text = """
apiVersion: v1
kind: Namespace
metadata: {name: from-yaml}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: from-yaml}, data: {a: b}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: d, namespace: from-yaml}
  spec:
    selector: {matchLabels: {a: b}}
    template:
      metadata: {labels: {a: b}}
      spec: {containers: [{name: c, image: i}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: r, namespace: from-yaml}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
"""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            utils.create_from_yaml(self.client, file.name)
            with self.assertRaises(utils.FailToCreateError) as caught:
                utils.create_from_yaml(self.client, file.name)
        self.assertEqual({e.status for e in caught.exception.api_exceptions}, {409})
        self.assertEqual(self.core.read_namespaced_config_map("m", "from-yaml").data, {"a": "b"})
        rules = client.RbacAuthorizationV1Api(self.client).read_namespaced_role("r", "from-yaml").rules
        self.assertEqual(rules[0].verbs, ["get"])

    def test_a_leader_is_elected(self):
        config.load_kube_config(config_file=os.environ["KUBECONFIG"])
        led = threading.Event()
        lock = ConfigMapLock("election", "default", "first")
        election = leaderelection.LeaderElection(electionconfig.Config(
            lock, lease_duration=17, renew_deadline=15, retry_period=5, onstarted_leading=led.set, onstopped_leading=None,
        ))
        threading.Thread(target=election.run, daemon=True).start()
        self.assertTrue(led.wait(60))
        record = self.core.read_namespaced_config_map("election", "default").metadata.annotations
        self.assertEqual(json.loads(record["control-plane.alpha.kubernetes.io/leader"])["holderIdentity"], "first")

    def test_wrong_certificates_and_tokens(self):
        loaded = config.load_kube_config_from_dict
        plain = client.Configuration()
        loaded(json.loads(json.dumps(_without_user())), client_configuration=plain)
        anonymous = client.CoreV1Api(ApiClient(plain))
        self.refused(403, anonymous.list_namespace)
        plain.api_key = {"authorization": "Bearer nonsense"}
        self.refused(401, client.CoreV1Api(ApiClient(plain)).list_namespace)


def _without_user():
    import yaml

    with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
        loaded = yaml.safe_load(file)
    loaded["users"][0]["user"] = {}
    return loaded


if __name__ == "__main__":
    unittest.main()
