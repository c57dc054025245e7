//! Troubles that a script gives served functions: late commands, no spare pages, nothing optional.

use hca_prm::caps::HcaCap;
use hca_prm::command::hca::{HcaCapType, QueryHcaCapIn, QueryHcaCapOut};
use hca_prm::{Layout, Opcode};
use softhca_pci::{Given, Script, Turn};

/// The trouble of a bed's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing but what the model does.
    None,
    /// They ask for pages at each command that makes something.
    NoSparePages,
    /// They run each command after some looks only, so that commands overtake each other.
    Delays,
    /// They offer nothing that an adapter may not offer.
    Plain,
}

impl Script for Trouble {
    fn command(&self, given: &Given<'_>) -> Turn {
        let looks = 1 + u32::from(given.opcode().0) % 3;
        if *self == Self::Delays && given.tries < looks { Turn::Wait } else { Turn::Run }
    }

    fn ran(&self, input: &[u8], output: &mut [u8]) {
        let general =
            |op_mod| matches!(HcaCapType::from_op_mod(op_mod), Some((HcaCapType::GeneralDevice, _)));
        if *self != Self::Plain || input[..2] != Opcode::QUERY_HCA_CAP.0.to_be_bytes() {
            return;
        }
        let asked = QueryHcaCapIn::from_bytes(input).expect("it was run");
        if !general(asked.get(QueryHcaCapIn::OP_MOD)) {
            return;
        }
        // Services without which there are no queue pairs, and what makes the port what it is.
        let kept = [HcaCap::RC, HcaCap::UC, HcaCap::UD, HcaCap::IB_VIRT, HcaCap::ETH_VIRT, HcaCap::ROCE];
        let kept = kept.map(|field| field.name());
        let bits = HcaCap::FIELDS.iter().filter(|field| field.width == 1 && !kept.contains(&field.name));
        let caps = &mut output[QueryHcaCapOut::CAPABILITY.offset()..];
        bits.for_each(|field| field.copy(&[0; HcaCap::SIZE], caps));
    }
}
