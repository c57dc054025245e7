"""RC, UD, a shared receive queue, an extended completion queue and a memory window, by pyverbs."""
import sys

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID_INDEX = 1
context = Context(name=get_device_list()[0].name.decode())
pd = PD(context)
gid = context.query_gid(1, GID_INDEX)
cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND
mr = MR(pd, 4096, access)


def route():
    return AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=GID_INDEX, hop_limit=9), is_global=1, port_num=1)


def connect(qp, peer):
    attr = QPAttr(port_num=1, path_mtu=e.IBV_MTU_1024)
    attr.dest_qp_num = peer.qp_num
    attr.qp_access_flags = access
    attr.ah_attr = route()
    attr.rq_psn = attr.sq_psn = 7
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 18, 7, 7
    qp.to_rts(attr)


def completions(cq, count):
    found = []
    while len(found) < count:
        found += cq.poll(count)[1]
    assert all(wc.status == e.IBV_WC_SUCCESS for wc in found), [wc.status for wc in found]
    return found


def entry(at, length):
    return [SGE(mr.buf + at, length, mr.lkey)]


def send(text, **more):
    mr.write(text, len(text))
    return SendWR(num_sge=1, sg=entry(0, len(text)), opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED, **more)


def pair(cq, srq=None):
    def one():
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, srq=srq)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        return QP(pd, init, attr)
    a, b = one(), one()
    connect(a, b)
    connect(b, a)
    return a, b


cq = CQ(context, 32)
a, b = pair(cq)
b.post_recv(RecvWR(num_sge=1, sg=entry(2048, 64)))
a.post_send(send("by RC"))
completions(cq, 2)
assert mr.read(5, 2048) == b"by RC"
print("rc")

# A window of type 1 lets the peer write through its own key.
window = MW(pd, e.IBV_MW_TYPE_1)
bound = MWBindInfo(mr, mr.buf + 1024, 512, e.IBV_ACCESS_REMOTE_WRITE)
b.bind_mw(window, MWBind(bound, 1, e.IBV_SEND_SIGNALED))
completions(cq, 1)
write = SendWR(num_sge=1, sg=entry(0, 5), opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED)
write.set_wr_rdma(window.rkey, mr.buf + 1024)
a.post_send(write)
completions(cq, 1)
assert mr.read(5, 1024) == b"by RC"
print("window")
a.close()
b.close()
window.close()

srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8)))
a, b = pair(cq, srq)
srq.post_recv(RecvWR(num_sge=1, sg=entry(2048, 64)))
a.post_send(send("by SRQ"))
completions(cq, 2)
assert mr.read(6, 2048) == b"by SRQ"
a.close()
b.close()
srq.close()
print("srq")

extended = CQEX(context, CqInitAttrEx(cqe=32, wc_flags=e.IBV_WC_EX_WITH_BYTE_LEN))
a, b = pair(extended)
b.post_recv(RecvWR(wr_id=5, num_sge=1, sg=entry(2048, 64)))
a.post_send(send("extended"))
seen = []
while len(seen) < 2:
    if extended.start_poll(PollCqAttr()) == 2:
        continue
    while True:
        assert extended.status == e.IBV_WC_SUCCESS
        seen.append((extended.read_opcode(), extended.read_byte_len()))
        if extended.poll_next() == 2:
            break
    extended.end_poll()
assert (e.IBV_WC_RECV, 8) in seen, seen
a.close()
b.close()
print("cq_ex")

qkey = 0x11111111
attr = QPAttr(port_num=1)
attr.qkey = qkey
ud = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=cap), attr)
ud.post_recv(RecvWR(num_sge=1, sg=entry(2048, 128)))
datagram = send("by UD")
datagram.set_wr_ud(AH(pd, attr=route()), ud.qp_num, qkey)
ud.post_send(datagram)
completions(cq, 2)
assert mr.read(5, 2048 + 40) == b"by UD"
print("ud")
sys.stdout.flush()
