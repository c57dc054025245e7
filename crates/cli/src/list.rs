//! `hca list`: the devices that can be opened on this machine, and the reasons why others can't. `hca devices`: those
//! that the environment names.

use std::path::Path;

use comfy_table::{Table, presets};
use hca::{DeviceUrl, NamedDevice, named_devices, open_exactly};
use hca_perf::Failure;
use serde_json::{Value, json};

use crate::args::ListArgs;
use crate::output::show;

/// The PCI vendor of the adapters that vfio:// drives.
const VENDOR: &str = "0x15b3";
/// PCI functions of this class are networks.
const NETWORK_CLASS: &str = "0x02";

/// A device that may be there.
struct Found {
    url: String,
    /// Its GID, link and MTU; or why it can't be opened, and what to do.
    is: Result<Open, String>,
}

struct Open {
    gid: String,
    link: String,
    mtu: Option<u32>,
}

/// Runs the command; whether there is any device.
pub(crate) fn list(args: &ListArgs) -> Result<bool, Failure> {
    let mut found: Vec<Found> =
        ["auto://", "udp://", "uring://", "shm://hca", "loopback://list"].map(opened).into_iter().collect();
    found.extend(names_in("/sys/class/net").iter().map(|name| opened(&format!("raw://{name}"))));
    found.extend(names_in("/sys/bus/pci/devices").iter().filter_map(|function| adapter(function)));
    if args.json {
        show!("{}", Value::from_iter(found.iter().map(as_json)));
    } else {
        show!("{}", as_text(&found));
    }
    Ok(found.iter().any(|found| found.is.is_ok()))
}

/// Runs `hca devices`.
pub(crate) fn named(args: &ListArgs) -> Result<(), Failure> {
    let devices = named_devices()?;
    let guid = |device: &NamedDevice| device.node_guid().map(|byte| format!("{byte:02x}")).concat();
    if args.json {
        let as_json = |device: &NamedDevice| json!({ "name": device.name, "node_guid": guid(device), "device": device.url.to_string() });
        show!("{}", Value::from_iter(devices.iter().map(as_json)));
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["NAME", "NODE GUID", "DEVICE"]);
    for device in &devices {
        table.add_row([&device.name, &guid(device), &device.url.to_string()]);
    }
    show!("{}", table.trim_fmt());
    Ok(())
}

/// Opens a device, and closes it.
fn opened(url: &str) -> Found {
    let is = (url.parse::<DeviceUrl>().map_err(|e| e.to_string()))
        .and_then(|url| open_exactly(&url).map_err(|e| e.to_string()))
        .map(|opened| {
            let port = opened.device().port();
            let note = opened.stand_in().map_or(String::new(), |note| format!(" ({note})"));
            let link =
                port.link.map_or(port.link_layer.to_string(), |link| format!("{}, {link}", port.link_layer));
            Open { gid: port.gid.to_string(), link: link + &note, mtu: Some(port.active_mtu.bytes()) }
        })
        // The name stands beside it.
        .map_err(|why| why.strip_prefix(&format!("{url}: ")).map_or_else(|| why.clone(), str::to_owned));
    Found { url: url.to_owned(), is }
}

/// An adapter on the bus. It is not opened, which would reset it.
fn adapter(function: &str) -> Option<Found> {
    let folder = Path::new("/sys/bus/pci/devices").join(function);
    let told = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    if told("vendor").trim() != VENDOR || !told("class").starts_with(NETWORK_CLASS) {
        return None;
    }
    let driver = std::fs::read_link(folder.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let bind = format!("bind it to vfio-pci, as with `driverctl set-override {function} vfio-pci`");
    let is = match driver.as_deref() {
        Some("vfio-pci") => {
            let link = "bound to vfio-pci; opening it resets it".to_owned();
            Ok(Open { gid: String::new(), link, mtu: None })
        }
        Some(other) => Err(format!("its driver is {other}: {bind}")),
        None => Err(format!("it has no driver: {bind}")),
    };
    Some(Found { url: format!("vfio://{function}"), is })
}

fn names_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter(|e| e.path().is_dir()).map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A table of those that open, then one of those that do not.
fn as_text(found: &[Found]) -> String {
    let (mut open, mut others) = (Table::new(), Table::new());
    open.load_preset(presets::NOTHING).set_header(["DEVICE", "MTU", "GID", "LINK"]);
    others.load_preset(presets::NOTHING).set_header(["NOT OPENED", "WHY"]);
    for Found { url, is } in found {
        match is {
            Ok(Open { gid, link, mtu }) => {
                open.add_row([url, &mtu.map_or(String::new(), |mtu| mtu.to_string()), gid, link]);
            }
            Err(why) => {
                others.add_row([url, why]);
            }
        }
    }
    let tables = [open, others].into_iter().filter(|table| !table.is_empty());
    tables.map(|table| table.trim_fmt()).collect::<Vec<_>>().join("\n\n")
}

fn as_json(Found { url, is }: &Found) -> Value {
    match is {
        Ok(Open { gid, link, mtu }) => {
            json!({ "device": url, "opens": true, "gid": gid, "active_mtu": mtu, "link": link })
        }
        Err(why) => json!({ "device": url, "opens": false, "why": why }),
    }
}
