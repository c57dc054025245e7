//! What the fuzz target `vfio_user` does with its input. The corpus runs through it in `cargo test` too.

use hca_vfio::user::wire::{Command, HEADER_BYTES, Header, Kind, RegionInfo, Reply, Request, refusal};

/// Takes `data` as messages one behind the other, each as a request and as a reply, and as what a kernel says of a
/// region. What is understood is built again, and is then understood as the same.
pub(crate) fn vfio_user(data: &[u8]) {
    let _ = RegionInfo::parse(data);
    let mut rest = data;
    while let Some((head, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::parse(head) else { break };
        let again = Header::parse(&header.build()).expect("a header that was built is parsed");
        assert_eq!(again, header);
        let payload = &behind[..header.payload_bytes.min(behind.len())];
        message(header.id, header.command, payload);
        rest = &behind[payload.len()..];
    }
    // And whatever it is, as the payload of each command.
    for command in Command::ALL {
        message(1, command.code(), data);
    }
}

fn message(id: u16, command: u16, payload: &[u8]) {
    let of = |message: &[u8]| {
        let (head, payload) = message.split_first_chunk::<HEADER_BYTES>().expect("a message has a header");
        let header = Header::parse(head).expect("a header that was built is parsed");
        assert_eq!((header.id, header.command, header.payload_bytes), (id, command, payload.len()));
        (header.kind, payload.to_vec())
    };
    if let Ok(request) = Request::parse(command, payload) {
        assert_eq!(request.command().code(), command);
        // Longer than any message can be: it came without a header.
        if payload.len() <= 1 << 20 {
            let (kind, payload) = of(&request.build(id, true));
            assert_eq!(kind, Kind::Command { no_reply: true });
            assert_eq!(Request::parse(command, &payload), Ok(request));
        }
    }
    if let Ok(reply) = Reply::parse(command, payload)
        && payload.len() <= 1 << 20
    {
        let (kind, payload) = of(&reply.build(id, u32::MAX));
        assert_eq!(kind, Kind::Reply);
        let again = Reply::parse(command, &payload).expect("a reply that was built is parsed");
        match (&again, &reply) {
            // The length of a region's description is what its parts need.
            (Reply::RegionInfo(a), Reply::RegionInfo(r)) => {
                assert_eq!((a.index, a.size, a.offset, &a.areas), (r.index, r.size, r.offset, &r.areas));
            }
            _ => assert_eq!(again, reply),
        }
    }
    let (kind, empty) = of(&refusal(id, command, 22));
    assert!(kind == Kind::Refusal { errno: 22 } && empty.is_empty());
}
