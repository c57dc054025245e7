//! The program `rdma` under `hca exec`: `rdma link show` and `rdma dev show`, as iproute2's program of that name prints
//! them, of the devices whose files the program is led to. Everything else is for that program, if it is there.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

use super::PATHS_VARIABLE;

use crate::output::tell;

/// The name of the program, and the folder of its link beside the shared object.
pub(super) const NAME: &str = "rdma";
pub(super) const FOLDER: &str = "hca-programs";

/// Whether this command was started by that name.
pub(crate) fn is_meant() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref().and_then(Path::file_name).is_some_and(|name| name == NAME)
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let tree = std::env::var_os(PATHS_VARIABLE).map(PathBuf::from);
    let texts: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let is_flag = |text: &&str| text.starts_with('-');
    let known = texts
        .iter()
        .filter(|text| is_flag(text))
        .all(|flag| ["-j", "--json", "-p", "--pretty", "-jp", "-d"].contains(flag));
    let json = texts.iter().any(|text| text.starts_with("-j") || *text == "--json");
    let words: Vec<&str> = texts.into_iter().filter(|text| !is_flag(text)).collect();
    let (what, of) = match words[..] {
        ["link"] | ["link", "show" | "list"] => (Row::link as fn(&Row) -> (String, Value), None),
        ["link", "show" | "list", of] => (Row::link as _, Some(of)),
        ["dev"] | ["dev", "show" | "list"] => (Row::dev as _, None),
        ["dev", "show" | "list", of] => (Row::dev as _, Some(of)),
        _ => return other(&arguments),
    };
    let Some(tree) = tree.filter(|_| known) else { return other(&arguments) };
    match rows(&tree) {
        Ok(rows) => show(&rows, what, of, json),
        Err(e) => {
            tell!("rdma: {}: {e}", tree.display());
            ExitCode::from(1)
        }
    }
}

/// Prints the rows of devices, or of one, which may be named as `NAME/PORT`.
fn show(rows: &[Row], what: fn(&Row) -> (String, Value), of: Option<&str>, json: bool) -> ExitCode {
    let name = of.map(|of| of.split_once('/').map_or(of, |(name, _)| name));
    let chosen: Vec<(String, Value)> =
        rows.iter().filter(|row| name.is_none_or(|name| row.name == name)).map(what).collect();
    if chosen.is_empty() && name.is_some() {
        tell!("Wrong device name");
        return ExitCode::from(1);
    }
    let text = if json {
        Value::from_iter(chosen.into_iter().map(|(_, value)| value)).to_string() + "\n"
    } else {
        chosen.into_iter().map(|(text, _)| text + "\n").collect()
    };
    // A closed pipe is no error: its reader has what it wants.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Becomes the program of this name in the other folders of PATH.
fn other(arguments: &[OsString]) -> ExitCode {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_own = |folder: &PathBuf| folder.file_name().is_some_and(|name| name == FOLDER);
    let found = std::env::split_paths(&path).filter(|folder| !is_own(folder)).map(|folder| folder.join(NAME));
    match found.into_iter().find(|program| program.is_file()) {
        Some(program) => {
            let e = Command::new(&program).args(arguments).exec();
            tell!("rdma: {}: {e}", program.display());
        }
        None => tell!(
            "rdma: only `link show` and `dev show` are offered under hca exec, with -j; iproute2's rdma is not installed"
        ),
    }
    ExitCode::from(1)
}

/// A device.
struct Row {
    index: usize,
    name: String,
    up: bool,
    netdev: Option<String>,
    guid: String,
    version: String,
}

/// The devices of a tree.
fn rows(tree: &Path) -> io::Result<Vec<Row>> {
    let root = tree.join("sys/class/infiniband");
    let mut names: Vec<String> = fs::read_dir(&root)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let row = |(index, name): (usize, String)| {
        let read = |file: &str| {
            let text = fs::read_to_string(root.join(&name).join(file)).unwrap_or_default();
            text.trim().to_owned()
        };
        let netdev = [1, 3, 0, 2].map(|index| read(&format!("ports/1/gid_attrs/ndevs/{index}")));
        let netdev = netdev.into_iter().find(|netdev| !netdev.is_empty());
        let up = read("ports/1/state").ends_with("ACTIVE");
        Row { index, up, netdev, guid: read("node_guid"), version: read("fw_ver"), name: name.clone() }
    };
    Ok(names.into_iter().enumerate().map(row).collect())
}

impl Row {
    fn link(&self) -> (String, Value) {
        let (state, physical) = if self.up { ("ACTIVE", "LINK_UP") } else { ("DOWN", "DISABLED") };
        let name = &self.name;
        let mut text = format!("link {name}/1 state {state} physical_state {physical} ");
        let mut value = json!({ "ifindex": self.index, "port": 1, "ifname": name, "state": state, "physical_state": physical });
        if let Some(netdev) = &self.netdev {
            let index = fs::read_to_string(format!("/sys/class/net/{netdev}/ifindex")).unwrap_or_default();
            text += &format!("netdev {netdev} ");
            value["netdev"] = netdev.as_str().into();
            value["netdev_index"] = index.trim().parse::<u32>().unwrap_or(0).into();
        }
        (text, value)
    }
    fn dev(&self) -> (String, Value) {
        let Self { index, name, guid, version, .. } = self;
        let text =
            format!("{index}: {name}: node_type ca fw {version} node_guid {guid} sys_image_guid {guid} ");
        let value = json!({
            "ifindex": index, "ifname": name, "node_type": "ca", "fw": version, "node_guid": guid,
            "sys_image_guid": guid,
        });
        (text, value)
    }
}
