//! Requests, replies, and what a handler learns of its message.

use std::ffi::c_int;

use hca::am::{MAX_ARGS, Options};

use crate::border::{Code, Ptr, Result, exports, reply, running};
use crate::endpoint::{CName, name_of};
use crate::objects::with;

/// The arguments of a call.
fn args(count: c_int, args: Ptr<u32>) -> Result<Vec<u32>> {
    let count = usize::try_from(count).ok().filter(|&count| count <= MAX_ARGS).ok_or(Code::BadArg)?;
    args.copied(count, 0)
}
fn handler(number: c_int) -> Result<u16> {
    u16::try_from(number).map_err(|_| Code::BadArg)
}
fn index(number: c_int) -> Result<usize> {
    usize::try_from(number).map_err(|_| Code::BadArg)
}

exports! {
    fn AM_Request(ep: usize, at: c_int, to: c_int, num_args: c_int, values: Ptr<u32>) {
        let (at, to, values) = (index(at)?, handler(to)?, args(num_args, values)?);
        with(ep, |bundle, id| bundle.request(id, at, to, &values))
    }
    fn AM_RequestI(
        ep: usize, at: c_int, to: c_int, data: Ptr<u8>, bytes: usize, num_args: c_int, values: Ptr<u32>,
    ) {
        let (at, to, values) = (index(at)?, handler(to)?, args(num_args, values)?);
        let data = data.copied(bytes, 0)?;
        with(ep, |bundle, id| bundle.request_medium(id, at, to, &values, &data))
    }
    fn AM_RequestXfer(
        ep: usize, at: c_int, offset: usize, to: c_int, data: Ptr<u8>, bytes: usize, num_args: c_int, values: Ptr<u32>,
    ) {
        let (at, to, values) = (index(at)?, handler(to)?, args(num_args, values)?);
        let data = data.copied(bytes, 0)?;
        with(ep, |bundle, id| bundle.request_bulk(id, at, to, &values, &data[..], offset as u64))
    }
    fn AM_RequestXferAsync(
        ep: usize, at: c_int, offset: usize, to: c_int, data: Ptr<u8>, bytes: usize, num_args: c_int, values: Ptr<u32>,
    ) {
        let (at, to, values) = (index(at)?, handler(to)?, args(num_args, values)?);
        let data = data.copied(bytes, 0)?;
        with(ep, |bundle, id| bundle.try_request_bulk(id, at, to, &values, &data[..], offset as u64))
    }
    fn AM_Reply(token: usize, to: c_int, num_args: c_int, values: Ptr<u32>) {
        let (to, values) = (handler(to)?, args(num_args, values)?);
        reply(token, |token| token.reply(to, &values))
    }
    fn AM_ReplyI(token: usize, to: c_int, data: Ptr<u8>, bytes: usize, num_args: c_int, values: Ptr<u32>) {
        let (to, values, data) = (handler(to)?, args(num_args, values)?, data.copied(bytes, 0)?);
        reply(token, |token| token.reply_medium(to, &values, &data))
    }
    fn AM_ReplyXfer(
        token: usize, offset: usize, to: c_int, data: Ptr<u8>, bytes: usize, num_args: c_int, values: Ptr<u32>,
    ) {
        let (to, values, data) = (handler(to)?, args(num_args, values)?, data.copied(bytes, 0)?);
        reply(token, |token| token.reply_bulk(to, &values, &data[..], offset as u64))
    }
    fn AM_GetSourceEndpoint(token: usize, out: Ptr<CName>) {
        running(token, |running| out.write(name_of(&running.source)))
    }
    fn AM_GetDestEndpoint(token: usize, out: Ptr<usize>) {
        running(token, |running| out.write(running.endpoint))
    }
    fn AM_GetMsgTag(token: usize, out: Ptr<u64>) {
        running(token, |running| out.write(running.tag.0))
    }
}

#[allow(unsafe_code)] // its name alone
#[unsafe(no_mangle)]
pub(crate) extern "C" fn AM_MaxShort() -> c_int {
    MAX_ARGS as c_int
}
#[allow(unsafe_code)] // its name alone
#[unsafe(no_mangle)]
pub(crate) extern "C" fn AM_MaxMedium() -> c_int {
    Options::default().max_medium as c_int
}
#[allow(unsafe_code)] // its name alone
#[unsafe(no_mangle)]
pub(crate) extern "C" fn AM_MaxLong() -> usize {
    1 << 30
}
