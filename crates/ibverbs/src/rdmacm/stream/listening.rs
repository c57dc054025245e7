//! Sockets that listen: a thread for each device takes requests, and the connections wait for `raccept`.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use hca::cm::Listener;
use hca::verbs::Context;

use super::{Counted, LINGER, LISTEN_LOOK, Lane, Phase, Socket, State, verbs};
use crate::entry::{Errno, INVALID};

impl Socket {
    /// Starts a thread with a listener, which holds the socket's port until the thread ends.
    pub(super) fn listening<L: Send + 'static>(
        self: &Arc<Self>,
        name: &str,
        listener: L,
        run: impl FnOnce(&Arc<Self>, &L) + Send + 'static,
    ) -> Result<(), Errno> {
        self.state().listening += 1;
        let counted = Counted(Arc::clone(self), State::listener_ended);
        self.thread(name, move |socket| {
            // The port is free before that is told.
            let (_counted, listener) = (counted, listener);
            run(socket, &listener);
        })
    }
    /// Listens at the local address on each of its devices.
    pub(in super::super) fn listen(self: &Arc<Self>, backlog: usize) -> Result<(), Errno> {
        if self.is_datagram() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let _choosing = self.choosing()?;
        match self.state().phase {
            Phase::New => {}
            // Programs listen a second time for another length of the queue, which has no effect.
            Phase::Listening => return Ok(()),
            _ => return Err(INVALID),
        }
        if self.state().bound.is_empty() {
            self.bind_to(([0, 0, 0, 0], 0).into())?;
        }
        let backlog = backlog.clamp(1, 4096);
        self.state().backlog = backlog;
        let bound = self.state().bound.clone();
        self.change(|state| state.phase = Phase::Listening);
        let served = bound.into_iter().try_for_each(|(device, service)| {
            let context = verbs(&device)?;
            let listener = device.agent.listener(service, backlog)?;
            self.listening("hca-rlisten", listener, move |socket, listener| socket.serve(&context, listener))
        });
        // Nobody is to be served by some of the devices.
        served.inspect_err(|_| self.listen_no_more())
    }
    /// Ends the listening on all devices, and the connections that nobody takes any more.
    pub(super) fn listen_no_more(&self) {
        self.change(|state| (state.phase, state.backlog) = (Phase::New, 0));
        self.wait_until(Instant::now() + LINGER, |state| state.listening == 0);
        let waiting = std::mem::take(&mut self.state().accepted);
        waiting.into_iter().for_each(Self::end);
    }
    /// Takes requests until the socket is closed.
    fn serve(self: &Arc<Self>, context: &Context, listener: &Listener) {
        while self.has_room_for_another() {
            let Ok(incoming) = listener.accept_within(Some(LISTEN_LOOK)) else { break };
            let Some(incoming) = incoming else { continue };
            let (Ok(socket), Ok(lane)) = (Self::new(), Lane::new(context)) else { continue };
            {
                let is_v6 = self.state().is_v6;
                let mut state = socket.state();
                state.is_v6 = is_v6;
                state.phase = Phase::Connecting;
                state.local = Some(listener.address());
                state.peer = Some(incoming.source());
            }
            self.state().making += 1;
            let making = Counted(Arc::clone(self), |state| state.making -= 1);
            let _ = socket.thread("hca-rsocket", move |socket| {
                if let Ok(connection) = incoming.accept(&lane.qp, &[]) {
                    socket.run(lane, connection, Some(making));
                }
            });
        }
    }
    /// Waits until fewer connections wait for `raccept` than the program wants. `false`: the socket listens no more.
    fn has_room_for_another(&self) -> bool {
        loop {
            let state = self.state();
            let listens = !state.closing && state.phase == Phase::Listening;
            if !listens || state.making + state.accepted.len() < state.backlog {
                return listens;
            }
            let seen = self.changes.count();
            drop(state);
            self.changes.wait(seen, LISTEN_LOOK);
        }
    }
    /// Has a connection wait for `raccept`. Not behind the end of the listening socket, which nobody would accept it from.
    pub(super) fn offer(&self, connection: &Arc<Self>) -> bool {
        let mut state = self.state();
        let listens = !state.closing && state.phase == Phase::Listening;
        if listens {
            state.accepted.push_back(Arc::clone(connection));
        }
        drop(state);
        self.tell();
        listens
    }
    /// Takes the connection that has waited longest, and gives it to the program. Without a number for it, as where the
    /// process has no descriptor left, it waits on.
    pub(in super::super) async fn accept(&self) -> Result<(c_int, Arc<Self>), Errno> {
        let accepted = self.until(true, |state| match state.phase {
            // A socket that has listened gives its connections away first, and then tells its error.
            Phase::Listening | Phase::Failed(_) if state.backlog > 0 => {
                let given = state.accepted.front()?.give();
                Some(given.and_then(|number| Ok((number, state.accepted.pop_front().ok_or(INVALID)?))))
            }
            _ if state.datagrams.is_some() => Some(Err(Errno(libc::EOPNOTSUPP))),
            _ => Some(Err(Errno(libc::EINVAL))),
        });
        // There is room for another one.
        accepted.await.inspect(|_| self.changes.tell())
    }
}

impl State {
    /// A thread with a listener has ended. Where that was the last one of a socket that goes on, the devices have failed.
    fn listener_ended(&mut self) {
        self.listening -= 1;
        if self.listening == 0 && self.phase == Phase::Listening && !self.closing {
            self.phase = Phase::Failed(Errno(libc::EIO));
        }
    }
}
