//! Mailboxes: the parts of a command's input and output that do not fit into its slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hca_prm::{CmdIfBox, INLINE_DATA, MAILBOX_ALIGN, MAILBOX_DATA, mailboxes};
use hca_vfio::{DmaArena, DmaBuf, DmaError};

/// Bytes from one mailbox to the next.
const STRIDE: usize = MAILBOX_ALIGN as usize;
/// Mailboxes of a page.
const PER_PAGE: usize = 4096 / STRIDE;
/// A chain of more than these has memory of its own, which goes with it: lists of many pages are rare, and long.
const MAX_KEPT: usize = 64;

/// Memory of mailboxes.
#[derive(Debug)]
struct Page {
    /// Nothing when it is dropped.
    buf: Option<DmaBuf>,
    /// The adapter may still write one of them: it is given to nobody else while the function is open.
    leaked: AtomicBool,
}

impl Page {
    fn new(buf: DmaBuf) -> Arc<Self> {
        Arc::new(Self { buf: Some(buf), leaked: AtomicBool::new(false) })
    }
    fn buf(&self) -> &DmaBuf {
        self.buf.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if *self.leaked.get_mut()
            && let Some(buf) = self.buf.take()
        {
            buf.leak();
        }
    }
}

/// One mailbox.
#[derive(Clone, Debug)]
struct Mailbox {
    page: Arc<Page>,
    at: usize,
}

impl Mailbox {
    fn iova(&self) -> u64 {
        self.page.buf().iova().0 + self.at as u64
    }
}

/// Mailboxes that are not in use. It grows to what was in use at the same time, and keeps that.
#[derive(Debug)]
pub(crate) struct Pool {
    arena: DmaArena,
    free: Mutex<Vec<Mailbox>>,
}

impl Pool {
    pub(crate) fn new(arena: DmaArena) -> Self {
        Self { arena, free: Mutex::new(Vec::new()) }
    }

    /// A chain for `len` bytes of input or output, with those in the slot.
    pub(crate) fn chain(&self, len: usize) -> Result<Chain<'_>, DmaError> {
        let mut chain = Chain { pool: self, boxes: Vec::new() };
        let count = mailboxes(len);
        if count > MAX_KEPT {
            let all = Page::new(self.arena.alloc(count * STRIDE, 4096)?);
            chain.boxes.extend((0..count).map(|i| Mailbox { page: all.clone(), at: i * STRIDE }));
        }
        while chain.boxes.len() < count {
            // Each page is its own statement: the lock is not held while memory is had.
            let found = self.free().pop();
            match found {
                Some(mailbox) => chain.boxes.push(mailbox),
                None => {
                    let page = Page::new(self.arena.alloc(4096, 4096)?);
                    let boxes = (0..PER_PAGE).map(|i| Mailbox { page: page.clone(), at: i * STRIDE });
                    self.free().extend(boxes);
                }
            }
        }
        Ok(chain)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Mailbox>> {
        // It is whole between any two of its operations.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mailboxes of one command's input or output. They are free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    pool: &'a Pool,
    boxes: Vec<Mailbox>,
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        if self.boxes.len() <= MAX_KEPT {
            self.pool.free().append(&mut self.boxes);
        }
    }
}

impl Chain<'_> {
    /// Where the first one is for the adapter; 0 if there is none.
    pub(crate) fn pointer(&self) -> u64 {
        self.boxes.first().map_or(0, Mailbox::iova)
    }

    /// Makes them ready for a command: links, numbers, its token, signatures, and what of `data` does not fit the slot.
    pub(crate) fn fill(&self, token: u8, data: &[u8]) {
        let mut parts = data.get(INLINE_DATA..).unwrap_or_default().chunks(MAILBOX_DATA);
        for (i, mailbox) in self.boxes.iter().enumerate() {
            let mut image = CmdIfBox::new()
                .with(CmdIfBox::NEXT_POINTER, self.boxes.get(i + 1).map_or(0, Mailbox::iova))
                .with(CmdIfBox::BLOCK_NUMBER, i as u32)
                .with(CmdIfBox::TOKEN, token.into());
            let part = parts.next().unwrap_or_default();
            image.as_bytes_mut()[..part.len()].copy_from_slice(part);
            image.sign();
            mailbox.page.buf().store(mailbox.at, image.as_bytes());
        }
    }

    /// Copies out what of an output does not fit the slot.
    pub(crate) fn load(&self, out: &mut [u8]) {
        let parts = out.get_mut(INLINE_DATA..).unwrap_or_default().chunks_mut(MAILBOX_DATA);
        for (mailbox, part) in self.boxes.iter().zip(parts) {
            mailbox.page.buf().load(mailbox.at, part);
        }
    }

    /// Gives them to nobody else: the adapter may still write them.
    pub(crate) fn leak(mut self) {
        for mailbox in self.boxes.drain(..) {
            mailbox.page.leaked.store(true, Ordering::Relaxed);
        }
    }
}
