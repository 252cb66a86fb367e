"""Changes a NetworkPolicy as fast as the API server takes it, and prints how often.

usage: policies.py KUBECONFIG NAME PEER COUNT

Each version admits the pods with the label `app: PEER`, and a block of addresses that is another each time.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from pods import connection

CONNECTIONS = 4
POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"


def version(peer, number):
    block = {"ipBlock": {"cidr": f"198.51.{number // 250 % 250}.{number % 250}/32"}}
    pods = {"podSelector": {"matchLabels": {"app": peer}}}
    return {"spec": {"ingress": [{"from": [block]}, {"from": [pods]}]}}


def main():
    path, name, peer, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    with open(path, encoding="utf-8") as file:
        connect = connection(file.read())

    def share(first):
        client = connect()
        for number in range(first, count, CONNECTIONS):
            body = json.dumps(version(peer, number))
            headers = {"Content-Type": "application/merge-patch+json"}
            client.request("PATCH", f"{POLICIES}/{name}", body, headers)
            answer = client.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise SystemExit(f"version {number}: {answer.status} {text.decode()}")

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(share, range(CONNECTIONS)))
    print(f"{count} versions")


main()
