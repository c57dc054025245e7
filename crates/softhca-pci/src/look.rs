//! The data path: work requests to posts, completions to entries.
//!
//! Requests wait in the client's memory. A look at a queue pair's doorbell record tells how many there are; they are
//! read once, understood, and posted to the adapter's queue pair, with what is needed for the completion as their id.
//! The adapter is asked to report each of them, so that it is known which are under way; the client is told of those
//! that it wants to hear of. What ends in error, and all behind it, is reported always, in order.
//!
//! Receive requests have no doorbell, and a client may well post one just before it asks another one to send. So a look
//! has three steps, each of which all functions of a server take before the next one: which requests are announced is
//! noted, then receive requests are taken, then what was noted is carried out. What a noted request finds at its peer
//! was posted before that was asked for.

use hca_core::AsyncEvent;
use hca_prm::{CompEvent, CqError, Eqe, EventType, QpEvent};

use crate::function::Function;
use crate::objects::Raised;

impl Function {
    /// A completion queue was armed by a doorbell of this page: has armed ones make the events that are due.
    pub(crate) fn armed(&mut self, uar: u32, cqn: u32) {
        self.objects.look_at_arms(uar, cqn);
        self.post_raised();
    }

    /// Looks which requests were announced. Returns whether there were any.
    pub(crate) fn note_requests(&mut self) -> bool {
        self.objects.note_requests()
    }

    /// Takes receive requests. Returns whether there were any.
    pub fn look_at_places(&mut self) -> bool {
        let taken = self.objects.take_places(&self.guest);
        self.post_raised();
        taken
    }

    /// Runs the adapter, and shows its completions to the client. Returns whether there was work.
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
