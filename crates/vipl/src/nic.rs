//! Adapters: their attributes, asynchronous errors, and what an adapter knows of its network.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_char;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use hca::via::{AsyncError, Discriminator, ErrorKind, Listener, MemHandle, Memory, NameService, Nic};

use crate::abi::{
    CDiscovery, CErrorDescriptor, CNetAddress, CNicAttributes, Code, Result, host_bytes, level_code,
};
use crate::border::{Context, ErrorCallback, Ptr, exports};
use crate::table::{Handle, Table, lock};
use crate::{connect, cq, memory, vi};

/// An adapter that a program has opened.
pub(crate) struct Adapter {
    pub(crate) nic: Nic,
    /// The bytes of its address, to which its attributes point.
    address: &'static [u8],
    pub(crate) memory: Mutex<HashMap<MemHandle, Memory>>,
    /// Discriminators that VipConnectWait was called with.
    pub(crate) listeners: Mutex<HashMap<Discriminator, Arc<Listener>>>,
    pub(crate) names: Mutex<Option<NameService>>,
}

pub(crate) static NICS: Table<Adapter> = Table::new();

/// The bytes of an address, for as long as the process lives: programs keep the attributes of adapters.
fn lasting_bytes(host: IpAddr) -> &'static [u8] {
    static ALL: Mutex<BTreeMap<IpAddr, &'static [u8]>> = Mutex::new(BTreeMap::new());
    lock(&ALL).entry(host).or_insert_with(|| host_bytes(host).leak())
}

/// The device of a name: one of the environment's, or a URL.
fn url(name: &str) -> String {
    let named = hca::named_devices().unwrap_or_default().into_iter().find(|device| device.name == name);
    match named {
        Some(device) => device.url.to_string(),
        None if name.is_empty() => "auto://".to_owned(),
        None => name.to_owned(),
    }
}

/// The default handler, which prints.
fn print(error: &AsyncError) {
    say(error);
}
/// Prints an error. Where standard error can't be written, it is lost.
fn say(error: &dyn core::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "vipl: {error}");
}

/// The resource and the number of an error.
fn codes(kind: ErrorKind) -> (u32, u32) {
    const NIC: u32 = 0;
    const VI: u32 = 1;
    const CQ: u32 = 2;
    const DESCRIPTOR: u32 = 3;
    match kind {
        ErrorKind::Descriptor => (DESCRIPTOR, 0),
        ErrorKind::ConnectionLost => (VI, 1),
        ErrorKind::ReceiveQueueEmpty => (VI, 2),
        ErrorKind::Overrun => (CQ, 3),
        ErrorKind::WriteProtection => (VI, 4),
        ErrorKind::ReadProtection => (VI, 7),
        ErrorKind::Catastrophic => (NIC, 10),
        _ => (VI, 1),
    }
}

exports! {
    fn VipOpenNic(DeviceName: Ptr<c_char>, NicHandle: Ptr<Handle>) {
        let (name, out) = (DeviceName.text()?, NicHandle.there()?);
        let context = hca::open(&url(&name)).map_err(|error| {
            say(&error);
            Code::ErrorResource
        })?;
        let nic = Nic::open(&context)?;
        nic.set_error_handler(Some(Arc::new(print)));
        let handle = Handle::new();
        NICS.put(handle, Adapter {
            address: lasting_bytes(nic.attributes().host),
            nic,
            memory: Mutex::default(),
            listeners: Mutex::default(),
            names: Mutex::default(),
        });
        out.write(handle)
    }
    fn VipCloseNic(NicHandle: Handle) {
        if cq::any_of(NicHandle) || memory::any_tag_of(NicHandle) || vi::any_of(NicHandle) {
            return Err(Code::ErrorResource);
        }
        let adapter = NICS.take(NicHandle)?;
        if !lock(&adapter.memory).is_empty() {
            NICS.put(NicHandle, adapter);
            return Err(Code::ErrorResource);
        }
        connect::reject_all_of(NicHandle);
        Ok(())
    }
    fn VipQueryNic(NicHandle: Handle, Attributes: Ptr<CNicAttributes>) {
        let adapter = NICS.get(NicHandle)?;
        let of = adapter.nic.attributes();
        let mut name = [0; 64];
        let len = of.name.len().min(name.len() - 1);
        name[..len].copy_from_slice(&of.name.as_bytes()[..len]);
        let levels = |levels: &[_]| levels.iter().map(|&level| level_code(level)).sum();
        Attributes.write(CNicAttributes {
            name,
            hardware_version: 1,
            provider_version: 1,
            nic_address_len: adapter.address.len() as u16,
            local_nic_address: adapter.address.as_ptr() as usize,
            thread_safe: of.thread_safe.into(),
            max_discriminator_len: of.max_discriminator_len as u16,
            max_register_bytes: of.max_register_block_bytes.saturating_mul(of.max_register_regions.into()),
            max_register_regions: of.max_register_regions.into(),
            max_register_block_bytes: of.max_register_block_bytes,
            max_vi: of.max_vi.into(),
            max_descriptors_per_queue: of.max_descriptors_per_queue.into(),
            max_segments_per_desc: of.max_segments_per_descriptor.into(),
            max_cq: of.max_cq.into(),
            max_cq_entries: of.max_cq_entries.into(),
            max_transfer_size: of.max_transfer_size.into(),
            native_mtu: of.native_mtu.into(),
            max_ptags: of.max_ptags.into(),
            reliability_levels: levels(&of.reliability_levels),
            rdma_read_levels: levels(&of.rdma_read_levels),
        })
    }
    fn VipErrorCallback(NicHandle: Handle, Ctx: Context, Handler: Option<ErrorCallback>) {
        let adapter = NICS.get(NicHandle)?;
        let Some(handler) = Handler else {
            adapter.nic.set_error_handler(Some(Arc::new(print)));
            return Ok(());
        };
        adapter.nic.set_error_handler(Some(Arc::new(move |error: &AsyncError| {
            let (resource, code) = codes(error.kind);
            handler(Ctx, &mut CErrorDescriptor {
                nic: NicHandle,
                vi: vi::handle_of(error.vi).unwrap_or(Handle::NONE),
                cq: Handle::NONE,
                descriptor: 0,
                op_code: 0,
                resource,
                error: code,
            });
        })));
        Ok(())
    }
    fn VipQuerySystemManagementInfo(NicHandle: Handle, InfoType: u64, SysManInfo: Ptr<CDiscovery>) {
        const AUTODISCOVERY: u64 = 1;
        let adapter = NICS.get(NicHandle)?;
        if InfoType != AUTODISCOVERY {
            return Err(Code::InvalidParameter);
        }
        // An adapter on an IP network knows no host but its own.
        let list = SysManInfo.read()?;
        if list.len > 0 {
            Ptr::<CNetAddress>::set(list.addresses, adapter.nic.attributes().host, &[])?;
        }
        SysManInfo.write(CDiscovery { hops: 0, len: list.len.min(1), ..list })
    }
}

/// The adapter of a handle.
pub(crate) fn nic(handle: Handle) -> Result<Nic> {
    Ok(NICS.get(handle)?.nic.clone())
}
