//! Connections between clients and servers, and between peers.

use std::sync::Arc;

use hca::via::{ConnectionRequest, RemoteAttributes};

use crate::abi::{CNetAddress, CViAttributes, Code, Result};
use crate::border::{Ptr, exports};
use crate::nic::{NICS, nic};
use crate::queue::timeout;
use crate::table::{Handle, Table, lock};
use crate::vi::{VIS, with};

/// A client that neither was accepted nor rejected.
struct Client {
    request: ConnectionRequest,
    nic: Handle,
}

static CLIENTS: Table<Client> = Table::new();

/// Rejects the clients of an adapter that is closed.
pub(crate) fn reject_all_of(nic: Handle) {
    drop(CLIENTS.take_all(|client| client.nic == nic));
}

/// Tells the attributes of a peer's VI, where the program wants them.
fn tell(attributes: &RemoteAttributes, out: Ptr<CViAttributes>) -> Result {
    if out.addr() == 0 { Ok(()) } else { out.write(CViAttributes::of_remote(attributes)) }
}

exports! {
    fn VipConnectWait(
        NicHandle: Handle,
        LocalAddr: Ptr<CNetAddress>,
        Timeout: u64,
        RemoteAddr: Ptr<CNetAddress>,
        RemoteViAttribs: Ptr<CViAttributes>,
        ConnHandle: Ptr<Handle>,
    ) {
        let (adapter, out, remote) = (NICS.get(NicHandle)?, ConnHandle.there()?, RemoteAddr.there()?);
        let discriminator = LocalAddr.local(adapter.nic.attributes().host)?;
        let mut listeners = lock(&adapter.listeners);
        let listener = match listeners.get(&discriminator) {
            Some(listener) => Arc::clone(listener),
            None => {
                let listener = Arc::new(adapter.nic.listen(discriminator)?);
                listeners.insert(discriminator, Arc::clone(&listener));
                listener
            }
        };
        drop(listeners);
        let request = listener.wait(timeout(Timeout))?;
        let from = request.remote();
        remote.set(from.host, from.discriminator.bytes())?;
        tell(request.attributes(), RemoteViAttribs)?;
        let handle = Handle::new();
        CLIENTS.put(handle, Client { request, nic: NicHandle });
        out.write(handle)
    }
    fn VipConnectAccept(ConnHandle: Handle, ViHandle: Handle) {
        let vi = VIS.get(ViHandle)?;
        // A VI that can't be connected leaves the client to another one.
        CLIENTS.get(ConnHandle)?.request.check(&vi.vi)?;
        Ok(CLIENTS.take(ConnHandle)?.request.accept(&vi.vi)?)
    }
    fn VipConnectReject(ConnHandle: Handle) {
        CLIENTS.take(ConnHandle)?.request.reject();
        Ok(())
    }
    fn VipConnectRequest(
        ViHandle: Handle,
        LocalAddr: Ptr<CNetAddress>,
        RemoteAddr: Ptr<CNetAddress>,
        Timeout: u64,
        RemoteViAttribs: Ptr<CViAttributes>,
    ) {
        let vi = VIS.get(ViHandle)?;
        let local = LocalAddr.local(nic(vi.nic)?.attributes().host)?;
        let attributes = vi.vi.connect(local, &RemoteAddr.remote()?, timeout(Timeout))?;
        tell(&attributes, RemoteViAttribs)
    }
    fn VipDisconnect(ViHandle: Handle) {
        with(ViHandle, |vi| Ok(vi.disconnect()?))
    }
    fn VipConnectPeerRequest(
        ViHandle: Handle,
        LocalAddr: Ptr<CNetAddress>,
        RemoteAddr: Ptr<CNetAddress>,
        Timeout: u64,
    ) {
        let vi = VIS.get(ViHandle)?;
        let local = LocalAddr.local(nic(vi.nic)?.attributes().host)?;
        Ok(vi.vi.peer_request(local, &RemoteAddr.remote()?, timeout(Timeout))?)
    }
    fn VipConnectPeerDone(ViHandle: Handle, RemoteViAttribs: Ptr<CViAttributes>) {
        with(ViHandle, |vi| tell(&vi.peer_done()?.ok_or(Code::NotDone)?, RemoteViAttribs))
    }
    fn VipConnectPeerWait(ViHandle: Handle, RemoteViAttribs: Ptr<CViAttributes>) {
        with(ViHandle, |vi| tell(&vi.peer_wait()?, RemoteViAttribs))
    }
}
