//! `hca serve`: the software adapter as PCI functions at sockets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hca::{DeviceUrl, Target, open_exactly};
use hca_perf::Failure;
use hca_perf::interrupt::{SLICE, interrupted};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softhca::Progress;
use softhca_pci::{PortKind, Server, ServerOptions};

use crate::args::ServeArgs;
use crate::output::print;
use crate::perf::device_or;

/// The default network: functions that reach only each other.
const DEFAULT_NETWORK: &str = "served";

/// Serves until Ctrl-C.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let mut url = device_or(&args.device, Target::Loopback(DEFAULT_NETWORK.to_owned()))?;
    // The server's thread does the adapter's work, with that of the functions.
    if url.options.progress.is_some_and(|p| p != Progress::Inline) {
        return Err("the server itself makes the adapter's progress: leave progress= out".into());
    }
    url.options.progress = Some(Progress::Inline);
    url.options.lazy_acks = Some(true);
    let opened = open_exactly(&url)?;
    let Some(soft) = opened.soft() else {
        return Err(
            "only the software adapter can be served: name another device, as in udp://10.0.0.2".into()
        );
    };
    // Memory of clients takes descriptors, and each function has a part of them.
    let limit = getrlimit(Resource::Nofile);
    // If the limit can't be raised, each function has fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let fixed = args.pci.iter().map(|socket| socket.fixed.clone()).collect();
    let options = ServerOptions { no_spare_pages: args.no_spare_pages, fixed, ..args.port.into() };
    let paths: Vec<PathBuf> = args.pci.iter().map(|socket| socket.path.clone()).collect();
    let mut server = Server::open(Arc::clone(soft), &paths, options)?;
    let stopper = server.stopper()?;
    std::thread::spawn(move || {
        while !interrupted() {
            std::thread::sleep(SLICE);
        }
        stopper.stop();
    });
    print_addresses(opened.url(), args)?;
    server.run();
    opened.finish_capture()?;
    Ok(())
}

/// Says where clients find what; they may come from now on.
fn print_addresses(url: &DeviceUrl, args: &ServeArgs) -> Result<(), Failure> {
    let port = match args.port {
        PortKind::InfiniBand => "an InfiniBand port",
        PortKind::Roce => "an Ethernet port",
    };
    for (number, path) in args.pci.iter().map(|socket| &socket.path).enumerate() {
        let shown = std::path::absolute(path);
        let shown: &Path = shown.as_deref().unwrap_or(path);
        let said =
            print(format_args!("{}: function {number} of {url}, 15b3:1014 with {port}", shown.display()));
        match said {
            // Clients come all the same.
            Err(e) if e.is_without_reader() => {}
            said => said?,
        }
    }
    Ok(())
}
