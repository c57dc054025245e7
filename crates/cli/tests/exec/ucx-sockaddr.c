/*
 * Connections of UCX by socket addresses: a listener, an endpoint, and messages of several sizes that are sent back.
 *
 *   ucx-sockaddr PORT              the server: it serves one connection
 *   ucx-sockaddr PORT ADDRESS      the client
 *
 * The environment says how: UCX_SOCKADDR_TLS_PRIORITY=rdmacm UCX_TLS=rc_v,self.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucp/api/ucp.h>

enum { TAG = 7, MOST = 1 << 20 };
static const size_t SIZES[] = { 8, 4096, MOST };

static ucp_worker_h worker;
static unsigned char sent[MOST], received[MOST];

static void check(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
        exit(1);
    }
}

/* Waits for a request. */
static void wait_for(ucs_status_ptr_t request, const char *what)
{
    ucs_status_t status = UCS_PTR_IS_PTR(request) ? UCS_INPROGRESS : UCS_PTR_RAW_STATUS(request);

    while (status == UCS_INPROGRESS) {
        ucp_worker_progress(worker);
        status = ucp_request_check_status(request);
    }
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    check(status, what);
}

static void send_to(ucp_ep_h ep, size_t size)
{
    ucp_request_param_t param = { .op_attr_mask = 0 };

    wait_for(ucp_tag_send_nbx(ep, sent, size, TAG, &param), "send");
}

static void receive(size_t size)
{
    ucp_request_param_t param = { .op_attr_mask = 0 };

    memset(received, 0, size);
    wait_for(ucp_tag_recv_nbx(worker, received, size, TAG, ~0ull, &param), "receive");
}

/* The peer has closed its endpoint, or the connection is broken. */
static void ended(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep, (void)status;
    *(int *)arg = 1;
}

static void asked(ucp_conn_request_h request, void *arg)
{
    *(ucp_conn_request_h *)arg = request;
}

static ucp_ep_h endpoint(ucp_ep_params_t *params, int *has_ended)
{
    ucp_ep_h ep;

    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = ended;
    params->err_handler.arg = has_ended;
    check(ucp_ep_create(worker, params, &ep), "endpoint");
    return ep;
}

static void close_endpoint(ucp_ep_h ep, unsigned flags)
{
    ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags };
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);

    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

static void serve(const ucs_sock_addr_t *at)
{
    ucp_conn_request_h request = NULL;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = *at,
        .conn_handler = { .cb = asked, .arg = &request },
    };
    ucp_ep_params_t of_peer = { .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST };
    ucp_listener_h listener;
    ucp_ep_h ep;
    int has_ended = 0;

    check(ucp_listener_create(worker, &params, &listener), "listener");
    while (request == NULL)
        ucp_worker_progress(worker);
    of_peer.conn_request = request;
    ep = endpoint(&of_peer, &has_ended);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        receive(SIZES[i]);
        memcpy(sent, received, SIZES[i]);
        send_to(ep, SIZES[i]);
    }
    while (!has_ended)
        ucp_worker_progress(worker);
    close_endpoint(ep, UCP_EP_CLOSE_FLAG_FORCE);
    ucp_listener_destroy(listener);
    puts("served");
}

static void ask(const ucs_sock_addr_t *to)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = *to,
    };
    int has_ended = 0;
    ucp_ep_h ep = endpoint(&params, &has_ended);

    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        for (size_t at = 0; at < SIZES[i]; at++)
            sent[at] = (unsigned char)(at * 7 + i);
        send_to(ep, SIZES[i]);
        receive(SIZES[i]);
        if (memcmp(sent, received, SIZES[i]) != 0) {
            fprintf(stderr, "%zu bytes came back as others\n", SIZES[i]);
            exit(1);
        }
    }
    close_endpoint(ep, 0);
    puts("all came back");
}

int main(int argc, char **argv)
{
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
    ucp_worker_params_t of_worker = { .field_mask = 0 };
    struct sockaddr_in address = { .sin_family = AF_INET };
    ucs_sock_addr_t at = { .addr = (struct sockaddr *)&address, .addrlen = sizeof address };
    ucp_config_t *config;
    ucp_context_h context;

    if (argc < 2 || argc > 3 || (argc == 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)) {
        fprintf(stderr, "usage: %s PORT [ADDRESS]\n", argv[0]);
        return 2;
    }
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    check(ucp_config_read(NULL, NULL, &config), "configuration");
    check(ucp_init(&params, config, &context), "context");
    ucp_config_release(config);
    check(ucp_worker_create(context, &of_worker, &worker), "worker");
    if (argc == 3)
        ask(&at);
    else
        serve(&at);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
