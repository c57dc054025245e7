//! Processes whose links the program connects itself: for a simulation, whose time stands still within a call, so that
//! nothing in it may wait.

use hca_am::{Bundle, EndpointName, HalfLink, Options, Way};
use hca_verbs::{Context, Endpoint};

use crate::process::{LANDING, TAG};
use crate::{Error, Joining, Process, Spread};

impl Joining {
    /// A process of two, with this name, whose links are made by hand.
    ///
    /// # Errors
    /// The device's limits.
    #[doc(hidden)]
    pub fn open_by_hand(
        context: &Context,
        way: Way,
        name: EndpointName,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut bundle = Bundle::open_by_hand(context, way, options)?;
        let ep = bundle.endpoint_by_hand(name, 2 * LANDING)?;
        Self::new(bundle, ep)
    }
    /// One side of a link, and its queue pair. `accepts`: requests come over it.
    ///
    /// # Errors
    /// The device's limits.
    #[doc(hidden)]
    pub fn half_link(&mut self, accepts: bool) -> Result<(HalfLink, Endpoint), Error> {
        Ok(self.bundle.half_link(accepts)?)
    }
    /// Connects a side. `maps`: the rank and the name of the peer, on the side that sends requests.
    ///
    /// # Errors
    /// The device refuses.
    #[doc(hidden)]
    pub fn connect_by_hand(
        &mut self,
        half: HalfLink,
        remote: &Endpoint,
        maps: Option<(usize, EndpointName)>,
    ) -> Result<(), Error> {
        let maps = maps.map(|(rank, name)| (rank, name, TAG));
        Ok(self.bundle.join(half, self.ep, remote, maps)?)
    }
    /// Joins as the process with this rank, without a barrier.
    #[doc(hidden)]
    pub fn join_by_hand(self, rank: usize, size: usize) -> Process {
        self.process(rank, size)
    }
}

impl Process {
    /// An array of one element of each process, on which the processes do not agree by messages.
    #[doc(hidden)]
    pub fn word_by_hand(&self) -> Spread<u64> {
        Spread::new(LANDING as u64, 1, self.size())
    }
    /// Whether the hello of a process has come, before which a request waits.
    #[doc(hidden)]
    pub fn is_met(&self, rank: usize) -> bool {
        self.bundle.limits(self.ep, rank).is_ok()
    }
}
