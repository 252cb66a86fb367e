"""A conversion webhook: version v2 of a Road calls `to` what v1 calls `destination`.

usage: webhook.py PORT CERTIFICATE KEY
"""

import http.server
import json
import ssl
import sys


class Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        wanted = request["desiredAPIVersion"]
        before, after = ("destination", "to") if wanted.endswith("/v2") else ("to", "destination")
        for road in request["objects"]:
            road["apiVersion"] = wanted
            if before in road:
                road[after] = road.pop(before)
        review["response"] = {
            "uid": request["uid"],
            "result": {"status": "Success"},
            "convertedObjects": review.pop("request")["objects"],
        }
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Webhook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
