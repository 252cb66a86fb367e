"""Makes pods that nothing runs, and removes them one by one.

usage: pods.py KUBECONFIG COUNT
"""

import base64
import http.client
import json
import os
import re
import ssl
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse

CONNECTIONS = 8
PODS = "/api/v1/namespaces/default/pods"


def connection(kubeconfig):
    def field(name):
        return re.search(rf"{name}: (\S+)", kubeconfig).group(1)

    with tempfile.TemporaryDirectory() as directory:

        def file(name):
            path = os.path.join(directory, name)
            with open(path, "wb") as written:
                written.write(base64.b64decode(field(name)))
            return path

        context = ssl.create_default_context(cafile=file("certificate-authority-data"))
        context.load_cert_chain(file("client-certificate-data"), file("client-key-data"))
    server = urlparse(field("server"))
    return lambda: http.client.HTTPSConnection(server.hostname, server.port, context=context)


def call(client, method, path, body=None):
    client.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
    answer = client.getresponse()
    text = answer.read()
    if answer.status not in (200, 201):
        raise SystemExit(f"{method} {path}: {answer.status} {text.decode()}")


def pod(name):
    """A pod for a scheduler that does not exist."""
    container = {"name": "main", "image": "registry.example/echo:1", "env": [{"name": "A", "value": "b"}]}
    spec = {"schedulerName": "nobody", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    with open(path, encoding="utf-8") as file:
        connect = connection(file.read())

    def share(first, act):
        client = connect()
        for number in range(first, count, CONNECTIONS):
            act(client, f"pod-{number}")

    for act in (
        lambda client, name: call(client, "POST", PODS, pod(name)),
        lambda client, name: call(client, "DELETE", f"{PODS}/{name}"),
    ):
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(lambda first: share(first, act), range(CONNECTIONS)))


if __name__ == "__main__":
    main()
