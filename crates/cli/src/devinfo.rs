//! `hca devinfo`: a device's network, limits and counters.

use hca::{Opened, Target, open_exactly};
use hca_core::DeviceAttr;
use hca_core::wire::Placement;
use hca_perf::Failure;
use serde_json::{Map, Value, json};

use crate::args::{DeviceArgs, DevinfoArgs};
use crate::output::show;
use crate::perf::device_or;

/// Runs the command.
pub(crate) fn devinfo(args: &DevinfoArgs) -> Result<(), Failure> {
    let named = DeviceArgs { device: args.url.clone().or(args.device.device.clone()), ..args.device.clone() };
    let opened = open_exactly(&device_or(&named, Target::Auto(None))?)?;
    opened.finish_capture()?;
    if args.json {
        show!("{}", as_json(&opened));
    } else {
        show!("{}", as_text(&opened).trim_end());
    }
    Ok(())
}

/// The limits, by name.
fn limits(attr: &DeviceAttr) -> [(&'static str, u64); 28] {
    let held_back = attr.abilities.cq_moderation;
    let flush = |placement| attr.abilities.flush.contains(placement).into();
    [
        ("max_qp", attr.max_qp.into()),
        ("max_qp_wr", attr.max_qp_wr.into()),
        ("max_sge", attr.max_sge.into()),
        ("max_inline", attr.max_inline.into()),
        ("max_cq", attr.max_cq.into()),
        ("max_cqe", attr.max_cqe.into()),
        ("max_mr", attr.max_mr.into()),
        ("max_mr_bytes", attr.max_mr_bytes),
        ("max_pd", attr.max_pd.into()),
        ("max_ah", attr.max_ah.into()),
        ("max_srq", attr.max_srq.into()),
        ("max_srq_wr", attr.max_srq_wr.into()),
        ("max_rd_atomic", attr.max_rd_atomic.into()),
        ("foreign_memory", attr.foreign_memory.into()),
        ("general_services", attr.general_services.into()),
        ("max_mw", attr.abilities.max_mw.into()),
        ("max_xrcd", attr.abilities.max_xrcd.into()),
        ("max_rdd", attr.abilities.max_rdd.into()),
        ("max_mcast_grp", attr.abilities.max_mcast_grp.into()),
        ("max_mcast_qp_attach", attr.abilities.max_mcast_qp_attach.into()),
        ("max_cq_moderation_count", held_back.map_or(0, |m| m.count.into())),
        ("max_cq_moderation_us", held_back.map_or(0, |m| m.period.as_micros() as u64)),
        ("cq_resize", attr.abilities.cq_resize.into()),
        ("srq_resize", attr.abilities.srq_resize.into()),
        ("mr_rereg", attr.abilities.mr_rereg.into()),
        ("atomic_write", attr.abilities.atomic_write.into()),
        ("flush_global", flush(Placement::GLOBAL_VISIBILITY)),
        ("flush_persistent", flush(Placement::PERSISTENCE)),
    ]
}

fn as_json(opened: &Opened) -> Value {
    let device = opened.device();
    let (attr, port, fabric) = (device.attr(), device.port(), opened.fabric_attr());
    let limits: Map<String, Value> = limits(attr).into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    let counters: Map<String, Value> =
        device.counters().into_iter().map(|c| (c.name.into(), c.value.into())).collect();
    let (buffer, notes) = fabric.map(|f| (f.recv_buffer_bytes, f.notes)).unzip();
    let notes: Map<String, Value> =
        notes.unwrap_or_default().into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    let gids: Vec<Value> = (device.gids().into_iter())
        .map(|e| json!({ "index": e.index, "gid": e.gid.to_string(), "type": e.kind.to_string(), "interface": e.interface }))
        .collect();
    let port_counters: Option<Map<String, Value>> = device
        .port_counters()
        .map(|port| port.named().into_iter().map(|c| (c.name.into(), c.value.into())).collect());
    json!({
        "device": opened.url().to_string(),
        "name": attr.name,
        "fabric": opened.fabric(),
        "progress": opened.progress().to_string(),
        "atomics": format!("{:?}", attr.atomics).to_lowercase(),
        "portals_on_adapter": device.offload().is_some(),
        "limits": limits,
        "port": {
            "gid": port.gid.to_string(),
            "lid": port.lid.raw(),
            "active_mtu": port.active_mtu.bytes(),
            "active": port.active,
            "link_layer": port.link_layer.to_string(),
            "speed_mbps": port.link.map(|link| link.mbps),
            "width": port.link.and_then(|link| link.lanes),
            "gids": gids,
            "pkeys": device.pkeys().iter().map(|pkey| pkey.raw()).collect::<Vec<_>>(),
            "counters": port_counters,
        },
        "recv_buffer_bytes": buffer,
        "notes": notes,
        "counters": counters,
    })
}

fn as_text(opened: &Opened) -> String {
    let device = opened.device();
    let (attr, port, fabric) = (device.attr(), device.port(), opened.fabric_attr());
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut line =
        |name: &str, value: &dyn std::fmt::Display| lines.push((name.to_owned(), value.to_string()));
    line("device", opened.url());
    line("fabric", &opened.fabric());
    line("progress", &opened.progress());
    line("atomics", &format!("{:?}", attr.atomics).to_lowercase());
    line(
        "portals",
        &if device.offload().is_some() { "matched on the adapter" } else { "matched by the program" },
    );
    line("", &"");
    line("port", &if port.active { "active" } else { "down" });
    line("link_layer", &port.link_layer);
    line("link", &port.link.map_or("no speed is told".to_owned(), |link| link.to_string()));
    for entry in device.gids() {
        let on = entry.interface.map_or(String::new(), |name| format!(", {name}"));
        line(&format!("gid[{}]", entry.index), &format!("{} ({}{on})", entry.gid, entry.kind));
    }
    for (index, pkey) in device.pkeys().iter().enumerate() {
        line(&format!("pkey[{index}]"), pkey);
    }
    line("lid", &port.lid);
    line("active_mtu", &port.active_mtu.bytes());
    let (buffer, notes) = fabric.map(|f| (f.recv_buffer_bytes, f.notes)).unzip();
    let notes = notes.unwrap_or_default();
    // A note says the same, and what to do.
    let is_noted = |name: &str| notes.iter().any(|(what, _)| *what == name);
    if let Some(bytes) = buffer.filter(|_| !is_noted("receive buffer")) {
        line("receive_buffer", &format!("{bytes} bytes"));
    }
    for (what, note) in &notes {
        line(&what.replace(' ', "_"), note);
    }
    line("", &"");
    for (name, value) in limits(attr).into_iter().filter(|(name, _)| !is_noted(&name.replace('_', " "))) {
        line(name, &value);
    }
    if let Some(port) = device.port_counters() {
        line("", &"");
        port.named().iter().for_each(|c| line(c.name, &c.value));
    }
    line("", &"");
    let counters = device.counters();
    let counted: Vec<_> = counters.iter().filter(|c| c.value > 0).collect();
    for c in &counted {
        line(c.name, &c.value);
    }
    let (rest, more) = (counters.len() - counted.len(), if counted.is_empty() { "" } else { "more " });
    line("counters", &format!("{rest} {more}at 0 (--json lists all)"));
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines
        .iter()
        .map(|(name, value)| format!("  {name:<width$}  {value}").trim_end().to_owned() + "\n")
        .collect()
}
