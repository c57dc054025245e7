//! [`PacketBuilder`]: builds one packet of any opcode from its headers.

use bytemuck::Pod;
use thiserror::Error;

use super::{
    Aeth, AtomicAckEth, AtomicEth, Be32, Bth, BthFlags, Deth, Feth, Ieth, ImmDt, Opcode, Rdeth, Reth, Xrceth,
};
use crate::{Pkey, Psn, Qpn};

/// An error of building a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No packet has this opcode.
    #[error("opcode {0:#04x} is not defined")]
    UnknownOpcode(u8),
    /// The opcode has a header that was not given.
    #[error("{opcode:?} has {header}, which was not given")]
    Missing {
        /// The opcode.
        opcode: Opcode,
        /// The header.
        header: &'static str,
    },
    /// A header was given that the opcode does not have.
    #[error("{opcode:?} has no {header}")]
    Unexpected {
        /// The opcode.
        opcode: Opcode,
        /// The header.
        header: &'static str,
    },
    /// A payload was given to an opcode that has none.
    #[error("{opcode:?} has no payload, but {len} bytes were given")]
    Payload {
        /// The opcode.
        opcode: Opcode,
        /// Bytes given.
        len: usize,
    },
}

/// A builder of one packet, which needs exactly the headers of the packet's opcode, in any order.
///
/// The builder is for tools, tests and slow paths: it checks everything and allocates the packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketBuilder<'a> {
    opcode: Opcode,
    flags: BthFlags,
    mig_req: bool,
    pkey: Pkey,
    dest_qp: Qpn,
    psn: Psn,
    rdeth: Option<Rdeth>,
    deth: Option<Deth>,
    xrceth: Option<Xrceth>,
    feth: Option<Feth>,
    reth: Option<Reth>,
    atomic: Option<AtomicEth>,
    aeth: Option<Aeth>,
    atomic_ack: Option<AtomicAckEth>,
    imm: Option<ImmDt>,
    ieth: Option<Ieth>,
    payload: &'a [u8],
}

macro_rules! headers {
    ($($(#[$m:meta])* $name:ident: $t:ty),* $(,)?) => {
        $(
            $(#[$m])*
            #[must_use]
            pub fn $name(mut self, header: $t) -> Self {
                self.$name = Some(header);
                self
            }
        )*
    };
}

impl<'a> PacketBuilder<'a> {
    /// A packet of the default partition with MigReq set, no flags, no payload.
    pub fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            flags: BthFlags::empty(),
            mig_req: true,
            pkey: Pkey::DEFAULT,
            dest_qp,
            psn,
            rdeth: None,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
            payload: &[],
        }
    }
    /// The single bits of the BTH.
    #[must_use]
    pub fn flags(mut self, flags: BthFlags) -> Self {
        self.flags = flags;
        self
    }
    /// The path migration bit.
    #[must_use]
    pub fn mig_req(mut self, mig_req: bool) -> Self {
        self.mig_req = mig_req;
        self
    }
    /// Sets the partition key of the BTH.
    #[must_use]
    pub fn pkey(mut self, pkey: Pkey) -> Self {
        self.pkey = pkey;
        self
    }
    headers! {
        /// The reliable datagram header.
        rdeth: Rdeth,
        /// The datagram header.
        deth: Deth,
        /// The XRC header.
        xrceth: Xrceth,
        /// The flush header.
        feth: Feth,
        /// The RDMA header.
        reth: Reth,
        /// The atomic header.
        atomic: AtomicEth,
        /// The acknowledgement header.
        aeth: Aeth,
        /// The atomic acknowledgement.
        atomic_ack: AtomicAckEth,
        /// The key to invalidate.
        ieth: Ieth,
    }
    /// Adds immediate data to the packet.
    #[must_use]
    pub fn imm(mut self, data: u32) -> Self {
        self.imm = Some(ImmDt { data: Be32::new(data) });
        self
    }
    /// The payload; it is padded to a multiple of 4 bytes.
    #[must_use]
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// The packet, from BTH to padding.
    ///
    /// # Errors
    /// The opcode does not exist, or the headers or the payload do not fit it.
    pub fn build(&self) -> Result<Vec<u8>, BuildError> {
        let opcode = self.opcode;
        let l = opcode.layout().ok_or(BuildError::UnknownOpcode(opcode.raw()))?;
        if !l.payload && !self.payload.is_empty() {
            return Err(BuildError::Payload { opcode, len: self.payload.len() });
        }
        let headers = usize::from(l.header_bytes);
        let pad = self.payload.len().wrapping_neg() & 3;
        let mut out = vec![0; headers + self.payload.len() + pad];
        let bth = Bth::new(opcode, self.flags, pad as u8, self.pkey, self.dest_qp, self.psn)
            .with_mig_req(self.mig_req);
        out[..Bth::BYTES].copy_from_slice(bytemuck::bytes_of(&bth));
        put(&mut out, opcode, "RDETH", l.rdeth, &self.rdeth)?;
        put(&mut out, opcode, "DETH", l.deth, &self.deth)?;
        put(&mut out, opcode, "XRCETH", l.xrceth, &self.xrceth)?;
        put(&mut out, opcode, "FETH", l.feth, &self.feth)?;
        put(&mut out, opcode, "RETH", l.reth, &self.reth)?;
        put(&mut out, opcode, "AtomicETH", l.atomic, &self.atomic)?;
        put(&mut out, opcode, "AETH", l.aeth, &self.aeth)?;
        put(&mut out, opcode, "AtomicAckETH", l.atomic_ack, &self.atomic_ack)?;
        put(&mut out, opcode, "immediate data", l.imm, &self.imm)?;
        put(&mut out, opcode, "IETH", l.ieth, &self.ieth)?;
        out[headers..headers + self.payload.len()].copy_from_slice(self.payload);
        Ok(out)
    }
}

/// Writes `header` at `at`, where the opcode has it (0: it has none).
fn put<T: Pod>(
    out: &mut [u8],
    opcode: Opcode,
    name: &'static str,
    at: u8,
    header: &Option<T>,
) -> Result<(), BuildError> {
    match (at, header) {
        (0, None) => Ok(()),
        (0, Some(_)) => Err(BuildError::Unexpected { opcode, header: name }),
        (_, None) => Err(BuildError::Missing { opcode, header: name }),
        (at, Some(h)) => {
            let at = usize::from(at);
            out[at..at + size_of::<T>()].copy_from_slice(bytemuck::bytes_of(h));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Be64, PacketOp};

    #[test]
    fn a_header_too_many_or_too_few_is_named() {
        let new = |op| PacketBuilder::new(Opcode::rc(op), Qpn::new(1), Psn::new(2));
        let e = new(PacketOp::WriteOnly).build().unwrap_err();
        assert_eq!(e.to_string(), "Rc::WriteOnly has RETH, which was not given");
        let e = new(PacketOp::SendOnly).imm(1).build().unwrap_err();
        assert_eq!(e.to_string(), "Rc::SendOnly has no immediate data");
        let reth = Reth { va: Be64::new(0), rkey: Be32::new(0), dma_len: Be32::new(1) };
        let e = new(PacketOp::ReadRequest).reth(reth).payload(b"x").build().unwrap_err();
        assert_eq!(e, BuildError::Payload { opcode: Opcode::rc(PacketOp::ReadRequest), len: 1 });
        let e = PacketBuilder::new(Opcode::new(0x82), Qpn::new(1), Psn::new(2)).build().unwrap_err();
        assert_eq!(e, BuildError::UnknownOpcode(0x82));
    }

    #[test]
    fn the_payload_is_padded_with_zeros() {
        for len in 0..9 {
            let payload = vec![0xff; len];
            let p = PacketBuilder::new(Opcode::uc(PacketOp::SendOnly), Qpn::new(1), Psn::new(2))
                .payload(&payload)
                .build()
                .unwrap();
            assert_eq!(p.len(), 12 + len.next_multiple_of(4));
            assert!(p[12 + len..].iter().all(|b| *b == 0));
        }
    }
}
