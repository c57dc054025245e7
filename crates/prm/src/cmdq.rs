//! The command queue: slots, mailboxes, and the signatures over both.
//!
//! The first 16 bytes of a command's input and output lie in its slot. Longer ones continue in chains of mailboxes, of
//! [`MAILBOX_DATA`] bytes each. The slot and all mailboxes of a command carry its token. The driver passes the slot to
//! the adapter by setting the owner bit, and the adapter returns the slot by clearing the bit.

use crate::layout;

/// The bytes of a command's input, and of its output, that lie in the slot.
pub const INLINE_DATA: usize = 16;
/// The bytes of a command's input or output that lie in one mailbox.
pub const MAILBOX_DATA: usize = 512;
/// The alignment of mailboxes in bytes, which pointers from mailbox to mailbox need; pointers in a slot need half of
/// it.
pub const MAILBOX_ALIGN: u64 = 1024;
/// The type of a slot that holds a command.
pub const CMD_TYPE: u32 = 7;
/// The most slots of any adapter.
pub const MAX_SLOTS: usize = 32;

layout! {
    list LAYOUTS;

    /// A slot of the command queue.
    pub struct CmdQueueEntry: 0x40 {
        /// [`CMD_TYPE`].
        TYPE: 0x00 [31:24],
        /// Bytes of the input, with those in the slot.
        INPUT_LENGTH: 0x04 [31:0],
        /// Bus address of the first input mailbox; 0 if the slot holds all of the input.
        INPUT_MAILBOX_POINTER: 0x08 [63:0],
        /// The input's first bytes.
        COMMAND_INPUT_INLINE_DATA: 0x10 [u8; 16],
        /// The output's first bytes.
        COMMAND_OUTPUT_INLINE_DATA: 0x20 [u8; 16],
        /// Bus address of the first output mailbox; 0 if the slot holds all of the output.
        OUTPUT_MAILBOX_POINTER: 0x30 [63:0],
        /// Bytes of the output, with those in the slot.
        OUTPUT_LENGTH: 0x38 [31:0],
        /// Told from that of the slot's last command.
        TOKEN: 0x3c [31:24],
        /// Makes the exclusive or of the slot's bytes 0xff.
        SIGNATURE: 0x3c [23:16],
        /// A [`DeliveryStatus`](crate::DeliveryStatus) code, which the adapter writes.
        STATUS: 0x3c [7:1],
        /// The slot is the adapter's.
        OWNERSHIP: 0x3c [0],
    }

    /// A mailbox: a part of a command's input or output that does not fit into the slot.
    pub struct CmdIfBox: 0x240 {
        /// The part. That of the first mailbox follows the bytes in the slot.
        MAILBOX_DATA: 0x00 [u8; 512],
        /// Bus address of the next mailbox; 0 at the end.
        NEXT_POINTER: 0x230 [63:0],
        /// 0 for a chain's first mailbox, then 1 and so on.
        BLOCK_NUMBER: 0x238 [31:0],
        /// The command's token.
        TOKEN: 0x23c [23:16],
        /// Makes the exclusive or of the bytes from 0x200 to this one 0xff.
        CTRL_SIGNATURE: 0x23c [15:8],
        /// Makes the exclusive or of all bytes 0xff.
        SIGNATURE: 0x23c [7:0],
    }
}

/// The number of mailboxes for a command's input or output of `len` bytes, beside its slot.
#[must_use]
pub const fn mailboxes(len: usize) -> usize {
    len.saturating_sub(INLINE_DATA).div_ceil(MAILBOX_DATA)
}

/// The range of a command's input or output of `len` bytes that lies in mailbox number `block`; empty beyond the last
/// mailbox.
#[must_use]
pub const fn mailbox_part(len: usize, block: usize) -> std::ops::Range<usize> {
    let start = INLINE_DATA.saturating_add(block.saturating_mul(MAILBOX_DATA));
    if start >= len {
        return len..len;
    }
    let end = start.saturating_add(MAILBOX_DATA);
    start..if end < len { end } else { len }
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

impl CmdQueueEntry {
    /// The correct signature of the slot, computed from its other bytes.
    #[must_use]
    pub fn computed_signature(&self) -> u8 {
        !(xor(self.as_bytes()) ^ self.get(Self::SIGNATURE) as u8)
    }

    /// Signs the slot: the last step before the driver passes it to the adapter, with the owner bit set.
    pub fn sign(&mut self) -> &mut Self {
        let signature = self.computed_signature();
        self.set(Self::SIGNATURE, signature.into())
    }

    /// Whether the slot carries the correct signature.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        xor(self.as_bytes()) == 0xff
    }
}

impl CmdIfBox {
    const CTRL: usize = MAILBOX_DATA;
    const LAST: usize = Self::SIZE - 1;

    /// Signs the mailbox, after all other fields are set.
    pub fn sign(&mut self) -> &mut Self {
        let ctrl = !xor(&self.as_bytes()[Self::CTRL..Self::LAST - 1]);
        self.set(Self::CTRL_SIGNATURE, ctrl.into());
        let all = !xor(&self.as_bytes()[..Self::LAST]);
        self.set(Self::SIGNATURE, all.into())
    }

    /// Signs the mailbox's control part only, which is enough if the adapter does not check the data.
    pub fn sign_ctrl(&mut self) -> &mut Self {
        let ctrl = !xor(&self.as_bytes()[Self::CTRL..Self::LAST - 1]);
        self.set(Self::CTRL_SIGNATURE, ctrl.into())
    }

    /// Whether the mailbox carries both correct signatures.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.is_ctrl_signed() && xor(self.as_bytes()) == 0xff
    }

    /// Whether the mailbox's control part carries the correct signature.
    #[must_use]
    pub fn is_ctrl_signed(&self) -> bool {
        xor(&self.as_bytes()[Self::CTRL..Self::LAST]) == 0xff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_lies_as_drivers_lay_it() {
        let slot = CmdQueueEntry::new()
            .with(CmdQueueEntry::TYPE, CMD_TYPE)
            .with(CmdQueueEntry::INPUT_LENGTH, 0x1010)
            .with(CmdQueueEntry::INPUT_MAILBOX_POINTER, 0x1_2345_6400)
            .with(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, [1; 16])
            .with(CmdQueueEntry::OUTPUT_MAILBOX_POINTER, 0xabcd_0000)
            .with(CmdQueueEntry::OUTPUT_LENGTH, 16)
            .with(CmdQueueEntry::TOKEN, 0x77)
            .with(CmdQueueEntry::STATUS, 0x10)
            .with(CmdQueueEntry::OWNERSHIP, true);
        let bytes = slot.as_bytes();
        assert_eq!(bytes[0], 7);
        assert_eq!(bytes[4..8], 0x1010_u32.to_be_bytes());
        assert_eq!(bytes[8..16], 0x1_2345_6400_u64.to_be_bytes());
        assert_eq!(bytes[16..32], [1; 16]);
        assert_eq!(bytes[32..48], [0; 16]);
        assert_eq!(bytes[48..56], 0xabcd_0000_u64.to_be_bytes());
        assert_eq!(bytes[56..60], 16_u32.to_be_bytes());
        assert_eq!(bytes[60..64], [0x77, 0, 0, 0x21]);
    }

    #[test]
    fn a_mailbox_lies_as_drivers_lay_it() {
        let part = CmdIfBox::new()
            .with(CmdIfBox::NEXT_POINTER, 0x4000)
            .with(CmdIfBox::BLOCK_NUMBER, 3)
            .with(CmdIfBox::TOKEN, 0x77)
            .with(CmdIfBox::CTRL_SIGNATURE, 1)
            .with(CmdIfBox::SIGNATURE, 2);
        let bytes = part.as_bytes();
        assert_eq!(bytes.len(), 576);
        assert_eq!(bytes[560..568], 0x4000_u64.to_be_bytes());
        assert_eq!(bytes[568..572], 3_u32.to_be_bytes());
        assert_eq!((bytes[573], bytes[574], bytes[575]), (0x77, 1, 2));
    }

    #[test]
    fn a_signature_is_broken_by_any_changed_byte() {
        let mut slot = CmdQueueEntry::new().with(CmdQueueEntry::TYPE, CMD_TYPE).with(CmdQueueEntry::TOKEN, 9);
        slot.sign();
        assert!(slot.is_signed());
        for at in 0..CmdQueueEntry::SIZE {
            let mut changed = slot;
            changed.as_bytes_mut()[at] ^= 0x40;
            assert!(!changed.is_signed(), "byte {at}");
        }
        assert_eq!(u32::from(slot.computed_signature()), slot.get(CmdQueueEntry::SIGNATURE));

        let mut part = CmdIfBox::new().with(CmdIfBox::MAILBOX_DATA, [5; 512]).with(CmdIfBox::BLOCK_NUMBER, 1);
        part.sign();
        assert!(part.is_signed());
        for at in 0..CmdIfBox::SIZE {
            let mut changed = part;
            changed.as_bytes_mut()[at] ^= 1;
            assert!(!changed.is_signed(), "byte {at}");
            assert_eq!(changed.is_ctrl_signed(), !(512..575).contains(&at), "byte {at}");
        }
    }

    #[test]
    fn as_many_mailboxes_are_taken_as_the_slot_leaves_over() {
        assert_eq!([0, 16, 17, 528, 529, 4112].map(mailboxes), [0, 0, 1, 1, 2, 8]);
        for len in [0, 15, 16, 17, 528, 529, 4112, usize::MAX] {
            let blocks = mailboxes(len);
            assert!(mailbox_part(len, blocks).is_empty() && mailbox_part(len, usize::MAX).is_empty());
            if let Some(last) = blocks.checked_sub(1) {
                assert_eq!(mailbox_part(len, last).end, len);
                assert_eq!(mailbox_part(len, 0).start, 16);
            }
        }
        assert_eq!(mailbox_part(529, 0), 16..528);
        assert_eq!(mailbox_part(529, 1), 528..529);
    }
}
