//! The traffic class of datagrams, over UDP sockets, which are read in another way when datagrams come one by one.

use hca_core::{AddressVector, Qkey};
use hca_fabric::{Fabric, OpenError, UdpFabric, UdpOptions};
use hca_verbs::*;
use softhca::Progress;
use test_support::addresses;

use super::{connect, ends_on};

/// The differentiated services codepoint of the datagrams.
const DSCP: u8 = 40;
/// More than come before the network reads them in another way.
const IN_A_ROW: usize = 200;

#[test]
fn each_datagram_tells_its_traffic_class_though_messages_come_one_by_one() {
    let open = |_: &str| -> Box<dyn Fabric> {
        addresses::at_free(1, |addr| match UdpFabric::open(addr, &UdpOptions::default()) {
            Ok(fabric) => Some(Box::new(fabric)),
            Err(OpenError::InUse(_)) => None,
            Err(e) => panic!("{e}"),
        })
    };
    let [mut left, mut right] = ends_on(Progress::Inline, open);
    // Nobody reads the traffic class of these.
    let (mut a, mut b) = (left.qp::<Rc>(), right.qp::<Rc>());
    connect(&a, &b);
    for _ in 0..IN_A_ROW {
        b.post_recv(right.pd.alloc(8).unwrap()).unwrap();
        assert_eq!(right.cq.poll(&mut right.wcs).count(), 0, "it looks in vain, as one that waits does");
        a.send_inline(b"message").unwrap();
        let mut done = 0;
        while done < 2 {
            done += right.cq.poll(&mut right.wcs).count() + left.cq.poll(&mut left.wcs).count();
        }
    }
    let qkey = Qkey::new(0x1ee7);
    let (mut c, mut d) = {
        let datagrams = |pd: &Pd, cq| pd.qp::<Ud>(cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
        (datagrams(&left.pd, &left.cq), datagrams(&right.pd, &right.cq))
    };
    c.activate(qkey).unwrap();
    d.activate(qkey).unwrap();
    let path = AddressVector { dgid: d.endpoint().gid, traffic_class: DSCP << 2, ..AddressVector::default() };
    let peer = left.pd.create_ah(&path).unwrap().peer(d.qpn(), qkey);
    for _ in 0..IN_A_ROW {
        d.post_recv(right.pd.alloc(48).unwrap()).unwrap();
        assert_eq!(right.cq.poll(&mut right.wcs).count(), 0);
        c.send_to(left.buf(b"datagram"), &peer).unwrap();
        let class = loop {
            left.cq.poll(&mut left.wcs);
            let came = right.cq.poll(&mut right.wcs).next();
            if let Some(wc) = came {
                break wc.ok().unwrap().grh().unwrap().traffic_class;
            }
        };
        assert_eq!(class >> 2, DSCP);
    }
}
