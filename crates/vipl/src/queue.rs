//! Work queues: posts, completions, notify callbacks.

use std::time::Duration;

use hca::via::{Done, MemHandle, Queue};

use crate::abi::{Code, Result};
use crate::border::{Context, Ptr, ViCallback, exports};
use crate::table::Handle;
use crate::vi::{VIS, with};

/// A timeout in milliseconds; none for a wait without an end.
pub(crate) fn timeout(milliseconds: u64) -> Option<Duration> {
    (milliseconds != u64::MAX).then(|| Duration::from_millis(milliseconds))
}

/// Tells the program of a descriptor that was taken off its queue.
fn tell(done: &Done, out: Ptr<u64>) -> Result {
    out.write(done.descriptor.addr())?;
    if done.status.is_ok() { Ok(()) } else { Err(Code::DescriptorError) }
}

fn notify(handle: Handle, context: Context, call: Option<ViCallback>, queue: Queue) -> Result {
    let vi = VIS.get(handle)?;
    let (call, nic) = (call.ok_or(Code::InvalidParameter)?, vi.nic);
    let call = move |done: Done| call(context, nic, handle, done.descriptor.addr());
    Ok(match queue {
        Queue::Send => vi.vi.send_notify(call),
        Queue::Receive => vi.vi.recv_notify(call),
    }?)
}

exports! {
    fn VipPostSend(ViHandle: Handle, Descriptor: u64, Memory: u32) {
        with(ViHandle, |vi| Ok(vi.post_at(Queue::Send, Descriptor, MemHandle(Memory))?))
    }
    fn VipPostRecv(ViHandle: Handle, Descriptor: u64, Memory: u32) {
        with(ViHandle, |vi| Ok(vi.post_at(Queue::Receive, Descriptor, MemHandle(Memory))?))
    }
    fn VipSendDone(ViHandle: Handle, Descriptor: Ptr<u64>) {
        let out = Descriptor.there()?;
        with(ViHandle, |vi| tell(&vi.send_done().ok_or(Code::NotDone)?, out))
    }
    fn VipRecvDone(ViHandle: Handle, Descriptor: Ptr<u64>) {
        let out = Descriptor.there()?;
        with(ViHandle, |vi| tell(&vi.recv_done().ok_or(Code::NotDone)?, out))
    }
    fn VipSendWait(ViHandle: Handle, TimeOut: u64, Descriptor: Ptr<u64>) {
        let out = Descriptor.there()?;
        with(ViHandle, |vi| tell(&vi.send_wait(timeout(TimeOut))?, out))
    }
    fn VipRecvWait(ViHandle: Handle, TimeOut: u64, Descriptor: Ptr<u64>) {
        let out = Descriptor.there()?;
        with(ViHandle, |vi| tell(&vi.recv_wait(timeout(TimeOut))?, out))
    }
    fn VipSendNotify(ViHandle: Handle, Ctx: Context, Callback: Option<ViCallback>) {
        notify(ViHandle, Ctx, Callback, Queue::Send)
    }
    fn VipRecvNotify(ViHandle: Handle, Ctx: Context, Callback: Option<ViCallback>) {
        notify(ViHandle, Ctx, Callback, Queue::Receive)
    }
}
