"""Opens connections that say just enough to be kept, and holds them until its standard input ends.

usage: idle.py ADDRESS PORT COUNT

Prints `held N`. Each connection finishes TLS and begins HTTP/2, and then is silent.
"""

import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor

ADDRESS, PORT, COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"

context = ssl._create_unverified_context()
context.set_alpn_protocols(["h2"])


def connect(_number):
    try:
        connection = context.wrap_socket(socket.create_connection((ADDRESS, PORT), 5))
        connection.sendall(PREFACE)
        return connection
    except OSError:
        return None


with ThreadPoolExecutor(4) as threads:
    held = [connection for connection in threads.map(connect, range(COUNT)) if connection]
print("held", len(held), flush=True)
sys.stdin.read()
