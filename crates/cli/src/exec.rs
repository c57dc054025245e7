//! `hca exec`: starts a program that speaks libibverbs on a device of this project.
//!
//! The shared object of `hca-ibverbs` has the names of all libraries that it stands for, as links in a folder. The
//! loader searches that folder first.

mod namespace;
pub(crate) mod rdma;
mod tree;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use hca::{DEVICES_VARIABLE, DeviceUrl, NamedDevice, SHARED_BY, Target};
use thiserror::Error;

use crate::args::{ExecArgs, FabricName};
use crate::output::tell;
use crate::perf::{device_or, overrides};

/// The shared object.
const LIBRARY: &str = "libhca_ibverbs.so";
/// The folder of links beside it.
const LINKS: &str = "hca-libraries";
/// The names of the libraries that it stands for.
const NAMES: [&str; 8] = [
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libefa.so.1",
    "libhns.so.1",
    "libionic.so.1",
    "libmana.so.1",
    "libmlx4.so.1",
    "libmlx5.so.1",
];
/// The variable by which the library is asked to explain errors.
const EXPLAIN_VARIABLE: &str = "HCA_EXPLAIN";
/// The variable by which the library is asked to leave registered memory where it is.
const KEEP_VARIABLE: &str = "HCA_KEEP_MEMORY";
/// The library that leads programs to the files of devices, and the variable by which it finds them.
const PATHS_LIBRARY: &str = "libhca_paths.so";
const PATHS_VARIABLE: &str = "HCA_PATHS";
/// The library that serves long blocks of malloc.
const HEAP_LIBRARY: &str = "libhca_heap.so";
/// The libraries that the loader loads first.
const PRELOAD: &str = "LD_PRELOAD";
/// The folders that the loader searches before the system's.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The exit code of a shell that does not find a program.
const NOT_FOUND: u8 = 127;

/// The reason why a program is not started.
#[derive(Debug, Error)]
enum ExecError {
    #[error(
        "there is no {LIBRARY} beside this command ({}): build it by `cargo build -p hca-ibverbs -p hca-paths`, or copy it there",
        .folder.display()
    )]
    NoLibrary { folder: PathBuf },
    #[error("can't make the link {}: {source}; make it as a user who may, to the library beside its folder", .link.display())]
    Link { link: PathBuf, source: io::Error },
    #[error(
        "there is no {HEAP_LIBRARY} beside {LIBRARY}: build it by `cargo build -p hca-heap`, or leave --heap away"
    )]
    NoHeap,
    #[error("can't find the folder of this command: {0}")]
    Own(#[source] io::Error),
    #[error("{0}")]
    Device(String),
    #[error(transparent)]
    Namespace(#[from] namespace::NamespaceError),
    #[error("can't start {program:?}: {source}; give its path, or the name of a program in PATH")]
    Program { program: OsString, source: io::Error },
}

/// Becomes the program.
pub(crate) fn exec(args: &ExecArgs) -> ExitCode {
    let Err(e) = start(args);
    tell!("hca: {e}");
    ExitCode::from(if matches!(e, ExecError::Program { .. }) { NOT_FOUND } else { 1 })
}

fn start(args: &ExecArgs) -> Result<Infallible, ExecError> {
    let own = std::env::current_exe().map_err(ExecError::Own)?;
    let library = library(own.parent().unwrap_or(Path::new("/")))?;
    let links = links_to(&library)?;
    let mut folders = vec![links];
    folders.extend(std::env::var_os(LIBRARY_PATH).iter().flat_map(std::env::split_paths));
    let path = std::env::join_paths(folders).map_err(|e| ExecError::Device(e.to_string()))?;
    let (program, arguments) = args.command.split_first().expect("the arguments require one");
    let mut command = Command::new(program);
    let devices = devices(args)?;
    if args.namespace {
        namespace::enter()?;
    }
    if !args.no_paths {
        show_files(&mut command, args, &devices, &library, &own)?;
    }
    if args.heap {
        let heap = tree::beside(&library, HEAP_LIBRARY).ok_or(ExecError::NoHeap)?;
        preload(&mut command, heap)?;
    }
    command.args(arguments).env(LIBRARY_PATH, path).env(DEVICES_VARIABLE, devices);
    if args.explain {
        command.env(EXPLAIN_VARIABLE, "1");
    }
    if args.keep_memory {
        command.env(KEEP_VARIABLE, "1");
    }
    Err(ExecError::Program { program: program.clone(), source: command.exec() })
}

/// Shows the program the files of its devices, and the command `rdma`.
fn show_files(
    command: &mut Command,
    args: &ExecArgs,
    devices: &OsStr,
    library: &Path,
    own: &Path,
) -> Result<(), ExecError> {
    let paths = tree::beside(library, PATHS_LIBRARY);
    if paths.is_none() && !args.namespace {
        tell!(
            "hca: the program finds no devices below /sys and /dev, where UCX looks for them: there is no {PATHS_LIBRARY} \
             beside {LIBRARY}; build it by `cargo build -p hca-paths`, or give --no-paths"
        );
        return Ok(());
    }
    let named =
        NamedDevice::list(&devices.to_string_lossy()).map_err(|e| ExecError::Device(e.to_string()))?;
    let tree = match tree::tree(&named) {
        Ok(tree) => tree,
        Err(e) => {
            tell!("hca: the program finds no devices below /sys and /dev, where UCX looks for them: {e}");
            return Ok(());
        }
    };
    command.env(PATHS_VARIABLE, &tree);
    if let Ok(folder) = program_link(library, own) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).map_err(|e| ExecError::Device(e.to_string()))?;
        command.env("PATH", path);
    }
    if args.namespace {
        return Ok(namespace::show(&tree)?);
    }
    if let Some(paths) = paths {
        preload(command, paths)?;
    }
    Ok(())
}

/// Has the loader load a library first, before those that it was told to. Its list has no names with spaces: such a
/// library has a link in the folder that the loader searches.
fn preload(command: &mut Command, mut library: PathBuf) -> Result<(), ExecError> {
    if library.as_os_str().as_encoded_bytes().contains(&b' ')
        && let Some(name) = library.file_name().map(PathBuf::from)
    {
        link_to(&library.with_file_name(LINKS), name.as_os_str(), name.as_os_str())?;
        library = name;
    }
    let told =
        command.get_envs().find(|(name, _)| *name == PRELOAD).map(|(_, value)| value.map(OsStr::to_owned));
    let others = told.unwrap_or_else(|| std::env::var_os(PRELOAD)).filter(|others| !others.is_empty());
    let all = [Some(library.into_os_string()), others].into_iter().flatten().collect::<Vec<_>>();
    command.env(PRELOAD, all.join(":".as_ref()));
    Ok(())
}

/// The list of devices: the one of the arguments, or those of the environment with the options of the arguments.
fn devices(args: &ExecArgs) -> Result<OsString, ExecError> {
    if args.device.device.is_some() || args.device.fabric.is_some() {
        let mut url =
            device_or(&args.device, Target::Auto(None)).map_err(|e| ExecError::Device(e.to_string()))?;
        // A program is many processes, and a client of 127.0.0.1 looks for a server there.
        if matches!(args.device.fabric, Some(FabricName::Udp | FabricName::Uring)) {
            url.options.share = Some(SHARED_BY);
        }
        return Ok(format!("{}={url}", args.name).into());
    }
    let has_list = std::env::var_os(DEVICES_VARIABLE).is_some_and(|list| !list.is_empty());
    let named = hca::named_devices().map_err(|e| ExecError::Device(e.to_string()))?;
    let described = named.into_iter().map(|NamedDevice { name, url }| {
        let name = if has_list { &name } else { &args.name };
        let options = url.options.overridden_by(overrides(&args.device));
        format!("{name}={}", DeviceUrl { options, ..url })
    });
    Ok(described.collect::<Vec<_>>().join(" ").into())
}

/// The shared object: in a build's folder, beside the command, or in the `lib` beside its folder.
fn library(folder: &Path) -> Result<PathBuf, ExecError> {
    ["deps", ".", "../lib/hca", "../lib"]
        .iter()
        .map(|place| folder.join(place).join(LIBRARY))
        .find(|path| path.is_file())
        .ok_or_else(|| ExecError::NoLibrary { folder: folder.to_owned() })
}

/// The folder with the program `rdma`, which is a link to this command. It is made where it is missing.
fn program_link(library: &Path, own: &Path) -> io::Result<PathBuf> {
    let folder = std::path::absolute(library.with_file_name(rdma::FOLDER))?;
    let link = folder.join(rdma::NAME);
    if link.canonicalize().is_ok_and(|found| own.canonicalize().is_ok_and(|own| own == found)) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder)?;
    // Another one may be of a command that was moved.
    let made = folder.join(format!("{}.{}", rdma::NAME, std::process::id()));
    symlink(own, &made)?;
    std::fs::rename(&made, &link)?;
    Ok(folder)
}

/// The folder of the links to a library, which are made where they are missing.
fn links_to(library: &Path) -> Result<PathBuf, ExecError> {
    let folder = library.parent().expect("it was found in a folder").join(LINKS);
    for name in NAMES {
        link_to(&folder, name.as_ref(), LIBRARY.as_ref())?;
    }
    std::path::absolute(folder).map_err(ExecError::Own)
}
/// Makes a link in the folder of links to a library beside it, if it is missing.
fn link_to(folder: &Path, name: &OsStr, library: &OsStr) -> Result<(), ExecError> {
    let (link, target) = (folder.join(name), Path::new("..").join(library));
    if link.read_link().is_ok_and(|found| found == target) {
        return Ok(());
    }
    match std::fs::create_dir_all(folder).and_then(|()| symlink(&target, &link)) {
        // Another process was quicker.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && link.read_link().is_ok() => Ok(()),
        other => other.map_err(|source| ExecError::Link { link, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_with_the_command_that_builds_it() {
        let error = library(Path::new("/nonexistent/bin")).unwrap_err().to_string();
        assert!(
            error.contains("cargo build -p hca-ibverbs -p hca-paths") && error.contains("/nonexistent/bin"),
            "{error}"
        );
    }
}
