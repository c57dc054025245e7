//! The result of a command: its delivery, and the firmware's status.

use crate::codes::codes;

codes! {
    /// The firmware's status of a delivered command: `STATUS` of the output.
    pub enum CmdStatus {
        Ok = 0x0 "done",
        IntErr = 0x1 "internal error of the firmware; the adapter may need a reset",
        BadOp = 0x2 "no such command, or none that this function may give in the negotiated interface",
        BadParam = 0x3 "a parameter is wrong, or asks for what the capabilities do not offer",
        BadSysState = 0x4 "the adapter is not in a state for this command, such as initialised or enabled",
        BadRes = 0x5 "no such object, or it is reserved or belongs to somebody else",
        ResBusy = 0x6 "the object is in use by another one, which has to be destroyed first",
        NotReady = 0x7 "the firmware is not ready yet: try again later",
        LimErr = 0x8 "more was asked for than the adapter's limit, see its capabilities",
        BadResState = 0x9 "the object is not in a state for this command",
        IxErr = 0xa "an index is beyond its table",
        NoRes = 0xf "the adapter has no more of these",
        BadQpState = 0x10 "the queue pair is not in the state that this transition begins with",
        BadPkt = 0x30 "a management datagram is malformed and was dropped",
        BadSizeOutsCqes = 0x40 "the new completion queue is too small for the completions that wait in the old one",
        BadInpLen = 0x50 "the input is shorter or longer than the command's",
        BadOutpLen = 0x51 "the place for the output is shorter than the command's",
    }

    /// Whether a command reached the firmware: bits 7 to 1 of the last byte of its slot.
    pub enum DeliveryStatus {
        Ok = 0x0 "delivered",
        SignatErr = 0x1 "a signature of the slot or of a mailbox is wrong",
        TokErr = 0x2 "a mailbox has another token than the slot",
        BadBlkNum = 0x3 "the numbers of the mailboxes are not 0, 1, 2, …",
        BadOutPtr = 0x4 "the pointer to an output mailbox is not aligned, or cannot be used",
        BadInPtr = 0x5 "the pointer to an input mailbox is not aligned, or cannot be used",
        FwErr = 0x6 "internal error of the firmware",
        BadInpLen = 0x7 "the input length is wrong",
        BadOutpLen = 0x8 "the output length is wrong",
        ResFldNotClr = 0x9 "a reserved field is not zero",
        BadDescr = 0x10 "the slot's type is not that of a command",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_its_code_and_its_sense() {
        for &status in CmdStatus::ALL {
            assert_eq!(CmdStatus::from_code(status.code()), Some(status));
            assert!(!status.text().is_empty() && !status.text().ends_with('.'), "{status:?}");
        }
        for &status in DeliveryStatus::ALL {
            assert_eq!(DeliveryStatus::from_code(status.code()), Some(status));
        }
        assert_eq!(CmdStatus::from_code(0xb), None);
        assert_eq!(CmdStatus::NoRes.to_string(), "the adapter has no more of these");
    }
}
