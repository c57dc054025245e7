//! Two drivers after Schutt's report on prototype InfiniBand adapters (SAND2001-3387), in user space over the verbs:
//! the system's wake-up of a thread stands for the interrupt.
//!
//! | driver | what it does |
//! |---|---|
//! | [`first`] | send and receive; calls that block until an interrupt tells of the completion |
//! | [`second`] | put and get on buffers with tags, by two queue pairs: one polled, one with interrupts |

pub mod first;
pub mod second;

use std::time::Duration;

use hca::{CompletionQueue, Completions, Notify, Wc};
use hca_perf::Failure;
use hca_perf::child::serve_if_asked;
use hca_perf::layers::two;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The first argument of a process that is the far side.
const CHILD_COMMAND: &str = "__driver";

/// Ends the process with the far side's work, if that is what it was started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "the far side of a driver", |args| {
        let [spec, device, cpu] = args else { return Err("three arguments are needed".into()) };
        let (device, cpu) = (device.parse()?, cpu.parse().ok());
        let words: Vec<&str> = spec.split(' ').collect();
        match words[..] {
            ["first", size] => {
                let size = size.parse()?;
                two::serve(&device, cpu, |opened| first::End::open(opened, size))
            }
            ["second", protocol] => {
                let protocol = protocol.parse()?;
                two::serve(&device, cpu, |opened| second::End::open(opened, protocol))
            }
            _ => Err(format!("`{spec}` is no driver").into()),
        }
    });
}

/// How long a wait for the other side may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The end of a wait.
fn silent(patience: Duration, what: &str) -> Failure {
    format!("{what} for {patience:?}: the other side has ended, or hangs").into()
}

/// Takes completions; where there are none, sleeps until the queue's interrupt, at most for so long. Returns how many
/// it took.
fn take_by_interrupt(
    cq: &mut CompletionQueue,
    wcs: &mut Completions,
    longest: Duration,
    mut each: impl FnMut(&mut Wc<'_>) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let mut take = |cq: &mut CompletionQueue| -> Result<usize, Failure> {
        let mut taken = 0;
        for wc in cq.poll(wcs) {
            each(&mut wc.ok()?)?;
            taken += 1;
        }
        Ok(taken)
    };
    cq.arm(Notify::Any);
    let taken = take(cq)?;
    if taken > 0 {
        return Ok(taken);
    }
    let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let fd = cq.wait_fd()?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    take(cq)
}
