"""The inner half of wire-proof: runs `hca perf` between two namespaces, then simulations, and checks all frames."""

import collections
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib

PORT = 4791
CONTROL_PORT = 18599
# What a recorder keeps of one run at most.
MAX_FRAMES, MAX_BYTES = 60_000, 160 << 20
# Of each kind of packet: how many there have to be, and how many scapy checks (it takes milliseconds each).
LEAST, BY_SCAPY = 10, 10

KINDS = {
    0: "SEND first", 1: "SEND middle", 2: "SEND last", 4: "SEND only",
    6: "WRITE first", 7: "WRITE middle", 8: "WRITE last", 10: "WRITE only",
    12: "READ request", 13: "READ response first", 14: "READ response middle", 15: "READ response last",
    16: "READ response only", 17: "Acknowledge",
}
# What `hca perf` does not send, programs of the simulator do: these seeds together send some of each.
SEEDS, LEAST_OF_SEEDS = range(1, 25), 3
# The upper three bits of the opcodes of RD.
RELIABLE_DATAGRAM = 2
SIMULATED = {
    0x16: "SEND last with invalidate", 0x17: "SEND only with invalidate", 0x1C: "FLUSH", 0x1D: "ATOMIC WRITE",
    0x64: "datagram", 0x65: "datagram with immediate data", 0xA0: "XRC SEND first", 0xA4: "XRC SEND only",
    0xA6: "XRC WRITE first", 0xAA: "XRC WRITE only", 0xAC: "XRC READ request", 0xB0: "XRC READ response only",
    0xB1: "XRC Acknowledge", 0xB2: "XRC ATOMIC Acknowledge", 0xB4: "XRC FetchAdd",
}
# fabric, IP version, path MTU of the link, whether both ends capture too.
RUNS = [
    ("udp", 4, 4500, True),
    ("udp", 6, 4500, True),
    ("uring", 4, 1500, False),
    ("uring", 6, 1500, False),
    ("raw", 4, 4500, True),
    ("raw", 6, 4500, False),
    ("raw, VLAN 7", 4, 4500, False),
    ("raw, RoCEv1", 4, 4500, True),
    ("raw, RoCEv1", 6, 4500, False),
]
RAW_OPTIONS = {"raw": "", "raw, VLAN 7": "&vlan=7", "raw, RoCEv1": "&roce=1"}

failures = []


def fail(what):
    failures.append(what)
    print(f"FAILED: {what}")


def sh(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


# ---------------------------------------------------------------- the network

class Net:
    """Two namespaces with a veth between them, on which every frame is cut before it is on the wire."""

    def __init__(self):
        self.near, self.far = f"hca-proof-{os.getpid()}-a", f"hca-proof-{os.getpid()}-b"

    def __enter__(self):
        for ns in (self.near, self.far):
            sh("ip", "netns", "add", ns)
        sh("ip", "-n", self.near, "link", "add", "name", "wire", "type", "veth",
           "peer", "name", "wire", "netns", self.far)
        for ns, host in ((self.near, 1), (self.far, 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.77.0.{host}/24", "dev", "wire")
            sh("ip", "-n", ns, "addr", "add", f"fd77::{host}/64", "dev", "wire", "nodad")
            # Whatever has more than one segment is cut by the kernel before the interface sees it.
            sh("ip", "-n", ns, "link", "set", "wire", "gso_max_segs", "1")
            for link in ("lo", "wire"):
                sh("ip", "-n", ns, "link", "set", link, "up")
        return self

    def __exit__(self, *_):
        for ns in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL, check=False)

    def mtu(self, bytes_):
        for ns in (self.near, self.far):
            sh("ip", "-n", ns, "link", "set", "wire", "mtu", str(bytes_))


def record(path):
    """Writes every RoCEv2 frame that passes the interface, in both directions, to a pcap file."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
    s.bind(("wire", 3))  # ETH_P_ALL
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    s.settimeout(0.2)
    frames = size = 0
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        out.flush()
        while True:
            try:
                frame = s.recv(1 << 17)
            except socket.timeout:
                if stop:
                    break
                continue
            if not is_roce(frame) or frames == MAX_FRAMES or size > MAX_BYTES:
                continue
            frames, size = frames + 1, size + len(frame)
            out.write(struct.pack("<IIII", 0, frames, len(frame), len(frame)) + frame)
    seen, dropped = struct.unpack("II", s.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
    print(f"{seen} {dropped}")


def is_roce(frame):
    if frame[12:14] == b"\x89\x15":
        return True
    at = 34 if frame[12:14] == b"\x08\x00" else 54
    if frame[12:14] not in (b"\x08\x00", b"\x86\xdd") or frame[at + 2:at + 4] != PORT.to_bytes(2, "big"):
        return False
    return frame[23 if at == 34 else 20] == 17


def measure(net, hca, work, fabric, version, capture):
    """One `hca perf` across the wire. Returns the files with frames, by who recorded them."""
    near, far = ("10.77.0.1", "10.77.0.2") if version == 4 else ("fd77::1", "fd77::2")
    raw = fabric in RAW_OPTIONS

    def url(ip):
        if raw:
            return f"raw://wire?ip={ip}{RAW_OPTIONS[fabric]}"
        return f"{fabric}://{ip}" if version == 4 else f"{fabric}://[{ip}]"

    there = f"{far}:{CONTROL_PORT}" if version == 4 else f"[{far}]:{CONTROL_PORT}"
    files = {"wire": f"{work}/wire.pcap"}
    ends = {}
    for end, ns, ip in (("near", net.near, near), ("far", net.far, far)):
        ends[end] = ["ip", "netns", "exec", ns, hca, "perf", "--device", url(ip), "--no-pin"]
        if capture:
            files[f"--capture {end}"] = f"{work}/{end}.pcapng"
            ends[end] += ["--capture", files[f"--capture {end}"]]
    for path in files.values():
        if os.path.exists(path):
            os.unlink(path)
    # A frame that passes the queueing discipline by is seen where it arrives only.
    records = {net.near: files["wire"]}
    if raw:
        records[net.far] = f"{work}/far.pcap"
    recorders = []
    listener = None
    try:
        for ns, path in records.items():
            if os.path.exists(path):
                os.unlink(path)
            python = ["ip", "netns", "exec", ns, sys.executable, os.path.abspath(__file__)]
            recorders.append(subprocess.Popen(python + ["record", path], stdout=subprocess.PIPE, text=True))
        for recorder, path in zip(recorders, records.values()):
            while not (os.path.exists(path) and os.path.getsize(path)):
                if recorder.poll() is not None:
                    sys.exit("the recorder ended early")
                time.sleep(0.02)
        listener = subprocess.Popen(ends["far"] + ["--listen", there, "--once"], stderr=subprocess.PIPE, text=True)
        said = listener.stderr.readline()
        if "waiting" not in said:
            raise RuntimeError(f"hca perf --listen: {said}{listener.stderr.read()}")
        sizes = "8,64K"
        done = subprocess.run(
            ends["near"] + ["--connect", there, "--op", "send,write,read", "--size", sizes, "--duration", "0.02", "--json"],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        rows = done.stdout.count("\n")
        if done.returncode or rows != 6:
            raise RuntimeError(f"hca perf --connect: {rows} rows, status {done.returncode}: {done.stderr}")
        if listener.wait(10):
            raise RuntimeError(f"hca perf --listen: {listener.stderr.read()}")
    finally:
        for child in filter(None, (listener, *recorders)):
            if child.poll() is None:
                child.terminate()
    for recorder in recorders:
        seen, dropped = recorder.communicate()[0].split()
        if dropped != "0":
            print(f"    (the recorder missed {dropped} of {seen} frames)")
    if raw:
        with open(files["wire"], "ab") as out, open(records[net.far], "rb") as far_file:
            far_file.seek(24)
            out.write(far_file.read())
    return files


# ---------------------------------------------------------------- checks

def frames_of(path):
    from scapy.utils import RawPcapNgReader, RawPcapReader

    with (RawPcapNgReader if path.endswith("ng") else RawPcapReader)(path) as reader:
        for frame, meta in reader:
            # Captures may begin with the IP header; all others with an Ethernet header.
            link = getattr(meta, "linktype", None)
            if link is None:
                link = reader.linktype
            yield frame[14:] if link == 1 else frame


def is_grh(packet):
    """Whether a packet is RoCEv1's: the shape of IPv6, with the IBA's transport behind it."""
    return packet[0] >> 4 == 6 and packet[6] == 0x1B


def icrc(packet):
    """The ICRC of an IP packet, from the definition: changeable fields as ones, behind 8 bytes of ones."""
    p = bytearray(packet[:-4])
    if is_grh(packet):
        p[0] |= 0x0F
        p[1] = p[2] = p[3] = p[7] = p[44] = 0xFF
        return zlib.crc32(p, zlib.crc32(b"\xff" * 8)).to_bytes(4, "little")
    if p[0] >> 4 == 4:
        udp = (p[0] & 15) * 4
        p[1] = p[8] = p[10] = p[11] = 0xFF
    else:
        udp = 40
        p[0] |= 0x0F
        p[1] = p[2] = p[3] = p[7] = 0xFF
    p[udp + 6] = p[udp + 7] = 0xFF
    p[udp + 12] = 0xFF
    return zlib.crc32(p, zlib.crc32(b"\xff" * 8)).to_bytes(4, "little")


def icrc_by_scapy(packet):
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6

    return (IP if packet[0] >> 4 == 4 else IPv6)(packet)[BTH].compute_icrc(None)


class Tally:
    def __init__(self):
        self.frames = self.by_scapy = self.wrong = self.longest = 0
        self.kinds = collections.Counter()
        self.to_groups = 0

    def add(self, packet):
        v4 = packet[0] >> 4 == 4
        udp = 20 if v4 else 40
        length = struct.unpack_from(">H", packet, 2 if v4 else 4)[0] + (0 if v4 else 40)
        opcode = packet[40 if is_grh(packet) else udp + 8]
        self.frames += 1
        self.kinds[opcode] += 1
        self.to_groups += packet[16] & 0xF0 == 0xE0 if v4 else packet[24] == 0xFF
        self.longest = max(self.longest, length)
        # Ethernet pads short frames.
        packet = packet[:length]
        good = len(packet) == length and icrc(packet) == packet[-4:]
        # scapy knows the ICRC of RoCEv2 only.
        if self.kinds[opcode] <= BY_SCAPY and not is_grh(packet):
            self.by_scapy += 1
            good = good and icrc_by_scapy(packet) == packet[-4:]
        self.wrong += not good


def check(label, path, mtu):
    tally = judge(label, path, mtu, KINDS, LEAST)
    for code in tally.kinds.keys() - KINDS.keys():
        fail(f"{label}: {tally.kinds[code]} frames of opcode {code:#04x}")
    return tally


def judge(label, path, mtu, kinds, least):
    tally = Tally()
    for packet in frames_of(path):
        tally.add(packet)
    if tally.wrong:
        fail(f"{label}: {tally.wrong} of {tally.frames} frames have another ICRC")
    if tally.longest > mtu:
        fail(f"{label}: a frame of {tally.longest} bytes was not cut")
    for code, name in kinds.items():
        if tally.kinds[code] < least:
            fail(f"{label}: {tally.kinds[code]} frames of {name}, at least {least} are wanted")
    return tally


def simulate(sim, work):
    """Frames of simulated programs, as they were sent. Returns the file with all of them, and their tally."""
    label, all_of_them = "simulator", f"{work}/simulated.pcapng"
    with open(all_of_them, "wb") as out:
        for seed in SEEDS:
            one = f"{work}/seed.pcapng"
            sh(sim, "--seed", str(seed), "--capture", one)
            # A file of this format may have any number of sections.
            with open(one, "rb") as section:
                out.write(section.read())
    tally = judge(label, all_of_them, 4500, SIMULATED, LEAST_OF_SEEDS)
    if tally.to_groups < LEAST_OF_SEEDS:
        fail(f"{label}: {tally.to_groups} frames to multicast groups, at least {LEAST_OF_SEEDS} are wanted")
    return all_of_them, tally


def tshark(label, path, frames):
    """Decodes a file; returns how many frames tshark takes for InfiniBand."""
    # Its heuristics take programs' short datagrams for other protocols of InfiniBand.
    base = ["tshark", "-n", "-r", path, "--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"]
    out = sh(*base, "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed", stderr=subprocess.DEVNULL)
    lines = out.splitlines()
    known = sum(1 for line in lines if line.split("\t")[0])
    # tshark 4.0 looks for the headers of reliable datagrams 8 bytes behind the BTH.
    reads = [line.rstrip("\n").split("\t") for line in lines]
    reads = [fields for fields in reads if not (fields[0].isdigit() and int(fields[0]) >> 5 == RELIABLE_DATAGRAM)]
    bad = sum(1 for fields in reads if fields[1:] not in ([], [""]))
    if bad:
        fail(f"{label}: tshark finds {bad} malformed frames")
    if known != frames:
        fail(f"{label}: tshark knows {known} of {frames} frames as InfiniBand")
    return known


def self_test():
    """Both checks notice a wrong bit; scapy builds the frame."""
    from scapy.all import IP, UDP, IPv6, Raw
    from scapy.contrib.roce import BTH

    for ip in (IP(src="10.0.0.1", dst="10.0.0.2", id=77), IPv6(src="fd00::1", dst="fd00::2")):
        packet = bytes(ip / UDP(sport=50000, dport=PORT) / BTH(opcode=4, psn=7, dqpn=9) / Raw(b"four" * 3))
        assert icrc(packet) == icrc_by_scapy(packet) == packet[-4:]
        wrong = packet[:-5] + bytes([packet[-5] ^ 1]) + packet[-4:]
        assert icrc(wrong) == icrc_by_scapy(wrong) != wrong[-4:]


def main(hca, sim):
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    self_test()
    rows, total = [], Tally()
    with Net() as net, tempfile.TemporaryDirectory() as work:
        for fabric, version, mtu, capture in RUNS:
            net.mtu(mtu)
            run = f"{fabric} IPv{version}, link MTU {mtu}"
            try:
                files = measure(net, hca, work, fabric, version, capture)
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                if fabric == "uring" and "io_uring" in str(e):
                    print(f"left out: {run}: {e}")
                    continue
                fail(f"{run}: {e}")
                continue
            for who, path in files.items():
                label = f"{run}, {who}"
                tally = check(label, path, mtu)
                known = tshark(label, path, tally.frames)
                rows.append((run, who, tally, known))
                total.frames += tally.frames
                total.by_scapy += tally.by_scapy
                total.kinds += tally.kinds
        path, tally = simulate(sim, work)
        rows.append((f"simulator, {len(SEEDS)} seeds", "--capture", tally, tshark("simulator", path, tally.frames)))
    head = ("run", "frames from", "frames", "agree", "by scapy", "tshark", "kinds", "rarest")
    lines = [(r, w, t.frames, t.frames - t.wrong, t.by_scapy, k, len(t.kinds), min(t.kinds.values(), default=0))
             for r, w, t, k in rows]
    widths = [max(len(str(line[i])) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        cells = [str(c).ljust(w) if i < 2 else str(c).rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
        print("  ".join(cells))
    kinds = ", ".join(f"{name} {total.kinds[code]}" for code, name in KINDS.items())
    kinds_of_seeds = ", ".join(f"{name} {tally.kinds[code]}" for code, name in SIMULATED.items())
    print(f"of the simulator: to multicast groups {tally.to_groups}, {kinds_of_seeds}")
    print(f"{total.frames} frames, {total.by_scapy} of them by scapy too, in {time.monotonic() - begun:.0f} s: {kinds}")
    sys.exit(1 if failures or not rows else 0)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2])
