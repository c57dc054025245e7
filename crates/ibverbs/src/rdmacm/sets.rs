//! Sets of sockets over RDMA and of other descriptors, which a program waits for as by `epoll`.
//!
//! A set's number is a descriptor of the kernel's `epoll`, which has the members that are the kernel's. The sockets are
//! in a list beside it, each with what the program was last told of.

use core::ffi::c_int;
use core::ops::Bound;
use core::sync::atomic::{AtomicI32, Ordering};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use hca_process::PerProcess;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::border::borrowed;
use super::changes::{Waiter, left_ms, tell_waiters};
use super::stream::Socket;
use crate::entry::{Errno, INVALID, In, cancellable, counted, exports, lock};
use crate::waiting::{poll, waiting};

/// Flags of a program's interest: the values of `enum EPOLL_EVENTS`.
const EDGE: u32 = 1 << 31;
const ONCE: u32 = 1 << 30;
/// Events that are told without being asked for.
const ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP) as u32;
/// The most events that one look at the kernel's members takes.
const MOST: usize = 256;

/// A socket of a set.
struct Member {
    socket: Weak<Socket>,
    events: u32,
    data: u64,
    /// The socket's version when its events were last told.
    told: Option<u32>,
}

impl Member {
    /// The event that is to be told, if there is one.
    fn event(&mut self) -> Option<libc::epoll_event> {
        let socket = self.socket.upgrade()?;
        // Before the events: a change between both is told the next time.
        let version = socket.version();
        let events = u32::from(socket.events() as u16) & (self.events & !(EDGE | ONCE) | ALWAYS);
        let is_spent = self.events & !(EDGE | ONCE) == 0;
        let is_old = self.events & EDGE != 0 && self.told == Some(version);
        if events == 0 || is_spent || is_old {
            return None;
        }
        self.told = Some(version);
        if self.events & ONCE != 0 {
            self.events = 0;
        }
        Some(libc::epoll_event { events, u64: self.data })
    }
}

struct Set {
    kernel: OwnedFd,
    members: Mutex<BTreeMap<c_int, Member>>,
    /// The socket that was told last: the next look begins behind it, so that each has its turn.
    last: AtomicI32,
}

static SETS: PerProcess<Mutex<BTreeMap<c_int, Arc<Set>>>> = PerProcess::new();

impl Set {
    fn of(number: c_int) -> Result<Arc<Self>, Errno> {
        lock(SETS.get()).get(&number).cloned().ok_or(Errno(libc::EBADF))
    }
    fn create(flags: c_int) -> Result<c_int, Errno> {
        let flags = CreateFlags::from_bits(flags as u32).ok_or(INVALID)?;
        let kernel = epoll::create(flags)?;
        let number = kernel.as_raw_fd();
        lock(SETS.get())
            .insert(number, Arc::new(Self { kernel, members: Mutex::default(), last: AtomicI32::new(-1) }));
        Ok(number)
    }
    fn change(&self, operation: c_int, number: c_int, event: In<libc::epoll_event>) -> Result<(), Errno> {
        let asked = || event.get().map(|event| (event.events, event.u64)).map_err(|_| Errno(libc::EFAULT));
        let Some(socket) = Socket::find(number) else {
            let source = borrowed(number)?;
            let with = |(events, data)| (EventData::new_u64(data), EventFlags::from_bits_retain(events));
            match operation {
                libc::EPOLL_CTL_ADD => asked()
                    .map(with)
                    .and_then(|(data, flags)| Ok(epoll::add(&self.kernel, source, data, flags)?))?,
                libc::EPOLL_CTL_MOD => asked()
                    .map(with)
                    .and_then(|(data, flags)| Ok(epoll::modify(&self.kernel, source, data, flags)?))?,
                libc::EPOLL_CTL_DEL => epoll::delete(&self.kernel, source)?,
                _ => return Err(INVALID),
            }
            return Ok(());
        };
        let mut members = lock(&self.members);
        // One whose number another socket has now is a member no more.
        let is_same = |member: &Member| Weak::ptr_eq(&member.socket, &Arc::downgrade(&socket));
        let is_member = members.get(&number).is_some_and(is_same);
        match operation {
            libc::EPOLL_CTL_ADD if is_member => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !is_member => return Err(Errno(libc::ENOENT)),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let (events, data) = asked()?;
                let socket = Arc::downgrade(&socket);
                members.insert(number, Member { socket, events, data, told: None });
            }
            libc::EPOLL_CTL_DEL => _ = members.remove(&number),
            _ => return Err(INVALID),
        }
        drop(members);
        // Calls that wait look again.
        tell_waiters();
        Ok(())
    }
    /// The events of the sockets, of at most `room`.
    fn sockets(&self, room: usize) -> Vec<libc::epoll_event> {
        let mut found = Vec::new();
        let is_open = |number: c_int, member: &Member| {
            Socket::find(number).is_some_and(|socket| Weak::ptr_eq(&member.socket, &Arc::downgrade(&socket)))
        };
        let mut members = lock(&self.members);
        members.retain(|number, member| is_open(*number, member));
        let last = self.last.load(Ordering::Relaxed);
        let turns = [(Bound::Excluded(last), Bound::Unbounded), (Bound::Unbounded, Bound::Included(last))];
        for turn in turns {
            for (number, member) in members.range_mut(turn) {
                if found.len() == room {
                    return found;
                }
                let Some(event) = member.event() else { continue };
                self.last.store(*number, Ordering::Relaxed);
                found.push(event);
            }
        }
        found
    }
    /// The events of all members, of at most `room`.
    fn look(&self, room: usize) -> Result<Vec<libc::epoll_event>, Errno> {
        let mut found = self.sockets(room);
        let rest = (room - found.len()).min(MOST);
        if rest > 0 {
            let mut events = Vec::with_capacity(rest);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&self.kernel, rustix::buffer::spare_capacity(&mut events), Some(&now))?;
            found.extend(events.into_iter().map(|event: epoll::Event| {
                let epoll::Event { flags, data } = event;
                libc::epoll_event { events: flags.bits(), u64: data.u64() }
            }));
        }
        Ok(found)
    }
    /// Waits until a member has an event; for ever with a negative time.
    async fn wait(&self, room: usize, timeout_ms: c_int) -> Result<Vec<libc::epoll_event>, Errno> {
        let end =
            u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + std::time::Duration::from_millis(ms));
        let waiter = Waiter::new()?;
        loop {
            waiter.clear();
            let found = self.look(room)?;
            let left = left_ms(end);
            if !found.is_empty() || left == 0 {
                return Ok(found);
            }
            let readable = |fd: c_int| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [readable(self.kernel.as_fd().as_raw_fd()), readable(waiter.0.as_raw_fd())];
            poll(&mut fds, left).await?;
        }
    }
}

/// Ends the set of a number. Returns whether there was one.
pub(super) fn close(number: c_int) -> bool {
    lock(SETS.get()).remove(&number).is_some()
}

/// `repoll_wait`
async fn wait(
    set: c_int,
    events: In<libc::epoll_event>,
    room: c_int,
    timeout_ms: c_int,
) -> Result<isize, Errno> {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(INVALID)?;
    if events.raw().is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let found = Set::of(set)?.wait(room, timeout_ms).await?;
    for (i, event) in found.iter().enumerate() {
        events.set_at(i, room, *event)?;
    }
    Ok(found.len() as isize)
}

exports! {
    "RDMACM_1.5" fn repoll_create(flags: c_int) -> c_int {
        counted(|| Set::create(flags))
    }
    "RDMACM_1.5" fn repoll_ctl(set: c_int, operation: c_int, number: c_int, event: In<libc::epoll_event>) -> c_int {
        counted(|| Set::of(set)?.change(operation, number, event).map(|()| 0))
    }
}
cancellable! {
    "RDMACM_1.5" fn repoll_wait(set: c_int, events: In<libc::epoll_event>, room: c_int, timeout_ms: c_int) -> c_int {
        waiting(|| wait(set, events, room, timeout_ms)) as c_int
    }
}
