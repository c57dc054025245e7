//! A portal with a queue, and messages for it.
#![allow(dead_code, reason = "each test uses a part")]

use hca_matching::*;

pub(crate) const OP: Options = Options::OP_PUT.union(Options::OP_GET);
pub(crate) const HERE: Process = Process::physical(Nid(1), Pid(2));

pub(crate) struct Rig {
    pub(crate) ni: Interface,
    pub(crate) eq: EqHandle,
    pub(crate) pt: u32,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Config::default(), PortalOptions::empty(), 64)
    }
    pub(crate) fn v3() -> Self {
        let mut rig =
            Self::with(Config { version: Version::V3, ..Config::default() }, PortalOptions::empty(), 64);
        rig.ni.pt_free(rig.pt).unwrap();
        rig.pt = rig.ni.pt_alloc(PortalOptions::empty(), None, None).unwrap();
        rig
    }
    pub(crate) fn flow_control(events: u32) -> Self {
        Self::with(Config::default(), PortalOptions::FLOWCTRL, events)
    }
    pub(crate) fn with(config: Config, options: PortalOptions, events: u32) -> Self {
        let mut ni = Interface::new(config);
        let eq = ni.eq_alloc(events).unwrap();
        let pt = ni.pt_alloc(options, Some(eq), None).unwrap();
        Self { ni, eq, pt }
    }
    /// Appends an entry for all messages, whose `Link` event is not told.
    pub(crate) fn append(&mut self, list: ListKind, region: Region) -> EntryHandle {
        self.append_for(list, Criteria::ANY, region)
    }
    pub(crate) fn append_for(
        &mut self,
        list: ListKind,
        criteria: Criteria,
        mut region: Region,
    ) -> EntryHandle {
        region.options |= Options::EVENT_LINK_DISABLE;
        self.ni.append(self.pt, list, Entry::new(criteria, region)).unwrap()
    }
    pub(crate) fn header(&self, operation: Operation, length: u64) -> Header {
        Header { operation, length, pt_index: self.pt, initiator: HERE, ..Header::default() }
    }
    pub(crate) fn put(&self, length: u64) -> Header {
        self.header(Operation::Put, length)
    }
    /// A put of 8 bytes from a descriptor to the portal, with an acknowledgement.
    pub(crate) fn outgoing_put(&self, md: MdHandle) -> Transfer {
        Transfer {
            operation: Operation::Put,
            md,
            local_offset: 0,
            reply: None,
            length: 8,
            ack: AckRequest::Full,
            target: HERE,
            pt_index: self.pt,
            ac_index: 0,
            match_bits: 0,
            remote_offset: 0,
            user_ptr: 0,
            hdr_data: 0,
            operand: [0; 32],
        }
    }
    /// Delivers and completes a message: entry, offset and length, or how it failed.
    pub(crate) fn send(&mut self, header: Header) -> Result<(EntryHandle, u64, u64), NiFail> {
        match self.ni.deliver(&Header { ack: AckRequest::Full, ..header }) {
            Verdict::Accept(delivery) => {
                let taken = (delivery.entry, delivery.offset, delivery.mlength);
                let _ = self.ni.complete(delivery, NiFail::Ok);
                Ok(taken)
            }
            Verdict::Refuse(response) => Err(response.fail),
        }
    }
    pub(crate) fn begin(&mut self, header: Header) -> Delivery {
        match self.ni.deliver(&header) {
            Verdict::Accept(delivery) => delivery,
            Verdict::Refuse(response) => panic!("refused: {response:?}"),
        }
    }
    pub(crate) fn end(&mut self, delivery: Delivery) -> Response {
        self.ni.complete(delivery, NiFail::Ok)
    }
    pub(crate) fn event(&mut self) -> Option<Event> {
        self.ni.eq_get(self.eq).unwrap().map(|got| got.event)
    }
    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.event()).collect()
    }
    pub(crate) fn kinds(&mut self) -> Vec<EventKind> {
        self.events().into_iter().map(|event| event.kind).collect()
    }
}

pub(crate) fn region(length: u64, options: Options) -> Region {
    Region { start: 0x1000, length, options, ..Region::default() }
}

pub(crate) fn bits(match_bits: u64) -> Criteria {
    Criteria { bits: match_bits, ignore: 0, ..Criteria::ANY }
}
