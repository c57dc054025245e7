//! Shared addresses on a machine whose kernel, or a container's seccomp profile, does not do what they need.
#![deny(unsafe_code)]

use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};

use test_support::filter::refuse_with;

/// The system call that a filter refuses.
#[derive(Clone, Copy)]
enum Forbidden {
    /// SO_ATTACH_REUSEPORT_CBPF.
    Steering,
    /// UNIX sockets.
    Unix,
}

/// Runs the command where that is forbidden.
fn run(what: Forbidden, args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
    let inside = std::thread::spawn(move || {
        match what {
            Forbidden::Steering => {
                let option = [(1, libc::SOL_SOCKET as u32), (2, libc::SO_ATTACH_REUSEPORT_CBPF as u32)];
                refuse_with(libc::SYS_setsockopt, &option, libc::ENOPROTOOPT);
            }
            Forbidden::Unix => refuse_with(libc::SYS_socket, &[(0, libc::AF_UNIX as u32)], libc::EPERM),
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_hca"));
        command.args(args).env_remove("HCA_DEVICE").stdin(Stdio::null()).output().unwrap()
    });
    inside.join().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An address of a test's own.
fn address(salt: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.{salt}.{high}.{}", low.clamp(1, 254))
}

#[test]
fn devinfo_says_that_the_device_has_an_address_of_its_own() {
    for (salt, what, call) in [
        (91, Forbidden::Steering, "SO_ATTACH_REUSEPORT_CBPF"),
        (92, Forbidden::Unix, "opening a UNIX socket"),
    ] {
        let at = address(salt);
        let name = format!("auto://{at}?share=yes");
        let out = run(what, &["devinfo", &name]);
        let (said, warned) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{warned}");
        assert!(said.contains("an address of its own") && said.contains(call), "{said}");
        assert!(warned.contains("an address of its own") && warned.contains(call), "{warned}");
        let out = run(what, &["devinfo", &name, "--json"]);
        let info: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(info["notes"]["shared address"].as_str().unwrap().contains(call), "{info}");
        assert!(info.to_string().contains(&at), "{info}");
    }
}

#[test]
fn the_next_device_takes_another_loopback_address() {
    let at = address(93);
    let _taken = UdpSocket::bind((at.as_str(), 4791)).unwrap();
    let out = run(Forbidden::Steering, &["devinfo", &format!("auto://{at}?share=yes"), "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(info["notes"]["shared address"].as_str().unwrap().contains("an address of its own"), "{info}");
    assert!(info["device"].as_str().unwrap().starts_with("auto://127.0."), "{info}");
}

#[test]
fn udp_says_what_to_do() {
    for what in [Forbidden::Steering, Forbidden::Unix] {
        let out = run(what, &["devinfo", &format!("udp://{}?share=yes", address(94))]);
        let said = text(&out.stderr);
        assert!(!out.status.success(), "{}", text(&out.stdout));
        for part in ["no processes can share 127.94.", "an address of its own, without share=", "seccomp"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
