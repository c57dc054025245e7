// An adapter of libibverbs that does what it is told over TCP: the far end of crates/hca/tests/rxe.
//
//   rxe_peer ADDRESS PORT        listens there; a process of its own for each connection
//
// Each line is a command, and is answered by one line: "ok ...", or "no WHY". Numbers are decimal. What a connection made
// is gone with it.
//
//   open ADDRESS                             the device with this GID         ok MTU
//   able                                     ok, and of the words windows, atomic_write, flush those that the device has
//   region BYTES RIGHTS                      rights: of the letters w, r, a,  ok REGION ADDRESS RKEY
//                                            m (memory windows), f (FLUSH for visibility)
//   window TYPE                              1 or 2                           ok WINDOW RKEY
//   bind WINDOW QP ID REGION OFFSET BYTES RIGHTS                              ok RKEY, which is good when ID has completed
//   fill REGION OFFSET BYTES SEED            bytes that the seed makes
//   blank REGION OFFSET BYTES                0xee
//   check REGION OFFSET BYTES SEED           the bytes are the seed's, and GUARD of 0xee stand on each side
//   untouched REGION OFFSET BYTES            all of them are 0xee
//   word REGION OFFSET / set REGION OFFSET VALUE
//   srq REQUESTS
//   qp KIND REQUESTS SHARED                  kind: rc, uc, ud                 ok QP NUMBER
//                                            rcx: rc with ATOMIC WRITE and FLUSH, where the device has them
//   connect QP NUMBER PSN OWN_PSN ADDRESS MTU TIMEOUT RETRY RNR_RETRY RNR_TIMER
//   activate QP QKEY                         a datagram queue pair
//   path ADDRESS                             ok PATH
//   recv QP ID REGION OFFSET BYTES           qp -1: the shared receive queue
//   post QP ID OPERATION REGION OFFSET BYTES ADDRESS RKEY A B
//        a: immediate data, what to add, compare or write, the key to take back, or the placement types of a FLUSH;
//        b: what to swap, or the selectivity level of a FLUSH; of datagrams ADDRESS is a path, RKEY a number, b the Q_Key
//   poll MS COUNT                            ok N, and of each: id:status:opcode:bytes:imm:qpn:source
//                                            imm: immediate data, or the key that was taken back
//   destroy QP
//   counter NAME                             of the device's hardware counters
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REGIONS = 16, PAIRS = 16, PATHS = 16, WINDOWS = 16, LINE = 1024, GUARD = 32, BLANK = 0xee, ENTRIES = 8192, COMPLETIONS = 64 };
static const uint64_t LONGEST = 256 << 20;

struct region {
    struct ibv_mr *mr;
    uint8_t *bytes;
    uint64_t len;
};
static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_port_attr port;
static int gid_index;
static struct region regions[REGIONS];
static struct ibv_qp *pairs[PAIRS];
static struct ibv_ah *paths[PATHS];
static struct ibv_mw *windows[WINDOWS];
static uint64_t able;
static FILE *out;

static void ok(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("ok", out);
    vfprintf(out, format, list);
    fputc('\n', out);
    va_end(list);
}
static void no(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("no ", out);
    vfprintf(out, format, list);
    fputc('\n', out);
    va_end(list);
}
static void no_errno(const char *what, int error) { no("%s: %s", what, strerror(error)); }
static void ok_or_errno(const char *what, int error) {
    if (error) no_errno(what, error);
    else ok("");
}

// Bytes of a seed: SplitMix64, eight bytes a number, the lowest first.
static uint64_t number(uint64_t seed, uint64_t n) {
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static uint8_t byte_of(uint64_t seed, uint64_t at) {
    static uint64_t last_seed, last_n = UINT64_MAX, last;
    if (last_seed != seed || last_n != at / 8) last = number(last_seed = seed, last_n = at / 8);
    return (uint8_t)(last >> at % 8 * 8);
}

// The bytes of a region from `offset` on, if there are `len`; otherwise the command is answered.
static uint8_t *within(int n, uint64_t offset, uint64_t len) {
    if (n < 0 || n >= REGIONS || !regions[n].mr) return no("no region %d", n), NULL;
    if (offset > regions[n].len || len > regions[n].len - offset) return no("outside of region %d", n), NULL;
    return regions[n].bytes + offset;
}
static struct ibv_qp *pair(int n) {
    if (n < 0 || n >= PAIRS || !pairs[n]) return no("no queue pair %d", n), NULL;
    return pairs[n];
}
// ADDRESS as a GID: IPv4 addresses as IPv4-mapped ones.
static int parse_gid(const char *text, union ibv_gid *gid) {
    memset(gid, 0, sizeof *gid);
    gid->raw[10] = gid->raw[11] = 0xff;
    return inet_pton(AF_INET, text, gid->raw + 12) == 1 || inet_pton(AF_INET6, text, gid->raw) == 1;
}
static struct ibv_ah_attr path_to(const union ibv_gid *gid) {
    return (struct ibv_ah_attr){
        .is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}};
}

static int has_windows(void) { return (able & IBV_DEVICE_MEM_WINDOW) && (able & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)); }
// The kernel's numbers, which verbs.h does not name.
static int has_flush(void) { return able >> 38 & 1; }
static int has_atomic_write(void) { return able >> 40 & 1; }

static void open_device(const char *address) {
    union ibv_gid wanted, gid;
    int count;
    struct ibv_device_attr_ex attr;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (device) return no("open already");
    if (!parse_gid(address, &wanted)) return no("no address: %s", address);
    for (int i = 0; list && i < count && !device; i++) {
        struct ibv_context *candidate = ibv_open_device(list[i]);
        if (!candidate) continue;
        if (ibv_query_port(candidate, 1, &port)) port.gid_tbl_len = 0;
        for (int g = 0; g < port.gid_tbl_len; g++)
            if (!ibv_query_gid(candidate, 1, g, &gid) && !memcmp(&gid, &wanted, sizeof gid)) device = candidate, gid_index = g;
        if (!device) ibv_close_device(candidate);
    }
    if (!device) return no("no device has the GID %s", address);
    pd = ibv_alloc_pd(device);
    cq = ibv_create_cq(device, ENTRIES, NULL, NULL, 0);
    if (!pd || !cq) return no_errno("protection domain, completion queue", errno);
    if (ibv_query_device_ex(device, NULL, &attr)) return no("it does not tell what it is able to do");
    able = attr.device_cap_flags_ex;
    ok(" %d", 128 << port.active_mtu);
}

static int rights_of(const char *letters) {
    static const struct {
        char letter;
        int right;
    } all[] = {{'w', IBV_ACCESS_REMOTE_WRITE}, {'r', IBV_ACCESS_REMOTE_READ}, {'a', IBV_ACCESS_REMOTE_ATOMIC},
               {'m', IBV_ACCESS_MW_BIND},      {'f', IBV_ACCESS_FLUSH_GLOBAL}};
    int access = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strchr(letters, all[i].letter)) access |= all[i].right;
    return access;
}
static void make_region(uint64_t len, const char *rights) {
    int n = 0, access = IBV_ACCESS_LOCAL_WRITE | rights_of(rights);
    while (n < REGIONS && regions[n].mr) n++;
    if (n == REGIONS || len == 0 || len > LONGEST) return no("too many regions, or bytes");
    struct region made = {.bytes = aligned_alloc(4096, (len + 4095) / 4096 * 4096), .len = len};
    if (!made.bytes) return no("no memory");
    memset(made.bytes, BLANK, len);
    made.mr = ibv_reg_mr(pd, made.bytes, len, access);
    if (!made.mr) return no_errno("registration", errno);
    regions[n] = made;
    ok(" %d %" PRIuPTR " %" PRIu32, n, (uintptr_t)made.bytes, made.mr->rkey);
}

static void make_window(int type) {
    int n = 0;
    while (n < WINDOWS && windows[n]) n++;
    if (n == WINDOWS) return no("too many windows");
    windows[n] = ibv_alloc_mw(pd, type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
    if (!windows[n]) return no_errno("memory window", errno);
    ok(" %d %" PRIu32, n, windows[n]->rkey);
}
static void bind_window(int n, int qp_number, uint64_t id, int region, uint64_t offset, uint64_t len, const char *rights) {
    uint8_t *bytes = within(region, offset, len);
    struct ibv_qp *qp = bytes ? pair(qp_number) : NULL;
    if (!qp) return;
    if (n < 0 || n >= WINDOWS || !windows[n]) return no("no window %d", n);
    struct ibv_mw_bind_info info = {
        .mr = regions[region].mr, .addr = (uintptr_t)bytes, .length = len, .mw_access_flags = (unsigned)rights_of(rights)};
    uint32_t rkey = ibv_inc_rkey(windows[n]->rkey);
    int error;
    if (windows[n]->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
        error = ibv_bind_mw(qp, windows[n], &bind);
        rkey = windows[n]->rkey;
    } else {
        struct ibv_send_wr wr = {.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
        wr.bind_mw.mw = windows[n];
        wr.bind_mw.rkey = rkey;
        wr.bind_mw.bind_info = info;
        error = ibv_post_send(qp, &wr, &bad);
        if (!error) windows[n]->rkey = rkey;
    }
    if (error) no_errno("bind", error);
    else ok(" %" PRIu32, rkey);
}

static int blank_until(const uint8_t *from, const uint8_t *to) {
    for (; from < to; from++)
        if (*from != BLANK) return 0;
    return 1;
}
static void check(int n, uint64_t offset, uint64_t len, uint64_t seed) {
    uint8_t *bytes = within(n, offset, len);
    if (!bytes) return;
    for (uint64_t i = 0; i < len; i++)
        if (bytes[i] != byte_of(seed, i))
            return no("byte %" PRIu64 " of %" PRIu64 " is %02x instead of %02x", i, len, bytes[i], byte_of(seed, i));
    if (offset >= GUARD && !blank_until(bytes - GUARD, bytes)) return no("bytes before the message were written");
    if (regions[n].len - offset - len >= GUARD && !blank_until(bytes + len, bytes + len + GUARD))
        return no("bytes behind the message were written");
    ok("");
}

static void make_pair(const char *kind, uint32_t requests, int shared) {
    int n = 0;
    while (n < PAIRS && pairs[n]) n++;
    if (n == PAIRS || (shared && !srq)) return no("too many queue pairs, or no shared receive queue");
    int extended = !strcmp(kind, "rcx");
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .srq = shared ? srq : NULL, .sq_sig_all = 1, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
        .qp_type = !strcmp(kind, "ud") ? IBV_QPT_UD : !strcmp(kind, "uc") ? IBV_QPT_UC : IBV_QPT_RC,
        .cap = {.max_send_wr = requests, .max_recv_wr = shared ? 0 : requests, .max_send_sge = 1, .max_recv_sge = 1}};
    if (extended) {
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = IBV_QP_EX_WITH_SEND;
        if (has_flush()) init.send_ops_flags |= IBV_QP_EX_WITH_FLUSH;
        if (has_atomic_write()) init.send_ops_flags |= IBV_QP_EX_WITH_ATOMIC_WRITE;
    }
    struct ibv_qp *qp = ibv_create_qp_ex(device, &init);
    if (!qp) return no_errno("queue pair", errno);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (init.qp_type == IBV_QPT_UD) mask |= IBV_QP_QKEY;
    else mask |= IBV_QP_ACCESS_FLAGS;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (init.qp_type == IBV_QPT_RC) attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    if (extended && has_flush()) attr.qp_access_flags |= IBV_ACCESS_FLUSH_GLOBAL;
    int error = ibv_modify_qp(qp, &attr, mask);
    if (error) return no_errno("INIT", error);
    pairs[n] = qp;
    ok(" %d %" PRIu32, n, qp->qp_num);
}

struct far {
    uint32_t qpn, psn, own_psn, mtu, timeout, retry, rnr_retry, rnr_timer;
};
static void connect_pair(int n, const char *address, const struct far *far) {
    union ibv_gid gid;
    struct ibv_qp *qp = pair(n);
    if (!qp) return;
    if (!parse_gid(address, &gid)) return no("no address: %s", address);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .dest_qp_num = far->qpn, .rq_psn = far->psn, .max_dest_rd_atomic = 16,
        .min_rnr_timer = (uint8_t)far->rnr_timer, .ah_attr = path_to(&gid)};
    for (uint32_t bytes = far->mtu; bytes >= 256; bytes /= 2) attr.path_mtu++;
    int rc = qp->qp_type == IBV_QPT_RC;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    int error = ibv_modify_qp(qp, &attr, mask | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    if (error) return no_errno("RTR", error);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .sq_psn = far->own_psn, .max_rd_atomic = 16, .timeout = (uint8_t)far->timeout,
        .retry_cnt = (uint8_t)far->retry, .rnr_retry = (uint8_t)far->rnr_retry};
    mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    ok_or_errno("RTS", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? mask : 0)));
}
static void activate(int n, uint32_t qkey) {
    struct ibv_qp *qp = pair(n);
    if (!qp) return;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .qkey = qkey};
    int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    attr.qp_state = IBV_QPS_RTS;
    if (!error) error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
    // It was given a Q_Key of 0 in INIT.
    if (!error) error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY);
    ok_or_errno("activation", error);
}
static void make_path(const char *address) {
    union ibv_gid gid;
    int n = 0;
    while (n < PATHS && paths[n]) n++;
    if (n == PATHS || !parse_gid(address, &gid)) return no("too many paths, or no address: %s", address);
    struct ibv_ah_attr attr = path_to(&gid);
    paths[n] = ibv_create_ah(pd, &attr);
    if (!paths[n]) return no_errno("address handle", errno);
    ok(" %d", n);
}

static void post_recv(int n, uint64_t id, int region, uint64_t offset, uint64_t len) {
    uint8_t *bytes = within(region, offset, len);
    struct ibv_qp *qp = NULL;
    if (!bytes || (n != -1 && !(qp = pair(n)))) return;
    if (n == -1 && !srq) return no("no shared receive queue");
    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = (uint32_t)len, .lkey = regions[region].mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = len ? 1 : 0}, *bad;
    ok_or_errno("receive request", qp ? ibv_post_recv(qp, &wr, &bad) : ibv_post_srq_recv(srq, &wr, &bad));
}
// What has no number for ibv_post_send.
static void post_extended(struct ibv_qp *qp, uint64_t id, const char *op, uint64_t len, uint64_t remote, uint32_t rkey, uint64_t a,
                          uint64_t b) {
    struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);
    int flush = !strcmp(op, "flush");
    if (!extended || !(flush ? has_flush() : has_atomic_write())) return no("the queue pair, or the device, has no %s", op);
    ibv_wr_start(extended);
    extended->wr_id = id;
    extended->wr_flags = IBV_SEND_SIGNALED;
    if (flush) ibv_wr_flush(extended, rkey, remote, len, (uint8_t)a, (uint8_t)b);
    else ibv_wr_atomic_write(extended, rkey, remote, &a);
    ok_or_errno(op, ibv_wr_complete(extended));
}
static void post_send(int n, uint64_t id, const char *op, int region, uint64_t offset, uint64_t len, uint64_t remote,
                      uint32_t rkey, uint64_t a, uint64_t b) {
    static const struct {
        const char *name;
        enum ibv_wr_opcode opcode;
    } operations[] = {{"send", IBV_WR_SEND},   {"sendimm", IBV_WR_SEND_WITH_IMM},        {"write", IBV_WR_RDMA_WRITE},
                      {"read", IBV_WR_RDMA_READ}, {"writeimm", IBV_WR_RDMA_WRITE_WITH_IMM}, {"add", IBV_WR_ATOMIC_FETCH_AND_ADD},
                      {"cas", IBV_WR_ATOMIC_CMP_AND_SWP}, {"sendinv", IBV_WR_SEND_WITH_INV},        {"localinv", IBV_WR_LOCAL_INV}};
    uint8_t *bytes = within(region, offset, len);
    struct ibv_qp *qp = bytes ? pair(n) : NULL;
    size_t i = 0, count = sizeof operations / sizeof *operations;
    if (!qp) return;
    if (!strcmp(op, "flush") || !strcmp(op, "atomicwrite")) return post_extended(qp, id, op, len, remote, rkey, a, b);
    while (i < count && strcmp(operations[i].name, op)) i++;
    if (i == count) return no("no operation %s", op);
    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = (uint32_t)len, .lkey = regions[region].mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = len ? 1 : 0, .opcode = operations[i].opcode}, *bad;
    if (wr.opcode == IBV_WR_SEND_WITH_INV || wr.opcode == IBV_WR_LOCAL_INV) wr.invalidate_rkey = (uint32_t)a;
    else wr.imm_data = htonl((uint32_t)a);
    if (qp->qp_type == IBV_QPT_UD) {
        if (remote >= PATHS || !paths[remote]) return no("no path %" PRIu64, remote);
        wr.wr.ud.ah = paths[remote];
        wr.wr.ud.remote_qpn = rkey;
        wr.wr.ud.remote_qkey = (uint32_t)b;
    } else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = a;
        wr.wr.atomic.swap = b;
    } else {
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = rkey;
    }
    ok_or_errno("send request", ibv_post_send(qp, &wr, &bad));
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
// Completions: at least one, if one comes in that time.
static void poll_cq(int64_t ms, int most) {
    struct ibv_wc wc[COMPLETIONS];
    int64_t until = now_ms() + ms;
    int n;
    if (!cq) return no("open a device first");
    if (most < 1 || most > COMPLETIONS) most = COMPLETIONS;
    while ((n = ibv_poll_cq(cq, most, wc)) == 0 && now_ms() < until) usleep(100);
    if (n < 0) return no("the completion queue is broken");
    fprintf(out, "ok %d", n);
    for (int i = 0; i < n; i++) {
        // The kernel's rxe has another bit than verbs.h for a key that was taken back, which is that of a good checksum there.
        int taken_back = wc[i].wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK);
        uint32_t with = wc[i].wc_flags & IBV_WC_WITH_IMM ? ntohl(wc[i].imm_data) : taken_back ? wc[i].invalidated_rkey : 0;
        fprintf(out, " %" PRIu64 ":%d:%d:%" PRIu32 ":%" PRIu32 ":%" PRIu32 ":%" PRIu32, wc[i].wr_id, wc[i].status, wc[i].opcode,
                wc[i].byte_len, with, wc[i].qp_num, wc[i].src_qp);
    }
    fputc('\n', out);
}

static void counter(const char *name) {
    char path[256], value[64];
    if (strchr(name, '/') || !device) return no("no counter %s", name);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/%s", ibv_get_device_name(device->device), name);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(value, sizeof value, file)) no("no counter %s", name);
    else ok(" %lu", strtoul(value, NULL, 10));
    if (file) fclose(file);
}

// What needs no queue pair, and what needs one. Each answers, if the command is one of its own.
static int memory_command(const char *line) {
    uint64_t offset, len, value;
    char text[64];
    int n;
    uint8_t *bytes;
    if (sscanf(line, "open %63s", text) == 1) open_device(text);
    else if (!device) no("open a device first");
    else if (!strncmp(line, "able\n", 5)) {
        ok("%s%s%s", has_windows() ? " windows" : "", has_atomic_write() ? " atomic_write" : "", has_flush() ? " flush" : "");
    } else if (sscanf(line, "region %" SCNu64 " %63s", &len, text) == 2) make_region(len, text);
    else if (sscanf(line, "fill %d %" SCNu64 " %" SCNu64 " %" SCNu64, &n, &offset, &len, &value) == 4) {
        if (!(bytes = within(n, offset, len))) return 1;
        for (uint64_t i = 0; i < len; i++) bytes[i] = byte_of(value, i);
        ok("");
    } else if (sscanf(line, "blank %d %" SCNu64 " %" SCNu64, &n, &offset, &len) == 3) {
        if (!(bytes = within(n, offset, len))) return 1;
        memset(bytes, BLANK, len);
        ok("");
    } else if (sscanf(line, "check %d %" SCNu64 " %" SCNu64 " %" SCNu64, &n, &offset, &len, &value) == 4) {
        check(n, offset, len, value);
    } else if (sscanf(line, "untouched %d %" SCNu64 " %" SCNu64, &n, &offset, &len) == 3) {
        if (!(bytes = within(n, offset, len))) return 1;
        if (blank_until(bytes, bytes + len)) ok("");
        else no("some of these bytes were written");
    } else if (sscanf(line, "word %d %" SCNu64, &n, &offset) == 2) {
        if (!(bytes = within(n, offset, 8))) return 1;
        memcpy(&value, bytes, 8);
        ok(" %" PRIu64, value);
    } else if (sscanf(line, "set %d %" SCNu64 " %" SCNu64, &n, &offset, &value) == 3) {
        if (!(bytes = within(n, offset, 8))) return 1;
        memcpy(bytes, &value, 8);
        ok("");
    } else if (sscanf(line, "counter %63s", text) == 1) counter(text);
    else return 0;
    return 1;
}
static int pair_command(const char *line) {
    uint64_t id, offset, len, remote, a, b;
    uint32_t number;
    struct far far;
    char text[64];
    int n, shared, window;
    if (sscanf(line, "srq %" SCNu32, &number) == 1) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = number, .max_sge = 1}};
        if (srq) no("there is one");
        else if ((srq = ibv_create_srq(pd, &init))) ok("");
        else no_errno("shared receive queue", errno);
    } else if (sscanf(line, "qp %63s %" SCNu32 " %d", text, &number, &shared) == 3) make_pair(text, number, shared);
    else if (sscanf(line, "connect %d %" SCNu32 " %" SCNu32 " %" SCNu32 " %63s %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32,
                    &n, &far.qpn, &far.psn, &far.own_psn, text, &far.mtu, &far.timeout, &far.retry, &far.rnr_retry,
                    &far.rnr_timer) == 10) connect_pair(n, text, &far);
    else if (sscanf(line, "window %d", &n) == 1) make_window(n);
    else if (sscanf(line, "bind %d %d %" SCNu64 " %d %" SCNu64 " %" SCNu64 " %63s", &window, &n, &id, &shared, &offset, &len,
                    text) == 7)
        bind_window(window, n, id, shared, offset, len, text);
    else if (sscanf(line, "activate %d %" SCNu32, &n, &number) == 2) activate(n, number);
    else if (sscanf(line, "path %63s", text) == 1) make_path(text);
    else if (sscanf(line, "recv %d %" SCNu64 " %d %" SCNu64 " %" SCNu64, &n, &id, &shared, &offset, &len) == 5)
        post_recv(n, id, shared, offset, len);
    else if (sscanf(line, "post %d %" SCNu64 " %63s %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu32 " %" SCNu64 " %" SCNu64, &n,
                    &id, text, &shared, &offset, &len, &remote, &number, &a, &b) == 10)
        post_send(n, id, text, shared, offset, len, remote, number, a, b);
    else if (sscanf(line, "poll %" SCNu64 " %d", &len, &n) == 2) poll_cq((int64_t)len, n);
    else if (sscanf(line, "destroy %d", &n) == 1) {
        if (pair(n)) ok_or_errno("destruction", ibv_destroy_qp(pairs[n])), pairs[n] = NULL;
    } else return 0;
    return 1;
}

// The end of the process takes with it what the kernel holds for it.
static void serve(int connection) {
    char line[LINE];
    FILE *in = fdopen(dup(connection), "r");
    out = fdopen(connection, "w");
    while (in && out && fgets(line, sizeof line, in)) {
        if (!memory_command(line) && !pair_command(line)) no("no command: %.*s", (int)strcspn(line, "\n"), line);
        fflush(out);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 3 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1) return fputs("usage: rxe_peer ADDRESS PORT\n", stderr), 2;
    at.sin_port = htons((uint16_t)atoi(argv[2]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16)) return perror("rxe_peer: listen"), 1;
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0) continue;
        setsockopt(connection, 6, 1, &yes, sizeof yes);  // TCP_NODELAY
        if (fork() == 0) {
            close(listener);
            serve(connection);
            exit(0);
        }
        close(connection);
    }
}
