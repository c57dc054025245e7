//! Two Portals nodes in this process, for what is counted and timed part by part.

use hca::portals::v4::{
    EqHandle, Limits, ListKind, Md, MdHandle, MdOptions, Me, MeOptions, Ni, NiOptions, Process, PtOptions,
    Put, Source,
};
use hca::portals::{Card, Memory, Node, NodeOptions};
use hca::{Opened, open_exactly};
use hca_perf::Failure;

/// The portal that messages name, and their match bits.
const PORTAL: u32 = 3;
const BITS: u64 = 7;
/// Events of a queue.
const EVENTS: u32 = 1024;

/// One of the two.
pub struct End {
    ni: Ni,
    came: EqHandle,
    sent: EqHandle,
    put: Put,
    entry: Me,
    _memory: Memory,
    _device: Opened,
}

/// Two nodes on a device each, that send each other puts of `size` bytes.
///
/// # Errors
/// A device or a node can't be opened.
pub fn ends(device: &str, size: u64) -> Result<[End; 2], Failure> {
    let devices = [open_exactly(&device.parse()?)?, open_exactly(&device.parse()?)?];
    let contexts = devices.each_ref().map(|device| device.context().clone());
    let nodes = Node::open_all(&contexts, &NodeOptions::default())?;
    let cards: Vec<Card> = nodes.iter().map(Node::card).collect();
    let mut ends = devices.into_iter().zip(nodes).zip([cards[1], cards[0]]);
    let mut end = || {
        let (own, other) = ends.next().expect("two were opened");
        End::new(own, other, size)
    };
    Ok([end()?, end()?])
}

impl End {
    fn new((device, node): (Opened, Node), other: Card, size: u64) -> Result<Self, Failure> {
        let ni = Ni::init(&node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default())?;
        let (came, sent) = (ni.eq_alloc(EVENTS)?, ni.eq_alloc(EVENTS)?);
        ni.pt_alloc(PtOptions::empty(), Some(came), Some(PORTAL))?;
        let memory = node.alloc(size.max(8) as usize)?;
        let target = Process::physical(other.nid, other.pid);
        let entry = Me {
            options: MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE | MeOptions::EVENT_UNLINK_DISABLE,
            match_id: Source::exactly(target),
            match_bits: BITS,
            ..Me::new(&memory)
        };
        let md: MdHandle =
            ni.md_bind(&Md { options: MdOptions::EVENT_SEND_DISABLE, eq: Some(sent), ..Md::new(&memory) })?;
        let put = Put { match_bits: BITS, ..Put::new(md, size, target, PORTAL) };
        Ok(Self { ni, came, sent, put, entry, _memory: memory, _device: device })
    }
    /// Has sending told by an event from now on.
    ///
    /// # Errors
    /// A limit.
    pub fn tell_sending(&mut self) -> Result<(), Failure> {
        self.put.md = self.ni.md_bind(&Md { eq: Some(self.sent), ..Md::new(&self._memory) })?;
        Ok(())
    }
    /// Posts an entry: for one message, or for all.
    ///
    /// # Errors
    /// A limit.
    #[inline]
    pub fn post(&self, once: bool) -> Result<(), Failure> {
        if !once {
            self.ni.me_append(PORTAL, &self.entry, ListKind::Priority, 0)?;
            return Ok(());
        }
        let entry = Me { options: self.entry.options | MeOptions::USE_ONCE, ..self.entry.clone() };
        self.ni.me_append(PORTAL, &entry, ListKind::Priority, 0)?;
        Ok(())
    }
    /// Sends a put.
    ///
    /// # Errors
    /// The node can't.
    #[inline]
    pub fn put(&self) -> Result<(), Failure> {
        Ok(self.ni.put(&self.put)?)
    }
    /// Whether a put came, and its event is taken.
    ///
    /// # Errors
    /// The node can't go on.
    #[inline]
    pub fn arrived(&self) -> Result<bool, Failure> {
        Ok(self.ni.eq_get(self.came)?.is_some())
    }
    /// Whether an event told that a put is sent.
    ///
    /// # Errors
    /// The node can't go on.
    #[inline]
    pub fn sent(&self) -> Result<bool, Failure> {
        Ok(self.ni.eq_get(self.sent)?.is_some())
    }
    /// Does what there is to do.
    pub fn progress(&self) {
        self.ni.node().progress();
    }
    /// Sends a put to the other end, and takes its event there.
    ///
    /// # Errors
    /// A node can't go on.
    #[inline]
    pub fn one_way(&self, to: &Self) -> Result<(), Failure> {
        self.put()?;
        while !to.arrived()? {}
        Ok(())
    }
    /// Has both meet.
    ///
    /// # Errors
    /// A node can't go on.
    pub fn meet(&self, other: &Self) -> Result<(), Failure> {
        for (from, to) in [(self, other), (other, self)] {
            from.put()?;
            while !to.arrived()? {
                from.progress();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_send_each_other_puts_and_an_entry_of_one_use_takes_one() {
        let [mut a, b] = ends("loopback://benches-portals?progress=inline", 0).unwrap();
        a.tell_sending().unwrap();
        a.post(false).unwrap();
        b.post(true).unwrap();
        a.put().unwrap();
        while !b.arrived().unwrap() {
            a.progress();
        }
        while !a.sent().unwrap() {}
        b.one_way(&a).unwrap();
        a.put().unwrap();
        (0..100).for_each(|_| assert!(!b.arrived().unwrap(), "no entry is left"));
    }
}
