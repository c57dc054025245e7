//! Reliable connection: data and recovery, as packet scripts.
mod pair;

use pair::*;

#[test]
fn a_send_is_cut_by_the_path_mtu_and_acknowledged_once() {
    let mut p = Pair::rc();
    p.fill(A, 0, 700);
    p.recv(B, 4096, 1000);
    p.send(A, SendOp::SendImm(77), 0, 700);
    p.ends(&[Success]);
    p.expect_bytes(B, 4096, 0, 700);
    assert_eq!(p.ops(A), [P::SendFirst, P::SendMiddle, P::SendLastImm]);
    assert_eq!(p.psns(A), [0xff_fffd, 0xff_fffe, 0xff_ffff]);
    assert_eq!(p.ops(B), [P::Acknowledge]);
    let (_, done) = p.b.host.recvs()[0];
    assert_eq!((done.byte_len, done.extra, done.status), (700, RecvExtra::Imm(77), Success));
}

#[test]
fn a_read_takes_as_many_psns_as_its_response_has_packets() {
    let mut p = Pair::rc();
    p.send(A, READ, 0, 1000);
    p.send(A, WRITE, 0, 4);
    p.run();
    assert_eq!(p.psns(A), [PSN, 1]);
    assert_eq!(p.psns(B), [PSN, PSN + 1, PSN + 2, 0, 1]);
    assert_eq!(
        p.ops(B),
        [
            P::ReadResponseFirst,
            P::ReadResponseMiddle,
            P::ReadResponseMiddle,
            P::ReadResponseLast,
            P::Acknowledge
        ]
    );
}

#[test]
fn an_acknowledgement_never_passes_a_read_response() {
    let mut p = Pair::rc();
    p.send(A, READ, 0, 1000);
    p.send(A, WRITE, 0, 4);
    p.flow(A);
    let now = Instant::from_nanos(p.now);
    let mut sink = VecSink::with_room(100);
    for _ in 0..3 {
        assert_eq!(p.b.qp.poll_transmit(now, &mut p.b.host, &mut sink, 1), 1);
        assert_eq!(p.b.qp.ack_owed(), None);
        assert!(!p.b.qp.poll_ack(now, &mut p.b.host, &mut sink));
    }
    assert_eq!(p.b.qp.poll_transmit(now, &mut p.b.host, &mut sink, 1), 1);
    assert!(p.b.qp.poll_ack(now, &mut p.b.host, &mut sink));
}

#[test]
fn going_back_forgets_reads_that_are_asked_for_again() {
    let mut p = Pair::new(&Setup { rd_atomic: 1, dest_rd_atomic: 1, ..Setup::default() });
    p.drop_packets(A, &[0]);
    p.send(A, READ, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.ends(&[Success; 2]);
    assert!(p.now < 100_000, "recovered without a timer: {}", p.now);
}

#[test]
fn a_lost_packet_is_nakked_once_and_sent_again_from_there() {
    let mut p = Pair::rc();
    p.fill(A, 0, 2000);
    p.recv(B, 4096, 2000);
    p.drop_packets(A, &[2]);
    p.send(A, SendOp::Send, 0, 2000);
    p.ends(&[Success]);
    p.expect_bytes(B, 4096, 0, 2000);
    assert_eq!(p.naks(B), [NakCode::PsnSequence]);
    let again = p.ops(A).len() - 8;
    assert_eq!(p.a.host.counted(Count::Retransmitted), again as u64);
    let psns: Vec<u32> = (0..8).chain(2..8).map(|i| (PSN + i) & 0xff_ffff).collect();
    assert_eq!(p.psns(A), psns);
    assert!(p.now < 100_000, "recovered without a timer");
}

#[test]
fn a_lost_nak_is_recovered_by_the_probe_long_before_the_timeout() {
    let mut p = Pair::rc();
    p.fill(A, 0, 2000);
    p.recv(B, 4096, 2000);
    p.script = Box::new(|s, n, _| if (s, n) == (A, 2) || (s, n) == (B, 0) { Fate::Drop } else { Fate::Pass });
    p.send(A, SendOp::Send, 0, 2000);
    p.ends(&[Success]);
    p.expect_bytes(B, 4096, 0, 2000);
    assert!(p.now < 5_000_000, "{}", p.now);
    assert!(p.a.host.counted(Count::Probe) <= 2 && p.a.host.counted(Count::Timeout) == 0);
}

#[test]
fn a_lost_acknowledgement_costs_one_probe_and_no_second_delivery() {
    let mut p = Pair::rc();
    p.recv(B, 0, 2000);
    p.recv(B, 0, 2000);
    p.drop_packets(B, &[0]);
    p.send(A, SendOp::Send, 0, 2000);
    p.ends(&[Success]);
    assert_eq!(p.ops(A).len(), 9, "eight packets and one probe");
    assert_eq!(p.b.host.recvs().len(), 1);
    assert_eq!(p.b.host.counted(Count::Duplicate), 1);
}

#[test]
fn probes_do_not_count_as_retries() {
    let mut p = Pair::new(&Setup { retry_cnt: 0, ..Setup::default() });
    p.recv(B, 0, 8);
    p.drop_packets(A, &[0, 1, 2]);
    p.send(A, SendOp::Send, 0, 8);
    p.ends(&[Success]);
}

#[test]
fn repeated_sequence_naks_for_one_packet_use_up_retry_cnt() {
    let mut p = Pair::new(&Setup { retry_cnt: 2, ..Setup::default() });
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    for i in 0..3 {
        p.now += 1_000_000;
        p.expect_sends(&[]);
        let nak = Raw::rc(P::Acknowledge, A, PSN).aeth(Syndrome::Nak(NakCode::PsnSequence));
        p.deliver(A, &nak.bytes());
        p.transmit_side(A);
        assert_eq!(p.a.host.counted(Count::NakReceived), i + 1);
    }
    p.expect_sends(&[WcStatus::RetryExceeded]);
}

#[test]
fn a_lost_read_response_is_asked_for_again_from_the_missing_byte() {
    let mut p = Pair::rc();
    p.fill(B, 0, 3000);
    p.drop_packets(B, &[4]);
    p.send(A, READ, 8192, 3000);
    p.ends(&[Success]);
    p.expect_bytes(A, 8192, 0, 3000);
    assert_eq!(p.psns(A), [PSN, 1]);
    let again = p.sent(A).nth(1).unwrap();
    let reth = *again.packet().reth().unwrap();
    assert_eq!((reth.va.get(), reth.dma_len.get()), (1024, 3000 - 1024));
    assert_eq!(p.b.host.counted(Count::Duplicate), 1);
    assert!(p.now < 100_000, "recovered without a timer");
}

#[test]
fn a_lost_last_read_response_is_recovered_by_the_probe() {
    let mut p = Pair::rc();
    p.fill(B, 0, 3000);
    p.drop_packets(B, &[11]);
    p.send(A, READ, 8192, 3000);
    p.ends(&[Success]);
    p.expect_bytes(A, 8192, 0, 3000);
    assert!(p.now < 5_000_000);
}

#[test]
fn a_later_acknowledgement_says_that_a_read_response_was_lost() {
    let mut p = Pair::rc();
    p.fill(B, 0, 200);
    p.drop_packets(B, &[0]);
    p.send(A, READ, 8192, 200);
    p.send(A, SendOp::Write(remote(512)), 0, 4);
    p.ends(&[Success; 2]);
    p.expect_bytes(A, 8192, 0, 200);
    assert!(p.now < 200_000, "recovered without a timer: {}", p.now);
    assert_eq!(p.b.host.writes, 1, "the write was placed once");
}

#[test]
fn duplicate_atomics_are_answered_from_the_replay_buffer() {
    // All that may be outstanding, at most.
    for count in [1, 4] {
        let mut p = Pair::rc();
        p.drop_packets(B, &[0, 1, 2, 3][..count]);
        for i in 0..count {
            p.send(A, SendOp::FetchAdd { remote: remote(8), add: 3 }, 64 + 8 * i, 8);
        }
        p.ends(&[Success; 4][..count]);
        assert_eq!(p.b.host.atomics as usize, count);
        assert_eq!(p.b.host.mem[8..16], (3 * count as u64).to_ne_bytes());
        for i in 0..count {
            assert_eq!(p.a.host.mem[64 + 8 * i..72 + 8 * i], (3 * i as u64).to_ne_bytes());
        }
        assert_eq!(p.b.host.counted(Count::Duplicate) as usize, count);
    }
}

#[test]
fn doubled_packets_are_delivered_once() {
    let mut p = Pair::rc();
    p.script = Box::new(|_, _, _| Fate::Double);
    p.fill(A, 0, 1000);
    p.recv(B, 4096, 1000);
    p.recv(B, 8192, 1000);
    p.send(A, SendOp::Send, 0, 1000);
    p.send(A, SendOp::FetchAdd { remote: remote(16), add: 1 }, 32_768, 8);
    p.send(A, READ, 16_384, 600);
    p.ends(&[Success; 3]);
    assert_eq!((p.b.host.recvs().len(), p.b.host.atomics), (1, 1));
}

#[test]
fn after_an_rnr_nak_one_packet_goes_alone_until_it_is_taken() {
    let mut p = Pair::new(&Setup { srq_b: true, ..Setup::default() });
    for _ in 0..2 {
        p.post(A, SendOp::Send, 0, 600, SendFlags::empty());
    }
    p.post(A, WRITE, 0, 8, SendFlags::empty());
    p.run_until(500_000);
    let tries = p.b.host.counted(Count::RnrNakSent) as usize;
    assert!(tries > 3);
    let psns: Vec<u32> = (0..7).map(|i| (PSN + i) & 0xff_ffff).chain(vec![PSN; tries - 1]).collect();
    assert_eq!(p.psns(A)[..6 + tries], psns[..6 + tries], "all once, then the first one only");
    let before = p.ops(A).len();
    p.recv(B, 0, 600);
    p.recv(B, 0, 600);
    p.ends(&[Success; 3]);
    let left: Vec<u64> = p.sent(A).skip(before).map(|s| s.at_ns).collect();
    assert!(left.len() <= 8, "the first one, and the six behind it once it was taken");
    assert!(left[left.len() - 6..].iter().all(|at| *at == left[left.len() - 1]), "the six in one train");
    assert_eq!(p.a.host.counted(Count::Probe), 0, "each that went alone asked");
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let mut p = Pair::new(&Setup { mtu: Mtu::B4096, window_bytes: 20_000, ..Setup::default() });
    p.send(A, WRITE, 0, 100_000);
    p.transmit_side(A);
    assert_eq!(p.ops(A).len(), 4);
    assert!(!p.a.qp.wants_transmit());
    assert!(p.a.qp.window().inflight_bytes <= 20_000);
    p.ends(&[Success]);
}

#[test]
fn an_acknowledgement_is_asked_for_often_enough_to_keep_the_window_moving() {
    let mut p = Pair::new(&Setup { window_bytes: 64 << 10, ..Setup::default() });
    p.send(A, WRITE, 0, 256 * 200);
    p.transmit();
    let mut run = 0;
    for s in &p.wire {
        run += 1;
        assert!(run <= 32);
        if s.packet().bth().ack_req() {
            run = 0;
        }
    }
}

#[test]
fn a_long_read_is_asked_for_in_pieces_that_fit_the_window() {
    let mut p = Pair::new(&Setup { window_bytes: 16 << 10, ..Setup::default() });
    p.fill(B, 0, 100_000);
    p.send(A, READ, 200_000, 100_000);
    p.ends(&[Success]);
    p.expect_bytes(A, 200_000, 0, 100_000);
    assert!(p.ops(A).len() >= 13 && p.ops(A).iter().all(|o| *o == P::ReadRequest));
}

#[test]
fn a_reordered_packet_is_recovered() {
    let mut p = Pair::rc();
    p.script = Box::new(|s, n, _| if (s, n) == (A, 1) { Fate::Late(2_000) } else { Fate::Pass });
    p.fill(A, 0, 1000);
    p.recv(B, 4096, 1000);
    p.send(A, SendOp::Send, 0, 1000);
    p.ends(&[Success]);
    p.expect_bytes(B, 4096, 0, 1000);
    assert_eq!(p.b.host.recvs().len(), 1);
}

#[test]
fn a_queue_pair_can_be_its_own_peer() {
    let s = Setup { psn_b: 0xff_fffd, ..Setup::default() };
    let mut p = Pair::reset(&s);
    p.ready_to_receive(A, &s);
    p.ready_to_send(A, &s);
    p.fill(A, 0, 1000);
    p.recv(A, 4096, 1000);
    p.send(A, SendOp::Send, 0, 1000);
    p.send(A, READ, 8192, 1000);
    p.send(A, SendOp::FetchAdd { remote: remote(16_384), add: 2 }, 20_000, 8);
    for _ in 0..20 {
        p.now += 1000;
        p.transmit_side(A);
        for s in std::mem::take(&mut p.wire) {
            p.deliver(A, &s.bytes);
        }
    }
    p.expect_sends(&[Success; 3]);
    p.expect_bytes(A, 4096, 0, 1000);
    p.expect_bytes(A, 8192, 0, 1000);
    assert!(!p.a.qp.wants_transmit() && p.a.qp.ack_owed().is_none());
}

#[test]
fn marked_packets_are_answered_by_few_cnps_and_a_cnp_cuts_the_window() {
    let mut p = Pair::rc();
    p.mark_ce = true;
    p.sends(10, A, WRITE, 0, 8);
    let before = p.a.qp.window().cwnd_bytes;
    p.ends(&[Success; 10]);
    assert_eq!(p.b.host.counted(Count::CnpSent), 1);
    assert!(p.b.host.counted(Count::EcnMarked) >= 10);
    assert_eq!(p.a.host.counted(Count::CnpReceived), 1);
    assert!(p.a.qp.window().cwnd_bytes < before);
    let cnp = p.wire.iter().find(|s| s.op().is_none()).unwrap();
    assert_eq!((cnp.bytes[0], cnp.bytes.len(), cnp.bytes[4]), (0x81, 28, 0x40));
    assert!(cnp.bytes[12..].iter().all(|b| *b == 0));
}

#[test]
fn loss_slows_a_stream_instead_of_stopping_it() {
    let goodput = |permille: u64| {
        let setup = Setup {
            mtu: Mtu::B4096,
            window_bytes: 200 << 10,
            rnr_retry: 7,
            retry_cnt: 7,
            ..Setup::default()
        };
        let mut p = Pair::new(&setup);
        let mut rng = test_support::random::Rng::new(1);
        p.script =
            Box::new(move |_, _, _| if rng.next_u64() % 1000 < permille { Fate::Drop } else { Fate::Pass });
        p.sends(300, A, WRITE, 0, 65_536);
        p.ends(&[Success; 300]);
        300.0 * 65_536.0 / p.now as f64
    };
    let (clean, some, many) = (goodput(0), goodput(1), goodput(10));
    assert!(some > 0.7 * clean, "0.1 %: {some} of {clean}");
    assert!(many > 0.3 * clean, "1 %: {many} of {clean}");
}

/// Writes so many bytes, all of them under way at once, and has them acknowledged.
fn write_at_once(p: &mut Pair, bytes: u32) {
    for _ in 0..bytes / 1024 {
        p.send(A, WRITE, 0, 1024);
    }
    p.run();
}

#[test]
fn a_window_grows_by_what_half_of_it_carried_and_by_nothing_less() {
    let mut p = Pair::rc();
    p.mark_ce = true;
    p.send(A, WRITE, 0, 8);
    p.run();
    p.mark_ce = false;
    let cut = p.a.qp.window().cwnd_bytes;
    assert!(cut < 128 << 10 && cut > 20 << 10, "{cut} bytes");
    for _ in 0..20 {
        write_at_once(&mut p, cut / 4);
    }
    assert_eq!(p.a.qp.window().cwnd_bytes, cut, "a quarter says nothing about the path");
    for _ in 0..20 {
        write_at_once(&mut p, cut / 4 * 3);
    }
    assert!(p.a.qp.window().cwnd_bytes > cut);
}

#[test]
fn what_fills_a_packet_up_is_zeros() {
    for (op, len) in [(SendOp::Send, 5), (WRITE, 258)] {
        let mut p = Pair::rc();
        p.fill(A, 0, 300);
        p.recv(B, 0, 300);
        p.send(A, op, 0, len);
        p.run();
        for sent in p.sent(A) {
            let packet = sent.packet();
            let pad = usize::from(packet.bth().pad());
            assert!(sent.bytes.ends_with(&[0; 3][..pad]), "{op:?}: {:x?}", sent.bytes);
        }
        let last = p.sent(A).last().unwrap();
        assert_ne!(last.packet().bth().pad(), 0);
    }
}
