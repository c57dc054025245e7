/* Active Messages II, on the adapters of this project. Link with -lam.
 *
 * Handles are numbers. A call with a handle that names nothing returns AM_ERR_BAD_ARG. A handler may only reply, once. */
#ifndef AM_H
#define AM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AM_OK 0
#define AM_ERR_NOT_INIT 1
#define AM_ERR_BAD_ARG 2
#define AM_ERR_RESOURCE 3
#define AM_ERR_NOT_SENT 4
#define AM_ERR_IN_USE 5

typedef uintptr_t eb_t; /* a bundle */
typedef uintptr_t ep_t; /* an endpoint */
typedef uint64_t tag_t;
typedef int handler_t;
/* The name of an endpoint: a text, which goes over any channel of the program's own. */
typedef struct {
    char text[64];
} en_t;

#define AM_ALL UINT64_MAX /* of an endpoint: takes requests with any tag */
#define AM_NONE 0         /* of an endpoint: takes no requests */
#define AM_SEQ 0
#define AM_PAR 1
/* As AM_PAR, and the device runs handlers while the program makes no call, on a thread of its own. They must not block.
 * Over VIs: AM_ERR_RESOURCE. */
#define AM_OFFLOAD 2
#define AM_NOEVENTS 0
#define AM_NOTEMPTY 1

/* A handler of short messages is called as handler(token, arg0, ...), others as handler(token, data, bytes, arg0, ...);
 * the arguments are of type int, up to 16. */
typedef void (*AM_handler_fn)();

/* Why a message came back. */
#define EBADARGS 1
#define EBADENTRY 2
#define EBADTAG 3
#define EBADHANDLER 4
#define EBADSEGOFF 5
#define EBADLENGTH 6
#define EBADENDPOINT 7
#define ECONGESTION 8
#define EUNREACHABLE 9
#define EREPLYREJECTED 10
#define AM_REQUEST_M 1
#define AM_REQUEST_IM 2
#define AM_REQUEST_XFER_M 3
#define AM_REPLY_M 4
#define AM_REPLY_IM 5
#define AM_REPLY_XFER_M 6
typedef struct {
    int index; /* of the translation table */
    int handler;
    int num_args;
    int args[16];
    const void *data; /* of a medium message */
    size_t bytes;
    uint64_t offset; /* of a bulk message */
} AM_returned_t;
/* Handler 0. */
typedef void (*AM_error_fn)(int status, int opcode, const AM_returned_t *message);

/* Opens the device of AM_SetDevice, or that of HCA_DEVICE, or "auto://". Each AM_Init has its AM_Terminate; the last one
 * frees all bundles. */
int AM_Init(void);
int AM_Terminate(void);
/* Before the first AM_Init. With via, bundles stand on the VI Architecture, and not on queue pairs. */
int AM_SetDevice(const char *url, int via);

int AM_AllocateBundle(int type, eb_t *bundle);
int AM_FreeBundle(eb_t bundle);
int AM_AllocateEndpoint(eb_t bundle, ep_t *endpoint, en_t *name);
int AM_FreeEndpoint(ep_t endpoint);
/* An endpoint with links or with a segment stays: AM_ERR_IN_USE. Its name, its tag, its handlers and its event mask move
 * with it. */
int AM_MoveEndpoint(ep_t endpoint, eb_t from, eb_t to);

/* The library has the memory of a segment: address is NULL. */
int AM_SetSeg(ep_t endpoint, void *address, uintptr_t bytes);
int AM_GetSeg(ep_t endpoint, void **address, uintptr_t *bytes);
int AM_MaxSegLength(uintptr_t *bytes);
int AM_SetTag(ep_t endpoint, tag_t tag);
int AM_GetTag(ep_t endpoint, tag_t *tag);

int AM_Map(ep_t endpoint, int index, en_t name, tag_t tag);
int AM_MapAny(ep_t endpoint, int *index, en_t name, tag_t tag);
int AM_UnMap(ep_t endpoint, int index);
int AM_GetTranslationInuse(ep_t endpoint, int index); /* AM_OK if it is */
int AM_GetTranslationTag(ep_t endpoint, int index, tag_t *tag);
int AM_GetTranslationName(ep_t endpoint, int index, en_t *name);
int AM_GetNumTranslations(ep_t endpoint, int *count);
int AM_MaxNumTranslations(int *count);
/* 256 at first. More than AM_MaxNumTranslations: AM_ERR_RESOURCE. An index beyond the new end is mapped: AM_ERR_IN_USE. */
int AM_SetNumTranslations(ep_t endpoint, int count);
/* Needs nothing: each mapping brings its buffers. */
int AM_SetExpectedResources(ep_t endpoint, int endpoints, int outstanding);

int AM_SetHandler(ep_t endpoint, handler_t handler, AM_handler_fn function);
int AM_SetHandlerAny(ep_t endpoint, handler_t *handler, AM_handler_fn function);
int AM_GetNumHandlers(ep_t endpoint, int *count);

int AM_SetEventMask(ep_t endpoint, int mask);
int AM_GetEventMask(ep_t endpoint, int *mask);
int AM_WaitSema(eb_t bundle);
int AM_Poll(eb_t bundle);

int AM_GetSourceEndpoint(void *token, en_t *name);
int AM_GetDestEndpoint(void *token, ep_t *endpoint);
int AM_GetMsgTag(void *token, tag_t *tag);

int AM_MaxShort(void);  /* arguments */
int AM_MaxMedium(void); /* bytes, as the endpoints of this library have it */
size_t AM_MaxLong(void);

/* The calls with a number in their names are macros of these. */
int AM_Request(ep_t endpoint, int index, handler_t handler, int num_args, const int *args);
int AM_RequestI(ep_t endpoint, int index, handler_t handler, const void *data, size_t bytes, int num_args, const int *args);
int AM_RequestXfer(ep_t endpoint, int index, uintptr_t offset, handler_t handler, const void *data, size_t bytes,
                   int num_args, const int *args);
int AM_RequestXferAsync(ep_t endpoint, int index, uintptr_t offset, handler_t handler, const void *data, size_t bytes,
                        int num_args, const int *args);
int AM_Reply(void *token, handler_t handler, int num_args, const int *args);
int AM_ReplyI(void *token, handler_t handler, const void *data, size_t bytes, int num_args, const int *args);
int AM_ReplyXfer(void *token, uintptr_t offset, handler_t handler, const void *data, size_t bytes, int num_args,
                 const int *args);

#define AM_Request0(ep, index, handler) AM_Request(ep, index, handler, 0, NULL)
#define AM_Request1(ep, index, handler, ...) AM_Request(ep, index, handler, 1, (const int[1]){__VA_ARGS__})
#define AM_Request2(ep, index, handler, ...) AM_Request(ep, index, handler, 2, (const int[2]){__VA_ARGS__})
#define AM_Request3(ep, index, handler, ...) AM_Request(ep, index, handler, 3, (const int[3]){__VA_ARGS__})
#define AM_Request4(ep, index, handler, ...) AM_Request(ep, index, handler, 4, (const int[4]){__VA_ARGS__})
#define AM_Request5(ep, index, handler, ...) AM_Request(ep, index, handler, 5, (const int[5]){__VA_ARGS__})
#define AM_Request6(ep, index, handler, ...) AM_Request(ep, index, handler, 6, (const int[6]){__VA_ARGS__})
#define AM_Request7(ep, index, handler, ...) AM_Request(ep, index, handler, 7, (const int[7]){__VA_ARGS__})
#define AM_Request8(ep, index, handler, ...) AM_Request(ep, index, handler, 8, (const int[8]){__VA_ARGS__})
#define AM_Request9(ep, index, handler, ...) AM_Request(ep, index, handler, 9, (const int[9]){__VA_ARGS__})
#define AM_Request10(ep, index, handler, ...) AM_Request(ep, index, handler, 10, (const int[10]){__VA_ARGS__})
#define AM_Request11(ep, index, handler, ...) AM_Request(ep, index, handler, 11, (const int[11]){__VA_ARGS__})
#define AM_Request12(ep, index, handler, ...) AM_Request(ep, index, handler, 12, (const int[12]){__VA_ARGS__})
#define AM_Request13(ep, index, handler, ...) AM_Request(ep, index, handler, 13, (const int[13]){__VA_ARGS__})
#define AM_Request14(ep, index, handler, ...) AM_Request(ep, index, handler, 14, (const int[14]){__VA_ARGS__})
#define AM_Request15(ep, index, handler, ...) AM_Request(ep, index, handler, 15, (const int[15]){__VA_ARGS__})
#define AM_Request16(ep, index, handler, ...) AM_Request(ep, index, handler, 16, (const int[16]){__VA_ARGS__})
#define AM_RequestI0(ep, index, handler, data, bytes) AM_RequestI(ep, index, handler, data, bytes, 0, NULL)
#define AM_RequestI1(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 1, (const int[1]){__VA_ARGS__})
#define AM_RequestI2(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 2, (const int[2]){__VA_ARGS__})
#define AM_RequestI3(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 3, (const int[3]){__VA_ARGS__})
#define AM_RequestI4(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 4, (const int[4]){__VA_ARGS__})
#define AM_RequestI5(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 5, (const int[5]){__VA_ARGS__})
#define AM_RequestI6(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 6, (const int[6]){__VA_ARGS__})
#define AM_RequestI7(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 7, (const int[7]){__VA_ARGS__})
#define AM_RequestI8(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 8, (const int[8]){__VA_ARGS__})
#define AM_RequestI9(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 9, (const int[9]){__VA_ARGS__})
#define AM_RequestI10(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 10, (const int[10]){__VA_ARGS__})
#define AM_RequestI11(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 11, (const int[11]){__VA_ARGS__})
#define AM_RequestI12(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 12, (const int[12]){__VA_ARGS__})
#define AM_RequestI13(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 13, (const int[13]){__VA_ARGS__})
#define AM_RequestI14(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 14, (const int[14]){__VA_ARGS__})
#define AM_RequestI15(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 15, (const int[15]){__VA_ARGS__})
#define AM_RequestI16(ep, index, handler, data, bytes, ...) AM_RequestI(ep, index, handler, data, bytes, 16, (const int[16]){__VA_ARGS__})
#define AM_RequestXfer0(ep, index, offset, handler, data, bytes) AM_RequestXfer(ep, index, offset, handler, data, bytes, 0, NULL)
#define AM_RequestXfer1(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 1, (const int[1]){__VA_ARGS__})
#define AM_RequestXfer2(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 2, (const int[2]){__VA_ARGS__})
#define AM_RequestXfer3(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 3, (const int[3]){__VA_ARGS__})
#define AM_RequestXfer4(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 4, (const int[4]){__VA_ARGS__})
#define AM_RequestXfer5(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 5, (const int[5]){__VA_ARGS__})
#define AM_RequestXfer6(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 6, (const int[6]){__VA_ARGS__})
#define AM_RequestXfer7(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 7, (const int[7]){__VA_ARGS__})
#define AM_RequestXfer8(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 8, (const int[8]){__VA_ARGS__})
#define AM_RequestXfer9(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 9, (const int[9]){__VA_ARGS__})
#define AM_RequestXfer10(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 10, (const int[10]){__VA_ARGS__})
#define AM_RequestXfer11(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 11, (const int[11]){__VA_ARGS__})
#define AM_RequestXfer12(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 12, (const int[12]){__VA_ARGS__})
#define AM_RequestXfer13(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 13, (const int[13]){__VA_ARGS__})
#define AM_RequestXfer14(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 14, (const int[14]){__VA_ARGS__})
#define AM_RequestXfer15(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 15, (const int[15]){__VA_ARGS__})
#define AM_RequestXfer16(ep, index, offset, handler, data, bytes, ...) AM_RequestXfer(ep, index, offset, handler, data, bytes, 16, (const int[16]){__VA_ARGS__})
#define AM_RequestXferAsync0(ep, index, offset, handler, data, bytes) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 0, NULL)
#define AM_RequestXferAsync1(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 1, (const int[1]){__VA_ARGS__})
#define AM_RequestXferAsync2(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 2, (const int[2]){__VA_ARGS__})
#define AM_RequestXferAsync3(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 3, (const int[3]){__VA_ARGS__})
#define AM_RequestXferAsync4(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 4, (const int[4]){__VA_ARGS__})
#define AM_RequestXferAsync5(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 5, (const int[5]){__VA_ARGS__})
#define AM_RequestXferAsync6(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 6, (const int[6]){__VA_ARGS__})
#define AM_RequestXferAsync7(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 7, (const int[7]){__VA_ARGS__})
#define AM_RequestXferAsync8(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 8, (const int[8]){__VA_ARGS__})
#define AM_RequestXferAsync9(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 9, (const int[9]){__VA_ARGS__})
#define AM_RequestXferAsync10(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 10, (const int[10]){__VA_ARGS__})
#define AM_RequestXferAsync11(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 11, (const int[11]){__VA_ARGS__})
#define AM_RequestXferAsync12(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 12, (const int[12]){__VA_ARGS__})
#define AM_RequestXferAsync13(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 13, (const int[13]){__VA_ARGS__})
#define AM_RequestXferAsync14(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 14, (const int[14]){__VA_ARGS__})
#define AM_RequestXferAsync15(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 15, (const int[15]){__VA_ARGS__})
#define AM_RequestXferAsync16(ep, index, offset, handler, data, bytes, ...) AM_RequestXferAsync(ep, index, offset, handler, data, bytes, 16, (const int[16]){__VA_ARGS__})
#define AM_Reply0(token, handler) AM_Reply(token, handler, 0, NULL)
#define AM_Reply1(token, handler, ...) AM_Reply(token, handler, 1, (const int[1]){__VA_ARGS__})
#define AM_Reply2(token, handler, ...) AM_Reply(token, handler, 2, (const int[2]){__VA_ARGS__})
#define AM_Reply3(token, handler, ...) AM_Reply(token, handler, 3, (const int[3]){__VA_ARGS__})
#define AM_Reply4(token, handler, ...) AM_Reply(token, handler, 4, (const int[4]){__VA_ARGS__})
#define AM_Reply5(token, handler, ...) AM_Reply(token, handler, 5, (const int[5]){__VA_ARGS__})
#define AM_Reply6(token, handler, ...) AM_Reply(token, handler, 6, (const int[6]){__VA_ARGS__})
#define AM_Reply7(token, handler, ...) AM_Reply(token, handler, 7, (const int[7]){__VA_ARGS__})
#define AM_Reply8(token, handler, ...) AM_Reply(token, handler, 8, (const int[8]){__VA_ARGS__})
#define AM_Reply9(token, handler, ...) AM_Reply(token, handler, 9, (const int[9]){__VA_ARGS__})
#define AM_Reply10(token, handler, ...) AM_Reply(token, handler, 10, (const int[10]){__VA_ARGS__})
#define AM_Reply11(token, handler, ...) AM_Reply(token, handler, 11, (const int[11]){__VA_ARGS__})
#define AM_Reply12(token, handler, ...) AM_Reply(token, handler, 12, (const int[12]){__VA_ARGS__})
#define AM_Reply13(token, handler, ...) AM_Reply(token, handler, 13, (const int[13]){__VA_ARGS__})
#define AM_Reply14(token, handler, ...) AM_Reply(token, handler, 14, (const int[14]){__VA_ARGS__})
#define AM_Reply15(token, handler, ...) AM_Reply(token, handler, 15, (const int[15]){__VA_ARGS__})
#define AM_Reply16(token, handler, ...) AM_Reply(token, handler, 16, (const int[16]){__VA_ARGS__})
#define AM_ReplyI0(token, handler, data, bytes) AM_ReplyI(token, handler, data, bytes, 0, NULL)
#define AM_ReplyI1(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 1, (const int[1]){__VA_ARGS__})
#define AM_ReplyI2(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 2, (const int[2]){__VA_ARGS__})
#define AM_ReplyI3(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 3, (const int[3]){__VA_ARGS__})
#define AM_ReplyI4(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 4, (const int[4]){__VA_ARGS__})
#define AM_ReplyI5(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 5, (const int[5]){__VA_ARGS__})
#define AM_ReplyI6(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 6, (const int[6]){__VA_ARGS__})
#define AM_ReplyI7(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 7, (const int[7]){__VA_ARGS__})
#define AM_ReplyI8(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 8, (const int[8]){__VA_ARGS__})
#define AM_ReplyI9(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 9, (const int[9]){__VA_ARGS__})
#define AM_ReplyI10(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 10, (const int[10]){__VA_ARGS__})
#define AM_ReplyI11(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 11, (const int[11]){__VA_ARGS__})
#define AM_ReplyI12(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 12, (const int[12]){__VA_ARGS__})
#define AM_ReplyI13(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 13, (const int[13]){__VA_ARGS__})
#define AM_ReplyI14(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 14, (const int[14]){__VA_ARGS__})
#define AM_ReplyI15(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 15, (const int[15]){__VA_ARGS__})
#define AM_ReplyI16(token, handler, data, bytes, ...) AM_ReplyI(token, handler, data, bytes, 16, (const int[16]){__VA_ARGS__})
#define AM_ReplyXfer0(token, offset, handler, data, bytes) AM_ReplyXfer(token, offset, handler, data, bytes, 0, NULL)
#define AM_ReplyXfer1(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 1, (const int[1]){__VA_ARGS__})
#define AM_ReplyXfer2(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 2, (const int[2]){__VA_ARGS__})
#define AM_ReplyXfer3(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 3, (const int[3]){__VA_ARGS__})
#define AM_ReplyXfer4(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 4, (const int[4]){__VA_ARGS__})
#define AM_ReplyXfer5(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 5, (const int[5]){__VA_ARGS__})
#define AM_ReplyXfer6(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 6, (const int[6]){__VA_ARGS__})
#define AM_ReplyXfer7(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 7, (const int[7]){__VA_ARGS__})
#define AM_ReplyXfer8(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 8, (const int[8]){__VA_ARGS__})
#define AM_ReplyXfer9(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 9, (const int[9]){__VA_ARGS__})
#define AM_ReplyXfer10(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 10, (const int[10]){__VA_ARGS__})
#define AM_ReplyXfer11(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 11, (const int[11]){__VA_ARGS__})
#define AM_ReplyXfer12(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 12, (const int[12]){__VA_ARGS__})
#define AM_ReplyXfer13(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 13, (const int[13]){__VA_ARGS__})
#define AM_ReplyXfer14(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 14, (const int[14]){__VA_ARGS__})
#define AM_ReplyXfer15(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 15, (const int[15]){__VA_ARGS__})
#define AM_ReplyXfer16(token, offset, handler, data, bytes, ...) AM_ReplyXfer(token, offset, handler, data, bytes, 16, (const int[16]){__VA_ARGS__})

#ifdef __cplusplus
}
#endif
#endif
