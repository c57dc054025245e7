//! Protection tags and registered memory.

use std::collections::hash_map::Entry;

use hca::via::{MemAttributes, MemHandle, Ptag};

use crate::abi::{CMemAttributes, Code, Result};
use crate::border::{Ptr, exports, register};
use crate::nic::{NICS, nic};
use crate::table::{Handle, Table, lock};

/// A protection tag of a program.
pub(crate) struct OwnedTag {
    tag: Ptag,
    nic: Handle,
}

static TAGS: Table<OwnedTag> = Table::new();

/// The protection tag of a handle.
pub(crate) fn ptag(handle: Handle) -> Result<Ptag> {
    TAGS.get(handle).map(|owned| owned.tag.clone()).map_err(|_| Code::InvalidPtag)
}
/// The handle of a protection tag.
pub(crate) fn handle_of(tag: &Ptag) -> Handle {
    TAGS.find(|owned| owned.tag == *tag).unwrap_or(Handle::NONE)
}
/// Whether an adapter has protection tags.
pub(crate) fn any_tag_of(nic: Handle) -> bool {
    TAGS.find(|owned| owned.nic == nic).is_some()
}

impl CMemAttributes {
    fn parse(&self) -> Result<MemAttributes> {
        Ok(MemAttributes {
            ptag: ptag(self.ptag)?,
            enable_rdma_write: self.enable_rdma_write != 0,
            enable_rdma_read: self.enable_rdma_read != 0,
        })
    }
}

/// The attributes of registered memory that begins at an address.
fn attributes(nic: Handle, addr: Ptr<u8>, handle: u32) -> Result<MemAttributes> {
    let adapter = NICS.get(nic)?;
    let memory = lock(&adapter.memory);
    let memory = memory.get(&MemHandle(handle)).filter(|memory| memory.addr() == addr.addr());
    Ok(memory.ok_or(Code::InvalidParameter)?.attributes().clone())
}

exports! {
    fn VipCreatePtag(NicHandle: Handle, Tag: Ptr<Handle>) {
        let (nic, out) = (nic(NicHandle)?, Tag.there()?);
        let handle = Handle::new();
        TAGS.put(handle, OwnedTag { tag: nic.create_ptag()?, nic: NicHandle });
        out.write(handle)
    }
    fn VipDestroyPtag(NicHandle: Handle, Tag: Handle) {
        NICS.get(NicHandle)?;
        if TAGS.get(Tag).map_err(|_| Code::InvalidPtag)?.nic != NicHandle {
            return Err(Code::InvalidPtag);
        }
        let end = |OwnedTag { tag, nic }| tag.destroy().map_err(|(tag, error)| (OwnedTag { tag, nic }, error));
        TAGS.end(Tag, |owned| owned.tag.check_unused(), end)
    }
    fn VipRegisterMem(
        NicHandle: Handle,
        VirtualAddress: Ptr<u8>,
        Length: u64,
        MemAttribs: Ptr<CMemAttributes>,
        MemoryHandle: Ptr<u32>,
    ) {
        let (adapter, out) = (NICS.get(NicHandle)?, MemoryHandle.there()?);
        let attributes = MemAttribs.read()?.parse()?;
        let len = usize::try_from(Length).ok().filter(|&len| len > 0).ok_or(Code::InvalidParameter)?;
        VirtualAddress.addr().checked_add(Length).ok_or(Code::InvalidParameter)?;
        let memory = register(&adapter.nic, VirtualAddress, len, &attributes)?;
        let handle = memory.handle();
        lock(&adapter.memory).insert(handle, memory);
        out.write(handle.0)
    }
    fn VipDeregisterMem(NicHandle: Handle, VirtualAddress: Ptr<u8>, MemoryHandle: u32) {
        let adapter = NICS.get(NicHandle)?;
        let mut all = lock(&adapter.memory);
        let Entry::Occupied(found) = all.entry(MemHandle(MemoryHandle)) else {
            return Err(Code::InvalidParameter);
        };
        if found.get().addr() != VirtualAddress.addr() {
            return Err(Code::InvalidParameter);
        }
        found.remove().deregister().map_err(|(memory, error)| {
            all.insert(memory.handle(), memory);
            error.into()
        })
    }
    fn VipSetMemAttributes(NicHandle: Handle, Address: Ptr<u8>, MemoryHandle: u32, MemAttribs: Ptr<CMemAttributes>) {
        let had = attributes(NicHandle, Address, MemoryHandle)?;
        // Other attributes have another key, and the program would not learn it.
        if MemAttribs.read()?.parse()? == had { Ok(()) } else { Err(Code::ErrorResource) }
    }
    fn VipQueryMem(NicHandle: Handle, Address: Ptr<u8>, MemoryHandle: u32, MemAttribs: Ptr<CMemAttributes>) {
        let has = attributes(NicHandle, Address, MemoryHandle)?;
        MemAttribs.write(CMemAttributes {
            ptag: handle_of(&has.ptag),
            enable_rdma_write: has.enable_rdma_write.into(),
            enable_rdma_read: has.enable_rdma_read.into(),
        })
    }
}
