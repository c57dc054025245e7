//! Queue pairs between two adapters leave by several UDP source ports, so that switches and receivers' CPUs can tell
//! them apart.

mod ends;

use std::time::{Duration, Instant};

use ends::{End, PATIENT, Qp, connect_labelled, open, post};
use hca_core::{Completion, CqPort, Device, Gid, QpCap, QpInit, QpType, SendFlags, SendOp, WcStatus};
use hca_fabric::PORTS_PER_PEER;
use softhca::Progress;

#[test]
fn queue_pairs_to_one_peer_have_several_source_ports() {
    let devices: Vec<_> = (0..2).map(|n| open("udp", Progress::Inline, n).expect("there is UDP")).collect();
    let peer = End::new(devices[1].clone());
    let ends: Vec<_> = (0..16).map(|_| End::new(devices[0].clone())).collect();
    for end in &ends {
        end.connect(&peer);
    }
    // Over IPv4 each port is asked once for its Identification.
    let ports = ends[0].counter("tx_ident_probes");
    assert!((5..=u64::from(PORTS_PER_PEER)).contains(&ports), "32 queue pairs have {ports} ports");
    ends.into_iter().for_each(End::close);
    peer.close();
}

/// Queue pairs to one peer in the measurement.
const MANY: usize = 64;

/// Many queue pairs between two adapters, which complete in queues of their own.
struct Crowd {
    ends: [End; 2],
    cqs: [Box<dyn CqPort>; 2],
    qps: Vec<[Qp; 2]>,
    op: SendOp,
}

impl Crowd {
    /// `label`: their flow label, or 0 for ports by their numbers.
    fn new(progress: Progress, label: u32) -> Self {
        let ends = [0, 1].map(|n| End::new(open("udp", progress, n).expect("there is UDP")));
        let keys = ends[1].open_to_writes();
        let op = SendOp::Write(ends[1].remote(&keys));
        let [(ours, a), (theirs, b)] = [0, 1].map(|n| ends[n].device.create_cq(512).unwrap());
        let make = |end: &End, cq| {
            let init =
                QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap: QpCap::default() };
            let ports = end.device.create_qp(end.pd, &init).unwrap();
            let recv = ports.recv.expect("it has a queue of its own");
            Qp { handle: ports.handle, qpn: ports.qpn, send: ports.send, recv }
        };
        let qps: Vec<_> = (0..MANY).map(|_| [make(&ends[0], ours), make(&ends[1], theirs)]).collect();
        for pair in &qps {
            for n in 0..2 {
                let to = (Gid::from_ip(ends[1 - n].device.fabric().local), pair[1 - n].qpn);
                let timeout = Some(PATIENT);
                connect_labelled(&ends[n].device, pair[n].handle, to, timeout, label);
            }
        }
        Self { ends, cqs: [a, b], qps, op }
    }
    /// Each posts a WRITE of a few bytes.
    fn post(&mut self) {
        self.qps.iter_mut().for_each(|[qp, _]| post(qp, &[self.op], SendFlags::SIGNALED));
    }
    /// Polls once; returns how many are done.
    fn poll(&mut self) -> usize {
        let mut wcs = [Completion::default(); MANY];
        let n = self.cqs[0].poll(&mut wcs);
        assert!(wcs[..n].iter().all(|c| c.status == WcStatus::Success));
        n
    }
}

#[test]
fn answers_of_many_queue_pairs_in_a_turn_leave_by_a_call_for_each_port() {
    let mut crowd = Crowd::new(Progress::Inline, 0);
    let calls = |crowd: &Crowd| crowd.ends[1].counter("send_calls");
    let mut round = |_| {
        let before = calls(&crowd);
        crowd.post();
        let mut left = MANY;
        while left > 0 {
            crowd.ends[1].device.turn();
            left -= crowd.poll();
        }
        calls(&crowd) - before
    };
    // On a busy machine what is late is probed, and answered again.
    let least = (0..20).map(&mut round).min().expect("there are rounds") as usize;
    // The first packets are taken one by one, until there prove to be many.
    assert!(least <= MANY / 4 + usize::from(PORTS_PER_PEER), "{least} calls for {MANY} answers");
}

/// WRITEs that complete in a second, one of each queue pair at a time.
fn writes_a_second(progress: Progress, label: u32) -> f64 {
    let mut crowd = Crowd::new(progress, label);
    let (mut done, start) = (0_u64, Instant::now());
    while start.elapsed() < Duration::from_millis(200) {
        crowd.post();
        let mut left = MANY;
        while left > 0 {
            left -= crowd.poll();
            if progress != Progress::Thread {
                crowd.ends[1].device.turn();
            }
        }
        done += MANY as u64;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

/// `cargo test --release -p softhca --test ports -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: run it alone, built for release"]
fn what_many_queue_pairs_to_one_peer_pay_for_several_ports() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Thread] {
        let mut ratios: Vec<_> = (0..15)
            .map(|_| {
                let [many, one] = [0, 7].map(|label| writes_a_second(progress, label));
                (many / one, many, one)
            })
            .collect();
        ratios.sort_by(|x, y| x.0.total_cmp(&y.0));
        let (ratio, many, one) = ratios[ratios.len() / 2];
        let (least, most) = (ratios[2].0, ratios[12].0);
        println!(
            "{progress:?}: {many:.0} a second by {PORTS_PER_PEER} ports, {one:.0} by one: {ratio:.2} ({least:.2} to {most:.2})"
        );
    }
}
