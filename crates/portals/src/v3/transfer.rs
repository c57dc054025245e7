//! Transfers: put, get, and exchange.

use hca_matching::{AckRequest, MdHandle as RawMd, Operation, Transfer};

use super::error::{Error, ReturnCode};
use super::handle::{MdHandle, ProcessId};
use super::md::AckReq;
use super::ni::Ni;

/// The target of the message.
struct Target {
    process: ProcessId,
    pt_index: u32,
    ac_index: u32,
    match_bits: u64,
    remote_offset: u64,
}

impl Ni {
    /// Sends all of a descriptor's memory to a portal of another process, or of this one.
    ///
    /// The call returns before the bytes have left: after `SEND_END` they may be changed. An acknowledgement, if
    /// requested, reports the result. `ac_index` names the entry of the target's access control list that admits this
    /// process; `hdr_data` goes to the target's events.
    ///
    /// # Errors
    /// `PTL_MD_INVALID`; `PTL_MD_ILLEGAL`: more bytes than a message can have; `PTL_PROCESS_INVALID`,
    /// `PTL_PT_INDEX_INVALID`, `PTL_AC_INDEX_INVALID`, `PTL_NO_SPACE`, `PTL_FAIL`.
    #[doc(alias = "PtlPut")]
    #[expect(clippy::too_many_arguments, reason = "as many as the interface's function has")]
    pub fn put(
        &self,
        md: MdHandle,
        ack: AckReq,
        target: ProcessId,
        pt_index: u32,
        ac_index: u32,
        match_bits: u64,
        remote_offset: u64,
        hdr_data: u64,
    ) -> Result<(), Error> {
        let target = Target { process: target, pt_index, ac_index, match_bits, remote_offset };
        self.send("PtlPut", md, None, ack, &target, hdr_data)
    }
    /// Sends a part of a descriptor's memory, like [`put`](Self::put).
    ///
    /// # Errors
    /// As [`put`](Self::put); `PTL_MD_ILLEGAL`: the descriptor does not have that part.
    #[doc(alias = "PtlPutRegion")]
    #[expect(clippy::too_many_arguments, reason = "as many as the interface's function has")]
    pub fn put_region(
        &self,
        md: MdHandle,
        local_offset: u64,
        length: u64,
        ack: AckReq,
        target: ProcessId,
        pt_index: u32,
        ac_index: u32,
        match_bits: u64,
        remote_offset: u64,
        hdr_data: u64,
    ) -> Result<(), Error> {
        let target = Target { process: target, pt_index, ac_index, match_bits, remote_offset };
        self.send("PtlPutRegion", md, Some((local_offset, length)), ack, &target, hdr_data)
    }
    /// Fills all of a descriptor's memory with bytes of another process; `REPLY_END` reports the end and the number of
    /// bytes.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    #[doc(alias = "PtlGet")]
    pub fn get(
        &self,
        md: MdHandle,
        target: ProcessId,
        pt_index: u32,
        ac_index: u32,
        match_bits: u64,
        remote_offset: u64,
    ) -> Result<(), Error> {
        let target = Target { process: target, pt_index, ac_index, match_bits, remote_offset };
        self.fetch("PtlGet", md, None, &target)
    }
    /// Fills a part of a descriptor's memory, like [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get); `PTL_MD_ILLEGAL`: the descriptor does not have that part.
    #[doc(alias = "PtlGetRegion")]
    #[expect(clippy::too_many_arguments, reason = "as many as the interface's function has")]
    pub fn get_region(
        &self,
        md: MdHandle,
        local_offset: u64,
        length: u64,
        target: ProcessId,
        pt_index: u32,
        ac_index: u32,
        match_bits: u64,
        remote_offset: u64,
    ) -> Result<(), Error> {
        let target = Target { process: target, pt_index, ac_index, match_bits, remote_offset };
        self.fetch("PtlGetRegion", md, Some((local_offset, length)), &target)
    }
    /// Exchanges: all of `put_md`'s bytes go to the target, and the target's old bytes come into `get_md`. No other
    /// exchange at the target comes between the two.
    ///
    /// # Errors
    /// As [`put`](Self::put); `PTL_MD_ILLEGAL`: more bytes than `max_getput_md`, or than `get_md` has.
    #[doc(alias = "PtlGetPut")]
    #[expect(clippy::too_many_arguments, reason = "as many as the interface's function has")]
    pub fn get_put(
        &self,
        get_md: MdHandle,
        put_md: MdHandle,
        target: ProcessId,
        pt_index: u32,
        ac_index: u32,
        match_bits: u64,
        remote_offset: u64,
        hdr_data: u64,
    ) -> Result<(), Error> {
        let call = "PtlGetPut";
        self.check(call, "reply", get_md.ni)?;
        let (_, length) = self.part(call, put_md, None)?;
        if length > u64::from(self.limits().max_getput_md) {
            let why = "the descriptor to put has more bytes than max_getput_md";
            return Err(Error::argument(call, ReturnCode::MdIllegal, "md", why));
        }
        let target = Target { process: target, pt_index, ac_index, match_bits, remote_offset };
        let transfer = transfer(Operation::GetPut, put_md.raw, (0, length), AckRequest::None, &target);
        self.start(call, &Transfer { reply: Some((get_md.raw, 0)), hdr_data, ..transfer })
    }

    fn send(
        &self,
        call: &'static str,
        md: MdHandle,
        part: Option<(u64, u64)>,
        ack: AckReq,
        target: &Target,
        hdr_data: u64,
    ) -> Result<(), Error> {
        let part = self.part(call, md, part)?;
        let ack = match ack {
            AckReq::Ack => AckRequest::Full,
            AckReq::NoAck => AckRequest::None,
        };
        let transfer = transfer(Operation::Put, md.raw, part, ack, target);
        self.start(call, &Transfer { hdr_data, ..transfer })
    }
    fn fetch(
        &self,
        call: &'static str,
        md: MdHandle,
        part: Option<(u64, u64)>,
        target: &Target,
    ) -> Result<(), Error> {
        let part = self.part(call, md, part)?;
        self.start(call, &transfer(Operation::Get, md.raw, part, AckRequest::None, target))
    }
    /// A part of a descriptor's memory, or all of it.
    fn part(&self, call: &'static str, md: MdHandle, part: Option<(u64, u64)>) -> Result<(u64, u64), Error> {
        self.check(call, "md", md.ni)?;
        if let Some(part) = part {
            return Ok(part);
        }
        let region = self
            .inner
            .core
            .look(|ni| ni.engine.md_region(md.raw))
            .map_err(|refused| Error::new(call, refused))?;
        Ok((0, region.length))
    }
    fn start(&self, call: &'static str, transfer: &Transfer) -> Result<(), Error> {
        let core = &self.inner.core;
        let started = if core.start_at_once(transfer) { Ok(()) } else { core.start(transfer) };
        self.run_handlers();
        started.map_err(|error| Error::new(call, error))
    }
}

fn transfer(
    operation: Operation,
    md: RawMd,
    (local_offset, length): (u64, u64),
    ack: AckRequest,
    target: &Target,
) -> Transfer {
    Transfer {
        operation,
        md,
        local_offset,
        reply: None,
        length,
        ack,
        target: target.process.packed(),
        pt_index: target.pt_index,
        ac_index: target.ac_index,
        match_bits: target.match_bits,
        remote_offset: target.remote_offset,
        user_ptr: 0,
        hdr_data: 0,
        operand: [0; 32],
    }
}
