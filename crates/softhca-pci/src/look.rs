//! The data path: the client's work requests become posts to the adapter, and the adapter's completions become entries
//! of the client's completion queues.
//!
//! Requests wait in the client's memory. A queue pair's doorbell record tells how many there are. The function reads
//! each request once, parses it, and posts it to the adapter's queue pair, with the data that its completion needs as
//! the id. Every post is signalled, so that the function knows which requests are outstanding; the client gets
//! completions for its signalled requests only. A request that ends in error, and all requests behind it, always
//! complete, in order.
//!
//! Receive requests have no doorbell, and a client may well post one just before it asks another one to send. So a look
//! has three steps: note the announced send requests, take receive requests, carry out the noted send requests. All
//! functions of a server take one step before any function takes the next one. So a noted send request finds every
//! receive request at its peer that was posted before the send request was announced.

use hca_core::AsyncEvent;
use hca_prm::{CompEvent, CqError, Eqe, EventType, QpEvent};

use crate::function::Function;
use crate::objects::Raised;

impl Function {
    /// A completion queue was armed by a doorbell of this page, whose word may be known: has armed ones make the events
    /// that are due.
    pub(crate) fn armed(&mut self, uar: u32, cqn: u32, word: Option<u32>) {
        self.objects.look_at_arms(uar, cqn, word);
        self.post_raised();
    }

    /// Looks which requests were announced. Returns whether there were any.
    pub(crate) fn note_requests(&mut self) -> bool {
        self.objects.note_requests()
    }

    /// Takes new receive requests from the client's queues. Returns whether there were any.
    pub fn look_at_places(&mut self) -> bool {
        let taken = self.objects.take_places(&self.guest);
        self.post_raised();
        taken
    }

    /// Runs the adapter, and writes its completions to the client's completion queues. Returns whether there was work.
    pub fn carry_out(&mut self) -> bool {
        let mut directory = self.directory.lock();
        let taken = self.objects.take_requests(&self.guest, &mut directory, &self.resources);
        let completed = self.objects.take_completions(&directory);
        drop(directory);
        self.post_raised();
        taken | completed | self.take_received()
    }

    /// Takes an event of the adapter's, if it is of an object of this function. Returns whether it was.
    pub(crate) fn take_event(&mut self, event: AsyncEvent) -> bool {
        let taken = self.objects.take_event(event);
        self.post_raised();
        taken
    }

    /// Puts what objects have raised into event queues.
    pub(crate) fn post_raised(&mut self) {
        while let Some(raised) = self.objects.take_raised() {
            match raised {
                Raised::Completion { eqn, cqn } => {
                    let data = CompEvent::new().with(CompEvent::CQ_NUMBER, cqn);
                    self.post_event(eqn, Eqe::of(EventType::Comp).with(Eqe::EVENT_DATA, *data.as_bytes()));
                }
                Raised::CqError { cqn, syndrome } => {
                    let data =
                        CqError::new().with(CqError::CQN, cqn).with(CqError::SYNDROME, syndrome.code());
                    let event = EventType::CqError;
                    self.raise(event, Eqe::of(event).with(Eqe::EVENT_DATA, *data.as_bytes()));
                }
                Raised::Queue { event, number } => {
                    let data = QpEvent::new().with(QpEvent::QPN_RQN_SQN, number);
                    self.raise(event, Eqe::of(event).with(Eqe::EVENT_DATA, *data.as_bytes()));
                }
            }
        }
    }
}
