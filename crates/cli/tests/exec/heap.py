"""Blocks of malloc under `hca exec --heap`: they can be mapped by peers, and a forked child has copies of them."""
import ctypes
import os

verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
verbs.ibv_open_device.restype = ctypes.c_void_p
assert verbs.ibv_open_device(verbs.ibv_get_device_list(None)[0])

block = bytearray(b"p" * (1 << 20))
at = ctypes.addressof(ctypes.c_char.from_buffer(block))
with open("/proc/self/maps", encoding="ascii") as maps:
    shown = [line for line in maps if "hca-pages" in line]
ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in shown]
assert any(first <= at < end for first, end in ranges), "the block is one that peers can map"

from_parent, to_child = os.pipe()
child = os.fork()
if child == 0:
    os.close(to_child)
    os.read(from_parent, 1)
    same = block == b"p" * (1 << 20)
    block[:4] = b"cccc"
    # The child's own blocks, and the end of those that it has from its parent.
    more = [bytearray(b"m" * (1 << 18)) for _ in range(4)]
    del block, more
    os._exit(0 if same else 1)
block[-4:] = b"qqqq"
os.close(to_child)
_, status = os.waitpid(child, 0)
assert status == 0, "the child has the bytes of the time of the fork"
assert block[:4] == b"pppp" and block[-4:] == b"qqqq", "the child changed its own bytes"

# Blocks grow and shrink, more of them than there are files for.
many = [bytearray(bytes([i % 251]) * (150 << 10)) for i in range(300)]
for i, one in enumerate(many):
    one.extend(bytes([i % 251]) * (40 << 10))
    assert one == bytes([i % 251]) * (190 << 10), i
    del one[1000:]
del many
with open("/proc/self/maps", encoding="ascii") as maps:
    assert sum("hca-pages" in line for line in maps) < 20, "blocks are given back"
print("as malloc's")
