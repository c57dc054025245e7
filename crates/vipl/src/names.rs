//! The name service of an adapter.

use std::ffi::c_char;

use hca::via::NameService;

use crate::abi::{CNetAddress, Code, Result};
use crate::border::{Context, Ptr, exports};
use crate::nic::NICS;
use crate::table::{Handle, lock};

/// Calls `f` with the name service of an adapter.
fn with<T>(nic: Handle, f: impl FnOnce(&NameService) -> Result<T>) -> Result<T> {
    let adapter = NICS.get(nic)?;
    let names = lock(&adapter.names);
    f(names.as_ref().ok_or(Code::ErrorNameService)?)
}

exports! {
    fn VipNSInit(NicHandle: Handle, _NSInitInfo: Context) {
        let adapter = NICS.get(NicHandle)?;
        let mut names = lock(&adapter.names);
        if names.is_some() {
            return Err(Code::ErrorNameService);
        }
        *names = Some(NameService::open());
        Ok(())
    }
    fn VipNSGetHostByName(NicHandle: Handle, Name: Ptr<c_char>, Address: Ptr<CNetAddress>, NameIndex: u64) {
        let (name, out) = (Name.text()?, Address.there()?);
        let index = usize::try_from(NameIndex).map_err(|_| Code::ErrorNameService)?;
        // A clone: the system's resolver may take its time.
        let names = with(NicHandle, |names| Ok(names.clone()))?;
        out.set(names.host_by_name(&name, index)?, &[])
    }
    fn VipNSGetHostByAddr(NicHandle: Handle, Address: Ptr<CNetAddress>, Name: Ptr<c_char>, NameLen: Ptr<u64>) {
        let (host, name, room) = (Address.host()?, Name.there()?, NameLen.read()?);
        let found = with(NicHandle, |names| Ok(names.host_by_addr(host)?.to_owned()))?;
        let needs = found.len() as u64 + 1;
        NameLen.write(needs)?;
        if needs > room { Err(Code::InvalidParameter) } else { name.set_text(&found) }
    }
    fn VipNSShutdown(NicHandle: Handle) {
        let adapter = NICS.get(NicHandle)?;
        lock(&adapter.names).take().map(drop).ok_or(Code::ErrorNameService)
    }
}
