//! Idle processes at a shared address, and the time that each of them took to join.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hca::{DeviceUrl, open_exactly};
use hca_perf::Failure;

use crate::floor::end_with_starter;
use hca_perf::child::{serve_if_asked, wait_for_end};

/// The first argument of a process that stays at a shared address.
const CHILD_COMMAND: &str = "__member";

/// Processes at a shared address that send and receive nothing.
#[derive(Default)]
pub struct Members {
    children: Vec<Child>,
}

impl Members {
    /// Starts one more process at the address of `device`; returns the time that its call to open the device took.
    ///
    /// # Errors
    /// The process can't be started, or can't open the device.
    pub fn add(&mut self, device: &DeviceUrl) -> Result<Duration, Failure> {
        let child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &device.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        self.children.push(child);
        let child = self.children.last_mut().expect("it was just added");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output is a pipe")).read_line(&mut line)?;
        let nanos = line.trim().parse();
        let nanos =
            nanos.map_err(|_| "a process could not join the shared address; its message stands above")?;
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The end of its input is the end of the child.
            child.stdin = None;
        }
        self.children.iter_mut().for_each(wait_for_end);
    }
}

/// To be called first in `main` of every program that starts [`Members`]: becomes one if the process was started for
/// that.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "a process at a shared address", |args| {
        let [device] = args else { return Err("one argument".into()) };
        end_with_starter()?;
        let url = device.parse()?;
        let begin = Instant::now();
        let _opened = open_exactly(&url)?;
        println!("{}", begin.elapsed().as_nanos());
        std::io::stdin().lines().for_each(drop);
        Ok(())
    });
}
