//! Calls of librdmacm.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use super::processes::alone_with;
use super::{common, errno, init_attr};

const TCP: usize = 0x0106;
/// Kinds of events.
const ADDR_RESOLVED: u32 = 0;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;

/// Calls a function of librdmacm of the first node.
macro_rules! cm {
    ($name:ident($($arg:expr),*)) => {
        cm!($name($($arg),*) -> c_int)
    };
    ($name:ident($($arg:expr),*) -> $ret:ty) => {
        call!(@ common::symbol(stringify!($name), "RDMACM_1.0").expect(stringify!($name)), ($($arg),*) -> $ret)
    };
}

/// A pointer in a field of a structure.
fn field(of: *mut c_void, offset: usize) -> *mut c_void {
    // SAFETY: a structure that exists, with a pointer there.
    unsafe { of.byte_add(offset).cast::<*mut c_void>().read_unaligned() }
}
fn word(of: *mut c_void, offset: usize) -> u32 {
    // SAFETY: as above, with a number there.
    unsafe { of.byte_add(offset).cast::<u32>().read_unaligned() }
}
fn create(channel: *mut c_void) -> *mut c_void {
    let mut id: *mut c_void = null_mut();
    assert_eq!(cm!(rdma_create_id(channel, &raw mut id, 77, TCP)), 0, "{}", errno());
    assert_eq!(field(id, 16) as usize, 77, "the program's pointer");
    id
}
fn channel() -> *mut c_void {
    cm!(rdma_create_event_channel() -> *mut c_void)
}

/// An IPv4 address as C has it. All zeros as a destination are the device itself.
fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
        sin_zero: [0; 8],
    }
}

/// An event that was taken.
#[derive(Debug)]
struct Event {
    at: *mut c_void,
    id: *mut c_void,
    kind: u32,
    status: u32,
}

/// The next event, which comes within a minute.
fn next(channel: *mut c_void) -> Event {
    let mut fd = libc::pollfd { fd: word(channel, 0) as c_int, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, of a channel that exists.
    assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 60_000) }, 1, "no event in a minute");
    let mut at: *mut c_void = null_mut();
    assert_eq!(cm!(rdma_get_cm_event(channel, &raw mut at)), 0, "{}", errno());
    Event { at, id: field(at, 0), kind: word(at, 16), status: word(at, 20) }
}
impl Event {
    /// The private data of a connection's event.
    fn data(&self) -> Vec<u8> {
        let (data, len) = (field(self.at, 24).cast::<u8>(), word(self.at, 32) as u8);
        // SAFETY: an event that was not acknowledged has its data.
        unsafe { std::slice::from_raw_parts(data, len.into()) }.to_vec()
    }
    fn ack(self) {
        assert_eq!(cm!(rdma_ack_cm_event(self.at)), 0);
    }
}
fn expect(channel: *mut c_void, id: *mut c_void, kind: u32) {
    let event = next(channel);
    assert_eq!((event.id, event.kind, event.status), (id, kind, 0));
    event.ack();
}

/// A listener with its port.
fn listener(channel: *mut c_void) -> (*mut c_void, u16) {
    let id = create(channel);
    let any = address([0; 4], 0);
    assert_eq!(cm!(rdma_bind_addr(id, &raw const any)), 0, "{}", errno());
    let port = u16::from_be(cm!(rdma_get_src_port(id) -> u16));
    assert_ne!(port, 0);
    assert_eq!(cm!(rdma_listen(id, 8)), 0, "{}", errno());
    (id, port)
}
fn create_qp(id: *mut c_void) {
    let mut attr = init_attr(null_mut());
    assert_eq!(cm!(rdma_create_qp(id, 0, &raw mut attr)), 0, "{}", errno());
    assert!(!attr.send_cq.is_null() && field(id, 368) == attr.send_cq.cast(), "it made completion queues");
}
/// An identifier that has its route to a port of this process's device, and its queue pair.
fn resolved(channel: *mut c_void, port: u16) -> *mut c_void {
    resolved_to(channel, [0; 4], port)
}
/// An identifier that has its route and its queue pair.
fn resolved_to(channel: *mut c_void, ip: [u8; 4], port: u16) -> *mut c_void {
    let id = create(channel);
    let to = address(ip, port);
    assert_eq!(cm!(rdma_resolve_addr(id, 0, &raw const to, 1000)), 0, "{}", errno());
    expect(channel, id, ADDR_RESOLVED);
    assert_eq!(cm!(rdma_resolve_route(id, 1000)), 0, "{}", errno());
    expect(channel, id, ROUTE_RESOLVED);
    create_qp(id);
    id
}
/// The parameters of a connect or an accept.
fn param(data: &[u8]) -> [u64; 3] {
    let numbers = [data.len() as u8, 1, 1, 0, 7, 7, 0, 0];
    [data.as_ptr() as u64, u64::from_le_bytes(numbers), 0]
}
fn destroy(id: *mut c_void) {
    cm!(rdma_destroy_qp(id) -> ());
    assert_eq!(cm!(rdma_destroy_id(id)), 0, "{}", errno());
}

#[test]
fn a_connection_carries_private_data_and_ends_on_both_sides() {
    let (channel, clients) = (channel(), channel());
    let (listener, port) = listener(channel);
    let client = resolved(clients, port);
    let asks = param(b"may I?");
    assert_eq!(cm!(rdma_connect(client, asks.as_ptr())), 0, "{}", errno());
    let request = next(channel);
    assert_eq!((request.kind, field(request.at, 8)), (CONNECT_REQUEST, listener));
    assert_eq!((&request.data()[..6], request.data().len()), (&b"may I?"[..], 56));
    let server = request.id;
    assert_eq!((field(server, 16) as usize, field(server, 8)), (77, channel), "both are the listener's");
    request.ack();
    create_qp(server);
    let says = param(b"yes");
    assert_eq!(cm!(rdma_accept(server, says.as_ptr())), 0, "{}", errno());
    let established = next(clients);
    assert_eq!(
        (established.kind, established.id, &established.data()[..4]),
        (ESTABLISHED, client, &b"yes\0"[..])
    );
    established.ack();
    expect(channel, server, ESTABLISHED);
    assert_eq!(cm!(rdma_disconnect(client)), 0, "{}", errno());
    expect(channel, server, DISCONNECTED);
    expect(clients, client, DISCONNECTED);
    assert_eq!(cm!(rdma_disconnect(server)), 0, "the answer to the end of a connection");
    [client, server, listener].into_iter().for_each(destroy);
    cm!(rdma_destroy_event_channel(channel) -> ());
    cm!(rdma_destroy_event_channel(clients) -> ());
}

#[test]
fn requests_are_rejected_by_the_program_and_by_the_end_of_their_listener() {
    let (channel, clients) = (channel(), channel());
    let (listener, port) = listener(channel);
    let client = resolved(clients, port);
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let request = next(channel);
    assert_eq!(cm!(rdma_reject(request.id, b"no".as_ptr(), 2)), 0, "{}", errno());
    let server = request.id;
    request.ack();
    destroy(server);
    let rejected = next(clients);
    assert_eq!((rejected.kind, rejected.status, &rejected.data()[..2]), (REJECTED, 28, &b"no"[..]));
    rejected.ack();
    destroy(client);
    // The program never takes this request.
    let client = resolved(clients, port);
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    destroy(listener);
    let rejected = next(clients);
    assert_eq!((rejected.kind, rejected.id), (REJECTED, client));
    rejected.ack();
    destroy(client);
}

/// A channel, and a bound id of it with a queue pair of datagrams.
fn id_of_datagrams() -> (*mut c_void, *mut c_void) {
    const UDP: usize = 0x0111;
    let channel = channel();
    let mut id: *mut c_void = null_mut();
    assert_eq!(cm!(rdma_create_id(channel, &raw mut id, 0, UDP)), 0, "{}", errno());
    let own = address(own_ip(channel), 0);
    assert_eq!(cm!(rdma_bind_addr(id, &raw const own)), 0, "{}", errno());
    let mut attr = crate::abi::IbvQpInitAttr { qp_type: 4, ..init_attr(null_mut()) };
    assert_eq!(cm!(rdma_create_qp(id, 0, &raw mut attr)), 0, "{}", errno());
    (channel, id)
}

#[test]
fn a_group_that_is_left_before_the_event_of_its_join_has_none() {
    const MULTICAST_JOIN: u32 = 12;
    let (channel, id) = id_of_datagrams();
    let groups = [address([239, 1, 2, 3], 0), address([239, 1, 2, 4], 0)];
    let join = |group: &libc::sockaddr_in| cm!(rdma_join_multicast(id, &raw const *group, 0));
    let leave = |group: &libc::sockaddr_in| cm!(rdma_leave_multicast(id, &raw const *group));
    assert_eq!([join(&groups[0]), join(&groups[1]), leave(&groups[0])], [0; 3], "{}", errno());
    expect(channel, id, MULTICAST_JOIN);
    let mut fd = libc::pollfd { fd: word(channel, 0) as c_int, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, of a channel that exists.
    assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 0) }, 0, "the second group's event was the only one");
    assert_eq!([join(&groups[0]), leave(&groups[0]), join(&groups[0])], [0; 3], "{}", errno());
    expect(channel, id, MULTICAST_JOIN);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 0) }, 0, "joined once");
    assert_eq!([leave(&groups[0]), leave(&groups[1]), leave(&groups[1])], [0, 0, -1]);
    destroy(id);
}

#[test]
fn the_event_of_a_join_that_comes_to_nothing_has_the_programs_pointer() {
    const MULTICAST_ERROR: u32 = 13;
    let (channel, id) = id_of_datagrams();
    let group = [239, 1, 2, 5];
    let gid = std::net::Ipv4Addr::from(group).to_ipv6_mapped().octets();
    assert_eq!(call!(ibv_attach_mcast(field(id, 24), gid.as_ptr(), 0) -> c_int), 0);
    let (to, mut context) = (address(group, 0), 0_u8);
    let context = &raw mut context;
    assert_eq!(cm!(rdma_join_multicast(id, &raw const to, context)), 0, "{}", errno());
    let event = next(channel);
    assert_eq!((event.id, event.kind), (id, MULTICAST_ERROR));
    assert_ne!(event.status, 0, "the queue pair is a member already");
    assert_eq!(field(event.at, 24), context.cast());
    event.ack();
    assert_eq!(cm!(rdma_leave_multicast(id, &raw const to)), 0, "{}", errno());
    destroy(id);
}

#[test]
fn calls_wait_for_their_events_where_there_is_no_channel() {
    let channel = channel();
    let (listener, port) = listener(channel);
    let id = create(null_mut());
    let to = address([0; 4], port);
    assert_eq!(cm!(rdma_resolve_addr(id, 0, &raw const to, 1000)), 0, "{}", errno());
    assert_eq!(word(field(id, 352), 16), ADDR_RESOLVED, "the identifier has the event");
    assert_eq!(cm!(rdma_resolve_route(id, 1000)), 0, "{}", errno());
    assert_eq!(word(field(id, 352), 16), ROUTE_RESOLVED);
    assert_eq!(cm!(rdma_migrate_id(id, channel)), 0, "{}", errno());
    assert_eq!(field(id, 8), channel);
    [id, listener].into_iter().for_each(destroy);
}

#[test]
fn an_identifier_is_there_until_its_events_are_acknowledged() {
    let channel = channel();
    let id = create(channel);
    let to = address([0; 4], 9);
    assert_eq!(cm!(rdma_resolve_addr(id, 0, &raw const to, 1000)), 0, "{}", errno());
    let event = next(channel);
    let (gone, wait) = std::sync::mpsc::channel();
    let at = id as usize;
    let thread = std::thread::spawn(move || {
        destroy(at as *mut c_void);
        gone.send(()).unwrap();
    });
    assert!(wait.recv_timeout(Duration::from_millis(50)).is_err(), "the event is not acknowledged");
    event.ack();
    wait.recv_timeout(Duration::from_secs(60)).unwrap();
    thread.join().unwrap();
}

#[test]
fn calls_out_of_place_are_invalid_and_ports_have_one_owner() {
    let channel = channel();
    let (listener, port) = listener(channel);
    let id = create(channel);
    let (taken, own) = (address([0; 4], port), address([0; 4], 0));
    let invalid = |said: c_int, what: &str| assert_eq!((said, errno()), (-1, libc::EINVAL), "{what}");
    assert_eq!((cm!(rdma_bind_addr(id, &raw const taken)), errno()), (-1, libc::EADDRINUSE));
    invalid(cm!(rdma_resolve_route(id, 1)), "a route without an address");
    invalid(cm!(rdma_connect(id, 0)), "a connect without a route");
    invalid(cm!(rdma_accept(id, 0)), "an accept without a request");
    invalid(cm!(rdma_disconnect(id)), "an end without a connection");
    invalid(cm!(rdma_reject(id, 0, 0)), "a rejection without a request");
    invalid(cm!(rdma_join_multicast(id, &raw const own, 0)), "a group that is none");
    invalid(cm!(rdma_listen(listener, 1)), "a second time");
    assert_eq!(cm!(rdma_bind_addr(id, &raw const own)), 0);
    invalid(cm!(rdma_bind_addr(id, &raw const own)), "bound twice");
    let mut attr = init_attr(null_mut());
    invalid(cm!(rdma_create_qp(id, 0, &raw mut attr)), "a queue pair without a device");
    let unix = libc::sockaddr { sa_family: libc::AF_UNIX as u16, sa_data: [0; 14] };
    assert_eq!((cm!(rdma_resolve_addr(id, 0, &raw const unix, 1)), errno()), (-1, libc::EAFNOSUPPORT));
    [id, listener].into_iter().for_each(destroy);
    let id = create(channel);
    assert_eq!(cm!(rdma_bind_addr(id, &raw const taken)), 0, "the port is free again");
    destroy(id);
}

#[test]
fn null_and_what_was_destroyed_are_refused() {
    let channel = channel();
    let id = create(channel);
    let to = address([0; 4], 9);
    assert_eq!(cm!(rdma_resolve_addr(id, 0, &raw const to, 1000)), 0, "{}", errno());
    let event = next(channel);
    let at = event.at;
    event.ack();
    assert_eq!((cm!(rdma_ack_cm_event(at)), errno()), (-1, libc::EINVAL), "acknowledged twice");
    destroy(id);
    for id in [null_mut(), id] {
        for name in [
            "rdma_destroy_id",
            "rdma_bind_addr",
            "rdma_resolve_addr",
            "rdma_resolve_route",
            "rdma_create_qp",
            "rdma_create_srq",
            "rdma_connect",
            "rdma_listen",
            "rdma_accept",
            "rdma_reject",
            "rdma_notify",
            "rdma_disconnect",
            "rdma_join_multicast",
            "rdma_leave_multicast",
            "rdma_migrate_id",
            "rdma_set_option",
            "rdma_get_request",
            "rdma_get_cm_event",
            "rdma_ack_cm_event",
        ] {
            let function = common::symbol(name, "RDMACM_1.0").unwrap();
            let said = call!(@ function, (id, 0, 0, 0, 0) -> c_int);
            assert_eq!((said, errno()), (-1, libc::EINVAL), "{name}");
        }
        cm!(rdma_destroy_qp(id) -> ());
        cm!(rdma_destroy_ep(id) -> ());
        cm!(rdma_destroy_event_channel(id) -> ());
        cm!(rdma_freeaddrinfo(id) -> ());
    }
    assert_eq!((cm!(rdma_create_id(channel, 0, 0, TCP)), errno()), (-1, libc::EINVAL));
    let mut to: *mut c_void = null_mut();
    assert_eq!((cm!(rdma_create_id(channel, &raw mut to, 0, 1)), errno()), (-1, libc::EINVAL), "a space");
    assert_eq!((cm!(rdma_getaddrinfo(0, 0, 0, &raw mut to)), errno()), (-1, libc::EINVAL));
    cm!(rdma_destroy_event_channel(channel) -> ());
}

/// The address of this process's device. Another process may be at another one.
fn own_ip(channel: *mut c_void) -> [u8; 4] {
    let id = resolved(channel, 1);
    // SAFETY: an identifier that has its route has an address there.
    let at = unsafe { id.byte_add(32).cast::<libc::sockaddr_in>().read_unaligned() };
    destroy(id);
    at.sin_addr.s_addr.to_ne_bytes()
}

/// The test runs twice: the other process, which has the port in its environment, connects and ends.
#[test]
fn the_connections_of_a_program_that_exits_end() {
    const LISTENER: &str = "HCA_TEST_LISTENER";
    let channel = channel();
    if let Ok(listener) = std::env::var(LISTENER) {
        let to: std::net::SocketAddrV4 = listener.parse().unwrap();
        let client = resolved_to(channel, to.ip().octets(), to.port());
        assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
        expect(channel, client, ESTABLISHED);
        std::process::exit(0);
    }
    let (listener, port) = listener(channel);
    let at = std::net::SocketAddrV4::new(own_ip(channel).into(), port);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rdmacm::the_connections_of_a_program_that_exits_end"])
        .env(LISTENER, at.to_string())
        .spawn()
        .unwrap();
    let request = next(channel);
    let server = request.id;
    assert_eq!(request.kind, CONNECT_REQUEST);
    request.ack();
    create_qp(server);
    assert_eq!(cm!(rdma_accept(server, 0)), 0, "{}", errno());
    expect(channel, server, ESTABLISHED);
    expect(channel, server, DISCONNECTED);
    assert!(child.wait().unwrap().success());
    [server, listener].into_iter().for_each(destroy);
}

/// The test runs in two processes, at addresses of their own: one listens and ends, with a request that it has taken.
#[test]
fn the_requests_to_a_program_that_exits_are_rejected() {
    use std::io::BufRead as _;
    const LISTENS: &str = "HCA_TEST_LISTENS";
    let test = "rdmacm::the_requests_to_a_program_that_exits_are_rejected";
    if !alone_with(test, "exit", [("HCA_DEVICES", "udp://127.0.0.23")]) {
        return;
    }
    let channel = channel();
    if std::env::var_os(LISTENS).is_some() {
        let (_, port) = listener(channel);
        println!("\nlistens {port}");
        assert_eq!(next(channel).kind, CONNECT_REQUEST);
        std::process::exit(0);
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .envs([("HCA_DEVICES", "udp://127.0.0.24"), (LISTENS, "yes")])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let port = lines.find_map(|line| line.strip_prefix("listens ")?.parse().ok()).unwrap();
    let client = resolved_to(channel, [127, 0, 0, 24], port);
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let rejected = next(channel);
    assert_eq!((rejected.kind, rejected.id, rejected.status), (REJECTED, client, 28));
    rejected.ack();
    assert!(child.wait().unwrap().success());
    destroy(client);
}

#[test]
fn the_data_of_an_address_come_before_those_of_the_program() {
    const CONNECT_LEN: usize = 72;
    let (channel, clients) = (channel(), channel());
    let (listener, port) = listener(channel);
    let service = std::ffi::CString::new(port.to_string()).unwrap();
    let (mut info, mut client): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    let found = cm!(rdma_getaddrinfo(c"0.0.0.0".as_ptr(), service.as_ptr(), 0, &raw mut info));
    assert_eq!(found, 0, "{}", errno());
    let data = b"card ";
    // SAFETY: the program may change the list, which has the length of the data and their address there.
    unsafe { info.byte_add(CONNECT_LEN).cast::<[usize; 2]>().write([data.len(), data.as_ptr() as usize]) };
    let mut attr = init_attr(null_mut());
    assert_eq!(cm!(rdma_create_ep(&raw mut client, info, 0, &raw mut attr)), 0, "{}", errno());
    cm!(rdma_freeaddrinfo(info) -> ());
    assert_eq!(cm!(rdma_migrate_id(client, clients)), 0, "{}", errno());
    let asks = param(b"may I?");
    assert_eq!(cm!(rdma_connect(client, asks.as_ptr())), 0, "{}", errno());
    let request = next(channel);
    assert_eq!(&request.data()[..11], b"card may I?");
    let server = request.id;
    request.ack();
    [server, client, listener].into_iter().for_each(destroy);
}

#[test]
fn a_connect_to_nobody_is_refused() {
    let (channel, clients) = (channel(), channel());
    // A port that is free again.
    let (before, port) = listener(channel);
    destroy(before);
    let client = resolved(clients, port);
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let refused = next(clients);
    assert_eq!((refused.kind, refused.status), (REJECTED, 8), "nobody listens");
    refused.ack();
    destroy(client);
}

/// Two programs with queue pairs of their own, whose numbers they give, agree on a vendor's options.
#[test]
fn vendors_options_go_to_the_peer_and_back_where_the_queue_pairs_are_the_programs() {
    const VENDOR: u32 = 0x02_c903;
    let set = |id, ece: [u32; 3]| call!(@ common::symbol("rdma_set_local_ece", "RDMACM_1.3").unwrap(), (id, ece.as_ptr()) -> c_int);
    let get = |id| {
        let mut ece = [u32::MAX; 3];
        let at = common::symbol("rdma_get_remote_ece", "RDMACM_1.3").unwrap();
        assert_eq!(call!(@ at, (id, ece.as_mut_ptr()) -> c_int), 0, "{}", errno());
        ece
    };
    let (channel, clients) = (channel(), channel());
    let (listener, port) = listener(channel);
    let client = create(clients);
    let to = address([0; 4], port);
    assert_eq!(cm!(rdma_resolve_addr(client, 0, &raw const to, 1000)), 0, "{}", errno());
    expect(clients, client, ADDR_RESOLVED);
    assert_eq!(cm!(rdma_resolve_route(client, 1000)), 0, "{}", errno());
    expect(clients, client, ROUTE_RESOLVED);
    for wrong in [[0, 1, 0], [VENDOR, 1, 1], [1 << 24, 1, 0]] {
        assert_eq!((set(client, wrong), errno()), (-1, libc::EINVAL), "{wrong:?}");
    }
    assert_eq!(set(client, [VENDOR, 0x1234_5678, 0]), 0, "{}", errno());
    let [data, numbers, _] = param(b"");
    let with_number = |number: u64| [data, numbers, number];
    let asks = with_number(0x1111);
    assert_eq!(cm!(rdma_connect(client, asks.as_ptr())), 0, "{}", errno());
    let request = next(channel);
    let server = request.id;
    request.ack();
    assert_eq!(get(server), [VENDOR, 0x1234_5678, 0]);
    // The vendor of the answer is that of the request.
    assert_eq!(set(server, [7, 0x9abc_def0, 0]), 0, "{}", errno());
    let says = with_number(0x2222);
    assert_eq!(cm!(rdma_accept(server, says.as_ptr())), 0, "{}", errno());
    expect(clients, client, CONNECT_RESPONSE);
    assert_eq!(get(client), [VENDOR, 0x9abc_def0, 0]);
    let establish = common::symbol("rdma_establish", "RDMACM_1.2").unwrap();
    assert_eq!(call!(@ establish, (client) -> c_int), 0, "{}", errno());
    expect(channel, server, ESTABLISHED);
    [client, server].into_iter().for_each(destroy);

    // Queue pairs of this library have none, and their identifiers refuse it.
    let client = resolved(clients, port);
    assert_eq!((set(client, [VENDOR, 1, 0]), errno()), (-1, libc::EINVAL));
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let request = next(channel);
    let server = request.id;
    request.ack();
    assert_eq!(get(server), [0; 3]);
    let reject = common::symbol("rdma_reject_ece", "RDMACM_1.3").unwrap();
    assert_eq!(call!(@ reject, (server, b"no".as_ptr(), 2) -> c_int), 0, "{}", errno());
    let rejected = next(clients);
    assert_eq!((rejected.kind, rejected.status, &rejected.data()[..2]), (REJECTED, 35, &b"no"[..]));
    rejected.ack();
    [client, server, listener].into_iter().for_each(destroy);
}

/// As in Linux: programs that serve one peer destroy the listener once they have its request.
#[test]
fn a_request_that_was_taken_outlives_its_listener() {
    let (channel, clients) = (channel(), channel());
    let (listener, port) = listener(channel);
    let client = resolved(clients, port);
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let request = next(channel);
    let server = request.id;
    request.ack();
    destroy(listener);
    create_qp(server);
    assert_eq!(cm!(rdma_accept(server, 0)), 0, "{}", errno());
    expect(clients, client, ESTABLISHED);
    expect(channel, server, ESTABLISHED);
    // An answer out of place changes nothing.
    assert_eq!((cm!(rdma_accept(server, 0)), errno()), (-1, libc::EINVAL));
    const STATE: c_int = 1;
    const READY_TO_SEND: u32 = 3;
    let (mut attr, mut init) = (crate::abi::IbvQpAttr::default(), init_attr(null_mut()));
    assert_eq!(call!(ibv_query_qp(field(server, 24), &raw mut attr, STATE, &raw mut init) -> c_int), 0);
    assert_eq!(attr.qp_state, READY_TO_SEND);
    [client, server].into_iter().for_each(destroy);
}

#[test]
fn the_identifier_of_a_request_is_on_the_channel_that_its_listener_has_moved_to() {
    let (channel, other, clients) = (channel(), channel(), channel());
    let (listener, port) = listener(channel);
    let client = resolved(clients, port);
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let mut fd = libc::pollfd { fd: word(channel, 0) as c_int, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, of a channel that exists.
    assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 60_000) }, 1, "no request in a minute");
    assert_eq!(cm!(rdma_migrate_id(listener, other)), 0, "{}", errno());
    let request = next(other);
    let server = request.id;
    assert_eq!((request.kind, field(server, 8)), (CONNECT_REQUEST, other));
    request.ack();
    create_qp(server);
    assert_eq!(cm!(rdma_accept(server, 0)), 0, "{}", errno());
    expect(clients, client, ESTABLISHED);
    expect(other, server, ESTABLISHED);
    [client, server, listener].into_iter().for_each(destroy);
}

/// The event of a request is its identifier's, where calls wait, and the listener is there as long.
#[test]
fn an_identifier_that_gets_a_channel_has_acknowledged_its_event() {
    let (channel, clients) = (channel(), channel());
    let listener = create(null_mut());
    let any = address([0; 4], 0);
    assert_eq!(cm!(rdma_bind_addr(listener, &raw const any)), 0, "{}", errno());
    assert_eq!(cm!(rdma_listen(listener, 8)), 0, "{}", errno());
    let client = resolved(clients, u16::from_be(cm!(rdma_get_src_port(listener) -> u16)));
    assert_eq!(cm!(rdma_connect(client, 0)), 0, "{}", errno());
    let mut server: *mut c_void = null_mut();
    assert_eq!(cm!(rdma_get_request(listener, &raw mut server)), 0, "{}", errno());
    assert_eq!(word(field(server, 352), 16), CONNECT_REQUEST);
    assert_eq!(cm!(rdma_migrate_id(server, channel)), 0, "{}", errno());
    assert!(field(server, 352).is_null());
    let (gone, wait) = std::sync::mpsc::channel();
    let at = listener as usize;
    std::thread::spawn(move || {
        destroy(at as *mut c_void);
        gone.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(20))
        .expect("the listener waits for an event that the program has not");
    create_qp(server);
    assert_eq!(cm!(rdma_accept(server, 0)), 0, "{}", errno());
    expect(clients, client, ESTABLISHED);
    expect(channel, server, ESTABLISHED);
    [client, server].into_iter().for_each(destroy);
}

#[test]
fn a_queue_pair_has_the_shared_receive_queue_of_its_identifier() {
    let channel = channel();
    let id = create(channel);
    let to = address([0; 4], 9);
    assert_eq!(cm!(rdma_resolve_addr(id, 0, &raw const to, 1000)), 0, "{}", errno());
    expect(channel, id, ADDR_RESOLVED);
    // A context, and 4 requests of 1 entry.
    let mut attr = [0_u64, 1 << 32 | 4, 0];
    assert_eq!(cm!(rdma_create_srq(id, 0, attr.as_mut_ptr())), 0, "{}", errno());
    let srq = field(id, 392);
    assert!(!srq.is_null());
    let mut attr = init_attr(null_mut());
    assert_eq!(cm!(rdma_create_qp(id, 0, &raw mut attr)), 0, "{}", errno());
    assert_eq!(attr.srq.cast::<c_void>(), srq);
    cm!(rdma_destroy_ep(id) -> ());
    cm!(rdma_destroy_event_channel(channel) -> ());
}

#[test]
fn a_queue_pair_has_the_completion_queues_of_its_identifier() {
    let channel = channel();
    let id = create(channel);
    let to = address([0; 4], 9);
    assert_eq!(cm!(rdma_resolve_addr(id, 0, &raw const to, 1000)), 0, "{}", errno());
    expect(channel, id, ADDR_RESOLVED);
    let cq = || call!(ibv_create_cq(field(id, 0), 8, 0, 0, 0) -> *mut c_void);
    let (own, other) = (cq(), cq());
    for offset in [368, 384] {
        // SAFETY: the fields of the queues, which are pointers.
        unsafe { id.byte_add(offset).cast::<*mut c_void>().write_unaligned(own) };
    }
    let mut attr = init_attr(other.cast());
    assert_eq!(
        (cm!(rdma_create_qp(id, 0, &raw mut attr)), errno()),
        (-1, libc::EINVAL),
        "two queues for one"
    );
    let mut attr = init_attr(null_mut());
    assert_eq!(cm!(rdma_create_qp(id, 0, &raw mut attr)), 0, "{}", errno());
    assert_eq!([attr.send_cq.cast(), attr.recv_cq.cast(), field(id, 368), field(id, 384)], [own; 4]);
    assert_eq!(call!(ibv_destroy_cq(other) -> c_int), 0);
    cm!(rdma_destroy_ep(id) -> ());
    cm!(rdma_destroy_event_channel(channel) -> ());
}
