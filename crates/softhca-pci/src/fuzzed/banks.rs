//! The memory of the client that a fuzzer plays: banks of one file, each mapped for the function or not, with a secret
//! in every bank that is not mapped.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::FallocateFlags;

use crate::bed::sealed;
use crate::function::Function;
use crate::guest::PAGE;

/// Banks, and bytes of each.
pub(super) const BANKS: usize = 6;
pub(super) const BANK: u64 = 16 * PAGE;
/// Where each lies for the function: the first two next to each other, the fourth and fifth too, the last one at the
/// end of all addresses.
const AT: [u64; BANKS] = [
    0x1_0000_0000,
    0x1_0000_0000 + BANK,
    0x2_0000_0000,
    0x3_0000_0000,
    0x3_0000_0000 + BANK,
    u64::MAX - (PAGE - 1) - BANK,
];
/// What stands in memory that the function was not lent. A word of the input is never compared with it as it is.
const SECRET: [u8; 8] = [0xd1, 0x5e, 0xa5, 0xed, 0x5e, 0xc2, 0xe7, 0x93];
const MASK: u8 = 0x5a;

/// What is known of a bank.
enum State {
    /// The function may reach it.
    Mapped,
    /// It may read it only: what stands there stays.
    ReadOnly(Vec<u8>),
    /// It is not mapped, and full of secrets.
    Away,
}

pub(super) struct Banks {
    file: File,
    states: [State; BANKS],
}

/// Where a bank lies in the file, behind a page of secrets.
fn place(bank: usize) -> u64 {
    PAGE + bank as u64 * (BANK + PAGE)
}

fn secrets(len: u64) -> Vec<u8> {
    SECRET.map(|byte| byte ^ MASK).repeat(len as usize / SECRET.len())
}

impl Banks {
    /// None of them is mapped.
    pub(super) fn new() -> Self {
        let len = place(BANKS);
        let file = sealed(len);
        file.write_all_at(&secrets(len), 0).unwrap();
        Self { file, states: [const { State::Away }; BANKS] }
    }

    /// Where a bank lies for the function.
    pub(super) fn at(bank: usize) -> u64 {
        AT[bank]
    }

    /// Whether the function may write there.
    pub(super) fn is_mapped(&self, bank: usize) -> bool {
        matches!(self.states[bank], State::Mapped)
    }

    /// Maps a bank that is not, filled with zeros.
    pub(super) fn map(&mut self, function: &mut Function, bank: usize, rights: (bool, bool)) {
        if !matches!(self.states[bank], State::Away) {
            return;
        }
        self.check_away(bank);
        if rights != (false, false) {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, hole, place(bank), BANK).unwrap();
        }
        let copy: OwnedFd = self.file.try_clone().unwrap().into();
        if function.dma_map(AT[bank], BANK, rights, Some((copy, place(bank)))).is_err() {
            // Something of the input's lies there.
            self.hide(bank);
        } else if rights == (true, false) {
            self.states[bank] = State::ReadOnly(vec![0; BANK as usize]);
        } else if rights != (false, false) {
            self.states[bank] = State::Mapped;
        }
    }

    /// A range was unmapped: from when that returned on nothing of it is read or written.
    pub(super) fn unmapped(&mut self, iova: u64, size: u64) {
        let end = iova.saturating_add(size);
        for (bank, at) in AT.into_iter().enumerate() {
            if iova < at + BANK && at < end {
                self.check_read_only(bank);
                self.hide(bank);
            }
        }
    }

    /// All of it was let go of.
    pub(super) fn all_unmapped(&mut self) {
        self.unmapped(0, u64::MAX);
    }

    fn hide(&mut self, bank: usize) {
        self.file.write_all_at(&secrets(BANK), place(bank)).unwrap();
        self.states[bank] = State::Away;
    }

    /// The client writes to its own memory. What does not lie in a bank that the function may write is left out.
    pub(super) fn write(&self, iova: u64, bytes: &[u8]) {
        if let Some(place) = self.find(iova, bytes.len()) {
            self.file.write_all_at(bytes, place).unwrap();
        }
    }

    /// The client reads its own memory; `None`: there is none.
    pub(super) fn read<const N: usize>(&self, iova: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, self.find(iova, N)?).unwrap();
        Some(bytes)
    }

    fn find(&self, iova: u64, len: usize) -> Option<u64> {
        let bank = (0..BANKS).find(|bank| iova >= AT[*bank] && iova - AT[*bank] < BANK)?;
        let within = iova - AT[bank];
        (self.is_mapped(bank) && len as u64 <= BANK - within).then_some(place(bank) + within)
    }

    fn bytes(&self, from: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, from).unwrap();
        bytes
    }

    fn check_away(&self, bank: usize) {
        assert!(
            self.bytes(place(bank), BANK) == secrets(BANK),
            "bank {bank} was written while it was not mapped"
        );
    }

    fn check_read_only(&self, bank: usize) {
        if let State::ReadOnly(was) = &self.states[bank] {
            assert!(self.bytes(place(bank), BANK) == *was, "bank {bank} was written, and is for reading");
        }
    }

    /// Nothing was written where nothing may be, and nothing read where nothing may be has come elsewhere.
    pub(super) fn check(&self) {
        for bank in 0..BANKS {
            self.check_read_only(bank);
            match self.states[bank] {
                State::Away => self.check_away(bank),
                State::Mapped | State::ReadOnly(_) => {
                    assert!(!has_secret(&self.bytes(place(bank), BANK)), "a secret has come to bank {bank}");
                }
            }
        }
        for bank in 0..=BANKS {
            assert!(
                self.bytes(place(bank) - PAGE, PAGE) == secrets(PAGE),
                "the page before bank {bank} was written"
            );
        }
    }
}

/// Whether a secret stands anywhere in these bytes.
pub(super) fn has_secret(bytes: &[u8]) -> bool {
    let secret = u64::from_ne_bytes(SECRET);
    // Whoever chooses the input sees what is compared, and must not find it so.
    let is = |word: [u8; 8]| {
        core::hint::black_box(u64::from_ne_bytes(word) ^ u64::from_ne_bytes([MASK; 8])) == secret
    };
    let zeros = [0; PAGE as usize];
    let pages =
        (0..bytes.len()).step_by(zeros.len()).map(|at| &bytes[at..bytes.len().min(at + zeros.len() + 7)]);
    pages.filter(|page| !zeros.starts_with(page) && page.get(..zeros.len()) != Some(&zeros)).any(|page| {
        let mut rest = page;
        while let Some(at) = rest.iter().position(|byte| *byte == SECRET[0] ^ MASK) {
            rest = &rest[at..];
            if rest.first_chunk().is_some_and(|word| is(*word)) {
                return true;
            }
            rest = &rest[1..];
        }
        false
    })
}
