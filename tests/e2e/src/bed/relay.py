"""Carries frames between two interfaces, and holds them back, reorders or loses them on the way.

usage: relay.py ONE OTHER SEED DELAY_MS JITTER_MS REORDER LOSS

Each way has the delay, more or less by the jitter. Frames keep their order, except for REORDER per cent of them, which
are not delayed; LOSS per cent do not arrive. It prints `ready`, and after SIGTERM what it did as JSON.
"""

import heapq
import json
import random
import select
import signal
import socket
import sys
import time

# Numbers of Linux that the module `socket` does not have.
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
# The longest frame that the kernel hands over in one piece, with the header about its segments and checksum.
LONGEST = 1 << 17
# Bytes of frames that wait in the kernel while this program is busy.
QUEUE = 64 << 20


def ended(_signal, _frame):
    raise SystemExit


class Way:
    """One direction: frames that wait for their time, in its order."""

    def __init__(self, source, target, chance, faults):
        self.source, self.target, self.chance = source, target, chance
        self.delay, self.jitter, self.reorder, self.loss = faults
        self.waiting, self.last, self.number = [], 0.0, 0

    def take(self, counts):
        """Reads what has come."""
        while True:
            try:
                frame = self.source.recv(LONGEST)
            except BlockingIOError:
                return
            except OSError:
                # The interface is down.
                return
            counts["frames"] += 1
            now = time.monotonic()
            if self.chance.random() * 100 < self.loss:
                counts["lost"] += 1
            elif self.delay and self.chance.random() * 100 < self.reorder:
                counts["reordered"] += bool(self.waiting)
                self.send(frame, counts)
            else:
                due = now + self.delay + self.chance.uniform(-self.jitter, self.jitter)
                self.last = max(self.last, due)
                self.number += 1
                heapq.heappush(self.waiting, (self.last, self.number, frame))

    def give(self, counts):
        """Sends what is due; returns the seconds until more is."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            self.send(heapq.heappop(self.waiting)[2], counts)
        return None

    def send(self, frame, counts):
        try:
            self.target.send(frame)
        except OSError:
            # The link was cut, or cannot take more: a frame is lost, as on a wire.
            counts["failed"] += 1


def opened(interface):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    packets.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    # Frames between local interfaces have no checksums yet; this header says so, on both sides.
    packets.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, QUEUE)
    packets.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, QUEUE)
    packets.setblocking(False)
    packets.bind((interface, ETH_P_ALL))
    return packets


def main():
    one, other = (opened(interface) for interface in sys.argv[1:3])
    seed, delay, jitter, reorder, loss = (float(text) for text in sys.argv[3:])
    faults = (delay / 1000, jitter / 1000, reorder, loss)
    ways = [
        Way(one, other, random.Random(seed), faults),
        Way(other, one, random.Random(seed + 1), faults),
    ]
    counts = dict.fromkeys(["frames", "reordered", "lost", "failed"], 0)
    signal.signal(signal.SIGTERM, ended)
    print("ready", flush=True)
    try:
        while True:
            left = [left for left in (way.give(counts) for way in ways) if left is not None]
            select.select([one, other], [], [], min(left, default=None))
            for way in ways:
                way.take(counts)
    finally:
        print(json.dumps(counts), flush=True)


main()
