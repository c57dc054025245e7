/* Calls each function of VIPL, and provokes each return code. Arguments: the names of two devices. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vipl.h"

#define IS(call, expected)                                                                     \
    do {                                                                                       \
        int got_ = (int)(call);                                                                \
        if (got_ != (int)(expected)) {                                                         \
            fprintf(stderr, "%s:%d: %s is %d, not %d\n", __FILE__, __LINE__, #call, got_, (int)(expected)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)
#define OK(call) IS(call, VIP_SUCCESS)
#define HOLDS(condition) IS(!!(condition), 1)
/* Milliseconds in which all that comes has come. */
#define PATIENCE 20000
#define NOTHING ((VIP_PVOID)(size_t)0x7fffffff)
#define BYTES 65536

_Static_assert(sizeof(VIP_CONTROL_SEGMENT) == 32 && offsetof(VIP_CONTROL_SEGMENT, Status) == 28, "control segment");
_Static_assert(sizeof(VIP_DESCRIPTOR) == 64 && sizeof(VIP_ERROR_DESCRIPTOR) == 48, "descriptors");
_Static_assert(sizeof(VIP_VI_ATTRIBUTES) == 40 && sizeof(VIP_MEM_ATTRIBUTES) == 16, "attributes");
_Static_assert(sizeof(VIP_NIC_ATTRIBUTES) == 200 && sizeof(VIP_AUTODISCOVERY_LIST) == 24, "attributes of adapters");
_Static_assert(offsetof(VIP_NET_ADDRESS, HostAddress) == 4, "addresses");

struct side {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_NIC_ATTRIBUTES is;
    VIP_NET_ADDRESS address;
    unsigned char *memory; /* descriptors in the first half, data in the second */
    VIP_MEM_HANDLE handle;
    VIP_VI_HANDLE vi;
};

static VIP_VI_ATTRIBUTES attributes(struct side *side, VIP_RELIABILITY_LEVEL level) {
    VIP_VI_ATTRIBUTES a = {level, 4096, NULL, side->ptag, VIP_TRUE, level != VIP_SERVICE_UNRELIABLE};
    return a;
}

static void open_side(struct side *side, const char *device, const char *discriminator) {
    OK(VipOpenNic(device, &side->nic));
    OK(VipQueryNic(side->nic, &side->is));
    HOLDS(side->is.NicAddressLen == 4 || side->is.NicAddressLen == 16);
    HOLDS(side->is.ThreadSafe && side->is.MaxVI > 1 && side->is.MaxPtags > 1 && side->is.NativeMTU >= 256);
    HOLDS(side->is.ReliabilityLevelSupport & VIP_SERVICE_RELIABLE_DELIVERY);
    HOLDS(!(side->is.RDMAReadSupport & VIP_SERVICE_UNRELIABLE));
    HOLDS(strlen(side->is.Name) > 0 && side->is.MaxDiscriminatorLen == 16);
    side->address.HostAddressLen = side->is.NicAddressLen;
    side->address.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(side->address.HostAddress, side->is.LocalNicAddress, side->is.NicAddressLen);
    memcpy(side->address.HostAddress + side->is.NicAddressLen, discriminator, strlen(discriminator));
    OK(VipCreatePtag(side->nic, &side->ptag));
    side->memory = aligned_alloc(4096, BYTES);
    memset(side->memory, 0, BYTES);
    VIP_MEM_ATTRIBUTES all = {side->ptag, VIP_TRUE, VIP_TRUE};
    OK(VipRegisterMem(side->nic, side->memory, BYTES, &all, &side->handle));
}

/* The descriptor of a place, for some bytes of the place's data. */
static VIP_DESCRIPTOR *descriptor(struct side *side, int place, VIP_UINT32 length) {
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(side->memory + 128 * place);
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Length = length;
    d->DS[0].Local.Data.Address = side->memory + BYTES / 2 + 256 * place;
    d->DS[0].Local.Handle = side->handle;
    d->DS[0].Local.Length = length;
    return d;
}
static VIP_DESCRIPTOR *rdma(struct side *side, int place, VIP_UINT32 length, int control, struct side *peer, int at) {
    VIP_DESCRIPTOR *d = descriptor(side, place, length);
    d->CS.SegCount = 2;
    d->CS.Control = (VIP_UINT16)control;
    d->DS[1].Local = d->DS[0].Local;
    d->DS[0].Remote.Data.Address = peer->memory + BYTES / 2 + 256 * at;
    d->DS[0].Remote.Handle = peer->handle;
    return d;
}
static char *data(struct side *side, int place) { return (char *)side->memory + BYTES / 2 + 256 * place; }

struct asked {
    struct side *from, *to;
    VIP_RETURN result;
};
static void *request(void *arg) {
    struct asked *asked = arg;
    VIP_VI_ATTRIBUTES remote;
    asked->result = VipConnectRequest(asked->from->vi, &asked->from->address, &asked->to->address, PATIENCE, &remote);
    if (asked->result == VIP_SUCCESS) HOLDS(remote.MaxTransferSize == 4096 && remote.Ptag == NULL);
    return NULL;
}
/* Has `from` ask `to`, which answers. */
static VIP_RETURN connect_sides(struct side *from, struct side *to, int accept) {
    struct asked asked = {from, to, VIP_SUCCESS};
    pthread_t thread;
    VIP_CONN_HANDLE connection;
    VIP_NET_ADDRESS who;
    VIP_VI_ATTRIBUTES theirs;
    /* The listener is there before the client asks. */
    IS(VipConnectWait(to->nic, &to->address, 0, &who, &theirs, &connection), VIP_TIMEOUT);
    HOLDS(!pthread_create(&thread, NULL, request, &asked));
    OK(VipConnectWait(to->nic, &to->address, PATIENCE, &who, &theirs, &connection));
    HOLDS(who.DiscriminatorLen == from->address.DiscriminatorLen && theirs.MaxTransferSize == 4096);
    HOLDS(!memcmp(who.HostAddress, from->address.HostAddress, who.HostAddressLen + who.DiscriminatorLen));
    if (accept) {
        IS(VipConnectAccept(connection, NOTHING), VIP_INVALID_PARAMETER);
        /* That one asks: the client is left to another. */
        IS(VipConnectAccept(connection, from->vi), VIP_INVALID_STATE);
        OK(VipConnectAccept(connection, to->vi));
        IS(VipConnectAccept(connection, to->vi), VIP_INVALID_PARAMETER);
    } else {
        OK(VipConnectReject(connection));
        IS(VipConnectReject(connection), VIP_INVALID_PARAMETER);
    }
    HOLDS(!pthread_join(thread, NULL));
    return asked.result;
}

static void state_is(VIP_VI_HANDLE vi, VIP_VI_STATE expected) {
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES is;
    VIP_BOOLEAN send, recv;
    OK(VipQueryVi(vi, &state, &is, &send, &recv));
    IS(state, expected);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static int calls;
static VIP_ERROR_DESCRIPTOR last_error;
static void called(void) {
    pthread_mutex_lock(&lock);
    calls++;
    pthread_cond_broadcast(&came);
    pthread_mutex_unlock(&lock);
}
static void wait_for_calls(int count) {
    pthread_mutex_lock(&lock);
    while (calls < count) pthread_cond_wait(&came, &lock);
    calls = 0;
    pthread_mutex_unlock(&lock);
}
static void of_vi(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *done) {
    struct side *side = context;
    HOLDS(nic == side->nic && vi == side->vi && (done->CS.Status & VIP_STATUS_DONE));
    called();
}
static void of_cq(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv) {
    struct side *side = context;
    HOLDS(nic == side->nic && vi == side->vi && recv == VIP_TRUE);
    called();
}
static void of_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) {
    HOLDS(context == NOTHING);
    last_error = *error;
    called();
}

/* Handles and pointers that name nothing. */
static void wrong_arguments(struct side *a) {
    VIP_PVOID out;
    VIP_UINT32 number;
    VIP_ULONG length = 0;
    VIP_BOOLEAN flag;
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES vi = attributes(a, VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_MEM_ATTRIBUTES mem = {a->ptag, VIP_FALSE, VIP_FALSE};
    VIP_NET_ADDRESS address = a->address;
    VIP_NIC_ATTRIBUTES nic;
    VIP_DESCRIPTOR *d;
    VIP_AUTODISCOVERY_LIST list = {0, NULL, 1};
    const VIP_RETURN bad = VIP_INVALID_PARAMETER;
    VIP_PVOID wrong[] = {NULL, NOTHING, a->ptag};
    for (int i = 0; i < 3; i++) {
        VIP_PVOID w = wrong[i];
        IS(VipCloseNic(w), bad);
        IS(VipQueryNic(w, &nic), bad);
        IS(VipErrorCallback(w, NULL, of_error), bad);
        IS(VipQuerySystemManagementInfo(w, VIP_SMI_AUTODISCOVERY, &list), bad);
        IS(VipCreateVi(w, &vi, NULL, NULL, &out), bad);
        IS(VipDestroyVi(w), bad);
        IS(VipSetViAttributes(w, &vi), bad);
        IS(VipQueryVi(w, &state, &vi, &flag, &flag), bad);
        IS(VipConnectWait(w, &address, 0, &address, &vi, &out), bad);
        IS(VipConnectAccept(w, w), bad);
        IS(VipConnectReject(w), bad);
        IS(VipConnectRequest(w, &address, &address, 0, &vi), bad);
        IS(VipDisconnect(w), bad);
        IS(VipConnectPeerRequest(w, &address, &address, 0), bad);
        IS(VipConnectPeerDone(w, &vi), bad);
        IS(VipConnectPeerWait(w, &vi), bad);
        IS(VipCreatePtag(w, &out), bad);
        IS(VipDestroyPtag(w, a->ptag), bad);
        IS(VipRegisterMem(w, a->memory, 64, &mem, &number), bad);
        IS(VipDeregisterMem(w, a->memory, a->handle), bad);
        IS(VipSetMemAttributes(w, a->memory, a->handle, &mem), bad);
        IS(VipQueryMem(w, a->memory, a->handle, &mem), bad);
        IS(VipPostSend(w, descriptor(a, 0, 1), a->handle), bad);
        IS(VipPostRecv(w, descriptor(a, 0, 1), a->handle), bad);
        IS(VipSendDone(w, &d), bad);
        IS(VipRecvDone(w, &d), bad);
        IS(VipSendWait(w, 0, &d), bad);
        IS(VipRecvWait(w, 0, &d), bad);
        IS(VipSendNotify(w, NULL, of_vi), bad);
        IS(VipRecvNotify(w, NULL, of_vi), bad);
        IS(VipCreateCQ(w, 1, &out), bad);
        IS(VipDestroyCQ(w), bad);
        IS(VipResizeCQ(w, 1), bad);
        IS(VipCQDone(w, &out, &flag), bad);
        IS(VipCQWait(w, 0, &out, &flag), bad);
        IS(VipCQNotify(w, NULL, of_cq), bad);
        IS(VipNSInit(w, NULL), bad);
        IS(VipNSGetHostByName(w, "localhost", &address, 0), bad);
        IS(VipNSGetHostByAddr(w, &a->address, (char *)&nic, &length), bad);
        IS(VipNSShutdown(w), bad);
    }
    /* Null where an object is needed. */
    IS(VipOpenNic(NULL, &out), bad);
    IS(VipOpenNic("shm://x", NULL), bad);
    IS(VipQueryNic(a->nic, NULL), bad);
    IS(VipQuerySystemManagementInfo(a->nic, VIP_SMI_AUTODISCOVERY, NULL), bad);
    IS(VipQuerySystemManagementInfo(a->nic, VIP_SMI_AUTODISCOVERY, &list), bad);
    IS(VipQuerySystemManagementInfo(a->nic, 99, &list), bad);
    IS(VipCreateVi(a->nic, NULL, NULL, NULL, &out), bad);
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, NULL), bad);
    IS(VipCreateVi(a->nic, &vi, NOTHING, NULL, &out), bad);
    IS(VipSetViAttributes(a->vi, NULL), bad);
    IS(VipQueryVi(a->vi, NULL, &vi, &flag, &flag), bad);
    IS(VipQueryVi(a->vi, &state, NULL, &flag, &flag), bad);
    IS(VipQueryVi(a->vi, &state, &vi, NULL, &flag), bad);
    IS(VipQueryVi(a->vi, &state, &vi, &flag, NULL), bad);
    IS(VipConnectWait(a->nic, NULL, 0, &address, &vi, &out), bad);
    IS(VipConnectWait(a->nic, &a->address, 0, NULL, &vi, &out), bad);
    IS(VipConnectWait(a->nic, &a->address, 0, &address, &vi, NULL), bad);
    IS(VipConnectRequest(a->vi, NULL, &a->address, 0, &vi), bad);
    IS(VipConnectRequest(a->vi, &a->address, NULL, 0, &vi), bad);
    IS(VipConnectPeerRequest(a->vi, NULL, &a->address, 0), bad);
    IS(VipConnectPeerRequest(a->vi, &a->address, NULL, 0), bad);
    IS(VipCreatePtag(a->nic, NULL), bad);
    IS(VipRegisterMem(a->nic, NULL, 64, &mem, &number), bad);
    IS(VipRegisterMem(a->nic, a->memory, 0, &mem, &number), bad);
    IS(VipRegisterMem(a->nic, a->memory, ~0UL, &mem, &number), bad);
    unsigned long page = sysconf(_SC_PAGESIZE);
    void *gone = mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HOLDS(gone != MAP_FAILED && munmap((char *)gone + page, page) == 0);
    IS(VipRegisterMem(a->nic, gone, 2 * page, &mem, &number), bad);
    IS(VipRegisterMem(a->nic, gone, page, &mem, &number), bad);
    munmap(gone, page);
    IS(VipRegisterMem(a->nic, a->memory, 64, NULL, &number), bad);
    IS(VipRegisterMem(a->nic, a->memory, 64, &mem, NULL), bad);
    IS(VipSetMemAttributes(a->nic, a->memory, a->handle, NULL), bad);
    IS(VipQueryMem(a->nic, a->memory, a->handle, NULL), bad);
    IS(VipQueryMem(a->nic, a->memory + 1, a->handle, &mem), bad);
    IS(VipQueryMem(a->nic, a->memory, a->handle + 1, &mem), bad);
    IS(VipDeregisterMem(a->nic, a->memory + 1, a->handle), bad);
    IS(VipDeregisterMem(a->nic, a->memory, a->handle + 1), bad);
    IS(VipPostRecv(a->vi, NULL, a->handle), bad);
    IS(VipPostRecv(a->vi, (VIP_DESCRIPTOR *)(a->memory + 32), a->handle), bad);
    IS(VipPostRecv(a->vi, (VIP_DESCRIPTOR *)(a->memory + BYTES), a->handle), bad);
    IS(VipPostRecv(a->vi, descriptor(a, 0, 1), a->handle + 1), bad);
    IS(VipSendDone(a->vi, NULL), bad);
    IS(VipRecvDone(a->vi, NULL), bad);
    IS(VipSendWait(a->vi, 0, NULL), bad);
    IS(VipRecvWait(a->vi, 0, NULL), bad);
    IS(VipSendNotify(a->vi, NULL, NULL), bad);
    IS(VipRecvNotify(a->vi, NULL, NULL), bad);
    IS(VipCreateCQ(a->nic, 1, NULL), bad);
    IS(VipCreateCQ(a->nic, 0, &out), bad);
    /* Addresses that are none. */
    address.HostAddressLen = 5;
    IS(VipConnectRequest(a->vi, &a->address, &address, 0, &vi), bad);
    address = a->address;
    address.DiscriminatorLen = 0;
    IS(VipConnectRequest(a->vi, &a->address, &address, 0, &vi), bad);
    address.DiscriminatorLen = 17;
    IS(VipConnectWait(a->nic, &address, 0, &a->address, &vi, &out), bad);
    address = a->address;
    address.HostAddress[0] ^= 1;
    IS(VipConnectWait(a->nic, &address, 0, &a->address, &vi, &out), bad);
}

static void attributes_and_states(struct side *a) {
    VIP_PVOID out;
    VIP_DESCRIPTOR *d;
    VIP_VI_STATE state;
    VIP_BOOLEAN send, recv;
    VIP_VI_ATTRIBUTES vi = attributes(a, 3), is;
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, &out), VIP_INVALID_RELIABILITY_LEVEL);
    vi = attributes(a, VIP_SERVICE_RELIABLE_DELIVERY);
    vi.MaxTransferSize = ~0UL;
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, &out), VIP_INVALID_MTU);
    vi.MaxTransferSize = a->is.MaxTransferSize + 1;
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, &out), VIP_INVALID_MTU);
    vi = attributes(a, VIP_SERVICE_RELIABLE_DELIVERY);
    vi.QoS = NOTHING;
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, &out), VIP_INVALID_QOS);
    vi.QoS = NULL;
    vi.Ptag = a->nic;
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, &out), VIP_INVALID_PTAG);
    vi = attributes(a, VIP_SERVICE_UNRELIABLE);
    vi.EnableRdmaRead = VIP_TRUE;
    IS(VipCreateVi(a->nic, &vi, NULL, NULL, &out), VIP_INVALID_RDMAREAD);
    vi = attributes(a, VIP_SERVICE_UNRELIABLE);
    OK(VipSetViAttributes(a->vi, &vi));
    OK(VipQueryVi(a->vi, &state, &is, &send, &recv));
    HOLDS(state == VIP_STATE_IDLE && send && recv && is.Ptag == a->ptag && is.QoS == NULL);
    HOLDS(is.ReliabilityLevel == VIP_SERVICE_UNRELIABLE && is.EnableRdmaWrite && !is.EnableRdmaRead);
    vi = attributes(a, VIP_SERVICE_RELIABLE_DELIVERY);
    OK(VipSetViAttributes(a->vi, &vi));
    /* An idle VI takes receives alone. */
    IS(VipPostSend(a->vi, descriptor(a, 0, 1), a->handle), VIP_INVALID_STATE);
    IS(VipDisconnect(a->vi), VIP_INVALID_STATE);
    IS(VipSendDone(a->vi, &d), VIP_NOT_DONE);
    IS(VipRecvDone(a->vi, &d), VIP_NOT_DONE);
    IS(VipSendWait(a->vi, 0, &d), VIP_TIMEOUT);
    IS(VipRecvWait(a->vi, 1, &d), VIP_TIMEOUT);
    /* What is in use is neither destroyed nor closed. */
    IS(VipDestroyPtag(a->nic, a->ptag), VIP_ERROR_RESOURCE);
    IS(VipDestroyPtag(a->nic, NOTHING), VIP_INVALID_PTAG);
    IS(VipCloseNic(a->nic), VIP_ERROR_RESOURCE);
    IS(VipOpenNic("no such device", &out), VIP_ERROR_RESOURCE);
}

static void memory(struct side *a) {
    VIP_MEM_ATTRIBUTES all = {a->ptag, VIP_TRUE, VIP_TRUE}, none = {a->ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_ATTRIBUTES wrong = {a->nic, VIP_FALSE, VIP_FALSE}, is;
    VIP_PROTECTION_HANDLE other;
    VIP_MEM_HANDLE handle;
    static unsigned char more[8192] __attribute__((aligned(4096)));
    OK(VipQueryMem(a->nic, a->memory, a->handle, &is));
    HOLDS(is.Ptag == a->ptag && is.EnableRdmaWrite && is.EnableRdmaRead);
    OK(VipSetMemAttributes(a->nic, a->memory, a->handle, &all));
    IS(VipSetMemAttributes(a->nic, a->memory, a->handle, &none), VIP_ERROR_RESOURCE);
    IS(VipSetMemAttributes(a->nic, a->memory, a->handle, &wrong), VIP_INVALID_PTAG);
    IS(VipRegisterMem(a->nic, more, sizeof more, &wrong, &handle), VIP_INVALID_PTAG);
    /* A descriptor of another tag is refused. */
    OK(VipCreatePtag(a->nic, &other));
    none.Ptag = other;
    OK(VipRegisterMem(a->nic, more, sizeof more, &none, &handle));
    IS(VipPostRecv(a->vi, (VIP_DESCRIPTOR *)more, handle), VIP_INVALID_PTAG);
    OK(VipDeregisterMem(a->nic, more, handle));
    IS(VipDeregisterMem(a->nic, more, handle), VIP_INVALID_PARAMETER);
    OK(VipDestroyPtag(a->nic, other));
    IS(VipDestroyPtag(a->nic, other), VIP_INVALID_PTAG);
}

static void names(struct side *a) {
    VIP_NET_ADDRESS address;
    VIP_CHAR name[64];
    VIP_ULONG length = sizeof name;
    VIP_AUTODISCOVERY_LIST list = {9, &address, 1};
    IS(VipNSGetHostByName(a->nic, "localhost", &address, 0), VIP_ERROR_NAMESERVICE);
    IS(VipNSShutdown(a->nic), VIP_ERROR_NAMESERVICE);
    OK(VipNSInit(a->nic, NULL));
    IS(VipNSInit(a->nic, NULL), VIP_ERROR_NAMESERVICE);
    OK(VipNSGetHostByName(a->nic, "127.0.0.1", &address, 0));
    HOLDS(address.HostAddressLen == 4 && address.DiscriminatorLen == 0 && address.HostAddress[0] == 127);
    IS(VipNSGetHostByName(a->nic, "127.0.0.1", &address, 1), VIP_ERROR_NAMESERVICE);
    IS(VipNSGetHostByName(a->nic, NULL, &address, 0), VIP_INVALID_PARAMETER);
    IS(VipNSGetHostByName(a->nic, "127.0.0.1", NULL, 0), VIP_INVALID_PARAMETER);
    if (VipNSGetHostByAddr(a->nic, &address, name, &length) == VIP_SUCCESS) {
        HOLDS(length == strlen(name) + 1);
        length = 1;
        IS(VipNSGetHostByAddr(a->nic, &address, name, &length), VIP_INVALID_PARAMETER);
        HOLDS(length == strlen(name) + 1);
    }
    address.HostAddress[1] = 251;
    length = sizeof name;
    IS(VipNSGetHostByAddr(a->nic, &address, name, &length), VIP_ERROR_NAMESERVICE);
    IS(VipNSGetHostByAddr(a->nic, NULL, name, &length), VIP_INVALID_PARAMETER);
    IS(VipNSGetHostByAddr(a->nic, &address, NULL, &length), VIP_INVALID_PARAMETER);
    IS(VipNSGetHostByAddr(a->nic, &address, name, NULL), VIP_INVALID_PARAMETER);
    OK(VipNSShutdown(a->nic));
    OK(VipQuerySystemManagementInfo(a->nic, VIP_SMI_AUTODISCOVERY, &list));
    HOLDS(list.NumAdAddrs == 1 && list.NumberOfHops == 0 && address.HostAddressLen == a->is.NicAddressLen);
    HOLDS(!memcmp(address.HostAddress, a->is.LocalNicAddress, a->is.NicAddressLen));
}

static void connections(struct side *a, struct side *b) {
    VIP_VI_ATTRIBUTES remote, other = attributes(b, VIP_SERVICE_UNRELIABLE);
    VIP_NET_ADDRESS nobody = b->address;
    VIP_CONN_HANDLE connection;
    nobody.HostAddress[nobody.HostAddressLen] ^= 1;
    IS(VipConnectRequest(a->vi, &a->address, &nobody, PATIENCE, &remote), VIP_NO_MATCH);
    IS(connect_sides(a, b, 0), VIP_REJECT);
    IS(VipConnectWait(b->nic, &b->address, 1, &nobody, &remote, &connection), VIP_TIMEOUT);
    /* Both ends need the same level. */
    OK(VipSetViAttributes(b->vi, &other));
    struct asked asked = {a, b, VIP_SUCCESS};
    pthread_t thread;
    HOLDS(!pthread_create(&thread, NULL, request, &asked));
    OK(VipConnectWait(b->nic, &b->address, PATIENCE, &nobody, NULL, &connection));
    IS(VipConnectAccept(connection, b->vi), VIP_INVALID_RELIABILITY_LEVEL);
    HOLDS(!pthread_join(thread, NULL));
    IS(asked.result, VIP_INVALID_RELIABILITY_LEVEL);
    other = attributes(b, VIP_SERVICE_RELIABLE_DELIVERY);
    OK(VipSetViAttributes(b->vi, &other));
    /* Peers: whoever asks first is told later. */
    IS(VipConnectPeerDone(a->vi, &remote), VIP_INVALID_STATE);
    /* Not b: a request that reaches b late would end that of b below. */
    nobody = b->address;
    nobody.HostAddress[nobody.HostAddressLen] ^= 1;
    OK(VipConnectPeerRequest(a->vi, &a->address, &nobody, 1));
    IS(VipConnectPeerWait(a->vi, &remote), VIP_TIMEOUT);
    OK(VipConnectPeerRequest(a->vi, &a->address, &b->address, PATIENCE));
    IS(VipConnectPeerDone(a->vi, &remote), VIP_NOT_DONE);
    state_is(a->vi, VIP_STATE_CONNECT_PENDING);
    OK(VipConnectPeerRequest(b->vi, &b->address, &a->address, PATIENCE));
    OK(VipConnectPeerWait(a->vi, &remote));
    OK(VipConnectPeerWait(b->vi, &remote));
    OK(VipConnectPeerDone(b->vi, &remote));
    state_is(a->vi, VIP_STATE_CONNECTED);
    OK(VipDisconnect(a->vi));
    OK(VipDisconnect(b->vi));
}

/* Errors that no descriptor of b reports. */
static void asynchronous_errors(struct side *a, struct side *b) {
    VIP_ERROR_CODE codes[] = {VIP_ERROR_RECVQ_EMPTY, VIP_ERROR_RDMAW_PROT, VIP_ERROR_RDMAR_PROT, VIP_ERROR_CONN_LOST};
    VIP_DESCRIPTOR *d;
    OK(VipErrorCallback(b->nic, NOTHING, of_error));
    for (int i = 0; i < 4; i++) {
        IS(connect_sides(a, b, 1), VIP_SUCCESS);
        if (i == 0) d = descriptor(a, 1, 8);
        if (i == 1) d = rdma(a, 1, 8, VIP_CONTROL_OP_RDMAWRITE, b, 5);
        if (i == 2) d = rdma(a, 1, 8, VIP_CONTROL_OP_RDMAREAD, b, 5);
        if (i < 3) {
            d->DS[0].Remote.Handle = i == 0 ? a->handle : b->handle ^ 0x55;
            OK(VipPostSend(a->vi, d, a->handle));
            IS(VipSendWait(a->vi, PATIENCE, &d), VIP_DESCRIPTOR_ERROR);
        } else {
            OK(VipDisconnect(a->vi));
        }
        wait_for_calls(1);
        HOLDS(last_error.NicHandle == b->nic && last_error.ViHandle == b->vi);
        IS(last_error.ErrorCode, codes[i]);
        state_is(b->vi, VIP_STATE_ERROR);
        if (i < 3) OK(VipDisconnect(a->vi));
        OK(VipDisconnect(b->vi));
    }
    OK(VipErrorCallback(b->nic, NULL, NULL));
}

static void messages(struct side *a, struct side *b) {
    VIP_DESCRIPTOR *d;
    IS(connect_sides(a, b, 1), VIP_SUCCESS);
    IS(VipConnectRequest(a->vi, &a->address, &b->address, 0, NULL), VIP_INVALID_STATE);
    IS(VipDestroyVi(a->vi), VIP_INVALID_STATE);
    /* A send with immediate data. */
    VIP_DESCRIPTOR *to = descriptor(b, 0, 200), *from = descriptor(a, 1, 100);
    strcpy(data(a, 1), "hello");
    from->CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
    from->CS.ImmediateData = 77;
    OK(VipPostRecv(b->vi, to, b->handle));
    IS(VipDeregisterMem(b->nic, b->memory, b->handle), VIP_ERROR_RESOURCE);
    OK(VipPostSend(a->vi, from, a->handle));
    OK(VipSendWait(a->vi, PATIENCE, &d));
    HOLDS(d == from && (d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_SEND);
    OK(VipRecvWait(b->vi, PATIENCE, &d));
    HOLDS(d == to && d->CS.Length == 100 && d->CS.ImmediateData == 77 && !strcmp(data(b, 0), "hello"));
    HOLDS(d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE));
    /* RDMA. */
    strcpy(data(a, 2), "written");
    OK(VipPostSend(a->vi, rdma(a, 2, 8, VIP_CONTROL_OP_RDMAWRITE, b, 5), a->handle));
    OK(VipSendWait(a->vi, VIP_INFINITE, &d));
    HOLDS(!strcmp(data(b, 5), "written"));
    OK(VipPostSend(a->vi, rdma(a, 3, 8, VIP_CONTROL_OP_RDMAREAD | VIP_CONTROL_QFENCE, b, 5), a->handle));
    while (VipSendDone(a->vi, &d) == VIP_NOT_DONE) {}
    HOLDS(!strcmp(data(a, 3), "written") && (d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_READ);
    /* Callbacks. */
    OK(VipRecvNotify(b->vi, b, of_vi));
    OK(VipSendNotify(a->vi, a, of_vi));
    OK(VipPostRecv(b->vi, descriptor(b, 0, 8), b->handle));
    OK(VipPostSend(a->vi, descriptor(a, 1, 8), a->handle));
    wait_for_calls(2);
    /* A descriptor of a wrong form completes with an error, which the handler hears of, and ends the connection. */
    OK(VipErrorCallback(a->nic, NOTHING, of_error));
    OK(VipErrorCallback(b->nic, NOTHING, of_error));
    d = descriptor(a, 1, 8);
    d->CS.Control = VIP_CONTROL_OP_RDMAREAD | VIP_CONTROL_OP_RDMAWRITE;
    OK(VipPostSend(a->vi, d, a->handle));
    IS(VipSendWait(a->vi, PATIENCE, &d), VIP_DESCRIPTOR_ERROR);
    HOLDS(d->CS.Status & VIP_STATUS_FORMAT_ERROR);
    wait_for_calls(2);
    HOLDS(last_error.NicHandle == a->nic || last_error.NicHandle == b->nic);
    HOLDS(last_error.ErrorCode == VIP_ERROR_POST_DESC || last_error.ErrorCode == VIP_ERROR_CONN_LOST);
    state_is(a->vi, VIP_STATE_ERROR);
    state_is(b->vi, VIP_STATE_ERROR);
    OK(VipErrorCallback(a->nic, NULL, NULL));
    OK(VipErrorCallback(b->nic, NULL, NULL));
    /* A disconnect flushes. */
    OK(VipPostRecv(b->vi, descriptor(b, 0, 8), b->handle));
    OK(VipDisconnect(b->vi));
    OK(VipDisconnect(a->vi));
    IS(VipDestroyVi(b->vi), VIP_ERROR_RESOURCE);
    IS(VipRecvDone(b->vi, &d), VIP_DESCRIPTOR_ERROR);
    HOLDS(d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR);
    for (VIP_ULONG i = 0; i < b->is.MaxDescriptorsPerQueue; i++) OK(VipPostRecv(b->vi, descriptor(b, 0, 8), b->handle));
    IS(VipPostRecv(b->vi, descriptor(b, 0, 8), b->handle), VIP_ERROR_RESOURCE);
}

static void completion_queues(struct side *a, struct side *b) {
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi, alone = a->vi;
    VIP_BOOLEAN recv;
    VIP_DESCRIPTOR *d;
    VIP_VI_ATTRIBUTES is = attributes(b, VIP_SERVICE_RELIABLE_DELIVERY);
    OK(VipCreateCQ(b->nic, 16, &cq));
    IS(VipResizeCQ(cq, 0), VIP_INVALID_PARAMETER);
    OK(VipResizeCQ(cq, 32));
    IS(VipCQDone(cq, NULL, &recv), VIP_INVALID_PARAMETER);
    IS(VipCQDone(cq, &vi, NULL), VIP_INVALID_PARAMETER);
    IS(VipCQWait(cq, 0, NULL, &recv), VIP_INVALID_PARAMETER);
    IS(VipCQNotify(cq, NULL, NULL), VIP_INVALID_PARAMETER);
    IS(VipCQDone(cq, &vi, &recv), VIP_NOT_DONE);
    IS(VipCQWait(cq, 1, &vi, &recv), VIP_TIMEOUT);
    OK(VipCreateVi(b->nic, &is, NULL, cq, &b->vi));
    IS(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    IS(VipRecvWait(b->vi, 0, &d), VIP_INVALID_PARAMETER);
    a->vi = alone;
    IS(connect_sides(a, b, 1), VIP_SUCCESS);
    for (int i = 0; i < 3; i++) {
        if (i == 2) OK(VipCQNotify(cq, b, of_cq));
        OK(VipPostRecv(b->vi, descriptor(b, 0, 8), b->handle));
        OK(VipPostSend(a->vi, descriptor(a, 1, 8), a->handle));
        OK(VipSendWait(a->vi, PATIENCE, &d));
        if (i == 0) OK(VipCQWait(cq, PATIENCE, &vi, &recv));
        if (i == 1) while (VipCQDone(cq, &vi, &recv) == VIP_NOT_DONE) {}
        if (i == 2) wait_for_calls(1);
        HOLDS(vi == b->vi && recv == VIP_TRUE);
        OK(VipRecvDone(b->vi, &d));
    }
    OK(VipDisconnect(a->vi));
    state_is(a->vi, VIP_STATE_IDLE);
    OK(VipDisconnect(b->vi));
    OK(VipDestroyVi(b->vi));
    /* One descriptor more than the queue has entries. */
    is.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    is.EnableRdmaRead = VIP_FALSE;
    OK(VipResizeCQ(cq, 1));
    OK(VipCreateVi(b->nic, &is, NULL, cq, &b->vi));
    OK(VipErrorCallback(b->nic, NOTHING, of_error));
    for (int i = 0; i < 2; i++) {
        d = descriptor(b, i, 8);
        d->DS[0].Local.Handle ^= 0x55;
        OK(VipPostRecv(b->vi, d, b->handle));
    }
    wait_for_calls(1);
    HOLDS(last_error.ErrorCode == VIP_ERROR_VI_OVERRUN && last_error.ViHandle == b->vi);
    OK(VipErrorCallback(b->nic, NULL, NULL));
    for (int i = 0; i < 2; i++) IS(VipRecvDone(b->vi, &d), VIP_DESCRIPTOR_ERROR);
    OK(VipDestroyVi(b->vi));
    IS(VipDestroyVi(b->vi), VIP_INVALID_PARAMETER);
    OK(VipDestroyCQ(cq));
    IS(VipDestroyCQ(cq), VIP_INVALID_PARAMETER);
}

int main(int argc, char **argv) {
    struct side a, b;
    IS(argc, 3);
    open_side(&a, argv[1], "first");
    open_side(&b, argv[2], "second");
    VIP_VI_ATTRIBUTES of_a = attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_VI_ATTRIBUTES of_b = attributes(&b, VIP_SERVICE_RELIABLE_DELIVERY);
    OK(VipCreateVi(a.nic, &of_a, NULL, NULL, &a.vi));
    OK(VipCreateVi(b.nic, &of_b, NULL, NULL, &b.vi));
    wrong_arguments(&a);
    attributes_and_states(&a);
    memory(&a);
    names(&a);
    connections(&a, &b);
    asynchronous_errors(&a, &b);
    messages(&a, &b);
    VIP_DESCRIPTOR *d;
    VIP_VI_HANDLE full = b.vi;
    completion_queues(&a, &b);
    /* The receives of the full queue go with a connection. */
    b.vi = full;
    IS(connect_sides(&a, &b, 1), VIP_SUCCESS);
    OK(VipDisconnect(b.vi));
    for (VIP_ULONG i = 0; i < b.is.MaxDescriptorsPerQueue; i++) IS(VipRecvDone(b.vi, &d), VIP_DESCRIPTOR_ERROR);
    OK(VipDisconnect(a.vi));
    /* A client that nobody answers is rejected as the adapter is closed. */
    struct asked asked = {&a, &b, VIP_SUCCESS};
    pthread_t thread;
    VIP_NET_ADDRESS who;
    VIP_CONN_HANDLE connection;
    HOLDS(!pthread_create(&thread, NULL, request, &asked));
    OK(VipConnectWait(b.nic, &b.address, PATIENCE, &who, NULL, &connection));
    struct side *both[] = {&b, &a};
    for (int i = 0; i < 2; i++) {
        OK(VipDestroyVi(both[i]->vi));
        IS(VipCloseNic(both[i]->nic), VIP_ERROR_RESOURCE);
        OK(VipDeregisterMem(both[i]->nic, both[i]->memory, both[i]->handle));
        IS(VipCloseNic(both[i]->nic), VIP_ERROR_RESOURCE);
        OK(VipDestroyPtag(both[i]->nic, both[i]->ptag));
        IS(VipDestroyPtag(both[i]->nic, both[i]->ptag), VIP_INVALID_PTAG);
        OK(VipCloseNic(both[i]->nic));
        IS(VipCloseNic(both[i]->nic), VIP_INVALID_PARAMETER);
        HOLDS(!memcmp(both[i]->is.LocalNicAddress, both[i]->address.HostAddress, both[i]->is.NicAddressLen));
        if (i == 0) {
            HOLDS(!pthread_join(thread, NULL));
            IS(asked.result, VIP_REJECT);
            IS(VipConnectReject(connection), VIP_INVALID_PARAMETER);
        }
        free(both[i]->memory);
    }
    puts("each function, each code");
    return 0;
}
