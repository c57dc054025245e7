//! An adapter of software that is served as ConnectX functions: by a thread of this process, or by a process of its
//! own.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hca::DeviceUrl;
use hca_fabric::LoopbackNet;
use hca_perf::Failure;
use softhca::{Options, Progress, SoftHca};
use softhca_pci::{PortKind, Served, ServerOptions};

use crate::floor::end_with_starter;
use hca_perf::child::{serve_if_asked, wait_for_end};

/// The first argument of a process that serves functions.
const CHILD_COMMAND: &str = "__served";

/// Serves so many functions, with InfiniBand ports, for as long as what it returns lives. It sleeps after so much idle
/// time.
///
/// # Errors
/// The system refuses.
pub fn serve(functions: usize, patience: Option<Duration>) -> Result<Served, Failure> {
    let fabric = Box::new(LoopbackNet::new().attach(Ipv4Addr::new(10, 0, 0, 1).into()));
    let hca =
        SoftHca::open(fabric, Options { progress: Progress::Inline, lazy_acks: true, ..Options::default() })?;
    let options = ServerOptions::from(PortKind::InfiniBand);
    let options = ServerOptions { patience: patience.unwrap_or(options.patience), ..options };
    Ok(Served::start(hca, functions, options)?)
}

/// To be called first in `main` of every program that has another process serve: becomes that one if this process was
/// started for it.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "the process that serves functions", |args| {
        end_with_starter()?;
        let served = serve(args.first().ok_or("the number of functions")?.parse()?, None)?;
        for socket in served.sockets() {
            println!("{}", socket.display());
        }
        // Until the starter closes it.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        Ok(())
    });
}

/// Functions that another process serves, on whatever CPU the system has it run.
#[derive(Debug)]
pub struct Functions {
    child: Child,
    urls: Vec<DeviceUrl>,
}

impl Functions {
    /// Starts the process, on the CPUs of this thread.
    ///
    /// # Errors
    /// It can't be started, or can't serve.
    pub fn start(count: usize) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("its output is a pipe")?).lines();
        // From here on whatever fails ends the child, too.
        let mut started = Self { child, urls: Vec::new() };
        for socket in lines.take(count) {
            started.urls.push(format!("vfio-user://{}", socket?).parse()?);
        }
        if started.urls.len() < count {
            return Err("the process that serves functions could not begin; its message stands above".into());
        }
        Ok(started)
    }
    /// The functions.
    pub fn urls(&self) -> &[DeviceUrl] {
        &self.urls
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        wait_for_end(&mut self.child);
    }
}
