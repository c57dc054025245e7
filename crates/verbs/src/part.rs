//! Local lists of requests: their entries.
//!
//! A list goes three ways: it is described as scatter/gather entries, stored in a slot while the request
//! is in flight, and restored from there if the device refuses the request.

use std::fmt;
use std::sync::Arc;

use hca_core::{Mixed, Payload, SendFlags, Sge};

use crate::ah::AddressHandle;
use crate::buf::{Buf, FrozenBuf};
use crate::mr::SharedRange;
use crate::pd::PdCore;
use crate::rd::EeContext;
use crate::region::Region;
use crate::slots::{SlotReader, SlotWriter};

/// A local entry of a request, of any kind: for lists that are built at run time, and for the parts that a completion
/// gives back.
#[derive(Debug)]
pub enum Part {
    /// A buffer.
    Buf(Buf),
    /// A read-only buffer.
    Frozen(FrozenBuf),
    /// A part of a shared region.
    Shared(SharedRange),
}

impl Part {
    /// The buffer, if this part is one.
    ///
    /// # Errors
    /// The part is of another kind, and comes back.
    pub fn into_buf(self) -> Result<Buf, Self> {
        match self {
            Self::Buf(buf) => Ok(buf),
            other => Err(other),
        }
    }
}
impl From<Buf> for Part {
    fn from(buf: Buf) -> Self {
        Self::Buf(buf)
    }
}
impl From<FrozenBuf> for Part {
    fn from(buf: FrozenBuf) -> Self {
        Self::Frozen(buf)
    }
}
impl From<SharedRange> for Part {
    fn from(range: SharedRange) -> Self {
        Self::Shared(range)
    }
}

/// The contents of a slot: parts, and other objects that a request keeps alive.
#[derive(Debug)]
pub(crate) enum Held {
    Part(Part),
    Ah(#[allow(dead_code)] AddressHandle), // held, never read
    Ee(#[allow(dead_code)] EeContext),
}

/// The first bytes of a buffer: only they are posted, and the completion gives the whole buffer back. From
/// [`Buf::first`].
#[derive(Debug)]
pub struct First {
    buf: Buf,
    len: usize,
}

impl First {
    pub(crate) fn new(buf: Buf, len: usize) -> Self {
        Self { buf, len }
    }
    /// The whole buffer of this part.
    pub fn into_buf(self) -> Buf {
        self.buf
    }
}

/// Bytes that are copied into the request as it is posted, so nothing has to be registered or kept.
/// The queue pair is built with room for them ([`QpBuilder::max_inline`](crate::QpBuilder::max_inline)).
///
/// In a tuple inline bytes can precede registered memory, as a header of the payload. The queue pair's lists need room
/// for all entries of the tuple, inline ones included ([`QpBuilder::max_send_sge`](crate::QpBuilder::max_send_sge)).
///
/// ```
/// # use hca_verbs::*;
/// # fn example(pd: &Pd, cq: &CompletionQueue, page: FrozenBuf) -> Result<(), Box<dyn std::error::Error>> {
/// let mut qp = pd.qp::<Rc>(cq).max_send_sge(2).max_inline(16).build()?;
/// let header = 4096_u32.to_be_bytes();
/// qp.send((Inline(&header), page))?; // one message: 4 bytes, then the page
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Inline<'a>(pub &'a [u8]);

impl fmt::Debug for Inline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inline({} bytes)", self.0.len())
    }
}

/// A local list that a request reads from: a [`Buf`], the [`First`] bytes of one, a [`FrozenBuf`], a
/// [`SharedRange`], a [`Part`]; tuples, arrays and `Vec`s of them; [`Inline`] bytes, also in tuples; `()` for none.
///
/// What comes back of a list from a refused request is its [`Back`](Self::Back): itself, but `()` in the place of
/// [`Inline`] bytes, which the program has still. So `?` hands such a refusal on from a function that returns `Box<dyn Error>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent from",
    label = "not a local list",
    note = "a local list is a `Buf`, `FrozenBuf`, `SharedRange`, `Part`, a tuple, array or `Vec` of them, or `Inline` bytes",
    note = "bytes of the program's own are copied: by `send_inline(&bytes)`, by `Inline(&bytes)`, or into a `Buf` by `copy_from_slice`"
)]
pub trait GatherList: sealed::List {
    /// The owned buffers, which a refused request gives back.
    type Back: 'static;
    /// Gives back the parts that the list owns.
    fn back(self) -> Self::Back;
}

/// A local list that a request writes into (receive, READ, atomics): a [`Buf`], the [`First`] bytes of
/// one, or a [`SharedRange`]; tuples, arrays and `Vec`s of them; `()` for none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be received into",
    label = "not a list that a request may write",
    note = "a list to receive, READ or do atomics into is made of `Buf`s and `SharedRange`s: nothing that is frozen or inline"
)]
pub trait ScatterList: GatherList {}

/// Room for the entries of one list at a time.
#[derive(Default)]
pub(crate) struct Scratch {
    sges: Vec<Sge>,
    /// The bytes of inline entries, of a list that may have some.
    bytes: Vec<u8>,
    /// The bits of inline entries, likewise.
    inline: u64,
}

impl Scratch {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        // The bytes have their room when the first inline entry comes.
        Self { sges: Vec::with_capacity(entries), bytes: Vec::new(), inline: 0 }
    }
    /// The list that was written down: registered memory alone.
    #[inline(always)]
    pub(crate) fn sges(&self) -> &[Sge] {
        &self.sges
    }
    /// The list that was written down, which may have inline entries.
    pub(crate) fn payload(&self) -> Payload<'_> {
        let list = Mixed { entries: &self.sges, inline: self.inline, bytes: &self.bytes };
        list.as_plain().unwrap_or(Payload::Mixed(list))
    }
}

/// A list while its entries are written down for the device.
pub struct Entries<'a> {
    pd: &'a Arc<PdCore>,
    scratch: &'a mut Scratch,
    room: usize,
    count: usize,
    len: u64,
    foreign: Option<usize>,
    /// Some of the memory may be written meanwhile.
    shared: bool,
}

impl<'a> Entries<'a> {
    #[inline(always)]
    pub(crate) fn new<L: List>(pd: &'a Arc<PdCore>, scratch: &'a mut Scratch, room: usize) -> Self {
        scratch.sges.clear();
        if L::HAS_INLINE {
            scratch.bytes.clear();
            scratch.inline = 0;
        }
        Self { pd, scratch, room, count: 0, len: 0, foreign: None, shared: false }
    }

    #[inline(always)]
    fn push(&mut self, region: &Arc<Region>, addr: u64, len: usize) {
        if !Arc::ptr_eq(&region.pd, self.pd) {
            self.foreign.get_or_insert(self.count);
        }
        self.count += 1;
        self.len += len as u64;
        // A longer list, or an entry of more bytes than a message may have, is refused.
        if self.count <= self.room {
            self.scratch.sges.push(Sge { addr, len: len as u32, lkey: region.lkey() });
        }
    }

    /// Of a list that [says so](List::HAS_INLINE).
    fn push_inline(&mut self, bytes: &[u8]) {
        let index = self.count;
        self.count += 1;
        self.len += bytes.len() as u64;
        if self.count <= self.room.min(Mixed::MAX_ENTRIES) {
            let Scratch { sges, bytes: kept, inline } = &mut *self.scratch;
            sges.push(Sge { len: bytes.len() as u32, ..Sge::default() });
            *inline |= 1 << index;
            kept.extend_from_slice(bytes);
        }
    }

    /// Entries of the list.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }
    /// Entries that a list may have.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room
    }
    /// Bytes of the list.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        self.len
    }
    /// The flags that promise stable memory: buffers are not written while they are posted.
    #[inline(always)]
    pub(crate) fn promise(&self) -> SendFlags {
        if self.shared { SendFlags::empty() } else { SendFlags::STABLE }
    }
    /// The first entry that belongs to another protection domain.
    #[inline(always)]
    pub(crate) fn foreign(&self) -> Option<usize> {
        self.foreign
    }
}

/// A slot while it is filled.
pub struct Filling<'a, 'b>(pub(crate) &'a mut SlotWriter<'b, Held>);

/// The parts of a list, as they come back.
pub struct Emptying<'a>(pub(crate) &'a mut dyn Iterator<Item = Part>);

impl Emptying<'_> {
    /// Has a list put together again from the slot that holds it.
    pub(crate) fn slot<R>(
        slot: &mut SlotReader<'_, Held>,
        restore: impl FnOnce(&mut Emptying<'_>) -> R,
    ) -> R {
        let mut parts = slot.filter_map(|held| match held {
            Held::Part(part) => Some(part),
            Held::Ah(_) | Held::Ee(_) => None,
        });
        restore(&mut Emptying(&mut parts))
    }
}

impl Iterator for Emptying<'_> {
    type Item = Part;
    fn next(&mut self) -> Option<Part> {
        self.0.next()
    }
}

pub(crate) mod sealed {
    use super::{Emptying, Entries, Filling, Held, Part};

    /// A local list of a request.
    #[diagnostic::on_unimplemented(message = "`{Self}` is no local list", label = "not a local list")]
    pub trait List: Sized + Unpin {
        /// Whether some entries are inline.
        const HAS_INLINE: bool = false;
        /// The rest of the value, which stays outside of the slot.
        type Shell: Unpin;
        fn describe(&self, entries: &mut Entries<'_>);
        fn store(self, slot: &mut Filling<'_, '_>) -> Self::Shell;
        fn restore(shell: Self::Shell, slot: &mut Emptying<'_>) -> Self;
        /// Gives all owned parts to `sink`.
        fn give(self, sink: &mut dyn FnMut(Part));
        /// Bytes to copy instead of a list.
        #[inline(always)]
        fn inline(_: &Self::Shell) -> Option<&[u8]> {
            None
        }
        /// The same of a list that is not stored.
        #[inline(always)]
        fn bytes(&self) -> Option<&[u8]> {
            None
        }
    }

    /// One entry of a list.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is no entry of a local list",
        label = "this is not registered memory",
        note = "the entries of a list are `Buf`s, `First`s, `FrozenBuf`s, `SharedRange`s and `Part`s, which `Pd::alloc` and `Pd::alloc_shared` give",
        note = "bytes of the program's own are copied: by `Inline(&bytes)`, or into a `Buf` by `copy_from_slice`"
    )]
    pub trait Entry: Sized + Unpin {
        /// Whether the entry is inline.
        const IS_INLINE: bool = false;
        /// The rest of the value, which stays outside of the slot.
        type Shell: Unpin;
        /// The part that a refused request gives back.
        type Back: 'static;
        fn add_to(&self, entries: &mut Entries<'_>);
        fn store(self, slot: &mut Filling<'_, '_>) -> Self::Shell;
        /// # Panics
        /// The slot's next part is of another kind than `store` put there.
        fn restore(shell: Self::Shell, slot: &mut Emptying<'_>) -> Self;
        fn give(self, sink: &mut dyn FnMut(Part));
        fn back(self) -> Self::Back;
    }

    /// An entry that owns a part.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is no entry of a local list",
        label = "this is not registered memory",
        note = "the entries of a list are `Buf`s, `First`s, `FrozenBuf`s, `SharedRange`s and `Part`s, which `Pd::alloc` and `Pd::alloc_shared` give",
        note = "bytes of the program's own are copied: by `Inline(&bytes)`, or into a `Buf` by `copy_from_slice`"
    )]
    pub trait Owned: Sized + Unpin + 'static {
        /// The rest of the value, which stays outside of the slot.
        type Rest: Unpin;
        fn push_to(&self, entries: &mut Entries<'_>);
        fn into_part(self) -> (Part, Self::Rest);
        /// # Panics
        /// The part is of another kind than `into_part` made.
        fn from_part(part: Part, rest: Self::Rest) -> Self;
    }
    impl<T: Owned> Entry for T {
        type Shell = T::Rest;
        type Back = T;
        #[inline(always)]
        fn add_to(&self, entries: &mut Entries<'_>) {
            self.push_to(entries);
        }
        #[inline(always)]
        fn store(self, slot: &mut Filling<'_, '_>) -> T::Rest {
            let (part, rest) = self.into_part();
            slot.0.push(Held::Part(part));
            rest
        }
        fn restore(rest: T::Rest, slot: &mut Emptying<'_>) -> T {
            T::from_part(slot.next().expect("the slot holds as many parts as were stored"), rest)
        }
        fn give(self, sink: &mut dyn FnMut(Part)) {
            sink(self.into_part().0);
        }
        fn back(self) -> T {
            self
        }
    }
}
use sealed::{Entry, List, Owned};

impl Owned for Buf {
    type Rest = ();
    #[inline(always)]
    fn push_to(&self, entries: &mut Entries<'_>) {
        entries.push(self.region(), self.as_ptr().addr() as u64, self.len());
    }
    #[inline(always)]
    fn into_part(self) -> (Part, ()) {
        (Part::Buf(self), ())
    }
    fn from_part(part: Part, (): ()) -> Self {
        part.into_buf().expect("a buffer was stored")
    }
}

impl Owned for First {
    type Rest = usize;
    #[inline(always)]
    fn push_to(&self, entries: &mut Entries<'_>) {
        entries.push(self.buf.region(), self.buf.as_ptr().addr() as u64, self.len);
    }
    #[inline(always)]
    fn into_part(self) -> (Part, usize) {
        (Part::Buf(self.buf), self.len)
    }
    fn from_part(part: Part, len: usize) -> Self {
        Self { buf: part.into_buf().expect("a buffer was stored"), len }
    }
}

impl Owned for FrozenBuf {
    type Rest = ();
    #[inline(always)]
    fn push_to(&self, entries: &mut Entries<'_>) {
        entries.push(self.region(), self.as_ptr().addr() as u64, self.len());
    }
    #[inline(always)]
    fn into_part(self) -> (Part, ()) {
        (Part::Frozen(self), ())
    }
    fn from_part(part: Part, (): ()) -> Self {
        match part {
            Part::Frozen(buf) => buf,
            other => panic!("a frozen buffer was stored, not {other:?}"),
        }
    }
}

impl Owned for SharedRange {
    type Rest = ();
    #[inline(always)]
    fn push_to(&self, entries: &mut Entries<'_>) {
        entries.shared = true;
        entries.push(self.region(), self.addr(), self.len());
    }
    #[inline(always)]
    fn into_part(self) -> (Part, ()) {
        (Part::Shared(self), ())
    }
    fn from_part(part: Part, (): ()) -> Self {
        match part {
            Part::Shared(range) => range,
            other => panic!("a shared range was stored, not {other:?}"),
        }
    }
}

impl Owned for Part {
    type Rest = ();
    fn push_to(&self, entries: &mut Entries<'_>) {
        match self {
            Self::Buf(buf) => buf.push_to(entries),
            Self::Frozen(buf) => buf.push_to(entries),
            Self::Shared(range) => range.push_to(entries),
        }
    }
    fn into_part(self) -> (Part, ()) {
        (self, ())
    }
    fn from_part(part: Part, (): ()) -> Self {
        part
    }
}

impl Entry for Inline<'_> {
    const IS_INLINE: bool = true;
    type Shell = Self;
    type Back = ();
    fn add_to(&self, entries: &mut Entries<'_>) {
        entries.push_inline(self.0);
    }
    fn store(self, _: &mut Filling<'_, '_>) -> Self {
        self
    }
    fn restore(shell: Self, _: &mut Emptying<'_>) -> Self {
        shell
    }
    fn give(self, _: &mut dyn FnMut(Part)) {}
    fn back(self) {}
}

macro_rules! single {
    ($($t:ty),*) => {$(
        impl List for $t {
            type Shell = <$t as Entry>::Shell;
            #[inline(always)]
            fn describe(&self, entries: &mut Entries<'_>) {
                Entry::add_to(self, entries);
            }
            #[inline(always)]
            fn store(self, slot: &mut Filling<'_, '_>) -> Self::Shell {
                Entry::store(self, slot)
            }
            fn restore(shell: Self::Shell, slot: &mut Emptying<'_>) -> Self {
                Entry::restore(shell, slot)
            }
            fn give(self, sink: &mut dyn FnMut(Part)) {
                Entry::give(self, sink);
            }
        }
        impl GatherList for $t {
    type Back = Self;
    fn back(self) -> Self {
        self
    }
}
    )*};
}
single!(Buf, First, FrozenBuf, SharedRange, Part);

/// Entries that a request may write into.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be received into",
    label = "not memory that a request may write",
    note = "the entries of a list to receive, READ or do atomics into are `Buf`s, `First`s and `SharedRange`s: nothing that is frozen, inline, or not registered"
)]
pub trait Writable: Owned {}
impl Writable for Buf {}
impl Writable for First {}
impl Writable for SharedRange {}

impl ScatterList for Buf {}
impl ScatterList for First {}
impl ScatterList for SharedRange {}

impl<E: Owned<Rest = ()>, const N: usize> List for [E; N] {
    type Shell = ();
    fn describe(&self, entries: &mut Entries<'_>) {
        self.iter().for_each(|e| e.add_to(entries));
    }
    fn store(self, slot: &mut Filling<'_, '_>) {
        self.into_iter().for_each(|e| e.store(slot));
    }
    fn restore((): (), slot: &mut Emptying<'_>) -> Self {
        std::array::from_fn(|_| E::restore((), slot))
    }
    fn give(self, sink: &mut dyn FnMut(Part)) {
        self.into_iter().for_each(|e| e.give(sink));
    }
}
impl<E: Owned<Rest = ()>, const N: usize> GatherList for [E; N] {
    type Back = Self;
    fn back(self) -> Self {
        self
    }
}
impl<E: Writable<Rest = ()>, const N: usize> ScatterList for [E; N] {}

impl<E: Owned<Rest = ()>> List for Vec<E> {
    type Shell = Self;
    fn describe(&self, entries: &mut Entries<'_>) {
        self.iter().for_each(|e| e.add_to(entries));
    }
    fn store(mut self, slot: &mut Filling<'_, '_>) -> Self {
        self.drain(..).for_each(|e| e.store(slot));
        self
    }
    fn restore(mut shell: Self, slot: &mut Emptying<'_>) -> Self {
        shell.extend(slot.map(|part| E::from_part(part, ())));
        shell
    }
    fn give(self, sink: &mut dyn FnMut(Part)) {
        self.into_iter().for_each(|e| e.give(sink));
    }
}
impl<E: Owned<Rest = ()>> GatherList for Vec<E> {
    type Back = Self;
    fn back(self) -> Self {
        self
    }
}
impl<E: Writable<Rest = ()>> ScatterList for Vec<E> {}

macro_rules! tuples {
    ($($($t:ident)+;)*) => {$(
        #[allow(non_snake_case)]
        impl<$($t: Entry),+> List for ($($t,)+) {
            const HAS_INLINE: bool = $($t::IS_INLINE)||+;
            type Shell = ($($t::Shell,)+);
            fn describe(&self, entries: &mut Entries<'_>) {
                let ($($t,)+) = self;
                $($t.add_to(entries);)+
            }
            fn store(self, slot: &mut Filling<'_, '_>) -> Self::Shell {
                let ($($t,)+) = self;
                ($($t.store(slot),)+)
            }
            fn restore(shell: Self::Shell, slot: &mut Emptying<'_>) -> Self {
                let ($($t,)+) = shell;
                ($(<$t>::restore($t, slot),)+)
            }
            fn give(self, sink: &mut dyn FnMut(Part)) {
                let ($($t,)+) = self;
                $($t.give(sink);)+
            }
        }
        #[allow(non_snake_case)]
        impl<$($t: Entry),+> GatherList for ($($t,)+) {
            type Back = ($($t::Back,)+);
            fn back(self) -> Self::Back {
                let ($($t,)+) = self;
                ($($t.back(),)+)
            }
        }
        impl<$($t: Writable),+> ScatterList for ($($t,)+) {}
    )*};
}
tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}

impl List for () {
    type Shell = ();
    fn describe(&self, _: &mut Entries<'_>) {}
    fn store(self, _: &mut Filling<'_, '_>) {}
    fn restore((): (), _: &mut Emptying<'_>) {}
    fn give(self, _: &mut dyn FnMut(Part)) {}
}
impl GatherList for () {
    type Back = ();
    fn back(self) {}
}
impl ScatterList for () {}

impl List for Inline<'_> {
    type Shell = Self;
    #[inline(always)]
    fn describe(&self, entries: &mut Entries<'_>) {
        entries.len += self.0.len() as u64;
    }
    #[inline(always)]
    fn store(self, _: &mut Filling<'_, '_>) -> Self {
        self
    }
    fn restore(shell: Self, _: &mut Emptying<'_>) -> Self {
        shell
    }
    fn give(self, _: &mut dyn FnMut(Part)) {}
    #[inline(always)]
    fn inline(shell: &Self) -> Option<&[u8]> {
        shell.bytes()
    }
    #[inline(always)]
    fn bytes(&self) -> Option<&[u8]> {
        Some(self.0)
    }
}
impl GatherList for Inline<'_> {
    type Back = ();
    fn back(self) {}
}
