"""The dynamic client: discovery, custom resources, server-side apply, watches."""

import unittest

from kubernetes import client
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, ResourceNotFoundError, UnprocessibleEntityError

from support import Case

WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.python.example.com"},
    "spec": {
        "group": "python.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [{
            "name": "v1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "default": 1, "maximum": 9},
                    "color": {"type": "string"},
                }},
                "status": {"type": "object", "properties": {"done": {"type": "boolean"}}},
            }}},
        }],
    },
}


class Dynamic(Case):
    def setUp(self):
        self.dynamic = DynamicClient(self.client)

    def test_discovery_finds_kinds(self):
        pods = self.dynamic.resources.get(api_version="v1", kind="Pod")
        self.assertTrue(pods.namespaced)
        self.assertIn("watch", pods.verbs)
        deployments = self.dynamic.resources.get(group="apps", api_version="v1", kind="Deployment")
        self.assertIn("scale", deployments.subresources)
        with self.assertRaises(ResourceNotFoundError):
            self.dynamic.resources.get(api_version="v1", kind="Nope")

    def test_custom_resources(self):
        definitions = self.dynamic.resources.get(api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition")
        definitions.create(WIDGETS)
        for event in definitions.watch(field_selector="metadata.name=widgets.python.example.com", timeout=60):
            conditions = event["object"].status.conditions or []
            if any(c.type == "Established" and c.status == "True" for c in conditions):
                break
        self.dynamic.resources.invalidate_cache()
        widgets = self.dynamic.resources.get(api_version="python.example.com/v1", kind="Widget")
        body = {"apiVersion": "python.example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"color": "red"}}
        made = widgets.create(body=body, namespace="default")
        self.assertEqual(made.spec.size, 1)
        with self.assertRaises(ConflictError):
            widgets.create(body=body, namespace="default")
        with self.assertRaises(UnprocessibleEntityError):
            widgets.patch(name="a", namespace="default", body={"spec": {"size": 10}}, content_type="application/merge-patch+json")
        applied = widgets.server_side_apply(
            name="a", namespace="default", body={**body, "spec": {"size": 3}}, field_manager="python", force_conflicts=True)
        self.assertEqual((applied.spec.size, applied.spec.color), (3, "red"))
        status = widgets.status.patch(
            name="a", namespace="default", body={"status": {"done": True}, "spec": {"size": 5}},
            content_type="application/merge-patch+json")
        self.assertEqual((status.status.done, status.spec.size), (True, 3))
        self.assertEqual([w.metadata.name for w in widgets.get(namespace="default").items], ["a"])
        widgets.delete(name="a", namespace="default", body={})
        with self.assertRaises(NotFoundError):
            widgets.get(name="a", namespace="default")
        definitions.delete(name="widgets.python.example.com", body={})

    def test_a_watch_of_pods(self):
        maps = self.dynamic.resources.get(api_version="v1", kind="ConfigMap")
        maps.create(body={"metadata": {"name": "dynamic", "labels": {"d": "y"}}}, namespace="default")
        events = maps.watch(namespace="default", label_selector="d=y", timeout=60)
        first = next(events)
        self.assertEqual((first["type"], first["object"].metadata.name), ("ADDED", "dynamic"))
        maps.delete(name="dynamic", namespace="default")
        self.assertEqual(next(events)["type"], "DELETED")

    def test_metadata_alone(self):
        pods = self.dynamic.resources.get(api_version="v1", kind="Namespace")
        lists = pods.get(header_params={"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"})
        self.assertEqual(lists.kind, "PartialObjectMetadataList")
        one = pods.get(name="default", header_params={"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"})
        self.assertEqual((one.kind, "spec" in one.to_dict()), ("PartialObjectMetadata", False))


class Custom(Case):
    def test_custom_objects_api(self):
        names = {"plural": "gears", "kind": "Gear"}
        extensions = client.ApiextensionsV1Api(self.client)
        definition = {**WIDGETS, "metadata": {"name": "gears.python.example.com"}, "spec": {**WIDGETS["spec"], "names": names}}
        made = extensions.create_custom_resource_definition(definition)
        self.assertEqual(made.spec.names.list_kind, "GearList")
        custom = client.CustomObjectsApi(self.client)
        where = ("python.example.com", "v1", "default", "gears")
        body = {"apiVersion": "python.example.com/v1", "kind": "Gear", "metadata": {"name": "g"}, "spec": {}}
        for _ in range(600):
            try:
                custom.create_namespaced_custom_object(*where, body)
                break
            except client.ApiException as error:
                # It is served once it is established.
                self.assertEqual(error.status, 404)
        self.assertEqual(custom.get_namespaced_custom_object(*where, "g")["spec"], {"size": 1})
        custom.patch_namespaced_custom_object(*where, "g", {"spec": {"color": "blue"}})
        self.assertEqual(custom.list_namespaced_custom_object(*where)["items"][0]["spec"]["color"], "blue")
        custom.delete_namespaced_custom_object(*where, "g")
        extensions.delete_custom_resource_definition("gears.python.example.com")


if __name__ == "__main__":
    unittest.main()
