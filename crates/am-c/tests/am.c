/* Calls each function of Active Messages, and provokes each return code. Arguments: a device, and 1 for VIs below. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "am.h"

#define IS(call, expected)                                                                     \
    do {                                                                                       \
        long got_ = (long)(call);                                                              \
        if (got_ != (long)(expected)) {                                                        \
            fprintf(stderr, "%s:%d: %s is %ld, not %ld\n", __FILE__, __LINE__, #call, got_, (long)(expected)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)
#define OK(call) IS(call, AM_OK)
#define HOLDS(condition) IS(!!(condition), 1)
#define SHORT 1
#define DATA 2
#define BACK 3
#define MANY 4
#define NESTED 5
#define SINK 6
#define TAG 77

static eb_t bundles[2];
static ep_t server, client;
static en_t server_name, client_name;
static char *segment, *client_segment;
static uintptr_t segment_bytes;
static int came, returned_status, returned_opcode, replies;
static AM_returned_t returned;

static void poll_until(int *what, int count) {
    while (*what < count) {
        OK(AM_Poll(bundles[0]));
        OK(AM_Poll(bundles[1]));
    }
    *what = 0;
}

static void on_short(void *token, int a, int b) {
    en_t from;
    ep_t here;
    tag_t tag;
    const int sum[] = {a + b};
    OK(AM_GetSourceEndpoint(token, &from));
    OK(AM_GetDestEndpoint(token, &here));
    OK(AM_GetMsgTag(token, &tag));
    HOLDS(!strcmp(from.text, client_name.text) && here == server && tag == TAG);
    IS(AM_GetMsgTag(token, NULL), AM_ERR_BAD_ARG);
    IS(AM_Reply((char *)token + 1, BACK, 1, sum), AM_ERR_BAD_ARG);
    IS(AM_Reply(token, BACK, 17, sum), AM_ERR_BAD_ARG);
    OK(AM_Reply1(token, BACK, a + b));
    /* Once. */
    IS(AM_Reply1(token, BACK, a + b), AM_ERR_BAD_ARG);
    came++;
}
static void on_data(void *token, void *data, size_t bytes, int a) {
    if (a == 1) {
        HOLDS(bytes == 6 && !memcmp(data, "medium", 6));
        OK(AM_ReplyI2(token, DATA, "answer", 6, 2, 0));
    } else if (a == 2) {
        HOLDS(bytes == 6 && !memcmp(data, "answer", 6));
        /* A reply has no reply. */
        IS(AM_Reply0(token, BACK), AM_ERR_BAD_ARG);
        replies++;
    } else if (a == 3) {
        HOLDS(data == segment + 100 && bytes == 5 && !memcmp(data, "bulk!", 5));
        OK(AM_ReplyXfer1(token, 8, DATA, "back", 4, 4));
    } else if (a == 4) {
        HOLDS(data == client_segment + 8 && bytes == 4 && !memcmp(data, "back", 4));
        replies++;
    } else {
        HOLDS(bytes == 0);
        replies++;
    }
    came++;
}
static void on_back(void *token, int sum) {
    (void)token;
    IS(sum, 42);
    replies++;
}
static void on_many(void *token, int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                    int m, int n, int o, int p) {
    (void)token;
    int got[] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
    for (int at = 0; at < 16; at++) IS(got[at], at + 1);
    came++;
}
/* On its own bundle a handler may only reply. A handler of another bundle that runs meanwhile leaves the token good. */
static void on_nested(void *token) {
    const int before = replies;
    while (replies == before) OK(AM_Poll(bundles[0]));
    IS(AM_Request0(server, 0, SINK), AM_ERR_BAD_ARG);
    IS(AM_Poll(bundles[1]), AM_ERR_BAD_ARG);
    IS(AM_FreeBundle(bundles[1]), AM_ERR_BAD_ARG);
    IS(AM_Terminate(), AM_ERR_BAD_ARG);
    OK(AM_Reply1(token, BACK, 42));
    came++;
}
static void on_twice(void *token, int a) { OK(AM_Reply1(token, BACK, 2 * a)); }
/* An endpoint that moves is reached by its name, and has its handlers. One of a bundle that the device runs answers
 * without a call. */
static void moved_and_offloaded(int via) {
    eb_t others[2];
    ep_t moves;
    en_t name;
    int number;
    OK(AM_AllocateBundle(AM_PAR, &others[0]));
    OK(AM_AllocateEndpoint(others[0], &moves, &name));
    OK(AM_SetTag(moves, TAG));
    OK(AM_SetHandler(moves, SHORT, (AM_handler_fn)on_twice));
    IS(AM_AllocateBundle(AM_OFFLOAD, &others[1]), via ? AM_ERR_RESOURCE : AM_OK);
    if (via) OK(AM_AllocateBundle(AM_PAR, &others[1]));
    IS(AM_MoveEndpoint(moves, others[1], others[0]), AM_ERR_BAD_ARG);
    OK(AM_MoveEndpoint(moves, others[0], others[1]));
    OK(AM_FreeBundle(others[0]));
    OK(AM_MapAny(client, &number, name, TAG));
    OK(AM_Request1(client, number, SHORT, 21));
    while (!replies) {
        OK(AM_Poll(bundles[0]));
        if (via) OK(AM_Poll(others[1]));
    }
    replies = 0;
    IS(AM_MoveEndpoint(moves, others[1], bundles[0]), AM_ERR_IN_USE);
    OK(AM_UnMap(client, number));
    OK(AM_FreeBundle(others[1]));
}
static void on_sink(void *token) { (void)token; }
static void on_return(int status, int opcode, const AM_returned_t *message) {
    returned_status = status;
    returned_opcode = opcode;
    returned = *message;
    IS(AM_Terminate(), AM_ERR_BAD_ARG);
    came++;
}

static void wrong_arguments(void) {
    eb_t eb;
    ep_t ep;
    en_t name, bad_name = {"nothing"}, endless;
    tag_t tag;
    int number;
    void *address;
    uintptr_t bytes;
    const int bad = AM_ERR_BAD_ARG;
    memset(&endless, 'x', sizeof endless);
    uintptr_t wrong[] = {0, 999999};
    for (int i = 0; i < 2; i++) {
        uintptr_t w = wrong[i];
        IS(AM_FreeBundle(w), bad);
        IS(AM_AllocateEndpoint(w, &ep, &name), bad);
        IS(AM_FreeEndpoint(w), bad);
        IS(AM_MoveEndpoint(w, bundles[0], bundles[0]), bad);
        IS(AM_MoveEndpoint(client, bundles[0], w), bad);
        IS(AM_SetSeg(w, NULL, 64), bad);
        IS(AM_GetSeg(w, &address, &bytes), bad);
        IS(AM_SetTag(w, 1), bad);
        IS(AM_GetTag(w, &tag), bad);
        IS(AM_Map(w, 0, server_name, 1), bad);
        IS(AM_MapAny(w, &number, server_name, 1), bad);
        IS(AM_UnMap(w, 0), bad);
        IS(AM_GetTranslationInuse(w, 0), bad);
        IS(AM_GetTranslationTag(w, 0, &tag), bad);
        IS(AM_GetTranslationName(w, 0, &name), bad);
        IS(AM_GetNumTranslations(w, &number), bad);
        IS(AM_SetNumTranslations(w, 1), bad);
        IS(AM_SetExpectedResources(w, 1, 1), bad);
        IS(AM_SetHandler(w, 1, (AM_handler_fn)on_sink), bad);
        IS(AM_SetHandlerAny(w, &number, (AM_handler_fn)on_sink), bad);
        IS(AM_GetNumHandlers(w, &number), bad);
        IS(AM_SetEventMask(w, AM_NOTEMPTY), bad);
        IS(AM_GetEventMask(w, &number), bad);
        IS(AM_WaitSema(w), bad);
        IS(AM_Poll(w), bad);
        IS(AM_Request0(w, 0, SHORT), bad);
        IS(AM_RequestI0(w, 0, DATA, "x", 1), bad);
        IS(AM_RequestXfer0(w, 0, 0, DATA, "x", 1), bad);
        IS(AM_RequestXferAsync0(w, 0, 0, DATA, "x", 1), bad);
        IS(AM_Reply0((void *)w, 1), bad);
        IS(AM_ReplyI0((void *)w, 1, "x", 1), bad);
        IS(AM_ReplyXfer0((void *)w, 0, 1, "x", 1), bad);
        IS(AM_GetSourceEndpoint((void *)w, &name), bad);
        IS(AM_GetDestEndpoint((void *)w, &ep), bad);
        IS(AM_GetMsgTag((void *)w, &tag), bad);
    }
    IS(AM_AllocateBundle(AM_SEQ, NULL), bad);
    IS(AM_AllocateBundle(3, &eb), bad);
    IS(AM_MaxNumTranslations(NULL), bad);
    IS(AM_AllocateBundle(7, &eb), bad);
    IS(AM_AllocateEndpoint(bundles[0], NULL, &name), bad);
    IS(AM_AllocateEndpoint(bundles[0], &ep, NULL), bad);
    IS(AM_SetSeg(client, segment, 64), bad);
    IS(AM_SetSeg(client, NULL, 0), bad);
    IS(AM_GetSeg(client, NULL, &bytes), bad);
    IS(AM_GetSeg(client, &address, NULL), bad);
    IS(AM_MaxSegLength(NULL), bad);
    IS(AM_GetTag(client, NULL), bad);
    IS(AM_Map(client, -1, server_name, 1), bad);
    IS(AM_Map(client, 256, server_name, 1), bad);
    IS(AM_Map(client, 9, bad_name, 1), bad);
    IS(AM_Map(client, 9, endless, 1), bad);
    IS(AM_MapAny(client, NULL, server_name, 1), bad);
    IS(AM_UnMap(client, 9), bad);
    IS(AM_GetTranslationInuse(client, 9), bad);
    IS(AM_GetTranslationTag(client, 0, NULL), bad);
    IS(AM_GetTranslationName(client, 0, NULL), bad);
    IS(AM_GetNumTranslations(client, NULL), bad);
    IS(AM_SetNumTranslations(client, -1), bad);
    IS(AM_SetNumTranslations(client, 1 << 20), AM_ERR_RESOURCE);
    IS(AM_SetExpectedResources(client, -1, 1), bad);
    IS(AM_SetHandler(client, 1, NULL), bad);
    IS(AM_SetHandler(client, -1, (AM_handler_fn)on_sink), bad);
    IS(AM_SetHandler(client, 256, (AM_handler_fn)on_sink), bad);
    IS(AM_SetHandlerAny(client, NULL, (AM_handler_fn)on_sink), bad);
    IS(AM_SetHandlerAny(client, &number, NULL), bad);
    IS(AM_GetNumHandlers(client, NULL), bad);
    IS(AM_SetEventMask(client, 5), bad);
    IS(AM_GetEventMask(client, NULL), bad);
    IS(AM_WaitSema(bundles[0]), bad); /* nothing would end it */
    IS(AM_Request(client, 0, SHORT, 17, &number), bad);
    IS(AM_Request(client, 0, SHORT, -1, &number), bad);
    IS(AM_Request(client, 0, SHORT, 1, NULL), bad);
    IS(AM_Request0(client, 9, SHORT), bad);
    IS(AM_Request0(client, -1, SHORT), bad);
    IS(AM_Request0(client, 0, -1), bad);
    IS(AM_RequestI0(client, 0, DATA, NULL, 1), bad);
    IS(AM_RequestI0(client, 0, DATA, segment, AM_MaxMedium() + 1), bad);
    IS(AM_RequestXfer0(client, 0, segment_bytes, DATA, "x", 1), bad);
    IS(AM_RequestXferAsync0(client, 0, segment_bytes, DATA, "x", 1), bad);
    IS(AM_SetDevice(NULL, 0), bad);
    IS(AM_SetDevice("shm://x", 0), AM_ERR_IN_USE);
    IS(AM_Map(client, 0, server_name, TAG), AM_ERR_IN_USE);
    IS(AM_SetSeg(client, NULL, 64), AM_ERR_IN_USE);
}

static void *request_later(void *arg) {
    (void)arg;
    OK(AM_Request0(client, 0, SINK));
    return NULL;
}

int main(int argc, char **argv) {
    eb_t eb;
    tag_t tag;
    int number;
    en_t name;
    uintptr_t bytes;
    void *address;
    IS(argc, 3);
    IS(AM_AllocateBundle(AM_SEQ, &eb), AM_ERR_NOT_INIT);
    IS(AM_Poll(1), AM_ERR_NOT_INIT);
    IS(AM_MaxNumTranslations(&number), AM_ERR_NOT_INIT);
    IS(AM_SetTag(1, 1), AM_ERR_NOT_INIT);
    IS(AM_Terminate(), AM_ERR_NOT_INIT);
    OK(AM_SetDevice("no such device", 0));
    IS(AM_Init(), AM_ERR_RESOURCE);
    OK(AM_SetDevice(argv[1], atoi(argv[2])));
    OK(AM_Init());
    OK(AM_AllocateBundle(AM_SEQ, &bundles[0]));
    OK(AM_AllocateBundle(AM_PAR, &bundles[1]));
    OK(AM_AllocateEndpoint(bundles[0], &client, &client_name));
    OK(AM_AllocateEndpoint(bundles[1], &server, &server_name));
    OK(AM_MaxSegLength(&bytes));
    HOLDS(bytes >= 1 << 20 && AM_MaxShort() == 16 && AM_MaxMedium() >= 512 && AM_MaxLong() >= 8192);
    OK(AM_GetSeg(server, &address, &bytes));
    HOLDS(address == NULL && bytes == 0);
    OK(AM_SetSeg(server, NULL, 1 << 16));
    OK(AM_SetSeg(client, NULL, 4096));
    OK(AM_GetSeg(server, (void **)&segment, &segment_bytes));
    OK(AM_GetSeg(client, (void **)&client_segment, &bytes));
    HOLDS(segment != NULL && segment_bytes == 1 << 16 && bytes == 4096);
    OK(AM_SetTag(server, TAG));
    OK(AM_GetTag(server, &tag));
    HOLDS(tag == TAG);
    OK(AM_SetHandler(server, SHORT, (AM_handler_fn)on_short));
    OK(AM_SetHandler(server, DATA, (AM_handler_fn)on_data));
    OK(AM_SetHandler(server, MANY, (AM_handler_fn)on_many));
    OK(AM_SetHandler(server, NESTED, (AM_handler_fn)on_nested));
    OK(AM_SetHandler(server, SINK, (AM_handler_fn)on_sink));
    OK(AM_SetHandler(client, DATA, (AM_handler_fn)on_data));
    OK(AM_SetHandler(client, BACK, (AM_handler_fn)on_back));
    OK(AM_SetHandler(client, 0, (AM_handler_fn)on_return));
    OK(AM_SetHandlerAny(client, &number, (AM_handler_fn)on_sink));
    HOLDS(number == 1);
    OK(AM_GetNumHandlers(client, &number));
    HOLDS(number >= 256);
    OK(AM_GetNumTranslations(client, &number));
    HOLDS(number >= 256);
    OK(AM_MaxNumTranslations(&number));
    IS(number, 65536);
    OK(AM_SetNumTranslations(client, number));
    OK(AM_SetNumTranslations(client, 1000));
    OK(AM_GetNumTranslations(client, &number));
    IS(number, 1000);
    OK(AM_Map(client, 999, server_name, TAG));
    IS(AM_SetNumTranslations(client, 999), AM_ERR_IN_USE);
    OK(AM_UnMap(client, 999));
    OK(AM_SetNumTranslations(client, 256));
    OK(AM_SetExpectedResources(client, 4, 16));
    OK(AM_Map(client, 0, server_name, TAG));
    OK(AM_MapAny(client, &number, server_name, TAG + 1));
    IS(number, 1);
    OK(AM_GetTranslationInuse(client, 1));
    OK(AM_GetTranslationTag(client, 1, &tag));
    OK(AM_GetTranslationName(client, 1, &name));
    HOLDS(tag == TAG + 1 && !strcmp(name.text, server_name.text));
    OK(AM_MoveEndpoint(client, bundles[0], bundles[0]));
    IS(AM_MoveEndpoint(client, bundles[1], bundles[0]), AM_ERR_BAD_ARG);
    IS(AM_MoveEndpoint(client, bundles[0], bundles[1]), AM_ERR_IN_USE);
    wrong_arguments();
    moved_and_offloaded(atoi(argv[2]));

    OK(AM_Request2(client, 0, SHORT, 40, 2));
    poll_until(&replies, 1);
    OK(AM_RequestI1(client, 0, DATA, "medium", 6, 1));
    poll_until(&replies, 1);
    OK(AM_RequestI1(client, 0, DATA, NULL, 0, 5));
    poll_until(&replies, 1);
    OK(AM_RequestXfer1(client, 0, 100, DATA, "bulk!", 5, 3));
    poll_until(&replies, 1);
    OK(AM_RequestXferAsync1(client, 0, 100, DATA, "bulk!", 5, 3));
    poll_until(&replies, 1);
    came = 0;
    OK(AM_Request16(client, 0, MANY, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16));
    poll_until(&came, 1);
    /* The reply to the first request is left for the handler of the second one. */
    replies = 0;
    OK(AM_Request2(client, 0, SHORT, 40, 2));
    OK(AM_Request0(client, 0, NESTED));
    while (came < 2) OK(AM_Poll(bundles[1]));
    came = 0;
    poll_until(&replies, 2);
    /* What comes back: another tag, a handler that is not there. */
    OK(AM_Request2(client, 1, SHORT, 3, 4));
    poll_until(&came, 1);
    HOLDS(returned_status == EBADTAG && returned_opcode == AM_REQUEST_M && returned.index == 1);
    HOLDS(returned.handler == SHORT && returned.num_args == 2 && returned.args[1] == 4);
    OK(AM_RequestI0(client, 0, 99, "gone", 4));
    poll_until(&came, 1);
    HOLDS(returned_status == EBADHANDLER && returned_opcode == AM_REQUEST_IM && returned.bytes == 4);
    OK(AM_RequestI0(client, 0, 99, NULL, 0));
    poll_until(&came, 1);
    HOLDS(returned_status == EBADHANDLER && returned_opcode == AM_REQUEST_IM && returned.bytes == 0);
    /* Without credits, an asynchronous request is not sent. */
    int sent = 0;
    while ((number = AM_RequestXferAsync0(client, 0, 0, SINK, "x", 1)) == AM_OK) HOLDS(++sent < 10000);
    IS(number, AM_ERR_NOT_SENT);
    OK(AM_SetHandler(server, SINK, (AM_handler_fn)on_sink));
    /* A message ends a wait. */
    OK(AM_SetEventMask(server, AM_NOTEMPTY));
    OK(AM_GetEventMask(server, &number));
    IS(number, AM_NOTEMPTY);
    for (int i = 0; i < 100; i++) {
        OK(AM_Poll(bundles[1]));
        OK(AM_Poll(bundles[0]));
    }
    pthread_t thread;
    HOLDS(!pthread_create(&thread, NULL, request_later, NULL));
    OK(AM_WaitSema(bundles[1]));
    HOLDS(!pthread_join(thread, NULL));
    OK(AM_Poll(bundles[1]));
    OK(AM_UnMap(client, 1));
    IS(AM_UnMap(client, 1), AM_ERR_BAD_ARG);
    OK(AM_FreeEndpoint(client));
    IS(AM_FreeEndpoint(client), AM_ERR_BAD_ARG);
    OK(AM_FreeBundle(bundles[0]));
    IS(AM_FreeBundle(bundles[0]), AM_ERR_BAD_ARG);
    OK(AM_Init());
    OK(AM_Terminate());
    OK(AM_Poll(bundles[1]));
    OK(AM_Terminate());
    IS(AM_Terminate(), AM_ERR_NOT_INIT);
    puts("each function, each code");
    return 0;
}
