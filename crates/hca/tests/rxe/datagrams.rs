//! Datagrams, both ways.

use std::time::{Duration, Instant};

use hca::{AddressVector, Mtu, Qkey, Qpn};
use hca::{Completions, SendRequest, Ud};

use crate::peer::{Peer, variable};
use crate::world::{gid_of_peer, our_context, remote_region};

const QKEY: u32 = 0x1234_5678;
const GRH: usize = 40;
const LIMIT: Duration = Duration::from_secs(60);

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    test_support::random::Rng::new(seed).bytes(len)
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn datagrams_of_all_sizes_arrive_both_ways_and_those_with_a_wrong_key_do_not() {
    let mut peer = Peer::open(&variable("HCA_RXE_ADDRESS"));
    remote_region(&peer.ask("region 65536 w"));
    let context = our_context();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(512).unwrap());
    let mut qp = pd.qp::<Ud>(&cq).build().unwrap();
    qp.activate(Qkey::new(QKEY)).unwrap();
    let made = peer.ask("qp ud 128 0");
    let (theirs, qpn) = made.split_once(' ').expect("two numbers");
    let their_qpn: u32 = qpn.parse().unwrap();
    peer.ask(&format!("activate {theirs} {QKEY}"));
    let path = peer.ask(&format!("path {}", context.port().gid));
    let ah = pd.create_ah(&AddressVector { dgid: gid_of_peer(), ..AddressVector::default() }).unwrap();
    let (ours, mut wcs) = (qp.qpn().raw(), Completions::default());
    let mtu = Mtu::from_bytes(peer.mtu as u32).unwrap().min(context.port().active_mtu).bytes() as usize;

    for (n, len) in [0, 1, 3, 255, mtu - 1, mtu].into_iter().enumerate() {
        let (seed, imm) = (n as u64 + 900, n as u32 * 3);
        // From us to rxe: first one that nobody takes.
        peer.tell(&format!("blank 0 0 {}", GRH + mtu + 64));
        peer.ask(&format!("recv {theirs} 5 0 0 {}", GRH + mtu));
        for key in [QKEY + 1, QKEY] {
            let mut buf = pd.alloc(mtu).unwrap();
            buf[..len].copy_from_slice(&bytes(if key == QKEY { seed } else { 1 }, len));
            let to = ah.peer(Qpn::new(their_qpn), Qkey::new(key));
            let request = SendRequest::send(buf.first(len)).to(&to).imm(imm);
            qp.post_send(request).unwrap();
            cq.wait(&mut wcs, Some(LIMIT)).unwrap().for_each(|wc| assert!(wc.error().is_none(), "{wc:?}"));
        }
        let wanted = format!("1 5:0:{}:{}:{imm}:{their_qpn}:{ours}", 128, GRH + len);
        assert_eq!(peer.ask("poll 60000 1"), wanted, "{len} bytes to rxe");
        // Behind them is what was there before.
        peer.ask(&format!("untouched 0 {} 32", GRH + len));
        peer.tell("blank 0 8 32");
        peer.ask(&format!("check 0 {GRH} {len} {seed}"));

        // From rxe to us: as above.
        qp.post_recv_id(6, pd.alloc(GRH + mtu).unwrap()).unwrap();
        for key in [QKEY + 1, QKEY] {
            peer.tell(&format!("fill 0 4096 {len} {}", if key == QKEY { seed } else { 1 }));
            peer.tell(&format!("post {theirs} 4 sendimm 0 4096 {len} {path} {ours} {imm} {key}"));
            let sent = peer.ask("poll 60000 1");
            assert!(sent.starts_with("1 4:0:"), "{sent}");
        }
        let begun = Instant::now();
        while cq.wait(&mut wcs, Some(LIMIT)).unwrap().len() == 0 {
            assert!(begun.elapsed() < LIMIT, "no datagram of {len} bytes from rxe");
        }
        let wc = wcs.iter_mut().next().unwrap().ok().unwrap();
        assert_eq!(
            (wc.id, wc.byte_len as usize, wc.imm()),
            (6, GRH + len, Some(imm)),
            "{len} bytes from rxe"
        );
        assert_eq!((wc.src_qp.raw(), wc.payload().unwrap()), (their_qpn, &bytes(seed, len)[..]));
        let grh = wc.grh().expect("a header");
        assert_eq!((grh.sgid, grh.dgid), (gid_of_peer(), context.port().gid));
        let reply = wc.reply_ah(&pd).unwrap().unwrap();
        assert_eq!(reply.av().dgid, gid_of_peer());
    }
    assert_eq!(context.counter("rx_dropped_qkey"), Some(6), "six datagrams had another Q_Key");
}
