//! The ConnectX driver on functions that the software adapter serves. The server is a thread of its own without
//! restrictions: only the thread that posts and polls is counted and filtered.

use hca_fabric::LoopbackNet;
use hca_mlx5::Mlx5;
use hca_vfio::{PciFunction, UserOptions};
use softhca_pci::{PortKind, Served};

use super::*;

/// How requests are told: by their first bytes, or on the doorbell page as a whole where they are short.
const DOORBELLS: [&str; 2] = ["rung", "whole"];

/// Two functions' ends, and their server, which goes last.
fn served_pair(doorbell: &str) -> (End, End, Served) {
    let fabric = LoopbackNet::new().attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    let inline = Options { progress: Progress::Inline, ..Options::default() };
    let hca = SoftHca::open(Box::new(fabric), inline).expect("an adapter opens");
    let served = Served::start(hca, 2, PortKind::InfiniBand).expect("it is served");
    let mut options = hca_mlx5::Options::default();
    options.blueflame = doorbell == "whole";
    let [a, b] = [0, 1].map(|i| {
        let function =
            PciFunction::connect(&served.sockets()[i], UserOptions::default()).expect("it connects");
        end(Context::new(Mlx5::open(function, options.clone()).expect("the driver starts")))
    });
    // Nobody else connects, and a process that is ended by the filter leaves none behind.
    let folder = served.sockets()[0].parent().expect("sockets have a folder");
    std::fs::remove_dir_all(folder).expect("it is the server's own");
    let (a, b) = connected(a, b);
    (a, b, served)
}

#[test]
fn the_driver_allocates_nothing_between_post_and_completion() {
    for doorbell in DOORBELLS {
        let (mut a, mut b, _served) = served_pair(doorbell);
        let remote = b.window.remote();
        traffic(&mut a, &mut b, remote, 200);
        let before = counting::calls();
        traffic(&mut a, &mut b, remote, 500);
        let calls = counting::calls() - before;
        assert_eq!(calls, 0, "{doorbell}: allocations and frees in 2500 requests");
        assert_eq!(b.window.load_u64(0), 700);
    }
}

#[test]
fn the_driver_makes_no_system_call_but_to_wake_its_server_and_to_give_way_to_it() {
    let Ok(role) = std::env::var(CHILD) else {
        let run = |role: &str| {
            let name = "driver::the_driver_makes_no_system_call_but_to_wake_its_server_and_to_give_way_to_it";
            run_child(name, role)
        };
        for doorbell in DOORBELLS {
            assert!(run(doorbell).success(), "{doorbell}: another system call was made");
        }
        assert_eq!(run("cheat").signal(), Some(libc::SIGSYS), "the filter lets another call pass");
        return;
    };
    let (mut a, mut b, _served) = served_pair(&role);
    let remote = b.window.remote();
    traffic(&mut a, &mut b, remote, 100);
    // A server that sleeps is woken by an asynchronous request, or by a write where the system has none.
    let wakes = [libc::SYS_io_submit, libc::SYS_io_getevents, libc::SYS_write];
    filter::allow_only(&[&wakes[..], &[libc::SYS_sched_yield, libc::SYS_exit_group]].concat());
    traffic(&mut a, &mut b, remote, 200);
    if role == "cheat" {
        let _ = std::os::unix::process::parent_id();
    }
    filter::end_at_once();
}
