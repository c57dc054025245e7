//! Processes under a launcher: this crate's server with an inherited descriptor, and `mpiexec.hydra` if it is
//! installed.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use hca_job::server::Server;
use hca_job::{Job, JobError};
use rustix::io::{FdFlags, fcntl_setfd};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The program that this test binary is when it is started as a process of a job: names itself, and ends as it is told.
#[test]
#[ignore = "needs a launcher: other tests start it as a process of a job"]
fn process_of_a_job() {
    let first = Job::from_env().unwrap();
    let again = Job::from_env().unwrap();
    assert_eq!((first.id(), first.rank()), (again.id(), again.rank()));
    drop(first);
    again.publish(b"by the second").unwrap();
    again.fence().unwrap();
    let next = (again.rank() + 1) % again.size();
    assert_eq!(again.card(next).unwrap(), b"by the second");
    again.barrier().unwrap();
    // Without `finalize`: the drop leaves.
    drop(again);
    assert!(matches!(Job::from_env(), Err(JobError::Left)));
    println!("left");
}

/// This binary as a process of a job.
fn process(mut command: Command) -> Command {
    for name in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID", "HCA_JOB", "HCA_JOB_TIMEOUT"] {
        command.env_remove(name);
    }
    command.args(["--exact", "process_of_a_job", "--ignored", "--nocapture"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn this_binary() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn all_left(out: &Output, size: usize) {
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    assert_eq!(said.matches("left\n").count(), size, "{said}");
}

#[test]
fn a_process_takes_the_inherited_descriptor_once_and_shares_the_job() {
    let server = Server::start(2, "test", |_| {}).unwrap();
    let children: Vec<_> = (0..2)
        .map(|rank| {
            let seat = server.attach(rank).unwrap();
            // Nothing else is started meanwhile that would inherit it, but other tests' programs, which do no harm.
            fcntl_setfd(&seat, FdFlags::empty()).unwrap();
            let mut command = process(Command::new(this_binary()));
            command.env("PMI_FD", seat.as_raw_fd().to_string()).env("PMI_SIZE", "2");
            command.env("PMI_RANK", rank.to_string()).spawn().unwrap()
        })
        .collect();
    for child in children {
        all_left(&child.wait_with_output().unwrap(), 1);
    }
}

/// Runs this binary under `mpiexec.hydra`.
fn hydra(arguments: &[&str]) -> Output {
    let mut command = Command::new("mpiexec.hydra");
    command.args(arguments).arg(this_binary());
    process(command).output().expect("mpiexec.hydra is there")
}

#[test]
#[ignore = "needs mpiexec.hydra, of the package mpich"]
fn processes_of_mpiexec_find_each_other_by_descriptor_and_by_port() {
    for arguments in [&["-n", "8"][..], &["-pmi-port", "-n", "3"], &["-n", "1"]] {
        all_left(&hydra(arguments), arguments.last().unwrap().parse().unwrap());
    }
}
