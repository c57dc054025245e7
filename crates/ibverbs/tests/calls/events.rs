//! Asynchronous events.

use super::*;
use crate::abi::{IbvAsyncEvent, IbvSrq, IbvSrqAttr, IbvSrqInitAttr};
use std::sync::atomic::{AtomicBool, Ordering};

const QP_ACCESS_ERR: u32 = 3;
const SRQ_LIMIT_REACHED: u32 = 15;

fn next_event(context: *mut IbvContext) -> IbvAsyncEvent {
    // SAFETY: a context that is open, and its descriptor; the call fills one entry.
    let ready = unsafe {
        let mut fd = libc::pollfd { fd: (*context).async_fd, events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut fd, 1, 60_000)
    };
    assert_eq!(ready, 1, "an event comes");
    let mut event = IbvAsyncEvent { element: 0, event_type: 99 };
    assert_eq!(call!(ibv_get_async_event(context, &raw mut event) -> c_int), 0, "{}", errno());
    event
}
fn acknowledge(mut event: IbvAsyncEvent) {
    call!(ibv_ack_async_event(&raw mut event) -> ());
}
/// Has calls that would wait refuse.
fn do_not_wait(context: *mut IbvContext) {
    // SAFETY: a context that is open, and its descriptor.
    unsafe { libc::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
}
fn none_waits(context: *mut IbvContext) {
    let mut event = IbvAsyncEvent { element: 0, event_type: 0 };
    assert_eq!(call!(ibv_get_async_event(context, &raw mut event) -> c_int), -1);
    assert_eq!(errno(), libc::EAGAIN);
}

#[test]
fn an_event_names_its_object_which_is_destroyed_once_it_is_acknowledged() {
    let pair = pair();
    let mut memory = vec![0u8; 64];
    let mr = pair.register(&mut memory);
    let mut from = sge(mr, memory.as_ptr(), 8);
    // A key that no region has.
    let mut write = IbvSendWr { addr_or_ah: 1, second: [0x7777_7700, 0], ..send_wr(1, 0, 2) };
    (write.sg_list, write.num_sge) = (&raw mut from, 1);
    let mut bad: *mut IbvSendWr = null_mut();
    let posted = call!(@ slot(pair.context, 208), (pair.qps[0], &raw mut write, &raw mut bad) -> c_int);
    assert_eq!(posted, 0);
    let event = next_event(pair.context);
    assert_eq!((event.event_type, event.element), (QP_ACCESS_ERR, pair.qps[1] as usize));
    let mut wc = [IbvWc::default()];
    while call!(@ slot(pair.context, 96), (pair.cq, 1, &raw mut wc) -> c_int) == 0 {}
    assert_eq!((wc[0].wr_id, wc[0].status), (1, 10));

    let acknowledged = AtomicBool::new(false);
    let qp = pair.qps[1] as usize;
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| {
            assert_eq!(call!(ibv_destroy_qp(qp) -> c_int), 0);
            assert!(acknowledged.load(Ordering::SeqCst), "destroyed before the event was acknowledged");
        });
        (0..1000).for_each(|_| std::thread::yield_now());
        acknowledged.store(true, Ordering::SeqCst);
        acknowledge(event);
        ends.join().unwrap();
    });
    assert_eq!(call!(ibv_destroy_qp(pair.qps[0]) -> c_int), 0);
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    pair.end_without_queue_pairs();
}

#[test]
fn events_of_an_object_that_is_gone_are_gone_with_it() {
    let context = open();
    do_not_wait(context);
    none_waits(context);
    let pd = call!(ibv_alloc_pd(context) -> *mut IbvPd);
    for taken in [true, false] {
        let attr = IbvSrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        let mut init = IbvSrqInitAttr { srq_context: null_mut(), attr };
        let srq = call!(ibv_create_srq(pd, &raw mut init) -> *mut IbvSrq);
        // It has no requests, and so fewer than two.
        let mut limit = IbvSrqAttr { srq_limit: 2, ..attr };
        assert_eq!(call!(ibv_modify_srq(srq, &raw mut limit, 2) -> c_int), 0);
        if taken {
            let event = next_event(context);
            assert_eq!((event.event_type, event.element), (SRQ_LIMIT_REACHED, srq as usize));
            acknowledge(event);
        }
        assert_eq!(call!(ibv_destroy_srq(srq) -> c_int), 0);
        none_waits(context);
    }
    assert_eq!(call!(ibv_get_async_event(0, 0) -> c_int), -1);
    call!(ibv_ack_async_event(0) -> ());
    assert_eq!(call!(ibv_dealloc_pd(pd) -> c_int), 0);
    assert_eq!(call!(ibv_close_device(context) -> c_int), 0);
}

#[test]
fn a_region_whose_rights_change_keeps_the_address_of_its_first_byte() {
    let pair = pair();
    let memory = [0_u8; 64];
    let reg = common::symbol("ibv_reg_mr_iova", "IBVERBS_1.7").unwrap();
    let mr = call!(@ reg, (pair.pd, memory.as_ptr(), 64, 0x9000, 0) -> *mut IbvMr);
    assert_eq!(call!(ibv_rereg_mr(mr, 4, 0, 0, 0, 1) -> c_int), 0, "{}", errno());
    let mut beyond = IbvSge { addr: 0x9020, ..sge(mr, memory.as_ptr(), 64) };
    let mut wr = send_wr(1, 2, 2);
    (wr.sg_list, wr.num_sge) = (&raw mut beyond, 1);
    let mut bad: *mut IbvSendWr = null_mut();
    assert_eq!(call!(@ slot(pair.context, 208), (pair.qps[0], &raw mut wr, &raw mut bad) -> c_int), 0);
    let mut wc = [IbvWc::default()];
    while call!(@ slot(pair.context, 96), (pair.cq, 1, &raw mut wc) -> c_int) == 0 {}
    assert_eq!((wc[0].wr_id, wc[0].status), (1, 4));
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    pair.end();
}

/// Runs a test of this program as another process, and returns what it says on standard error.
fn run_alone(test: &str, explain: &str) -> String {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let said = alone.args(["--exact", test, "--nocapture"]).env("HCA_EXPLAIN", explain).output().unwrap();
    assert!(said.status.success());
    String::from_utf8(said.stderr).unwrap()
}

#[test]
fn errors_are_told_in_words_and_once_where_the_environment_asks_for_it() {
    let test = "events::an_event_names_its_object_which_is_destroyed_once_it_is_acknowledged";
    let said = run_alone(test, "1");
    let count = |part: &str| said.matches(part).count();
    let parts = [
        "request 0x1, an RDMA WRITE of 8 bytes at 0x1 of the peer with key 0x77777700, ended with: remote access error",
        "a peer's access was refused: no memory region or window has the key",
        "compare address and key with those that the peer sent",
    ];
    assert!(parts.iter().all(|part| count(part) == 1), "{said}");
    assert!(!run_alone(test, "0").contains("hca:"));
    let said =
        run_alone("lists_of_requests_are_taken_up_to_the_refused_one_and_inline_bytes_are_gathered", "1");
    assert!(said.contains("request 0xc was refused as it was posted: a wrong argument"), "{said}");
    let said = run_alone("events::a_region_whose_rights_change_keeps_the_address_of_its_first_byte", "1");
    assert!(said.contains("names 0x9000 to 0x9040, and 0x9020 to 0x9060 is not inside"), "{said}");
    let said = run_alone("objects::a_null_region_gives_zeros_and_takes_what_is_lost", "1");
    assert!(
        said.contains("entry 0: key") && said.contains("was freed: its region is deregistered"),
        "{said}"
    );
}

#[test]
fn words_that_can_not_be_printed_change_no_result() {
    const ALONE: &str = "HCA_TEST_FULL";
    if std::env::var_os(ALONE).is_none() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let alone = alone.args(["--exact", "events::words_that_can_not_be_printed_change_no_result"]);
        let ended = alone.envs([(ALONE, "1"), ("HCA_EXPLAIN", "1")]).stderr(full).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        return;
    }
    let pair = pair();
    let mut memory = vec![0u8; 64];
    let mr = pair.register(&mut memory);
    assert!(call!(ibv_reg_mr(pair.pd, memory.as_mut_ptr(), 0, 1) -> *mut IbvMr).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(modify(pair.qps[1], &IbvQpAttr { qp_state: 2, ..IbvQpAttr::default() }, 1), libc::EINVAL);
    // A SEND whose list is of no region.
    let mut from = IbvSge { lkey: 1, ..sge(mr, memory.as_ptr(), 8) };
    let mut wr = IbvSendWr { sg_list: &raw mut from, num_sge: 1, ..send_wr(5, 2, 2) };
    let mut bad: *mut IbvSendWr = null_mut();
    assert_eq!(call!(@ slot(pair.context, 208), (pair.qps[0], &raw mut wr, &raw mut bad) -> c_int), 0);
    let mut wc = [IbvWc::default()];
    let polled = loop {
        match call!(@ slot(pair.context, 96), (pair.cq, 1, &raw mut wc) -> c_int) {
            0 => {}
            polled => break polled,
        }
    };
    assert_eq!((polled, wc[0].wr_id, wc[0].status), (1, 5, 4), "a local protection error");
    assert_eq!(call!(ibv_dereg_mr(mr) -> c_int), 0);
    pair.end();
}
