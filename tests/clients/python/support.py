"""What the tests with the Python client share: a kubeconfig, and what controllers would have made."""

import os
import unittest

from kubernetes import client, config


def api_client():
    """A client of its own with the kubeconfig that KUBECONFIG names."""
    return config.new_client_from_config(config_file=os.environ["KUBECONFIG"])


class Case(unittest.TestCase):
    """A test with `self.core` and the ServiceAccount that pods need."""

    @classmethod
    def setUpClass(cls):
        cls.client = api_client()
        cls.core = client.CoreV1Api(cls.client)
        try:
            cls.core.create_namespaced_service_account("default", {"metadata": {"name": "default"}})
        except client.ApiException as error:
            if error.status != 409:
                raise

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def refused(self, code, call, *args, **kwargs):
        """The body of a refusal with this code."""
        with self.assertRaises(client.ApiException) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.status, code, caught.exception.body)
        return caught.exception.body


def pod(name, **labels):
    """A pod that is valid."""
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels=labels or None),
        spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="i")]),
    )
