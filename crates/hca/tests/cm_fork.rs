//! A program with a connection manager that forks: its child's drops wait for nobody. An alarm ends a child that hangs.
//!
//! Invariants:
//! 1. The child drops inherited objects, which allocates at most, and ends by `_exit`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use hca::Rc;
use hca::cm::{Agent, Event, Listener, PortSpace, ServiceId, Sink, connect};

const LONG: Duration = Duration::from_secs(20);

/// A receiver of events, under the connection manager's lock, that waits until it is told to go on.
struct Holds {
    holds: mpsc::Sender<()>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Sink for Holds {
    fn event(&self, _: &Event) -> Option<Arc<dyn Sink>> {
        let _ = self.holds.send(());
        let _ = self.go.lock().unwrap().recv_timeout(2 * LONG);
        None
    }
}

#[test]
fn a_forked_child_lets_go_of_a_connection_manager_that_was_at_work() {
    let name = format!("loopback://cm-fork-{}", std::process::id());
    let [client, server] = [0; 2].map(|_| hca::open(&name).unwrap());
    let agent = Agent::of(&server).unwrap();
    let service = ServiceId::of_port(PortSpace::Tcp, 1);
    let ((holds, held), (go, wait)) = (mpsc::channel(), mpsc::channel());
    agent.claim(service).unwrap();
    agent.listen(service, 1, Arc::new(Holds { holds, go: Mutex::new(wait) })).unwrap();
    let listener = Listener::bind(&server, "0.0.0.0:0").unwrap();
    let address = SocketAddr::new(server.port().gid.ip(), 1);
    let asking = std::thread::spawn(move || {
        let pd = client.alloc_pd().unwrap();
        let cq = client.create_cq(256).unwrap();
        let qp = pd.qp::<Rc>(&cq).build().unwrap();
        connect(&client, &qp, address, b"").map(drop)
    });
    held.recv_timeout(LONG).expect("a request comes");
    // SAFETY: (1)
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it takes no pointer.
        unsafe { libc::alarm(20) };
        drop((listener, agent, server));
        // SAFETY: (1)
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    drop(go);
    assert_eq!(status, 0, "the child ended with status {status:#x}, of which 0x7f is the signal");
    agent.unlisten(service);
    assert!(asking.join().unwrap().is_err(), "nobody has accepted");
    drop(listener);
}
