//! A program with VIs that forks: its child's drops wait for nobody, and end no connection of the parent's. An alarm ends
//! a child that hangs.
//!
//! Invariants:
//! 1. The child drops inherited objects, which allocates at most, and ends by `_exit`.

use std::time::Duration;

use hca::via::{
    Discriminator, Listener, MemAttributes, Memory, NetAddress, Nic, Request, Segment, Vi, ViAttributes,
    ViState,
};

const LONG: Duration = Duration::from_secs(20);

/// An adapter with a VI, a thread for its connections, and one for calls.
struct Side {
    vi: Vi,
    memory: Memory,
    listener: Listener,
    nic: Nic,
}

impl Side {
    fn open(device: &str) -> Self {
        let nic = Nic::open(&hca::open(device).unwrap()).unwrap();
        let ptag = nic.create_ptag().unwrap();
        let memory = nic.alloc(4096, &MemAttributes::new(&ptag)).unwrap();
        let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None).unwrap();
        let listener = nic.listen(Discriminator::new(b"fork").unwrap()).unwrap();
        nic.create_cq(4).unwrap().notify(|_| ()).unwrap();
        Self { vi, memory, listener, nic }
    }
}

/// Sends a message, and receives it.
fn exchange(from: &Side, to: &Side) {
    let write = |side: &Side| {
        let descriptor = side.memory.descriptor(0).unwrap();
        descriptor.write(&Request::new(&[Segment::new(&side.memory, 64, 8)])).unwrap();
        descriptor
    };
    to.vi.post_recv(write(to)).unwrap();
    from.vi.post_send(write(from)).unwrap();
    assert!(to.vi.recv_wait(Some(LONG)).unwrap().status.is_ok());
    assert!(from.vi.send_wait(Some(LONG)).unwrap().status.is_ok());
}

#[test]
fn a_forked_child_lets_go_of_vis_and_the_parent_keeps_its_connection() {
    let id = std::process::id();
    for device in [format!("shm://via-fork-{id}"), "udp://".to_owned(), "udp://?progress=inline".to_owned()] {
        let (client, server) = (Side::open(&device), Side::open(&device));
        let name = Discriminator::new(b"fork").unwrap();
        let to = NetAddress { host: server.nic.attributes().host, discriminator: name };
        std::thread::scope(|s| {
            let asks = s.spawn(|| client.vi.connect(name, &to, Some(LONG)).map(drop));
            server.listener.wait(Some(LONG)).unwrap().accept(&server.vi).unwrap();
            asks.join().unwrap().unwrap();
        });
        exchange(&client, &server);
        // SAFETY: (1)
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it takes no pointer.
            unsafe { libc::alarm(20) };
            drop((client, server));
            // SAFETY: (1)
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child's number, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(
            status, 0,
            "{device}: the child ended with status {status:#x}, of which 0x7f is the signal"
        );
        exchange(&client, &server);
        exchange(&server, &client);
        assert_eq!([client.vi.state(), server.vi.state()], [ViState::Connected; 2], "{device}");
    }
}
