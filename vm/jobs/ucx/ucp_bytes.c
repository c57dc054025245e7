// UCX's operations between two processes, each byte compared, which ucx_perftest does not do: messages by tag, from one piece
// and from several; active messages with a header; put, get and fetch-and-add; of no byte to 1 MiB, around what UCX's protocols
// change at. UCX_TLS and UCX_NET_DEVICES say by what.
//
//   ucp_bytes
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { LONGEST = 1 << 20, HEADER = 24, PIECES = 4, AM_ID = 7, WAIT_SECONDS = 120, ADDS = 20 };
static const size_t SIZES[] = {0, 1, 7, 8, 31, 64, 100, 200, 256, 1000, 1024, 2000, 4096, 5000, 8192, 8256, 20000, 65536, 100001, LONGEST};
enum { COUNT = sizeof SIZES / sizeof *SIZES };

// What a process tells the other one of its memory.
struct memory {
    uint64_t at, words;
    size_t key_len;
};

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peer;
static uint8_t *bytes, *found;
static time_t started;
static const char *me;

static void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", me);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(1);
}

static void well(ucs_status_t status, const char *what) {
    if (status != UCS_OK) die("%s: %s", what, ucs_status_string(status));
}

static void turn(const char *what) {
    ucp_worker_progress(worker);
    if (time(NULL) > started + WAIT_SECONDS) die("%s: not done within %d s", what, WAIT_SECONDS);
}

static void finish(ucs_status_ptr_t request, const char *what) {
    started = time(NULL);
    if (!UCS_PTR_IS_PTR(request)) return well(UCS_PTR_STATUS(request), what);
    while (ucp_request_check_status(request) == UCS_INPROGRESS) turn(what);
    well(ucp_request_check_status(request), what);
    ucp_request_free(request);
}

static uint8_t expected(size_t at, unsigned seed) { return (uint8_t)((at * 2654435761u + seed * 40503u) >> 11); }

static void fill(uint8_t *at, size_t len, unsigned seed) {
    for (size_t i = 0; i < len; i++) at[i] = expected(i, seed);
}

static void compare(const uint8_t *at, size_t len, unsigned seed, const char *what, size_t size) {
    for (size_t i = 0; i < len; i++)
        if (at[i] != expected(i, seed)) die("%s of %zu: byte %zu is %#x, not %#x", what, size, i, at[i], expected(i, seed));
}

static const ucp_request_param_t PLAIN = {0};

// A message by tag. Of several pieces if the seed is odd, the first of which is small.
static void send_tag(size_t len, unsigned seed) {
    fill(bytes, len, seed);
    ucp_dt_iov_t list[PIECES];
    ucp_request_param_t pieces = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_iov()};
    if (seed % 2 == 0 || len < 2 * PIECES) return finish(ucp_tag_send_nbx(peer, bytes, len, seed, &PLAIN), "ucp_tag_send_nbx");
    size_t at = 0;
    for (int i = 0; i < PIECES; i++) {
        size_t piece = i == 0 ? 3 : i == PIECES - 1 ? len - at : (len - at) / 3;
        list[i] = (ucp_dt_iov_t){bytes + at, piece};
        at += piece;
    }
    finish(ucp_tag_send_nbx(peer, list, PIECES, seed, &pieces), "ucp_tag_send_nbx, pieces");
}

static void take_tag(size_t len, unsigned seed) {
    memset(found, 0xee, len);
    ucp_tag_recv_info_t info = {0};
    ucp_request_param_t with_info = {.op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO, .recv_info.tag_info = &info};
    finish(ucp_tag_recv_nbx(worker, found, len, seed, (ucp_tag_t)-1, &with_info), "ucp_tag_recv_nbx");
    compare(found, len, seed, "a message by tag", len);
}

static struct {
    int come, busy;
    size_t len;
    unsigned seed;
} active;

static void data_is_here(void *request, ucs_status_t status, size_t len, void *user) {
    (void)len, (void)user;
    well(status, "ucp_am_recv_data_nbx");
    ucp_request_free(request);
    active.busy = 0;
}

static ucs_status_t message_is_here(void *arg, const void *header, size_t header_len, void *data, size_t len, const ucp_am_recv_param_t *param) {
    (void)arg;
    if (header_len != HEADER) die("the header of an active message has %zu bytes", header_len);
    compare(header, HEADER, active.seed + 1, "the header of an active message", len);
    if (len != active.len) die("an active message has %zu bytes, not %zu", len, active.len);
    active.come = 1;
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) return memcpy(found, data, len), UCS_OK;
    ucp_request_param_t call = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FLAG_NO_IMM_CMPL, .cb.recv_am = data_is_here};
    active.busy = 1;
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker, data, found, len, &call);
    if (UCS_PTR_IS_ERR(request)) well(UCS_PTR_STATUS(request), "ucp_am_recv_data_nbx");
    return UCS_INPROGRESS;
}

static void send_active(size_t len, unsigned seed) {
    uint8_t header[HEADER];
    fill(bytes, len, seed);
    fill(header, HEADER, seed + 1);
    finish(ucp_am_send_nbx(peer, AM_ID, header, HEADER, bytes, len, &PLAIN), "ucp_am_send_nbx");
}

// Both know by a message by tag that the other one expects it.
static void expect_active(size_t len, unsigned seed) {
    memset(found, 0xee, len);
    memset(&active, 0, sizeof active);
    active.len = len, active.seed = seed;
}

static void take_active(size_t len, unsigned seed) {
    started = time(NULL);
    while (!active.come || active.busy) turn("an active message");
    compare(found, len, seed, "an active message", len);
}

static void flush(void) { finish(ucp_ep_flush_nbx(peer, &PLAIN), "ucp_ep_flush_nbx"); }

static void move(int talk, void *what, size_t len, int sends) {
    ssize_t moved = sends ? write(talk, what, len) : recv(talk, what, len, MSG_WAITALL);
    if (moved != (ssize_t)len) die("the other process is gone");
}

static void open_worker(int talk) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_AMO64};
    ucp_worker_params_t own = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = AM_ID,
        .cb = message_is_here};
    ucp_address_t *address, *other;
    size_t len, other_len;
    well(ucp_init(&params, NULL, &context), "ucp_init");
    well(ucp_worker_create(context, &own, &worker), "ucp_worker_create");
    well(ucp_worker_set_am_recv_handler(worker, &handler), "ucp_worker_set_am_recv_handler");
    well(ucp_worker_get_address(worker, &address, &len), "ucp_worker_get_address");
    move(talk, &len, sizeof len, 1), move(talk, address, len, 1);
    move(talk, &other_len, sizeof other_len, 0);
    other = malloc(other_len);
    move(talk, other, other_len, 0);
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = other};
    well(ucp_ep_create(worker, &to, &peer), "ucp_ep_create");
}

// Memory that the other process reaches, and the key of that process's.
static uint8_t *shared;
static struct memory theirs;
static ucp_rkey_h key;
static ucp_mem_h mapped;

static void share(int talk) {
    void *packed, *other;
    struct memory mine;
    shared = aligned_alloc(4096, LONGEST + 4096);
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = shared,
        .length = LONGEST + 4096};
    memset(shared, 0, LONGEST + 4096);
    well(ucp_mem_map(context, &params, &mapped), "ucp_mem_map");
    mine = (struct memory){.at = (uintptr_t)shared, .words = (uintptr_t)shared + LONGEST};
    well(ucp_rkey_pack(context, mapped, &packed, &mine.key_len), "ucp_rkey_pack");
    move(talk, &mine, sizeof mine, 1), move(talk, packed, mine.key_len, 1);
    ucp_rkey_buffer_release(packed);
    move(talk, &theirs, sizeof theirs, 0);
    other = malloc(theirs.key_len);
    move(talk, other, theirs.key_len, 0);
    well(ucp_ep_rkey_unpack(peer, other, &key), "ucp_ep_rkey_unpack");
    free(other);
}

static void put(size_t len, unsigned seed) {
    fill(bytes, len, seed);
    finish(ucp_put_nbx(peer, bytes, len, theirs.at, key, &PLAIN), "ucp_put_nbx");
    flush();
}

static void get(size_t len, unsigned seed) {
    memset(found, 0xee, len);
    finish(ucp_get_nbx(peer, found, len, theirs.at, key, &PLAIN), "ucp_get_nbx");
    compare(found, len, seed, "a get", len);
}

static void add(void) {
    uint64_t before, one = 1;
    ucp_request_param_t reply = {.op_attr_mask = UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_DATATYPE, .reply_buffer = &before,
        .datatype = ucp_dt_make_contig(8)};
    for (uint64_t i = 0; i < ADDS; i++) {
        finish(ucp_atomic_op_nbx(peer, UCP_ATOMIC_OP_ADD, &one, 1, theirs.words, key, &reply), "ucp_atomic_op_nbx");
        if (before != i) die("fetch-and-add %" PRIu64 " found %" PRIu64, i, before);
    }
}

// The one that begins each step; the other one does the same the other way round. Steps are told apart by their seeds.
static void step_of(unsigned step, int first) {
    size_t len = SIZES[step % COUNT];
    unsigned seed = 100 + 8 * step;
    if (first) {
        send_tag(len, seed), send_tag(len, seed + 1);
        take_tag(0, seed + 2);
        send_active(len, seed + 3);
        take_tag(0, seed + 4);
        put(len, seed + 5);
        send_tag(0, seed + 6);
        take_tag(0, seed + 7);
        get(len, seed + 7);
        send_tag(0, seed + 8);
    } else {
        take_tag(len, seed), take_tag(len, seed + 1);
        expect_active(len, seed + 3);
        send_tag(0, seed + 2);
        take_active(len, seed + 3);
        send_tag(0, seed + 4);
        take_tag(0, seed + 6);
        compare(shared, len, seed + 5, "a put", len);
        fill(shared, len, seed + 7);
        send_tag(0, seed + 7);
        take_tag(0, seed + 8);
    }
}

int main(void) {
    int talk[2], status;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, talk)) return perror("socketpair"), 1;
    pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    me = child ? "first" : "second";
    close(talk[child != 0]);
    int mine = talk[child == 0];
    bytes = aligned_alloc(4096, LONGEST), found = aligned_alloc(4096, LONGEST);
    open_worker(mine);
    share(mine);
    for (unsigned step = 0; step < COUNT; step++) step_of(step, child != 0), step_of(step + COUNT, child == 0);
    add();
    flush();
    // Neither leaves before the other one has all.
    char all = 0;
    move(mine, &all, 1, 1);
    started = time(NULL);
    while (recv(mine, &all, 1, MSG_DONTWAIT) != 1) turn("the other process's end");
    ucp_rkey_destroy(key);
    ucp_mem_unmap(context, mapped);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    if (!child) return 0;
    waitpid(child, &status, 0);
    if (status) die("the second process failed");
    printf("%d sizes of 0 to %d bytes: tags, pieces, active messages, put, get; %d atomics\n", COUNT, LONGEST, 2 * ADDS);
    return 0;
}
