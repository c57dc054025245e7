//! The acceptors of a bundle's endpoints, as both ways have them, by the places of the endpoints.

use std::sync::Arc;

use hca_verbs::Context;

use super::LinkId;
use super::acceptor::{Acceptor, Greeting, Home, Inbox, Stop, Target};
use crate::segment::Remote;
use crate::wire::Hello;
use crate::{EndpointId, Error};

/// Acceptors that build links `L` of the parts `M`, at listeners of the kind `W`.
pub(super) struct Acceptors<M, L, W> {
    context: Context,
    maker: Arc<M>,
    inbox: Arc<Inbox<L>>,
    table: Vec<Option<Accepting<M, L, W>>>,
}

/// The acceptor of an endpoint, and the listener that its thread waits at.
pub(crate) struct Accepting<M, L, W> {
    home: Arc<Home<M, L>>,
    context: Context,
    /// Dropped ahead of the acceptor: a thread that waits at the listener finds it closed.
    _listener: W,
    acceptor: Acceptor,
}

/// The part of an acceptor that its thread has.
pub(super) struct Serving<M, L> {
    pub(super) home: Arc<Home<M, L>>,
    pub(super) greeting: Arc<Greeting>,
}

impl<M: Send + Sync + 'static, L: Send + 'static, W> Acceptors<M, L, W> {
    pub(super) fn new(context: &Context, maker: &Arc<M>) -> Self {
        let (context, maker) = (context.clone(), Arc::clone(maker));
        Self { context, maker, inbox: Arc::new(Inbox::new()), table: Vec::new() }
    }
    pub(super) fn inbox(&self) -> &Arc<Inbox<L>> {
        &self.inbox
    }
    /// Whether peers may have made links.
    #[inline]
    pub(super) fn any_link(&self) -> bool {
        self.inbox.any()
    }
    /// The links that peers have made, each with its endpoint.
    pub(super) fn links(&self) -> Vec<(EndpointId, LinkId, L)> {
        self.inbox.take()
    }
    fn target(&self, endpoint: EndpointId) -> Target<M, L> {
        Target { maker: Arc::clone(&self.maker), inbox: Arc::clone(&self.inbox), endpoint }
    }
    fn put(&mut self, endpoint: EndpointId, accepting: Accepting<M, L, W>) {
        let place = endpoint.place();
        if place >= self.table.len() {
            self.table.resize_with(place + 1, || None);
        }
        self.table[place] = Some(accepting);
    }
    /// Starts the acceptor of an endpoint. `serve` runs on its thread, `listener` is dropped with it.
    pub(super) fn start(
        &mut self,
        endpoint: EndpointId,
        hello: Hello,
        listener: W,
        serve: impl FnOnce(&Stop, Serving<M, L>) + Send + 'static,
    ) -> Result<(), Error> {
        let greeting = Arc::new(Greeting::new(hello));
        let home = Arc::new(Home::new(self.target(endpoint)));
        let serving = Serving { home: Arc::clone(&home), greeting: Arc::clone(&greeting) };
        let acceptor = Acceptor::start(greeting, move |stop: &Stop| serve(stop, serving))?;
        self.put(endpoint, Accepting { home, context: self.context.clone(), _listener: listener, acceptor });
        Ok(())
    }
    /// Takes the acceptor of an endpoint out. Dropped, it ends.
    pub(super) fn take(&mut self, endpoint: EndpointId) -> Option<Accepting<M, L, W>> {
        self.table.get_mut(endpoint.place())?.take()
    }
    /// Goes on with the acceptor of another bundle, for this endpoint.
    ///
    /// # Errors
    /// The other bundle stands on another device.
    pub(super) fn adopt(
        &mut self,
        endpoint: EndpointId,
        accepting: Accepting<M, L, W>,
        limits: &Hello,
    ) -> Result<(), Accepting<M, L, W>> {
        if !Arc::ptr_eq(accepting.context.device(), self.context.device()) {
            return Err(accepting);
        }
        accepting.home.set(self.target(endpoint));
        accepting.acceptor.greeting.set_limits(limits);
        self.put(endpoint, accepting);
        Ok(())
    }
    /// Has peers told of a segment.
    pub(super) fn set_segment(&self, endpoint: EndpointId, remote: Remote) -> Result<(), Error> {
        let accepting = self.table.get(endpoint.place()).and_then(Option::as_ref).ok_or(Error::Endpoint)?;
        accepting.acceptor.greeting.set_segment(remote)
    }
}
