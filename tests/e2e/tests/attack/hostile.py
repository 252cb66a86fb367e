"""A server that answers in bad faith: a kubelet or a webhook in an attacker's hands.

usage: hostile.py ADDRESS PORT CERTIFICATE KEY BEHAVIOUR

It prints `listening` once it does, and then a line for each request: method, path, and the credentials
that came with it. BEHAVIOUR is one of

  redirect   302 to https://ADDRESS:PORT/stolen, also for upgrades
  cookie     200 with headers that would make a client hand over credentials later
  endless    200 with a body that never ends
  silent     takes the request and never answers
  switch     101, whether the client requests_received for it or not
  rename     a conversion webhook that changes the identity of what it converts
"""

import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event

ADDRESS, PORT, CERTIFICATE, KEY, BEHAVIOUR = sys.argv[1:]


class Hostile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        credentials = self.headers.get("Authorization", "-")
        print(self.command, self.path, credentials, flush=True)
        getattr(self, BEHAVIOUR)(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def redirect(self, _body):
        self.send_response(302)
        self.send_header("Location", f"https://{ADDRESS}:{PORT}/stolen")
        self.send_header("Content-Length", "9")
        self.end_headers()
        self.wfile.write(b"whispered")

    def cookie(self, _body):
        self.send_response(200)
        self.send_header("Set-Cookie", "session=stolen; Path=/")
        self.send_header("WWW-Authenticate", 'Basic realm="Kubernetes"')
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def endless(self, _body):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        # Bounded, so that the server under test is what ends it or is not: four GiB.
        for _ in range(65536):
            self.wfile.write(block)

    def silent(self, _body):
        Event().wait(300)

    def switch(self, _body):
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers.get("Upgrade", "SPDY/3.1"))
        self.end_headers()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled")
        self.close_connection = True

    def rename(self, body):
        review = json.loads(body)
        request = review["request"]
        converted = []
        for item in request["objects"]:
            item["apiVersion"] = request["desiredAPIVersion"]
            item["metadata"]["name"] = "renamed"
            item["metadata"]["namespace"] = "kube-system"
            item["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
            converted.append(item)
        response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": converted}
        answer = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_arguments):
        pass


def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    # A stolen identity is shown by what a client offers; it need not be believed.
    ThreadingHTTPServer.request_queue_size = 256
    server = ThreadingHTTPServer((ADDRESS, int(PORT)), Hostile)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print("listening", flush=True)
    server.serve_forever()


main()
