//! Processes of a job: their memory, and accesses to the memory of others.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use hca_am::{Bundle, EndpointId, EndpointName, EventMask, Options, Segment, Source, Tag, Way};
use hca_job::Job;
use hca_verbs::Context;

use crate::state::{BYE, CALL, READ, STORE, STORED, State, WRITE, handlers, lock, words};
use crate::{Error, GlobalPtr, Spread};

/// Bytes at the beginning of each process's memory, into which bulk reads come.
pub(crate) const LANDING: usize = 1 << 18;
pub(crate) const TAG: Tag = Tag(0x51c);
/// Polls without success before a process sleeps, and polls of any kind before it looks whether the others are there.
const LOOKS: u32 = 2000;
/// The longest sleep.
const NAP: Duration = Duration::from_millis(2);
/// The most bytes of an element, and of a part of a collective's message.
pub(crate) const ELEMENT: usize = 4096;
/// How long the last messages may take.
const FAREWELL: Duration = Duration::from_secs(20);

/// A process that has memory, and does not know the others yet.
pub struct Joining {
    pub(crate) bundle: Bundle,
    pub(crate) ep: EndpointId,
    memory: Segment,
    state: Arc<Mutex<State>>,
}

/// A process of a job, with its part of the global memory.
pub struct Process {
    pub(crate) bundle: Bundle,
    pub(crate) ep: EndpointId,
    pub(crate) state: Arc<Mutex<State>>,
    memory: Segment,
    /// The first byte that no array has.
    free: usize,
    rank: usize,
    size: usize,
    /// Reads, writes and calls that were begun.
    begun: u64,
    /// Processes with writes in bulk that a sync waits for.
    written: Vec<usize>,
    next: u32,
    /// Bytes that stores have brought, and the program has waited for.
    stored: u64,
    /// The number of barriers and of other collectives.
    pub(crate) epoch: u32,
    pub(crate) collective: u32,
}

/// The polls of a wait, and those of them without success in a row.
#[derive(Default)]
struct Pause {
    polls: u32,
    idle: u32,
}

/// The step behind a poll.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Poll,
    /// A look whether the others are there.
    Look,
    /// A short sleep, and such a look.
    Nap,
}

impl Pause {
    /// Behind a poll that has handled so many messages.
    fn behind(&mut self, handled: usize) -> Next {
        self.polls = self.polls.wrapping_add(1);
        self.idle = if handled > 0 { 0 } else { self.idle + 1 };
        if self.idle >= LOOKS {
            Next::Nap
        } else if self.polls.is_multiple_of(LOOKS) {
            Next::Look
        } else {
            Next::Poll
        }
    }
}

/// A value that a [`get`](Process::get) fetches.
#[derive(Debug)]
#[must_use = "the value is taken by `take`, behind a sync"]
pub struct Get<T> {
    number: u32,
    of: std::marker::PhantomData<fn() -> T>,
}

/// A procedure that [`Process::call`] runs at another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcedureId(u32);

impl Joining {
    /// A process with so many bytes of global memory, on a device.
    ///
    /// # Errors
    /// The device's limits.
    pub fn open(context: &Context, way: Way, bytes: usize, size: usize) -> Result<Self, Error> {
        Self::open_with(context, way, bytes, size, &Options::default())
    }
    /// As [`open`](Self::open), with other credits and times of Active Messages: how long the processes wait for each
    /// other, and when a silent one is lost. The links and translations are always those that so many processes need.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        context: &Context,
        way: Way,
        bytes: usize,
        size: usize,
        options: &Options,
    ) -> Result<Self, Error> {
        let options = Options { max_links: 2 * size.max(1), translations: size, ..*options };
        let mut bundle = Bundle::open_with(context, way, &options)?;
        let ep = bundle.endpoint()?;
        let most = hca_am::Error::Limit { what: "bytes of global memory", max: isize::MAX as usize };
        let bytes = bytes.checked_next_multiple_of(64).and_then(|bytes| bytes.checked_add(LANDING));
        bundle.set_segment(ep, bytes.ok_or(most)?)?;
        Self::new(bundle, ep)
    }
    /// A process whose memory is the segment of an endpoint.
    pub(crate) fn new(mut bundle: Bundle, ep: EndpointId) -> Result<Self, Error> {
        bundle.set_tag(ep, TAG)?;
        bundle.set_event_mask(ep, EventMask::NotEmpty)?;
        let memory = bundle.segment(ep)?.ok_or(hca_am::Error::Endpoint)?;
        let state = Arc::<Mutex<State>>::default();
        handlers(&mut bundle, ep, &state)?;
        Ok(Self { bundle, ep, memory, state })
    }
    /// The name that the other processes have to know.
    ///
    /// # Errors
    /// None, as long as the process is there.
    pub fn name(&self) -> Result<EndpointName, Error> {
        Ok(self.bundle.name(self.ep)?)
    }
    /// Joins the processes with these names, its own included, as the one with that rank. Waits for all.
    ///
    /// # Errors
    /// A process is not there, or the rank is none.
    pub fn join(self, rank: usize, names: &[EndpointName]) -> Result<Process, Error> {
        let size = names.len();
        if rank >= size {
            return Err(Error::Rank { rank, size });
        }
        let mut process = self.process(rank, size);
        for (index, name) in names.iter().enumerate() {
            process.bundle.map(process.ep, index, name, TAG)?;
        }
        process.barrier()?;
        Ok(process)
    }
    pub(crate) fn process(self, rank: usize, size: usize) -> Process {
        let Self { bundle, ep, memory, state } = self;
        lock(&state).left = vec![false; size];
        Process {
            bundle,
            ep,
            state,
            memory,
            free: LANDING,
            rank,
            size,
            begun: 0,
            written: Vec::new(),
            next: 0,
            stored: 0,
            epoch: 0,
            collective: 0,
        }
    }
}

impl Process {
    /// Joins the processes of a job, each with so many bytes of global memory.
    ///
    /// # Errors
    /// The job, the device's limits, or a process that is not there.
    pub fn start(job: &Job, context: &Context, way: Way, bytes: usize) -> Result<Self, Error> {
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let joining = Joining::open(context, way, bytes, size)?;
        job.publish(joining.name()?.to_string().as_bytes())?;
        job.fence()?;
        let names: Result<Vec<EndpointName>, Error> =
            (0..job.size()).map(|rank| Ok(String::from_utf8_lossy(&job.card(rank)?).parse()?)).collect();
        joining.join(rank, &names?)
    }
    /// The rank of this process: `MYPROC`.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// The number of processes: `PROCS`.
    pub fn size(&self) -> usize {
        self.size
    }
    /// An array of which each process has `len` zeroed elements. All processes call it, in the same order.
    ///
    /// # Errors
    /// There is no room, the array is empty, or another process asks for another size, or has no room.
    pub fn spread<T: Pod>(&mut self, len: usize) -> Result<Spread<T>, Error> {
        let (asked, left) = (len.saturating_mul(size_of::<T>()), self.memory.len() - self.free);
        let room = asked.checked_next_multiple_of(64).filter(|room| asked > 0 && *room <= left);
        let offset = self.free;
        let Some(room) = room else {
            // The others wait for this process, and learn that it has none.
            let none = self.agree(u64::MAX);
            return Err(match none {
                Ok(()) | Err(Error::Mismatch { .. }) => Error::Room { asked, left },
                Err(error) => error,
            });
        };
        self.agree((offset as u64) << 32 ^ asked as u64)?;
        self.free += room;
        Ok(Spread::new(offset as u64, len, self.size))
    }

    /// Copies the elements from `first` on of this process's part.
    ///
    /// # Errors
    /// They do not lie in the array.
    pub fn load<T: Pod>(&self, array: &Spread<T>, first: usize, count: usize) -> Result<Vec<T>, Error> {
        array.check(first, count)?;
        let mut out = vec![T::zeroed(); count];
        self.memory
            .read_at(array.offset as usize + first * size_of::<T>(), bytemuck::cast_slice_mut(&mut out));
        Ok(out)
    }
    /// Copies into the elements from `first` on of this process's part.
    ///
    /// # Errors
    /// They do not lie in the array.
    pub fn save<T: Pod>(&self, array: &Spread<T>, first: usize, elements: &[T]) -> Result<(), Error> {
        array.check(first, elements.len())?;
        self.memory.write_at(array.offset as usize + first * size_of::<T>(), bytemuck::cast_slice(elements));
        Ok(())
    }

    /// Reads an element of a process, by RDMA: the program of that process has no part in it.
    ///
    /// # Errors
    /// The process that has it is gone, or the element is longer than 4096 bytes.
    #[inline]
    pub fn read<T: Pod>(&mut self, from: GlobalPtr<T>) -> Result<T, Error> {
        self.fetch(from.rank(), from.offset, 0..element::<T>()?)?;
        let mut value = T::zeroed();
        self.memory.read_at(0, bytemuck::bytes_of_mut(&mut value));
        Ok(value)
    }
    /// Writes an element of a process by RDMA, and waits until it is there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn write<T: Pod>(&mut self, to: GlobalPtr<T>, value: T) -> Result<(), Error> {
        let rank = to.rank();
        element::<T>()?;
        self.settle_requests(rank)?;
        let written = self.bundle.write(self.ep, rank, bytemuck::bytes_of(&value), to.offset);
        let written = written.and_then(|()| self.bundle.sync(self.ep, rank));
        written.map_err(|error| self.failure(rank, error))
    }
    /// Waits until a process has handled all requests, so that an access by RDMA comes behind them.
    #[inline]
    fn settle_requests(&mut self, rank: usize) -> Result<(), Error> {
        let mut pause = Pause::default();
        while self.bundle.outstanding(self.ep, rank)? > 0 {
            self.step(&mut pause)?;
        }
        Ok(())
    }
    /// Begins to read an element: `:=` of Split-C. A [`sync`](Self::sync) waits for it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn get<T: Pod>(&mut self, from: GlobalPtr<T>) -> Result<Get<T>, Error> {
        let len = element::<T>()?;
        let [low, high] = words(from.offset);
        let number = self.number();
        self.request(from.rank(), READ, &[low, high, len as u32, number])?;
        self.begun += 1;
        Ok(Get { number, of: std::marker::PhantomData })
    }
    /// Takes the value of a get.
    ///
    /// # Errors
    /// The value has not come: a sync waits for it. Or what has come is no such value.
    pub fn take<T: Pod>(&mut self, got: Get<T>) -> Result<T, Error> {
        let bytes = lock(&self.state).values.remove(&got.number);
        let bytes = bytes.filter(|bytes| bytes.len() == size_of::<T>()).ok_or(Error::NotSynced)?;
        let mut value = T::zeroed();
        bytemuck::bytes_of_mut(&mut value).copy_from_slice(&bytes);
        Ok(value)
    }
    /// Begins to write an element. A [`sync`](Self::sync) waits until it is there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn put<T: Pod>(&mut self, to: GlobalPtr<T>, value: T) -> Result<(), Error> {
        self.send(to, WRITE, value)?;
        self.begun += 1;
        Ok(())
    }
    /// Writes an element without an answer: `:-` of Split-C. The process that has it waits by
    /// [`store_sync`](Self::store_sync), or all wait by [`all_store_sync`](Self::all_store_sync).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn store<T: Pod>(&mut self, to: GlobalPtr<T>, value: T) -> Result<(), Error> {
        self.send(to, STORE, value)
    }
    fn send<T: Pod>(&mut self, to: GlobalPtr<T>, handler: u16, value: T) -> Result<(), Error> {
        let len = element::<T>()?;
        let [low, high] = words(to.offset);
        let sent = self.bundle.request_medium(
            self.ep,
            to.rank(),
            handler,
            &[low, high, len as u32],
            bytemuck::bytes_of(&value),
        );
        sent.map_err(|error| self.failure(to.rank(), error))
    }
    /// The gets, puts and calls that have not ended, as far as polls have seen: [`poll`](Self::poll) brings their ends.
    pub fn outstanding(&self) -> u64 {
        // A peer that answers what asks for no answer is none of this library.
        self.begun.saturating_sub(lock(&self.state).ended)
    }
    /// Waits until all gets, puts and bulk puts of this process have ended.
    ///
    /// # Errors
    /// A process is gone.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.settle_writes()?;
        let begun = self.begun;
        self.until(|state| (state.ended >= begun).then_some(()))
    }
    /// Waits until what was written in bulk is there.
    fn settle_writes(&mut self) -> Result<(), Error> {
        while let Some(rank) = self.written.pop() {
            self.bundle.sync(self.ep, rank).map_err(|error| self.failure(rank, error))?;
        }
        Ok(())
    }
    /// Waits until stores have brought so many bytes more to this process.
    ///
    /// # Errors
    /// A process is gone.
    pub fn store_sync(&mut self, bytes: usize) -> Result<(), Error> {
        let wanted = self.stored + bytes as u64;
        self.until(|state| (state.stored >= wanted).then_some(()))?;
        self.stored = wanted;
        Ok(())
    }
    /// Waits until all stores of all processes have arrived. All processes call it.
    ///
    /// # Errors
    /// A process is gone.
    pub fn all_store_sync(&mut self) -> Result<(), Error> {
        // A request without a reply is acknowledged once its handler has run.
        for rank in 0..self.size {
            self.settle_requests(rank)?;
        }
        self.barrier()?;
        self.stored = lock(&self.state).stored;
        // So that no store of the next phase is counted to this one.
        self.barrier()
    }

    /// Reads elements in bulk, by RDMA.
    ///
    /// # Errors
    /// The process that has them is gone, or they do not lie in the array.
    pub fn read_bulk<T: Pod>(
        &mut self,
        array: &Spread<T>,
        rank: usize,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Error> {
        let from = array.part(rank, first, out.len())?;
        for (i, piece) in bytemuck::cast_slice_mut::<T, u8>(out).chunks_mut(LANDING).enumerate() {
            self.fetch(rank, from.offset + (i * LANDING) as u64, 0..piece.len())?;
            self.memory.read_at(0, piece);
        }
        Ok(())
    }
    /// Reads as many elements of a process, from `first` on, as go into the elements from `at` on of this process's own
    /// part of an array: by RDMA, without a copy.
    ///
    /// # Errors
    /// As [`read_bulk`](Self::read_bulk).
    pub fn read_part<T: Pod>(
        &mut self,
        array: &Spread<T>,
        rank: usize,
        first: usize,
        into: &Spread<T>,
        at: usize,
        count: usize,
    ) -> Result<(), Error> {
        let (from, range) = (array.part(rank, first, count)?, own(into, at, count)?);
        self.fetch(rank, from.offset, range)
    }
    /// Begins to write `count` elements of this process's own part of an array, from `at` on, to the elements of a
    /// process from `first` on: by RDMA, without a copy. A [`sync`](Self::sync) waits until they are there; until then
    /// they stay as they are.
    ///
    /// # Errors
    /// As [`read_bulk`](Self::read_bulk).
    pub fn put_part<T: Pod>(
        &mut self,
        array: &Spread<T>,
        rank: usize,
        first: usize,
        from: &Spread<T>,
        at: usize,
        count: usize,
    ) -> Result<(), Error> {
        let (to, range) = (array.part(rank, first, count)?, own(from, at, count)?);
        let memory = self.memory.clone();
        self.put_from(rank, Source::Segment(&memory, range), to.offset)
    }
    /// Reads bytes of a process into a range of this process's memory.
    #[inline]
    fn fetch(&mut self, rank: usize, offset: u64, range: Range<usize>) -> Result<(), Error> {
        self.settle_requests(rank)?;
        let read = self.bundle.read(self.ep, rank, offset, &self.memory, range);
        let read = read.and_then(|()| self.bundle.sync(self.ep, rank));
        read.map_err(|error| self.failure(rank, error))
    }
    fn put_from(&mut self, rank: usize, source: Source<'_>, offset: u64) -> Result<(), Error> {
        self.settle_requests(rank)?;
        let written = self.bundle.write(self.ep, rank, source, offset);
        written.map_err(|error| self.failure(rank, error))?;
        if !self.written.contains(&rank) {
            self.written.push(rank);
        }
        Ok(())
    }
    /// Writes elements in bulk, and waits until they are there.
    ///
    /// # Errors
    /// As [`read_bulk`](Self::read_bulk).
    pub fn write_bulk<T: Pod>(
        &mut self,
        array: &Spread<T>,
        rank: usize,
        first: usize,
        elements: &[T],
    ) -> Result<(), Error> {
        self.put_bulk(array, rank, first, elements)?;
        self.sync()
    }
    /// Begins to write elements in bulk. A [`sync`](Self::sync) waits until they are there.
    ///
    /// # Errors
    /// As [`read_bulk`](Self::read_bulk).
    pub fn put_bulk<T: Pod>(
        &mut self,
        array: &Spread<T>,
        rank: usize,
        first: usize,
        elements: &[T],
    ) -> Result<(), Error> {
        let to = array.part(rank, first, elements.len())?;
        self.put_from(rank, Source::Bytes(bytemuck::cast_slice(elements)), to.offset)
    }
    /// Writes elements in bulk without an answer, as [`store`](Self::store) does.
    ///
    /// # Errors
    /// As [`read_bulk`](Self::read_bulk).
    pub fn store_bulk<T: Pod>(
        &mut self,
        array: &Spread<T>,
        rank: usize,
        first: usize,
        elements: &[T],
    ) -> Result<(), Error> {
        let to = array.part(rank, first, elements.len())?;
        let source = Source::Bytes(bytemuck::cast_slice(elements));
        let sent = self.bundle.request_bulk(self.ep, rank, STORED, &[], source, to.offset);
        sent.map_err(|error| self.failure(rank, error))
    }

    /// Gives a procedure a number, by which other processes call it. All processes do it, in the same order. It runs
    /// within the polls of this process, alone.
    pub fn register(
        &mut self,
        procedure: impl FnMut(&Memory<'_>, &[u64]) -> u64 + Send + 'static,
    ) -> ProcedureId {
        let mut procedure = procedure;
        let mut state = lock(&self.state);
        state.procedures.push(Box::new(move |segment, args| procedure(&Memory(segment), args)));
        ProcedureId(state.procedures.len() as u32 - 1)
    }
    /// Runs a procedure at a process, alone, with up to 7 arguments: `atomic` of Split-C.
    ///
    /// # Errors
    /// The process is gone, it has not [registered](Self::register) the procedure or the procedure has panicked, or there
    /// are too many arguments.
    pub fn call(&mut self, rank: usize, procedure: ProcedureId, args: &[u64]) -> Result<u64, Error> {
        let number = self.number();
        let mut all = vec![number, procedure.0];
        all.extend(args.iter().flat_map(|&arg| words(arg)));
        self.request(rank, CALL, &all)?;
        self.begun += 1;
        self.sync()?;
        let bytes = lock(&self.state).values.remove(&number).ok_or(Error::NotSynced)?;
        // An answer without a value says so.
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Error::Procedure { rank })?))
    }

    /// Ends the process's part in the job: all processes call it, and none goes on before the others no longer need it.
    ///
    /// # Errors
    /// A process is gone before its time.
    pub fn finish(mut self) -> Result<(), Error> {
        self.settle_writes()?;
        self.barrier()?;
        let own = self.rank as u32;
        for rank in (0..self.size).filter(|&rank| rank != self.rank) {
            // One that has left needs no farewell.
            let _ = self.bundle.request(self.ep, rank, BYE, &[own]);
        }
        let (own, mut pause) = (self.rank, Pause::default());
        loop {
            let others = lock(&self.state).left.iter().enumerate().all(|(rank, left)| *left || rank == own);
            if others {
                break;
            }
            self.step(&mut pause)?;
        }
        let _ = self.bundle.flush(FAREWELL);
        Ok(())
    }

    /// Carries out what other processes have asked for, without waiting. Returns the number of messages. A process that
    /// computes for long calls it now and then, so that the others need not wait.
    ///
    /// # Errors
    /// The device can't go on.
    pub fn poll(&mut self) -> Result<usize, Error> {
        Ok(self.bundle.poll()?)
    }

    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
    pub(crate) fn request(&mut self, rank: usize, handler: u16, args: &[u32]) -> Result<(), Error> {
        let size = self.size;
        if rank >= size {
            return Err(Error::Rank { rank, size });
        }
        let sent = self.bundle.request(self.ep, rank, handler, args);
        sent.map_err(|error| self.failure(rank, error))
    }
    pub(crate) fn failure(&self, rank: usize, error: hca_am::Error) -> Error {
        match error {
            hca_am::Error::Unreachable => Error::Lost { rank },
            error => Error::Am(error),
        }
    }
    /// Polls until the state has something. A process that is gone ends it.
    pub(crate) fn until<T>(&mut self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        let mut pause = Pause::default();
        loop {
            if let Some(value) = ready(&mut lock(&self.state)) {
                return Ok(value);
            }
            self.step(&mut pause)?;
        }
    }
    /// One poll; after many without success, a short sleep. Messages of others keep no process from noticing whom it has
    /// lost.
    fn step(&mut self, pause: &mut Pause) -> Result<(), Error> {
        match pause.behind(self.bundle.poll()?) {
            Next::Poll => return Ok(()),
            Next::Nap => drop(self.bundle.wait(Some(NAP))?),
            Next::Look => {}
        }
        self.look_for_losses()
    }
    #[cold]
    fn look_for_losses(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if let Some(at) = state.back.iter().position(|(rank, ..)| !state.left[*rank]) {
            let (rank, reason, handler) = state.back[at];
            if reason == hca_am::Reason::Unreachable {
                return Err(Error::Lost { rank });
            }
            // It is told once, and has ended.
            state.back.remove(at);
            state.ended += u64::from([READ, WRITE, CALL].contains(&handler));
            return Err(Error::Returned { rank, reason });
        }
        for rank in (0..self.size).filter(|&rank| !state.left[rank]) {
            if !self.bundle.is_reachable(self.ep, rank)? {
                return Err(Error::Lost { rank });
            }
        }
        Ok(())
    }
}

/// The memory of a process, for a procedure that runs there.
#[derive(Debug)]
pub struct Memory<'a>(&'a Segment);

impl Memory<'_> {
    /// Copies the element `index` of this process's part.
    ///
    /// # Errors
    /// It does not lie in the array.
    pub fn load<T: Pod>(&self, array: &Spread<T>, index: usize) -> Result<T, Error> {
        array.check(index, 1)?;
        let mut value = T::zeroed();
        self.0.read_at(array.offset as usize + index * size_of::<T>(), bytemuck::bytes_of_mut(&mut value));
        Ok(value)
    }
    /// Copies into the element `index` of this process's part.
    ///
    /// # Errors
    /// It does not lie in the array.
    pub fn save<T: Pod>(&self, array: &Spread<T>, index: usize, value: T) -> Result<(), Error> {
        array.check(index, 1)?;
        self.0.write_at(array.offset as usize + index * size_of::<T>(), bytemuck::bytes_of(&value));
        Ok(())
    }
}

/// The bytes of this process's memory that elements of its own part of an array have.
fn own<T: Pod>(array: &Spread<T>, first: usize, count: usize) -> Result<Range<usize>, Error> {
    array.check(first, count)?;
    let begin = array.offset as usize + first * size_of::<T>();
    Ok(begin..begin + count * size_of::<T>())
}
fn element<T: Zeroable>() -> Result<usize, Error> {
    let len = size_of::<T>();
    if len <= ELEMENT { Ok(len) } else { Err(Error::Element { len }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_others_keep_no_process_from_looking_for_losses() {
        let mut pause = Pause::default();
        let looks = (0..10 * LOOKS).filter(|_| pause.behind(1) == Next::Look).count();
        assert_eq!(looks, 10);
        let mut pause = Pause::default();
        let naps = (0..LOOKS + 4).filter(|_| pause.behind(0) == Next::Nap).count();
        assert_eq!(naps, 5, "without any, each poll behind the first ones");
    }
}
